//! All of it together: a request from its first attempt to its answer.
//!
//! ```text
//! Rules::begin      request → course       (which lane, which circuits)
//! Course::turn      waits for its turn     (or: throttled, or: the circuit is open)
//! the client        is made ready
//! Course::start     enters the circuits    (or: one is open)
//! the attempt       request → answer
//! Course::end       answer → what it says  (budget to the lane, outcome to the circuits)
//! Retry             when to start again, if at all
//! ```

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use http::{Extensions, HeaderMap, HeaderName, Method, StatusCode};
use tokio::time::Instant;

use crate::breaker::{Both, Breaker, Open, Outcome, Permits};
use crate::budget::Budget;
use crate::clock;
use crate::events;
use crate::retry::{Cause, Retry, Series};
use crate::throttle::{Lane, Pass, Throttle, Throttled};
use crate::whose::Whose;

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
    ours: Option<IsOurs>,
}

type KeyOf = Arc<dyn Fn(&Call<'_>) -> String + Send + Sync>;
type IsOurs = Arc<dyn Fn(&dyn Any) -> Option<bool> + Send + Sync>;

/// What is known of a request before it is made.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Whom it asks: a host in lower case, with its port if that is not the scheme's own.
    pub host: &'a str,
    /// What it asks to do.
    pub method: &'a Method,
    /// With what.
    pub path: &'a str,
    /// Its fields.
    pub fields: &'a HeaderMap,
    /// What the caller has attached to it, and nobody sends.
    pub extensions: &'a Extensions,
}

/// An extension of requests: this one may be made twice, whatever its method is.
///
/// Without it a request is made again only if its method is idempotent, or if it has an
/// `Idempotency-Key`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Repeatable;

impl Rules {
    /// Everything as [`Retry::new`], [`Throttle::new`] and [`Breaker::new`] have it: budgets by host and key, failures by
    /// host.
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

