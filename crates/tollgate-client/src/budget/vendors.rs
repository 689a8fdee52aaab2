//! Who writes a budget how.
//!
//! A table where a table will do: most vendors have three fields under names of their own. Those of
//! the IETF come in an order, newest first, and the first that can be read is believed.

use std::time::Duration;

use http::{HeaderMap, HeaderName};

use super::structured::{Item, Member, dictionary, list};
use super::{Allowance, Kinds, Now, Unit, moment, text};
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
    },
    // X.
    Family::of_requests(["x-rate-limit-remaining", "x-rate-limit-limit", "x-rate-limit-reset"]),
];

/// Those who tell of several limits: all of them count.
static SEVERAL: [Family; 6] = [
    // OpenAI, and who follows it.
    Family::new(
        Some("requests"),
        Unit::Requests,
        [
            "x-ratelimit-remaining-requests",
            "x-ratelimit-limit-requests",
            "x-ratelimit-reset-requests",
        ],
    ),
    Family::new(
        Some("tokens"),
        Unit::Amount,
        ["x-ratelimit-remaining-tokens", "x-ratelimit-limit-tokens", "x-ratelimit-reset-tokens"],
    ),
    // Anthropic.
    Family::new(
        Some("requests"),
        Unit::Requests,
        [
            "anthropic-ratelimit-requests-remaining",
            "anthropic-ratelimit-requests-limit",
            "anthropic-ratelimit-requests-reset",
        ],
    ),
    Family::new(
        Some("tokens"),
        Unit::Amount,
        [
            "anthropic-ratelimit-tokens-remaining",
            "anthropic-ratelimit-tokens-limit",
            "anthropic-ratelimit-tokens-reset",
        ],
    ),
    Family::new(
        Some("input-tokens"),
        Unit::Amount,
        [
            "anthropic-ratelimit-input-tokens-remaining",
            "anthropic-ratelimit-input-tokens-limit",
            "anthropic-ratelimit-input-tokens-reset",
        ],
    ),
    Family::new(
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
        Self::new(None, Unit::Requests, fields)
    }

    const fn new(
        name: Option<&'static str>,
        unit: Unit,
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
        }
    }

    fn read(&self, fields: &HeaderMap, now: Now<'_>) -> Option<Allowance> {
        let remaining = first_count(&text(fields, &self.remaining)?)?;
        let told = text(fields, &self.limit);
        let used = self.used.as_ref().and_then(|used| first_count(&text(fields, used)?));
        let limit = told.as_deref().and_then(first_count);
        let limit = limit.or_else(|| used?.checked_add(remaining));
        let wait = |name| moment::wait(&text(fields, name)?, || now.get());
        let period = limit.and_then(|limit| {
            // Draft 03, and Envoy, list the windows behind the limit; draft 06 in a field of their own.
            let policy = text(fields, &RATELIMIT_POLICY);
            window_of(limit, told.as_deref()?).or_else(|| window_of(limit, &policy?))
        });
        Some(Allowance {
            name: self.name.map(str::to_owned),
            unit: self.unit,
            limit,
            remaining,
            reset_after: self.reset_after.as_ref().and_then(wait).or_else(|| wait(&self.reset)),
            period,
        })
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
    members.iter().filter_map(|member| draft_08(member, &policies)).collect()
}

fn draft_07(told: &str, policy: Option<&str>) -> Option<Allowance> {
    let members = dictionary(told)?;
    let count = |name| members.iter().rev().find(|(key, _)| *key == name)?.1.item.count();
    let limit = count("limit");
    Some(Allowance {
        name: None,
        unit: Unit::Requests,
        limit,
        remaining: count("remaining")?,
        reset_after: count("reset").map(seconds),
        period: limit.and_then(|limit| window_of(limit, policy?)),
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
    Some(Allowance {
        name: Some(name.to_owned()),
        unit,
        limit: policy.and_then(|policy| policy.count("q")),
        remaining: told.count("r").or_else(|| told.count("a"))?,
        reset_after: told.count("t").or_else(|| told.count("w")).map(seconds),
        period: policy.and_then(|policy| policy.count("w")).filter(|&w| w > 0).map(seconds),
    })
}

/// In `100;w=60, 1000;w=3600`, how long the window of `limit` is.
fn window_of(limit: u64, windows: &str) -> Option<Duration> {
    let members = list(windows)?;
    let mut of_limit = members.iter().filter(|window| window.item.count() == Some(limit));
    of_limit.find_map(|window| window.count("w")).filter(|&w| w > 0).map(seconds)
}

/// `32/40`: so many drops in a bucket that leaks.
fn shopify(text: &str) -> Option<Allowance> {
    let (used, limit) = text.trim().split_once('/')?;
    let (used, limit): (u32, u32) = (used.parse().ok()?, limit.parse().ok()?);
    Some(Allowance {
        name: None,
        unit: Unit::Requests,
        limit: Some(limit.into()),
        remaining: limit.saturating_sub(used).into(),
        reset_after: (SHOPIFY_DRAINS_IN * used.min(limit)).checked_div(limit),
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
