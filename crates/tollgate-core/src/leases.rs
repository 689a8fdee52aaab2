//! Units handed out ahead of their use.
//!
//! A node that asks for every request asks a thousand times for what it could have asked for once.
//! So it takes some units more than the request at hand costs, on lease, spends them by itself and
//! tells later what it spent.
//!
//! Of a token bucket, units out on lease count as used and are not repaid by time: what is repaid is
//! what is known to be spent. A report turns spent units into debt at the moment it arrives, and a
//! lease that ended unreported becomes debt as a whole at the moment it ended. Either is no earlier
//! than the spending was, so nothing spent is ever repaid early, whoever crashed or was late. Hence
//! the debt and what is out together never exceed the bucket, and no interval admits more than the
//! bucket holds and time repays in it.
//!
//! Of a fixed window, a lease is a charge like any other, and ends with its window.
//!
//! The Redis twin of this file is `lua/leases.lua`; what a node asks for is done by `lua/lease.lua`.

use crate::bounds::{EXACT_MAX, LEASE_MICROS, LEASES_MAX};
use crate::{Cost, Counter, Decision, FixedWindow, Limit, Micros, Receipt, Step};
use crate::{Timestamp, TokenBucket, Word};

/// A limit whose units can be leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Leasable {
    /// See [`TokenBucket`].
    TokenBucket(TokenBucket),
    /// See [`FixedWindow`].
    FixedWindow(FixedWindow),
}

/// What is remembered of a key with units out on lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LeasedState {
    /// The state as it is without leases, except that what is out counts as used.
    pub word: Word,
    /// Who has what. Of a window nobody: it needs no such list.
    pub leases: Vec<Lease>,
}

/// Units of a bucket in the hands of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// Names it among the leases of its key.
    pub id: u64,
    /// How many, spent or not: at least one.
    pub units: u32,
    /// From when on all of them count as spent.
    pub ends_at: Timestamp,
}

/// What a node says, and what it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseCall {
    /// Of a bucket the lease, one that was never used if the node has none. Of a window its start,
    /// as the last answer told it, and zero if there was none.
    pub id: u64,
    /// Units of the lease that were spent and not told of yet.
    pub spent: u32,
    /// Units of the lease that are given back.
    pub returned: u32,
    /// What the request at hand costs: it is decided and charged as if nothing were leased.
    pub cost: Cost,
    /// Units wanted on lease beyond that. At most half of what is then left are given, so that
    /// others find some too.
    pub want: u32,
}

/// What a node is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseAnswer {
    /// Whether the request at hand may go on.
    pub is_allowed: bool,
    /// Units given on lease.
    pub granted: u32,
    /// Units of a bucket now out on this lease, those included. Of a window just those.
    pub leased: u32,
    /// The state after the call: all that is out on lease is used.
    pub word: Word,
    /// When it was decided, by the clock of the store.
    pub now: Timestamp,
    /// When the request at hand was charged; with [`debt_before`](Self::debt_before) its receipt.
    pub charged_at: Timestamp,
    /// What a bucket owed before it, without what was out on lease.
    pub debt_before: u64,
}

impl Leasable {
    /// The limit, if its units can be leased.
    pub const fn of(limit: &Limit) -> Option<Self> {
        match limit {
            Limit::Counter(Counter::TokenBucket(bucket)) => Some(Self::TokenBucket(*bucket)),
            Limit::Counter(Counter::FixedWindow(window)) => Some(Self::FixedWindow(*window)),
            Limit::Counter(_) | Limit::Logged(_) => None,
        }
    }

    /// The same limit, as one that is not leased.
    pub const fn counter(&self) -> Counter {
        match self {
            Self::TokenBucket(bucket) => Counter::TokenBucket(*bucket),
            Self::FixedWindow(window) => Counter::FixedWindow(*window),
        }
    }

    /// Brings a state to `now`: leases that have ended become debt. From then on its word can be
    /// decided on as any other.
    pub fn settle(&self, state: &mut LeasedState, now: Timestamp) {
        let Self::TokenBucket(bucket) = self else { return };
        if state.leases.is_empty() {
            return;
        }
        let owed = state.word.low.saturating_sub(self.outstanding(&state.leases));
        let mut word = bucket.anchored(Word { low: owed, ..state.word }, now);
        // A clock that stepped back makes no lease longer than leases are.
        let latest = now.plus(LEASE_MICROS);
        state.leases.iter_mut().for_each(|lease| lease.ends_at = lease.ends_at.min(latest));
        while let Some(first) = first_ended(&state.leases, now) {
            let lease = state.leases.remove(first);
            let at = lease.ends_at.max(Timestamp::from_micros(word.high));
            word = bucket.force(word, at, Cost::new(lease.units)).word;
        }
        let owing = bucket.force(word, now, Cost::PEEK).receipt;
        let low = (owing.debt_before + self.outstanding(&state.leases)).min(EXACT_MAX);
        state.word = if low == 0 { Word::VACANT } else { Word { low, high: owing.at.as_micros() } };
    }

