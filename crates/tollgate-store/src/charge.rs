//! What a store is asked, and what it answers.

use tollgate_core::{Cost, Counter, Decision, Key, Micros, Step, Timestamp};

use crate::enrolled::Enrolled;
use crate::fingerprint::{Fingerprint, Named};

/// One thing to be paid for: `cost` units under a limit, from the state named `key`.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// Whose state.
    pub key: Key<'a>,
    /// The name of the key's limit as the store that is asked [knows it](crate::MemoryStore::named),
    /// for whoever asks often. With another name, or another store's, another key is charged.
    pub named: Option<Named>,
    /// Under which limit, enrolled with the store that is asked.
    pub limit: &'a Enrolled,
    /// How many units.
    pub cost: Cost,
    /// Whether a denial counts.
    pub mode: Mode,
    /// Whether a denied request is charged all the same. Logged limits never are.
    pub count_denied: bool,
    /// What happens when the store cannot count it.
    pub on_failure: OnFailure,
    /// Whether a node may take units in advance and spend them by itself. In memory there is nothing
    /// to take in advance.
    pub is_leased: bool,
}

impl<'a> Charge<'a> {
    /// One unit of an enforced limit.
    pub const fn new(key: Key<'a>, limit: &'a Enrolled) -> Self {
        Self {
            key,
            named: None,
            limit,
            cost: Cost::ONE,
            mode: Mode::Enforce,
            count_denied: false,
            on_failure: OnFailure::Local,
            is_leased: false,
        }
    }

    /// The same for whoever goes by the key's fingerprint. A caller's key then need not be in memory for it.
    #[inline(always)]
    pub(crate) const fn without_key(self) -> Self {
        Self { key: Key { limit: "", values: &[] }, named: None, ..self }
    }
}

/// Whether a limit's denial denies the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It does.
    #[default]
    Enforce,
    /// It is only reported; the limit is charged when the others allow the request.
    Shadow,
}

/// What happens to a request that the store cannot count: memory is full of keys that are at their
/// limits, or Redis does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// It goes on.
    Allow,
    /// It is refused.
    Deny,
    /// It is counted in this process's memory, by this node's share of the limit. Where that is the
    /// store that fails there is no other to count in, and it goes on.
    #[default]
    Local,
}

impl OnFailure {
    /// The answer when there is nowhere left to count.
    pub(crate) const fn uncounted(self) -> Taken {
        Taken::Uncounted { is_allowed: !matches!(self, Self::Deny) }
    }
}

/// A store's answer to one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// A counter decided.
    Counted(Counted),
    /// A limit decided, and this is what it said.
    Decided {
        /// What it said.
        decision: Decision,
        /// Names the charge, so that it can be given back.
        receipt: Receipt,
    },
    /// Nobody could count, and nothing was charged.
    Uncounted {
        /// Whether the request goes on all the same.
        is_allowed: bool,
    },
}

/// What a counter did. The decision is worked out when it is asked for: most callers only want to
/// know whether they may go on, and the figures take more time than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    pub(crate) key: Fingerprint,
    pub(crate) number: u32,
    pub(crate) counter: Counter,
    pub(crate) step: Step,
    pub(crate) now: Timestamp,
    pub(crate) cost: Cost,
}

impl Taken {
    /// Whether this limit lets the request go on.
    #[inline]
    pub fn is_allowed(&self) -> bool {
        match self {
            Self::Counted(counted) => counted.step.is_allowed,
            Self::Decided { decision, .. } => decision.is_allowed(),
            Self::Uncounted { is_allowed } => *is_allowed,
        }
    }

    /// How long an allowed request is to be held.
    #[inline]
    pub fn delay(&self) -> Micros {
        match self {
            Self::Counted(counted) => counted.step.delay,
            Self::Decided { decision, .. } => decision.delay(),
            Self::Uncounted { .. } => Micros::ZERO,
        }
    }

    /// What the limit said, if it could.
    pub fn decision(&self) -> Option<Decision> {
        match self {
            Self::Counted(it) => Some(it.counter.tell(&it.step, it.now, it.cost)),
            Self::Decided { decision, .. } => Some(*decision),
            Self::Uncounted { .. } => None,
        }
    }

    /// What the limit would say to the same request once more, right away.
    pub fn repeated(&self) -> Option<Decision> {
        match self {
            Self::Counted(it) => Some(it.counter.decide(it.step.word, it.now, it.cost).decision),
            Self::Decided { .. } | Self::Uncounted { .. } => self.decision(),
        }
    }

    /// A number for the key, the same for all charges of it and scattered over all numbers, and whether
    /// the limit lets the request go on; none if nobody could count.
    #[inline]
    pub fn counted(&self) -> Option<(u64, bool)> {
        match self {
            Self::Counted(counted) => Some((counted.key.number(), counted.step.is_allowed)),
            Self::Decided { decision, receipt } => {
                Some((receipt.key.number(), decision.is_allowed()))
            }
            Self::Uncounted { .. } => None,
        }
    }

    /// When it was decided, by the clock of this process's memory; none if it was not decided there, or
    /// the limit keeps a log.
    #[inline]
    pub fn counted_at(&self) -> Option<Timestamp> {
        match self {
            Self::Counted(counted) => Some(counted.now),
            Self::Decided { .. } | Self::Uncounted { .. } => None,
        }
    }

    /// What gives the charge back, if one was made.
    pub fn receipt(&self) -> Option<Receipt> {
        self.open_receipt().filter(|receipt| receipt.cost != Cost::PEEK)
    }

    /// The same, also of nothing: what was only looked at can be settled, and is charged then.
    pub fn open_receipt(&self) -> Option<Receipt> {
        Some(match self {
            Self::Counted(it) => {
                let tollgate_core::Receipt { at, cost, debt_before } = it.step.receipt;
                let kept = Kept::Memory;
                Receipt { key: it.key, limit: it.number, cost, at, mark: debt_before, kept }
            }
            Self::Decided { receipt, .. } => *receipt,
            Self::Uncounted { .. } => return None,
        })
    }

    /// The same, once: from then on this answer has none.
    pub fn take_receipt(&mut self) -> Option<Receipt> {
        let taken = self.receipt();
        match self {
            Self::Counted(it) => it.step.receipt.cost = Cost::PEEK,
            Self::Decided { receipt, .. } => receipt.cost = Cost::PEEK,
            Self::Uncounted { .. } => {}
        }
        taken
    }
}

/// Names one charge of one key, so that it can be given back, once: a counter cannot tell whether
/// it was given back before, so whoever holds the receipt sees to that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    pub(crate) key: Fingerprint,
    /// The number of the limit it was charged under.
    pub(crate) limit: u32,
    /// Zero if nothing was charged.
    pub(crate) cost: Cost,
    pub(crate) at: Timestamp,
    /// Of a counter what it owed before, of a log the charge's id.
    pub(crate) mark: u64,
    /// Where it was charged.
    pub(crate) kept: Kept,
}

/// Where a charge was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// In this process's memory.
    Memory,
    /// In Redis.
    #[cfg(feature = "redis")]
    Redis,
    /// From units that were taken from Redis in advance.
    #[cfg(feature = "redis")]
    Lease,
}

impl Receipt {
    /// Of a request that took nothing, under the limit of this number.
    pub(crate) const fn of_nothing(key: Fingerprint, limit: u32) -> Self {
        Self { key, limit, cost: Cost::PEEK, at: Timestamp::EPOCH, mark: 0, kept: Kept::Memory }
    }
}
