//! Whose turn it is: which shard a thread counts in, and which of its requests are looked at closely.
//!
//! Each is while they come slowly, and one in at most [`SAMPLED_ONE_IN`] when they come fast. One that is
//! looked at counts for as many as come on average until one is, so whatever is added up over them is
//! neither too large nor too small on average.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use tollgate_core::{Micros, Timestamp};
use tollgate_store::{Clock, Started};

use super::SAMPLED_ONE_IN;

/// What a thread knows when it begins a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turn {
    thread: u32,
    /// How many requests this one is looked at for; zero if it is not.
    weight: u32,
}

#[derive(Clone, Copy)]
struct Thread {
    /// Its number; none has zero.
    number: u32,
    /// Requests until the next that is looked at closely.
    left: u32,
    /// Of how many one is.
    period: u32,
    random: u32,
    /// When the last one came.
    last: Timestamp,
    denials: Denials,
}

/// The denials of a thread.
#[derive(Clone, Copy)]
struct Denials {
    /// Since when they are counted.
    since: Timestamp,
    /// How many there were since.
    count: u32,
    /// Denials until the next that is looked at, when there were many.
    left: u32,
}

/// Between requests that are looked at, a thread leaves no less than this if it can, and no more than
/// four times as much if there are others.
const OFTEN: Micros = Micros::new(500);
const SELDOM: Micros = Micros::new(2_000);

/// A thread looks at so many denials one by one, in so long.
const DENIALS_LOOKED_AT: u32 = 100;
const DENIALS_PERIOD: Micros = Micros::from_millis(100);

thread_local! {
    static THREAD: Cell<Thread> = const { Cell::new(Thread::NEW) };
}

impl Turn {
    /// The next request of this thread, and when it began if it is looked at.
    #[inline]
    pub(crate) fn next(clock: &Clock) -> (Self, Option<Started>) {
        THREAD.with(|cell| {
            let mut thread = cell.get();
            thread.left -= 1;
            let (mut weight, mut started) = (0, None);
            if thread.left == 0 {
                let now = clock.start();
                weight = thread.look(clock.at(now));
                started = Some(now);
            }
            cell.set(thread);
            (Self { thread: thread.number, weight }, started)
        })
    }

    /// How many requests this one is looked at for; zero if it is not.
    #[inline]
    pub(crate) fn weight(self) -> u32 {
        self.weight
    }

    /// How many denials one is looked at for that comes now; zero if it is not.
    pub(crate) fn weight_of_denial(now: Timestamp) -> u32 {
        THREAD.with(|cell| {
            let mut thread = cell.get();
            let weight = thread.deny(now);
            cell.set(thread);
            weight
        })
    }

    /// Which of so many shards it counts in; they are a power of two.
    #[inline]
    pub(crate) fn shard(self, shards: usize) -> usize {
        self.thread as usize & (shards - 1)
    }
}

impl Thread {
    const NEW: Self = Self {
        number: 0,
        left: 1,
        period: 1,
        random: 0,
        last: Timestamp::EPOCH,
        denials: Denials { since: Timestamp::EPOCH, count: 0, left: 1 },
    };

    /// Says what the request counts for, and when the next is looked at.
    #[cold]
    fn look(&mut self, now: Timestamp) -> u32 {
        let weight = self.period;
        let passed = now.since(self.last);
        if passed > SELDOM {
            self.period = (self.period / 2).max(1);
        } else if passed < OFTEN && now >= self.last {
            // A clock that stepped back tells nothing.
            self.period = (2 * self.period).min(SAMPLED_ONE_IN);
        }
        self.last = now;
        self.left = self.gap(self.period);
        weight
    }

    /// The same of a denial.
    fn deny(&mut self, now: Timestamp) -> u32 {
        let Denials { since, count, left } = &mut self.denials;
        // Also if the clock stepped back.
        if now < *since || now.since(*since) >= DENIALS_PERIOD {
            (*since, *count) = (now, 0);
        }
        *count += 1;
        if *count <= DENIALS_LOOKED_AT {
            return 1;
        }
        *left -= 1;
        if *left > 0 {
            return 0;
        }
        self.denials.left = self.gap(SAMPLED_ONE_IN);
        SAMPLED_ONE_IN
    }

