//! Servers as processes: started, watched from outside, ended.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::report::{self, kibibytes};

/// How long a server may take to start.
const START_MAX: Duration = Duration::from_secs(10);

/// A folder for what a server reads and writes. It is gone when this is dropped.
pub struct Folder(PathBuf);

impl Folder {
    /// A new one. The name is to be of this process alone.
    pub fn new(name: &str) -> Result<Self, String> {
        let folder =
            std::env::temp_dir().join(format!("tollgate-bench-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder)
            .map_err(|error| format!("creating {}: {error}", folder.display()))?;
        Ok(Self(folder))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file and returns its path.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf, String> {
        let path = self.0.join(name);
        let parent = path.parent().unwrap_or(&self.0);
        fs::create_dir_all(parent)
            .and_then(|()| fs::write(&path, text))
            .map_err(|error| format!("writing {}: {error}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A running server. It ends when this is dropped.
pub struct Process {
    child: Child,
    _folder: Folder,
}

impl Process {
    /// Starts a server that works in a folder, and waits until it listens.
    pub fn start(
        mut command: Command,
        folder: Folder,
        addresses: &[SocketAddr],
    ) -> Result<Self, String> {
        let name = command.get_program().display().to_string();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let child = child.map_err(|error| format!("starting {name}: {error}"))?;
        let mut process = Self { child, _folder: folder };
        let start = Instant::now();
        for address in addresses {
            while TcpStream::connect(address).is_err() {
                if let Ok(Some(status)) = process.child.try_wait() {
                    return Err(format!("{name} ended at its start: {status}"));
                }
                if start.elapsed() > START_MAX {
                    return Err(format!("{name} does not listen at {address}"));
                }
                thread::sleep(Duration::from_millis(10));
            }
        }
        Ok(process)
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The time its threads have spent on a core, in nanoseconds: user and system.
    pub fn cpu_nanos(&self) -> f64 {
        report::cpu_nanos(self.id(), None)
    }

    /// The same of its threads of this name.
    pub fn thread_cpu_nanos(&self, name: &str) -> f64 {
        report::cpu_nanos(self.id(), Some(name))
    }

    /// Memory that is its own and in use, in KiB.
    pub fn resident_kibibytes(&self) -> f64 {
        kibibytes(&self.status(), "VmRSS:")
    }

    /// The most that it ever was, in KiB.
    pub fn peak_kibibytes(&self) -> f64 {
        kibibytes(&self.status(), "VmHWM:")
    }

    fn status(&self) -> String {
        format!("/proc/{}/status", self.id())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It is ours alone, and holds nothing worth saving.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Nobody listens there now. That somebody will before our server does is unlikely, and then it says so.
pub fn free_addresses<const COUNT: usize>() -> Result<[SocketAddr; COUNT], String> {
    let listen = || TcpListener::bind("127.0.0.1:0").and_then(|it| Ok((it.local_addr()?, it)));
    let listeners: Result<Vec<_>, _> = (0..COUNT).map(|_| listen()).collect();
    let listeners = listeners.map_err(|error| format!("a free port: {error}"))?;
    Ok(std::array::from_fn(|at| listeners[at].0))
}

/// Lets us and the servers we start open as many connections as the system lets us at all.
pub fn raise_limits() -> Result<(), String> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
        .map_err(|error| format!("raising the number of open files: {error}"))
}

/// Keeps the main thread of a process to one core, or, without a process, this thread and those that it will start.
pub fn keep_to_core(process: Option<u32>, core: usize) -> Result<(), String> {
    let mut set = CpuSet::new();
    set.set(core);
    let process = process.and_then(|id| Pid::from_raw(id.cast_signed()));
    sched_setaffinity(process, &set).map_err(|error| format!("keeping to core {core}: {error}"))
}

/// Processes whose threads go before whatever else wants a core, until this is dropped.
pub struct First<const COUNT: usize>([u32; COUNT]);

impl<const COUNT: usize> First<COUNT> {
    /// Those that they have now, and will start.
    pub fn of(processes: [u32; COUNT]) -> Result<Self, String> {
        let first = Self(processes);
        first.schedule(["--fifo", "--pid", "1"])?;
        Ok(first)
    }

    fn schedule(&self, how: [&str; 3]) -> Result<(), String> {
        for id in self.0 {
            let mut chrt = Command::new("chrt");
            let output = chrt.arg("--all-tasks").args(how).arg(id.to_string()).output();
            let output = output.map_err(|error| format!("chrt, of util-linux: {error}"))?;
            if !output.status.success() {
                return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
            }
        }
        Ok(())
    }
}

impl<const COUNT: usize> Drop for First<COUNT> {
    fn drop(&mut self) {
        // A process that has ended goes before nobody.
        let _ = self.schedule(["--other", "--pid", "0"]);
    }
}

/// How much of its time on a core this thread spent waiting for one.
pub fn waited_for_a_core() -> f64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let numbers: Vec<f64> = text.split_whitespace().flat_map(str::parse).collect();
    match numbers[..] {
        [running, waiting, _] => waiting / running,
        _ => 0.0,
    }
}

/// What a program says of its version: the first number with dots in it.
pub fn version_of(program: &Path) -> String {
    let output = Command::new(program).arg("--version").output().map(|output| output.stdout);
    let text = String::from_utf8_lossy(&output.unwrap_or_default()).into_owned();
    let words = text.split_whitespace().map(|word| word.trim_start_matches("v="));
    let version = words.filter(|word| word.starts_with(|first: char| first.is_ascii_digit()));
    version.take(1).collect()
}
