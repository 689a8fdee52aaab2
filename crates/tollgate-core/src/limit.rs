//! A quota bound to an algorithm: the one place where a decision is made.
//!
//! Deciding is a pure function: no clock, no storage, no allocation. The memory store, the
//! simulator and `explain` call it, and the Redis scripts are held to it.
//!
//! Two kinds of limit remember two kinds of state. A [`Counter`] needs one [`Word`] a key, however
//! busy it is; [`Logged`] limits need a [`Log`] with an entry for each charge still held.
//!
//! The Redis twin of this file is `lua/limit.lua`.

use std::fmt;
use std::str::FromStr;

use crate::bounds::EXACT_MAX;
use crate::concurrency::Concurrency;
use crate::fixed_window::{Align, FixedWindow};
use crate::held::{ChargeId, Holding, Log, LogTransition};
use crate::leaky_bucket::LeakyBucket;
use crate::sliding_log::SlidingLog;
use crate::sliding_window::SlidingWindow;
use crate::token_bucket::TokenBucket;
use crate::{Cost, Decision, Micros, Outcome, Quota, QuotaError, Timestamp};

/// How a limit counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Two counters that slide; the default.
    #[default]
    SlidingWindow,
    /// A bucket that refills.
    TokenBucket,
    /// A queue that drains.
    LeakyBucket,
    /// One counter a window.
    FixedWindow,
    /// The time of every request.
    SlidingLog,
    /// Slots in use.
    Concurrency,
}

impl Algorithm {
    /// All of them, in the order of the documentation.
    pub const ALL: [Self; 6] = [
        Self::SlidingWindow,
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::FixedWindow,
        Self::SlidingLog,
        Self::Concurrency,
    ];

    /// Its name in a policy.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SlidingWindow => "sliding_window",
            Self::TokenBucket => "token_bucket",
            Self::LeakyBucket => "leaky_bucket",
            Self::FixedWindow => "fixed_window",
            Self::SlidingLog => "sliding_log",
            Self::Concurrency => "concurrency",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = AlgorithmError;

    /// Reads a name as a policy writes it; `gcra` is another name of the token bucket.
    fn from_str(text: &str) -> Result<Self, AlgorithmError> {
        let named = Self::ALL.into_iter().find(|algorithm| algorithm.name() == text);
        named
            .or_else(|| (text == "gcra").then_some(Self::TokenBucket))
            .ok_or_else(|| AlgorithmError { text: text.to_owned() })
    }
}

/// Text that names no algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlgorithmError {
    text: String,
}

impl fmt::Display for AlgorithmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Algorithm::ALL.map(Algorithm::name).join(", ");
        write!(f, "{:?} is not an algorithm; write one of {names}", self.text)
    }
}

impl std::error::Error for AlgorithmError {}

/// What is enforced of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// Counted in one word a key.
    Counter(Counter),
    /// Counted by a log of charges a key.
    Logged(Logged),
}

/// A limit whose state is one [`Word`], however busy the key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Counter {
    /// See [`SlidingWindow`].
    SlidingWindow(SlidingWindow),
    /// See [`TokenBucket`].
    TokenBucket(TokenBucket),
    /// See [`LeakyBucket`].
    LeakyBucket(LeakyBucket),
    /// See [`FixedWindow`].
    FixedWindow(FixedWindow),
}

/// A limit whose state is a [`Log`] of the charges that still hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Logged {
    /// See [`SlidingLog`].
    SlidingLog(SlidingLog),
    /// See [`Concurrency`].
    Concurrency(Concurrency),
}

/// Everything a [`Counter`] remembers about one key.
///
/// Both halves stay below 2^54, so that a store has ten bits of each for its own marks. All zeroes
/// is a key never seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Word {
    /// The lower half.
    pub low: u64,
    /// The upper half.
    pub high: u64,
}

impl Word {
    /// The state of a key never seen.
    pub const VACANT: Self = Self { low: 0, high: 0 };
    /// Each half is below two to this power.
    pub const HALF_BITS: u32 = 54;
}

/// Names one charge of a counter, so that it can be refunded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// When it was charged.
    pub at: Timestamp,
    /// How much; zero if nothing was charged.
    pub cost: Cost,
    /// Ticks a bucket owed before it: time repays those first. Means nothing under another quota,
    /// where it must be zero.
    pub debt_before: u64,
}

/// What a request does to the state of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The state from now on. On denial it is the state as it was, except that a time too far
    /// ahead of the clock is brought back.
    pub word: Word,
    /// Whether the request may go on.
    pub is_allowed: bool,
    /// After what delay: zero except under a leaky bucket.
    pub delay: Micros,
    /// Names the charge; of nothing, on denial.
    pub receipt: Receipt,
}

