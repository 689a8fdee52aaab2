//! Where `cargo xtask test` has put the programs that tests run.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Envoy itself, not the script that starts it.
pub(crate) fn envoy() -> Command {
    let libraries = installed("python/lib");
    let versions = std::fs::read_dir(&libraries).expect("a virtual environment has libraries");
    let binary = versions
        .filter_map(|version| {
            let binary = version.ok()?.path().join("site-packages/envoy/_bin/envoy");
            binary.is_file().then_some(binary)
        })
        .next();
    Command::new(binary.unwrap_or_else(|| missing("Envoy")))
}

/// A program of the Python packages, or `python` itself.
pub(crate) fn python(program: &str) -> Command {
    Command::new(installed(&format!("python/bin/{program}")))
}

/// `node`, finding the installed packages.
pub(crate) fn node() -> Command {
    let mut command = on_path("node");
    command.env("NODE_PATH", installed("node/node_modules"));
    command
}

/// A program that Debian brings.
pub(crate) fn on_path(program: &str) -> Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian keeps servers where only root looks.
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    let found = folders.map(|folder| folder.join(program)).find(|file| file.is_file());
    Command::new(found.unwrap_or_else(|| missing(program)))
}

fn installed(path: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is in a target folder");
    let path = target.join("parts").join(path);
    if path.exists() { path } else { missing(&path.display().to_string()) }
}

fn missing(what: &str) -> ! {
    panic!("{what} is not there; `cargo xtask test` installs it")
}
