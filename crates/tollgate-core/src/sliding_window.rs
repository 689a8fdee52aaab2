//! Sliding window, estimated from two counters: this window's, and the last one's fading out as it
//! slides away.
//!
//! The estimate is ⌊previous × (1 − elapsed ⁄ period)⌋ + current. It supposes that the last
//! window's requests came evenly; an adversary who times their end can get twice the
//! limit into one period.
//!
//! The Redis twin of this file is `lua/sliding_window.lua`.

use crate::bounds::WINDOW_NUMBER_MAX;
use crate::divisor::Divisor;
use crate::{Cost, Decision, Micros, Outcome, Quota, Receipt, Step, Timestamp, Word};

/// So many units in any period, as two counters can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingWindow {
    quota: Quota,
    period: Divisor,
}

/// What is remembered of one key. Windows are numbered from the epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    current: u32,
    previous: u32,
    number: u64,
}

/// The counts as they stand at the moment of a request.
#[derive(Clone, Copy)]
struct Standing {
    counts: Counts,
    /// Ahead of the clock if that went back.
    moment: Timestamp,
    /// How much of the window has passed.
    elapsed: u64,
    /// How far the clock is behind the window that was already counted.
    behind: Micros,
    /// What is left of the previous count, and what is left over of that in parts of the period.
    faded: u64,
    part: u64,
}

impl SlidingWindow {
    /// The quota's count in any of its periods.
    pub const fn new(quota: Quota) -> Self {
        Self { quota, period: Divisor::new(quota.period().as_micros()) }
    }

    /// The numbers that define this limit to its Redis twin: count and period.
    pub fn numbers(&self) -> [u64; 2] {
        [u64::from(self.quota.count()), self.period()]
    }

    #[inline]
    pub(crate) fn step(&self, word: Word, now: Timestamp, cost: Cost) -> Step {
        let word = self.anchored(word, now);
        self.step_from(word, &self.standing(word, now), cost)
    }

    #[inline]
    fn step_from(&self, word: Word, standing: &Standing, cost: Cost) -> Step {
        if standing.estimate() + cost.get() > u64::from(self.quota.count()) {
            return Step::refused(word);
        }
        self.charged(word, standing, cost)
    }

    /// A step with the decision that it was. What is left of the previous count is worked out once for both.
    #[inline]
    pub(crate) fn decide(&self, word: Word, now: Timestamp, cost: Cost) -> (Step, Decision) {
        let word = self.anchored(word, now);
        let mut standing = self.standing(word, now);
        let step = self.step_from(word, &standing, cost);
        let outcome = step.allowed().unwrap_or_else(|| self.refusal(&standing, cost));
        standing.counts.current += step.receipt.cost.units();
        (step, self.decision(outcome, &standing))
    }

    pub(crate) fn force(&self, word: Word, now: Timestamp, cost: Cost) -> Step {
        let word = self.anchored(word, now);
        self.charged(word, &self.standing(word, now), cost)
    }

    /// The decision that a step was.
    #[inline]
    pub(crate) fn tell(&self, step: &Step, now: Timestamp, cost: Cost) -> Decision {
        let standing = self.standing(step.word, now);
        let outcome = step.allowed().unwrap_or_else(|| self.refusal(&standing, cost));
        self.decision(outcome, &standing)
    }

    /// Why a request was refused.
    fn refusal(&self, standing: &Standing, cost: Cost) -> Outcome {
        let Some(room) = u64::from(self.quota.count()).checked_sub(cost.get()) else {
            return Outcome::TooCostly;
        };
        Outcome::Denied { retry_after: Some(self.falls_to(room, standing)) }
    }

    pub(crate) fn refund(&self, word: Word, now: Timestamp, receipt: &Receipt) -> Word {
        // Which window a charge was made in is told by the times it was written with, before they
        // are brought back.
        let number = Counts::from(word).number;
        let mut counts = Counts::from(self.anchored(word, now));
        let units = receipt.cost.units();
        match number.checked_sub(self.number_at(receipt.at)) {
            Some(0) => counts.current = counts.current.saturating_sub(units),
            Some(1) => counts.previous = counts.previous.saturating_sub(units),
            _ => {}
        }
        if (counts.current, counts.previous) == (0, 0) { Word::VACANT } else { counts.into() }
    }

