//! What this node denies by itself.
//!
//! After a denial with a wait the same key need not be asked about again until the wait is over: so a
//! flood from somebody who is denied costs Redis one call a second and not one a request. A second is
//! the most, so that what happens elsewhere (a refund, a reset, another quota) is seen soon.

use std::collections::HashMap;
use std::mem;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;
use tollgate_core::{Cost, Decision, Micros, Outcome, Timestamp};

use super::bounds::DENIALS_MAX;
use crate::fingerprint::Fingerprint;

/// The longest that a node denies by itself.
const LONGEST: Micros = Micros::from_secs(1);

const SHARDS: usize = 16;

/// Denials that are still good, by key. What does not fit is forgotten, the oldest first, and costs a
/// call more.
#[derive(Debug, Default)]
pub(crate) struct Denials([Mutex<Shard>; SHARDS]);

/// Two generations: when the younger one is full the older one goes.
#[derive(Debug)]
struct Shard {
    young: HashMap<Fingerprint, Denial>,
    old: HashMap<Fingerprint, Denial>,
    given_back: GivenBack,
}

/// When keys were last given something back: what was asked before may be no longer so. Two
/// generations as well.
#[derive(Debug)]
struct GivenBack {
    young: HashMap<Fingerprint, Timestamp>,
    old: HashMap<Fingerprint, Timestamp>,
    /// No key that is in neither was given anything later.
    others: Timestamp,
}

/// A key that was denied, and what was told of the request's other keys then.
#[derive(Clone, Debug)]
pub(crate) struct Denial {
    /// The number of the limit that denied: another one is asked.
    limit: u32,
    cost: Cost,
    /// When the answer was there: waits are counted from then, so that none is told too short.
    told_at: Timestamp,
    /// Counted from the question, so that none is denied for too long.
    until: Timestamp,
    decision: Decision,
    others: SmallVec<[(Fingerprint, Decision); 2]>,
}

/// Entries of one generation of a shard.
const GENERATION: usize = DENIALS_MAX / SHARDS / 2;

impl Default for Shard {
    fn default() -> Self {
        let given_back =
            GivenBack { young: HashMap::new(), old: HashMap::new(), others: Timestamp::EPOCH };
        Self { young: HashMap::new(), old: HashMap::new(), given_back }
    }
}

impl GivenBack {
    fn note(&mut self, key: Fingerprint, now: Timestamp) {
        if self.young.len() >= GENERATION {
            let old = mem::replace(&mut self.old, mem::take(&mut self.young));
            self.others = old.into_values().fold(self.others, Timestamp::max);
        }
        self.young.insert(key, now);
    }

    fn last(&self, key: Fingerprint) -> Timestamp {
        let known = self.young.get(&key).or_else(|| self.old.get(&key));
        known.copied().unwrap_or(self.others)
    }
}

impl Denials {
    /// Remembers that a request of `cost` was denied by `decision`, from when it was asked to when it
    /// was told, if that is of use.
    pub(crate) fn note(
        &self,
        key: Fingerprint,
        limit: u32,
        cost: Cost,
        decision: Decision,
        asked: Range<Timestamp>,
        others: SmallVec<[(Fingerprint, Decision); 2]>,
    ) {
        let wait = match decision.outcome {
            Outcome::Denied { retry_after: Some(wait) } => wait.min(LONGEST),
            Outcome::TooCostly => LONGEST,
            Outcome::Denied { retry_after: None } | Outcome::Allowed { .. } => return,
        };
        let until = asked.start.plus(wait);
        let mut shard = self.shard_of(key);
        if asked.start < shard.given_back.last(key) {
            return;
        }
        if shard.young.len() >= GENERATION {
            shard.old = mem::take(&mut shard.young);
        }
        let told_at = asked.end;
        shard.young.insert(key, Denial { limit, cost, told_at, until, decision, others });
    }

