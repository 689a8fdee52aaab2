//! The rules around any HTTP client that is a tower service.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::HOST;
use http::{HeaderMap, Request, Response, Uri};
use tokio::time::timeout_at;
use tower_layer::Layer;
use tower_service::Service;

use crate::breaker::Open;
use crate::clock;
use crate::events;
use crate::rules::{Call, Ended, NotStarted, Repeatable, Rules};
use crate::throttle::Throttled;

/// Puts [`Rules`] around a client.
///
/// A request is made again only if that is safe: its method is idempotent, it has an
/// `Idempotency-Key` or is [`Repeatable`], and its body can be had a second time.
pub struct ClientLayer<B> {
    rules: Arc<Rules>,
    replay: fn(&B) -> Option<B>,
}

impl<B: Clone> ClientLayer<B> {
    /// For bodies that can be cloned, such as `Full<Bytes>`.
    pub fn new(rules: Rules) -> Self {
        Self::with_replay(rules, |body| Some(body.clone()))
    }
}

impl<B> ClientLayer<B> {
    /// For bodies of which `replay` says whether they can be had a second time.
    pub fn with_replay(rules: Rules, replay: fn(&B) -> Option<B>) -> Self {
        Self { rules: Arc::new(rules), replay }
    }
}

impl<B> Clone for ClientLayer<B> {
    fn clone(&self) -> Self {
        Self { rules: Arc::clone(&self.rules), replay: self.replay }
    }
}

impl<B> fmt::Debug for ClientLayer<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientLayer").field("rules", &self.rules).finish_non_exhaustive()
    }
}

impl<S, B> Layer<S> for ClientLayer<B> {
    type Service = ClientService<S, B>;

    fn layer(&self, inner: S) -> ClientService<S, B> {
        ClientService { inner, layer: self.clone() }
    }
}

/// A client under [`Rules`].
///
/// It is always ready: the client in it is made ready for each attempt when it is its turn. Whoever waits for its
/// budget holds no place of a `ConcurrencyLimit` that others could use, unless it is the body of an answer that holds it:
/// while a request waits to be tried again it keeps the answer it has, should there be no other.
pub struct ClientService<S, B> {
    inner: S,
    layer: ClientLayer<B>,
}

impl<S: Clone, B> Clone for ClientService<S, B> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<S: fmt::Debug, B> fmt::Debug for ClientService<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { inner, layer } = self;
        f.debug_struct("ClientService").field("inner", inner).field("layer", layer).finish()
    }
}

impl<S, B, R> Service<Request<B>> for ClientService<S, B>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: Send + 'static,
    R: Send + 'static,
{
    type Response = Response<R>;
    type Error = SendError<S::Error>;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, SendError<S::Error>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        Box::pin(send(self.layer.clone(), self.inner.clone(), Some(request)))
    }
}