    /// Does what a node asks for.
    pub fn lease(&self, state: &mut LeasedState, now: Timestamp, call: &LeaseCall) -> LeaseAnswer {
        let counter = self.counter();
        self.settle(state, now);
        let mut lease = self.reported(state, now, call);
        let decided = counter.decide(state.word, now, call.cost);
        state.word = decided.word;
        let out = self.outstanding(&state.leases) + self.price(lease.units);
        let debt_before = decided.receipt.debt_before.saturating_sub(out);

        let mut granted = 0;
        let is_allowed = decided.decision.is_allowed();
        if is_allowed && (lease.units > 0 || state.leases.len() < LEASES_MAX) {
            granted = call.want.min(decided.decision.remaining.div_ceil(2));
            state.word = counter.decide(state.word, now, Cost::new(granted)).word;
        }
        lease.units += granted;
        if lease.units > 0 && matches!(self, Self::TokenBucket(_)) {
            state.leases.push(lease);
        }
        let (leased, charged_at) = (lease.units, decided.receipt.at);
        LeaseAnswer { is_allowed, granted, leased, word: state.word, now, charged_at, debt_before }
    }

    /// Settles what a node says it spent and gives back, and takes its lease out of the list, to be
    /// put back with what it holds from now on.
    fn reported(&self, state: &mut LeasedState, now: Timestamp, call: &LeaseCall) -> Lease {
        let mut lease = Lease { id: call.id, units: 0, ends_at: now.plus(LEASE_MICROS) };
        match self {
            Self::TokenBucket(bucket) => {
                if let Some(at) = state.leases.iter().position(|it| it.id == call.id) {
                    lease.units = state.leases.remove(at).units;
                }
                // What was spent of the lease stays used. What was spent beyond what is known of,
                // because the lease ended on the way or the state was lost, is charged now.
                let known = call.spent.min(lease.units);
                lease.units -= known;
                if call.spent > known {
                    let unknown = Cost::new(call.spent - known);
                    state.word = bucket.force(state.word, now, unknown).word;
                }
                let back = call.returned.min(lease.units);
                lease.units -= back;
                state.word = self.without(state.word, back);
            }
            Self::FixedWindow(window) => {
                let at = Timestamp::from_micros(call.id);
                let receipt = Receipt { at, cost: Cost::new(call.returned), debt_before: 0 };
                if call.returned > 0 {
                    state.word = window.refund(state.word, now, &receipt);
                }
            }
        }
        lease
    }

    /// A state in which `units` less are used.
    pub fn without(&self, word: Word, units: u32) -> Word {
        match word.low.saturating_sub(self.price(units)) {
            0 => Word::VACANT,
            low => Word { low, ..word },
        }
    }

    /// How long the units of an answer can be spent, from when it was asked for.
    pub fn lasts(&self, answer: &LeaseAnswer) -> Micros {
        match self {
            Self::TokenBucket(_) => LEASE_MICROS,
            Self::FixedWindow(window) => {
                let ends_at = window.vacant_at(answer.word);
                ends_at.since(answer.now).min(LEASE_MICROS)
            }
        }
    }

    fn outstanding(&self, leases: &[Lease]) -> u64 {
        let sum = |sum: u64, lease: &Lease| (sum + self.price(lease.units)).min(EXACT_MAX);
        leases.iter().fold(0, sum)
    }

    fn price(&self, units: u32) -> u64 {
        match self {
            Self::TokenBucket(bucket) => bucket.price(Cost::new(units)),
            Self::FixedWindow(_) => u64::from(units),
        }
    }
}

impl LeaseAnswer {
    /// What the request at hand is told. What its node holds is left to it, and so remains.
    pub fn decision(&self, limit: &Leasable, cost: Cost) -> Decision {
        let held = if self.is_allowed { self.leased } else { 0 };
        let step = Step {
            word: limit.without(self.word, held),
            is_allowed: self.is_allowed,
            delay: Micros::ZERO,
            receipt: self.receipt(cost),
        };
        limit.counter().tell(&step, self.now, cost)
    }

    /// Names the charge of the request at hand, if it was made.
    pub fn receipt(&self, cost: Cost) -> Receipt {
        let cost = if self.is_allowed { cost } else { Cost::PEEK };
        Receipt { at: self.charged_at, cost, debt_before: self.debt_before }
    }
}

fn first_ended(leases: &[Lease], now: Timestamp) -> Option<usize> {
    let ended = leases.iter().enumerate().filter(|(_, lease)| lease.ends_at <= now);
    ended.min_by_key(|(_, lease)| lease.ends_at).map(|(place, _)| place)
}