    /// Why a request of `cost` is denied without asking anybody, if it is.
    pub(crate) fn get(
        &self,
        key: Fingerprint,
        limit: u32,
        cost: Cost,
        now: Timestamp,
    ) -> Option<Denial> {
        let shard = self.shard_of(key);
        let known = shard.young.get(&key).or_else(|| shard.old.get(&key))?;
        let is_same = limit == known.limit && cost >= known.cost;
        let is_good = is_same && now >= known.told_at && now < known.until;
        is_good.then(|| known.clone())
    }

    /// Something was given back: the key is asked about again.
    pub(crate) fn forget(&self, key: Fingerprint, now: Timestamp) {
        let mut shard = self.shard_of(key);
        shard.given_back.note(key, now);
        shard.young.remove(&key);
        shard.old.remove(&key);
    }

    fn shard_of(&self, key: Fingerprint) -> MutexGuard<'_, Shard> {
        let shard = &self.0[key.number() as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Denial {
    /// What is told of the key itself.
    pub(crate) fn decision(&self, now: Timestamp) -> Decision {
        later(self.decision, now.since(self.told_at))
    }

    /// What is told of another key of the same request, if it was one of the denied request too.
    pub(crate) fn decision_of(&self, other: Fingerprint, now: Timestamp) -> Option<Decision> {
        let (_, decision) = self.others.iter().find(|(key, _)| *key == other)?;
        Some(later(*decision, now.since(self.told_at)))
    }
}

/// A decision told again when some time has passed.
fn later(decision: Decision, passed: Micros) -> Decision {
    let less = |wait: Micros| Micros::new(wait.as_micros().saturating_sub(passed.as_micros()));
    let outcome = match decision.outcome {
        Outcome::Denied { retry_after } => Outcome::Denied { retry_after: retry_after.map(less) },
        other => other,
    };
    Decision {
        outcome,
        reset_after: less(decision.reset_after),
        next_after: decision.next_after.map(less),
        ..decision
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u32 = 3;
    const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    fn key(number: u64) -> Fingerprint {
        Fingerprint { first: number, second: 0 }
    }

    fn at(millis: u64) -> Timestamp {
        START.plus(Micros::from_millis(millis))
    }

    fn denied_for(millis: u64) -> Decision {
        let wait = Micros::from_millis(millis);
        Decision {
            outcome: Outcome::Denied { retry_after: Some(wait) },
            limit: 5,
            remaining: 0,
            reset_after: Micros::from_millis(2 * millis),
            next_after: Some(wait),
        }
    }

    fn noted(denials: &Denials, number: u64, cost: u32, decision: Decision) {
        denials.note(key(number), LIMIT, Cost::new(cost), decision, START..START, SmallVec::new());
    }

    #[test]
    fn a_denial_is_good_until_its_wait_is_over_and_a_second_at_most() {
        let denials = Denials::default();
        for (number, wait, good_until) in [(1, 400, 400), (2, 60_000, 1_000)] {
            noted(&denials, number, 1, denied_for(wait));
            let denied = |millis| denials.get(key(number), LIMIT, Cost::ONE, at(millis)).is_some();
            assert!(denied(0) && denied(good_until - 1) && !denied(good_until), "{wait} ms");
        }
    }

    #[test]
    fn a_request_that_costs_less_is_asked_about() {
        let denials = Denials::default();
        noted(&denials, 1, 3, denied_for(400));
        let denied = |cost| denials.get(key(1), LIMIT, Cost::new(cost), at(1)).is_some();
        assert_eq!([0, 2, 3, 4].map(denied), [false, false, true, true]);
    }

    #[test]
    fn a_request_under_another_limit_is_asked_about() {
        let denials = Denials::default();
        noted(&denials, 1, 1, denied_for(400));
        assert!(denials.get(key(1), LIMIT + 1, Cost::ONE, at(1)).is_none());
    }

    #[test]
    fn waits_told_again_are_shorter_by_what_has_passed() {
        let denials = Denials::default();
        let others = SmallVec::from_slice(&[(key(9), denied_for(700))]);
        denials.note(key(1), LIMIT, Cost::ONE, denied_for(400), START..START, others);
        let denial = denials.get(key(1), LIMIT, Cost::ONE, at(150)).expect("it is good");
        let told = denial.decision(at(150));
        assert_eq!(told.retry_after(), Some(Micros::from_millis(250)));
        assert_eq!(told.reset_after, Micros::from_millis(650));
        let other = denial.decision_of(key(9), at(150)).expect("it was there");
        assert_eq!(other.next_after, Some(Micros::from_millis(550)));
        assert!(denial.decision_of(key(8), at(150)).is_none());
    }

    #[test]
    fn what_has_no_wait_is_asked_about_each_time_unless_no_wait_helps() {
        let denials = Denials::default();
        let unknown = Decision { outcome: Outcome::Denied { retry_after: None }, ..denied_for(1) };
        let allowed = Decision { outcome: Outcome::Allowed { delay: Micros::ZERO }, ..unknown };
        let too_costly = Decision { outcome: Outcome::TooCostly, ..unknown };
        for (number, decision) in [(1, unknown), (2, allowed), (3, too_costly)] {
            noted(&denials, number, 1, decision);
        }
        let denied = |number| denials.get(key(number), LIMIT, Cost::ONE, at(999)).is_some();
        assert_eq!([1, 2, 3].map(denied), [false, false, true]);
    }

    #[test]
    fn a_key_that_was_given_something_back_is_asked_about() {
        let denials = Denials::default();
        noted(&denials, 1, 1, denied_for(400));
        denials.forget(key(1), at(1));
        let is_denied = || denials.get(key(1), LIMIT, Cost::ONE, at(2)).is_some();
        assert!(!is_denied());
        noted(&denials, 1, 1, denied_for(400));
        assert!(!is_denied(), "the answer to what was asked before came only now");
        denials.note(key(1), LIMIT, Cost::ONE, denied_for(400), at(1)..at(1), SmallVec::new());
        assert!(is_denied());
    }

    #[test]
    fn what_others_are_given_back_is_no_reason_to_ask_about_a_key() {
        let denials = Denials::default();
        let of_its_shard = |number| key(1 + SHARDS as u64 * number);
        (1..100).for_each(|number| denials.forget(of_its_shard(number), at(1)));
        noted(&denials, 1, 1, denied_for(400));
        assert!(denials.get(key(1), LIMIT, Cost::ONE, at(2)).is_some());
    }

    #[test]
    fn a_flood_of_keys_that_are_given_something_back_does_not_make_an_old_answer_good() {
        let denials = Denials::default();
        denials.forget(key(1), at(1));
        let of_its_shard = |number| key(1 + SHARDS as u64 * number);
        for number in 1..4 * GENERATION as u64 {
            denials.forget(of_its_shard(number), at(2));
        }
        noted(&denials, 1, 1, denied_for(400));
        assert!(denials.get(key(1), LIMIT, Cost::ONE, at(2)).is_none());
        let given_back = &denials.shard_of(key(1)).given_back;
        assert!(given_back.young.len() + given_back.old.len() <= 2 * GENERATION);
    }

    #[test]
    fn a_wait_is_told_from_the_answer_on_and_good_from_the_question_on() {
        let denials = Denials::default();
        let asked = at(0)..at(30);
        denials.note(key(1), LIMIT, Cost::ONE, denied_for(400), asked, SmallVec::new());
        let denial = |millis| denials.get(key(1), LIMIT, Cost::ONE, at(millis));
        let told = denial(130).expect("it is good").decision(at(130));
        assert_eq!(told.retry_after(), Some(Micros::from_millis(300)));
        assert!(denial(399).is_some() && denial(400).is_none());
    }

    #[test]
    fn a_flood_of_denied_keys_leaves_no_more_than_the_bound_behind() {
        let denials = Denials::default();
        for number in 0..4 * DENIALS_MAX as u64 {
            noted(&denials, number, 1, denied_for(400));
        }
        let kept = |shard: &Mutex<Shard>| {
            let shard = shard.lock().expect("nobody panicked");
            shard.young.len() + shard.old.len()
        };
        let all: usize = denials.0.iter().map(kept).sum();
        assert!(all <= DENIALS_MAX, "{all}");
        let last = 4 * DENIALS_MAX as u64 - 1;
        assert!(denials.get(key(last), LIMIT, Cost::ONE, at(1)).is_some());
    }
}
