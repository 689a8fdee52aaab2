//! How long to wait when nobody says how long.
//!
//! Exponential, so that a server in trouble is asked ever more rarely; with full jitter, so that all
//! who failed at the same moment do not ask again at the same moment. Among the ways to add chance,
//! this one sends the fewest requests for the time it takes.

use std::time::Duration;

/// Waits that double.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    most: Duration,
}

impl Backoff {
    /// At most `first` before the first retry, twice that before the next, never more than `most`.
    pub const fn new(first: Duration, most: Duration) -> Self {
        Self { first, most }
    }

    /// The longest wait before a retry; the first is number 0.
    pub fn ceiling(&self, retry: u32) -> Duration {
        let factor = 1_u32.checked_shl(retry).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.most)
    }

    /// The wait before a retry: anything from nothing to the [ceiling](Self::ceiling), as `random`
    /// has it, each equally likely.
    pub fn wait(&self, retry: u32, random: u64) -> Duration {
        part_of(self.ceiling(retry), random)
    }
}

impl Default for Backoff {
    /// One second, doubling to 32.
    fn default() -> Self {
        Self::new(Duration::from_secs(1), Duration::from_secs(32))
    }
}

/// As much of `whole` as `random` is of all numbers.
pub(crate) fn part_of(whole: Duration, random: u64) -> Duration {
    let nanos = whole.as_nanos().min(u128::from(u64::MAX));
    Duration::from_nanos(((nanos * u128::from(random)) >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ceiling_doubles_up_to_the_most() {
        let seconds = |retry| Backoff::default().ceiling(retry).as_secs();
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 6, 31, 32, u32::MAX].map(seconds),
            [1, 2, 4, 8, 16, 32, 32, 32, 32, 32]
        );
    }

    #[test]
    fn a_wait_is_anything_below_the_ceiling() {
        let wait = |random| Backoff::default().wait(2, random).as_millis();
        assert_eq!([0, u64::MAX / 4, u64::MAX / 2, u64::MAX].map(wait), [0, 999, 1_999, 3_999]);
        assert_eq!(Backoff::new(Duration::MAX, Duration::MAX).wait(9, 0), Duration::ZERO);
    }
}
