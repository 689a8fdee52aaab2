//! One connection, from its first byte to its last.

use std::pin::Pin;
use std::sync::Arc;

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::bounds::HANDSHAKE_MAX;
use crate::delivery::Fate;
use crate::door::{Door, Entrance};
use crate::gate::Gate;
use crate::gateway::{self, Pool, echo, proxy_protocol};
use crate::workers::Arrival;
use crate::{admin, grpc, http, resp};

/// Who is at the other end, and by which door it came.
pub(crate) struct Visitor {
    pub(crate) peer: std::net::SocketAddr,
    pub(crate) entrance: Arc<Entrance>,
    pub(crate) gate: Arc<Gate>,
    /// Connections to servers behind the gateway.
    pub(crate) pool: Arc<Pool>,
}

/// Serves a connection until either side has had enough.
pub(crate) fn serve(
    arrival: Arrival,
    gate: Arc<Gate>,
    pool: Arc<Pool>,
) -> impl Future<Output = ()> + Send {
    arrival.entrance.door.serving(receive(arrival, gate, pool))
}

async fn receive(arrival: Arrival, gate: Arc<Gate>, pool: Arc<Pool>) {
    let Arrival { stream, peer, entrance, place: _place } = arrival;
    let Ok(stream) = TcpStream::from_std(stream) else { return };
    // An answer is one write; waiting for more of it would only delay it.
    let _ = stream.set_nodelay(true);
    let _open = gate.doors.of(entrance.door).open.enter();
    let visitor = Visitor { peer, entrance, gate, pool };
    // Boxed, so that connections do not take the room for what is over, or for what few of them say.
    let _stay = match visitor.entrance.door {
        Door::Gateway if visitor.is_announced() => {
            return Box::pin(announced(stream, visitor)).await;
        }
        Door::Gateway => match Box::pin(visitor.gate.arrivals.admit(visitor.peer.ip())).await {
            Some(stay) => Some(stay),
            None => return,
        },
        _ => None,
    };
    greet(stream, visitor).await;
}

/// A connection that begins by saying for whom it is.
async fn announced(stream: TcpStream, mut visitor: Visitor) {
    let (client, stream) = match proxy_protocol::read(stream).await {
        Ok(read) => read,
        Err(error) => {
            tracing::debug!(peer = %visitor.peer, %error, "no header of the PROXY protocol");
            return;
        }
    };
    visitor.peer = client.unwrap_or(visitor.peer);
    if let Some(_stay) = visitor.gate.arrivals.admit(visitor.peer.ip()).await {
        greet(stream, visitor).await;
    }
}

impl Visitor {
    /// Whether the connection has to begin by saying for whom it is.
    fn is_announced(&self) -> bool {
        self.gate.limiter.with_policy(|policy| {
            proxy_protocol::is_expected(self.peer.ip(), &policy.settings().client_ip)
        })
    }
}

/// What is said on a connection. Boxed, so that an idle one of one kind does not take the room that
/// another kind would need.
type Talk = Pin<Box<dyn Future<Output = ()> + Send>>;

/// TLS, if the door has it, and then what the door speaks.
fn greet<S>(stream: S, visitor: Visitor) -> Talk
where
    S: AsyncRead + AsyncWrite + Fate + Unpin + Send + 'static,
{
    match visitor.entrance.tls() {
        None => speak(stream, visitor),
        Some(config) => Box::pin(encrypted(stream, visitor, config)),
    }
}

async fn encrypted<S>(stream: S, visitor: Visitor, config: Arc<ServerConfig>)
where
    S: AsyncRead + AsyncWrite + Fate + Unpin + Send + 'static,
{
    let peer = visitor.peer;
    match timeout(HANDSHAKE_MAX, TlsAcceptor::from(config).accept(stream)).await {
        Ok(Ok(stream)) => speak(stream, visitor).await,
        Ok(Err(error)) => tracing::debug!(%peer, %error, "no TLS handshake"),
        Err(_) => tracing::debug!(%peer, "a TLS handshake took too long"),
    }
}

/// What the door speaks.
fn speak<S>(stream: S, visitor: Visitor) -> Talk
where
    S: AsyncRead + AsyncWrite + Fate + Unpin + Send + 'static,
{
    match visitor.entrance.door {
        Door::Http => Box::pin(http::serve(stream, visitor)),
        Door::Admin => Box::pin(admin::serve(stream, visitor)),
        Door::Grpc => Box::pin(grpc::serve(stream, visitor)),
        Door::Resp => Box::pin(resp::serve(stream, visitor)),
        Door::Gateway => Box::pin(gateway::serve(stream, visitor)),
        Door::Echo => Box::pin(async move { echo::serve(stream, &visitor.gate).await }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_receiving<F>(_: impl FnOnce(Arrival, Arc<Gate>, Arc<Pool>) -> F) -> usize {
        size_of::<F>()
    }

    fn size_of_serving<F>(_: impl FnOnce(TcpStream, Visitor) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_connection_takes_little_room_beside_what_its_door_needs() {
        let size = size_of_receiving(receive);
        assert!(size <= 256, "thousands are idle, and each takes {size} bytes");
    }

    #[test]
    fn a_connection_of_the_gateway_takes_little_room_beside_what_its_protocol_needs() {
        let size = size_of_serving(gateway::serve::<TcpStream>);
        // As the whole suite builds it, with all features; without them it was 640 at most.
        assert!(size <= 656, "thousands are idle, and each takes {size} bytes");
    }
}
