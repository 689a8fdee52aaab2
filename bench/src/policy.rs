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
    let policy = Limitador::new(users);
    // limitador tries every condition it has, some hundred microseconds a request. Whoever is known
    // before the others are added is known all the same, after a fraction of the time.
    for number in APPLY..LIMITS {
        policy.add(&format!("path == '/v1/resource-{number}'"));
    }
    Box::new(policy)
}

/// The best a user of limitador could do: to load only the limits that apply.
pub fn build_limitador_applying(users: &[String]) -> Box<dyn Contender> {
    Box::new(Limitador::new(users))
}

struct Limitador {
    limiter: RateLimiter,
    namespace: Namespace,
}

impl Limitador {
    /// With the limits that apply, under which each of the users was seen.
    fn new(users: &[String]) -> Self {
        let conditions = [
            format!("method == '{METHOD}'"),
            format!("path == '{PATH}'"),
            format!("tier == '{TIER}'"),
        ];
        let limiter = with_limits(APPLY * users.len(), conditions.map(|it| limit([&it])));
        let policy = Self { limiter, namespace: NAMESPACE.into() };
        assert_eq!(policy.decide_all(users), users.len());
        policy
    }

    fn add(&self, condition: &str) {
        assert!(self.limiter.add_limit(limit([condition])), "every limit is a different one");
    }
}

impl Contender for Limitador {
    #[inline(always)]
    fn decide(&self, user: &String) -> bool {
        let attributes = [("method", METHOD), ("path", PATH), ("tier", TIER), ("user", user)];
        check(&self.limiter, &self.namespace, attributes)
    }
}
