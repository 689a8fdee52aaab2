//! Who writes a budget how.
//!
//! A table where a table will do: most vendors have three fields under names of their own. Those of
//! the IETF come in an order, newest first, and the first that can be read is believed.

use std::time::Duration;

use super::fields::{Field, Found};
use super::structured::{Item, Member, dictionary, list, unescaped};
use super::{Allowance, Now, Scope, Unit, longest, moment};
use crate::bounds::{ALLOWANCES_MAX, WAIT_MAX};

/// A full bucket of Shopify's is empty after that time, whatever the plan: 40 at 2 a second, 80 at
/// 4, 400 at 20.
const SHOPIFY_DRAINS_IN: Duration = Duration::from_secs(20);

/// Fields that tell of one limit.
struct Family {
    name: Option<&'static str>,
    unit: Unit,
    remaining: Field,
    limit: Field,
    reset: Field,
    /// Tells better than `reset`; some have it.
    reset_after: Option<Field>,
    /// Tells the limit where nothing else does; some have it.
    used: Option<Field>,
    scoped: Scoped,
    /// Whether `reset` is when all of it is back.
    is_gradual: bool,
}

/// Which requests a limit is for.
#[derive(Clone, Copy)]
enum Scoped {
    No,
    /// One of [`NAMES`] tells, if it is there.
    ByName,
    ByEndpoint,
}

/// They tell of the same limit, so the first that is there counts.
static PLAIN: [Family; 3] = [
    // Drafts 03 and 06.
    Family::of_requests([Field::RateLimitRemaining, Field::RateLimitLimit, Field::RateLimitReset]),
    // Everybody who was before them.
    Family {
        name: None,
        unit: Unit::Requests,
        remaining: Field::XRemaining,
        limit: Field::XLimit,
        reset: Field::XReset,
        // Discord.
        reset_after: Some(Field::XResetAfter),
        // GitHub and Reddit.
        used: Some(Field::XUsed),
        scoped: Scoped::ByName,
        is_gradual: false,
    },
    // X.
    Family {
        name: None,
        unit: Unit::Requests,
        remaining: Field::TwitterRemaining,
        limit: Field::TwitterLimit,
        reset: Field::TwitterReset,
        reset_after: None,
        used: None,
        scoped: Scoped::ByEndpoint,
        is_gradual: false,
    },
];

/// What GitHub counts for itself is a resource, and what Discord does a bucket.
static NAMES: [Field; 2] = [Field::XResource, Field::XBucket];

/// Those who tell of several limits: all of them count, and all are buckets.
static SEVERAL: [Family; 6] = [
    // OpenAI, and who follows it.
    Family::gradual(
        Some("requests"),
        Unit::Requests,
        [Field::XRequestsRemaining, Field::XRequestsLimit, Field::XRequestsReset],
    ),
    Family::gradual(
        Some("tokens"),
        Unit::Amount,
        [Field::XTokensRemaining, Field::XTokensLimit, Field::XTokensReset],
    ),
    // Anthropic.
    Family::gradual(
        Some("requests"),
        Unit::Requests,
        [
            Field::AnthropicRequestsRemaining,
            Field::AnthropicRequestsLimit,
            Field::AnthropicRequestsReset,
        ],
    ),
    Family::gradual(
        Some("tokens"),
        Unit::Amount,
        [Field::AnthropicTokensRemaining, Field::AnthropicTokensLimit, Field::AnthropicTokensReset],
    ),
    Family::gradual(
        Some("input-tokens"),
        Unit::Amount,
        [Field::AnthropicInputRemaining, Field::AnthropicInputLimit, Field::AnthropicInputReset],
    ),
    Family::gradual(
        Some("output-tokens"),
        Unit::Amount,
        [Field::AnthropicOutputRemaining, Field::AnthropicOutputLimit, Field::AnthropicOutputReset],
    ),
];

/// Everything that the fields tell.
pub(super) fn allowances(found: &Found<'_>, now: Now<'_>) -> Vec<Allowance> {
    let mut all = newest(found);
    if all.is_empty() {
        all.extend(PLAIN.iter().find_map(|family| family.read(found, now)));
    }
    for family in &SEVERAL {
        if found.has(family.remaining) {
            all.extend(family.read(found, now));
        }
    }
    all.extend(found.text(Field::ShopifyCallLimit).and_then(|text| shopify(&text)));
    all
}

impl Family {
    const fn of_requests(fields: [Field; 3]) -> Self {
        Self::new(None, Unit::Requests, false, fields)
    }

