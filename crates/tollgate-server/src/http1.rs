//! HTTP/1.1 as our own doors speak it: small requests, small answers.

use std::convert::Infallible;
use std::error::Error;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{sleep, timeout};

use crate::bounds::{ANSWER_MAX, BODIES_MAX, BODY_BYTES_MAX, BODY_MAX, HEAD_BYTES_MAX, HEAD_MAX};
use crate::connection::Visitor;
use crate::delivery::{self, Attended, Fate, Undelivered};
use crate::gate::Gate;
use crate::impatient::Impatient;
use crate::seldom::Seldom;
use crate::stage::Drain;

pub(crate) type Answer = Response<Bytes>;

/// A connection that must read its answers, watched for what becomes of them.
pub(crate) fn attended<S: Fate>(
    stream: S,
    undelivered: &Undelivered,
) -> Attended<'_, Impatient<S>> {
    Attended::new(Impatient::new(stream, ANSWER_MAX), undelivered)
}

/// Serves the requests of one connection, which is [`attended`] to, with `answer`, until either side has had enough.
pub(crate) async fn serve<S, F, R>(
    stream: S,
    visitor: Visitor,
    undelivered: &Undelivered,
    answer: F,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Fn(Request<Incoming>, Arc<Visitor>) -> R,
    R: Future<Output = Answer>,
{
    let mut drain = visitor.gate.stages.watch();
    let mut is_draining = false;
    let visitor = Arc::new(visitor);
    // Whether a request has come since this was last looked at.
    let has_asked = AtomicBool::new(false);
    let service = service_fn(|request| {
        has_asked.store(true, Ordering::Relaxed);
        let misdirected = misdirected(&request);
        let (gate, door) = (&visitor.gate, visitor.entrance.door);
        let span = gate.traces.begin(gate, door, visitor.peer.ip(), &request);
        let is_body_sent = *request.method() != Method::HEAD;
        let answered = answer(request, Arc::clone(&visitor));
        let is_ready = gate.stages.is_ready();
        async move {
            let mut answer = match misdirected {
                None => answered.await,
                Some(why) => closing(problem(StatusCode::BAD_REQUEST, why)),
            };
            if !is_body_sent {
                delivery::withdraw(&mut answer);
            }
            undelivered.take(&mut answer);
            gate.traces.end(gate, span, answer.status());
            // Whoever is told so before we close does not send into a closed connection.
            let answer = if is_ready { answer } else { closing(answer) };
            Ok::<_, Infallible>(answer.map(Full::new))
        }
    });
    let connection = http1::Builder::new()
        .max_buf_size(HEAD_BYTES_MAX)
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let ended = loop {
        let disturbed = disturbed(&mut drain, is_draining);
        tokio::select! {
            biased;
            ended = connection.as_mut() => break ended,
            has_drained = disturbed => {
                if has_drained {
                    is_draining = true;
                    connection.as_mut().graceful_shutdown();
                } else if !has_asked.swap(false, Ordering::Relaxed) {
                    tracing::debug!(peer = %visitor.peer, "no request came in time");
                    return;
                }
            }
        }
    };
    if let Err(error) = ended {
        tell_of(&error, &visitor);
    }
}

/// Returns after a while, in which a request should have come, or earlier if no more are to be taken: then with
/// true. One timer for the life of a connection, rather than one for each request.
pub(crate) fn disturbed(
    drain: &mut Drain,
    is_draining: bool,
) -> Seldom<impl Future<Output = bool>> {
    Seldom::new(async move {
        tokio::select! {
            () = drain.started(), if !is_draining => true,
            () = sleep(HEAD_MAX) => false,
        }
    })
}

/// Leaves a word about a connection that broke.
pub(crate) fn tell_of(error: &dyn Error, visitor: &Visitor) {
    tracing::debug!(peer = %visitor.peer, %error, "a connection ended badly");
}

/// What is wrong with whom a request is for: it must name one host, and only one.
fn misdirected<B>(request: &Request<B>) -> Option<&'static str> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (None, _) if request.version() == Version::HTTP_10 => None,
        (None, _) => Some("the request has no Host"),
        (Some(_), Some(_)) => Some("the request has several Hosts"),
        (Some(host), None) => {
            let named = request.uri().authority();
            let is_other = named
                .is_some_and(|it| !it.as_str().as_bytes().eq_ignore_ascii_case(host.as_bytes()));
            is_other.then_some("the request is for one host and its Host is another")
        }
    }
}

/// The whole body of a request, or the answer to one whose body is not to be had.
pub(crate) async fn body(request: Request<Incoming>, gate: &Gate) -> Result<Bytes, Answer> {
    let too_large = || {
        let most = format!("a body may have {BODY_BYTES_MAX} bytes");
        closing(problem(StatusCode::PAYLOAD_TOO_LARGE, &most))
    };
    let body = request.into_body();
    if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
        return Err(too_large());
    }
    let Some(_place) = gate.bodies.place() else {
        let sentence = "too many requests are being read; try again";
        return Err(closing(problem(StatusCode::SERVICE_UNAVAILABLE, sentence)));
    };
    match timeout(BODY_MAX, collected(body)).await {
        Ok(Ok(Some(bytes))) => Ok(bytes),
        Ok(Ok(None)) => Err(too_large()),
        Ok(Err(error)) => {
            let sentence = format!("the body cannot be read: {error}");
            Err(closing(problem(StatusCode::BAD_REQUEST, &sentence)))
        }
        Err(_) => {
            Err(closing(problem(StatusCode::REQUEST_TIMEOUT, "the body took too long to arrive")))
        }
    }
}