impl Step {
    #[inline]
    pub(crate) const fn refused(word: Word) -> Self {
        let receipt = Receipt { at: Timestamp::EPOCH, cost: Cost::PEEK, debt_before: 0 };
        Self { word, is_allowed: false, delay: Micros::ZERO, receipt }
    }

    /// That it was allowed, if it was.
    #[inline]
    pub(crate) fn allowed(&self) -> Option<Outcome> {
        self.is_allowed.then_some(Outcome::Allowed { delay: self.delay })
    }

    #[inline]
    fn told(self, decision: Decision) -> Transition {
        Transition { word: self.word, decision, receipt: self.receipt }
    }
}

/// The next state of a counter, and the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// See [`Step::word`].
    pub word: Word,
    /// The answer.
    pub decision: Decision,
    /// See [`Step::receipt`].
    pub receipt: Receipt,
}

impl Limit {
    /// So many units in any period, estimated from two counters.
    pub const fn sliding_window(quota: Quota) -> Self {
        Self::Counter(Counter::SlidingWindow(SlidingWindow::new(quota)))
    }

    /// A bucket of `burst` units that refills at the rate of `quota`.
    pub fn token_bucket(quota: Quota, burst: u32) -> Result<Self, QuotaError> {
        TokenBucket::new(quota, burst).map(Counter::TokenBucket).map(Self::Counter)
    }

    /// A queue of `queue` requests released at the rate of `quota`, none held past `max_delay`.
    pub fn leaky_bucket(
        quota: Quota,
        queue: u32,
        max_delay: Option<Micros>,
    ) -> Result<Self, QuotaError> {
        LeakyBucket::new(quota, queue, max_delay).map(Counter::LeakyBucket).map(Self::Counter)
    }

    /// So many units in each window.
    pub const fn fixed_window(quota: Quota, align: Align) -> Self {
        Self::Counter(Counter::FixedWindow(FixedWindow::new(quota, align)))
    }

    /// So many units in any period, exactly.
    pub fn sliding_log(quota: Quota) -> Result<Self, QuotaError> {
        SlidingLog::new(quota).map(Logged::SlidingLog).map(Self::Logged)
    }

    /// At most `slots` at a time, each held under a lease.
    pub fn concurrency(slots: u32, lease: Micros) -> Result<Self, QuotaError> {
        Concurrency::new(slots, lease).map(Logged::Concurrency).map(Self::Logged)
    }

    /// How it counts.
    pub const fn algorithm(&self) -> Algorithm {
        match self {
            Self::Counter(Counter::SlidingWindow(_)) => Algorithm::SlidingWindow,
            Self::Counter(Counter::TokenBucket(_)) => Algorithm::TokenBucket,
            Self::Counter(Counter::LeakyBucket(_)) => Algorithm::LeakyBucket,
            Self::Counter(Counter::FixedWindow(_)) => Algorithm::FixedWindow,
            Self::Logged(Logged::SlidingLog(_)) => Algorithm::SlidingLog,
            Self::Logged(Logged::Concurrency(_)) => Algorithm::Concurrency,
        }
    }

    /// Units an idle caller could take at once.
    pub const fn capacity(&self) -> u32 {
        match self {
            Self::Counter(counter) => counter.capacity(),
            Self::Logged(logged) => logged.holding().most,
        }
    }
}

impl Counter {
    /// Decides one request: [`step`](Self::step), with all that there is to [`tell`](Self::tell).
    #[inline]
    pub fn decide(&self, word: Word, now: Timestamp, cost: Cost) -> Transition {
        match self {
            Self::SlidingWindow(limit) => {
                let (step, decision) = limit.decide(word, now, cost);
                step.told(decision)
            }
            Self::TokenBucket(limit) => {
                let step = limit.step(word, now, cost);
                step.told(limit.tell(&step, now, cost))
            }
            Self::LeakyBucket(limit) => {
                let step = limit.step(word, now, cost);
                step.told(limit.tell(&step, now, cost))
            }
            Self::FixedWindow(limit) => {
                let step = limit.step(word, now, cost);
                step.told(limit.tell(&step, now, cost))
            }
        }
    }

    /// Charges one request whatever is left, and answers that it was allowed.
    pub fn force(&self, word: Word, now: Timestamp, cost: Cost) -> Transition {
        let step = match self {
            Self::SlidingWindow(limit) => limit.force(word, now, cost),
            Self::TokenBucket(limit) => limit.force(word, now, cost),
            Self::LeakyBucket(limit) => limit.force(word, now, cost),
            Self::FixedWindow(limit) => limit.force(word, now, cost),
        };
        step.told(self.tell(&step, now, cost))
    }

