//! Every test there is, in one command.
//!
//! Besides what `cargo test` runs, examples are run to their end, since the crate docs promise that
//! they can be, and the store's hot path is checked under every interleaving, which needs a build
//! of its own.

use std::env;
use std::fs;
use std::path::Path;

use crate::parts;
use crate::shell;

/// Runs everything, or with arguments only the `cargo test` they ask for.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    parts::require(parts::FOR_TESTS)?;
    parts::install_packages()?;
    shell::run(shell::cargo(&["test", "--all-features"]).args(test_arguments(arguments)))?;
    if arguments.is_empty() {
        run_examples()?;
        run_models()?;
    }
    Ok(())
}

/// What the suite does at the gateway for a moment, for so many seconds and as it is shipped.
pub(crate) fn soak(seconds: u32) -> Result<(), String> {
    let arguments = ["test", "--release", "--package", "tollgate-cli", "--test", "it", "soak"];
    let mut test = shell::cargo(&arguments);
    shell::run(test.args(["--", "--nocapture"]).env("TOLLGATE_SOAK_SECONDS", seconds.to_string()))
}

/// A chart of less looks empty.
const SECONDS_BEFORE_PICTURES: u32 = 300;

/// Takes the pictures of the dashboard: of a server as it is shipped, after minutes of traffic.
pub(crate) fn screenshots() -> Result<(), String> {
    parts::require(parts::FOR_TESTS)?;
    parts::require(parts::FOR_SCREENSHOTS)?;
    parts::install_packages()?;
    let arguments = ["test", "--release", "--package", "tollgate-cli", "--test", "it", "pictures"];
    let mut test = shell::cargo(&arguments);
    test.env("TOLLGATE_PICTURES", shell::root().join("docs/images"));
    shell::run(test.env("TOLLGATE_SECONDS", SECONDS_BEFORE_PICTURES.to_string()))
}

/// All packages, unless some are asked for by name: without this, cargo tests the command alone.
fn test_arguments(arguments: &[String]) -> Vec<String> {
    let mut for_cargo = arguments.iter().take_while(|argument| *argument != "--");
    let names_packages = for_cargo.any(|argument| {
        let starts = |flag| argument.starts_with(flag);
        starts("-p") || starts("--package") || argument == "--workspace"
    });
    let workspace = (!names_packages).then(|| "--workspace".to_owned());
    workspace.into_iter().chain(arguments.iter().cloned()).collect()
}

fn run_examples() -> Result<(), String> {
    for package in children(&shell::root().join("crates"))? {
        let folder = shell::root().join("crates").join(&package).join("examples");
        if !folder.is_dir() {
            continue;
        }
        for entry in children(&folder)? {
            let Some(example) = example_of(&folder, &entry) else { continue };
            eprintln!("$ cargo run --package {package} --example {example}");
            let arguments = ["run", "--quiet", "--package", &package, "--example", example];
            // Some are of what a feature adds.
            shell::output(shell::cargo(&arguments).arg("--all-features"))?;
        }
    }
    Ok(())
}

/// The names in a folder, in order.
fn children(folder: &Path) -> Result<Vec<String>, String> {
    let cannot = |error| format!("cannot list {}: {error}", folder.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(cannot)? {
        names.push(entry.map_err(cannot)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// What cargo calls an entry of an `examples` folder: a file by its stem, a folder with a `main.rs`
/// by its name, anything else nothing.
fn example_of<'a>(folder: &Path, entry: &'a str) -> Option<&'a str> {
    let is_program = folder.join(entry).join("main.rs").is_file();
    entry.strip_suffix(".rs").or(is_program.then_some(entry))
}

/// The loom models of the store. Their `cfg` changes every crate, so they get a target folder of
/// their own, or each run would build the world twice.
fn run_models() -> Result<(), String> {
    const MODEL: &str = "crates/tollgate-store/tests/loom.rs";
    if !shell::root().join(MODEL).is_file() {
        return Err(format!("there is no {MODEL}: the store's hot path is not checked without it"));
    }
    let flags = format!("{} --cfg loom", env::var("RUSTFLAGS").unwrap_or_default());
    let mut command =
        shell::cargo(&["test", "--release", "--package", "tollgate-store", "--test", "loom"]);
    command
        .env("RUSTFLAGS", flags.trim())
        .env("CARGO_TARGET_DIR", shell::target_dir().join("loom"));
    shell::run(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(given: &[&str], expected: &[&str]) {
        let given: Vec<String> = given.iter().map(|&word| word.to_owned()).collect();
        assert_eq!(test_arguments(&given), expected, "{given:?}");
    }

    #[test]
    fn all_packages_are_tested_unless_some_are_named() {
        check(&[], &["--workspace"]);
        check(&["twin"], &["--workspace", "twin"]);
        check(&["-p", "tollgate-core", "twin"], &["-p", "tollgate-core", "twin"]);
        check(&["--package=tollgate-core"], &["--package=tollgate-core"]);
        check(&["--workspace", "twin"], &["--workspace", "twin"]);
        check(&["--", "-p"], &["--workspace", "--", "-p"]);
    }

    #[test]
    fn an_example_is_a_file_or_a_folder_with_a_main() {
        let here = shell::root();
        assert_eq!(example_of(here, "quickstart.rs"), Some("quickstart"));
        assert_eq!(example_of(&here.join("xtask"), "src"), Some("src"));
        assert_eq!(example_of(here, "xtask"), None);
        assert_eq!(example_of(here, "notes.md"), None);
    }
}
