//! Servers as processes: started, watched from outside, ended.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use tollgate_bench::report::{self, kibibytes};

use crate::floor::{self, Floor};

/// How long a server may take to start.
const START_MAX: Duration = Duration::from_secs(10);

/// The same for every door: one limit, counted per user, that is never reached. It refills slowly, so that no
/// key is as good as new when it is asked about again: one that is would be forgotten.
const POLICY: &str = "\
limits:
  - name: user
    per: [user]
    rate: 1000000/day
    algorithm: token_bucket
descriptors: ./envoy/
";
const DESCRIPTORS: &str = "\
domain: bench
descriptors:
  - key: user
    rate_limit: { unit: day, requests_per_unit: 1000000, algorithm: token_bucket }
";

/// A server that can be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Tollgate,
    Redis,
    Throttlecrab,
    Floor(Floor),
}

/// What is spoken, and so where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Resp,
    Http,
    Grpc,
}

/// Where the programs are that are not this one.
pub struct Programs {
    pub tollgate: PathBuf,
    pub throttlecrab: PathBuf,
}

/// A running server. It ends when this is dropped.
pub struct Server {
    child: Child,
    addresses: [SocketAddr; 3],
    /// Where its policy is.
    folder: PathBuf,
}

impl Server {
    pub fn start(program: Program, programs: &Programs) -> Result<Self, String> {
        let addresses = free_addresses()?;
        let [resp, http, grpc] = addresses.map(|address| address.port().to_string());
        let folder =
            std::env::temp_dir().join(format!("tollgate-bench-{}-{resp}", std::process::id()));
        fs::create_dir_all(folder.join("envoy")).map_err(|error| error.to_string())?;
        let mut command = match program {
            Program::Tollgate => {
                let policy = folder.join("policy.yaml");
                let listen = format!(
                    "listen:\n  resp: 127.0.0.1:{resp}\n  http: 127.0.0.1:{http}\n  grpc: 127.0.0.1:{grpc}\n"
                );
                fs::write(&policy, listen + POLICY)
                    .and_then(|()| fs::write(folder.join("envoy/bench.yaml"), DESCRIPTORS))
                    .map_err(|error| format!("writing the policy: {error}"))?;
                let mut command = Command::new(&programs.tollgate);
                command.args(["serve", "--log", "error", "-c"]).arg(policy);
                command
            }
            Program::Redis => {
                let mut command = Command::new("redis-server");
                let arguments = ["--port", &resp, "--bind", "127.0.0.1", "--save", ""];
                command.args(arguments).args(["--maxclients", "15000"]).current_dir(&folder);
                command
            }
            Program::Throttlecrab => {
                let mut command = Command::new(&programs.throttlecrab);
                for (name, port) in [("redis", &resp), ("http", &http), ("grpc", &grpc)] {
                    command.arg(format!("--{name}"));
                    command.args([&format!("--{name}-host"), "127.0.0.1"]);
                    command.args([&format!("--{name}-port"), port]);
                }
                command.args(["--log-level", "error"]);
                command
            }
            Program::Floor(floor) => {
                let own = std::env::current_exe().map_err(|error| error.to_string())?;
                let mut command = Command::new(own);
                let address = addresses[floor.protocol() as usize].to_string();
                command.args([floor::ARGUMENT, floor.name(), &address]);
                command
            }
        };
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().map_err(|error| {
                format!("starting {}: {error}", command.get_program().display())
            })?;
        let mut server = Self { child, addresses, folder };
        server.wait_until_it_listens(program)?;
        Ok(server)
    }

    pub fn address(&self, protocol: Protocol) -> SocketAddr {
        self.addresses[protocol as usize]
    }

    /// The time its threads have spent on a core, in nanoseconds: user and system.
    pub fn cpu_nanos(&self) -> f64 {
        report::cpu_nanos(self.child.id())
    }

    /// Memory that is its own and in use, in KiB.
    pub fn resident_kibibytes(&self) -> f64 {
        kibibytes(&format!("/proc/{}/status", self.child.id()), "VmRSS:")
    }

    fn wait_until_it_listens(&mut self, program: Program) -> Result<(), String> {
        let protocols = match program {
            Program::Tollgate | Program::Throttlecrab => {
                &[Protocol::Resp, Protocol::Http, Protocol::Grpc][..]
            }
            Program::Redis => &[Protocol::Resp],
            Program::Floor(floor) => &[floor.protocol()],
        };
        let start = Instant::now();
        for protocol in protocols {
            while TcpStream::connect(self.address(*protocol)).is_err() {
                if let Ok(Some(status)) = self.child.try_wait() {
                    return Err(format!("{program:?} ended at its start: {status}"));
                }
                if start.elapsed() > START_MAX {
                    return Err(format!("{program:?} does not listen for {protocol:?}"));
                }
                thread::sleep(Duration::from_millis(10));
            }
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It is ours alone, and holds nothing worth saving.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Nobody listens there now. That somebody will before our server does is unlikely, and then it says so.
fn free_addresses() -> Result<[SocketAddr; 3], String> {
    let listen = || TcpListener::bind("127.0.0.1:0").and_then(|it| Ok((it.local_addr()?, it)));
    let three = || Ok([listen()?, listen()?, listen()?]);
    let listeners = three().map_err(|error: std::io::Error| format!("a free port: {error}"))?;
    Ok(listeners.map(|(address, _)| address))
}

/// How much of its time on a core this process spent waiting for one.
pub fn waited_for_a_core() -> f64 {
    let text = fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
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
