//! Bodies on their way through.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tollgate::http::layer::RequestBody;

use super::activity::{Activity, UnderWay};
use super::bounds::SENT_AGAIN_BYTES_MAX;
use super::fields;
use super::pool::Loan;
use super::wire::{self, Reading};

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a request, as the layer hands it on.
pub(super) type Received = RequestBody<Incoming>;

/// The body of a request on its way to a server.
pub(super) enum Sending {
    /// There is none, so that the request may be sent once more.
    Nothing,
    /// What the client sends.
    Passing { body: Received, progress: Arc<Progress>, _under_way: UnderWay },
    /// What was sent already, to a server that did not look at it.
    Again(Bytes),
}

/// How far a body has got.
#[derive(Debug, Default)]
pub(super) struct Progress {
    has_moved: AtomicBool,
    has_ended: AtomicBool,
    has_failed: AtomicBool,
    /// All of what was sent, if it is kept.
    sent: Mutex<Option<Vec<u8>>>,
}

impl Progress {
    /// Whether anything was sent since this was last asked.
    pub(super) fn has_moved(&self) -> bool {
        self.has_moved.swap(false, Ordering::Relaxed)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Keeps what is sent from now on, as long as it is little.
    pub(super) fn keep(&self) {
        *self.sent() = Some(Vec::new());
    }

    /// Keeps nothing any more.
    pub(super) fn forget(&self) {
        *self.sent() = None;
    }

    /// All of the body, if it has ended and was kept.
    pub(super) fn whole(&self) -> Option<Bytes> {
        let sent = self.sent().take()?;
        self.has_ended().then(|| sent.into())
    }

    fn note<E>(&self, frame: &Option<Result<Frame<Bytes>, E>>) {
        let mut sent = self.sent();
        let (Some(kept), Some(frame)) = (&mut *sent, frame) else { return };
        match frame.as_ref().ok().and_then(Frame::data_ref) {
            Some(data) if kept.len() + data.len() <= SENT_AGAIN_BYTES_MAX => {
                kept.extend_from_slice(data);
            }
            // Too much, or more than bytes.
            _ => *sent = None,
        }
    }

    fn sent(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
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
            Self::Passing { progress, .. } => Some(Arc::clone(progress)),
            Self::Nothing | Self::Again(_) => None,
        }
    }
}

impl Sending {
    /// The body of a request on its way.
    pub(super) fn new(body: Received, activity: &Arc<Activity>) -> Self {
        if body.is_end_stream() {
            return Self::Nothing;
        }
        let _under_way = UnderWay::body(activity);
        Self::Passing { body, progress: Arc::default(), _under_way }
    }
}

/// Whether nothing comes behind this, nor is asked for.
fn is_last<E>(frame: &Option<Result<Frame<Bytes>, E>>) -> bool {
    frame.as_ref().is_none_or(|frame| frame.as_ref().is_ok_and(Frame::is_trailers))
}

/// All bytes at once, and then nothing.
fn whole<E>(bytes: &mut Bytes) -> Option<Result<Frame<Bytes>, E>> {
    let bytes = std::mem::take(bytes);
    (!bytes.is_empty()).then(|| Ok(Frame::data(bytes)))
}

impl Body for Sending {
    type Data = Bytes;
    type Error = <Received as Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let (body, progress) = match &mut *self {
            Self::Nothing => return Poll::Ready(None),
            Self::Passing { body, progress, .. } => (body, progress),
            Self::Again(bytes) => return Poll::Ready(whole(bytes)),
        };
        let mut frame = ready!(Pin::new(&mut *body).poll_frame(context));
        if let Some(Ok(frame)) = &mut frame
            && let Some(trailers) = frame.trailers_mut()
        {
            fields::pass_on_trailers(trailers);
        }
        progress.has_moved.store(true, Ordering::Relaxed);
        progress.note(&frame);
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
            Self::Again(bytes) => bytes.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Nothing => SizeHint::with_exact(0),
            Self::Passing { body, .. } => body.size_hint(),
            Self::Again(bytes) => SizeHint::with_exact(bytes.len() as u64),
        }
    }
}

/// The body of a response that has just begun.
pub(super) enum Arriving {
    /// As hyper reads it, what it comes over, and how far its request has got.
    Over { body: Incoming, loan: Loan, request: Option<Arc<Progress>> },
    /// As we read it, since its request has no body.
    Wire(wire::Answer),
}

/// The body of a response.
pub(super) enum Coming {
    /// What a server sends.
    Passing { body: Incoming, lent: Option<Lent> },
    /// The same, where its request has no body.
    Reading(Box<Reading>),
    /// Our own, or one that has come as a whole.
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
    pub(super) fn new(arriving: Arriving) -> Self {
        let (body, lent) = match arriving {
            Arriving::Over { body, loan, request } => (body, Lent { loan, request }),
            Arriving::Wire(wire::Answer::Whole(bytes)) => return Self::Own(bytes),
            Arriving::Wire(wire::Answer::Reading(reading)) => return Self::Reading(reading),
        };
        if body.is_end_stream() {
            lent.end();
            return Self::Passing { body, lent: None };
        }
        Self::Passing { body, lent: Some(lent) }
    }
}

impl Body for Coming {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Passing { body, lent } => {
                let frame = ready!(Pin::new(&mut *body).poll_frame(context));
                if let Some(Err(_)) = &frame {
                    drop(lent.take());
                } else if is_last(&frame) || body.is_end_stream() {
                    lent.take().into_iter().for_each(Lent::end);
                }
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Self::Reading(reading) => {
                Pin::new(&mut **reading).poll_frame(context).map_err(Into::into)
            }
            Self::Own(bytes) => Poll::Ready(whole(bytes)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Passing { body, .. } => body.is_end_stream(),
            Self::Reading(reading) => reading.is_end_stream(),
            Self::Own(bytes) => bytes.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Passing { body, .. } => body.size_hint(),
            Self::Reading(reading) => reading.size_hint(),
            Self::Own(bytes) => SizeHint::with_exact(bytes.len() as u64),
        }
    }
}
