//! The rules around reqwest.

use std::pin::Pin;

use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{Error, Middleware, Next, Result};

use crate::clock;
use crate::rules::{Call, Ended, NotStarted, Repeatable, Rules};

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
            let call = Call { host, method, path: url.path(), fields, extensions };
            let is_marked = extensions.get::<Repeatable>().is_some();
            (is_marked || call.is_idempotent(), self.rules.begin(&call))
        };
        // What the attempt before brought, should the next one not be made; its body holds a connection.
        let mut last = None;
        loop {
            let turn = course.turn().await;
            let started = turn.and_then(|pass| Ok((course.start(&pass, None)?, pass)));
            let (permits, pass) = match started {
                Ok(started) => started,
                Err(why) => return last.unwrap_or(Err(refusal(why))),
            };
            drop(last.take());
            let spare = if is_repeatable { request.try_clone() } else { None };
            let answer = next.clone().run(request, extensions).await;
            let ended = match &answer {
                Ok(answer) => Ended::Answered(answer.status(), answer.headers()),
                Err(error) if is_ours(error, &self.rules) => Ended::Ours,
                Err(_) => Ended::Lost,
            };
            let then = course.end(pass, permits, ended, spare.is_some());
            let (Some(then), Some(copy)) = (then, spare) else { return answer };
            last = Some(answer);
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

/// Whether a request failed on this side, where it would fail again and whom it asks knows nothing of it.
fn is_ours(error: &Error, rules: &Rules) -> bool {
    let is_known = match error {
        Error::Reqwest(error) if error.is_builder() || error.is_redirect() => return true,
        Error::Reqwest(_) => false,
        Error::Middleware(_) => true,
    };
    rules.is_ours(error).unwrap_or(is_known)
}
