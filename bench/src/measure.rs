//! What this thread spends, and what another program would.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::time::{ClockId, clock_gettime};

/// How long this thread was on a core.
pub fn on_core_nanos() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Instructions that a program takes for each of `count` things, which it is told to do as its last argument: those of
/// twice as many without those of as many, so that what starting costs is not in it.
pub fn instructions(program: &Path, arguments: &[&str], count: u32) -> f64 {
    let [once, twice] = [count, 2 * count].map(|count| total(program, arguments, count));
    (twice - once) / f64::from(count)
}

fn total(program: &Path, arguments: &[&str], count: u32) -> f64 {
    let profile = program.with_file_name(format!("callgrind.{}.{count}", std::process::id()));
    let out = format!("--callgrind-out-file={}", profile.display());
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--tool=callgrind", &out]).arg(program).args(arguments);
    let status = valgrind.arg(count.to_string()).status().expect("valgrind can be started");
    assert!(status.success(), "callgrind ended with {status}");
    let text = fs::read_to_string(&profile).expect("callgrind writes a profile");
    let _ = fs::remove_file(&profile);
    let line = text.lines().rev().find_map(|line| line.strip_prefix("totals:"));
    line.and_then(|total| total.trim().parse().ok()).expect("a profile has a total")
}
