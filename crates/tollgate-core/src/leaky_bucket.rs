//! Leaky bucket: a queue whose requests are released one by one, at the rate.
//!
//! It is a token bucket that also says how long to hold what it allows: as long as the debt made
//! before it takes to be repaid. However spiky the arrivals, releases are never closer together
//! than the rate. The queue counts the request that leaves at once, so an idle queue of five takes
//! five requests: one leaves now, four wait.
//!
//! The Redis twin of this file is `lua/leaky_bucket.lua`.

use crate::bounds::EXACT_MAX;
use crate::token_bucket::{Standing, TokenBucket};
use crate::{Cost, Decision, Micros, Outcome, Quota, QuotaError, Receipt, Timestamp};
use crate::{Transition, Word};

/// A queue of requests released at a quota's rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeakyBucket {
    bucket: TokenBucket,
    max_delay: Micros,
}

impl LeakyBucket {
    /// A queue of `queue` requests released at the rate of `quota`, in which nobody waits longer
    /// than `max_delay`, if one is given.
    pub fn new(quota: Quota, queue: u32, max_delay: Option<Micros>) -> Result<Self, QuotaError> {
        let bucket = TokenBucket::new(quota, queue)?;
        // Nothing takes longer than all of time, so that is as good as no bound.
        let ever = Micros::new(EXACT_MAX);
        Ok(Self { bucket, max_delay: max_delay.unwrap_or(ever).min(ever) })
    }

    /// The numbers that define this limit to its Redis twin.
    pub fn numbers(&self) -> [u64; 5] {
        let [ticks_per_unit, ticks_per_micro, queue, period] = self.bucket.numbers();
        [ticks_per_unit, ticks_per_micro, queue, period, self.max_delay.as_micros()]
    }

    /// The limit that has these [`numbers`](Self::numbers), if one has.
    pub fn from_numbers(numbers: [u64; 5]) -> Option<Self> {
        let [ticks_per_unit, ticks_per_micro, queue, period, max_delay] = numbers;
        let numbers = [ticks_per_unit, ticks_per_micro, queue, period];
        let bucket = TokenBucket::from_numbers(numbers)?;
        let max_delay = Micros::new(max_delay);
        (max_delay.as_micros() <= EXACT_MAX).then_some(Self { bucket, max_delay })
    }

    #[inline]
    pub(crate) fn decide(&self, word: Word, now: Timestamp, cost: Cost) -> Transition {
        let word = self.bucket.anchored(word, now);
        let standing = self.bucket.standing(word, now);
        if cost.units() > self.bucket.burst() {
            return Transition::refused(word, self.decision(Outcome::TooCostly, &standing));
        }
        let price = self.bucket.price(cost);
        let delay = self.bucket.repaid_in(standing.debt, &standing);
        let until_room = self
            .bucket
            .repaid_in(standing.debt.saturating_sub(self.bucket.capacity() - price), &standing);
        // A peek is never held, so it may look at a queue that is too long to join.
        let until_short = if cost == Cost::PEEK { Micros::ZERO } else { self.until_short(delay) };
        if until_room.is_zero() && until_short.is_zero() {
            return self.in_time(self.bucket.charged(word, standing, cost, price, delay));
        }
        let retry_after = Some(until_room.max(until_short));
        Transition::refused(word, self.decision(Outcome::Denied { retry_after }, &standing))
    }

    pub(crate) fn force(&self, word: Word, now: Timestamp, cost: Cost) -> Transition {
        self.in_time(self.bucket.force(word, now, cost))
    }

    pub(crate) fn refund(&self, word: Word, now: Timestamp, receipt: &Receipt) -> Word {
        self.bucket.refund(word, now, receipt)
    }

    pub(crate) fn vacant_at(&self, word: Word) -> Timestamp {
        self.bucket.vacant_at(word)
    }

    /// The bucket that keeps the count.
    pub(crate) const fn bucket(&self) -> &TokenBucket {
        &self.bucket
    }

    /// How long until a request that would wait `delay` now would wait no longer than it may.
    #[inline]
    fn until_short(&self, delay: Micros) -> Micros {
        Micros::new(delay.as_micros().saturating_sub(self.max_delay.as_micros()))
    }

    #[inline]
    fn decision(&self, outcome: Outcome, standing: &Standing) -> Decision {
        let delay = self.bucket.repaid_in(standing.debt, standing);
        self.bounded_by_delay(self.bucket.decision(outcome, standing), delay)
    }

    /// The same transition, with the figures that `max_delay` changes.
    #[inline]
    fn in_time(&self, transition: Transition) -> Transition {
        let decision = transition.decision;
        let decision = self.bounded_by_delay(decision, decision.reset_after);
        Transition { decision, ..transition }
    }

    /// While the next request would wait too long nothing can be taken, whatever the queue holds.
    #[inline]
    fn bounded_by_delay(&self, decision: Decision, delay: Micros) -> Decision {
        let until_short = self.until_short(delay);
        if until_short.is_zero() {
            return decision;
        }
        let next_after = if decision.remaining == 0 {
            decision.next_after.map(|next| next.max(until_short))
        } else {
            Some(until_short)
        };
        Decision { remaining: 0, next_after, ..decision }
    }
}
