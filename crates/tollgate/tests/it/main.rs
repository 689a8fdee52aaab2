//! The limiter from the outside, on a clock that stands still until it is moved.

mod bodies;
mod docs;
mod envoy;
mod examples;
mod fields;
mod identity;
#[cfg(feature = "tower")]
mod layer;
mod limiter;
mod metrics;
mod observe;
mod operator;
#[cfg(feature = "redis")]
mod redis;
mod settle;
mod tenants;

use std::sync::Arc;

use tollgate::{Clock, Cost, Limiter, MemoryStore, Micros, Missing, Policy, Request};
use tollgate::{Ruling, Timestamp, Verdict};

/// A midnight in 2025, so that a window of any length begins with the test.
const MIDNIGHT: Timestamp = Timestamp::from_micros(1_760_054_400_000_000);

/// A limiter under test, and the clock it goes by.
struct Gate {
    limiter: Limiter,
    store: Arc<MemoryStore>,
    clock: Clock,
}

impl Gate {
    /// A gate under a policy that names no other file.
    fn new(policy: &str) -> Self {
        Self::under(parse(policy))
    }

    fn under(policy: Policy) -> Self {
        Self::of_size(policy, 1 << 20)
    }

    fn of_size(policy: Policy, max_bytes: usize) -> Self {
        let clock = Clock::manual(MIDNIGHT);
        let store = MemoryStore::with_max_bytes(clock.clone(), max_bytes).expect("a megabyte");
        let store = Arc::new(store);
        let limiter = Limiter::new(policy, Arc::clone(&store)).expect("a handful of limits");
        Self { limiter, store, clock }
    }

    /// A request over the API.
    fn check(&self, attributes: &[(&str, &str)]) -> Verdict {
        self.ask(attributes, Cost::ONE, Missing::Skip)
    }

    fn check_costing(&self, cost: u32, attributes: &[(&str, &str)]) -> Verdict {
        self.ask(attributes, Cost::new(cost), Missing::Skip)
    }

    /// A request at a door that faces clients.
    fn check_at_door(&self, attributes: &[(&str, &str)]) -> Verdict {
        self.ask(attributes, Cost::ONE, Missing::Shared)
    }

    fn ask(&self, attributes: &[(&str, &str)], cost: Cost, missing: Missing) -> Verdict {
        let attributes: Vec<(&str, &[u8])> =
            attributes.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        self.limiter.check(&Request { cost, missing, ..Request::new(&attributes) })
    }

    /// Whether a request is allowed.
    fn allows(&self, attributes: &[(&str, &str)]) -> bool {
        self.check(attributes).is_allowed()
    }

    /// How many of so many requests at one moment are allowed.
    fn admitted(&self, tries: u32, attributes: &[(&str, &str)]) -> u32 {
        (0..tries).map(|_| u32::from(self.allows(attributes))).sum()
    }

    /// What is left to a request of each limit that applies to it, without taking any of it.
    fn left(&self, attributes: &[(&str, &str)]) -> Vec<u32> {
        left(&self.check_costing(0, attributes))
    }

    fn advance(&self, by: &str) {
        self.clock.advance(time(by));
    }
}

fn parse(policy: &str) -> Policy {
    parse_with(policy, "keys: {}")
}

/// Reads a policy that must be right, with its tenants file.
fn parse_with(policy: &str, tenants: &str) -> Policy {
    let read = &mut |_: &str| Ok(tenants.to_owned());
    Policy::parse("policy.yaml", policy, read).unwrap_or_else(|mistakes| panic!("{mistakes}"))
}

fn time(text: &str) -> Micros {
    text.parse().expect("a time as a policy writes it")
}

/// What is left of each limit that applied.
fn left(verdict: &Verdict) -> Vec<u32> {
    let decisions = verdict.answers().filter_map(|answer| answer.decision());
    decisions.map(|decision| decision.remaining).collect()
}

/// Which limits denied a request, enforced or not.
fn deniers(verdict: &Verdict) -> Vec<String> {
    let denials = verdict.answers().filter(|answer| !answer.is_allowed());
    denials.map(|answer| answer.rule().name().to_string()).collect()
}

/// Says that a request was ruled out before any limit was asked.
fn check_ruled_out(verdict: &Verdict, ruling: Ruling) {
    assert_eq!(verdict.ruling(), ruling);
    assert_eq!(verdict.answers().len(), 0);
    assert_eq!((verdict.retry_after(), verdict.delay()), (None, Micros::ZERO));
    assert!(verdict.tightest().is_none());
}
