//! A response on its way to the client.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep_until};
use tollgate::http::layer::ResponseBody;

use super::activity::UnderWay;
use super::body::Coming;

type Limited = ResponseBody<Coming>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

pin_project! {
    /// The body of a response, which marks its request as under way until its end and may not take
    /// longer than the request has.
    pub(super) struct Outgoing {
        #[pin]
        body: Option<Limited>,
        under_way: UnderWay,
        deadline: Option<Pin<Box<Sleep>>>,
    }
}

impl Outgoing {
    /// The body of an answered request; none for a response that is all head.
    pub(super) fn new(
        body: Option<Limited>,
        mut under_way: UnderWay,
        deadline: Option<Instant>,
    ) -> Self {
        under_way.answered();
        Self { body, under_way, deadline: deadline.map(|it| Box::pin(sleep_until(it))) }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.project();
        let Some(body) = this.body.as_pin_mut() else { return Poll::Ready(None) };
        if let Poll::Ready(frame) = body.poll_frame(context) {
            return Poll::Ready(frame);
        }
        let Some(deadline) = this.deadline else { return Poll::Pending };
        ready!(deadline.as_mut().poll(context));
        Poll::Ready(Some(Err("the request has had its time".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}
