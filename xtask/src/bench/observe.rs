//! What counting costs: everything is built twice, once without it.

use std::path::Path;

use super::{as_argument, tollgate};
use crate::parts;
use crate::shell;

/// Builds both, and measures them with the given arguments.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    parts::require(parts::FOR_INSTRUCTION_COUNTS)?;
    let server = tollgate()?;
    let without = shell::target_dir().join("uncounted");
    build(&without, &["--package", "tollgate-cli"])?;
    build(&without, &["--manifest-path", super::MANIFEST, "--bin", "observe"])?;
    let programs = [server, without.join("release/tollgate"), without.join("release/observe")];
    let mut all: Vec<String> =
        programs.iter().map(|it| as_argument(it)).collect::<Result<_, _>>()?;
    all.extend_from_slice(arguments);
    super::run("observe", &all)
}

/// Builds what counts nothing, in a folder of its own.
fn build(folder: &Path, what: &[&str]) -> Result<(), String> {
    let mut cargo = shell::cargo(&["build", "--release"]);
    cargo.args(what).env("CARGO_TARGET_DIR", folder).env("RUSTFLAGS", "--cfg uncounted");
    shell::run(&mut cargo)
}
