//! Connections to servers, kept from one request to the next.
//!
//! Each thread has its own, so that a request and its response never cross threads.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use pin_project_lite::pin_project;
use tokio::time::{Duration, Instant};
use tollgate::Target;

use super::body::Sending;
use super::bounds::{IDLE_MAX, REQUESTS_MAX};
use super::dial::{Dialled, Purpose, hand_over};
use super::wire::Wire;
use crate::moment::moment;

/// The connections of one thread. Servers are few, and compared sooner than hashed.
#[derive(Default)]
pub(crate) struct Pool(Mutex<BTreeMap<Target, Arc<Upstream>>>);

/// The connections to one server.
pub(super) struct Upstream {
    pub(super) target: Target,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// Connections of HTTP/1.1 on which nothing is going on, those for requests without a body and those for
    /// any; of each the one that was used last is last.
    wires: Vec<(Wire, Instant)>,
    idle: Vec<Idle>,
    /// Connections of HTTP/2.
    shared: Vec<Shared>,
}

struct Idle {
    requests: http1::SendRequest<Sending>,
    since: Instant,
}

struct Shared {
    requests: http2::SendRequest<Sending>,
    /// How many requests are under way on it.
    streams: Arc<AtomicUsize>,
    /// When none was under way for the first time since the last.
    idle_since: Option<Instant>,
}

impl Pool {
    /// What there is to one server.
    pub(super) fn upstream(&self, target: &Target) -> Arc<Upstream> {
        let mut upstreams = lock(&self.0);
        if let Some(known) = upstreams.get(target) {
            return Arc::clone(known);
        }
        let new = Arc::new(Upstream { target: target.clone(), kept: Mutex::default() });
        upstreams.insert(target.clone(), Arc::clone(&new));
        new
    }

    /// Closes what nobody has used for so long, and forgets servers to which nothing is left.
    pub(crate) fn sweep(&self, idle_timeout: Option<Duration>) {
        let now = moment();
        let is_stale = |since: Instant| idle_timeout.is_some_and(|most| now - since >= most);
        lock(&self.0).retain(|_, upstream| {
            let mut kept = lock(&upstream.kept);
            kept.wires.retain_mut(|(wire, since)| {
                let mut nobody = Context::from_waker(Waker::noop());
                !is_stale(*since) && wire.is_quiet(&mut nobody)
            });
            kept.idle.retain(|it| !is_stale(it.since) && !it.requests.is_closed());
            kept.shared.retain_mut(|it| {
                let is_idle = it.streams.load(Ordering::Relaxed) == 0;
                it.idle_since = is_idle.then(|| it.idle_since.unwrap_or(now));
                !it.idle_since.is_some_and(is_stale) && !it.requests.is_closed()
            });
            let is_empty = kept.count() == 0 && kept.shared.is_empty();
            drop(kept);
            // Whoever has it at the moment may be about to add to it.
            !is_empty || Arc::strong_count(upstream) > 1
        });
    }
}

impl Upstream {
    /// A connection that was used before, if there is one.
    pub(super) async fn used(self: &Arc<Self>, purpose: Purpose) -> Option<Way> {
        loop {
            let found = {
                let mut kept = lock(&self.kept);
                if let Some(stream) = kept.stream() {
                    return Some(Way::Loan(Loan::Many(stream)));
                }
                kept.take(purpose)?
            };
            let requests = match found {
                Found::Wire(mut wire) => {
                    if !poll_fn(|context| Poll::Ready(wire.is_quiet(context))).await {
                        continue;
                    }
                    if purpose == Purpose::Plain {
                        return Some(Way::Wire(wire));
                    }
                    let Ok(requests) = hand_over(wire.into_stream(), false).await else { continue };
                    requests
                }
                Found::One(requests) => requests,
            };
            // It was kept when its response was complete, a moment before it takes the next request.
            let mut loan = One { requests, upstream: Some(Arc::clone(self)) };
            if loan.requests.ready().await.is_ok() {
                return Some(Way::Loan(Loan::One(loan)));
            }
        }
    }

    /// Keeps a connection for the next request.
    pub(super) fn keep(&self, wire: Wire) {
        let mut kept = lock(&self.kept);
        if kept.count() < IDLE_MAX {
            kept.wires.push((wire, moment()));
        }
    }

