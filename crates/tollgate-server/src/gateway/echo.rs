//! The server that the built-in policy stands in front of: it tells what it was sent.

use std::convert::Infallible;
use std::fmt::Write;
use std::pin::pin;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::gate::Gate;

/// Serves one connection. The gateway keeps it when it is not needed, so it ends when we drain.
pub(crate) async fn serve<S>(stream: S, gate: &Gate)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(async |request| Ok::<_, Infallible>(answer(&request)));
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let (mut connection, mut drain) = (pin!(connection), gate.stages.watch());
    tokio::select! {
        // Only the gateway comes here, and it knows how its requests end.
        _ = &mut connection => return,
        () = drain.started() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

fn answer(request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let mut text = format!("You asked for {} {}\n", request.method(), request.uri());
    for (name, value) in request.headers() {
        let value = String::from_utf8_lossy(value.as_bytes());
        writeln!(text, "{name}: {value}").expect("a String takes everything");
    }
    let mut answer = Response::new(Full::from(text));
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, plain);
    answer
}
