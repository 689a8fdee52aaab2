//! The real binary: what it prints where, and how it ends.

mod caddy;
mod check;
mod choose;
mod compare;
mod dashboard;
mod documentation;
mod envoy;
mod explain;
mod gateway;
mod general;
mod hostile;
mod keys;
mod metrics;
mod nftables;
mod nginx;
mod openapi;
mod operations;
mod otlp;
mod packaging;
mod prometheus;
mod redis_clients;
mod redis_store;
mod schema;
mod soak;
mod support;
mod top;
mod validate;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

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
    run(&mut command(arguments), input)
}

fn run(command: &mut Command, input: &str) -> Run {
    let mut child = command
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

/// Where the repository is.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The path of an example policy.
fn example(file: &str) -> String {
    root().join("examples/policies").join(file).to_str().expect("paths here are text").to_owned()
}

/// A folder of one test, gone when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tollgate-cli-{}-{number}", process::id()));
        fs::create_dir(&path).expect("the name is new");
        Self(path)
    }

    /// A folder with these files.
    fn with(files: &[(&str, &str)]) -> Self {
        let folder = Self::new();
        for (name, text) in files {
            folder.write(name, text);
        }
        folder
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        fs::write(self.0.join(name), bytes).expect("the folder is ours");
        self.path(name)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("paths here are text").to_owned()
    }

    /// Runs the command in this folder, so that messages name files as they are called here.
    fn tollgate(&self, arguments: &[&str]) -> Run {
        run(command(arguments).current_dir(&self.0), "")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).expect("the folder is ours");
    }
}