    /// Whether one request may go on, and what it does to the state: as much as is needed to go
    /// on, without the figures, which take most of the time.
    #[inline(always)]
    pub fn step(&self, word: Word, now: Timestamp, cost: Cost) -> Step {
        let step = match self {
            Self::SlidingWindow(limit) => limit.step(word, now, cost),
            Self::TokenBucket(limit) => limit.step(word, now, cost),
            Self::LeakyBucket(limit) => limit.step(word, now, cost),
            Self::FixedWindow(limit) => limit.step(word, now, cost),
        };
        debug_assert!((step.word.low | step.word.high) >> Word::HALF_BITS == 0);
        step
    }

    /// The decision that a step was, for a request of `cost` at `now`.
    #[inline]
    pub fn tell(&self, step: &Step, now: Timestamp, cost: Cost) -> Decision {
        match self {
            Self::SlidingWindow(limit) => limit.tell(step, now, cost),
            Self::TokenBucket(limit) => limit.tell(step, now, cost),
            Self::LeakyBucket(limit) => limit.tell(step, now, cost),
            Self::FixedWindow(limit) => limit.tell(step, now, cost),
        }
    }

    /// Whether a state can be at `word`. One that was written down and read again may be anything;
    /// one that this allows can be decided on.
    pub fn can_be_at(&self, word: Word) -> bool {
        match self {
            Self::SlidingWindow(limit) => limit.can_be_at(word),
            Self::TokenBucket(limit) => limit.can_be_at(word),
            Self::LeakyBucket(limit) => limit.bucket().can_be_at(word),
            Self::FixedWindow(limit) => limit.can_be_at(word),
        }
    }

    /// Charges a denied request, as `count_denied` asks. A bucket's debt stops at twice what it
    /// holds, so that the penalty ends two refills after the hammering does.
    pub fn punish(&self, word: Word, now: Timestamp, cost: Cost) -> Word {
        match self {
            Self::TokenBucket(limit) => limit.punish(word, now, cost),
            Self::LeakyBucket(limit) => limit.bucket().punish(word, now, cost),
            Self::SlidingWindow(_) | Self::FixedWindow(_) => self.force(word, now, cost).word,
        }
    }

    /// Gives back what a charge took and time has not given back already. The caller sees to it
    /// that a receipt is used once.
    pub fn refund(&self, word: Word, now: Timestamp, receipt: &Receipt) -> Word {
        match self {
            Self::SlidingWindow(limit) => limit.refund(word, now, receipt),
            Self::TokenBucket(limit) => limit.refund(word, now, receipt),
            Self::LeakyBucket(limit) => limit.refund(word, now, receipt),
            Self::FixedWindow(limit) => limit.refund(word, now, receipt),
        }
    }

    /// What is left of a charge when all but its first `spent` units are given back: time repays those
    /// first, so that refunding the rest leaves what a charge of `spent` units would have left.
    pub fn rest(&self, receipt: &Receipt, spent: Cost) -> Receipt {
        let bucket = match self {
            Self::TokenBucket(limit) => Some(limit),
            Self::LeakyBucket(limit) => Some(limit.bucket()),
            Self::SlidingWindow(_) | Self::FixedWindow(_) => None,
        };
        let owed =
            bucket.map_or(0, |bucket| receipt.debt_before.saturating_add(bucket.price(spent)));
        let cost = Cost::new(receipt.cost.units().saturating_sub(spent.units()));
        Receipt { cost, debt_before: owed.min(EXACT_MAX), ..*receipt }
    }

    /// Gives back `cost` units of what was consumed, by somebody who cannot name the charge: no more
    /// than there is, and of a window only what was taken in the one that is open.
    pub fn credit(&self, word: Word, now: Timestamp, cost: Cost) -> Word {
        // As if they had been taken just now: nothing of them has come back by itself.
        let charged = Receipt { at: now, cost, debt_before: 0 };
        self.refund(self.anchored(word, now), now, &charged)
    }

    /// The state under this limit of a key whose state under `from` is `word`: the units in use
    /// stay in use, rounded up. Another algorithm starts afresh.
    pub fn carry_over(&self, from: &Self, word: Word, now: Timestamp) -> Word {
        let (alike, (used, moment)) = match (self, from) {
            (Self::SlidingWindow(new), Self::SlidingWindow(old)) => {
                (new.counts_like(old), old.used(word, now))
            }
            (Self::TokenBucket(new), Self::TokenBucket(old)) => {
                (new.counts_like(old), old.used(word, now))
            }
            (Self::LeakyBucket(new), Self::LeakyBucket(old)) => {
                (new.bucket().counts_like(old.bucket()), old.bucket().used(word, now))
            }
            (Self::FixedWindow(new), Self::FixedWindow(old)) => {
                (new.counts_like(old), old.used(word, now))
            }
            _ => (false, (0, now)),
        };
        match (alike, used) {
            (true, _) => word,
            (false, 0) => Word::VACANT,
            (false, used) => self.anchored(self.with_used(used, moment), now),
        }
    }

