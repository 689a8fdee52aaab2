//! Feeding the parsers what nobody would write.
//!
//! The targets live in a workspace of their own, built with the fuzzer's instrumentation. What they
//! check also runs from fixed seeds as tests of the crates.

use std::fs;
use std::path::PathBuf;

use crate::{parts, shell};

/// What can be fuzzed; a file of `fuzz/fuzz_targets` each.
pub(crate) const TARGETS: [&str; 7] =
    ["policy", "path", "key", "snapshot", "resp", "check", "settle"];

/// Fuzzes one target for so many seconds, with cargo-fuzz, which is installed if it is not there.
pub(crate) fn run(target: &str, seconds: u32) -> Result<(), String> {
    parts::require(parts::FOR_FUZZING)?;
    if shell::output(&mut shell::cargo(&["fuzz", "--version"])).is_err() {
        shell::run(&mut shell::cargo(&["install", "--locked", "cargo-fuzz"]))?;
    }
    let corpus = shell::root().join("fuzz/corpus").join(target);
    fs::create_dir_all(&corpus)
        .map_err(|error| format!("cannot create {}: {error}", corpus.display()))?;
    // Sanitizers want a nightly compiler, and there is no unsafe code for them to look at.
    let mut command = shell::cargo(&["fuzz", "run", "--sanitizer", "none", target]);
    command.arg(corpus).args(seeds_of(target)).arg("--");
    // As long as the longest policy to begin with: longer inputs say little more, and take their time.
    command.args([&format!("-max_total_time={seconds}"), "-timeout=10", "-max_len=16384"]);
    command.arg("-print_final_stats=1");
    shell::run(&mut command)
}

/// Where a target finds what to begin with.
fn seeds_of(target: &str) -> Vec<PathBuf> {
    let folders: &[&str] = match target {
        "policy" => &["accepted", "refused", "tenants"],
        _ => return vec![shell::root().join("fuzz/seeds").join(target)],
    };
    let corpus = shell::root().join("crates/tollgate-policy/tests/corpus");
    folders.iter().map(|folder| corpus.join(folder)).collect()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn every_target_is_a_file_with_something_to_begin_with() {
        let mut targets = TARGETS.map(|target| OsString::from(format!("{target}.rs")));
        targets.sort();
        let files = fs::read_dir(shell::root().join("fuzz/fuzz_targets")).unwrap();
        let mut files: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
        files.sort();
        assert_eq!(files, targets);
        for folder in TARGETS.iter().flat_map(|target| seeds_of(target)) {
            assert!(
                fs::read_dir(&folder).is_ok_and(|mut seeds| seeds.next().is_some()),
                "{folder:?}"
            );
        }
    }
}
