//! Limits around any service that answers HTTP requests: a layer for axum, hyper and tonic.
//!
//! ```
//! use std::sync::Arc;
//!
//! use tollgate::Limiter;
//! use tollgate::http::TollgateLayer;
//!
//! let policy = "limits: [{name: api, per: [client_ip], rate: 60/minute}]";
//! let layer = TollgateLayer::new(Arc::new(Limiter::from_yaml(policy)?));
//! # Ok::<(), tollgate::LimiterError>(())
//! ```
//!
//! A request that is allowed goes to the service as it came; a request that has to wait is held and
//! goes then; all others are answered here. Every response carries the policy's fields. A
//! concurrency slot is held until the last of the response's body is gone, and comes back whatever
//! happens: everything that ends a request drops either its future or its body, and whichever has
//! the slot gives it back. Costs that the response tells are settled in the same way. What passes in
//! streams is counted message by message, if the policy has limits for that.
//!
//! What is held and what is in flight is counted by the layer: clones of it, and the services that
//! it makes, share that.

mod ask;
mod bill;
mod body;
mod flow;
mod future;
mod hold;
mod messages;
mod refusal;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll};

use ::http::request::Parts;
use ::http::{Request, Response};
use bytes::Bytes;
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use crate::bounds::HELD_MAX;
use crate::limiter::Boxed;
use crate::metrics::HeldCount;
use crate::{Limiter, Slots};
use body::BoxError;
use flow::{Direction, Flow};
use future::{Asking, Call};
use hold::Holding;

pub use ask::Added;
pub use bill::Spent;
pub use body::{Exhausted, RequestBody, ResponseBody};
pub use future::ResponseFuture;

/// Who sent a request: an extension that whoever accepts connections adds to it, unless
/// [`TollgateLayer::peer`] says where else to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// Puts a limiter around services.
#[derive(Clone)]
pub struct TollgateLayer {
    shared: Arc<Shared>,
}

/// What the requests of all services under one layer share.
#[derive(Clone)]
struct Shared {
    limiter: Arc<Limiter>,
    peer: Arc<PeerOf>,
    attributes: Option<Arc<AttributesOf>>,
    max_held: usize,
    holding: Arc<Holding>,
    slots: Arc<Slots>,
    /// Spreads waits: no two clients are told the same one.
    spread: RandomState,
    /// How many streams there were.
    streams: Arc<AtomicU64>,
}

impl Shared {
    /// A number that no other process has.
    fn ours(&self) -> u64 {
        self.spread.hash_one("streams")
    }
}

type PeerOf = dyn Fn(&Parts) -> Option<IpAddr> + Send + Sync;
type AttributesOf = dyn Fn(&Parts, &mut Added) + Send + Sync;

impl TollgateLayer {
    /// A layer that asks `limiter`.
    pub fn new(limiter: Arc<Limiter>) -> Self {
        let peer = |parts: &Parts| parts.extensions.get().map(|&Peer(address)| address.ip());
        let shared = Shared {
            slots: Arc::new(Slots::new(Arc::clone(&limiter))),
            limiter,
            peer: Arc::new(peer),
            attributes: None,
            max_held: HELD_MAX,
            holding: Arc::default(),
            spread: RandomState::new(),
            streams: Arc::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Where to find the address that a request came from, instead of in a [`Peer`]. Whether that is
    /// the client's or a trusted proxy's is for the policy to say.
    ///
    /// A request of which it is not known is answered with 500 if the policy asks for it: otherwise
    /// all clients would share one budget, and nobody would notice.
    #[must_use]
    pub fn peer(mut self, find: impl Fn(&Parts) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        Arc::make_mut(&mut self.shared).peer = Arc::new(find);
        self
    }

    /// What else is known of a request. What the request itself says cannot be replaced by it, and
    /// neither can `tenant` and `tier` where the policy has a tenants file.
    #[must_use]
    pub fn attributes(mut self, add: impl Fn(&Parts, &mut Added) + Send + Sync + 'static) -> Self {
        Arc::make_mut(&mut self.shared).attributes = Some(Arc::new(add));
        self
    }

    /// How many requests may be held at a time ([`HELD_MAX`] unless said). Those beyond are answered
    /// with 503, and are given back what they were charged.
    #[must_use]
    pub fn max_held(mut self, requests: usize) -> Self {
        Arc::make_mut(&mut self.shared).max_held = requests;
        self
    }

    /// How many requests are held, and for how long they were.
    pub fn held(&self) -> HeldCount {
        self.shared.holding.count()
    }
}

impl<S> Layer<S> for TollgateLayer {
    type Service = Tollgate<S>;

    fn layer(&self, inner: S) -> Tollgate<S> {
        Tollgate { inner, shared: Arc::clone(&self.shared) }
    }
}

impl fmt::Debug for TollgateLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TollgateLayer").finish_non_exhaustive()
    }
}

/// A service with a limiter around it.
#[derive(Clone)]
pub struct Tollgate<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S, B, R> Service<Request<B>> for Tollgate<S>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone,
    R: Body,
    R::Data: From<Bytes>,
    R::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> ResponseFuture<S, B> {
        let (parts, body) = request.into_parts();
        let (asked, asker) = match self.shared.ask(&parts) {
            Ok(asked) => asked,
            Err(refusal) => return ResponseFuture::refused(refusal.answer(&parts.headers)),
        };
        let flow = asker.known.as_ref().filter(|_| refusal::is_grpc(&parts.headers));
        let flow = flow.and_then(|known| Flow::of(known, Direction::Up, &parts.headers));
        let request = Request::from_parts(parts, RequestBody::new(body, flow.map(Box::new)));
        match asked {
            Boxed::Ready(verdict) => {
                let admitted = self.shared.admit(verdict, asker, request.headers());
                ResponseFuture::judged(admitted, &mut self.inner, made_ready, request)
            }
            Boxed::Waiting(verdict) => {
                let call = Call { service: made_ready(&mut self.inner), request };
                ResponseFuture::asking(Asking::new(verdict, Arc::clone(&self.shared), asker, call))
            }
        }
    }
}

/// The service that was made ready, for a call later on; the one in its place is another.
fn made_ready<S: Clone>(service: &mut S) -> S {
    let another = service.clone();
    mem::replace(service, another)
}

impl<S: fmt::Debug> fmt::Debug for Tollgate<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tollgate").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// The examples of the layer's page, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/layer.md")]
struct Page;
