//! Feeding the parsers what nobody would write.
//!
//! The targets live in a workspace of their own, built with the fuzzer's instrumentation. What they
//! check also runs from fixed seeds as tests of the crates.

use std::process::Command;

use crate::shell;

/// What can be fuzzed; a file of `fuzz/fuzz_targets` each.
pub(crate) const TARGETS: [&str; 7] =
    ["policy", "path", "key", "snapshot", "resp", "check", "settle"];

/// Fuzzes one target for so many seconds, with cargo-fuzz, which is installed if it is not there.
pub(crate) fn run(target: &str, seconds: u32) -> Result<(), String> {
    if shell::output(shell::cargo(&["fuzz", "--version"]).env_remove("RUSTC")).is_err() {
        shell::run(&mut shell::cargo(&["install", "--locked", "cargo-fuzz"]))?;
    }
    // Sanitizers want a nightly compiler, and there is no unsafe code for them to look at.
    let mut command: Command =
        shell::cargo(&["fuzz", "run", "--fuzz-dir", "fuzz", "--sanitizer", "none", target, "--"]);
    shell::run(command.args([format!("-max_total_time={seconds}"), "-timeout=10".to_owned()]))
}
