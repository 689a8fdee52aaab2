//! New connections to servers.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tollgate::{Scheme, Target};

use super::body::Sending;
use super::bounds::{SEND_BUFFER_MAX, SERVER_WINDOW, STREAM_WINDOW};
use super::gathering::Gathering;
use crate::bounds::HEAD_BYTES_MAX;

/// Where requests of a connection go in.
pub(super) enum Dialled {
    /// HTTP/1.1: one request at a time.
    One(http1::SendRequest<Sending>),
    /// HTTP/2: many.
    Many(http2::SendRequest<Sending>),
}

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Requests, in whatever version the server prefers.
    Requests,
    /// One request after which it is no longer HTTP: only HTTP/1.1 can do that.
    Upgrade,
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
        Scheme::Http => one(stream, purpose).await,
        Scheme::H2c if purpose == Purpose::Upgrade => one(stream, purpose).await,
        Scheme::H2c => many(stream).await,
        Scheme::Https => {
            let Some(config) = tls else {
                return Err(io::Error::other("nobody is trusted to vouch for it"));
            };
            let config = match purpose {
                Purpose::Requests => Arc::clone(config),
                Purpose::Upgrade => {
                    let mut config = ClientConfig::clone(config);
                    config.alpn_protocols = vec![b"http/1.1".to_vec()];
                    Arc::new(config)
                }
            };
            let name = ServerName::try_from(target.host().to_owned()).map_err(io::Error::other)?;
            let stream = TlsConnector::from(config).connect(name, stream).await?;
            if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
                many(stream).await
            } else {
                one(stream, purpose).await
            }
        }
    }
}

async fn one<S>(stream: S, purpose: Purpose) -> io::Result<Dialled>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (requests, connection) = http1::Builder::new()
        .max_header_size(HEAD_BYTES_MAX)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    // How it ends is told to whoever waits for a response.
    match purpose {
        Purpose::Requests => drop(tokio::spawn(connection)),
        Purpose::Upgrade => drop(tokio::spawn(connection.with_upgrades())),
    }
    Ok(Dialled::One(requests))
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
