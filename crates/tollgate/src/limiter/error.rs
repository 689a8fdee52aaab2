//! What can be wrong when a limiter is made.

use std::{error, fmt};

use tollgate_policy::Mistakes;
use tollgate_store::{TooManyLimits, Unreservable};

/// Why a limiter could not be made.
#[non_exhaustive]
pub enum LimiterError {
    /// The policy has mistakes.
    Policy(Mistakes),
    /// The store can tell no more limits apart.
    Limits(TooManyLimits),
    /// There is no memory for the store.
    Memory(Unreservable),
    /// The policy asks for a store that is not in this process's memory.
    OtherStore,
}

impl fmt::Debug for LimiterError {
    /// As for people: a `main` that returns this shows it so, and mistakes in a policy are lines.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for LimiterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy(mistakes) => mistakes.fmt(f),
            Self::Limits(error) => error.fmt(f),
            Self::Memory(error) => error.fmt(f),
            Self::OtherStore => {
                f.write_str("the policy asks for a Redis store, and this limiter counts in memory")
            }
        }
    }
}

impl error::Error for LimiterError {}

impl From<Mistakes> for LimiterError {
    fn from(mistakes: Mistakes) -> Self {
        Self::Policy(mistakes)
    }
}

impl From<TooManyLimits> for LimiterError {
    fn from(error: TooManyLimits) -> Self {
        Self::Limits(error)
    }
}

impl From<Unreservable> for LimiterError {
    fn from(error: Unreservable) -> Self {
        Self::Memory(error)
    }
}