    const fn gradual(name: Option<&'static str>, unit: Unit, fields: [Field; 3]) -> Self {
        Self::new(name, unit, true, fields)
    }

    const fn new(
        name: Option<&'static str>,
        unit: Unit,
        is_gradual: bool,
        [remaining, limit, reset]: [Field; 3],
    ) -> Self {
        Self {
            name,
            unit,
            remaining,
            limit,
            reset,
            reset_after: None,
            used: None,
            scoped: Scoped::No,
            is_gradual,
        }
    }

    fn read(&self, found: &Found<'_>, now: Now<'_>) -> Option<Allowance> {
        let remaining = first_count(&found.value(self.remaining)?)?;
        let told = found.value(self.limit);
        let used = self.used.and_then(|used| first_count(&found.value(used)?));
        let limit = told.as_deref().and_then(first_count);
        let limit = limit.or_else(|| used?.checked_add(remaining));
        let wait = |field| longest(found, field, |text| moment::wait(text, || now.get()));
        let reset = self.reset_after.and_then(wait).or_else(|| wait(self.reset));
        let period = limit.and_then(|limit| {
            if self.is_gradual {
                return scaled(reset?, limit, limit.checked_sub(remaining)?);
            }
            // Draft 03, and Envoy, list the windows behind the limit; draft 06 in a field of their own.
            let of = |windows: &[u8]| window_of(limit, reset, windows);
            of(told.as_deref()?).or_else(|| of(&found.value(Field::RateLimitPolicy)?))
        });
        Some(Allowance {
            name: self.name.map(str::to_owned),
            unit: self.unit,
            scope: self.scoped.read(found),
            limit,
            remaining,
            reset_after: reset,
            is_gradual: self.is_gradual,
            period,
        })
    }
}

impl Scoped {
    fn read(self, found: &Found<'_>) -> Scope {
        match self {
            Self::No => Scope::All,
            Self::ByName => {
                let name = NAMES.iter().find_map(|name| found.text(*name));
                name.map_or(Scope::All, |name| Scope::Named(name.into_owned()))
            }
            Self::ByEndpoint => Scope::Endpoint,
        }
    }
}

/// `RateLimit` as a dictionary (draft 07) or as a list (from draft 08 on).
fn newest(found: &Found<'_>) -> Vec<Allowance> {
    let Some(told) = found.value(Field::RateLimit) else { return Vec::new() };
    let policy = found.value(Field::RateLimitPolicy);
    let policy = policy.as_deref().unwrap_or_default();
    if let Some(allowance) = draft_07(&told, policy) {
        return vec![allowance];
    }
    let mut policies: Vec<Policy<'_>> = Vec::with_capacity(1);
    if list(policy, |policy| policies.push(policy)).is_none() {
        policies.clear();
    }
    let mut all = Vec::with_capacity(1);
    let is_list = list(&told, |told: Left<'_>| {
        if all.len() < ALLOWANCES_MAX {
            all.extend(told.allowance(&policies));
        }
    });
    is_list.map_or(Vec::new(), |()| all)
}

fn draft_07(told: &[u8], policy: &[u8]) -> Option<Allowance> {
    let (mut limit, mut remaining, mut reset) = (None, None, None);
    dictionary(told, |key, item: Item<'_>| match key {
        b"limit" => limit = item.count(),
        b"remaining" => remaining = item.count(),
        b"reset" => reset = item.count(),
        _ => {}
    })?;
    let reset_after = reset.map(seconds);
    Some(Allowance {
        name: None,
        unit: Unit::Requests,
        scope: Scope::All,
        limit,
        remaining: remaining?,
        reset_after,
        is_gradual: false,
        period: limit.and_then(|limit| window_of(limit, reset_after, policy)),
    })
}

/// `"api";r=50;t=30`, and the names that are announced: `api;a=50;w=30`.
struct Left<'a> {
    name: Option<&'a [u8]>,
    r: Option<u64>,
    a: Option<u64>,
    t: Option<u64>,
    w: Option<u64>,
}

impl<'a> Member<'a> for Left<'a> {
    fn begin(item: Item<'a>) -> Self {
        Self { name: item.name(), r: None, a: None, t: None, w: None }
    }

    fn learn(&mut self, name: &[u8], item: Item<'a>) {
        match name {
            b"r" => self.r = item.count(),
            b"a" => self.a = item.count(),
            b"t" => self.t = item.count(),
            b"w" => self.w = item.count(),
            _ => {}
        }
    }
}

