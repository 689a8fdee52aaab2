//! Random limits, and keys under them: what the tests over random traces share.

use tollgate_core::{
    Algorithm, Align, ChargeId, Cost, Counter, Decision, Entry, Limit, Log, Micros, Quota, Receipt,
    Timestamp, Word,
};

/// Some time in 2025.
pub(crate) const START: u64 = 1_760_000_000_000_000;

const DAY: u64 = 86_400_000_000;
const YEAR: u64 = 365 * DAY;

/// Random numbers that are the same in every run: xorshift.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self((seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `bound`, which is not zero.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A number below one of the bounds, so that small and large ones are both common.
    pub(crate) fn below_either(&mut self, bounds: &[u64]) -> u64 {
        let bound = self.pick(bounds);
        self.below(bound)
    }

    pub(crate) fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// A limit of this algorithm: mostly small ones, whose ends are soon reached, and among them the
/// largest that are accepted.
pub(crate) fn random_limit(rng: &mut Rng, algorithm: Algorithm) -> Limit {
    loop {
        let limit = match algorithm {
            Algorithm::SlidingWindow => Ok(Limit::sliding_window(random_quota(rng))),
            Algorithm::TokenBucket => Limit::token_bucket(random_quota(rng), random_burst(rng)),
            Algorithm::LeakyBucket => {
                let (quota, queue) = (random_quota(rng), random_burst(rng));
                let longest = 1 + rng.below_either(&[1_000, 10_000_000, YEAR]);
                let max_delay = (!rng.one_in(3)).then(|| Micros::new(rng.below(longest)));
                Limit::leaky_bucket(quota, queue, max_delay)
            }
            Algorithm::FixedWindow => {
                let align = rng.pick(&[Align::Clock, Align::Key]);
                Ok(Limit::fixed_window(random_quota(rng), align))
            }
            Algorithm::SlidingLog => {
                let quota = random_quota(rng);
                let count = quota.count().min(1 + rng.below_either(&[8, 40]) as u32);
                Limit::sliding_log(Quota::new(count, quota.period()).expect("the same period"))
            }
            Algorithm::Concurrency => {
                let slots = rng.below_either(&[8, 40]) as u32;
                Limit::concurrency(slots, Micros::new(random_period(rng)))
            }
        };
        // Of the largest rates and bursts, not every pair makes a bucket.
        if let Ok(limit) = limit {
            return limit;
        }
    }
}

fn random_quota(rng: &mut Rng) -> Quota {
    let largest = u64::from(u32::MAX);
    let (count, period) = match rng.below(12) {
        0 => (u32::MAX - rng.below_either(&[2, largest]) as u32, random_period(rng)),
        1 => (u32::MAX, rng.pick(&[1_000, YEAR, YEAR - 1])),
        2 => (123_457, DAY),
        3 => (rng.below(3) as u32, random_period(rng)),
        _ => (1 + rng.below_either(&[20, 1_000_000]) as u32, random_period(rng)),
    };
    Quota::new(count, Micros::new(period)).expect("a period that is allowed")
}

fn random_period(rng: &mut Rng) -> u64 {
    match rng.below(10) {
        0 => rng.pick(&[1_000, YEAR, YEAR - 1, DAY]),
        _ => 1_000 + rng.below_either(&[5_000, 5_000_000, DAY, YEAR - 1_000]),
    }
}

fn random_burst(rng: &mut Rng) -> u32 {
    match rng.below(12) {
        0 => u32::MAX,
        1 => rng.next() as u32,
        2 => rng.below(2) as u32,
        _ => 1 + rng.below_either(&[50, 1_000_000]) as u32,
    }
}

/// A cost that this limit may be asked for: often small, sometimes all it holds or more.
pub(crate) fn random_cost(rng: &mut Rng, limit: &Limit) -> Cost {
    let most = u64::from(limit.capacity());
    let units = match rng.below(20) {
        0 => 0,
        1 => most,
        2 => most + 1,
        3 => u64::from(u32::MAX),
        4..=8 => rng.below(most + 2),
        9..=12 => rng.below(most / 4 + 2),
        _ => 1 + rng.below(3),
    };
    Cost::new(u32::try_from(units).unwrap_or(u32::MAX))
}

/// The limit's period or lease: how far ahead a stored time may be.
pub(crate) fn period(limit: &Limit) -> u64 {
    match limit {
        Limit::Counter(Counter::SlidingWindow(limit)) => limit.numbers()[1],
        Limit::Counter(Counter::TokenBucket(limit)) => limit.numbers()[3],
        Limit::Counter(Counter::LeakyBucket(limit)) => limit.numbers()[3],
        Limit::Counter(Counter::FixedWindow(limit)) => limit.numbers()[1],
        Limit::Logged(tollgate_core::Logged::SlidingLog(limit)) => limit.numbers()[1],
        Limit::Logged(tollgate_core::Logged::Concurrency(limit)) => limit.numbers()[1],
    }
}

/// How long it takes until the limit is whole again: what a step of time is large or small against.
pub(crate) fn span(limit: &Limit) -> u64 {
    let refill = |[per_unit, per_micro, burst]: [u64; 3]| (per_unit * burst).div_ceil(per_micro);
    match limit {
        Limit::Counter(Counter::TokenBucket(limit)) => {
            let [per_unit, per_micro, burst, _] = limit.numbers();
            refill([per_unit, per_micro, burst])
        }
        Limit::Counter(Counter::LeakyBucket(limit)) => {
            let [per_unit, per_micro, queue, ..] = limit.numbers();
            refill([per_unit, per_micro, queue])
        }
        _ => period(limit),
    }
}

