//! Counters that nobody waits for.
//!
//! A counter is one for each of some threads, who have theirs to themselves: to add to it is a load and a
//! store, where what several may change at once takes many times as long. Threads that come when all of
//! those are taken share others, one for each as well. A thread that ends leaves its own to the next.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;

use crate::bounds::METRICS_SHARDS_MAX;

/// So many things are counted in a line.
pub(super) const LINE: usize = 8;

/// Counters of several things, in shards.
#[derive(Clone, Debug)]
pub(super) struct Lines(Arc<[Shard]>);

#[derive(Debug, Default)]
pub(crate) struct Shard {
    own: Line,
    shared: Line,
}

/// One line of the processor's cache, so that no other thread's counters are in it.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line([AtomicU64; LINE]);

/// Which shard is a thread's own; beyond the last one of some counters it shares one.
#[derive(Debug)]
struct Own(usize);

/// Those that are some thread's own.
static TAKEN: AtomicU32 = AtomicU32::new(0);

const _: () = assert!(METRICS_SHARDS_MAX == u32::BITS as usize);

/// Of a thread that has not counted yet.
const UNKNOWN: usize = usize::MAX;

thread_local! {
    static PLACE: Cell<usize> = const { Cell::new(UNKNOWN) };
    /// Gives back what is the thread's own when it ends.
    static OWN: Cell<Option<Own>> = const { Cell::new(None) };
}

impl Lines {
    /// As many shards as threads can run at once.
    pub(super) fn new() -> Self {
        // Files are read to find out, and counters are made by the thousand.
        static THREADS: LazyLock<usize> =
            LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from));
        Self((0..THREADS.min(METRICS_SHARDS_MAX)).map(|_| Shard::default()).collect())
    }

    #[inline]
    pub(super) fn add(&self, thing: usize, count: u64) {
        let Some(shard) = self.0.get(PLACE.get()) else { return self.add_shared(thing, count) };
        // Nobody else changes it, so nothing is lost in between.
        let counter = &shard.own.0[thing];
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    #[cold]
    fn add_shared(&self, thing: usize, count: u64) {
        if PLACE.get() == UNKNOWN {
            PLACE.set(Own::claim());
            return self.add(thing, count);
        }
        let shard = &self.0[PLACE.get() % self.0.len()];
        shard.shared.0[thing].fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn sum(&self, thing: usize) -> u64 {
        let lines = self.0.iter().flat_map(|shard| [&shard.own, &shard.shared]);
        lines.map(|line| line.0[thing].load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    }
}

impl Own {
    /// The first that is free, and the thread's until it ends; or one past the last.
    fn claim() -> usize {
        // What its last owner counted is seen by the next.
        let claimed = TAKEN.fetch_update(Ordering::Acquire, Ordering::Relaxed, |taken| {
            (taken != u32::MAX).then(|| taken | (taken + 1))
        });
        let Ok(taken) = claimed else { return shared() };
        let place = taken.trailing_ones() as usize;
        let own = Self(place);
        // In a thread that is about to end nobody keeps it, so it is given back at once.
        let kept = OWN.try_with(move |kept| kept.set(Some(own)));
        kept.map_or_else(|_| shared(), |()| place)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        PLACE.set(shared());
        TAKEN.fetch_and(!(1 << self.0), Ordering::Release);
    }
}

/// A place that is nobody's own, another one each time.
fn shared() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    METRICS_SHARDS_MAX + (NEXT.fetch_add(1, Ordering::Relaxed) & 0xFFFF)
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, Mutex, PoisonError};

    use super::*;

    /// Held by who wants to know which places are taken.
    static PLACES: Mutex<()> = Mutex::new(());

    #[test]
    fn threads_that_count_at_once_lose_nothing_whether_they_have_a_line_to_themselves_or_not() {
        const THREADS: usize = 2 * METRICS_SHARDS_MAX;
        const EACH: u64 = 10_000;
        let _places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
        let (lines, all_are_there) = (Lines::new(), Barrier::new(THREADS));
        for round in 1..=3 {
            thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        lines.add(1, 1);
                        // Nobody's own is given back before everybody has asked for one.
                        all_are_there.wait();
                        (1..EACH).for_each(|_| lines.add(1, 1));
                    });
                }
            });
            assert_eq!(lines.sum(1), round * THREADS as u64 * EACH);
        }
        assert_eq!(lines.sum(0), 0);
    }

    #[test]
    fn what_a_thread_had_to_itself_is_the_next_threads() {
        let _places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
        let place = || {
            let counted = thread::spawn(|| {
                Lines::new().add(0, 1);
                PLACE.get()
            });
            counted.join().expect("no panic")
        };
        // Other tests have some of their own at the same time, but never as many.
        let places: Vec<usize> = (0..4 * METRICS_SHARDS_MAX).map(|_| place()).collect();
        assert!(places[3 * METRICS_SHARDS_MAX..].iter().any(|place| *place < METRICS_SHARDS_MAX));
    }

    #[test]
    fn a_thread_counts_while_it_ends() {
        struct Last(Lines);
        impl Drop for Last {
            fn drop(&mut self) {
                self.0.add(2, 1);
            }
        }
        thread_local!(static LAST: Cell<Option<Last>> = const { Cell::new(None) });
        let lines = Lines::new();
        let counted = lines.clone();
        let ends = thread::spawn(move || {
            // What is first used last is dropped first, or the other way round: both are tried.
            LAST.set(Some(Last(counted.clone())));
            counted.add(2, 1);
        });
        ends.join().expect("no panic");
        let counted = lines.clone();
        let ends = thread::spawn(move || {
            counted.add(2, 1);
            LAST.set(Some(Last(counted)));
        });
        ends.join().expect("no panic");
        assert_eq!(lines.sum(2), 4);
    }
}
