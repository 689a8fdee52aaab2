//! The servers that are asked.

use std::path::PathBuf;
use std::process::Command;

use tollgate_bench::process::Folder;
use tollgate_bench::serve::{Addresses, Protocol, Server};

use crate::floor::{self, Floor};

/// A server that can be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Tollgate,
    Redis,
    Throttlecrab,
    Floor(Floor),
}

/// Where the programs are that are not this one.
pub struct Programs {
    pub tollgate: PathBuf,
    pub throttlecrab: PathBuf,
}

pub fn start(program: Program, programs: &Programs) -> Result<Server, String> {
    let addresses = Addresses::free()?;
    let port = |protocol| addresses.of(protocol).port().to_string();
    let folder = Folder::new(&port(Protocol::Resp))?;
    let (command, spoken): (Command, Vec<Protocol>) = match program {
        Program::Tollgate => return Server::tollgate(&programs.tollgate),
        Program::Redis => {
            let mut command = Command::new("redis-server");
            let port = port(Protocol::Resp);
            let arguments = ["--port", &port, "--bind", "127.0.0.1", "--save", ""];
            command.args(arguments).args(["--maxclients", "15000"]).current_dir(folder.path());
            (command, vec![Protocol::Resp])
        }
        Program::Throttlecrab => {
            let mut command = Command::new(&programs.throttlecrab);
            let doors =
                [("redis", Protocol::Resp), ("http", Protocol::Http), ("grpc", Protocol::Grpc)];
            for (name, protocol) in doors {
                command.arg(format!("--{name}"));
                command.args([&format!("--{name}-host"), "127.0.0.1"]);
                command.args([&format!("--{name}-port"), &port(protocol)]);
            }
            command.args(["--log-level", "error"]);
            (command, doors.map(|(_, protocol)| protocol).into())
        }
        Program::Floor(floor) => {
            let own = std::env::current_exe().map_err(|error| error.to_string())?;
            let mut command = Command::new(own);
            let address = addresses.of(floor.protocol()).to_string();
            command.args([floor::ARGUMENT, floor.name(), &address]);
            (command, vec![floor.protocol()])
        }
    };
    Server::start(command, folder, addresses, &spoken)
}
