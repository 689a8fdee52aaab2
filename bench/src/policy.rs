//! The whole decision of a policy: attributes in, the limits that apply found among 50, all charged.
//!
//! Every request is `GET /v1/messages` of a user of the free tier. Three limits per user apply to it, by method,
//! by path and by tier; the other 47 are for other paths.

use ::limitador::RateLimiter;
use ::limitador::limit::Namespace;

use crate::contender::Contender;
use crate::limitador::{NAMESPACE, check, limit, with_limits};

pub const LIMITS: usize = 50;
pub const APPLY: usize = 3;

pub const METHOD: &str = "GET";
pub const PATH: &str = "/v1/messages";
pub const TIER: &str = "free";

pub fn build_limitador(users: &[String]) -> Box<dyn Contender> {
    let others = (APPLY..LIMITS).map(|n| format!("path == '/v1/resource-{n}'"));
    with_conditions(users, applying().into_iter().chain(others))
}

/// limitador tries every limit it has, so this is the best a user of it could do: to load only those that apply.
pub fn build_limitador_applying(users: &[String]) -> Box<dyn Contender> {
    with_conditions(users, applying())
}

fn applying() -> [String; APPLY] {
    [format!("method == '{METHOD}'"), format!("path == '{PATH}'"), format!("tier == '{TIER}'")]
}

fn with_conditions(
    users: &[String],
    conditions: impl IntoIterator<Item = String>,
) -> Box<dyn Contender> {
    let limits = conditions.into_iter().map(|condition| limit([&condition]));
    let limiter = with_limits(APPLY * users.len(), limits);
    let policy = Limitador { limiter, namespace: NAMESPACE.into() };
    assert_eq!(policy.decide_all(users), users.len());
    Box::new(policy)
}

struct Limitador {
    limiter: RateLimiter,
    namespace: Namespace,
}

impl Contender for Limitador {
    #[inline]
    fn decide(&self, user: &String) -> bool {
        let attributes = [("method", METHOD), ("path", PATH), ("tier", TIER), ("user", user)];
        check(&self.limiter, &self.namespace, attributes)
    }
}
