//! The rules around reqwest.

use std::pin::Pin;

use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{Error, Middleware, Next, Result};

use crate::clock;
use crate::rules::{Call, NotStarted, Repeatable, Rules};

/// Puts [`Rules`] around a reqwest client, as a `reqwest-middleware`.
///
/// A request is made again only if that is safe: its method is idempotent, it has an
/// `Idempotency-Key` or is [`Repeatable`], and its body is not a stream.
#[derive(Clone, Debug)]
pub struct ClientMiddleware {
    rules: Rules,
}

impl ClientMiddleware {
    /// Under these rules.
    pub fn new(rules: Rules) -> Self {
        Self { rules }
    }

    async fn send(
        &self,
        mut request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let (is_repeatable, mut course) = {
            let url = request.url();
            let authority = url.authority();
            // What stands before an @ is a secret, and whom it asks is the same without.
            let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
            let (method, fields) = (request.method(), request.headers());
            let call = Call { host, method, path: url.path(), fields };
            let is_marked = extensions.get::<Repeatable>().is_some();
            (is_marked || call.is_idempotent(), self.rules.begin(&call))
        };
        loop {
            let started = course.start().await.map_err(refusal)?;
            let spare = if is_repeatable { request.try_clone() } else { None };
            let answer = next.clone().run(request, extensions).await;
            let head = answer.as_ref().ok().map(|answer| (answer.status(), answer.headers()));
            let may_repeat = spare.is_some() && !answer.as_ref().is_err_and(is_ours);
            let (Some(then), Some(copy)) = (course.end(started, head, may_repeat), spare) else {
                return answer;
            };
            drop(answer);
            clock::wait_until(then).await;
            request = copy;
        }
    }
}

impl Middleware for ClientMiddleware {
    // As the trait's own macro writes it.
    fn handle<'a, 'b, 'c, 'f>(
        &'a self,
        request: Request,
        extensions: &'b mut Extensions,
        next: Next<'c>,
    ) -> Pin<Box<dyn Future<Output = Result<Response>> + Send + 'f>>
    where
        'a: 'f,
        'b: 'f,
        'c: 'f,
        Self: 'f,
    {
        Box::pin(self.send(request, extensions, next))
    }
}

fn refusal(why: NotStarted) -> Error {
    match why {
        NotStarted::Throttled(throttled) => Error::middleware(throttled),
        NotStarted::Open(open) => Error::middleware(open),
    }
}

/// Whether a request failed on this side, where it would fail again.
fn is_ours(error: &Error) -> bool {
    match error {
        Error::Reqwest(error) => error.is_builder() || error.is_redirect(),
        Error::Middleware(_) => true,
    }
}
