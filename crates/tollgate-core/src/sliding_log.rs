//! Sliding log: remembers every allowed request, and so is exact.
//!
//! In any stretch as long as the period, never more than the count is admitted. The price is
//! memory: an entry for each request of the last period.
//!
//! The Redis twin of this file is `lua/sliding_log.lua`.

use crate::bounds::LOG_ENTRIES_MAX;
use crate::held::Holding;
use crate::{Quota, QuotaError};

/// So many units in any period, exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingLog {
    quota: Quota,
}

impl SlidingLog {
    /// The quota's count in any of its periods; at most 100,000 of them are remembered.
    pub fn new(quota: Quota) -> Result<Self, QuotaError> {
        if quota.count() > LOG_ENTRIES_MAX {
            return Err(QuotaError::LogTooLong { count: quota.count() });
        }
        Ok(Self { quota })
    }

    /// The numbers that define this limit to its Redis twin: count and period.
    pub fn numbers(&self) -> [u64; 2] {
        [u64::from(self.quota.count()), self.quota.period().as_micros()]
    }

    pub(crate) const fn holding(&self) -> Holding {
        Holding { most: self.quota.count(), hold: self.quota.period(), end_is_known: true }
    }
}
