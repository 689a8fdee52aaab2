//! Measuring.
//!
//! Peers live in a workspace of their own, so that neither a user nor CI ever builds them.

pub(crate) mod decide;
pub(crate) mod server;

use crate::{parts, shell};

/// Runs the side-by-side benchmark with the given arguments.
pub(crate) fn against_peers(arguments: &[String]) -> Result<(), String> {
    run("tollgate-bench", arguments)
}

/// Measures the Redis store with the given arguments.
pub(crate) fn redis_store(arguments: &[String]) -> Result<(), String> {
    parts::require(parts::FOR_REDIS_BENCHMARK)?;
    run("redis", arguments)
}

/// Runs a program of the benchmark's workspace.
fn run(program: &str, arguments: &[String]) -> Result<(), String> {
    const MANIFEST: &str = "bench/Cargo.toml";
    if !shell::root().join(MANIFEST).is_file() {
        return Err(format!("there is no {MANIFEST}: run this in a full checkout"));
    }
    let run = ["run", "--release", "--manifest-path", MANIFEST, "--bin", program, "--"];
    shell::run(shell::cargo(&run).args(arguments))
}