/// All bytes of a body, unless they are too many: without a copy if they came in one piece, as they
/// nearly always do.
async fn collected(mut body: Incoming) -> Result<Option<Bytes>, hyper::Error> {
    let mut bytes = Bytes::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        if bytes.len() + data.len() > BODY_BYTES_MAX {
            return Ok(None);
        }
        if bytes.is_empty() {
            bytes = data;
        } else {
            // No copy is made of what is ours alone already.
            let mut joined = bytes.try_into_mut().unwrap_or_else(|shared| (&*shared).into());
            joined.extend_from_slice(&data);
            bytes = joined.freeze();
        }
    }
    Ok(Some(bytes))
}

/// Counts the bodies that are being read.
#[derive(Debug, Default)]
pub(crate) struct Bodies(AtomicUsize);

/// One of the bodies that may be read at a time.
pub(crate) struct Place<'b>(&'b Bodies);

impl Bodies {
    fn place(&self) -> Option<Place<'_>> {
        let place = Place(self);
        (self.0.fetch_add(1, Ordering::Relaxed) < BODIES_MAX).then_some(place)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An answer that is the connection's last.
fn closing(mut answer: Answer) -> Answer {
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    answer
}

/// An answer in JSON.
pub(crate) fn json(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    answer(status, "application/json", body)
}

/// An answer that says what is wrong, for programs (RFC 9457) and people.
pub(crate) fn problem(status: StatusCode, detail: &str) -> Answer {
    let title = status.canonical_reason().unwrap_or("refused");
    let body = serde_json::json!({"title": title, "status": status.as_u16(), "detail": detail});
    answer(status, "application/problem+json", body.to_string())
}

/// The answer to a method that a path does not have.
pub(crate) fn wrong_method(allowed: &'static str) -> Answer {
    let mut answer = problem(StatusCode::METHOD_NOT_ALLOWED, &format!("use {allowed} here"));
    answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
    answer
}

pub(crate) fn answer(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Answer {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

/// The answer to a request that does not show what its door asks for; none if it does.
pub(crate) fn unauthorized<B>(request: &Request<B>, visitor: &Visitor) -> Option<Answer> {
    let token = visitor.entrance.token()?;
    if token.is_shown(request.headers()) {
        return None;
    }
    let sentence = "this door wants `Authorization: Bearer …` with its token";
    let mut answer = problem(StatusCode::UNAUTHORIZED, sentence);
    answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    Some(answer)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::path::Path;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::task::JoinHandle;
    use tollgate::{Limiter, Listener};

    use super::*;
    use crate::bounds::PLAIN_REST_MAX;
    use crate::door::{Door, Entrance};

    const MOMENT: Duration = Duration::from_millis(10);

    /// Serves one end of a pipe, through which `room` bytes fit.
    fn serving(room: usize) -> (DuplexStream, JoinHandle<()>) {
        let peer = SocketAddr::from(([127, 0, 0, 1], 0));
        let entrance = Entrance::new(Door::Http, &Listener::at(peer), Path::new("policy.yaml"));
        let gate = Gate::new(Limiter::from_yaml("limits: []").expect("a policy")).0;
        let (entrance, gate) = (Arc::new(entrance.expect("no files")), Arc::new(gate));
        let (client, ours) = duplex(room);
        let visitor = Visitor { peer, entrance, gate, pool: Arc::default() };
        (client, tokio::spawn(crate::http::serve(ours, visitor)))
    }

    /// What comes back when nothing is sent after `said`, which takes so long.
    async fn check(said: &str, patience: Duration, expected: &str) {
        let (mut client, mut serving) = serving(1 << 16);
        client.write_all(said.as_bytes()).await.expect("room");
        let early = timeout(PLAIN_REST_MAX + patience - MOMENT, &mut serving).await;
        assert!(early.is_err(), "it has its time");
        timeout(2 * MOMENT, serving).await.expect("in time").expect("no panic");
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("the end");
        assert!(answer.starts_with(expected), "{answer}");
        assert_eq!(answer.is_empty(), expected.is_empty(), "{answer}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_does_not_come_to_its_end_is_not_waited_for() {
        check("GET /v1/check HTTP/1.1\r\nhost:", HEAD_MAX, "").await;
        let head = "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{";
        check(head, BODY_MAX, "HTTP/1.1 408 ").await;
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_read_its_answer_is_cut_off() {
        let (mut client, serving) = serving(1 << 10);
        let ask = "GET /openapi.json HTTP/1.1\r\nhost: a\r\n\r\n";
        client.write_all(ask.as_bytes()).await.expect("room");
        timeout(ANSWER_MAX + MOMENT, serving).await.expect("in time").expect("no panic");
    }

    #[tokio::test]
    async fn more_bodies_than_there_is_memory_for_are_refused() {
        let bodies = Bodies::default();
        let places: Vec<_> = (0..BODIES_MAX).map(|_| bodies.place().expect("room")).collect();
        assert!(bodies.place().is_none());
        drop(places);
        assert!(bodies.place().is_some(), "places are given back, also those refused");
    }
}
