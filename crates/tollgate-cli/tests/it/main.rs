//! The real binary: what it prints where, and how it ends.

mod choose;
mod compare;
mod general;

use std::io::Write;
use std::process::{Command, Stdio};

/// What one run of the command came to.
struct Run {
    stdout: String,
    stderr: String,
    code: Option<i32>,
}

fn tollgate(arguments: &[&str]) -> Run {
    tollgate_reading(arguments, "")
}

/// Runs the command with this as its standard input.
fn tollgate_reading(arguments: &[&str], input: &str) -> Run {
    let mut child = command(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut stdin = child.stdin.take().expect("standard input is piped");
    // A command that does not read may have ended before this is written.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().expect("the binary ends");
    let text = |bytes| String::from_utf8(bytes).expect("output is text");
    Run { stdout: text(output.stdout), stderr: text(output.stderr), code: output.status.code() }
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(arguments);
    command
}
