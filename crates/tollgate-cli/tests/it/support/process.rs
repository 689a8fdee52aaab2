//! A process of a test.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use super::eventually;

/// A running process, ended with the test.
pub(crate) struct Process(Child);

impl Process {
    /// Starts it; what it says goes to `log`.
    pub(crate) fn start(mut command: Command, log: &Path) -> Self {
        let file = File::create(log).expect("the folder is ours");
        let copy = file.try_clone().expect("a file can be had twice");
        command.stdin(Stdio::null()).stdout(file).stderr(copy);
        Self(command.spawn().unwrap_or_else(|error| panic!("{command:?} did not start: {error}")))
    }

    pub(crate) fn of(child: Child) -> Self {
        Self(child)
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Sends a signal by its name.
    pub(crate) fn signal(&self, name: &str) {
        let sent =
            Command::new("kill").args([&format!("-{name}"), &self.id().to_string()]).status();
        assert!(sent.expect("there is a kill").success(), "the process is there");
    }

    /// How it ended.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        eventually("the process ends", || self.0.try_wait().expect("it is our child"))
    }

    /// How it ended, if it did.
    pub(crate) fn has_ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().expect("it is our child")
    }

    /// Ends it at once.
    pub(crate) fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Its memory that is really there, in KiB.
    pub(crate) fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id()));
        let status = status.expect("the process is there");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let figure = line.expect("Linux says so").trim().trim_end_matches(" kB");
        figure.parse().expect("it is a number")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
