//! The reverse proxy: the layer that Rust services have, around servers of any kind.
//!
//! One client's connection is served here: HTTP/1.1 or HTTP/2, whichever it begins to speak. Each
//! request is brought into the form in which it is judged and passed on, goes through the
//! [layer](tollgate::http::TollgateLayer), and from there to a server ([`proxy`]).

mod activity;
mod arrivals;
mod body;
pub(crate) mod bounds;
mod dial;
mod doubt;
pub(crate) mod echo;
mod exchange;
mod fields;
mod gathering;
mod outgoing;
mod pool;
mod proxy;
pub(crate) mod proxy_protocol;
mod targets;
mod upgrade;
mod websocket;
mod wire;

use std::borrow::Cow;
use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONNECTION, HeaderName, HeaderValue};
use http::uri::{PathAndQuery, Uri};
use http::{Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::{Duration, sleep, timeout, timeout_at};
use tollgate::http::layer::Tollgate;
use tollgate::http::path;
use tollgate::{Gateway, Settings};
use tower_layer::Layer;
use tower_service::Service;

use crate::bounds::HEAD_BYTES_MAX;
use crate::connection::Visitor;
use crate::delivery::Fate;
use crate::door::{Door, Starter};
use crate::moment::moment;
use crate::otlp::TRACEPARENT;
use crate::prefixed::Prefixed;
use crate::seldom::Seldom;
use activity::{Activity, Attentive, Cut, UnderWay, Watch, Watched, duration};
use bounds::{CONNECTION_WINDOW, SEND_BUFFER_MAX, STREAM_WINDOW, STREAMS_MAX};
use gathering::Gathering;
use outgoing::Outgoing;
use proxy::{Deadline, Link, Proxy, late, refusal};

pub(crate) use arrivals::Arrivals;
pub(crate) use pool::Pool;
pub(crate) use targets::Targets;

/// What names a request unless the policy says otherwise.
const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The first bytes of HTTP/2.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Serves one connection.
///
/// Thousands are idle, so what a connection no longer needs takes no room in it: its beginning is in a
/// box that is gone when it is over, and what is only put together is so by plain functions.
pub(crate) fn serve<S>(stream: S, visitor: Visitor) -> impl Future<Output = ()> + Send
where
    S: AsyncRead + AsyncWrite + Fate + Unpin + Send + 'static,
{
    let patience = visitor.with_settings(|settings| duration(settings.headers_timeout));
    let begun = Box::pin(timeout(patience, begin(stream)));
    async move {
        let Ok(Ok((is_http2, stream))) = begun.await else {
            tracing::debug!(peer = %visitor.peer.ip(), "no request came in time");
            return;
        };
        if is_http2 {
            speak_http2(stream, visitor).await;
        } else {
            speak_http1(stream, visitor).await;
        }
    }
}

/// What is said on a connection of HTTP/2, which is in a box so that it is not moved about.
fn speak_http2<S>(stream: Prefixed<S>, visitor: Visitor) -> impl Future<Output = ()> + Send
where
    S: AsyncRead + AsyncWrite + Fate + Unpin + Send + 'static,
{
    let (stream, link, watch) = looked_after(stream, visitor, true);
    let desk = Desk::new(&link);
    let connection = http2::Builder::new(Starter(Door::Gateway))
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER_MAX)
        .max_header_list_size(HEAD_BYTES_MAX as u32)
        .serve_connection(stream, service_fn(move |request| desk.answer(request)));
    drive(connection, http2::Connection::graceful_shutdown, link, watch)
}

/// What is said on a connection of HTTP/1.1, and of what it becomes.
fn speak_http1<S>(stream: Prefixed<S>, visitor: Visitor) -> impl Future<Output = ()> + Send
where
    S: AsyncRead + AsyncWrite + Fate + Unpin + Send + 'static,
{
    let (stream, link, watch) = looked_after(stream, visitor, false);
    let desk = Desk::new(&link);
    let connection = http1::Builder::new()
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(stream, service_fn(move |request| desk.answer(request)))
        .with_upgrades();
    drive(connection, http1::UpgradeableConnection::graceful_shutdown, link, watch)
}

/// A stream that leaves marks of what is read and written.
type Marking<S> = TokioIo<Watched<Gathering<Prefixed<S>>>>;

