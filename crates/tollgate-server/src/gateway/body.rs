//! Bodies on their way through.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tollgate::http::layer::RequestBody;

use super::pool::Loan;

/// The body of a request, as the layer hands it on.
pub(super) type Received = RequestBody<Incoming>;

/// The body of a request on its way to a server.
pub(super) enum Sending {
    /// There is none, so that the request may be sent once more.
    Nothing,
    /// What the client sends.
    Passing { body: Received, progress: Arc<Progress> },
}

/// How far a body has got.
#[derive(Debug, Default)]
pub(super) struct Progress {
    has_moved: AtomicBool,
    has_ended: AtomicBool,
    has_failed: AtomicBool,
}

impl Progress {
    /// Whether anything was sent since this was last asked.
    pub(super) fn has_moved(&self) -> bool {
        self.has_moved.swap(false, Ordering::Relaxed)
    }

    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Whether the client broke it off, or sent what is no body.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }
}

impl Sending {
    /// How far it has got, for whoever waits for the response.
    pub(super) fn progress(&self) -> Option<Arc<Progress>> {
        match self {
            Self::Nothing => None,
            Self::Passing { progress, .. } => Some(Arc::clone(progress)),
        }
    }
}

impl From<Received> for Sending {
    fn from(body: Received) -> Self {
        if body.is_end_stream() {
            return Self::Nothing;
        }
        Self::Passing { body, progress: Arc::default() }
    }
}

/// Whether nothing comes behind this, nor is asked for.
fn is_last<E>(frame: &Option<Result<Frame<Bytes>, E>>) -> bool {
    frame.as_ref().is_none_or(|frame| frame.as_ref().is_ok_and(Frame::is_trailers))
}

impl Body for Sending {
    type Data = Bytes;
    type Error = <Received as Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Self::Passing { body, progress } = &mut *self else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(&mut *body).poll_frame(context));
        progress.has_moved.store(true, Ordering::Relaxed);
        if matches!(frame, Some(Err(_))) {
            progress.has_failed.store(true, Ordering::Relaxed);
        } else if is_last(&frame) || body.is_end_stream() {
            progress.has_ended.store(true, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Nothing => true,
            Self::Passing { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Nothing => SizeHint::with_exact(0),
            Self::Passing { body, .. } => body.size_hint(),
        }
    }
}

/// The body of a response.
pub(super) enum Coming {
    /// What a server sends.
    Passing { body: Incoming, lent: Option<Lent> },
    /// Our own.
    Own(Bytes),
}

/// The connection that a response comes over, and how far its request has got.
pub(super) struct Lent {
    loan: Loan,
    request: Option<Arc<Progress>>,
}

impl Lent {
    /// The response is complete. If the request is so too, others may have the connection: who gets
    /// it must not wait for the end of somebody else's body.
    fn end(self) {
        if self.request.is_none_or(|request| request.has_ended()) {
            self.loan.end();
        }
    }
}

impl Coming {
    pub(super) fn passing(body: Incoming, loan: Loan, request: Option<Arc<Progress>>) -> Self {
        let lent = Lent { loan, request };
        if body.is_end_stream() {
            lent.end();
            return Self::Passing { body, lent: None };
        }
        Self::Passing { body, lent: Some(lent) }
    }
}

impl Body for Coming {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut *self {
            Self::Passing { body, lent } => {
                let frame = ready!(Pin::new(&mut *body).poll_frame(context));
                if let Some(Err(_)) = &frame {
                    drop(lent.take());
                } else if is_last(&frame) || body.is_end_stream() {
                    lent.take().into_iter().for_each(Lent::end);
                }
                Poll::Ready(frame)
            }
            Self::Own(bytes) => {
                let bytes = std::mem::take(bytes);
                Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Passing { body, .. } => body.is_end_stream(),
            Self::Own(bytes) => bytes.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Passing { body, .. } => body.size_hint(),
            Self::Own(bytes) => SizeHint::with_exact(bytes.len() as u64),
        }
    }
}
