//! What is sent back.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use hyper::body::{Body as HttpBody, Frame};

use super::failure::{Code, Failure, GRPC_STATUS};
use crate::stage::Drain;

const OK: HeaderValue = HeaderValue::from_static("0");

/// What is sent back.
pub(super) enum Body {
    Empty,
    /// One message, then the trailers that say that all is well.
    Message(Bytes),
    Trailers(HeaderMap),
    /// What tonic sends, at most until we drain: a stream that never ends would hold us.
    Stream(Box<Stream>),
}

pub(super) struct Stream {
    body: tonic::body::Body,
    drained: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Body {
    pub(super) const fn empty() -> Self {
        Self::Empty
    }

    pub(super) const fn message(bytes: Bytes) -> Self {
        Self::Message(bytes)
    }

    pub(super) fn stream(body: tonic::body::Body, mut drain: Drain) -> Self {
        let drained = Box::pin(async move { drain.started().await });
        Self::Stream(Box::new(Stream { body, drained }))
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        if let Self::Stream(stream) = &mut *self {
            let frame = Pin::new(&mut stream.body).poll_frame(context);
            if frame.is_ready() || stream.drained.as_mut().poll(context).is_pending() {
                return frame;
            }
            let over = Failure::new(Code::Unavailable, "this server is shutting down");
            *self = Self::Trailers(over.into_trailers());
        }
        Poll::Ready(match std::mem::replace(&mut *self, Self::Empty) {
            Self::Message(bytes) => {
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert(GRPC_STATUS, OK);
                *self = Self::Trailers(trailers);
                Some(Ok(Frame::data(bytes)))
            }
            Self::Trailers(trailers) => Some(Ok(Frame::trailers(trailers))),
            Self::Empty | Self::Stream(_) => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Message(_) | Self::Trailers(_) => false,
            Self::Stream(stream) => stream.body.is_end_stream(),
        }
    }
}
