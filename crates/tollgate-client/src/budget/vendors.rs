//! Who writes a budget how.
//!
//! A table where a table will do: most vendors have three fields under names of their own. Those of
//! the IETF come in an order, newest first, and the first that can be read is believed.

use std::time::Duration;

use http::{HeaderMap, HeaderName};

use super::structured::{Item, Member, dictionary, list};
use super::{Allowance, Kinds, Now, Scope, Unit, longest, moment, text};
use crate::bounds::WAIT_MAX;

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const SHOPIFY: HeaderName = HeaderName::from_static("x-shopify-shop-api-call-limit");

/// A full bucket of Shopify's is empty after that time, whatever the plan: 40 at 2 a second, 80 at
/// 4, 400 at 20.
const SHOPIFY_DRAINS_IN: Duration = Duration::from_secs(20);

/// Fields that tell of one limit.
struct Family {
    name: Option<&'static str>,
    unit: Unit,
    remaining: HeaderName,
    limit: HeaderName,
    reset: HeaderName,
    /// Tells better than `reset`; some have it.
    reset_after: Option<HeaderName>,
    /// Tells the limit where nothing else does; some have it.
    used: Option<HeaderName>,
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
    Family::of_requests(["ratelimit-remaining", "ratelimit-limit", "ratelimit-reset"]),
    // Everybody who was before them.
    Family {
        name: None,
        unit: Unit::Requests,
        remaining: HeaderName::from_static("x-ratelimit-remaining"),
        limit: HeaderName::from_static("x-ratelimit-limit"),
        reset: HeaderName::from_static("x-ratelimit-reset"),
        // Discord.
        reset_after: Some(HeaderName::from_static("x-ratelimit-reset-after")),
        // GitHub and Reddit.
        used: Some(HeaderName::from_static("x-ratelimit-used")),
        scoped: Scoped::ByName,
        is_gradual: false,
    },
    // X.
    Family {
        name: None,
        unit: Unit::Requests,
        remaining: HeaderName::from_static("x-rate-limit-remaining"),
        limit: HeaderName::from_static("x-rate-limit-limit"),
        reset: HeaderName::from_static("x-rate-limit-reset"),
        reset_after: None,
        used: None,
        scoped: Scoped::ByEndpoint,
        is_gradual: false,
    },
];

/// What GitHub counts for itself is a resource, and what Discord does a bucket.
static NAMES: [HeaderName; 2] = [
    HeaderName::from_static("x-ratelimit-resource"),
    HeaderName::from_static("x-ratelimit-bucket"),
];

/// Those who tell of several limits: all of them count, and all are buckets.
static SEVERAL: [Family; 6] = [
    // OpenAI, and who follows it.
    Family::gradual(
        Some("requests"),
        Unit::Requests,
        [
            "x-ratelimit-remaining-requests",
            "x-ratelimit-limit-requests",
            "x-ratelimit-reset-requests",
        ],
    ),
    Family::gradual(
        Some("tokens"),
        Unit::Amount,
        ["x-ratelimit-remaining-tokens", "x-ratelimit-limit-tokens", "x-ratelimit-reset-tokens"],
    ),
    // Anthropic.
    Family::gradual(
        Some("requests"),
        Unit::Requests,
        [
            "anthropic-ratelimit-requests-remaining",
            "anthropic-ratelimit-requests-limit",
            "anthropic-ratelimit-requests-reset",
        ],
    ),
    Family::gradual(
        Some("tokens"),
        Unit::Amount,
        [
            "anthropic-ratelimit-tokens-remaining",
            "anthropic-ratelimit-tokens-limit",
            "anthropic-ratelimit-tokens-reset",
        ],
    ),
    Family::gradual(
        Some("input-tokens"),
        Unit::Amount,
        [
            "anthropic-ratelimit-input-tokens-remaining",
            "anthropic-ratelimit-input-tokens-limit",
            "anthropic-ratelimit-input-tokens-reset",
        ],
    ),
    Family::gradual(
        Some("output-tokens"),
        Unit::Amount,
        [
            "anthropic-ratelimit-output-tokens-remaining",
            "anthropic-ratelimit-output-tokens-limit",
            "anthropic-ratelimit-output-tokens-reset",
        ],
    ),
];

/// Everything that the fields tell.
pub(super) fn allowances(fields: &HeaderMap, kinds: Kinds, now: Now<'_>) -> Vec<Allowance> {
    let mut all = if kinds.newest { newest(fields) } else { Vec::new() };
    if all.is_empty() && kinds.plain {
        all.extend(PLAIN.iter().find_map(|family| family.read(fields, now)));
    }
    if kinds.several {
        all.extend(SEVERAL.iter().filter_map(|family| family.read(fields, now)));
    }
    if kinds.shopify {
        all.extend(text(fields, &SHOPIFY).and_then(|text| shopify(&text)));
    }
    all
}

impl Family {
    const fn of_requests(fields: [&'static str; 3]) -> Self {
        Self::new(None, Unit::Requests, false, fields)
    }

    const fn gradual(name: Option<&'static str>, unit: Unit, fields: [&'static str; 3]) -> Self {
        Self::new(name, unit, true, fields)
    }

