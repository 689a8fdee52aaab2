//! Connections that have left HTTP.

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional_with_sizes;

use super::bounds::TUNNEL_BYTES;
use super::pool::Loan;

/// A client's connection and a server's, each of which is about to get what the other sends.
pub(super) struct Tunnel {
    client: OnUpgrade,
    server: OnUpgrade,
    /// What the server's connection was used by until now; without it the connection would end.
    _loan: Loan,
}

impl Tunnel {
    pub(super) fn new(client: OnUpgrade, server: OnUpgrade, loan: Loan) -> Self {
        Self { client, server, _loan: loan }
    }

    /// Passes on what comes, both ways, until both sides have ended or one has broken off.
    pub(super) async fn run(self) {
        let Ok((client, server)) = tokio::try_join!(self.client, self.server) else { return };
        let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
        // Whatever ends it, it is over, and nobody is left to be told why.
        let _ = copy_bidirectional_with_sizes(&mut client, &mut server, TUNNEL_BYTES, TUNNEL_BYTES)
            .await;
    }
}
