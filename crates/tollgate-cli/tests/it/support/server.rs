//! The server under test.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{ChildStderr, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use super::eventually;
use super::http::{self, Response};
use super::process::Process;
use crate::command;

/// A running `tollgate serve`.
pub(crate) struct Server {
    pub(crate) process: Process,
    log: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Starts it with this policy, and waits until it listens.
    pub(crate) fn start(policy: &Path) -> Self {
        let mut server = Self::spawn(policy);
        eventually("the server listens", || {
            let ended = server.process.has_ended();
            assert!(ended.is_none(), "the server ended: {:?}", server.log());
            server.log().iter().any(|line| line.contains("\"listening\"")).then_some(())
        });
        server
    }

    /// The same, without waiting for anything.
    pub(crate) fn spawn(policy: &Path) -> Self {
        let mut serve = command(&["serve", "--log", "info", "-c"]);
        serve.arg(policy);
        Self::follow(serve)
    }

    /// The same, by a shell that first sets a bound: `ulimit -n 48`.
    pub(crate) fn spawn_under(bound: &str, policy: &Path) -> Self {
        let mut shell = Command::new("sh");
        let line = format!("{bound}; exec \"$0\" serve --log info -c \"$1\"");
        shell.args(["-c", &line, env!("CARGO_BIN_EXE_tollgate")]).arg(policy);
        Self::follow(shell)
    }

    /// The same, however it is to be started.
    pub(crate) fn follow(mut serve: Command) -> Self {
        serve.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = serve.spawn().expect("the binary runs");
        let stderr = child.stderr.take().expect("it is piped");
        let log = Arc::default();
        let lines = Arc::clone(&log);
        thread::spawn(move || follow(stderr, &lines));
        Self { process: Process::of(child), log }
    }

    /// What it has said so far.
    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().expect("nobody panics with it").clone()
    }

    /// Where a door is.
    pub(crate) fn address(&self, door: &str) -> SocketAddr {
        let wanted = |line: &String| {
            let event: serde_json::Value = serde_json::from_str(line).ok()?;
            let is_it = event["message"] == "listening" && event["door"] == door;
            is_it.then(|| event["address"].as_str()?.parse().ok())?
        };
        eventually(&format!("the {door} door opens"), || self.log().iter().find_map(wanted))
    }

    /// Waits until it says this.
    pub(crate) fn says(&self, text: &str) {
        eventually(&format!("the server says {text:?}"), || {
            self.log().iter().any(|line| line.contains(text)).then_some(())
        });
    }

    /// `GET` at a door.
    pub(crate) fn get(&self, door: &str, path: &str) -> Response {
        http::get(self.address(door), path, &[])
    }

    /// `POST` at a door.
    pub(crate) fn post(&self, door: &str, path: &str, body: &str) -> Response {
        http::request(self.address(door), "POST", path, &[], body)
    }
}

fn follow(stderr: ChildStderr, lines: &Mutex<Vec<String>>) {
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        lines.lock().expect("nobody panics with it").push(line);
    }
}
