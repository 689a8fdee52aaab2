//! Whose turn it is: which of a thread's requests are looked at closely.
//!
//! Each is while they are few or come slowly, and one in at most [`SAMPLED_ONE_IN`] when they come fast. One that is
//! looked at counts for as many as come on average until one is, so whatever is added up over them is
//! neither too large nor too small on average.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use tollgate_core::{Micros, Timestamp};
use tollgate_store::{Clock, Started};

use super::SAMPLED_ONE_IN;

/// How many requests the one is looked at for that a thread has begun; zero if it is not.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turn(u32);

/// How fast a thread's requests come.
#[derive(Clone, Copy)]
struct Pace {
    /// Of how many one is looked at.
    period: u32,
    /// When the last one came that was.
    last: Timestamp,
    /// Since when they are counted that are looked at, and how many there were.
    since: Timestamp,
    count: u32,
}

/// The denials of a thread.
#[derive(Clone, Copy)]
struct Denials {
    /// Since when they are counted.
    since: Timestamp,
    /// How many there were since; no more than are looked at one by one.
    count: u32,
    /// Denials until the next that is looked at, when there were many; zero before the first is.
    left: u32,
}

/// Between requests that are looked at, a thread leaves no less than this if it can, and no more than
/// four times as much if there are others.
const OFTEN: Micros = Micros::new(500);
const SELDOM: Micros = Micros::new(2_000);

/// A thread looks at so many requests one by one, and at so many denials, in so long.
const LOOKED_AT: u32 = 100;
const LOOKED_AT_PERIOD: Micros = Micros::from_millis(100);

/// And of those beyond at one in so many, on average.
const DENIALS_ONE_IN: u32 = 64;

thread_local! {
    /// Requests until the next that is looked at closely.
    static LEFT: Cell<u32> = const { Cell::new(1) };
    static PACE: Cell<Pace> = const { Cell::new(Pace::NEW) };
    static DENIALS: Cell<Denials> = const { Cell::new(Denials::NEW) };
    /// Zero before the first is drawn.
    static RANDOM: Cell<u32> = const { Cell::new(0) };
}

impl Turn {
    /// The next request of this thread, and when it began if it is looked at.
    #[inline]
    pub(crate) fn next(clock: &Clock) -> (Self, Option<Started>) {
        let left = LEFT.get() - 1;
        LEFT.set(left);
        if left > 0 {
            return (Self(0), None);
        }
        let started = clock.start();
        (Self(Pace::look(clock.at(started))), Some(started))
    }

    /// How many requests this one is looked at for; zero if it is not.
    #[inline]
    pub(crate) fn weight(self) -> u32 {
        self.0
    }

    /// How many denials one is looked at for that comes now; zero if it is not.
    #[inline]
    pub(crate) fn weight_of_denial(now: Timestamp) -> u32 {
        let denials = DENIALS.get();
        // When many come, most of them end here.
        if denials.are_many() && denials.left > 1 && is_same_period(denials.since, now) {
            DENIALS.set(Denials { left: denials.left - 1, ..denials });
            return 0;
        }
        Denials::look(now)
    }
}

impl Pace {
    const NEW: Self = Self { period: 1, last: Timestamp::EPOCH, since: Timestamp::EPOCH, count: 0 };

    /// Says what the request counts for, and when the next is looked at.
    #[cold]
    fn look(now: Timestamp) -> u32 {
        let Self { period: weight, last, mut since, mut count } = PACE.get();
        if !is_same_period(since, now) {
            (since, count) = (now, 0);
        }
        count = count.saturating_add(1);
        let passed = now.since(last);
        // A clock that stepped back tells nothing.
        let period = match passed {
            passed if passed >= LOOKED_AT_PERIOD => 1,
            passed if passed > SELDOM => (weight / 2).max(1),
            passed if passed < OFTEN && now >= last && count >= LOOKED_AT => {
                (2 * weight).min(SAMPLED_ONE_IN)
            }
            _ => weight,
        };
        PACE.set(Self { period, last: now, since, count });
        LEFT.set(gap(period));
        weight
    }
}

impl Denials {
    const NEW: Self = Self { since: Timestamp::EPOCH, count: 0, left: 0 };

