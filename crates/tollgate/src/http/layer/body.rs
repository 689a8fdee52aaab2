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
use super::refusal;
use crate::Slot;

/// What a body breaks with: its own error, or ours.
pub(super) type BoxError = Box<dyn Error + Send + Sync>;

pin_project! {
    /// A request's body as the service gets it.
    pub struct RequestBody<B> {
        #[pin]
        body: B,
    }
}

impl<B> RequestBody<B> {
    pub(super) fn new(body: B) -> Self {
        Self { body }
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
        self.project().body.poll_frame(context).map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
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
    pub(super) bill: Bill,
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
            Kind::Passed { body, .. } => body.is_end_stream(),
            Kind::Refusal { text } => text.is_empty(),
            Kind::Ended => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Passed { body, .. } => body.size_hint(),
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
        let outgrown = ready!(self.bill.poll_charged(context)).cloned();
        Poll::Ready(match (ready!(body.poll_frame(context)), outgrown) {
            (Some(Ok(frame)), Some(limit)) if frame.is_data() => (Some(self.cut(limit)), true),
            (Some(Ok(frame)), _) => (Some(Ok(self.bill.read(frame))), false),
            (Some(Err(error)), _) => (Some(Err(error.into())), true),
            (None, _) => (None, true),
        })
    }

    /// The end of a body that must not go on.
    fn cut<D>(&self, limit: Arc<str>) -> Result<Frame<D>, BoxError> {
        let exhausted = Exhausted { limit };
        if !self.is_grpc {
            return Err(Box::new(exhausted));
        }
        Ok(Frame::trailers(refusal::grpc_trailers(&exhausted.to_string())))
    }
}

/// Why a body ended before its end: a limit has no more for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exhausted {
    limit: Arc<str>,
}

impl Exhausted {
    /// The limit's name.
    pub fn limit(&self) -> &str {
        &self.limit
    }
}

impl fmt::Display for Exhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "limit {:?} has no more for the rest of this", self.limit)
    }
}

impl Error for Exhausted {}
