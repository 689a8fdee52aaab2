//! One connection, from its first byte to its last.

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::bounds::HANDSHAKE_MAX;
use crate::door::{Door, Entrance};
use crate::gate::Gate;
use crate::workers::Arrival;
use crate::{admin, grpc, http, resp};

/// Who is at the other end, and by which door it came.
pub(crate) struct Visitor {
    pub(crate) peer: std::net::SocketAddr,
    pub(crate) entrance: Arc<Entrance>,
    pub(crate) gate: Arc<Gate>,
}

/// Serves a connection until either side has had enough.
pub(crate) async fn serve(arrival: Arrival, gate: Arc<Gate>) {
    let Arrival { stream, peer, entrance, place: _place } = arrival;
    let Ok(stream) = TcpStream::from_std(stream) else { return };
    // An answer is one write; waiting for more of it would only delay it.
    let _ = stream.set_nodelay(true);
    let tls = entrance.tls();
    let visitor = Visitor { peer, entrance, gate };
    match tls {
        None => speak(stream, visitor).await,
        Some(config) => {
            let handshake = TlsAcceptor::from(config).accept(stream);
            match timeout(HANDSHAKE_MAX, handshake).await {
                Ok(Ok(stream)) => speak(stream, visitor).await,
                Ok(Err(error)) => tracing::debug!(%peer, %error, "no TLS handshake"),
                Err(_) => tracing::debug!(%peer, "a TLS handshake took too long"),
            }
        }
    }
}

/// What the door speaks. Boxed, so that an idle connection of one kind does not take the room that
/// another kind would need.
async fn speak<S>(stream: S, visitor: Visitor)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    match visitor.entrance.door {
        Door::Http => Box::pin(http::serve(stream, visitor)).await,
        Door::Admin => Box::pin(admin::serve(stream, visitor)).await,
        Door::Grpc => Box::pin(grpc::serve(stream, visitor)).await,
        Door::Resp => Box::pin(resp::serve(stream, visitor)).await,
    }
}