/// A stream that leaves marks, what its requests share, and who looks at the marks.
fn looked_after<S>(
    stream: Prefixed<S>,
    visitor: Visitor,
    is_http2: bool,
) -> (Marking<S>, Arc<Link>, Watch) {
    let activity = Arc::<Activity>::default();
    let stream = TokioIo::new(Watched::new(Gathering(stream), &activity, is_http2));
    let watch = visitor.with_settings(|settings| Watch::new(&activity, settings, true));
    (stream, Arc::new(Link::new(visitor, activity)), watch)
}

impl Visitor {
    /// What the policy says of gateways.
    fn with_settings<T>(&self, look: impl FnOnce(&Gateway) -> T) -> T {
        self.gate.limiter.with_policy(|policy| look(&policy.settings().gateway))
    }
}

/// Looks at how a connection begins: whether it speaks HTTP/2.
async fn begin<S: AsyncRead + Unpin>(mut stream: S) -> io::Result<(bool, Prefixed<S>)> {
    let mut seen = [0; PREFACE.len()];
    let mut length = 0;
    while length < seen.len() && PREFACE.starts_with(&seen[..length]) {
        let read = stream.read(&mut seen[length..]).await?;
        length += read;
        if read == 0 {
            break;
        }
    }
    let is_http2 = seen == *PREFACE;
    Ok((is_http2, Prefixed::new(Bytes::copy_from_slice(&seen[..length]), stream)))
}

/// Goes on with a connection until either side has had enough, also of what it has become.
fn drive<C>(
    connection: C,
    wind_up: fn(Pin<&mut C>),
    link: Arc<Link>,
    mut watch: Watch,
) -> impl Future<Output = ()> + Send
where
    C: Future<Output = hyper::Result<()>> + Send,
{
    let mut connection = Box::pin(Attentive::new(connection, &link.activity));
    let mut drain = link.visitor.gate.stages.watch();
    let mut is_ending = false;
    async move {
        loop {
            let disturbed = Seldom::new(async {
                tokio::select! {
                    () = drain.started(), if !is_ending => Disturbed::Drained,
                    () = pause(watch.pause()) => Disturbed::Ticked,
                }
            });
            let disturbed = tokio::select! {
                biased;
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(peer = %link.visitor.peer, %error, "a connection ended badly");
                    }
                    break;
                }
                disturbed = disturbed => disturbed,
            };
            let cut = match disturbed {
                Disturbed::Drained => None,
                Disturbed::Ticked => match watch.look() {
                    None => continue,
                    cut => cut,
                },
            };
            if let Some(cut) = cut
                && (is_ending || cut != Cut::Idle)
            {
                tracing::debug!(peer = %link.visitor.peer, ?cut, "a connection was cut");
                break;
            }
            is_ending = true;
            wind_up(connection.as_mut().connection());
        }
        // Whoever waits for a connection that was cut before it could become a tunnel learns by this
        // that it never will.
        drop(connection);
        if let Some(tunnel) = link.take_tunnel() {
            let watch = |settings: &Gateway| Watch::new(&link.activity, settings, false);
            Box::pin(tunnel.run(idle(link.visitor.with_settings(watch)))).await;
        }
    }
}

/// What may happen to a connection beside what is said on it.
enum Disturbed {
    /// The process is to end.
    Drained,
    /// It is time to look whether anything has happened.
    Ticked,
}

/// Returns so much later; never, if that is not said.
async fn pause(length: Option<Duration>) {
    match length {
        Some(length) => sleep(length).await,
        None => pending().await,
    }
}

/// Returns when nothing has happened for too long.
async fn idle(mut watch: Watch) {
    while watch.look().is_none() {
        pause(watch.pause()).await;
    }
}

/// Where the requests of one connection come in.
struct Desk {
    link: Arc<Link>,
    limited: Tollgate<Proxy>,
}

impl Desk {
    fn new(link: &Arc<Link>) -> Self {
        let peer = link.visitor.peer.ip();
        let layer = link.visitor.gate.layer.clone().peer(move |_| Some(peer));
        Self { link: Arc::clone(link), limited: layer.layer(Proxy::new(Arc::clone(link))) }
    }

