//! The rules around any HTTP client that is a tower service.

use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::HOST;
use http::{HeaderMap, Request, Response, Uri};
use tower_layer::Layer;
use tower_service::Service;

use crate::breaker::Open;
use crate::clock;
use crate::rules::{Call, NotStarted, Repeatable, Rules};
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
    S::Error: Send,
    B: Send + 'static,
    R: Send + 'static,
{
    type Response = Response<R>;
    type Error = SendError<S::Error>;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, SendError<S::Error>>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(SendError::Failed)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The one that is ready is the one to call.
        let next = self.inner.clone();
        let ready = mem::replace(&mut self.inner, next);
        Box::pin(send(self.layer.clone(), ready, request))
    }
}

async fn send<S, B, R>(
    layer: ClientLayer<B>,
    mut inner: S,
    mut request: Request<B>,
) -> Result<Response<R>, SendError<S::Error>>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    let (is_repeatable, mut course) = {
        let call = Call {
            host: host(request.uri(), request.headers()),
            method: request.method(),
            path: request.uri().path(),
            fields: request.headers(),
        };
        let is_marked = request.extensions().get::<Repeatable>().is_some();
        (is_marked || call.is_idempotent(), layer.rules.begin(&call))
    };
    loop {
        let started = course.start().await?;
        let spare = if is_repeatable { copy(&request, layer.replay) } else { None };
        let answer = inner.call(request).await;
        let head = answer.as_ref().ok().map(|answer| (answer.status(), answer.headers()));
        let (Some(then), Some(next)) = (course.end(started, head, spare.is_some()), spare) else {
            return answer.map_err(SendError::Failed);
        };
        drop(answer);
        clock::wait_until(then).await;
        poll_fn(|context| inner.poll_ready(context)).await.map_err(SendError::Failed)?;
        request = next;
    }
}

/// Of a request that does not say whom it asks, the field that does.
fn host<'a>(uri: &'a Uri, fields: &'a HeaderMap) -> &'a str {
    let authority = uri.authority().map(http::uri::Authority::as_str);
    authority.or_else(|| fields.get(HOST)?.to_str().ok()).unwrap_or_default()
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
    /// It would have waited too long for its budget, and was not sent.
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
