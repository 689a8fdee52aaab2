//! Whose turn it is: which shard a thread counts in, and which of its requests are looked at closely.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use super::SAMPLED_ONE_IN;

/// What a thread knows when it begins a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    thread: u32,
    /// Whether this request is one of those that are looked at closely.
    pub(crate) is_sampled: bool,
}

#[derive(Clone, Copy)]
struct Thread {
    /// Its number; none has zero.
    number: u32,
    /// Requests until the next that is looked at closely.
    left: u32,
    random: u32,
}

thread_local! {
    static THREAD: Cell<Thread> = const { Cell::new(Thread { number: 0, left: 1, random: 0 }) };
}

impl Turn {
    /// The next request of this thread.
    #[inline]
    pub(crate) fn next() -> Self {
        THREAD.with(|cell| {
            let mut thread = cell.get();
            thread.left -= 1;
            let is_sampled = thread.left == 0;
            if is_sampled {
                thread.sampled();
            }
            cell.set(thread);
            Self { thread: thread.number, is_sampled }
        })
    }

    /// Which of so many shards it counts in; they are a power of two.
    #[inline]
    pub(crate) fn shard(self, shards: usize) -> usize {
        self.thread as usize & (shards - 1)
    }
}

impl Thread {
    /// Says when the next one is. It comes after an uneven number of requests: a caller that sends a
    /// hundred in turn would otherwise be looked at in the same place every time.
    #[cold]
    fn sampled(&mut self) {
        static THREADS: AtomicU32 = AtomicU32::new(1);
        if self.number == 0 {
            self.number = THREADS.fetch_add(1, Ordering::Relaxed).max(1);
            self.random = self.number.wrapping_mul(0x9E37_79B9) | 1;
        }
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        self.left = 1 + self.random % (2 * SAMPLED_ONE_IN - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_in_so_many_is_looked_at_and_a_threads_first_one_always() {
        let sampled = std::thread::spawn(|| {
            const TURNS: u32 = 100_000;
            assert!(Turn::next().is_sampled);
            let sampled = (0..TURNS).filter(|_| Turn::next().is_sampled).count() as u32;
            TURNS / sampled
        });
        let one_in = sampled.join().expect("no panic");
        assert!((SAMPLED_ONE_IN - 4..=SAMPLED_ONE_IN + 4).contains(&one_in), "one in {one_in}");
    }

    #[test]
    fn requests_that_come_in_a_pattern_are_looked_at_in_every_place_of_it() {
        let places = std::thread::spawn(|| {
            let mut places = [false; 64];
            for turn in 0..64 * 2_000 {
                places[turn % 64] |= Turn::next().is_sampled;
            }
            places
        });
        assert!(places.join().expect("no panic").into_iter().all(|it| it));
    }
}
