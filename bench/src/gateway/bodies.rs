//! Bodies too large to be kept, both ways, between a client and a server of our own.
//!
//! Whoever receives waits a little after the first piece: a proxy that keeps what nobody takes would by then
//! have taken in a good part of it.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};

use crate::Version;

/// What comes of one piece.
const PIECE: &[u8] = &[0; 64 * 1024];

/// How long whoever receives lets the rest wait.
const PAUSE: Duration = Duration::from_millis(300);

/// Which way a body goes.
#[derive(Clone, Copy)]
pub enum Way {
    Up,
    Down,
}

/// So many zeros.
struct Zeros(u64);

impl Body for Zeros {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let length = self.0.min(PIECE.len() as u64);
        self.0 -= length;
        let piece = Bytes::from_static(&PIECE[..length as usize]);
        Poll::Ready((length > 0).then(|| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0 == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0)
    }
}

/// Serves on a thread of its own, for as long as this process runs: `GET /N` is answered with so many zeros,
/// and anything else with none once its body has come.
pub fn serve() -> Result<SocketAddr, String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    listener.set_nonblocking(true).map_err(|error| error.to_string())?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    std::thread::spawn(move || {
        runtime().block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("it does not block");
            while let Ok((stream, _)) = listener.accept().await {
                // How a connection ends is the proxy's business.
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service_fn(answer)),
                );
            }
        });
    });
    Ok(address)
}

async fn answer(request: Request<Incoming>) -> Result<Response<Zeros>, hyper::Error> {
    let wanted = request.uri().path()[1..].parse().unwrap_or(0);
    swallow(request.into_body()).await?;
    Ok(Response::new(Zeros(wanted)))
}

/// Sends so many bytes through the proxy at `address`, and sees them arrive.
pub fn pass(address: SocketAddr, version: Version, way: Way, bytes: u64) -> Result<(), String> {
    let (up, down) = match way {
        Way::Up => (bytes, 0),
        Way::Down => (0, bytes),
    };
    let arrived = runtime().block_on(async {
        let request = Request::builder()
            .method(if up > 0 { "POST" } else { "GET" })
            .uri(format!("http://{address}/{down}"))
            .header("host", address.to_string())
            .body(Zeros(up))
            .expect("a request is well formed");
        let io =
            TokioIo::new(TcpStream::connect(address).await.map_err(|error| error.to_string())?);
        let response = match version {
            Version::Http1 => {
                let opened = conn::http1::handshake(io).await;
                let (mut sender, connection) = opened.map_err(|error| error.to_string())?;
                tokio::spawn(connection);
                sender.send_request(request).await
            }
            Version::Http2 => {
                let opened = conn::http2::handshake(TokioExecutor::new(), io).await;
                let (mut sender, connection) = opened.map_err(|error| error.to_string())?;
                tokio::spawn(connection);
                sender.send_request(request).await
            }
        };
        let response = response.map_err(|error| error.to_string())?;
        match response.status().as_u16() {
            200 => swallow(response.into_body()).await.map_err(|error| error.to_string()),
            status => Err(format!("the answer is {status}")),
        }
    })?;
    if arrived == down { Ok(()) } else { Err(format!("{arrived} of {down} bytes came")) }
}

async fn swallow(mut body: Incoming) -> Result<u64, hyper::Error> {
    let mut received = 0;
    while let Some(frame) = body.frame().await {
        if received == 0 {
            tokio::time::sleep(PAUSE).await;
        }
        received += frame?.data_ref().map_or(0, |data| data.len() as u64);
    }
    Ok(received)
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime of one thread")
}
