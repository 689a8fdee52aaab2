//! The limitador library with its memory storage: one limit without conditions, per user.
//!
//! Its `Context` is made for each decision, as its users must.

use std::collections::HashMap;

use ::limitador::RateLimiter;
use ::limitador::limit::{Context, Limit, Namespace};

use crate::contender::{Contender, QUOTA_COUNT, QUOTA_SECONDS};

pub fn build(keys: &[String]) -> Box<dyn Contender> {
    let limiter = with_limits(keys.len(), [limit([])]);
    let limitador = Limitador { limiter, namespace: NAMESPACE.into() };
    assert_eq!(limitador.decide_all(keys), keys.len());
    Box::new(limitador)
}

/// A limiter with room for twice the counters, lest it start to evict.
pub fn with_limits(counters: usize, limits: impl IntoIterator<Item = Limit>) -> RateLimiter {
    let limiter = RateLimiter::new(2 * counters as u64);
    for limit in limits {
        assert!(limiter.add_limit(limit), "every limit is a different one");
    }
    limiter
}

/// A limit per user that applies where every condition, a CEL expression, holds.
pub fn limit<const N: usize>(conditions: [&str; N]) -> Limit {
    Limit::new(
        NAMESPACE,
        u64::from(QUOTA_COUNT),
        u64::from(QUOTA_SECONDS),
        conditions.map(|condition| condition.try_into().expect("the condition is CEL")),
        ["user".to_owned().try_into().expect("the variable is CEL")],
    )
}

/// Whether a request with these attributes is allowed, charging it if so.
#[inline]
pub fn check<const N: usize>(
    limiter: &RateLimiter,
    namespace: &Namespace,
    attributes: [(&str, &str); N],
) -> bool {
    let attributes: HashMap<String, String> =
        attributes.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let context = Context::from(attributes);
    let result = limiter.check_rate_limited_and_update(namespace, &context, 1);
    !result.expect("the memory storage does not fail").limited
}

pub const NAMESPACE: &str = "bench";

struct Limitador {
    limiter: RateLimiter,
    namespace: Namespace,
}

impl Contender for Limitador {
    #[inline(always)]
    fn decide(&self, key: &String) -> bool {
        check(&self.limiter, &self.namespace, [("user", key)])
    }
}
