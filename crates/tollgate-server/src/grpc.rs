//! Envoy's rate limit service over gRPC, with health and reflection.
//!
//! The one call that matters is answered on bare HTTP/2, from the bytes that came to the bytes that
//! go: no message is built on the way. Health and reflection are asked once in a while and go
//! through tonic. Health is told to anybody; all else wants the door's token, if it has one.
//!
//! Nothing here waits for anything but the client and the store, which has a deadline of its own that
//! is shorter than anybody's patience: a client's (`grpc-timeout`) is kept without being read.

mod arriving;
mod body;
mod bounds;
mod calls;
mod failure;
mod health;
mod pings;
mod preface;
mod reflection;
mod wire;

use std::convert::Infallible;
use std::future::{poll_fn, ready};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{sleep, timeout};

use crate::connection::Visitor;
use crate::door::Entrance;
use crate::gate::Gate;
use crate::otlp::Span;
use crate::seldom::Seldom;
use arriving::Arriving;
use body::Body;
use bounds::{
    CONNECTION_WINDOW, FRAME_BYTES_MAX, HEADER_BYTES_MAX, MESSAGE_BYTES_MAX, MESSAGE_WAIT_MAX,
    PING_EVERY, PONG_WAIT_MAX, PREFACE_WAIT_MAX, RESETS_MAX, SEND_BYTES_MAX, STREAM_WINDOW,
    STREAMS_MAX,
};
use calls::{Arrivals, begun_by};
use failure::{Code, Failure};
use pings::PollTimer;

#[cfg(test)]
pub(crate) use wire::tests::{full_response, json_of};
pub(crate) use wire::{Question, UNITS, Unread, unit_numbered};

/// The service that Envoy asks.
const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Before every message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// Serves one connection. When we drain, it is told that no more calls are taken, and ends with the
/// last answer.
pub(crate) async fn serve<S>(stream: S, visitor: Visitor)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Visitor { peer, entrance, gate, .. } = visitor;
    let Ok(Ok(stream)) = timeout(PREFACE_WAIT_MAX, preface::read(stream)).await else {
        tracing::debug!(%peer, "not HTTP/2");
        return;
    };
    let mut drain = gate.stages.watch();
    let service = service_fn(move |request| {
        let span = gate.traces.begin(&gate, entrance.door, peer.ip(), &request);
        answer(look_at(request, &entrance, &gate), Arc::clone(&gate), span)
    });
    let mut connection = pin!(http2_server().serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        biased;
        ended = begun_by(connection.as_mut()) => ended,
        () = Seldom::new(drain.started()) => {
            connection.as_mut().graceful_shutdown();
            begun_by(connection).await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "a connection ended badly");
    }
}

fn http2_server() -> http2::Builder<Arrivals> {
    let mut server = http2::Builder::new(Arrivals);
    server
        .timer(PollTimer)
        .auto_date_header(false)
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADER_BYTES_MAX)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_send_buf_size(SEND_BYTES_MAX)
        .max_pending_accept_reset_streams(RESETS_MAX)
        .max_local_error_reset_streams(RESETS_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PONG_WAIT_MAX);
    server
}

/// What is to be done about a request, going by its head.
enum Asking {
    /// Envoy's question is read and answered.
    Limits(Incoming),
    /// Anything else, which is rare.
    Other(Pin<Box<dyn Future<Output = Response<Body>> + Send>>),
}

fn look_at(request: Request<Incoming>, entrance: &Entrance, gate: &Arc<Gate>) -> Asking {
    let answered = |response| Asking::Other(Box::pin(ready(response)));
    if !is_grpc(&request) {
        return answered(not_grpc());
    }
    let path = request.uri().path();
    if path.starts_with(health::PATH) {
        let (request, gate) = (arriving(request, gate), Arc::clone(gate));
        return Asking::Other(Box::pin(async move { health::answer(request, &gate).await }));
    }
    if entrance.token().is_some_and(|token| !token.is_shown(request.headers())) {
        let wanted = "the header field `authorization: Bearer` does not show this door's token";
        return answered(Failure::new(Code::Unauthenticated, wanted).into_response());
    }
    if path == SHOULD_RATE_LIMIT {
        return Asking::Limits(request.into_body());
    }
    if reflection::is_asked(path) {
        let (request, gate) = (arriving(request, gate), Arc::clone(gate));
        return Asking::Other(Box::pin(async move { reflection::answer(request, &gate).await }));
    }
    answered(Failure::new(Code::Unimplemented, "there is no such method here").into_response())
}

async fn answer(
    mut asking: Asking,
    gate: Arc<Gate>,
    span: Option<Box<Span>>,
) -> Result<Response<Body>, Infallible> {
    let answer = match &mut asking {
        Asking::Limits(body) => {
            should_rate_limit(body, &gate).await.map_or_else(Failure::into_response, succeeded)
        }
        Asking::Other(answering) => answering.await,
    };
    gate.traces.end(&gate, span, answer.status());
    Ok(answer)
}

