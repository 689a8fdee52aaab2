//! All of it together: a request from its first attempt to its answer.
//!
//! ```text
//! Rules::begin      request → course       (which lane, which circuit)
//! Course::start     waits for its turn     (or: throttled, or: the circuit is open)
//! the attempt       request → answer
//! Course::end       answer → what it says  (budget to the lane, outcome to the circuit)
//! Retry             when to start again, if at all
//! ```

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, Method, StatusCode};
use tokio::time::Instant;

use crate::breaker::{Breaker, Circuit, Open, Outcome, Permit};
use crate::budget::Budget;
use crate::clock;
use crate::retry::{Cause, Retry, Series};
use crate::throttle::{Lane, Pass, Throttle, Throttled};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// How a client behaves: when it waits, when it tries again, whom it leaves alone.
///
/// Clones share what they know. Make one for a process, and give it to every client in it.
#[derive(Clone, Default)]
pub struct Rules {
    retry: Retry,
    throttle: Throttle,
    breaker: Breaker,
    throttle_by: Option<KeyOf>,
    break_by: Option<KeyOf>,
}

type KeyOf = Arc<dyn Fn(&Call<'_>) -> String + Send + Sync>;

/// What is known of a request before it is made.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Whom it asks: a host, with its port if it was said.
    pub host: &'a str,
    /// What it asks to do.
    pub method: &'a Method,
    /// With what.
    pub path: &'a str,
    /// Its fields.
    pub fields: &'a HeaderMap,
}

/// An extension of requests: this one may be made twice, whatever its method is.
///
/// Without it a request is made again only if its method is idempotent, or if it has an
/// `Idempotency-Key`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Repeatable;

impl Rules {
    /// Everything as [`Retry::new`], [`Throttle::new`] and [`Breaker::new`] have it, host by host.
    pub fn new() -> Self {
        Self::default()
    }

    /// When to try again.
    #[must_use]
    pub fn retry(self, retry: Retry) -> Self {
        Self { retry, ..self }
    }

    /// When to wait.
    #[must_use]
    pub fn throttle(self, throttle: Throttle) -> Self {
        Self { throttle, ..self }
    }

    /// Whom to leave alone.
    #[must_use]
    pub fn breaker(self, breaker: Breaker) -> Self {
        Self { breaker, ..self }
    }

    /// Which requests share a budget: those for which this is the same. All of one host, unless said;
    /// say host and API key where a process has several.
    #[must_use]
    pub fn throttle_by(self, key: impl Fn(&Call<'_>) -> String + Send + Sync + 'static) -> Self {
        Self { throttle_by: Some(Arc::new(key)), ..self }
    }

    /// Which requests fail together: those for which this is the same. All of one host, unless said.
    /// It is told when a circuit changes, so it must not be a secret.
    #[must_use]
    pub fn break_by(self, key: impl Fn(&Call<'_>) -> String + Send + Sync + 'static) -> Self {
        Self { break_by: Some(Arc::new(key)), ..self }
    }

    pub(crate) fn begin(&self, call: &Call<'_>) -> Course<'_> {
        let now = clock::now();
        Course {
            began: Some(now),
            retry: &self.retry,
            lane: self.throttle.lane(&key(self.throttle_by.as_ref(), call)),
            circuit: self.breaker.circuit(&key(self.break_by.as_ref(), call)),
            series: self.retry.begin(now),
        }
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { retry, throttle, breaker, .. } = self;
        let mut told = f.debug_struct("Rules");
        told.field("retry", retry).field("throttle", throttle).field("breaker", breaker);
        told.finish_non_exhaustive()
    }
}

fn key<'a>(key_of: Option<&KeyOf>, call: &Call<'a>) -> Cow<'a, str> {
    key_of.map_or(Cow::Borrowed(call.host), |key_of| Cow::Owned(key_of(call)))
}

impl Call<'_> {
    /// Whether making it twice does no more than making it once.
    pub(crate) fn is_idempotent(&self) -> bool {
        self.method.is_idempotent() || self.fields.contains_key(&IDEMPOTENCY_KEY)
    }
}

/// One request under the rules.
#[derive(Debug)]
pub(crate) struct Course<'a> {
    /// When it began, until the first attempt does.
    began: Option<Instant>,
    retry: &'a Retry,
    lane: Lane,
    circuit: Circuit,
    series: Series,
}

/// An attempt under way. Whoever drops it has not heard of its end, and takes no place from others.
#[derive(Debug)]
pub(crate) struct Started {
    pass: Pass,
    permit: Permit,
}

/// Why an attempt is not made.
#[derive(Debug)]
pub(crate) enum NotStarted {
    Throttled(Throttled),
    Open(Open),
}

impl Course<'_> {
    pub(crate) async fn start(&mut self) -> Result<Started, NotStarted> {
        // Nobody waits for its turn just to hear that the circuit is open.
        let now = self.began.take().unwrap_or_else(clock::now);
        self.circuit.check_at(now).map_err(NotStarted::Open)?;
        let pass = self.lane.pass_until(now, self.series.deadline()).await;
        let pass = pass.map_err(NotStarted::Throttled)?;
        let permit = self.circuit.enter_at(pass.went_at()).map_err(NotStarted::Open)?;
        Ok(Started { pass, permit })
    }

    /// Learns from the answer, if there is one; tells when to try again, if that helps.
    pub(crate) fn end(
        &mut self,
        started: Started,
        answer: Option<(StatusCode, &HeaderMap)>,
        may_repeat: bool,
    ) -> Option<Instant> {
        let now = clock::now();
        let cause = started.end(answer, now)?;
        if may_repeat { self.retry.next(&mut self.series, cause, now) } else { None }
    }
}

impl Started {
    fn end(self, answer: Option<(StatusCode, &HeaderMap)>, now: Instant) -> Option<Cause> {
        let Self { pass, permit } = self;
        let Some((status, fields)) = answer else {
            permit.end(Outcome::Failure, now);
            return Some(Cause::Failed(None));
        };
        let budget = Budget::read_by(fields, &clock::date);
        let cause = if is_refusal(status, &budget) {
            permit.end(Outcome::Refusal, now);
            pass.refused_at(&budget, now);
            Some(budget.wait().map_or(Cause::Failed(None), Cause::Refused))
        } else if status == StatusCode::SERVICE_UNAVAILABLE {
            permit.end(Outcome::Failure, now);
            match budget.retry_after() {
                Some(_) => pass.refused_at(&budget, now),
                None => pass.answered_at(&budget, now),
            }
            Some(Cause::Failed(budget.retry_after()))
        } else {
            let is_failure = status.is_server_error();
            permit.end(if is_failure { Outcome::Failure } else { Outcome::Success }, now);
            pass.answered_at(&budget, now);
            None
        };
        let is_error = status.is_client_error() || status.is_server_error();
        match budget.should_retry() {
            Some(false) => None,
            Some(true) if is_error => cause.or(Some(Cause::Failed(budget.retry_after()))),
            _ => cause,
        }
    }
}

/// 429; and 403 as GitHub means it, with a wait or with nothing left.
fn is_refusal(status: StatusCode, budget: &Budget) -> bool {
    let is_meant = budget.retry_after().is_some() || budget.is_exhausted();
    status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::FORBIDDEN && is_meant
}
