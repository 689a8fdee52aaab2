//! What a response says about the caller's budget.
//!
//! Every generation of the IETF's fields is read, and those of vendors who have their own. What
//! cannot be read is ignored, field by field: a budget is advice, and bad advice is none. The newest
//! generation wins where a response has several, since they tell of the same limits.
//!
//! Moments are told by the server's clock, so they are compared with the `Date` of the response if
//! it has one, and with our own clock only if not.

mod fields;
mod moment;
mod structured;
mod vendors;

use std::time::{Duration, SystemTime};

use http::HeaderMap;

use self::fields::{Field, Found};
use crate::bounds::ALLOWANCES_MAX;

/// What a response says: how much may still be sent, and when to come back.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use http::HeaderMap;
/// use tollgate_client::Budget;
///
/// let mut fields = HeaderMap::new();
/// fields.insert("ratelimit", "\"api\";r=0;t=30".parse()?);
/// let budget = Budget::read(&fields, SystemTime::UNIX_EPOCH);
/// assert_eq!(budget.allowances()[0].remaining, 0);
/// assert_eq!(budget.wait(), Some(Duration::from_secs(30)));
/// # Ok::<(), http::header::InvalidHeaderValue>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    retry_after: Option<Duration>,
    should_retry: Option<bool>,
    allowances: Vec<Allowance>,
}

/// So much may still be sent, until then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Its name, if it has one.
    pub name: Option<String>,
    /// What is counted.
    pub unit: Unit,
    /// Which requests it is for.
    pub scope: Scope,
    /// How much there is of it when nothing was taken, if it was said.
    pub limit: Option<u64>,
    /// How much is left.
    pub remaining: u64,
    /// How long until there is more, if it was said; until all of it is back, if it is gradual.
    pub reset_after: Option<Duration>,
    /// Whether it comes back bit by bit, as a bucket fills.
    pub is_gradual: bool,
    /// In how much time `limit` may be taken, if it was said or can be told.
    pub period: Option<Duration>,
}

/// What an allowance counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Requests, each one.
    Requests,
    /// Requests that are under way.
    Concurrent,
    /// Something of which a request may take more than one: bytes, or tokens of a language model.
    Amount,
}

/// Which requests an allowance is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All of whoever made this one.
    All,
    /// Some, under a name that the server gives them: a resource of GitHub's, a bucket of Discord's.
    Named(String),
    /// Those to the same endpoint, as with X.
    Endpoint,
}

impl Allowance {
    /// How long until there is enough for a request, as far as can be told: nobody knows how many tokens one takes.
    fn enough_after(&self) -> Option<Duration> {
        let is_next = self.is_gradual && self.unit == Unit::Requests;
        let next = if is_next { interval(self.limit, self.period) } else { None };
        next.or(self.reset_after)
    }
}

/// The time from one unit to the next, if that can be told.
pub(crate) fn interval(limit: Option<u64>, period: Option<Duration>) -> Option<Duration> {
    let limit = u32::try_from(limit?).ok().filter(|limit| *limit > 0)?;
    Some(period? / limit)
}

impl Budget {
    /// Reads the fields of a response that arrived at `now`.
    pub fn read(fields: &HeaderMap, now: SystemTime) -> Self {
        Self::read_by(fields, &|| now)
    }

    /// The same, by a clock that is read only if it is needed.
    pub(crate) fn read_by(fields: &HeaderMap, clock: &dyn Fn() -> SystemTime) -> Self {
        let found = Found::of(fields);
        if !found.tells() {
            return Self::default();
        }
        let now = Now { found: &found, clock };
        let mut allowances =
            if is_from_a_cache(&found) { Vec::new() } else { vendors::allowances(&found, now) };
        allowances.truncate(ALLOWANCES_MAX);
        let should_retry = [Field::ShouldRetry, Field::StripeShouldRetry];
        Self {
            retry_after: retry_after(&found, now),
            should_retry: should_retry.into_iter().find_map(|field| flag(&found.text(field)?)),
            allowances,
        }
    }

    /// How long to stay away, as the server says.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Whether another try makes sense, if the server says so (`X-Should-Retry`,
    /// `Stripe-Should-Retry`).
    pub fn should_retry(&self) -> Option<bool> {
        self.should_retry
    }

    /// What is left of each limit that was told.
    pub fn allowances(&self) -> &[Allowance] {
        &self.allowances
    }

    /// Whether something is used up.
    pub fn is_exhausted(&self) -> bool {
        self.allowances.iter().any(|allowance| allowance.remaining == 0)
    }

    /// How long a refused request should wait: as `Retry-After` says, or else until everything
    /// that is used up comes back.
    pub fn wait(&self) -> Option<Duration> {
        let used_up = self.allowances.iter().filter(|allowance| allowance.remaining == 0);
        self.retry_after.or_else(|| used_up.filter_map(Allowance::enough_after).max())
    }
}

/// The moment at which a response was made, read when it is asked for: most waits are told by their length.
#[derive(Clone, Copy)]
struct Now<'a> {
    found: &'a Found<'a>,
    clock: &'a dyn Fn() -> SystemTime,
}

impl Now<'_> {
    fn get(self) -> SystemTime {
        let date = self.found.text(Field::Date);
        let theirs = date.and_then(|date| httpdate::parse_http_date(&date).ok());
        theirs.unwrap_or_else(self.clock)
    }
}

fn retry_after(found: &Found<'_>, now: Now<'_>) -> Option<Duration> {
    let exact = longest(found, Field::RetryAfterMs, moment::millis);
    exact.or_else(|| longest(found, Field::RetryAfter, |text| moment::wait(text, || now.get())))
}

/// Of a wait that was told several times, be it on several lines or on one, the longest that can be read.
fn longest(
    found: &Found<'_>,
    field: Field,
    read: impl Fn(&str) -> Option<Duration>,
) -> Option<Duration> {
    // A date has a comma of its own.
    let of_line = |line: &str| read(line).or_else(|| line.split(',').filter_map(&read).max());
    found.most(field, of_line)
}

/// What a cache answers with was true of somebody else, some time ago.
fn is_from_a_cache(found: &Found<'_>) -> bool {
    let age = found.text(Field::Age);
    age.is_some_and(|age| age.trim().parse().is_ok_and(|seconds: u64| seconds > 0))
}

fn flag(text: &str) -> Option<bool> {
    match text.trim() {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}