    const fn new(
        name: Option<&'static str>,
        unit: Unit,
        is_gradual: bool,
        [remaining, limit, reset]: [&'static str; 3],
    ) -> Self {
        Self {
            name,
            unit,
            remaining: HeaderName::from_static(remaining),
            limit: HeaderName::from_static(limit),
            reset: HeaderName::from_static(reset),
            reset_after: None,
            used: None,
            scoped: Scoped::No,
            is_gradual,
        }
    }

    fn read(&self, fields: &HeaderMap, now: Now<'_>) -> Option<Allowance> {
        let remaining = first_count(&text(fields, &self.remaining)?)?;
        let told = text(fields, &self.limit);
        let used = self.used.as_ref().and_then(|used| first_count(&text(fields, used)?));
        let limit = told.as_deref().and_then(first_count);
        let limit = limit.or_else(|| used?.checked_add(remaining));
        let wait = |name| longest(fields, name, |text| moment::wait(text, || now.get()));
        let reset = self.reset_after.as_ref().and_then(wait).or_else(|| wait(&self.reset));
        let period = limit.and_then(|limit| {
            if self.is_gradual {
                return scaled(reset?, limit, limit.checked_sub(remaining)?);
            }
            // Draft 03, and Envoy, list the windows behind the limit; draft 06 in a field of their own.
            let policy = text(fields, &RATELIMIT_POLICY);
            let of = |windows: &str| window_of(limit, reset, windows);
            of(told.as_deref()?).or_else(|| of(&policy?))
        });
        Some(Allowance {
            name: self.name.map(str::to_owned),
            unit: self.unit,
            scope: self.scoped.read(fields),
            limit,
            remaining,
            reset_after: reset,
            is_gradual: self.is_gradual,
            period,
        })
    }
}

impl Scoped {
    fn read(self, fields: &HeaderMap) -> Scope {
        match self {
            Self::No => Scope::All,
            Self::ByName => {
                let name = NAMES.iter().find_map(|name| text(fields, name));
                name.map_or(Scope::All, |name| Scope::Named(name.into_owned()))
            }
            Self::ByEndpoint => Scope::Endpoint,
        }
    }
}

/// `RateLimit` as a dictionary (draft 07) or as a list (from draft 08 on).
fn newest(fields: &HeaderMap) -> Vec<Allowance> {
    let Some(told) = text(fields, &RATELIMIT) else { return Vec::new() };
    let policy = text(fields, &RATELIMIT_POLICY);
    if let Some(allowance) = draft_07(&told, policy.as_deref()) {
        return vec![allowance];
    }
    let policies = policy.as_deref().and_then(list).unwrap_or_default();
    let members = list(&told).unwrap_or_default();
    let mut all = Vec::with_capacity(members.len());
    all.extend(members.iter().filter_map(|member| draft_08(member, &policies)));
    all
}

fn draft_07(told: &str, policy: Option<&str>) -> Option<Allowance> {
    let members = dictionary(told)?;
    let count = |name| members.iter().rev().find(|(key, _)| *key == name)?.1.item.count();
    let limit = count("limit");
    let reset_after = count("reset").map(seconds);
    Some(Allowance {
        name: None,
        unit: Unit::Requests,
        scope: Scope::All,
        limit,
        remaining: count("remaining")?,
        reset_after,
        is_gradual: false,
        period: limit.and_then(|limit| window_of(limit, reset_after, policy?)),
    })
}

/// `"api";r=50;t=30`, and the names that are announced: `api;a=50;w=30`.
fn draft_08(told: &Member<'_>, policies: &[Member<'_>]) -> Option<Allowance> {
    let name = told.item.name()?;
    let policy = policies.iter().find(|policy| policy.item.name() == Some(name));
    let unit = match policy.and_then(|policy| policy.parameter("qu")).and_then(Item::name) {
        None | Some("requests") => Unit::Requests,
        Some("concurrent-requests") => Unit::Concurrent,
        Some(_) => Unit::Amount,
    };
    let quota = policy.and_then(|policy| policy.count("q"));
    let period = policy.and_then(|policy| policy.count("w")).filter(|&w| w > 0).map(seconds);
    // Of tollgate's buckets, which are not as large as what comes in a window.
    let burst = policy.and_then(|policy| policy.count("tollgate-burst"));
    let (limit, period) = match (quota, burst) {
        (Some(quota), Some(burst)) => (Some(burst), period.and_then(|it| scaled(it, burst, quota))),
        _ => (quota, period),
    };
    Some(Allowance {
        name: Some(name.to_owned()),
        unit,
        scope: Scope::All,
        limit,
        remaining: told.count("r").or_else(|| told.count("a"))?,
        reset_after: told.count("t").or_else(|| told.count("w")).map(seconds),
        is_gradual: false,
        period,
    })
}

/// In `100;w=60, 1000;w=3600`, how long the window of `limit` is. Of several the shortest that ends no earlier than was told.
fn window_of(limit: u64, reset: Option<Duration>, windows: &str) -> Option<Duration> {
    let members = list(windows)?;
    let of_limit = members.iter().filter(|window| window.item.count() == Some(limit));
    let lengths = of_limit.filter_map(|window| window.count("w")).filter(|&w| w > 0).map(seconds);
    lengths.filter(|length| reset.is_none_or(|reset| reset <= *length)).min()
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
fn first_count(text: &str) -> Option<u64> {
    list(text)?.first()?.item.count()
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count).min(WAIT_MAX)
}
