//! The servers that are asked, each with its limit.

use std::net::SocketAddr;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::Command;

use tollgate_bench::process::{Folder, Process, free_addresses};

use crate::floor::{self, Floor};

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
    process: Process,
    addresses: [SocketAddr; 3],
}

impl Server {
    pub fn start(program: Program, programs: &Programs) -> Result<Self, String> {
        let addresses = free_addresses()?;
        let [resp, http, grpc] = addresses.map(|address| address.port().to_string());
        let folder = Folder::new(&resp)?;
        let command = match program {
            Program::Tollgate => {
                let listen = format!(
                    "listen:\n  resp: 127.0.0.1:{resp}\n  http: 127.0.0.1:{http}\n  grpc: 127.0.0.1:{grpc}\n"
                );
                let policy = folder.write("policy.yaml", &(listen + POLICY))?;
                folder.write("envoy/bench.yaml", DESCRIPTORS)?;
                let mut command = Command::new(&programs.tollgate);
                command.args(["serve", "--log", "error", "-c"]).arg(policy);
                command
            }
            Program::Redis => {
                let mut command = Command::new("redis-server");
                let arguments = ["--port", &resp, "--bind", "127.0.0.1", "--save", ""];
                command.args(arguments).args(["--maxclients", "15000"]).current_dir(folder.path());
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
        let listening: &[SocketAddr] = match program {
            Program::Tollgate | Program::Throttlecrab => &addresses,
            Program::Redis => &addresses[..1],
            Program::Floor(floor) => &[addresses[floor.protocol() as usize]],
        };
        let process = Process::start(command, folder, listening)?;
        Ok(Self { process, addresses })
    }

    pub fn address(&self, protocol: Protocol) -> SocketAddr {
        self.addresses[protocol as usize]
    }
}

impl Deref for Server {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}
