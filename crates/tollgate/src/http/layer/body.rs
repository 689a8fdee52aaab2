//! Bodies on their way through, and what ends with them.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::bill::Bill;
use super::flow::{Flow, Passing};
use super::refusal;
use crate::Slot;

/// What a body breaks with: its own error, or ours.
pub(super) type BoxError = Box<dyn Error + Send + Sync>;

pin_project! {
    /// A request's body as the service gets it. Messages of gRPC in it are counted if the policy asks
    /// for that, and it breaks with [`Exhausted`] if there must be no more of them.
    pub struct RequestBody<B> {
        #[pin]
        body: B,
        flow: Option<Box<Flow>>,
    }
}

impl<B> RequestBody<B> {
    pub(super) fn new(body: B, flow: Option<Box<Flow>>) -> Self {
        Self { body, flow }
    }
}

impl<B> Body for RequestBody<B>
where
    B: Body,
    B::Data: From<Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = B::Data;
    type Error = BoxError;

    #[inline]
    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let this = self.project();
        let Some(flow) = this.flow else {
            return this.body.poll_frame(context).map_err(Into::into);
        };
        Poll::Ready(match ready!(flow.poll_frame(this.body, context)) {
            Passing::Frame(frame) => Some(Ok(frame)),
            Passing::Broken(error) => Some(Err(error)),
            Passing::End => None,
            Passing::Closed(limit) => Some(Err(Box::new(Exhausted { limit }))),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.flow.as_ref().is_none_or(|flow| flow.is_clear()) && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        size_hint(&self.body, self.flow.is_some())
    }
}

impl<B> fmt::Debug for RequestBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestBody")
    }
}

pin_project! {
    /// The service's body as it is, or that of a refusal. A concurrency slot that the request holds
    /// comes back at its end, or when it is dropped before; so does what it was charged too much.
    pub struct ResponseBody<R> {
        #[pin]
        kind: Kind<R>,
    }
}

pin_project! {
    #[project = KindProjection]
    enum Kind<R> {
        Passed {
            #[pin]
            body: R,
            slot: Option<Slot>,
            watched: Option<Box<Watched>>,
        },
        Refusal { text: Bytes },
        Ended,
    }
}

/// A body that is looked at as it passes.
pub(super) struct Watched {
    pub(super) bill: Option<Bill>,
    pub(super) flow: Option<Flow>,
    pub(super) is_grpc: bool,
}

impl<R> ResponseBody<R> {
    pub(super) fn passed(body: R, slot: Option<Slot>, watched: Option<Box<Watched>>) -> Self {
        Self { kind: Kind::Passed { body, slot, watched } }
    }

    pub(super) fn refusal(text: Bytes) -> Self {
        Self { kind: Kind::Refusal { text } }
    }
}

/// What comes next of a body.
type Next<D> = Option<Result<Frame<D>, BoxError>>;

impl<R> Body for ResponseBody<R>
where
    R: Body,
    R::Data: From<Bytes>,
    R::Error: Into<BoxError>,
{
    type Data = R::Data;
    type Error = BoxError;

    #[inline]
    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Next<R::Data>> {
        let mut kind = self.project().kind;
        match kind.as_mut().project() {
            KindProjection::Passed { body, slot, watched: None } => {
                let frame = ready!(body.poll_frame(context));
                if !matches!(frame, Some(Ok(_))) {
                    drop(slot.take());
                }
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            KindProjection::Passed { body, watched: Some(watched), .. } => {
                let (next, is_over) = ready!(watched.poll_frame(body, context));
                if is_over {
                    // Everything that the request holds ends here.
                    kind.set(Kind::Ended);
                }
                Poll::Ready(next)
            }
            KindProjection::Refusal { text } => {
                let text = std::mem::take(text);
                Poll::Ready((!text.is_empty()).then(|| Ok(Frame::data(text.into()))))
            }
            KindProjection::Ended => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Passed { body, watched, .. } => {
                watched.as_ref().is_none_or(|watched| watched.is_clear()) && body.is_end_stream()
            }
            Kind::Refusal { text } => text.is_empty(),
            Kind::Ended => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Passed { body, watched, .. } => {
                size_hint(body, watched.as_ref().is_some_and(|watched| watched.flow.is_some()))
            }
            Kind::Refusal { text } => SizeHint::with_exact(text.len() as u64),
            Kind::Ended => SizeHint::with_exact(0),
        }
    }
}

impl<R> fmt::Debug for ResponseBody<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseBody")
    }
}

impl Watched {
    /// What comes next of a body, and whether that is the last.
    fn poll_frame<R>(
        &mut self,
        body: Pin<&mut R>,
        context: &mut Context<'_>,
    ) -> Poll<(Next<R::Data>, bool)>
    where
        R: Body,
        R::Data: From<Bytes>,
        R::Error: Into<BoxError>,
    {
        let outgrown = match &mut self.bill {
            Some(bill) => ready!(bill.poll_charged(context)).cloned(),
            None => None,
        };
        let passing = match &mut self.flow {
            Some(flow) => ready!(flow.poll_frame(body, context)),
            None => Passing::of(ready!(body.poll_frame(context))),
        };
        let is_data = matches!(&passing, Passing::Frame(frame) if frame.is_data());
        if !is_data && let Some(exhausted) = self.flow.as_ref().and_then(|it| it.known().silenced())
        {
            return Poll::Ready((Some(Ok(exhausted.in_grpc())), true));
        }
        Poll::Ready(match (passing, outgrown, &mut self.bill) {
            (Passing::Frame(_), Some(limit), _) if is_data => {
                let exhausted = Exhausted { limit: Some(limit) };
                let end =
                    if self.is_grpc { Ok(exhausted.in_grpc()) } else { Err(exhausted.into()) };
                (Some(end), true)
            }
            (Passing::Frame(frame), _, Some(bill)) => (Some(Ok(bill.read(frame))), false),
            (Passing::Frame(frame), _, None) => (Some(Ok(frame)), false),
            (Passing::Broken(error), ..) => (Some(Err(error)), true),
            (Passing::Closed(limit), ..) if self.is_grpc => {
                (Some(Ok(Exhausted { limit }.in_grpc())), true)
            }
            // Events end after the last that was whole.
            (Passing::Closed(_) | Passing::End, ..) => (None, true),
        })
    }

    /// Whether all that has come has passed.
    fn is_clear(&self) -> bool {
        self.flow.as_ref().is_none_or(Flow::is_clear)
    }
}

/// Why a body ended before its end: a limit has no more for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exhausted {
    pub(super) limit: Option<Arc<str>>,
}

impl Exhausted {
    /// The limit's name; none if it was the policy's `deny` list, or another that allows nothing.
    pub fn limit(&self) -> Option<&str> {
        self.limit.as_deref()
    }

    /// What ends a response of gRPC.
    fn in_grpc<D>(&self) -> Frame<D> {
        Frame::trailers(refusal::grpc_trailers(&self.to_string()))
    }
}

impl fmt::Display for Exhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.limit {
            Some(limit) => write!(f, "limit {limit:?} has no more for the rest of this"),
            None => f.write_str("the policy allows no more of this"),
        }
    }
}

impl Error for Exhausted {}

/// How much is to come of a body. Of one that may end early nobody can tell.
fn size_hint<B: Body>(body: &B, may_end_early: bool) -> SizeHint {
    if may_end_early { SizeHint::default() } else { body.size_hint() }
}
