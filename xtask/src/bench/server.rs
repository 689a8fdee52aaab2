//! The server beside other servers.

use std::path::{Path, PathBuf};

use crate::parts;
use crate::shell;

/// Builds or installs what is measured, and measures it with the given arguments.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    parts::require(parts::FOR_SERVER_BENCHMARK)?;
    let throttlecrab = throttlecrab()?;
    shell::run(&mut shell::cargo(&["build", "--release", "--package", "tollgate-cli"]))?;
    let tollgate = shell::target_dir().join("release/tollgate");
    let mut all = vec![as_argument(&tollgate)?, as_argument(&throttlecrab)?];
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

fn as_argument(path: &Path) -> Result<String, String> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| format!("{} is not UTF-8; choose another target folder", path.display()))
}