/// Sends a request, which is there until it is sent for the last time. There is room for one, since most of what this takes is
/// room for requests.
#[expect(clippy::manual_async_fn, reason = "an async fn has room for its arguments twice")]
fn send<S, B, R>(
    layer: ClientLayer<B>,
    mut inner: S,
    mut request: Option<Request<B>>,
) -> impl Future<Output = Result<Response<R>, SendError<S::Error>>>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    S::Error: 'static,
{
    async move {
        let rules = &layer.rules;
        let (is_repeatable, mut course) = {
            let request = request.as_ref().expect("it was not sent yet");
            let call = Call {
                host: &host(request.uri(), request.headers()),
                method: request.method(),
                path: request.uri().path(),
                fields: request.headers(),
                extensions: request.extensions(),
            };
            let is_marked = call.extensions.get::<Repeatable>().is_some();
            (is_marked || call.is_idempotent(), rules.begin(&call))
        };
        // What the attempt before brought, should the next one not be made. Its body may hold a connection, and a place of the
        // client in here, so it is not kept any longer than the waits for the next attempt's moment and turn.
        let mut last = None;
        loop {
            let pass = match course.turn().await {
                Ok(pass) => pass,
                Err(why) => return or_the_last(last, why.into()),
            };
            let (ready, waited_until) =
                match poll_fn(|context| Poll::Ready(inner.poll_ready(context))).await {
                    Poll::Ready(ready) => (ready, None),
                    Poll::Pending => {
                        drop(last.take());
                        let ready = poll_fn(|context| inner.poll_ready(context));
                        let Ok(ready) = Box::pin(timeout_at(course.deadline(), ready)).await else {
                            events::not_made(Some(course.whom()), "throttled");
                            return Err(SendError::Throttled(Throttled { retry_after: None }));
                        };
                        if course.is_held_back() {
                            // The place that it has now is for others meanwhile.
                            inner = inner.clone();
                            continue;
                        }
                        (ready, Some(clock::now()))
                    }
                };
            let permits = match course.start(&pass, waited_until) {
                Ok(permits) => permits,
                Err(why) => return or_the_last(last, why.into()),
            };
            if let Err(error) = ready {
                course.end(pass, permits, failed(rules, &error), false);
                return or_the_last(last, SendError::Failed(error));
            }
            drop(last.take());
            let request_again = request.as_ref().filter(|_| is_repeatable);
            let request_again = request_again.and_then(|request| copy(request, layer.replay));
            let attempt = mem::replace(&mut request, request_again);
            let answer = inner.call(attempt.expect("it was not sent for the last time")).await;
            let ended = match &answer {
                Ok(answer) => Ended::Answered(answer.status(), answer.headers()),
                Err(error) => failed(rules, error),
            };
            let then = course.end(pass, permits, ended, request.is_some());
            let Some(then) = then else { return answer.map_err(SendError::Failed) };
            last = Some(answer);
            Box::pin(clock::wait_until(then)).await;
        }
    }
}

/// What the attempt before brought, if there was one.
fn or_the_last<R, E>(last: Option<Result<R, E>>, why: SendError<E>) -> Result<R, SendError<E>> {
    last.map_or(Err(why), |answer| answer.map_err(SendError::Failed))
}

/// How an attempt ended that brought an error.
fn failed<E: 'static>(rules: &Rules, error: &E) -> Ended<'static> {
    if rules.is_ours(error).unwrap_or(false) { Ended::Ours } else { Ended::Lost }
}

/// Of a request that does not say whom it asks, the field that does. What stands before an @ is a secret, and whom it asks
/// is the same without; nor does it matter how a host is spelled, or whether the port is said that goes without saying.
fn host<'a>(uri: &'a Uri, fields: &'a HeaderMap) -> Cow<'a, str> {
    let authority = uri.authority().map(http::uri::Authority::as_str);
    let host = authority.or_else(|| fields.get(HOST)?.to_str().ok()).unwrap_or_default();
    let implied = match uri.scheme_str() {
        Some("https") => ":443",
        Some("http") => ":80",
        _ => "",
    };
    let host = host.strip_suffix(implied).unwrap_or(host);
    // All bytes are looked at, without a branch for each: most hosts have none of these.
    let is_plain =
        host.bytes().fold(true, |is_plain, byte| is_plain & !matches!(byte, b'@'..=b'Z'));
    if is_plain {
        return Cow::Borrowed(host);
    }
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    Cow::Owned(host.to_ascii_lowercase())
}

fn copy<B>(request: &Request<B>, replay: fn(&B) -> Option<B>) -> Option<Request<B>> {
    let mut copy = Request::new(replay(request.body())?);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    *copy.extensions_mut() = request.extensions().clone();
    Some(copy)
}

/// Why there is no response.
#[derive(Debug)]
pub enum SendError<E> {
    /// It would have waited too long for its budget, or for its client, and was not sent.
    Throttled(Throttled),
    /// Whom it asks does not work of late, and it was not sent.
    Open(Open),
    /// The client could not send it, or had no answer.
    Failed(E),
}

impl<E> From<NotStarted> for SendError<E> {
    fn from(why: NotStarted) -> Self {
        match why {
            NotStarted::Throttled(throttled) => Self::Throttled(throttled),
            NotStarted::Open(open) => Self::Open(open),
        }
    }
}

impl<E: fmt::Display> fmt::Display for SendError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Throttled(throttled) => throttled.fmt(f),
            Self::Open(open) => open.fmt(f),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl<E: Error + 'static> Error for SendError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Throttled(_) | Self::Open(_) => None,
            Self::Failed(error) => error.source(),
        }
    }
}
