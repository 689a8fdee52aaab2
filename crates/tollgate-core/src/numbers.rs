//! A limit as plain numbers, to travel to a Redis script or to lie in a snapshot.

use crate::concurrency::Concurrency;
use crate::fixed_window::{Align, FixedWindow};
use crate::leaky_bucket::LeakyBucket;
use crate::limit::{Algorithm, Counter, Limit, Logged};
use crate::sliding_log::SlidingLog;
use crate::sliding_window::SlidingWindow;
use crate::token_bucket::TokenBucket;
use crate::{Micros, Quota};

/// As many numbers as the algorithm with the most has.
pub const NUMBERS: usize = 5;

impl Limit {
    /// The numbers that, with its algorithm, say all of a limit; zeroes after them.
    pub fn numbers(&self) -> [u64; NUMBERS] {
        match self {
            Self::Counter(Counter::SlidingWindow(limit)) => padded(&limit.numbers()),
            Self::Counter(Counter::TokenBucket(limit)) => padded(&limit.numbers()),
            Self::Counter(Counter::LeakyBucket(limit)) => padded(&limit.numbers()),
            Self::Counter(Counter::FixedWindow(limit)) => padded(&limit.numbers()),
            Self::Logged(Logged::SlidingLog(limit)) => padded(&limit.numbers()),
            Self::Logged(Logged::Concurrency(limit)) => padded(&limit.numbers()),
        }
    }

    /// The limit of an algorithm that has these [`numbers`](Self::numbers), if one has.
    pub fn from_numbers(algorithm: Algorithm, numbers: [u64; NUMBERS]) -> Option<Self> {
        let [first, second, third, fourth, _] = numbers;
        let quota = || Quota::new(u32::try_from(first).ok()?, Micros::new(second)).ok();
        let limit = match algorithm {
            Algorithm::SlidingWindow => Counter::SlidingWindow(SlidingWindow::new(quota()?)).into(),
            Algorithm::TokenBucket => {
                let bucket = TokenBucket::from_numbers([first, second, third, fourth])?;
                Counter::TokenBucket(bucket).into()
            }
            Algorithm::LeakyBucket => {
                Counter::LeakyBucket(LeakyBucket::from_numbers(numbers)?).into()
            }
            Algorithm::FixedWindow => {
                let align = if third == 0 { Align::Clock } else { Align::Key };
                Counter::FixedWindow(FixedWindow::new(quota()?, align)).into()
            }
            Algorithm::SlidingLog => Logged::SlidingLog(SlidingLog::new(quota()?).ok()?).into(),
            Algorithm::Concurrency => {
                let slots = u32::try_from(first).ok()?;
                Logged::Concurrency(Concurrency::new(slots, Micros::new(second)).ok()?).into()
            }
        };
        (Self::numbers(&limit) == numbers).then_some(limit)
    }
}

impl From<Counter> for Limit {
    fn from(counter: Counter) -> Self {
        Self::Counter(counter)
    }
}

impl From<Logged> for Limit {
    fn from(logged: Logged) -> Self {
        Self::Logged(logged)
    }
}

fn padded(numbers: &[u64]) -> [u64; NUMBERS] {
    let mut padded = [0; NUMBERS];
    padded[..numbers.len()].copy_from_slice(numbers);
    padded
}
