//! The gateway over real sockets, in front of a server of the tests' own.

pub(crate) mod client;
mod ends;
mod forward;
mod hold;
mod hostile;
mod routes;
mod script;
mod streams;
mod tls;
mod upgrade;
pub(crate) mod upstream;
mod websocket;

use tollgate_server::Door;

use crate::server::{Running, with_doors};
use client::{Answer, Client};
use upstream::{Exchange, Upstream};

/// A gateway with the server that it stands in front of.
pub(crate) struct Gateway {
    /// Before the server, so that nothing is asked of it any more when it ends.
    pub(crate) running: Running,
    pub(crate) upstream: Upstream,
}

impl Gateway {
    /// A gateway with this policy, in front of a server to which all is well.
    pub(crate) fn start(policy: &str) -> Self {
        Self::around(Upstream::start(Exchange::ok), policy)
    }

    /// A gateway with this policy, in front of this server. The policy has everything but `listen` and
    /// `upstream`.
    pub(crate) fn around(upstream: Upstream, policy: &str) -> Self {
        let policy = format!("upstream: http://{}\n{policy}", upstream.address);
        let running = Running::with_files(&with_doors(&["gateway", "admin"], &policy), &[]);
        Self { running, upstream }
    }

    /// A new connection to it.
    pub(crate) fn connect(&self) -> Client {
        Client::new(self.running.connect(Door::Gateway))
    }

    /// Sends one request over a connection of its own. `head` is its line without the version, and
    /// its fields but `Host`, a line each.
    pub(crate) fn ask(&self, head: &str) -> Answer {
        let (line, fields) = head.split_once('\n').unwrap_or((head, ""));
        let fields: String = fields.lines().map(|field| format!("{}\r\n", field.trim())).collect();
        let request = format!("{line} HTTP/1.1\r\nhost: a\r\n{fields}connection: close\r\n\r\n");
        let mut client = self.connect();
        client.send(request);
        client.answer()
    }
}
