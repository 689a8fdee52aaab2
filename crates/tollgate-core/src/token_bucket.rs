//! Token bucket, kept as a debt that time repays. GCRA is the same algorithm told from the other
//! end.
//!
//! Nothing is rounded when deciding. Debt is counted in ticks, chosen so that one unit costs a
//! whole number of them (`ticks_per_unit`) and one microsecond repays a whole number of them
//! (`ticks_per_micro`): for 300 a minute, 200,000 and 1. A quota too fine for 53 bits gets a
//! coarser tick, rounded against the caller by less than one part in a million.
//!
//! The Redis twin of this file is `lua/token_bucket.lua`.

use crate::bounds::{CAPACITY_TICKS_MAX, EXACT_MAX, REFILL_MICROS_MAX};
use crate::divisor::Divisor;
use crate::{Cost, Decision, Micros, Outcome, Quota, QuotaError, Receipt, Timestamp};
use crate::{Step, Word};

/// A bucket of `burst` units that refills at a quota's rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucket {
    ticks_per_unit: Divisor,
    ticks_per_micro: Divisor,
    burst: u32,
    period: Micros,
}

/// What is remembered of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bucket {
    debt: u64,
    updated_at: Timestamp,
}

/// A bucket as it stands at the moment of a request.
#[derive(Clone, Copy)]
pub(crate) struct Standing {
    pub(crate) debt: u64,
    now: Timestamp,
    /// How far the clock is behind the stored time: so long, nothing is repaid.
    behind: Micros,
}

impl TokenBucket {
    /// A bucket that holds `burst` units and refills at the rate of `quota`.
    pub fn new(quota: Quota, burst: u32) -> Result<Self, QuotaError> {
        let period = quota.period();
        if quota.count() == 0 || burst == 0 {
            // A rate of nothing never refills, and a bucket of nothing needs no refill: either
            // denies everything, but only an empty bucket can promise that from the start.
            return match burst {
                0 => Ok(Self::of_ticks(1, 1, 0, period)),
                _ => Err(QuotaError::RefillTooSlow { quota, burst }),
            };
        }
        let (count, period_micros) = (u128::from(quota.count()), u128::from(period.as_micros()));
        if u128::from(burst) * period_micros > count * u128::from(REFILL_MICROS_MAX) {
            return Err(QuotaError::RefillTooSlow { quota, burst });
        }
        let divisor = greatest_common_divisor(quota.count().into(), period.as_micros());
        let exact_per_unit = period.as_micros() / divisor;
        let exact_per_micro = u64::from(quota.count()) / divisor;
        let most_per_unit = CAPACITY_TICKS_MAX / u64::from(burst);
        if exact_per_unit <= most_per_unit {
            return Ok(Self::of_ticks(exact_per_unit, exact_per_micro, burst, period));
        }
        // The finest tick that still fits; a unit then costs a little more time than asked.
        let ticks_per_micro =
            u64::try_from(u128::from(most_per_unit) * count / period_micros).unwrap_or(u64::MAX);
        let ticks_per_unit =
            u64::try_from((u128::from(ticks_per_micro) * period_micros).div_ceil(count))
                .expect("no more than the most that fits");
        debug_assert!(ticks_per_micro >= 1 && ticks_per_unit <= most_per_unit);
        Ok(Self::of_ticks(ticks_per_unit, ticks_per_micro, burst, period))
    }

    const fn of_ticks(per_unit: u64, per_micro: u64, burst: u32, period: Micros) -> Self {
        let (ticks_per_unit, ticks_per_micro) = (Divisor::new(per_unit), Divisor::new(per_micro));
        Self { ticks_per_unit, ticks_per_micro, burst, period }
    }

    /// The numbers that define this limit to its Redis twin.
    pub fn numbers(&self) -> [u64; 4] {
        let period = self.period.as_micros();
        let [per_unit, per_micro] = [self.ticks_per_unit, self.ticks_per_micro].map(|it| it.get());
        [per_unit, per_micro, u64::from(self.burst), period]
    }

    /// The limit that has these [`numbers`](Self::numbers), if one has.
    pub fn from_numbers(numbers: [u64; 4]) -> Option<Self> {
        let [ticks_per_unit, ticks_per_micro, burst, period] = numbers;
        let burst = u32::try_from(burst).ok()?;
        let capacity = ticks_per_unit.checked_mul(u64::from(burst))?;
        let period = Quota::new(0, Micros::new(period)).ok()?.period();
        let ticks = [ticks_per_unit, ticks_per_micro];
        let can_be = ticks.iter().all(|ticks| (1..=CAPACITY_TICKS_MAX).contains(ticks));
        (can_be && capacity <= CAPACITY_TICKS_MAX)
            .then(|| Self::of_ticks(ticks_per_unit, ticks_per_micro, burst, period))
    }

