//! A request on its way to its response.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use ::http::header::ACCEPT_ENCODING;
use ::http::{HeaderValue, Request, Response};
use bytes::Bytes;
use http_body::Body;
use pin_project_lite::pin_project;
use tokio::runtime::Handle;
use tokio::time::Sleep;
use tower_service::Service;

use super::Shared;
use super::ask::{Admitted, Asker, Passage};
use super::body::{RequestBody, ResponseBody};
use super::hold::Ticket;
use crate::{Verdict, Waiting};

pin_project! {
    /// The response of a [`Tollgate`](super::Tollgate), on its way.
    pub struct ResponseFuture<S, B>
    where
        S: Service<Request<RequestBody<B>>>,
    {
        #[pin]
        state: State<S, B>,
    }
}

pin_project! {
    // What most requests never are is in a box, so that they need no room for it.
    #[project = StateProjection]
    enum State<S, B>
    where
        S: Service<Request<RequestBody<B>>>,
    {
        Refused { answer: Option<Response<Bytes>> },
        Asking { asking: Box<Asking<S, B>> },
        Held { held: Pin<Box<Held<S, B>>> },
        Called {
            #[pin]
            response: S::Future,
            passage: Option<Passage>,
        },
    }
}

pin_project! {
    /// A request that waits for its moment.
    struct Held<S, B> {
        // Before the call, so that a place is given up before anything else ends.
        ticket: Ticket,
        #[pin]
        timer: Sleep,
        call: Option<(Call<S, B>, Passage)>,
    }
}

/// A request, and the service that was made ready for it.
pub(super) struct Call<S, B> {
    pub(super) service: S,
    pub(super) request: Request<RequestBody<B>>,
}

impl<S, B> ResponseFuture<S, B>
where
    S: Service<Request<RequestBody<B>>>,
{
    pub(super) fn refused(answer: Response<Bytes>) -> Self {
        Self { state: State::Refused { answer: Some(answer) } }
    }

    /// The response to a request about which somebody is being asked.
    pub(super) fn asking(asking: Asking<S, B>) -> Self {
        Self { state: State::Asking { asking: Box::new(asking) } }
    }

    /// The response to a request that was judged. If it has to wait, `ready` gives the service that
    /// it waits for.
    pub(super) fn judged(
        admitted: Admitted,
        service: &mut S,
        ready: impl FnOnce(&mut S) -> S,
        request: Request<RequestBody<B>>,
    ) -> Self {
        let state = match admitted {
            Admitted::Passed(passage) => State::called(service, request, passage),
            Admitted::Held(ticket, passage) => {
                State::held(ticket, passage, Call { service: ready(service), request })
            }
            Admitted::Refused(answer) => State::Refused { answer: Some(answer) },
        };
        Self { state }
    }
}

impl<S, B> State<S, B>
where
    S: Service<Request<RequestBody<B>>>,
{
    fn called(service: &mut S, mut request: Request<RequestBody<B>>, passage: Passage) -> Self {
        if passage.reads_response() {
            // What is packed cannot be read, and who asks for it so must not go uncounted.
            let plain = HeaderValue::from_static("identity");
            request.headers_mut().insert(ACCEPT_ENCODING, plain);
        }
        Self::Called { response: service.call(request), passage: Some(passage) }
    }

    fn held(ticket: Ticket, passage: Passage, call: Call<S, B>) -> Self {
        let timer = ticket.timer();
        Self::Held { held: Box::pin(Held { ticket, timer, call: Some((call, passage)) }) }
    }
}

impl<S, B, R> Future for ResponseFuture<S, B>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>>,
    R: Body,
{
    type Output = Result<Response<ResponseBody<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        const ONCE: &str = "a response is not polled for once it was given";
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProjection::Refused { answer } => {
                    let answer = answer.take().expect(ONCE);
                    return Poll::Ready(Ok(answer.map(ResponseBody::refusal)));
                }
                StateProjection::Asking { asking } => {
                    let (admitted, mut call) = ready!(asking.poll(context));
                    match admitted {
                        Admitted::Passed(passage) => {
                            State::called(&mut call.service, call.request, passage)
                        }
                        Admitted::Held(ticket, passage) => State::held(ticket, passage, call),
                        Admitted::Refused(answer) => State::Refused { answer: Some(answer) },
                    }
                }
                StateProjection::Held { held } => {
                    let held = held.as_mut().project();
                    ready!(held.ticket.poll(held.timer, context));
                    let (mut call, passage) = held.call.take().expect(ONCE);
                    State::called(&mut call.service, call.request, passage)
                }
                StateProjection::Called { response, passage } => {
                    let response = ready!(response.poll(context));
                    let passage = passage.take().expect(ONCE);
                    return Poll::Ready(match response {
                        Ok(response) => Ok(passage.dress(response)),
                        Err(error) => {
                            passage.fail();
                            Err(error)
                        }
                    });
                }
            };
            state.set(next);
        }
    }
}

impl<S, B> fmt::Debug for ResponseFuture<S, B>
where
    S: Service<Request<RequestBody<B>>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseFuture")
    }
}

/// A verdict on its way, and the request that waits for it.
pub(super) struct Asking<S, B> {
    verdict: Option<Waiting<Verdict>>,
    shared: Arc<Shared>,
    waiting: Option<(Asker, Call<S, B>)>,
}

impl<S, B> Asking<S, B> {
    pub(super) fn new(
        verdict: Waiting<Verdict>,
        shared: Arc<Shared>,
        asker: Asker,
        call: Call<S, B>,
    ) -> Self {
        Self { verdict: Some(verdict), shared, waiting: Some((asker, call)) }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<(Admitted, Call<S, B>)> {
        const UNTIL: &str = "it is asked until it has answered";
        let verdict = self.verdict.as_mut().expect(UNTIL);
        let verdict = Box::new(ready!(Pin::new(verdict).poll(context)));
        self.verdict = None;
        let (asker, call) = self.waiting.take().expect(UNTIL);
        Poll::Ready((self.shared.admit(verdict, asker, call.request.headers()), call))
    }
}

impl<S, B> Drop for Asking<S, B> {
    /// Who goes away now is charged all the same, as one that had gone a moment later. But a slot
    /// that it is about to be given must not be held for nobody.
    fn drop(&mut self) {
        let (Some(verdict), Ok(runtime)) = (self.verdict.take(), Handle::try_current()) else {
            return;
        };
        let limiter = Arc::clone(&self.shared.limiter);
        runtime.spawn(async move {
            if let Some(lease) = verdict.await.take_lease() {
                drop(limiter.release(lease));
            }
        });
    }
}