    /// A connection that was just made. One that was made to leave HTTP is not kept if it does not:
    /// others may have been promised another version.
    pub(super) fn fresh(self: &Arc<Self>, dialled: Dialled, purpose: Purpose) -> Way {
        match dialled {
            Dialled::Wire(wire) => Way::Wire(wire),
            Dialled::One(requests) => {
                let upstream = (purpose != Purpose::Upgrade).then(|| Arc::clone(self));
                Way::Loan(Loan::One(One { requests, upstream }))
            }
            Dialled::Many(requests) => {
                let mut shared = Shared { requests, streams: Arc::default(), idle_since: None };
                let stream = shared.stream();
                lock(&self.kept).shared.push(shared);
                Way::Loan(Loan::Many(stream))
            }
        }
    }
}

/// A connection of HTTP/1.1 that was kept.
enum Found {
    Wire(Wire),
    One(http1::SendRequest<Sending>),
}

impl Kept {
    /// How many connections of HTTP/1.1 there are.
    fn count(&self) -> usize {
        self.wires.len() + self.idle.len()
    }

    /// One of them, rather one that is for nothing else. But any will do: it would be a pity to make another.
    fn take(&mut self, purpose: Purpose) -> Option<Found> {
        let Self { wires, idle, .. } = self;
        let mut wire = || wires.pop().map(|(wire, _)| Found::Wire(wire));
        let mut one = || idle.pop().map(|it| Found::One(it.requests));
        if purpose == Purpose::Plain { wire().or_else(one) } else { one().or_else(wire) }
    }

    /// A place on a connection of HTTP/2 that has one.
    fn stream(&mut self) -> Option<Stream> {
        self.shared.retain(|it| !it.requests.is_closed());
        self.shared.iter_mut().find(|it| it.has_room()).map(Shared::stream)
    }
}

impl Shared {
    fn has_room(&self) -> bool {
        self.streams.load(Ordering::Relaxed) < REQUESTS_MAX
    }

    fn stream(&mut self) -> Stream {
        self.idle_since = None;
        self.streams.fetch_add(1, Ordering::Relaxed);
        Stream { requests: self.requests.clone(), streams: Arc::clone(&self.streams) }
    }
}

/// A connection for the next request.
pub(super) enum Way {
    /// If that has no body.
    Wire(Wire),
    Loan(Loan),
}

/// A connection for one request of any kind and its response. One that is dropped before their end is closed, or
/// in HTTP/2 the request on it.
pub(super) enum Loan {
    One(One),
    Many(Stream),
}

/// A connection that carries one request at a time.
pub(super) struct One {
    requests: http1::SendRequest<Sending>,
    /// Who keeps it afterwards, if anybody does.
    upstream: Option<Arc<Upstream>>,
}

/// A place on a connection that carries many.
pub(super) struct Stream {
    requests: http2::SendRequest<Sending>,
    streams: Arc<AtomicUsize>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Loan {
    pub(super) fn is_http2(&self) -> bool {
        matches!(self, Self::Many(_))
    }

    /// Sends a request. One of which nothing was sent comes back with the error.
    pub(super) fn send(&mut self, request: Request<Sending>) -> impl Future<Output = Sent> + use<> {
        match self {
            Self::One(One { requests, .. }) => {
                Answer::OfOne { answer: requests.try_send_request(request) }
            }
            Self::Many(Stream { requests, .. }) => {
                Answer::OfMany { answer: requests.try_send_request(request) }
            }
        }
    }

    /// Keeps the connection for the next request: both this one and its response are complete.
    pub(super) fn end(self) {
        let Self::One(One { requests, upstream: Some(upstream) }) = self else { return };
        if requests.is_closed() {
            return;
        }
        let mut kept = lock(&upstream.kept);
        if kept.count() < IDLE_MAX {
            kept.idle.push(Idle { requests, since: moment() });
        }
    }
}

/// What comes of sending a request.
type Sent = Result<Response<Incoming>, TrySendError<Request<Sending>>>;

pin_project! {
    /// An answer over either kind of connection. Waiting for it in an `async fn` would take room for
    /// the request twice.
    #[project = AnswerProjection]
    enum Answer<A, B> {
        OfOne { #[pin] answer: A },
        OfMany { #[pin] answer: B },
    }
}

impl<A: Future<Output = Sent>, B: Future<Output = Sent>> Future for Answer<A, B> {
    type Output = Sent;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Sent> {
        match self.project() {
            AnswerProjection::OfOne { answer } => answer.poll(context),
            AnswerProjection::OfMany { answer } => answer.poll(context),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