impl Left<'_> {
    fn allowance(&self, policies: &[Policy<'_>]) -> Option<Allowance> {
        let name = self.name?;
        let policy = policies.iter().find(|policy| policy.name == Some(name));
        let (limit, period) = policy.map_or((None, None), Policy::limit);
        Some(Allowance {
            name: Some(unescaped(name)),
            unit: policy.map_or(Unit::Requests, Policy::unit),
            scope: Scope::All,
            limit,
            remaining: self.r.or(self.a)?,
            reset_after: self.t.or(self.w).map(seconds),
            is_gradual: false,
            period,
        })
    }
}

/// `"api";q=100;w=60`.
struct Policy<'a> {
    name: Option<&'a [u8]>,
    unit: Option<&'a [u8]>,
    quota: Option<u64>,
    window: Option<u64>,
    /// Of tollgate's buckets, which are not as large as what comes in a window.
    burst: Option<u64>,
}

impl<'a> Member<'a> for Policy<'a> {
    fn begin(item: Item<'a>) -> Self {
        Self { name: item.name(), unit: None, quota: None, window: None, burst: None }
    }

    fn learn(&mut self, name: &[u8], item: Item<'a>) {
        match name {
            b"q" => self.quota = item.count(),
            b"w" => self.window = item.count(),
            b"qu" => self.unit = item.name(),
            b"tollgate-burst" => self.burst = item.count(),
            _ => {}
        }
    }
}

impl Policy<'_> {
    fn unit(&self) -> Unit {
        match self.unit {
            None | Some(b"requests") => Unit::Requests,
            Some(b"concurrent-requests") => Unit::Concurrent,
            Some(_) => Unit::Amount,
        }
    }

    /// So much, in that time.
    fn limit(&self) -> (Option<u64>, Option<Duration>) {
        let period = self.window.filter(|&w| w > 0).map(seconds);
        match (self.quota, self.burst) {
            (Some(quota), Some(burst)) => {
                (Some(burst), period.and_then(|period| scaled(period, burst, quota)))
            }
            (quota, _) => (quota, period),
        }
    }
}

/// `100;w=60`, behind a limit or in a field of their own.
struct Window {
    limit: Option<u64>,
    length: Option<u64>,
}

impl<'a> Member<'a> for Window {
    fn begin(item: Item<'a>) -> Self {
        Self { limit: item.count(), length: None }
    }

    fn learn(&mut self, name: &[u8], item: Item<'a>) {
        if name == b"w" {
            self.length = item.count();
        }
    }
}

/// In `100;w=60, 1000;w=3600`, how long the window of `limit` is. Of several the shortest that ends no earlier than was told.
fn window_of(limit: u64, reset: Option<Duration>, windows: &[u8]) -> Option<Duration> {
    let mut shortest: Option<Duration> = None;
    list(windows, |window: Window| {
        let length = window.length.filter(|&w| w > 0 && window.limit == Some(limit)).map(seconds);
        let length = length.filter(|length| reset.is_none_or(|reset| reset <= *length));
        shortest = length.into_iter().chain(shortest).min();
    })?;
    shortest
}

/// So many times a part of a time, if that is a time that can be told.
fn scaled(time: Duration, times: u64, of: u64) -> Option<Duration> {
    let nanos = (time.as_nanos() * u128::from(times)).checked_div(of.into())?;
    let scaled = Duration::from_nanos(nanos.try_into().ok()?);
    Some(scaled).filter(|scaled| !scaled.is_zero() && *scaled <= WAIT_MAX)
}

/// `32/40`: so many drops in a bucket that leaks.
fn shopify(text: &str) -> Option<Allowance> {
    let (used, limit) = text.trim().split_once('/')?;
    let (used, limit): (u32, u32) = (used.parse().ok()?, limit.parse().ok()?);
    Some(Allowance {
        name: None,
        unit: Unit::Requests,
        scope: Scope::All,
        limit: Some(limit.into()),
        remaining: limit.saturating_sub(used).into(),
        reset_after: (SHOPIFY_DRAINS_IN * used.min(limit)).checked_div(limit),
        is_gradual: true,
        period: Some(SHOPIFY_DRAINS_IN),
    })
}

/// The number that a field begins with: what follows it are windows.
fn first_count(value: &[u8]) -> Option<u64> {
    let mut first = None;
    list(value, |item: Item<'_>| {
        first.get_or_insert(item.count());
    })?;
    first?
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count).min(WAIT_MAX)
}
