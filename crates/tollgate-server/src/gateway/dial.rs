//! New connections to servers.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tollgate::{Scheme, Target};

use super::body::Sending;
use super::bounds::{SEND_BUFFER_MAX, SERVER_WINDOW, STREAM_WINDOW};
use super::gathering::Gathering;
use super::wire::Wire;
use crate::bounds::HEAD_BYTES_MAX;

/// Where requests of a connection go in.
pub(super) enum Dialled {
    /// HTTP/1.1, for requests without a body: one at a time.
    Wire(Wire),
    /// HTTP/1.1, for any: one at a time.
    One(http1::SendRequest<Sending>),
    /// HTTP/2: many.
    Many(http2::SendRequest<Sending>),
}

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Requests without a body, in whatever version the server prefers.
    Plain,
    /// Any requests, as well.
    Requests,
    /// One request after which it is no longer HTTP: only HTTP/1.1 can do that.
    Upgrade,
}

/// The bytes to and from a server.
pub(super) enum Stream {
    Plain(Gathering<TcpStream>),
    Tls(Box<TlsStream<Gathering<TcpStream>>>),
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

/// Connects to a server, which may take so long.
pub(super) async fn dial(
    target: &Target,
    purpose: Purpose,
    tls: &Option<Arc<ClientConfig>>,
    patience: Duration,
) -> io::Result<Dialled> {
    match timeout(patience, connect(target, purpose, tls)).await {
        Ok(connected) => connected,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "it takes no connection")),
    }
}

async fn connect(
    target: &Target,
    purpose: Purpose,
    tls: &Option<Arc<ClientConfig>>,
) -> io::Result<Dialled> {
    let stream = TcpStream::connect((target.host(), target.port())).await?;
    // A request is one write; waiting for more of it would only delay it.
    let _ = stream.set_nodelay(true);
    let stream = Gathering(stream);
    match target.scheme() {
        Scheme::Http => one(Stream::Plain(stream), purpose).await,
        Scheme::H2c if purpose == Purpose::Upgrade => one(Stream::Plain(stream), purpose).await,
        Scheme::H2c => many(stream).await,
        Scheme::Https => {
            let Some(config) = tls else {
                return Err(io::Error::other("nobody is trusted to vouch for it"));
            };
            let config = match purpose {
                Purpose::Plain | Purpose::Requests => Arc::clone(config),
                Purpose::Upgrade => {
                    let mut config = ClientConfig::clone(config);
                    config.alpn_protocols = vec![b"http/1.1".to_vec()];
                    Arc::new(config)
                }
            };
            let name = ServerName::try_from(target.host().to_owned()).map_err(io::Error::other)?;
            let stream = TlsConnector::from(config).connect(name, stream).await?;
            if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
                return many(stream).await;
            }
            one(Stream::Tls(Box::new(stream)), purpose).await
        }
    }
}

async fn one(stream: Stream, purpose: Purpose) -> io::Result<Dialled> {
    Ok(match purpose {
        Purpose::Plain => Dialled::Wire(Wire::new(stream)),
        Purpose::Requests => Dialled::One(hand_over(stream, false).await?),
        Purpose::Upgrade => Dialled::One(hand_over(stream, true).await?),
    })
}

/// Makes a connection on which nothing is going on one of hyper's, which takes any request; one that `may_leave`
/// HTTP too.
pub(super) async fn hand_over(
    stream: Stream,
    may_leave: bool,
) -> io::Result<http1::SendRequest<Sending>> {
    let (requests, connection) = http1::Builder::new()
        .max_header_size(HEAD_BYTES_MAX)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    // How it ends is told to whoever waits for a response.
    if may_leave {
        tokio::spawn(connection.with_upgrades());
    } else {
        tokio::spawn(connection);
    }
    Ok(requests)
}

async fn many<S>(stream: S) -> io::Result<Dialled>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (requests, connection) = http2::Builder::new(TokioExecutor::new())
        .max_header_list_size(HEAD_BYTES_MAX as u32)
        .max_send_buf_size(SEND_BUFFER_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(SERVER_WINDOW)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    tokio::spawn(connection);
    Ok(Dialled::Many(requests))
}
