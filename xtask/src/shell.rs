//! Running other programs, said aloud.
//!
//! Every step is printed before it runs, so that who reads a log of it can run the same by hand.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The folder of the root manifest.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the repository")
}

/// Where cargo puts what it builds.
pub(crate) fn target_dir() -> PathBuf {
    let chosen = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    root().join(chosen)
}

/// The cargo that runs us, started at the root.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(arguments);
    // What `cargo run` tells of this package. Build scripts that look at it (ring's) would run anew,
    // and all that depends on them be built again, after every build that was started by hand.
    for (name, _) in env::vars_os() {
        let named = name.to_string_lossy();
        if named.starts_with("CARGO_PKG_") || named.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a step whose output is for the person watching.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let line = line_of(command);
    eprintln!("$ {line}");
    let status = command.status().map_err(|error| format!("`{line}` did not start: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("`{line}` failed ({status})")) }
}

/// Runs a step whose output is for us, and shown only when it fails.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let line = line_of(command);
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("`{line}` did not start: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let messages = String::from_utf8_lossy(&output.stderr);
    Err(format!("`{line}` failed ({})\n{text}{messages}", output.status))
}

/// The command as one would type it.
fn line_of(command: &Command) -> String {
    let settings = command.get_envs().filter_map(|(name, value)| {
        Some(format!("{}='{}'", name.to_string_lossy(), value?.to_string_lossy()))
    });
    let program = Path::new(command.get_program());
    // The cargo that runs us is known by a long path that says nothing.
    let program =
        program.file_name().filter(|name| *name == "cargo").unwrap_or(program.as_os_str());
    let words = std::iter::once(program).chain(command.get_args());
    let words = words.map(|word| word.to_string_lossy().into_owned());
    settings.chain(words).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_fails_is_named_with_its_arguments() {
        let error = output(&mut cargo(&["no-such-subcommand"])).unwrap_err();
        assert!(error.starts_with("`cargo no-such-subcommand` failed (exit"), "{error}");
    }

    #[test]
    fn a_program_that_is_not_there_is_a_sentence_too() {
        let error = output(&mut Command::new("no-such-program")).unwrap_err();
        assert!(error.starts_with("`no-such-program` did not start: "), "{error}");
    }

    #[test]
    fn a_step_is_shown_as_one_would_type_it() {
        let mut command = cargo(&["test", "--release"]);
        command.env("RUSTFLAGS", "--cfg loom");
        assert_eq!(line_of(&command), "RUSTFLAGS='--cfg loom' cargo test --release");
    }
}
