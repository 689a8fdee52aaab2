//! The throttlecrab library. Its limiter takes `&mut self`, so its users, and we, put it behind a mutex.
//!
//! Its `PeriodicStore` is the fastest of its three here: the adaptive one sweeps the whole table every 100,000
//! decisions and the probabilistic one every thousand.

use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use ::throttlecrab::{PeriodicStore, RateLimiter};

use crate::contender::{Contender, QUOTA_COUNT, QUOTA_SECONDS};

pub fn build(keys: &[String]) -> Box<dyn Contender> {
    let store = PeriodicStore::with_capacity(keys.len());
    let throttlecrab = Throttlecrab(Mutex::new(RateLimiter::new(store)));
    assert_eq!(throttlecrab.decide_all(keys), keys.len());
    Box::new(throttlecrab)
}

struct Throttlecrab(Mutex<RateLimiter<PeriodicStore>>);

impl Contender for Throttlecrab {
    #[inline(always)]
    fn decide(&self, key: &String) -> bool {
        let (count, period) = (i64::from(QUOTA_COUNT), i64::from(QUOTA_SECONDS));
        let mut limiter = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let result = limiter.rate_limit(key, count, count, period, 1, SystemTime::now());
        result.expect("the memory store does not fail").0
    }
}
