//! A server without a socket: a tower service that answers as it is told to.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use tokio::time::Instant;
use tower_service::Service;

use super::{fields, now};

/// Sends a request as a service wants it: when it is ready.
pub(crate) async fn call<S: Service<R>, R>(
    client: &mut S,
    request: R,
) -> Result<S::Response, S::Error> {
    poll_fn(|context| client.poll_ready(context)).await?;
    client.call(request).await
}

/// What a request asks, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) after: Duration,
    pub(crate) method: Method,
    pub(crate) host: String,
    pub(crate) body: String,
}

/// The connection was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost;

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the connection was lost")
    }
}

impl std::error::Error for Lost {}

/// A status and fields, one a line; or no answer at all.
pub(crate) type Answer = Option<(u16, String)>;

pub(crate) fn answer(status: u16, fields: &str) -> Answer {
    Some((status, fields.to_owned()))
}

type Answering = dyn FnMut(usize, &Arrival) -> Answer + Send;

#[derive(Clone)]
pub(crate) struct Server {
    started: Instant,
    takes: Duration,
    arrivals: Arc<Mutex<Vec<Arrival>>>,
    answering: Arc<Mutex<Answering>>,
}

impl Server {
    /// Answers the n-th request, counted from 0, after `takes`.
    pub(crate) fn new(
        takes: Duration,
        answering: impl FnMut(usize, &Arrival) -> Answer + Send + 'static,
    ) -> Self {
        let arrivals = Arc::default();
        Self { started: now(), takes, arrivals, answering: Arc::new(Mutex::new(answering)) }
    }

    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    pub(crate) fn arrivals(&self) -> MutexGuard<'_, Vec<Arrival>> {
        self.arrivals.lock().expect("nobody panics with it")
    }

    fn answer(&self, request: &Request<String>) -> Answer {
        let arrival = Arrival {
            after: now() - self.started,
            method: request.method().clone(),
            host: request.uri().host().unwrap_or_default().to_owned(),
            body: request.body().clone(),
        };
        let mut arrivals = self.arrivals();
        let number = arrivals.len();
        arrivals.push(arrival.clone());
        drop(arrivals);
        self.answering.lock().expect("nobody panics with it")(number, &arrival)
    }
}

impl Service<Request<String>> for Server {
    type Response = Response<()>;
    type Error = Lost;
    type Future = Pin<Box<dyn Future<Output = Result<Response<()>, Lost>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<String>) -> Self::Future {
        let server = self.clone();
        Box::pin(async move {
            let answer = server.answer(&request);
            tokio::time::sleep_until(now() + server.takes).await;
            let (status, lines) = answer.ok_or(Lost)?;
            let mut response = Response::new(());
            *response.status_mut() = StatusCode::from_u16(status).expect("a status");
            *response.headers_mut() = fields(&lines);
            Ok(response)
        })
    }
}