fn arriving(request: Request<Incoming>, gate: &Gate) -> Request<Arriving> {
    request.map(|body| Arriving::new(body, gate.stages.watch()))
}

/// The call itself. Decided as soon as it has arrived, whatever becomes of the client: a call that
/// is reset stays paid.
async fn should_rate_limit(body: &mut Incoming, gate: &Gate) -> Result<Bytes, Failure> {
    // While the answer is on its way, only its bytes are held.
    let asked = {
        let bytes = in_time(pin!(read_body(body))).await.unwrap_or_else(|| {
            Err(Failure::new(Code::DeadlineExceeded, "the message took too long to arrive"))
        })?;
        let question = Question::read(message_of(&bytes)?)?;
        question.ask(&gate.limiter)?.map(|response| framed(&response))
    };
    Ok(asked.await)
}

/// Waits for a message, which mostly is there already, until it is late.
async fn in_time<T>(mut arriving: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    let mut late = None;
    poll_fn(|context| {
        if let Poll::Ready(arrived) = arriving.as_mut().poll(context) {
            return Poll::Ready(Some(arrived));
        }
        let late = late.get_or_insert_with(|| Box::pin(sleep(MESSAGE_WAIT_MAX)));
        late.as_mut().poll(context).map(|()| None)
    })
    .await
}

/// All bytes of a body: without a copy if they came in one piece, as they nearly always do.
async fn read_body(body: &mut Incoming) -> Result<Bytes, Failure> {
    let mut first = Bytes::new();
    let mut joined = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Failure::new(Code::Cancelled, "the call was cut off"))?;
        let Ok(data) = frame.into_data() else { continue };
        if first.is_empty() && joined.is_empty() {
            first = data;
        } else {
            if joined.is_empty() {
                joined.extend_from_slice(&first);
            }
            joined.extend_from_slice(&data);
        }
        refuse_if_large(if joined.is_empty() { &first } else { &joined })?;
        if body.is_end_stream() {
            break;
        }
    }
    Ok(if joined.is_empty() { first } else { joined.freeze() })
}

/// A message that is or will be too large is refused before it is all here.
fn refuse_if_large(bytes: &[u8]) -> Result<(), Failure> {
    let announced = bytes.first_chunk::<PREFIX_BYTES>().map_or(0, announced);
    if announced.max(bytes.len().saturating_sub(PREFIX_BYTES)) > MESSAGE_BYTES_MAX {
        return Err(Failure::new(Code::ResourceExhausted, "the message is larger than 256 KiB"));
    }
    Ok(())
}

fn announced(prefix: &[u8; PREFIX_BYTES]) -> usize {
    let [_, length @ ..] = *prefix;
    usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX)
}

/// The one message in a body.
fn message_of(bytes: &[u8]) -> Result<&[u8], Failure> {
    let Some((prefix, message)) = bytes.split_first_chunk::<PREFIX_BYTES>() else {
        return Err(Failure::new(Code::InvalidArgument, "there is no message"));
    };
    if prefix[0] != 0 {
        return Err(Failure::new(Code::Unimplemented, "compressed messages are not read here"));
    }
    if message.len() != announced(prefix) {
        return Err(Failure::new(Code::InvalidArgument, "there is not exactly one whole message"));
    }
    Ok(message)
}

fn framed(response: &tollgate::envoy::Response) -> Bytes {
    // Enough for most answers at once.
    let mut bytes = Vec::with_capacity(64 * (1 + response.statuses.len()));
    bytes.resize(PREFIX_BYTES, 0);
    wire::write(response, &mut bytes);
    let length = u32::try_from(bytes.len() - PREFIX_BYTES).expect("an answer is far below 4 GiB");
    bytes[1..PREFIX_BYTES].copy_from_slice(&length.to_be_bytes());
    bytes.into()
}

fn succeeded(message: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::message(message));
    response.headers_mut().insert(header::CONTENT_TYPE, GRPC);
    response
}

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

fn is_grpc(request: &Request<Incoming>) -> bool {
    let Some(content_type) = request.headers().get(header::CONTENT_TYPE) else { return false };
    let format = content_type.as_bytes().strip_prefix(b"application/grpc");
    let is_named = format.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')));
    is_named && request.method() == Method::POST
}