    pub(crate) fn vacant_at(&self, word: Word) -> Timestamp {
        let counts = Counts::from(word);
        let start = Timestamp::from_micros(counts.number.saturating_mul(self.period()));
        start.plus(self.falls_to(0, &self.standing_at(counts, start, 0, Micros::ZERO)))
    }

    /// Units in use at `now`, rounded up, and the moment they count from: ahead of `now` if the
    /// clock went back.
    pub(crate) fn used(&self, word: Word, now: Timestamp) -> (u32, Timestamp) {
        let standing = self.standing(word, now);
        let estimate = standing.estimate();
        // What is estimated at nothing may have been forgotten, so it must count as nothing.
        let used = if estimate == 0 { 0 } else { estimate + u64::from(standing.part > 0) };
        (u32::try_from(used).unwrap_or(u32::MAX), standing.moment)
    }

    pub(crate) fn with_used(&self, used: u32, now: Timestamp) -> Word {
        Counts { current: used, previous: 0, number: self.number_at(now) }.into()
    }

    /// No window starts after the end of time.
    pub(crate) fn can_be_at(&self, word: Word) -> bool {
        let counts = Counts::from(word);
        (word.low | word.high) >> Word::HALF_BITS == 0
            && counts.number <= self.number_at(Timestamp::END)
    }

    pub(crate) fn counts_like(&self, other: &Self) -> bool {
        self.quota.period() == other.quota.period()
    }

    /// The counters as its Redis twin keeps them: current, previous, number of the window.
    pub(crate) fn counters(word: Word) -> [u64; 3] {
        let Counts { current, previous, number } = word.into();
        [current.into(), previous.into(), number]
    }

    pub(crate) const fn quota(&self) -> Quota {
        self.quota
    }

    #[inline]
    const fn period(&self) -> u64 {
        self.period.get()
    }

    /// The number of the window that a moment is in.
    #[inline]
    fn number_at(&self, moment: Timestamp) -> u64 {
        self.period.divide(moment.as_micros())
    }

    /// A window more than one period ahead counts as the next one: a clock that stepped back locks
    /// nobody out for longer.
    #[inline]
    pub(crate) fn anchored(&self, word: Word, now: Timestamp) -> Word {
        let counts = Counts::from(word);
        // Multiplying is cheaper than dividing, and the common case is a window not ahead at all.
        if counts.number.saturating_mul(self.period()) <= now.as_micros() {
            return word;
        }
        let latest = self.number_at(now) + 1;
        Counts { number: counts.number.min(latest), ..counts }.into()
    }

    #[inline]
    fn standing(&self, word: Word, moment: Timestamp) -> Standing {
        let stored = Counts::from(word);
        let (now, period) = (moment.as_micros(), self.period());
        let start = stored.number.saturating_mul(period);
        if start > now {
            let behind = Micros::new(start - now);
            return self.standing_at(stored, Timestamp::from_micros(start), 0, behind);
        }
        let behind = Micros::ZERO;
        let elapsed = now - start;
        if elapsed < period {
            return self.standing_at(stored, moment, elapsed, behind);
        }
        let number = self.period.divide(now);
        let previous = if elapsed < 2 * period { stored.current } else { 0 };
        let counts = Counts { current: 0, previous, number };
        self.standing_at(counts, moment, now - number * period, behind)
    }

    #[inline]
    fn standing_at(
        &self,
        counts: Counts,
        moment: Timestamp,
        elapsed: u64,
        behind: Micros,
    ) -> Standing {
        let (faded, part) = self.faded(counts.previous.into(), self.period() - elapsed);
        Standing { counts, moment, elapsed, behind, faded, part }
    }

