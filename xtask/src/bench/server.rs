//! The server beside other servers.

use std::path::PathBuf;

use super::as_argument;
use crate::parts;
use crate::shell;

/// Builds or installs what is measured, and measures it with the given arguments.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    parts::require(parts::FOR_SERVER_BENCHMARK)?;
    let throttlecrab = throttlecrab()?;
    let mut all = vec![as_argument(&super::tollgate()?)?, as_argument(&throttlecrab)?];
    all.extend_from_slice(arguments);
    super::run("server", &all)
}

/// A peer that cargo installs; built once, beside what we build ourselves.
fn throttlecrab() -> Result<PathBuf, String> {
    let folder = shell::target_dir().join("peers");
    let program = folder.join("bin/throttlecrab-server");
    if !program.is_file() {
        let install = ["install", "throttlecrab-server", "--version", "0.4.40", "--locked"];
        shell::run(shell::cargo(&install).arg("--root").arg(&folder))?;
    }
    Ok(program)
}
