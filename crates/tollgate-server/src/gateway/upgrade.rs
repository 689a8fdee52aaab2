//! Connections that have left HTTP.

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional_with_sizes;
use tokio::time::Duration;

use super::bounds::TUNNEL_BYTES;
use super::pool::Loan;
use super::websocket::{self, Socket};

/// A client's connection and a server's, each of which is about to get what the other sends.
pub(super) struct Tunnel {
    client: OnUpgrade,
    server: OnUpgrade,
    /// What the server's connection was used by until now; without it the connection would end.
    _loan: Loan,
    /// What is known of it if it is a WebSocket.
    socket: Option<(Socket, Option<Duration>)>,
}

impl Tunnel {
    /// A WebSocket comes with how long nothing may happen in it.
    pub(super) fn new(
        client: OnUpgrade,
        server: OnUpgrade,
        loan: Loan,
        socket: Option<(Socket, Option<Duration>)>,
    ) -> Self {
        Self { client, server, _loan: loan, socket }
    }

    /// Passes on what comes, both ways, until both sides have ended, one has broken off, or nothing
    /// has happened for too long.
    pub(super) async fn run(self, idle: impl Future<Output = ()>) {
        let Ok((client, server)) = tokio::try_join!(self.client, self.server) else { return };
        let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
        if let Some((socket, idle)) = self.socket {
            return websocket::relay(client, server, socket, idle).await;
        }
        tokio::select! {
            // Whatever ends it, it is over, and nobody is left to be told why.
            _ = copy_bidirectional_with_sizes(
                &mut client,
                &mut server,
                TUNNEL_BYTES,
                TUNNEL_BYTES,
            ) => {}
            () = idle => {}
        }
    }
}
