//! Leaky bucket: a queue whose requests are released one by one, at the rate.
//!
//! It is a token bucket that also says how long to hold what it allows: as long as the debt made
//! before it takes to be repaid. However spiky the arrivals, releases are never closer together
//! than the rate. The queue counts the request that leaves at once, so an idle queue of five takes
//! five requests: one leaves now, four wait.
//!
//! The Redis twin of this file is `lua/leaky_bucket.lua`.

use crate::bounds::EXACT_MAX;
use crate::token_bucket::TokenBucket;
use crate::{Cost, Decision, Micros, Outcome, Quota, QuotaError, Receipt, Timestamp};
use crate::{Step, Word};

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
    pub(crate) fn step(&self, word: Word, now: Timestamp, cost: Cost) -> Step {
        let word = self.bucket.anchored(word, now);
        let standing = self.bucket.standing(word, now);
        let delay = self.bucket.repaid_in(standing.debt, &standing);
        match self.bucket.room(cost) {
            Some(room) if standing.debt <= room && self.until_short(delay, cost).is_zero() => {
                let price = self.bucket.capacity() - room;
                Step { delay, ..self.bucket.charged(word, &standing, cost, price) }
            }
            _ => Step::refused(word),
        }
    }

    pub(crate) fn force(&self, word: Word, now: Timestamp, cost: Cost) -> Step {
        self.bucket.force(word, now, cost)
    }

    /// The decision that a step was.
    #[inline]
    pub(crate) fn tell(&self, step: &Step, now: Timestamp, cost: Cost) -> Decision {
        let outcome = step.allowed().unwrap_or_else(|| self.refusal(step.word, now, cost));
        self.decision(outcome, step.word, now)
    }

    /// Why a request was refused.
    fn refusal(&self, word: Word, now: Timestamp, cost: Cost) -> Outcome {
        let Some(room) = self.bucket.room(cost) else { return Outcome::TooCostly };
        let standing = self.bucket.standing(word, now);
        let until_room = self.bucket.repaid_in(standing.debt.saturating_sub(room), &standing);
        let delay = self.bucket.repaid_in(standing.debt, &standing);
        Outcome::Denied { retry_after: Some(until_room.max(self.until_short(delay, cost))) }
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

    /// The figures of a state at `now`. While the next request would wait too long nothing can be
    /// taken, whatever the queue holds.
    #[inline]
    fn decision(&self, outcome: Outcome, word: Word, now: Timestamp) -> Decision {
        let decision = self.bucket.decision(outcome, word, now);
        let until_short = self.until_short(decision.reset_after, Cost::ONE);
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

    /// How long until a request that would wait `delay` now would wait no longer than it may. A
    /// peek is never held, so it may look at a queue that is too long to join.
    #[inline]
    fn until_short(&self, delay: Micros, cost: Cost) -> Micros {
        if cost == Cost::PEEK {
            return Micros::ZERO;
        }
        Micros::new(delay.as_micros().saturating_sub(self.max_delay.as_micros()))
    }
}
