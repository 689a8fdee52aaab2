//! Fixed window: count, and start again at every boundary.
//!
//! Twice the limit can pass around a boundary; that is what the name promises, not a defect.
//! Windows either lie on the wall clock, the same for everybody, or begin with each key's own
//! first request, so that resets do not come together.
//!
//! The Redis twin of this file is `lua/fixed_window.lua`.

use crate::{Cost, Decision, Micros, Outcome, Quota, Receipt, Step, Timestamp, Word};

/// Where windows begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Align {
    /// On multiples of the period since 1970, the same for every key.
    #[default]
    Clock,
    /// With the first request of each key.
    Key,
}

/// So many units in each window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    quota: Quota,
    align: Align,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Window {
    used: u32,
    start: Timestamp,
}

impl FixedWindow {
    /// Windows of the quota's period, each of the quota's count.
    pub const fn new(quota: Quota, align: Align) -> Self {
        Self { quota, align }
    }

    /// The numbers that define this limit to its Redis twin: count, period, 1 if aligned by key.
    pub fn numbers(&self) -> [u64; 3] {
        let count = u64::from(self.quota.count());
        [count, self.quota.period().as_micros(), u64::from(self.align == Align::Key)]
    }

    #[inline]
    pub(crate) fn step(&self, word: Word, now: Timestamp, cost: Cost) -> Step {
        let word = self.anchored(word, now);
        let window = self.current(word, now);
        if u64::from(window.used) + cost.get() > u64::from(self.quota.count()) {
            return Step::refused(word);
        }
        charged(word, window, now, cost)
    }

    pub(crate) fn force(&self, word: Word, now: Timestamp, cost: Cost) -> Step {
        let word = self.anchored(word, now);
        charged(word, self.current(word, now), now, cost)
    }

    /// The decision that a step was.
    #[inline]
    pub(crate) fn tell(&self, step: &Step, now: Timestamp, cost: Cost) -> Decision {
        let outcome = step.allowed().unwrap_or_else(|| self.refusal(step.word, now, cost));
        self.decision(outcome, step.word, now)
    }

    /// Why a request was refused.
    fn refusal(&self, word: Word, now: Timestamp, cost: Cost) -> Outcome {
        if cost.units() > self.quota.count() {
            return Outcome::TooCostly;
        }
        Outcome::Denied { retry_after: Some(self.until_next(self.current(word, now), now)) }
    }

    pub(crate) fn refund(&self, word: Word, now: Timestamp, receipt: &Receipt) -> Word {
        // Which window a charge was made in is told by the times it was written with, before they
        // are brought back.
        let Window { used, start } = Window::from(word);
        let charged_here = receipt.at >= start && receipt.at.since(start) < self.quota.period();
        let word = self.anchored(word, now);
        if !charged_here {
            return word;
        }
        match used.saturating_sub(receipt.cost.units()) {
            0 => Word::VACANT,
            used => Window { used, ..Window::from(word) }.into(),
        }
    }

    pub(crate) fn vacant_at(&self, word: Word) -> Timestamp {
        let window = Window::from(word);
        if window.used == 0 {
            return Timestamp::EPOCH;
        }
        window.start.plus(self.quota.period())
    }

    /// Units in use at `now`, and the moment they count from: ahead of `now` if the clock went
    /// back.
    pub(crate) fn used(&self, word: Word, now: Timestamp) -> (u32, Timestamp) {
        let window = self.current(word, now);
        (window.used, now.max(window.start))
    }

    pub(crate) fn with_used(&self, used: u32, now: Timestamp) -> Word {
        Window { used, start: self.start_of(now) }.into()
    }

    /// No window starts after the end of time.
    pub(crate) fn can_be_at(&self, word: Word) -> bool {
        word.low <= u64::from(u32::MAX) && word.high <= Timestamp::END.as_micros()
    }

    pub(crate) fn counts_like(&self, other: &Self) -> bool {
        self.quota.period() == other.quota.period() && self.align == other.align
    }

    pub(crate) const fn quota(&self) -> Quota {
        self.quota
    }

    /// A window that starts more than one period ahead counts as the next one: a clock that
    /// stepped back locks nobody out for longer.
    #[inline]
    pub(crate) fn anchored(&self, word: Word, now: Timestamp) -> Word {
        let window = Window::from(word);
        // The common case is a window not ahead at all, and finding the next one costs a division.
        if window.start <= now { word } else { self.brought_back(window, now).into() }
    }

    #[cold]
    fn brought_back(&self, window: Window, now: Timestamp) -> Window {
        let latest = self.start_of(now).plus(self.quota.period());
        Window { start: window.start.min(latest), ..window }
    }

    /// The window that `now` falls into.
    #[inline]
    fn current(&self, word: Word, now: Timestamp) -> Window {
        let stored = Window::from(word);
        // A clock that went back must not reopen a window that was already counted.
        let now = now.max(stored.start);
        if stored.used > 0 && now.since(stored.start) < self.quota.period() {
            return stored;
        }
        Window { used: 0, start: self.start_of(now) }
    }

    #[inline]
    fn start_of(&self, now: Timestamp) -> Timestamp {
        match self.align {
            Align::Clock => {
                let period = self.quota.period().as_micros();
                Timestamp::from_micros(now.as_micros() - now.as_micros() % period)
            }
            Align::Key => now,
        }
    }

    #[inline]
    fn until_next(&self, window: Window, now: Timestamp) -> Micros {
        now.until_passed(self.quota.period(), window.start)
    }

    /// The figures of a state at `now`, with the outcome that led to it.
    #[inline]
    fn decision(&self, outcome: Outcome, word: Word, now: Timestamp) -> Decision {
        let window = self.current(word, now);
        let limit = self.quota.count();
        let until_next = if window.used == 0 { Micros::ZERO } else { self.until_next(window, now) };
        Decision {
            outcome,
            limit,
            remaining: limit.saturating_sub(window.used),
            reset_after: until_next,
            next_after: Some(until_next),
        }
    }
}

#[inline]
fn charged(word: Word, window: Window, now: Timestamp, cost: Cost) -> Step {
    let used = window.used.saturating_add(cost.units());
    let taken = Cost::new(used - window.used);
    Step {
        word: if cost == Cost::PEEK { word } else { Window { used, ..window }.into() },
        is_allowed: true,
        delay: Micros::ZERO,
        receipt: Receipt { at: now.max(window.start), cost: taken, debt_before: 0 },
    }
}

impl From<Word> for Window {
    #[inline]
    fn from(word: Word) -> Self {
        Self { used: word.low as u32, start: Timestamp::from_micros(word.high) }
    }
}

impl From<Window> for Word {
    #[inline]
    fn from(window: Window) -> Self {
        Self { low: u64::from(window.used), high: window.start.as_micros() }
    }
}
