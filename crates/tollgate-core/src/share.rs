//! A limit's share: what one of several nodes may admit when each counts by itself.

use crate::bounds::CAPACITY_TICKS_MAX;
use crate::{Algorithm, Limit};

impl Limit {
    /// The limit divided by `nodes`, rounded down, but never less than one unit: a node alone must
    /// be able to admit somebody. A limit of nothing stays one.
    #[must_use]
    pub fn share(&self, nodes: u32) -> Self {
        let nodes = nodes.max(1);
        let part = |units: u64| if units == 0 { 0 } else { (units / u64::from(nodes)).max(1) };
        let mut numbers = self.numbers();
        match self.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                let [per_unit, per_micro, burst, ..] = numbers;
                let [per_unit, per_micro] = slowed([per_unit, per_micro], nodes, part(burst));
                numbers[..3].copy_from_slice(&[per_unit, per_micro, part(burst)]);
            }
            Algorithm::SlidingWindow
            | Algorithm::FixedWindow
            | Algorithm::SlidingLog
            | Algorithm::Concurrency => numbers[0] = part(numbers[0]),
        }
        Self::from_numbers(self.algorithm(), numbers).expect("a part of a limit is a limit")
    }
}

/// The ticks a unit costs and those a microsecond repays, for a rate `nodes` times slower and a
/// bucket of `burst`: exact where that fits, else rounded against the caller.
fn slowed([per_unit, per_micro]: [u64; 2], nodes: u32, burst: u64) -> [u64; 2] {
    let exact = u128::from(per_unit) * u128::from(nodes);
    let most = CAPACITY_TICKS_MAX / burst.max(1);
    if exact <= u128::from(most) {
        return [exact as u64, per_micro];
    }
    let coarser = (u128::from(most) * u128::from(per_micro) / exact).max(1);
    let per_unit = (coarser * exact).div_ceil(u128::from(per_micro)).min(u128::from(most));
    [per_unit as u64, coarser as u64]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Align, Cost, Counter, Log, Micros, Quota, Timestamp, Word};

    const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    /// How much is admitted in ten periods of a minute by a caller who asks all the time.
    fn admitted(limit: &Limit) -> u32 {
        let (mut word, mut log, mut units) = (Word::VACANT, Log::default(), 0);
        for second in 0..600 {
            let now = START.plus(Micros::from_secs(second));
            while match limit {
                Limit::Counter(counter) => {
                    let step = counter.step(word, now, Cost::ONE);
                    word = step.word;
                    step.is_allowed
                }
                Limit::Logged(logged) => {
                    let id = crate::ChargeId(u64::from(units) + 1);
                    let next = logged.decide(&log, now, Cost::ONE, id);
                    log.apply(next.change);
                    next.decision.is_allowed()
                }
            } {
                units += 1;
            }
        }
        units
    }

    fn limit_of(algorithm: Algorithm, count: u32) -> Limit {
        let quota = Quota::per_minute(count);
        match algorithm {
            Algorithm::SlidingWindow => Limit::sliding_window(quota),
            Algorithm::TokenBucket => Limit::token_bucket(quota, count).expect("it refills"),
            Algorithm::LeakyBucket => Limit::leaky_bucket(quota, count, None).expect("it drains"),
            Algorithm::FixedWindow => Limit::fixed_window(quota, Align::Clock),
            Algorithm::SlidingLog => Limit::sliding_log(quota).expect("it is short"),
            Algorithm::Concurrency => {
                Limit::concurrency(count, Micros::from_secs(60)).expect("there are few")
            }
        }
    }

    #[test]
    fn the_shares_of_all_nodes_together_admit_what_the_limit_does_and_no_more() {
        for algorithm in Algorithm::ALL {
            let limit = limit_of(algorithm, 1_200);
            for nodes in [1, 2, 3, 7, 100] {
                let (whole, share) = (admitted(&limit), admitted(&limit.share(nodes)));
                // The estimate of a sliding window rounds by a unit a window, in every share.
                let is_estimate = algorithm == Algorithm::SlidingWindow;
                let together = share * nodes - if is_estimate { 20 * nodes } else { 0 };
                assert!(together <= whole, "{algorithm} over {nodes}: {together} of {whole}");
                assert!(
                    together * 10 >= whole * 8,
                    "{algorithm} over {nodes}: {together} of {whole}"
                );
            }
        }
    }

    #[test]
    fn a_share_is_one_unit_at_least_unless_the_limit_is_nothing() {
        for algorithm in Algorithm::ALL {
            assert_eq!(limit_of(algorithm, 3).share(1_000).capacity(), 1, "{algorithm}");
            assert_eq!(limit_of(algorithm, 3).share(0), limit_of(algorithm, 3), "{algorithm}");
            assert_eq!(limit_of(algorithm, 0).share(10).capacity(), 0, "{algorithm}");
        }
    }

    #[test]
    fn a_bucket_too_fine_for_more_ticks_is_slowed_against_the_caller() {
        let quota = Quota::new(u32::MAX - 4, Micros::from_secs(86_400 * 365)).expect("a quota");
        let limit = Limit::token_bucket(quota, u32::MAX).expect("it refills");
        let Limit::Counter(Counter::TokenBucket(share)) = limit.share(7) else { unreachable!() };
        let Limit::Counter(Counter::TokenBucket(whole)) = limit else { unreachable!() };
        let [unit, micro, ..] = whole.numbers().map(u128::from);
        let [share_unit, share_micro, ..] = share.numbers().map(u128::from);
        // A unit takes unit / micro; of the share it takes seven times that, and hardly more.
        assert!(share_unit * micro >= unit * share_micro * 7);
        assert!(share_unit * micro * 1_000_000 <= unit * share_micro * 7 * 1_000_001);
    }
}