    /// After how many the next comes, if that is `average` on average. It is an uneven number: a caller
    /// that sends a hundred in turn would otherwise be looked at in the same place every time.
    fn gap(&mut self, average: u32) -> u32 {
        static THREADS: AtomicU32 = AtomicU32::new(1);
        // A thread may settle what others began before it begins anything.
        if self.number == 0 {
            self.number = THREADS.fetch_add(1, Ordering::Relaxed).max(1);
            self.random = self.number.wrapping_mul(0x9E37_79B9) | 1;
        }
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        1 + self.random % (2 * average - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const START: Timestamp = Timestamp::from_micros(1_760_000_000_000_000);

    /// What each of so many requests of a new thread is looked at for, when they come so far apart.
    fn weights(turns: usize, apart_micros: u64) -> Vec<u32> {
        let weights = thread::spawn(move || {
            let clock = Clock::manual(START);
            let weight = |_| {
                clock.advance(Micros::new(apart_micros));
                Turn::next(&clock).0.weight()
            };
            (0..turns).map(weight).collect()
        });
        weights.join().expect("no panic")
    }

    #[test]
    fn requests_that_come_slowly_are_all_looked_at() {
        assert!(weights(1_000, 1_000).iter().all(|weight| *weight == 1));
    }

    #[test]
    fn of_requests_that_come_fast_one_in_so_many_is_looked_at_and_the_first_one_always() {
        for (apart_micros, one_in) in [(0, 54..=74), (1, 54..=74), (100, 5..=20)] {
            let weights = weights(100_000, apart_micros);
            assert_eq!(weights[0], 1);
            let looked_at = weights.iter().filter(|weight| **weight > 0).count();
            assert!(one_in.contains(&(100_000 / looked_at)), "one in {}", 100_000 / looked_at);
        }
    }

    #[test]
    fn those_that_are_looked_at_stand_for_all() {
        for apart_micros in [0, 7, 40, 90, 300, 600] {
            let sum: u32 = weights(200_000, apart_micros).iter().sum();
            // 64 at a time: gaps spread by 37 make it 2,100 of 200,000, and this is five times that.
            assert!(sum.abs_diff(200_000) < 10_500, "{sum} at {apart_micros}");
        }
    }

    #[test]
    fn a_thread_that_becomes_quiet_looks_at_every_request_again() {
        let sum: u32 = thread::spawn(|| {
            let clock = Clock::manual(START);
            for _ in 0..10_000 {
                Turn::next(&clock);
            }
            let quiet = |_| {
                clock.advance(Micros::from_millis(10));
                Turn::next(&clock).0.weight()
            };
            let until_it_is_quiet: u32 = (0..1_000).map(quiet).sum();
            assert!(until_it_is_quiet > 0);
            (0..100).map(quiet).sum()
        })
        .join()
        .expect("no panic");
        assert_eq!(sum, 100);
    }

    #[test]
    fn requests_that_come_in_a_pattern_are_looked_at_in_every_place_of_it() {
        let weights = weights(64 * 2_000, 0);
        let is_seen = |place: usize| weights[place..].iter().step_by(64).any(|it| *it > 0);
        assert!((0..64).all(is_seen));
    }

    #[test]
    fn denials_are_looked_at_one_by_one_until_there_are_many() {
        let mut thread = Thread::NEW;
        let mut sum = |now: Timestamp, count: u32| {
            let weights: Vec<u32> = (0..count).map(|_| thread.deny(now)).collect();
            (weights.iter().filter(|weight| **weight > 0).count(), weights.iter().sum::<u32>())
        };
        assert_eq!(sum(START, 100), (100, 100));
        let (looked_at, stand_for) = sum(START, 64_000);
        assert!((900..=1_100).contains(&looked_at), "{looked_at}");
        assert!(stand_for.abs_diff(64_000) < 6_400, "{stand_for}");
        assert_eq!(sum(START.plus(DENIALS_PERIOD), 100), (100, 100));
        assert_eq!(sum(Timestamp::EPOCH, 100), (100, 100), "a clock that stepped back");
    }
}