    fn answer(
        &self,
        mut request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Outgoing>, Infallible>> + use<> {
        let gate = &self.link.visitor.gate;
        let doubtful = doubt::doubtful(&request);
        let is_http1 = request.version() < Version::HTTP_2;
        let is_clear = doubtful.is_none() && !self.link.activity.is_sloppy();
        let is_last = is_http1 && !(is_clear && gate.stages.is_ready());
        let (id, under_way, deadline) = gate.limiter.with_policy(|policy| {
            let settings = policy.settings();
            tidy(&mut request, settings);
            let total = settings.gateway.total_timeout;
            let deadline = total.map(|total| moment() + duration(total));
            if let Some(deadline) = deadline {
                request.extensions_mut().insert(Deadline(deadline));
            }
            let (under_way, number) = UnderWay::begin(&self.link.activity, deadline);
            let id = self.link.name(&mut request, &settings.gateway, number);
            (id, under_way, deadline)
        });
        let span = gate.traces.begin(gate, Door::Gateway, self.link.visitor.peer.ip(), &request);
        if let Some(span) = &span {
            request.headers_mut().insert(TRACEPARENT, span.context());
        }
        // What all threads share is only touched for those that are told about.
        let told = span.map(|span| (Arc::clone(gate), span));
        let answering = match doubtful {
            None => Ok(self.limited.clone().call(request)),
            Some(why) => Err(why),
        };
        // In a box: the connection keeps room for it, also while nobody asks.
        Box::pin(async move {
            let answered = match (answering, deadline) {
                (Err(why), _) => Err(refusal(StatusCode::BAD_REQUEST, why)),
                (Ok(answering), None) => Ok(answering.await),
                // It has its time from the proxy, so that limits have their say. Only while it is held
                // nobody else looks.
                (Ok(answering), Some(deadline)) => {
                    timeout_at(deadline, answering).await.map_err(|_| late())
                }
            };
            let mut response = match answered {
                Ok(Ok(response)) => Outgoing::judged(response, under_way, deadline),
                Err(answer) => Outgoing::own(answer, under_way),
            };
            if let Some((gate, span)) = told {
                gate.traces.end(&gate, Some(span), response.status());
            }
            let id = id.map(|(name, id)| {
                response.headers_mut().insert(name.clone(), id);
                name
            });
            if is_last && response.status() != StatusCode::SWITCHING_PROTOCOLS {
                // Whoever is told so before we close does not send into a closed connection.
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            if !is_http1 {
                fields::detach(response.headers_mut(), id.as_ref());
            }
            Ok(response)
        })
    }
}

impl Link {
    /// Makes sure that a request has an id, which its response has too.
    fn name(
        &self,
        request: &mut Request<Incoming>,
        settings: &Gateway,
        number: u64,
    ) -> Option<(HeaderName, HeaderValue)> {
        let name = match settings.request_id.as_deref()? {
            "x-request-id" => X_REQUEST_ID,
            other => other.parse().ok()?,
        };
        let id = match fields::request_id(request.headers(), &name) {
            Some(id) => id.clone(),
            None => {
                let id = Bytes::from_owner(hexadecimal(self.id, number));
                let id = HeaderValue::from_maybe_shared(id);
                let id = id.expect("digits may be in a value");
                request.headers_mut().insert(name.clone(), id.clone());
                id
            }
        };
        fields::hold_on_to(request.headers_mut(), &name);
        Some((name, id))
    }
}

/// Two numbers in sixteen digits each.
fn hexadecimal(one: u64, other: u64) -> [u8; 32] {
    let both = u128::from(one) << 64 | u128::from(other);
    let digit = |place: usize| b"0123456789abcdef"[(both >> (124 - 4 * place)) as usize & 15];
    std::array::from_fn(digit)
}

/// Brings the path of a request into the form in which it is passed on. One that has none is left for
/// the layer to refuse.
fn tidy(request: &mut Request<Incoming>, settings: &Settings) {
    let uri = request.uri();
    let Ok(Cow::Owned(tidy)) = path::tidy(uri.path(), &settings.paths) else { return };
    let with_query = match uri.query() {
        Some(query) => format!("{tidy}?{query}"),
        None => tidy,
    };
    let mut parts = uri.clone().into_parts();
    let Ok(path) = PathAndQuery::try_from(with_query) else { return };
    parts.path_and_query = Some(path);
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
}
