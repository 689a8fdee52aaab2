//! A request that is still on its way.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming};
use tokio::time::timeout;
use tonic::Status;

use super::bounds::MESSAGE_WAIT_MAX;
use crate::stage::Drain;

/// What a client sends, for as long as it may take: a call whose messages never come would be held
/// for ever, and hold us when we drain.
pub(super) struct Arriving {
    body: Incoming,
    /// Why nothing more is waited for, as soon as nothing is.
    given_up: Pin<Box<dyn Future<Output = Status> + Send>>,
}

impl Arriving {
    pub(super) fn new(body: Incoming, mut drain: Drain) -> Self {
        let given_up = Box::pin(async move {
            match timeout(MESSAGE_WAIT_MAX, drain.started()).await {
                Ok(()) => Status::unavailable("this server is shutting down"),
                Err(_) => Status::deadline_exceeded("the messages took too long to arrive"),
            }
        });
        Self { body, given_up }
    }
}

impl Body for Arriving {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if frame.is_ready() {
            let cut_off = |_| Status::cancelled("the call was cut off");
            return frame.map(|frame| frame.map(|frame| frame.map_err(cut_off)));
        }
        self.given_up.as_mut().poll(context).map(|why| Some(Err(why)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