    #[inline]
    pub(crate) fn step(&self, word: Word, now: Timestamp, cost: Cost) -> Step {
        // Only a clock that went back needs more than this.
        let Some(elapsed) = now.as_micros().checked_sub(word.high) else {
            let word = self.anchored(word, now);
            return self.step_from(word, &self.standing(word, now), cost);
        };
        let repaid = elapsed.saturating_mul(self.ticks_per_micro.get());
        let debt = word.low.saturating_sub(repaid);
        self.step_from(word, &Standing { debt, now, behind: Micros::ZERO }, cost)
    }

    #[inline]
    fn step_from(&self, word: Word, standing: &Standing, cost: Cost) -> Step {
        match self.room(cost) {
            Some(room) if standing.debt <= room => {
                self.charged(word, standing, cost, self.capacity() - room)
            }
            _ => Step::refused(word),
        }
    }

    /// Charges whatever the bucket holds.
    pub(crate) fn force(&self, word: Word, now: Timestamp, cost: Cost) -> Step {
        let word = self.anchored(word, now);
        let standing = self.standing(word, now);
        let price = self.price(cost).min(EXACT_MAX - standing.debt);
        self.charged(word, &standing, cost, price)
    }

    /// The decision that a step was.
    #[inline]
    pub(crate) fn tell(&self, step: &Step, now: Timestamp, cost: Cost) -> Decision {
        let outcome = step.allowed().unwrap_or_else(|| self.refusal(step.word, now, cost));
        self.decision(outcome, step.word, now)
    }

    /// Why a request was refused.
    fn refusal(&self, word: Word, now: Timestamp, cost: Cost) -> Outcome {
        let Some(room) = self.room(cost) else { return Outcome::TooCostly };
        let standing = self.standing(word, now);
        let excess = standing.debt - room;
        Outcome::Denied { retry_after: Some(self.repaid_in(excess, &standing)) }
    }

    /// Charges a denied request, but never past two full buckets: whoever stops hammering is
    /// served again after two refills at the latest.
    pub(crate) fn punish(&self, word: Word, now: Timestamp, cost: Cost) -> Word {
        let word = self.anchored(word, now);
        if cost == Cost::PEEK {
            return word;
        }
        let standing = self.standing(word, now);
        let debt = standing.debt.saturating_add(self.price(cost));
        let debt = debt.min((2 * self.capacity()).min(EXACT_MAX).max(standing.debt));
        Bucket { debt, updated_at: standing.now }.into()
    }

    /// Takes `receipt`'s units back out of the debt, except those that time has repaid: debts are
    /// repaid in the order they were made.
    pub(crate) fn refund(&self, word: Word, now: Timestamp, receipt: &Receipt) -> Word {
        // What was repaid since the charge is told by the times the state was written at, which a
        // clock that went back does not change. A receipt from after them is of a time that was
        // taken back: nobody knows what was repaid since, so nothing is given.
        let reached = now.max(Bucket::from(word).updated_at);
        let word = self.anchored(word, now);
        if receipt.at > reached {
            return word;
        }
        let standing = self.standing(word, now);
        let debt_before = receipt.debt_before.min(EXACT_MAX);
        let price = self.price(receipt.cost).min(EXACT_MAX - debt_before);
        let elapsed = reached.since(receipt.at).as_micros();
        let repaid = elapsed.saturating_mul(self.ticks_per_micro.get());
        let line = (debt_before + price).saturating_sub(repaid);
        let back = line.min(price).min(standing.debt);
        match standing.debt - back {
            _ if back == 0 => word,
            0 => Word::VACANT,
            debt => Bucket { debt, updated_at: standing.now }.into(),
        }
    }

    pub(crate) fn vacant_at(&self, word: Word) -> Timestamp {
        let bucket = Bucket::from(word);
        bucket.updated_at.plus(Micros::new(self.ticks_per_micro.divide_up(bucket.debt)))
    }

    /// Units in use at `now`, rounded up, and the moment they count from: ahead of `now` if the
    /// clock went back.
    pub(crate) fn used(&self, word: Word, now: Timestamp) -> (u32, Timestamp) {
        let standing = self.standing(word, now);
        let units = self.ticks_per_unit.divide_up(standing.debt);
        (u32::try_from(units).unwrap_or(u32::MAX), standing.now)
    }

