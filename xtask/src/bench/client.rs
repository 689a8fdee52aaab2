//! The client in a storm, and what it costs out of it.

use super::as_argument;
use crate::parts;
use crate::shell;

/// Builds the simulation, and measures with the given arguments.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    parts::require(parts::FOR_INSTRUCTION_COUNTS)?;
    // Its clock is simulated, so nothing in it needs to be quick, and tests have built most of it already.
    let build = ["build", "--package", "tollgate-client", "--all-features", "--example", "storm"];
    shell::run(&mut shell::cargo(&build))?;
    let mut all = vec![as_argument(&shell::target_dir().join("debug/examples/storm"))?];
    all.extend_from_slice(arguments);
    super::run("client", &all)
}
