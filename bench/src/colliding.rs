//! Keys that were chosen to collide, beside random ones.
//!
//! Who knows how a table hashes can choose keys that all fall into one place of it. Here a million keys share one value of
//! a hash that everybody knows, that of Java's strings: `31 × h + byte` from the first byte to the last, under which `Aa`
//! and `BB` are alike, and so are all strings of as many of the two. tollgate's own hash is a polynomial as well, but at
//! a point that nobody knows.

use quanta::Clock;

use crate::contender::Contender;
use crate::traffic::Random;

const PAIRS: usize = 20;
pub const KEYS: usize = 1 << PAIRS;

/// A million keys of forty letters that are all alike to who hashes as Java does.
pub fn chosen() -> Vec<String> {
    let pair = |number: usize, place: usize| if number >> place & 1 == 0 { "Aa" } else { "BB" };
    let keys: Vec<String> =
        (0..KEYS).map(|number| (0..PAIRS).map(|place| pair(number, place)).collect()).collect();
    let hash = |key: &String| {
        key.bytes().fold(0_u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()))
    };
    assert!(keys.iter().all(|key| hash(key) == hash(&keys[0])));
    keys
}

/// As many keys of as many letters, drawn at random.
pub fn random() -> Vec<String> {
    let mut random = Random::new();
    let mut letter = || char::from(b'A' + random.below(26) as u8);
    (0..KEYS).map(|_| (0..2 * PAIRS).map(|_| letter()).collect()).collect()
}

/// How long decisions take, each timed by itself: half of them at most, and 99 of 100.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    pub p50_nanos: u64,
    pub p99_nanos: u64,
}

impl Waits {
    pub const WORST: Self = Self { p50_nanos: u64::MAX, p99_nanos: u64::MAX };

    pub fn measure(contender: &dyn Contender, asked: &[String]) -> Self {
        let clock = Clock::new();
        let mut nanos: Vec<u64> = asked
            .iter()
            .map(|key| {
                let start = clock.raw();
                assert!(contender.decide(key), "the quota is too large for a denial");
                clock.delta_as_nanos(start, clock.raw())
            })
            .collect();
        nanos.sort_unstable();
        let at = |percent: usize| nanos[nanos.len() * percent / 100];
        Self { p50_nanos: at(50), p99_nanos: at(99) }
    }

    pub fn better(self, other: Self) -> Self {
        Self {
            p50_nanos: self.p50_nanos.min(other.p50_nanos),
            p99_nanos: self.p99_nanos.min(other.p99_nanos),
        }
    }
}