    /// From when on `word` behaves as [`Word::VACANT`] and may be forgotten; [`Timestamp::END`] if
    /// that is later than can be told.
    pub fn vacant_at(&self, word: Word) -> Timestamp {
        match self {
            Self::SlidingWindow(limit) => limit.vacant_at(word),
            Self::TokenBucket(limit) => limit.vacant_at(word),
            Self::LeakyBucket(limit) => limit.vacant_at(word),
            Self::FixedWindow(limit) => limit.vacant_at(word),
        }
    }

    fn with_used(&self, used: u32, now: Timestamp) -> Word {
        match self {
            Self::SlidingWindow(limit) => limit.with_used(used, now),
            Self::TokenBucket(limit) => limit.with_used(used, now),
            Self::LeakyBucket(limit) => limit.bucket().with_used(used, now),
            Self::FixedWindow(limit) => limit.with_used(used, now),
        }
    }

    /// The same state, its time brought back if it is further ahead than a period.
    fn anchored(&self, word: Word, now: Timestamp) -> Word {
        match self {
            Self::SlidingWindow(limit) => limit.anchored(word, now),
            Self::TokenBucket(limit) => limit.anchored(word, now),
            Self::LeakyBucket(limit) => limit.bucket().anchored(word, now),
            Self::FixedWindow(limit) => limit.anchored(word, now),
        }
    }

    const fn capacity(&self) -> u32 {
        match self {
            Self::SlidingWindow(limit) => limit.quota().count(),
            Self::TokenBucket(limit) => limit.burst(),
            Self::LeakyBucket(limit) => limit.bucket().burst(),
            Self::FixedWindow(limit) => limit.quota().count(),
        }
    }
}

impl Logged {
    /// Decides one request; `id` names the charge if it is made. Apply the change to the log also
    /// when the request was denied.
    pub fn decide(&self, log: &Log, now: Timestamp, cost: Cost, id: ChargeId) -> LogTransition {
        self.holding().decide(log, now, cost, id)
    }

    /// Charges one request whatever is left, and answers that it was allowed.
    pub fn force(&self, log: &Log, now: Timestamp, cost: Cost, id: ChargeId) -> LogTransition {
        self.holding().force(log, now, cost, id)
    }

    /// Brings a log that was written under `from` under this limit: what is held stays held, and what
    /// has ended does not come back. Another algorithm starts afresh.
    pub fn carry_over(&self, from: &Self, log: &mut Log, now: Timestamp) {
        match (self, from) {
            (Self::SlidingLog(_), Self::SlidingLog(_))
            | (Self::Concurrency(_), Self::Concurrency(_)) => {
                log.apply(from.holding().due(log, now));
            }
            _ => *log = Log::default(),
        }
    }

    /// Gives `units` of a charge back, all of them if it holds no more; tells how many that were:
    /// none if it has ended, was given back before, or was never made.
    pub fn give_back(&self, log: &mut Log, now: Timestamp, id: ChargeId, units: u32) -> u32 {
        log.apply(self.holding().due(log, now));
        log.give_back(id, units)
    }

    /// Gives back `cost` units of what is held, by somebody who cannot name the charge: the latest
    /// first, and no more than there is. Of charges of the same moment either may be the latest.
    pub fn credit(&self, log: &mut Log, now: Timestamp, cost: Cost) {
        log.apply(self.holding().due(log, now));
        log.give_back_latest(cost.units());
    }

    /// What this limit says of a log that was written under `from`, which is left as it is: so many
    /// units as this one allows, held as long as that one holds them.
    pub fn look(&self, from: &Self, log: &Log, now: Timestamp) -> Decision {
        let holding = Holding { most: self.holding().most, ..from.holding() };
        holding.decide(log, now, Cost::PEEK, ChargeId(0)).decision
    }

    /// Starts the hold of a charge anew at `now`; false if it has ended or was given back.
    pub fn renew(&self, log: &mut Log, now: Timestamp, id: ChargeId) -> bool {
        log.apply(self.holding().due(log, now));
        log.renew(id, now)
    }

    /// From when on `log` behaves as an empty one and may be forgotten; [`Timestamp::END`] if that
    /// is later than can be told.
    pub fn vacant_at(&self, log: &Log) -> Timestamp {
        self.holding().vacant_at(log)
    }

    const fn holding(&self) -> Holding {
        match self {
            Self::SlidingLog(limit) => limit.holding(),
            Self::Concurrency(limit) => limit.holding(),
        }
    }
}
