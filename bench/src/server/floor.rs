//! Floors: servers that read a request, answer a constant, and do nothing else.
//!
//! They are what a protocol costs with the libraries that tollgate's doors are made of, on one thread. They
//! run as processes of their own, as this same program.

use std::convert::Infallible;
use std::io;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tollgate_bench::serve::Protocol;

/// The hidden argument with which this program runs itself.
pub const ARGUMENT: &str = "--serve-floor";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Floor {
    /// The Redis protocol over tokio.
    Resp,
    /// HTTP/1.1 with hyper.
    Http,
    /// gRPC, as HTTP/2 with hyper.
    Grpc,
}

impl Floor {
    const ALL: [Self; 3] = [Self::Resp, Self::Http, Self::Grpc];

    pub fn name(self) -> &'static str {
        match self {
            Self::Resp => "resp",
            Self::Http => "http",
            Self::Grpc => "grpc",
        }
    }

    pub fn protocol(self) -> Protocol {
        match self {
            Self::Resp => Protocol::Resp,
            Self::Http => Protocol::Http,
            Self::Grpc => Protocol::Grpc,
        }
    }
}

/// Serves until the process is ended.
pub fn run_child(name: &str, address: &str) {
    let floor = Floor::ALL.into_iter().find(|floor| floor.name() == name).expect("a floor's name");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let served = runtime.and_then(|runtime| runtime.block_on(serve(floor, address)));
    served.unwrap_or_else(|error| panic!("the floor {name} at {address}: {error}"));
}

async fn serve(floor: Floor, address: &str) -> io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        // How a connection ends is the client's business.
        tokio::spawn(async move {
            match floor {
                Floor::Resp => drop(resp(stream).await),
                Floor::Http => drop(http1(stream).await),
                Floor::Grpc => drop(http2(stream).await),
            }
        });
    }
}

async fn http1(stream: TcpStream) -> hyper::Result<()> {
    let service = service_fn(async |request: Request<Incoming>| {
        request.into_body().collect().await?;
        let mut response = Response::new(Full::new(Bytes::from_static(br#"{"allowed":true}"#)));
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, json);
        Ok::<_, hyper::Error>(response)
    });
    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await
}

async fn http2(stream: TcpStream) -> hyper::Result<()> {
    let service = service_fn(async |request: Request<Incoming>| {
        request.into_body().collect().await?;
        let mut response = Response::new(Constant::Message);
        let grpc = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert(CONTENT_TYPE, grpc);
        Ok::<_, hyper::Error>(response)
    });
    hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await
}

/// One message, then `grpc-status: 0`.
enum Constant {
    Message,
    Trailers,
    End,
}

/// As long as the answer of a rate limit service about one descriptor, and starting alike.
const MESSAGE: &[u8] =
    b"\0\0\0\0\x12\x08\x01\x12\x0E\x08\x01\x12\x08\x08\x80\x94\xEB\xDC\x03\x10\x03\x18\x01";

impl Body for Constant {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let (frame, next) = match *self {
            Self::Message => (Some(Frame::data(Bytes::from_static(MESSAGE))), Self::Trailers),
            Self::Trailers => {
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert("grpc-status", HeaderValue::from_static("0"));
                (Some(Frame::trailers(trailers)), Self::End)
            }
            Self::End => (None, Self::End),
        };
        *self = next;
        std::task::Poll::Ready(frame.map(Ok))
    }
}

/// Answers every command with what CL.THROTTLE answers.
async fn resp(mut stream: TcpStream) -> io::Result<()> {
    const ANSWER: &[u8] = b"*5\r\n:0\r\n:1000001\r\n:1000000\r\n:-1\r\n:1\r\n";
    let (mut received, mut answers) = (Vec::with_capacity(16 * 1024), Vec::new());
    while stream.read_buf(&mut received).await? > 0 {
        let mut at = 0;
        while let Some(length) = command_length(&received[at..]) {
            at += length;
            answers.extend_from_slice(ANSWER);
        }
        received.drain(..at);
        stream.write_all(&answers).await?;
        answers.clear();
    }
    Ok(())
}

/// The length of the command that these bytes start with, if it is whole.
fn command_length(bytes: &[u8]) -> Option<usize> {
    let (words, mut at) = number_line(bytes, 0)?;
    for _ in 0..words {
        let (length, start) = number_line(bytes, at)?;
        at = start + length + 2;
    }
    (bytes.len() >= at).then_some(at)
}

/// The number in a line such as `*3` or `$11`, and where the next line starts.
fn number_line(bytes: &[u8], at: usize) -> Option<(usize, usize)> {
    let mut number = 0;
    for (offset, byte) in bytes.get(at + 1..)?.iter().enumerate() {
        match byte {
            b'\r' => return Some((number, at + 1 + offset + 2)),
            digit => number = number * 10 + usize::from(digit - b'0'),
        }
    }
    None
}
