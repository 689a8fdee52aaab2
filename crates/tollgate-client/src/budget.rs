//! What a response says about the caller's budget.
//!
//! Every generation of the IETF's fields is read, and those of vendors who have their own. What
//! cannot be read is ignored, field by field: a budget is advice, and bad advice is none. The newest
//! generation wins where a response has several, since they tell of the same limits.
//!
//! Moments are told by the server's clock, so they are compared with the `Date` of the response if
//! it has one, and with our own clock only if not.

mod moment;
mod structured;
mod vendors;

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use http::header::{AGE, DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::bounds::{ALLOWANCES_MAX, FIELD_BYTES_MAX};

const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
const SHOULD_RETRY: [HeaderName; 2] =
    [HeaderName::from_static("x-should-retry"), HeaderName::from_static("stripe-should-retry")];

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
        let kinds = Kinds::of(fields);
        let now = Now { fields, clock };
        let is_ours = !kinds.age || !is_from_a_cache(fields);
        let mut allowances =
            if is_ours { vendors::allowances(fields, kinds, now) } else { Vec::new() };
        allowances.truncate(ALLOWANCES_MAX);
        let should_retry = || SHOULD_RETRY.iter().find_map(|name| flag(&text(fields, name)?));
        Self {
            retry_after: kinds.retry_after.then(|| retry_after(fields, now)).flatten(),
            should_retry: kinds.should_retry.then(should_retry).flatten(),
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

/// What kinds of fields there are. Most responses have none, and to look for every name there may be would cost more
/// than all else that is done for a request.
#[derive(Clone, Copy, Debug, Default)]
struct Kinds {
    /// `RateLimit` alone.
    newest: bool,
    /// Three fields for one limit.
    plain: bool,
    /// Three fields for each of several.
    several: bool,
    shopify: bool,
    retry_after: bool,
    should_retry: bool,
    age: bool,
}

impl Kinds {
    fn of(fields: &HeaderMap) -> Self {
        let mut kinds = Self::default();
        for name in fields.keys() {
            let name = name.as_str();
            match name.as_bytes().first() {
                Some(b'r') => {
                    kinds.newest |= name == "ratelimit";
                    kinds.plain |= name.starts_with("ratelimit-");
                    kinds.retry_after |= name.starts_with("retry-after");
                }
                Some(b'x') => {
                    kinds.plain |= name.starts_with("x-rate");
                    kinds.several |= name.starts_with("x-ratelimit-remaining-");
                    kinds.shopify |= name.starts_with("x-shopify-shop-api");
                    kinds.should_retry |= name == "x-should-retry";
                }
                Some(b'a') => {
                    kinds.several |= name.starts_with("anthropic-ratelimit-");
                    kinds.age |= name == "age";
                }
                Some(b's') => kinds.should_retry |= name == "stripe-should-retry",
                _ => {}
            }
        }
        kinds
    }
}

/// The moment at which a response was made, read when it is asked for: most waits are told by their length.
#[derive(Clone, Copy)]
struct Now<'a> {
    fields: &'a HeaderMap,
    clock: &'a dyn Fn() -> SystemTime,
}

impl Now<'_> {
    fn get(self) -> SystemTime {
        let date = text(self.fields, &DATE);
        let theirs = date.and_then(|date| httpdate::parse_http_date(&date).ok());
        theirs.unwrap_or_else(self.clock)
    }
}

fn retry_after(fields: &HeaderMap, now: Now<'_>) -> Option<Duration> {
    let exact = longest(fields, &RETRY_AFTER_MS, moment::millis);
    exact.or_else(|| longest(fields, &RETRY_AFTER, |text| moment::wait(text, || now.get())))
}

/// Of a wait that was told several times, be it on several lines or on one, the longest that can be read.
fn longest(
    fields: &HeaderMap,
    name: &HeaderName,
    read: impl Fn(&str) -> Option<Duration>,
) -> Option<Duration> {
    let lines = fields.get_all(name).iter().take(ALLOWANCES_MAX).filter_map(line);
    let lines = lines.filter(|line| line.len() <= FIELD_BYTES_MAX);
    // A date has a comma of its own.
    lines.filter_map(|line| read(line).or_else(|| line.split(',').filter_map(&read).max())).max()
}

/// What a cache answers with was true of somebody else, some time ago.
fn is_from_a_cache(fields: &HeaderMap) -> bool {
    text(fields, &AGE).is_some_and(|age| age.trim().parse().is_ok_and(|seconds: u64| seconds > 0))
}

fn flag(text: &str) -> Option<bool> {
    match text.trim() {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

/// A field's lines as one value, if it is there and can be read.
fn text<'a>(fields: &'a HeaderMap, name: &HeaderName) -> Option<Cow<'a, str>> {
    let mut lines = fields.get_all(name).iter();
    let mut value = Cow::Borrowed(line(lines.next()?)?);
    for next in lines {
        if value.len() > FIELD_BYTES_MAX {
            return None;
        }
        let value = value.to_mut();
        value.push_str(", ");
        value.push_str(line(next)?);
    }
    (value.len() <= FIELD_BYTES_MAX).then_some(value)
}

/// Go writes `µs`, so it may be more than ASCII.
fn line(value: &HeaderValue) -> Option<&str> {
    std::str::from_utf8(value.as_bytes()).ok()
}