    /// What is left of a previous count when there is so much left of its window's successor.
    #[inline]
    fn faded(&self, previous: u64, rest: u64) -> (u64, u64) {
        match previous.checked_mul(rest) {
            Some(product) if product < Divisor::BOUND => {
                let whole = self.period.divide(product);
                (whole, product - whole * self.period())
            }
            _ => multiply_divide(previous, rest, self.period()),
        }
    }

    /// How long until the estimate is one less, or at most `room` if that is less.
    #[inline]
    fn falls_by_one(&self, room: u64, standing: &Standing) -> Micros {
        if standing.faded == 0 || standing.estimate() - 1 != room {
            return self.falls_to(room, standing);
        }
        // What is left over fades first, and then the next moment takes one more.
        let wait = standing.part / u64::from(standing.counts.previous) + 1;
        Micros::new(wait).plus(standing.behind)
    }

    /// How long until the estimate is at most `room`.
    #[inline]
    fn falls_to(&self, room: u64, standing: &Standing) -> Micros {
        let Counts { current, previous, .. } = standing.counts;
        let current = u64::from(current);
        let wait = if current <= room {
            self.faded_at(previous.into(), room - current).saturating_sub(standing.elapsed)
        } else {
            self.period() - standing.elapsed + self.faded_at(current, room)
        };
        if wait == 0 { Micros::ZERO } else { Micros::new(wait).plus(standing.behind) }
    }

    /// How far into a window its `previous` count has faded to at most `room`.
    #[inline]
    fn faded_at(&self, previous: u64, room: u64) -> u64 {
        if previous <= room {
            return 0;
        }
        // The first moment at which previous × rest < (room + 1) × period.
        let (whole, part) = multiply_divide(room + 1, self.period(), previous);
        self.period() + 1 - whole - u64::from(part > 0)
    }

    #[inline]
    fn charged(&self, word: Word, standing: &Standing, cost: Cost) -> Step {
        let counts = standing.counts;
        let current = counts.current.saturating_add(cost.units());
        let taken = Cost::new(current - counts.current);
        Step {
            word: if cost == Cost::PEEK { word } else { Counts { current, ..counts }.into() },
            is_allowed: true,
            delay: Micros::ZERO,
            receipt: Receipt { at: standing.moment, cost: taken, debt_before: 0 },
        }
    }

    /// The figures of a state, with the outcome that led to it.
    #[inline]
    fn decision(&self, outcome: Outcome, standing: &Standing) -> Decision {
        let used = standing.estimate();
        let limit = u64::from(self.quota.count());
        let remaining = limit.saturating_sub(used);
        let (reset_after, next_after) = if used == 0 {
            (Micros::ZERO, Micros::ZERO)
        } else {
            let next = limit.saturating_sub(remaining + 1);
            (self.falls_to(0, standing), self.falls_by_one(next, standing))
        };
        Decision {
            outcome,
            limit: self.quota.count(),
            remaining: remaining as u32,
            reset_after,
            next_after: Some(next_after),
        }
    }
}

impl Standing {
    #[inline]
    fn estimate(&self) -> u64 {
        u64::from(self.counts.current) + self.faded
    }
}

impl From<Word> for Counts {
    #[inline]
    fn from(word: Word) -> Self {
        Self {
            current: word.low as u32,
            previous: word.high as u32,
            number: (word.low >> 32) | (word.high >> 32) << 22,
        }
    }
}

impl From<Counts> for Word {
    #[inline]
    fn from(counts: Counts) -> Self {
        debug_assert!(counts.number <= WINDOW_NUMBER_MAX);
        let low_bits = counts.number & ((1 << 22) - 1);
        Self {
            low: u64::from(counts.current) | low_bits << 32,
            high: u64::from(counts.previous) | (counts.number >> 22) << 32,
        }
    }
}

/// `a × b ÷ c`, whole and remainder, without overflow.
#[inline]
fn multiply_divide(a: u64, b: u64, c: u64) -> (u64, u64) {
    if let Some(product) = a.checked_mul(b) {
        return (product / c, product % c);
    }
    let product = u128::from(a) * u128::from(b);
    // Both callers divide a product by at least one of its larger factors.
    ((product / u128::from(c)) as u64, (product % u128::from(c)) as u64)
}