    /// Which requests share a budget, and are refused together: those for which this is the same. Unless said, those to
    /// one host that show the same key, in `Authorization` or another field for that; say host, key and path where each path has
    /// a budget of its own, or what tells callers apart whose key is no field.
    #[must_use]
    pub fn throttle_by(self, key: impl Fn(&Call<'_>) -> String + Send + Sync + 'static) -> Self {
        Self { throttle_by: Some(Arc::new(key)), ..self }
    }

    /// Which requests fail together, and have a share of retries together: those for which this is the same. All of one
    /// host, unless said; then refusals for too long open a circuit for those alone that share a budget, and if it is said,
    /// for all for which this is the same. It is told when a circuit changes, so it must not be a secret.
    #[must_use]
    pub fn break_by(self, key: impl Fn(&Call<'_>) -> String + Send + Sync + 'static) -> Self {
        Self { break_by: Some(Arc::new(key)), ..self }
    }

    /// Which errors of a client are of this side: such a request is not tried again, and whom it asks is not
    /// blamed for it. Unless said, every error of a tower service is a failure of whom it asks, also that it cannot be made
    /// ready; of reqwest, those of other middleware are ours. Those of building a request and of redirects always are.
    #[must_use]
    pub fn ours<E: 'static>(self, is_ours: impl Fn(&E) -> bool + Send + Sync + 'static) -> Self {
        let is_ours = move |error: &dyn Any| error.downcast_ref().map(&is_ours);
        Self { ours: Some(Arc::new(is_ours)), ..self }
    }

    pub(crate) fn begin(&self, call: &Call<'_>) -> Course<'_> {
        let now = clock::now();
        // Whoever shares a budget is refused together.
        let (lane, whose) = match &self.throttle_by {
            Some(key) => {
                let key = key(call);
                (self.throttle.lane(&key), Whose::called(&key))
            }
            None => {
                let whose = Whose::of(call.fields);
                (self.throttle.lane_of_whom(call.host, whose), whose)
            }
        };
        let circuits = match &self.break_by {
            Some(key) => Both::one(&self.breaker, &key(call)),
            None => Both::of(&self.breaker, call.host, whose),
        };
        let series = self.retry.begin(now);
        Course { began: Some(now), retry: &self.retry, lane, circuits, series }
    }

    /// Whether an error is of this side, if that was said.
    pub(crate) fn is_ours<E: 'static>(&self, error: &E) -> Option<bool> {
        self.ours.as_ref().and_then(|is_ours| is_ours(error))
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
    circuits: Both<'a>,
    series: Series,
}

/// Why an attempt is not made.
#[derive(Debug)]
pub(crate) enum NotStarted {
    Throttled(Throttled),
    Open(Open),
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ended<'a> {
    Answered(StatusCode, &'a HeaderMap),
    /// There is no answer.
    Lost,
    /// It did not reach whom it asks.
    Ours,
}

impl Course<'_> {
    /// Waits until it is its turn.
    pub(crate) async fn turn(&mut self) -> Result<Pass, NotStarted> {
        // Nobody waits for its turn just to hear that the circuit is open.
        let now = self.began.take().unwrap_or_else(clock::now);
        self.circuits.check_at(now).map_err(|open| {
            events::not_made(Some(self.whom()), "open");
            NotStarted::Open(open)
        })?;
        let deadline = self.series.deadline();
        let pass = self.lane.pass_until(now, deadline, Some(self.whom())).await;
        pass.map_err(NotStarted::Throttled)
    }

    /// It goes now: at the moment of its turn, unless it had to wait for its client.
    pub(crate) fn start(&self, pass: &Pass, now: Option<Instant>) -> Result<Permits, NotStarted> {
        let now = now.unwrap_or(pass.went_at());
        let permits = self.circuits.enter_at(now).map_err(NotStarted::Open)?;
        if self.series.is_new() {
            self.retry.earn(self.circuits.share());
        }
        Ok(permits)
    }

    /// Whom it asks, as circuits go by it.
    pub(crate) fn whom(&self) -> &str {
        self.circuits.key()
    }

    /// When its last attempt may begin.
    #[cfg(feature = "tower")]
    pub(crate) fn deadline(&self) -> Instant {
        self.series.deadline()
    }

    /// Whether others were refused since it had its turn, so that it has to wait for another.
    #[cfg(feature = "tower")]
    pub(crate) fn is_held_back(&self) -> bool {
        self.lane.is_closed_at(clock::now())
    }

    /// Learns from the answer, if there is one; tells when to try again, if that helps. Whoever drops the pass and the
    /// permit instead has not heard of the end, and takes no place from others.
    pub(crate) fn end(
        &mut self,
        pass: Pass,
        permits: Permits,
        ended: Ended<'_>,
        may_repeat: bool,
    ) -> Option<Instant> {
        let now = clock::now();
        let (outcome, cause) = hear(pass, ended, now);
        self.circuits.leave(permits, outcome, now);
        let cause = cause.filter(|_| may_repeat)?;
        let Self { retry, circuits, series, .. } = self;
        let can_be = |then| circuits.check_at(then).is_ok();
        retry.next(series, circuits.share(), cause, now, Some(circuits.key()), can_be)
    }
}

/// Tells the lane how an attempt ended. What that is for the circuits; and if another may help, why.
fn hear(pass: Pass, ended: Ended<'_>, now: Instant) -> (Outcome, Option<Cause>) {
    let (status, fields) = match ended {
        Ended::Answered(status, fields) => (status, fields),
        Ended::Lost => return (Outcome::Failure, Some(Cause::Failed(None))),
        Ended::Ours => return (Outcome::NotMade, None),
    };
    let budget = Budget::read_by(fields, &clock::date);
    let (outcome, cause) = if is_refusal(status, &budget) {
        pass.refused_at(&budget, now);
        (Outcome::Refusal, Some(budget.wait().map_or(Cause::Failed(None), Cause::Refused)))
    } else if status.is_server_error() {
        let is_unavailable = status == StatusCode::SERVICE_UNAVAILABLE;
        if is_unavailable && budget.retry_after().is_some() {
            pass.refused_at(&budget, now);
        } else {
            pass.failed_at(&budget, now);
        }
        (Outcome::Failure, is_unavailable.then(|| Cause::Failed(budget.retry_after())))
    } else {
        pass.answered_at(&budget, now);
        (Outcome::Success, None)
    };
    let is_error = status.is_client_error() || status.is_server_error();
    let cause = match budget.should_retry() {
        Some(false) => None,
        Some(true) if is_error => cause.or(Some(Cause::Failed(budget.retry_after()))),
        _ => cause,
    };
    (outcome, cause)
}

/// 429; and 403 as GitHub means it, with a wait or with nothing left.
fn is_refusal(status: StatusCode, budget: &Budget) -> bool {
    let is_meant = budget.retry_after().is_some() || budget.is_exhausted();
    status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::FORBIDDEN && is_meant
}