/// The next moment of a trace: mostly a little later, sometimes much, now and then back.
pub(crate) fn random_step(rng: &mut Rng, now: Timestamp, limit: &Limit) -> Timestamp {
    let span = span(limit);
    let now = now.as_micros();
    let next = match rng.below(40) {
        0 => now.saturating_sub(rng.below(period(limit) + 1)),
        1 => now.saturating_sub(rng.below_either(&[3_600_000_000, 3 * span + 1, 100 * span + 1])),
        2 => now.saturating_sub(rng.below(3)),
        3 => now + rng.below(3 * span + 2),
        4..=10 => now,
        _ => {
            let part = span / (1 + rng.below(60));
            now + rng.below(part + 2)
        }
    };
    Timestamp::from_micros(next)
}

/// A log of up to 3,000 entries, none of which has ended when the last is made, and how long each is
/// held: now all of one unit, now of several, and often many of one moment.
pub(crate) fn random_long_log(rng: &mut Rng) -> (Micros, Log) {
    let length = 1 + rng.below_either(&[1_010, 3_000, 3_000]);
    let units_max = rng.pick(&[1, 2, 2, 30]);
    let moments = rng.pick(&[2, 5, 1_000_000, 1_000_000]);
    let mut at: Vec<u64> = (0..length).map(|_| START + 1_000 * rng.below(moments)).collect();
    at.sort_unstable();
    let entry = |(id, at)| {
        let units = 1 + rng.below(units_max) as u32;
        Entry { at: Timestamp::from_micros(at), id: ChargeId(id), units }
    };
    (Micros::new(1_000 * moments), (0..).zip(at).map(entry).collect())
}

/// One key under one limit, whatever kind of state it has.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) limit: Limit,
    word: Word,
    log: Log,
    charges: u64,
}

/// What a charge left in the hands of whoever made it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charged {
    receipt: Receipt,
    id: ChargeId,
}

impl Subject {
    /// A key never seen.
    pub(crate) fn new(limit: Limit) -> Self {
        Self { limit, word: Word::VACANT, log: Log::default(), charges: 0 }
    }

    pub(crate) fn decide(&mut self, now: Timestamp, cost: Cost) -> Decision {
        self.charge(now, cost).0
    }

    /// Decides, and tells how the charge is named that was made, if one was.
    pub(crate) fn charge(&mut self, now: Timestamp, cost: Cost) -> (Decision, Charged) {
        self.charges += 1;
        let id = ChargeId(self.charges);
        match self.limit {
            Limit::Counter(counter) => {
                let transition = counter.decide(self.word, now, cost);
                self.word = transition.word;
                (transition.decision, Charged { receipt: transition.receipt, id })
            }
            Limit::Logged(logged) => {
                let transition = logged.decide(&self.log, now, cost, id);
                self.log.apply(transition.change);
                let taken = if transition.decision.is_allowed() { cost } else { Cost::PEEK };
                let receipt = Receipt { at: now, cost: taken, debt_before: 0 };
                (transition.decision, Charged { receipt, id })
            }
        }
    }

    pub(crate) fn force(&mut self, now: Timestamp, cost: Cost) -> (Decision, Charged) {
        self.charges += 1;
        let id = ChargeId(self.charges);
        match self.limit {
            Limit::Counter(counter) => {
                let transition = counter.force(self.word, now, cost);
                self.word = transition.word;
                (transition.decision, Charged { receipt: transition.receipt, id })
            }
            Limit::Logged(logged) => {
                let transition = logged.force(&self.log, now, cost, id);
                self.log.apply(transition.change);
                let receipt = Receipt { at: now, cost, debt_before: 0 };
                (transition.decision, Charged { receipt, id })
            }
        }
    }

    /// Charges a denied request; logs know no such thing.
    pub(crate) fn punish(&mut self, now: Timestamp, cost: Cost) {
        if let Limit::Counter(counter) = self.limit {
            self.word = counter.punish(self.word, now, cost);
        }
    }

    pub(crate) fn refund(&mut self, now: Timestamp, charged: &Charged) {
        match self.limit {
            Limit::Counter(counter) => {
                self.word = counter.refund(self.word, now, &charged.receipt);
            }
            Limit::Logged(logged) => {
                let units = charged.receipt.cost.units();
                logged.give_back(&mut self.log, now, charged.id, units);
            }
        }
    }

    /// Puts the key under another limit.
    pub(crate) fn change(&mut self, limit: Limit, now: Timestamp) {
        match (&limit, &self.limit) {
            (Limit::Counter(new), Limit::Counter(old)) => {
                self.word = new.carry_over(old, self.word, now);
            }
            (Limit::Logged(new), Limit::Logged(old)) => {
                new.carry_over(old, &mut self.log, now);
            }
            _ => *self = Self::new(limit),
        }
        self.limit = limit;
    }

    /// What would be decided, without a trace.
    pub(crate) fn would(&self, now: Timestamp, cost: Cost) -> Decision {
        self.clone().decide(now, cost)
    }

    /// Its figures now.
    pub(crate) fn peek(&self, now: Timestamp) -> Decision {
        self.would(now, Cost::PEEK)
    }

    pub(crate) fn vacant_at(&self) -> Timestamp {
        match self.limit {
            Limit::Counter(counter) => counter.vacant_at(self.word),
            Limit::Logged(logged) => logged.vacant_at(&self.log),
        }
    }
}