    /// The state of a key that has `used` units in use at `now`.
    pub(crate) fn with_used(&self, used: u32, now: Timestamp) -> Word {
        Bucket { debt: self.price(Cost::new(used)), updated_at: now }.into()
    }

    /// A debt is forced to no more than can be told exactly.
    pub(crate) fn can_be_at(&self, word: Word) -> bool {
        word.low <= EXACT_MAX && word.high <= EXACT_MAX
    }

    /// Whether a state written under `other` says the same here.
    pub(crate) fn counts_like(&self, other: &Self) -> bool {
        self.ticks_per_unit == other.ticks_per_unit && self.ticks_per_micro == other.ticks_per_micro
    }

    /// A clock that stepped back further than one period must not lock anybody out for longer:
    /// a stored time further ahead counts as one period ahead.
    #[inline]
    pub(crate) fn anchored(&self, word: Word, now: Timestamp) -> Word {
        let bucket = Bucket::from(word);
        let latest = now.plus(self.period);
        if bucket.updated_at <= latest {
            return word;
        }
        Bucket { updated_at: latest, ..bucket }.into()
    }

    #[inline]
    pub(crate) fn standing(&self, word: Word, now: Timestamp) -> Standing {
        let Bucket { debt, updated_at } = Bucket::from(word);
        if now <= updated_at {
            return Standing { debt, now: updated_at, behind: updated_at.since(now) };
        }
        let elapsed = now.since(updated_at).as_micros();
        let repaid = elapsed.saturating_mul(self.ticks_per_micro.get());
        Standing { debt: debt.saturating_sub(repaid), now, behind: Micros::ZERO }
    }

    /// What a bucket may owe for `cost` to be taken; nothing if it never holds so much.
    #[inline]
    pub(crate) fn room(&self, cost: Cost) -> Option<u64> {
        let left = self.burst.checked_sub(cost.units())?;
        Some(u64::from(left) * self.ticks_per_unit.get())
    }

    /// How long until `ticks` of the debt are repaid.
    #[inline]
    pub(crate) fn repaid_in(&self, ticks: u64, standing: &Standing) -> Micros {
        if ticks == 0 {
            return Micros::ZERO;
        }
        Micros::new(self.ticks_per_micro.divide_up(ticks)).plus(standing.behind)
    }

    #[inline]
    pub(crate) fn charged(&self, word: Word, standing: &Standing, cost: Cost, price: u64) -> Step {
        let bucket = Bucket { debt: standing.debt + price, updated_at: standing.now };
        Step {
            word: if cost == Cost::PEEK { word } else { bucket.into() },
            is_allowed: true,
            delay: Micros::ZERO,
            receipt: Receipt { at: standing.now, cost, debt_before: standing.debt },
        }
    }

    /// The figures of a state at `now`, with the outcome that led to it.
    #[inline]
    pub(crate) fn decision(&self, outcome: Outcome, word: Word, now: Timestamp) -> Decision {
        let standing = self.standing(word, now);
        let debt = standing.debt;
        let free = self.capacity().saturating_sub(debt);
        let remaining = self.ticks_per_unit.divide(free);
        let next = if remaining == u64::from(self.burst) {
            0
        } else {
            debt + (remaining + 1) * self.ticks_per_unit.get() - self.capacity()
        };
        Decision {
            outcome,
            limit: self.burst,
            remaining: remaining as u32,
            reset_after: self.repaid_in(debt, &standing),
            next_after: Some(self.repaid_in(next, &standing)),
        }
    }

    #[inline]
    pub(crate) fn capacity(&self) -> u64 {
        u64::from(self.burst) * self.ticks_per_unit.get()
    }

    pub(crate) const fn burst(&self) -> u32 {
        self.burst
    }

    /// What `cost` adds to the debt, at most what a debt can be.
    #[inline]
    pub(crate) fn price(&self, cost: Cost) -> u64 {
        cost.get().saturating_mul(self.ticks_per_unit.get()).min(EXACT_MAX)
    }
}

impl From<Word> for Bucket {
    #[inline]
    fn from(word: Word) -> Self {
        Self { debt: word.low, updated_at: Timestamp::from_micros(word.high) }
    }
}

impl From<Bucket> for Word {
    #[inline]
    fn from(bucket: Bucket) -> Self {
        Self { low: bucket.debt, high: bucket.updated_at.as_micros() }
    }
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
