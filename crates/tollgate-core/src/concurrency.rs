//! Concurrency: at most so many requests in flight at a time.
//!
//! A slot is held from admission until it is released; a holder that died gives it back when its
//! lease ends. When a slot comes back depends on the work, so a denial knows no wait.
//!
//! The Redis twin of this file is `lua/concurrency.lua`.

use crate::bounds::{LOG_ENTRIES_MAX, PERIOD_MICROS_MAX, PERIOD_MICROS_MIN};
use crate::held::Holding;
use crate::{Micros, QuotaError};

/// At most so many slots, each held under a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Concurrency {
    slots: u32,
    lease: Micros,
}

impl Concurrency {
    /// At most `slots` at a time; one that is never released comes back after `lease`.
    pub fn new(slots: u32, lease: Micros) -> Result<Self, QuotaError> {
        if slots > LOG_ENTRIES_MAX {
            return Err(QuotaError::LogTooLong { count: slots });
        }
        if !(PERIOD_MICROS_MIN..=PERIOD_MICROS_MAX).contains(&lease.as_micros()) {
            return Err(QuotaError::PeriodOutOfRange { period: lease });
        }
        Ok(Self { slots, lease })
    }

    /// The numbers that define this limit to its Redis twin: slots and lease.
    pub fn numbers(&self) -> [u64; 2] {
        [u64::from(self.slots), self.lease.as_micros()]
    }

    /// After how long a slot comes back that nobody released.
    pub const fn lease(&self) -> Micros {
        self.lease
    }

    pub(crate) const fn holding(&self) -> Holding {
        Holding { most: self.slots, hold: self.lease, end_is_known: false }
    }
}