    #[inline]
    fn are_many(self) -> bool {
        self.count == LOOKED_AT
    }

    /// The same as [`Pace::look`] of a denial.
    #[inline(never)]
    fn look(now: Timestamp) -> u32 {
        let mut denials = DENIALS.get();
        if !is_same_period(denials.since, now) {
            (denials.since, denials.count) = (now, 0);
        }
        if denials.left == 0 {
            denials.left = gap(DENIALS_ONE_IN);
        }
        let weight = if !denials.are_many() {
            denials.count += 1;
            1
        } else if denials.left > 1 {
            denials.left -= 1;
            0
        } else {
            denials.left = gap(DENIALS_ONE_IN);
            DENIALS_ONE_IN
        };
        DENIALS.set(denials);
        weight
    }
}

/// Not if the clock stepped back.
#[inline]
fn is_same_period(since: Timestamp, now: Timestamp) -> bool {
    now >= since && now.since(since) < LOOKED_AT_PERIOD
}

/// After how many the next comes, if that is `average` on average. It is an uneven number: a caller
/// that sends a hundred in turn would otherwise be looked at in the same place every time.
fn gap(average: u32) -> u32 {
    static THREADS: AtomicU32 = AtomicU32::new(1);
    let mut random = RANDOM.get();
    if random == 0 {
        random = THREADS.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9E37_79B9) | 1;
    }
    random ^= random << 13;
    random ^= random >> 17;
    random ^= random << 5;
    RANDOM.set(random);
    1 + random % (2 * average - 1)
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
    fn a_few_that_come_fast_are_all_looked_at() {
        assert!(weights(100, 0).iter().all(|weight| *weight == 1));
    }

    #[test]
    fn of_requests_that_come_fast_one_in_so_many_is_looked_at_and_the_first_one_always() {
        for (apart_micros, one_in) in [(0, 216..=296), (1, 216..=296), (100, 5..=20)] {
            let weights = weights(400_000, apart_micros);
            assert_eq!(weights[0], 1);
            let looked_at = weights.iter().filter(|weight| **weight > 0).count();
            assert!(one_in.contains(&(400_000 / looked_at)), "one in {}", 400_000 / looked_at);
        }
    }

    #[test]
    fn those_that_are_looked_at_stand_for_all() {
        for apart_micros in [0, 7, 40, 90, 300, 600] {
            let sum: u32 = weights(800_000, apart_micros).iter().sum();
            // 256 at a time: gaps spread by 148 make it 8,300 of 800,000, and this is five times that.
            assert!(sum.abs_diff(800_000) < 41_500, "{sum} at {apart_micros}");
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
        let weights = weights(64 * 8_000, 0);
        let is_seen = |place: usize| weights[place..].iter().step_by(64).any(|it| *it > 0);
        assert!((0..64).all(is_seen));
    }

    #[test]
    fn the_first_denial_of_many_counts_for_no_more_than_those_that_follow() {
        let last_of_101 = |_| {
            let weights = || (0..101).fold(0, |_, _| Turn::weight_of_denial(START));
            thread::spawn(weights).join().expect("no panic")
        };
        let sum: u32 = (0..100).map(last_of_101).sum();
        assert!(
            sum <= 5 * DENIALS_ONE_IN,
            "about one in {DENIALS_ONE_IN} for {DENIALS_ONE_IN}: {sum}"
        );
    }

    #[test]
    fn denials_are_looked_at_one_by_one_until_there_are_many() {
        let sum = |now: Timestamp, count: u32| {
            let weights: Vec<u32> = (0..count).map(|_| Turn::weight_of_denial(now)).collect();
            (weights.iter().filter(|weight| **weight > 0).count(), weights.iter().sum::<u32>())
        };
        assert_eq!(sum(START, 100), (100, 100));
        let (looked_at, stand_for) = sum(START, 64_000);
        assert!((900..=1_100).contains(&looked_at), "{looked_at}");
        assert!(stand_for.abs_diff(64_000) < 6_400, "{stand_for}");
        assert_eq!(sum(START.plus(LOOKED_AT_PERIOD), 100), (100, 100));
        assert_eq!(sum(Timestamp::EPOCH, 100), (100, 100), "a clock that stepped back");
    }
}
