//! Measuring.
//!
//! Peers live in a workspace of their own, so that neither a user nor CI ever builds them.

pub(crate) mod client;
pub(crate) mod decide;
pub(crate) mod gateway;
pub(crate) mod observe;
pub(crate) mod server;

use std::path::{Path, PathBuf};

use crate::{parts, shell};

/// The benchmark's workspace, seen from the root.
const MANIFEST: &str = "bench/Cargo.toml";

/// Runs the side-by-side benchmark with the given arguments.
pub(crate) fn against_peers(arguments: &[String]) -> Result<(), String> {
    run("tollgate-bench", arguments)
}

/// Measures the Redis store with the given arguments.
pub(crate) fn redis_store(arguments: &[String]) -> Result<(), String> {
    parts::require(parts::FOR_REDIS_BENCHMARK)?;
    run("redis", arguments)
}

/// Builds the program that users run.
fn tollgate() -> Result<PathBuf, String> {
    shell::run(&mut shell::cargo(&["build", "--release", "--package", "tollgate-cli"]))?;
    Ok(shell::target_dir().join("release/tollgate"))
}

fn as_argument(path: &Path) -> Result<String, String> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| format!("{} is not UTF-8; choose another target folder", path.display()))
}

/// Runs a program of the benchmark's workspace.
fn run(program: &str, arguments: &[String]) -> Result<(), String> {
    if !shell::root().join(MANIFEST).is_file() {
        return Err(format!("there is no {MANIFEST}: run this in a full checkout"));
    }
    let run = ["run", "--release", "--manifest-path", MANIFEST, "--bin", program, "--"];
    shell::run(shell::cargo(&run).args(arguments))
}
