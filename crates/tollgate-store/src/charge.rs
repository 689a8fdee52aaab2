//! What a store is asked, and what it answers.

use tollgate_core::{ChargeId, Cost, Decision, Key};

use crate::enrolled::Enrolled;
use crate::fingerprint::Fingerprint;

/// One thing to be paid for: `cost` units under a limit, from the state named `key`.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// Whose state.
    pub key: Key<'a>,
    /// Under which limit, enrolled with the store that is asked.
    pub limit: &'a Enrolled,
    /// How many units.
    pub cost: Cost,
    /// Whether a denial counts.
    pub mode: Mode,
    /// Whether a denied request is charged all the same. Logged limits never are.
    pub count_denied: bool,
    /// What happens when the state cannot be kept.
    pub when_full: WhenFull,
}

impl<'a> Charge<'a> {
    /// One unit of an enforced limit.
    pub const fn new(key: Key<'a>, limit: &'a Enrolled) -> Self {
        Self {
            key,
            limit,
            cost: Cost::ONE,
            mode: Mode::Enforce,
            count_denied: false,
            when_full: WhenFull::Admit,
        }
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

/// What happens to a request whose state cannot be kept, because memory is full of keys that are
/// at their limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// It goes on, uncounted by this limit.
    #[default]
    Admit,
    /// It is denied.
    Refuse,
}

/// A store's answer to one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The limit decided.
    Decided {
        /// What it said.
        decision: Decision,
        /// Names the charge, if one was made that can be given back.
        receipt: Option<Receipt>,
    },
    /// There was no room to keep the state, and nothing was charged.
    Full(WhenFull),
}

impl Taken {
    /// Whether this limit lets the request go on.
    pub fn is_allowed(&self) -> bool {
        match self {
            Self::Decided { decision, .. } => decision.is_allowed(),
            Self::Full(when_full) => *when_full == WhenFull::Admit,
        }
    }

    /// What the limit said, if it could.
    pub fn decision(&self) -> Option<&Decision> {
        match self {
            Self::Decided { decision, .. } => Some(decision),
            Self::Full(_) => None,
        }
    }

    /// What gives the charge back, if one was made.
    pub fn receipt(&self) -> Option<Receipt> {
        match self {
            Self::Decided { receipt, .. } => *receipt,
            Self::Full(_) => None,
        }
    }
}

/// Names one charge of one key, so that it can be given back, once: a counter cannot tell whether
/// it was given back before, so whoever holds the receipt sees to that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    pub(crate) key: Fingerprint,
    pub(crate) limit: u32,
    pub(crate) charged: Charged,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Charged {
    Counter(tollgate_core::Receipt),
    Logged { id: ChargeId, cost: Cost },
}
