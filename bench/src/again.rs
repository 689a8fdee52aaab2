//! This program once more: some figures are only those of a fresh process.

use std::process::{Command, Stdio};

/// The numbers that it prints when it is given these arguments.
pub fn numbers(arguments: &[&str]) -> Vec<f64> {
    let program = std::env::current_exe().expect("this program has a path");
    let mut command = Command::new(program);
    let output = command.args(arguments).stderr(Stdio::inherit()).output();
    let output = output.expect("this program can run itself");
    assert!(output.status.success(), "{arguments:?} ended with {}", output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    text.split_whitespace().flat_map(str::parse).collect()
}
