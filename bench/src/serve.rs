//! A server that speaks several protocols, and tollgate's with a limit that is never reached.

use std::net::SocketAddr;
use std::ops::Deref;
use std::path::Path;
use std::process::Command;

use crate::process::{Folder, Process, free_addresses};

/// The same for every door: one limit, counted per user. It refills slowly, so that no key is as good as new when it is
/// asked about again: one that is would be forgotten.
const POLICY: &str = "\
limits:
  - name: user
    per: [user]
    rate: 1000000/365d
    algorithm: token_bucket
descriptors: ./envoy/
";
const DESCRIPTORS: &str = "\
domain: bench
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 1000000, algorithm: token_bucket }
";

/// What is spoken, and so where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Resp,
    Http,
    Grpc,
    Admin,
}

/// Where each protocol is spoken.
#[derive(Clone, Copy)]
pub struct Addresses([SocketAddr; 4]);

impl Addresses {
    pub fn free() -> Result<Self, String> {
        free_addresses().map(Self)
    }

    pub fn of(self, protocol: Protocol) -> SocketAddr {
        self.0[protocol as usize]
    }
}

/// A running server. It ends when this is dropped.
pub struct Server {
    process: Process,
    addresses: Addresses,
}

impl Server {
    /// Starts a server that works in a folder, and waits until it speaks all that it should.
    pub fn start(
        command: Command,
        folder: Folder,
        addresses: Addresses,
        spoken: &[Protocol],
    ) -> Result<Self, String> {
        let listening: Vec<SocketAddr> = spoken.iter().map(|it| addresses.of(*it)).collect();
        let process = Process::start(command, folder, &listening)?;
        Ok(Self { process, addresses })
    }

    /// tollgate's, which is this program.
    pub fn tollgate(program: &Path) -> Result<Self, String> {
        let addresses = Addresses::free()?;
        let folder = Folder::new(&addresses.of(Protocol::Resp).port().to_string())?;
        let doors = [
            ("resp", Protocol::Resp),
            ("http", Protocol::Http),
            ("grpc", Protocol::Grpc),
            ("admin", Protocol::Admin),
        ];
        let listen =
            doors.map(|(name, protocol)| format!("  {name}: {}\n", addresses.of(protocol)));
        let policy =
            folder.write("policy.yaml", &format!("listen:\n{}{POLICY}", listen.concat()))?;
        folder.write("envoy/bench.yaml", DESCRIPTORS)?;
        let mut command = Command::new(program);
        command.args(["serve", "--log", "error", "-c"]).arg(policy);
        Self::start(command, folder, addresses, &doors.map(|(_, protocol)| protocol))
    }

    pub fn address(&self, protocol: Protocol) -> SocketAddr {
        self.addresses.of(protocol)
    }
}

impl Deref for Server {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}
