//! governor's keyed limiter as its documentation shows it: a DashMap, the default hasher, the default clock.

use std::num::NonZeroU32;

use ::governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use crate::contender::{Contender, QUOTA_COUNT, QUOTA_SECONDS};

const _: () = assert!(QUOTA_SECONDS == 3600, "the quota below is per hour");

pub fn build(keys: &[String]) -> Box<dyn Contender> {
    let count = NonZeroU32::new(QUOTA_COUNT).expect("the quota is not zero");
    let limiter: DefaultKeyedRateLimiter<String> = RateLimiter::keyed(Quota::per_hour(count));
    let governor = Governor(limiter);
    assert_eq!(governor.decide_all(keys), keys.len());
    Box::new(governor)
}

struct Governor(DefaultKeyedRateLimiter<String>);

impl Contender for Governor {
    #[inline(always)]
    fn decide(&self, key: &String) -> bool {
        self.0.check_key(key).is_ok()
    }
}
