//! A server whose part a test plays itself, byte by byte.

use std::fmt::Display;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use tollgate_server::Door;

use super::client::{Client, PATIENCE};
use crate::server::Running;

/// A place where servers are looked for.
pub(crate) struct Script {
    pub(crate) address: SocketAddr,
    connections: Receiver<TcpStream>,
}

impl Script {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let (sender, connections) = mpsc::channel();
        // It ends with the process: a thread that waits costs nothing.
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if sender.send(stream).is_err() {
                    return;
                }
            }
        });
        Self { address, connections }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The next connection, as soon as there is one.
    pub(crate) fn accept(&self) -> Client {
        Client::new(self.connections.recv_timeout(PATIENCE).expect("somebody connects"))
    }

    /// How many connections there are that were not yet accepted.
    pub(crate) fn waiting(&self) -> usize {
        self.connections.try_iter().count()
    }
}

/// A gateway in front of one server or a list; the policy has everything else. Without limits it needs
/// not say so.
pub(crate) fn in_front_of(upstream: impl Display, policy: &str) -> Running {
    let limits = if policy.contains("limits:") { "" } else { "limits: []" };
    Running::start(&["gateway"], &format!("upstream: {upstream}\n{policy}\n{limits}"))
}

/// A connection to a gateway.
pub(crate) fn connect(gateway: &Running) -> Client {
    Client::new(gateway.connect(Door::Gateway))
}
