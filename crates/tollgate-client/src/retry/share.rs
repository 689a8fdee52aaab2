//! How many requests may be retries.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::bounds::{RETRIES_SAVED_BY_REQUESTS_MAX, RETRIES_SAVED_BY_TIME_MAX};

/// Retries that may still be made to one service, earned by requests to it and, so that who sends little may
/// retry as well, by time.
#[derive(Debug)]
pub(crate) struct Share {
    saved: Mutex<Saved>,
}

/// In thousandths of a retry.
#[derive(Debug)]
struct Saved {
    by_requests: u64,
    by_time: u64,
    at: Instant,
}

impl Share {
    pub(crate) fn new(now: Instant) -> Self {
        let by_time = RETRIES_SAVED_BY_TIME_MAX * 1_000;
        Self { saved: Mutex::new(Saved { by_requests: 0, by_time, at: now }) }
    }

    /// A request is made that is no retry, of a hundred of which so many may be.
    pub(crate) fn earn(&self, percent: u32) {
        let mut saved = self.saved();
        let most = RETRIES_SAVED_BY_REQUESTS_MAX * 1_000;
        saved.by_requests = (saved.by_requests + u64::from(percent) * 10).min(most);
    }

    /// Whether a retry may be made; then it is taken off.
    pub(crate) fn spend(&self, now: Instant) -> bool {
        self.with_saved(now, |saved| {
            let purse = if saved.by_requests >= 1_000 {
                &mut saved.by_requests
            } else {
                &mut saved.by_time
            };
            let left = purse.checked_sub(1_000);
            *purse = left.unwrap_or(*purse);
            left.is_some()
        })
    }

    /// Whether a new one would allow no more.
    pub(crate) fn is_fresh(&self, now: Instant) -> bool {
        self.with_saved(now, |saved| saved.by_time == RETRIES_SAVED_BY_TIME_MAX * 1_000)
    }

    fn with_saved<T>(&self, now: Instant, change: impl FnOnce(&mut Saved) -> T) -> T {
        let mut saved = self.saved();
        // A millisecond earns a thousandth; what is left of one counts the next time.
        let earned = now.saturating_duration_since(saved.at).as_millis() as u64;
        saved.by_time = (saved.by_time + earned).min(RETRIES_SAVED_BY_TIME_MAX * 1_000);
        saved.at += Duration::from_millis(earned);
        change(&mut saved)
    }

    fn saved(&self) -> MutexGuard<'_, Saved> {
        self.saved.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
