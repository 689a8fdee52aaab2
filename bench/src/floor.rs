//! The least that a keyed decision can cost: hash, find, read the clock, compare-and-swap.
//!
//! It knows its keys beforehand and so needs neither growth, nor insertion under concurrency, nor forgetting;
//! a rate limiter does all of that and has more to do. The hash is keyed but no cryptographer's. Its table is on the
//! heap as everybody's: who asks the system for large pages, or the processor for memory ahead, may still be quicker.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::contender::{Contender, QUOTA_COUNT, QUOTA_SECONDS};

const INTERVAL_NANOS: u64 = QUOTA_SECONDS as u64 * 1_000_000_000 / QUOTA_COUNT as u64;
const TOLERANCE_NANOS: u64 = QUOTA_SECONDS as u64 * 1_000_000_000;

pub fn build(keys: &[String]) -> Box<dyn Contender> {
    // A power of two, at most 60 % full: 10 million keys fill 2^24 slots to 59.6 %.
    let slots = (keys.len() * 5 / 3).next_power_of_two();
    let mut floor = Floor {
        seed: std::array::from_fn(|word| RandomState::new().hash_one(word)),
        clock: quanta::Clock::new(),
        slots: (0..slots).map(|_| Slot::default()).collect(),
    };
    for key in keys {
        floor.insert(key);
    }
    Box::new(floor)
}

struct Floor {
    seed: [u64; 4],
    clock: quanta::Clock,
    slots: Box<[Slot]>,
}

#[derive(Default)]
struct Slot {
    /// Zero is an empty slot.
    fingerprint: [u64; 2],
    /// The theoretical arrival time of the next request, in nanoseconds.
    arrival: AtomicU64,
}

impl Contender for Floor {
    #[inline(always)]
    fn decide(&self, key: &String) -> bool {
        let slot = &self.slots[self.find(self.fingerprint(key.as_bytes()))];
        let now = self.clock.delta_as_nanos(0, self.clock.raw());
        let mut arrival = slot.arrival.load(Relaxed);
        loop {
            let next = arrival.max(now) + INTERVAL_NANOS;
            if next - now > TOLERANCE_NANOS {
                return false;
            }
            match slot.arrival.compare_exchange_weak(arrival, next, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(current) => arrival = current,
            }
        }
    }
}

impl Floor {
    fn insert(&mut self, key: &str) {
        let fingerprint = self.fingerprint(key.as_bytes());
        let slot = self.find(fingerprint);
        assert_eq!(self.slots[slot].fingerprint, [0, 0], "two keys share a fingerprint");
        self.slots[slot].fingerprint = fingerprint;
    }

    /// The slot that holds the fingerprint, or the empty one where it belongs.
    #[inline(always)]
    fn find(&self, fingerprint: [u64; 2]) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = fingerprint[0] as usize & mask;
        while self.slots[slot].fingerprint != fingerprint && self.slots[slot].fingerprint != [0, 0]
        {
            slot = (slot + 1) & mask;
        }
        slot
    }

    #[inline(always)]
    fn fingerprint(&self, key: &[u8]) -> [u64; 2] {
        let [mut low, mut high] = [self.seed[0] ^ key.len() as u64, self.seed[1]];
        for chunk in key.chunks(16) {
            let [first, last] = words(chunk);
            let one = u128::from(first ^ low) * u128::from(last ^ high);
            let two =
                u128::from(first ^ high ^ self.seed[2]) * u128::from(last ^ low ^ self.seed[3]);
            low = one as u64 ^ (two >> 64) as u64;
            high = (one >> 64) as u64 ^ two as u64;
        }
        [low, high]
    }
}

/// Up to 16 bytes as two words, which overlap when there are fewer.
#[inline(always)]
fn words(chunk: &[u8]) -> [u64; 2] {
    match (chunk.first_chunk(), chunk.last_chunk()) {
        (Some(first), Some(last)) => [u64::from_le_bytes(*first), u64::from_le_bytes(*last)],
        _ => [chunk.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)), 0],
    }
}
