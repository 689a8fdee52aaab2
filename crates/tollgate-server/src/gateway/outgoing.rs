//! A response on its way to the client.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep_until};
use tollgate::http::layer::ResponseBody;

use super::activity::UnderWay;
use super::body::{BoxError, Coming};
use crate::moment::moment;

type Limited = ResponseBody<Coming>;

pin_project! {
    /// The body of a response, which marks its request as under way until its end and may not take
    /// longer than the request has.
    pub(super) struct Outgoing {
        #[pin]
        body: Kind,
        under_way: UnderWay,
        deadline: Option<Pin<Box<Sleep>>>,
    }
}

pin_project! {
    #[project = KindProjection]
    enum Kind {
        /// Of a request that was judged.
        Judged {
            #[pin]
            body: Limited,
        },
        /// Of one that was not, or not in time.
        Own {
            #[pin]
            body: Coming,
        },
    }
}

impl Outgoing {
    /// The response to a request that was judged.
    pub(super) fn judged(
        response: Response<Limited>,
        mut under_way: UnderWay,
        deadline: Option<Instant>,
    ) -> Response<Self> {
        under_way.answered();
        // Who has had its time is told so, and that takes a moment more.
        let deadline = deadline.filter(|it| *it > moment()).map(|it| Box::pin(sleep_until(it)));
        response.map(|body| Self { body: Kind::Judged { body }, under_way, deadline })
    }

    /// Our own answer to a request.
    pub(super) fn own(answer: Response<Coming>, under_way: UnderWay) -> Response<Self> {
        answer.map(|body| Self { body: Kind::Own { body }, under_way, deadline: None })
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
        if let Some(deadline) = this.deadline
            && deadline.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Some(Err("the request has had its time".into())));
        }
        match this.body.project() {
            KindProjection::Judged { body } => body.poll_frame(context),
            KindProjection::Own { body } => body.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            Kind::Judged { body } => body.is_end_stream(),
            Kind::Own { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Kind::Judged { body } => body.size_hint(),
            Kind::Own { body } => body.size_hint(),
        }
    }
}