fn not_grpc() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    response
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::path::Path;
    use std::time::Duration;

    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use hyper_util::rt::TokioExecutor;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::task::JoinHandle;
    use tollgate::{Limiter, Listener};
    use tonic::codegen::tokio_stream;

    use super::*;
    use crate::door::Door;
    use crate::stage::Stage;

    /// The least time that is told apart here.
    const MOMENT: Duration = Duration::from_millis(10);

    /// Serves one end of a pipe.
    fn serving() -> (DuplexStream, Arc<Gate>, JoinHandle<()>) {
        let peer = SocketAddr::from(([127, 0, 0, 1], 0));
        let entrance = Entrance::new(Door::Grpc, &Listener::at(peer), Path::new("policy.yaml"));
        let gate = Gate::new(Limiter::from_yaml("limits: []").expect("a policy")).0;
        let (entrance, gate) = (Arc::new(entrance.expect("no files")), Arc::new(gate));
        let (client, ours) = duplex(1 << 16);
        let serving = tokio::spawn(serve(
            ours,
            Visitor { peer, entrance, gate: Arc::clone(&gate), pool: Arc::default() },
        ));
        (client, gate, serving)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_say_that_it_speaks_http2_is_cut_off() {
        for said in [&b""[..], b"PRI * HTTP/2.0\r\n"] {
            let (mut client, _gate, mut serving) = serving();
            client.write_all(said).await.expect("room");
            let early = timeout(PREFACE_WAIT_MAX - MOMENT, &mut serving).await;
            assert!(early.is_err(), "it has its time");
            timeout(2 * MOMENT, serving).await.expect("in time").expect("no panic");
            assert_eq!(client.read(&mut [0; 1]).await.expect("the end"), 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_silent_when_asked_whether_it_is_there_is_cut_off() {
        let (mut client, _gate, mut serving) = serving();
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        client.write_all(preface::PREFACE).await.expect("room");
        client.write_all(&settings).await.expect("room");
        let early = timeout(PING_EVERY + PONG_WAIT_MAX - MOMENT, &mut serving).await;
        assert!(early.is_err(), "it has its time");
        timeout(2 * MOMENT, serving).await.expect("in time").expect("no panic");
    }

    /// A call that has begun, and the messages of which never come.
    async fn begin(client: DuplexStream, path: &str) -> JoinHandle<(String, String)> {
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(client))
                .await
                .expect("spoken to");
        tokio::spawn(connection);
        let messages = tokio_stream::pending::<Result<Frame<Bytes>, Infallible>>();
        let request = Request::post(format!("http://tollgate{path}"))
            .header(header::CONTENT_TYPE, GRPC)
            .body(StreamBody::new(messages))
            .expect("a request");
        tokio::spawn(async move {
            let (head, body) = sender.send_request(request).await.expect("an answer").into_parts();
            let mut fields = head.headers;
            let trailers = body.collect().await.expect("an end").trailers().cloned();
            fields.extend(trailers.unwrap_or_default());
            let field = |name: &str| {
                let value = fields.get(name).and_then(|value| value.to_str().ok());
                value.unwrap_or_default().replace("%20", " ")
            };
            (field("grpc-status"), field("grpc-message"))
        })
    }

    /// What can be called, and how a call ends of which nothing came in time. Reflection answers
    /// every message that comes, and there was none.
    const CALLS: [(&str, &str); 5] = [
        (SHOULD_RATE_LIMIT, "4"),
        ("/grpc.health.v1.Health/Check", "4"),
        ("/grpc.health.v1.Health/Watch", "4"),
        ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "0"),
        ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "0"),
    ];

    #[tokio::test(start_paused = true)]
    async fn a_message_that_does_not_come_is_not_waited_for() {
        for (path, expected) in CALLS {
            let (client, _gate, _serving) = serving();
            let mut call = begin(client, path).await;
            let early = timeout(MESSAGE_WAIT_MAX - MOMENT, &mut call).await;
            assert!(early.is_err(), "{path} has its time");
            let (status, message) =
                timeout(2 * MOMENT, call).await.expect("in time").expect("no panic");
            assert_eq!(status, expected, "{path}: {message}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_does_not_come_does_not_hold_us() {
        for (path, _) in CALLS.into_iter().skip(1) {
            let (client, gate, serving) = serving();
            let mut call = begin(client, path).await;
            assert!(timeout(MOMENT, &mut call).await.is_err(), "{path} is under way");
            gate.stages.enter(Stage::Draining);
            timeout(MOMENT, serving).await.expect("in time").expect("no panic");
            let (status, message) = call.await.expect("no panic");
            assert!(["14", "0"].contains(&&*status), "{path}: {status} {message}");
        }
    }

    #[test]
    fn a_call_takes_little_room_while_it_is_under_way() {
        let gate = Arc::new(Gate::new(Limiter::from_yaml("limits: []").expect("a policy")).0);
        let asking = Asking::Other(Box::pin(ready(not_grpc())));
        let size = size_of_val(&answer(asking, gate, None));
        assert!(size <= 384, "it is copied a few times before it begins, and takes {size} bytes");
    }
}
