//! How much is written down: which share of denials, and how many lines at most.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tollgate::{Cost, Counter, Limit, Outcome, Quota, Timestamp, Word};

/// Draws some denials out of many.
#[derive(Debug)]
pub(super) struct Sample {
    /// How many of a million are drawn.
    share: u32,
    turn: AtomicU32,
}

impl Sample {
    pub(super) fn new(share: u32) -> Self {
        Self { share, turn: AtomicU32::new(0) }
    }

    /// For how many denials the next one stands, in thousandths; nothing if it is not drawn.
    pub(super) fn draw(&self) -> Option<u64> {
        // Steps of the golden ratio come by every part of a circle evenly, and in step with nothing
        // that callers do.
        let turn = self.turn.fetch_add(0x9E37_79B9, Ordering::Relaxed);
        let place = (u64::from(turn) * 1_000_000) >> 32;
        (place < u64::from(self.share)).then(|| 1_000_000_000 / u64::from(self.share))
    }
}

/// So many lines in so much time.
#[derive(Debug)]
pub(super) struct Allowance {
    bucket: Counter,
    word: Mutex<Word>,
    /// Before this, in microseconds, there is nothing in it: whoever comes need not ask.
    empty_until: AtomicU64,
}

impl Allowance {
    /// What `rate` allows, all of it at once if it must be.
    pub(super) fn new(rate: Quota) -> Self {
        let Ok(Limit::Counter(bucket)) = Limit::token_bucket(rate, rate.count()) else {
            unreachable!("a bucket that holds what its rate counts refills within its period");
        };
        Self { bucket, word: Mutex::default(), empty_until: AtomicU64::new(0) }
    }

    /// Whether one more line may be written.
    pub(super) fn take(&self, now: Timestamp) -> bool {
        if now.as_micros() < self.empty_until.load(Ordering::Relaxed) {
            return false;
        }
        let mut word = self.word.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = self.bucket.decide(*word, now, Cost::ONE);
        *word = taken.word;
        if let Outcome::Denied { retry_after: Some(wait) } = taken.decision.outcome {
            self.empty_until.store(now.plus(wait).as_micros(), Ordering::Relaxed);
        }
        taken.decision.is_allowed()
    }
}

#[cfg(test)]
mod tests {
    use tollgate::Micros;

    use super::*;

    #[test]
    fn the_share_that_is_drawn_is_the_share_that_is_asked_for() {
        for share in [0, 1, 5_000, 333_333, 999_999, 1_000_000] {
            let sample = Sample::new(share);
            let drawn = (0..1_000_000).filter_map(|_| sample.draw());
            let (count, stands_for) =
                drawn.fold((0_u64, 0_u64), |(count, sum), it| (count + 1, sum + it));
            assert!(
                count.abs_diff(u64::from(share)) <= 1 + u64::from(share) / 1_000,
                "{share}: {count}"
            );
            let told = stands_for / 1_000;
            assert!(share < 5_000 || told.abs_diff(1_000_000) < 5_000, "{share}: {told}");
        }
    }

    #[test]
    fn denials_that_come_in_a_pattern_are_drawn_from_every_place_of_it() {
        let sample = Sample::new(100_000);
        let mut drawn = [0; 10];
        for turn in 0..100_000 {
            drawn[turn % 10] += u32::from(sample.draw().is_some());
        }
        assert!(drawn.iter().all(|drawn| (900..1_100).contains(drawn)), "{drawn:?}");
    }

    #[test]
    fn no_more_is_allowed_than_the_rate_and_that_at_all_times() {
        let allowance = Allowance::new(Quota::per_second(10));
        let at = |millis: u64| Timestamp::from_micros(1_000_000).plus(Micros::from_millis(millis));
        let taken = |millis| (0..1_000).filter(|_| allowance.take(at(millis))).count();
        assert_eq!([taken(0), taken(99), taken(100), taken(350), taken(10_000)], [10, 0, 1, 2, 10]);
    }
}
