//! Sliding window, estimated from two counters: this window's, and the last one's fading out as it
//! slides away.
//!
//! The estimate is ⌊previous × (1 − elapsed ⁄ period)⌋ + current. It supposes that the last
//! window's requests came evenly; an adversary who times their end can get twice the
//! limit into one period.
//!
//! The Redis twin of this file is `lua/sliding_window.lua`.

use crate::bounds::WINDOW_NUMBER_MAX;
use crate::{Cost, Decision, Micros, Outcome, Quota, Receipt, Step, Timestamp, Word};

/// So many units in any period, as two counters can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingWindow {
    quota: Quota,
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
    /// How much of the window has passed.
    elapsed: u64,
    /// How far the clock is behind the window that was already counted.
    behind: Micros,
}

impl SlidingWindow {
    /// The quota's count in any of its periods.
    pub const fn new(quota: Quota) -> Self {
        Self { quota }
    }

    /// The numbers that define this limit to its Redis twin: count and period.
    pub fn numbers(&self) -> [u64; 2] {
        [u64::from(self.quota.count()), self.period()]
    }

    #[inline]
    pub(crate) fn step(&self, word: Word, now: Timestamp, cost: Cost) -> Step {
        let word = self.anchored(word, now);
        let standing = self.standing(word, now);
        if self.estimate(&standing) + cost.get() > u64::from(self.quota.count()) {
            return Step::refused(word);
        }
        self.charged(word, &standing, cost)
    }

    pub(crate) fn force(&self, word: Word, now: Timestamp, cost: Cost) -> Step {
        let word = self.anchored(word, now);
        self.charged(word, &self.standing(word, now), cost)
    }

    /// Why a request was refused.
    pub(crate) fn refusal(&self, word: Word, now: Timestamp, cost: Cost) -> Outcome {
        let Some(room) = u64::from(self.quota.count()).checked_sub(cost.get()) else {
            return Outcome::TooCostly;
        };
        let wait = self.falls_to(room, &self.standing(word, now));
        Outcome::Denied { retry_after: Some(wait) }
    }

    pub(crate) fn refund(&self, word: Word, now: Timestamp, receipt: &Receipt) -> Word {
        // Which window a charge was made in is told by the times it was written with, before they
        // are brought back.
        let number = Counts::from(word).number;
        let mut counts = Counts::from(self.anchored(word, now));
        let units = receipt.cost.units();
        match number.checked_sub(receipt.at.as_micros() / self.period()) {
            Some(0) => counts.current = counts.current.saturating_sub(units),
            Some(1) => counts.previous = counts.previous.saturating_sub(units),
            _ => {}
        }
        if (counts.current, counts.previous) == (0, 0) { Word::VACANT } else { counts.into() }
    }

    pub(crate) fn vacant_at(&self, word: Word) -> Timestamp {
        let counts = Counts::from(word);
        let start = Timestamp::from_micros(counts.number.saturating_mul(self.period()));
        let standing = Standing { counts, elapsed: 0, behind: Micros::ZERO };
        start.plus(self.falls_to(0, &standing))
    }

    /// Units in use at `now`, rounded up, and the moment they count from: ahead of `now` if the
    /// clock went back.
    pub(crate) fn used(&self, word: Word, now: Timestamp) -> (u32, Timestamp) {
        let standing = self.standing(word, now);
        let rest = self.period() - standing.elapsed;
        let (whole, part) = multiply_divide(standing.counts.previous.into(), rest, self.period());
        let estimate = u64::from(standing.counts.current) + whole;
        // What is estimated at nothing may have been forgotten, so it must count as nothing.
        let used = if estimate == 0 { 0 } else { estimate + u64::from(part > 0) };
        (u32::try_from(used).unwrap_or(u32::MAX), self.moment(&standing))
    }

    pub(crate) fn with_used(&self, used: u32, now: Timestamp) -> Word {
        let number = now.as_micros() / self.period();
        Counts { current: used, previous: 0, number }.into()
    }

    /// No window starts after the end of time.
    pub(crate) fn can_be_at(&self, word: Word) -> bool {
        let counts = Counts::from(word);
        (word.low | word.high) >> Word::HALF_BITS == 0
            && counts.number <= Timestamp::END.as_micros() / self.period()
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
        self.quota.period().as_micros()
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
        let latest = now.as_micros() / self.period() + 1;
        Counts { number: counts.number.min(latest), ..counts }.into()
    }

    #[inline]
    fn standing(&self, word: Word, now: Timestamp) -> Standing {
        let stored = Counts::from(word);
        let (now, period) = (now.as_micros(), self.period());
        let start = stored.number.saturating_mul(period);
        if start > now {
            return Standing { counts: stored, elapsed: 0, behind: Micros::new(start - now) };
        }
        let behind = Micros::ZERO;
        let elapsed = now - start;
        if elapsed < period {
            return Standing { counts: stored, elapsed, behind };
        }
        let number = now / period;
        let previous = if elapsed < 2 * period { stored.current } else { 0 };
        let counts = Counts { current: 0, previous, number };
        Standing { counts, elapsed: now - number * period, behind }
    }

    /// The moment of a standing: ahead of the clock if that went back.
    #[inline]
    fn moment(&self, standing: &Standing) -> Timestamp {
        let start = standing.counts.number.saturating_mul(self.period());
        Timestamp::from_micros(start.saturating_add(standing.elapsed))
    }

    #[inline]
    fn estimate(&self, standing: &Standing) -> u64 {
        let Counts { current, previous, .. } = standing.counts;
        if previous == 0 {
            return current.into();
        }
        let rest = self.period() - standing.elapsed;
        u64::from(current) + multiply_divide(previous.into(), rest, self.period()).0
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
            receipt: Receipt { at: self.moment(standing), cost: taken, debt_before: 0 },
        }
    }

    /// The figures of a state at `now`, with the outcome that led to it.
    pub(crate) fn decision(&self, outcome: Outcome, word: Word, now: Timestamp) -> Decision {
        let standing = self.standing(word, now);
        let used = self.estimate(&standing);
        let limit = u64::from(self.quota.count());
        let remaining = limit.saturating_sub(used);
        let (reset_after, next_after) = if used == 0 {
            (Micros::ZERO, Micros::ZERO)
        } else {
            let next = limit.saturating_sub(remaining + 1);
            (self.falls_to(0, &standing), self.falls_to(next, &standing))
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
