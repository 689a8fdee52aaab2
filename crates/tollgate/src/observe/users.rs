//! How many different keys there were, told from a few bytes.
//!
//! HyperLogLog: a key's number is as good as drawn by lot, and how rare the rarest was that came tells of
//! how many there were. A key is put into one of [`USERS_REGISTERS`] by some of its bits, and each of
//! these remembers the longest row of zeroes that the others began with. The standard error is
//! 1.04 ÷ √[`USERS_REGISTERS`], 3.3 %; where many registers are empty, how many are tells it better.
//!
//! To count a key that was counted before is one look at one byte, and nothing is written.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::bounds::USERS_REGISTERS;

/// Counts different keys.
#[derive(Debug)]
pub(super) struct Users([AtomicU8; USERS_REGISTERS]);

const BITS: u32 = USERS_REGISTERS.ilog2();

const _: () = assert!(USERS_REGISTERS.is_power_of_two());

impl Default for Users {
    fn default() -> Self {
        Self([const { AtomicU8::new(0) }; USERS_REGISTERS])
    }
}

impl Users {
    #[inline]
    pub(super) fn see(&self, key: u64) {
        let register = &self.0[(key >> (u64::BITS - BITS)) as usize];
        // The lowest bits are what is left: one more of them is set, so that a row ends.
        let rank = (key << BITS | 1 << (BITS - 1)).leading_zeros() as u8 + 1;
        if register.load(Ordering::Relaxed) < rank {
            register.fetch_max(rank, Ordering::Relaxed);
        }
    }

    /// Takes over what others have seen, which have seen nothing from then on.
    pub(super) fn take_from(&self, others: &Self) {
        for (register, other) in self.0.iter().zip(&others.0[..]) {
            register.store(other.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// How many there were in all of these.
    pub(super) fn count(parts: &[&Self]) -> u64 {
        let rank = |part: &&Self, register: usize| part.0[register].load(Ordering::Relaxed);
        let ranks = (0..USERS_REGISTERS).map(|register| {
            parts.iter().map(|part| rank(part, register)).max().unwrap_or_default()
        });
        let (mut sum, mut empty) = (0.0, 0_u32);
        for rank in ranks {
            sum += f64::from_bits((1_023 - u64::from(rank)) << 52); // 2 to the power of −rank
            empty += u32::from(rank == 0);
        }
        let registers = USERS_REGISTERS as f64;
        let estimate = 0.7213 / (1.0 + 1.079 / registers) * registers * registers / sum;
        if estimate <= 2.5 * registers && empty > 0 {
            return (registers * (registers / f64::from(empty)).ln()).round() as u64;
        }
        estimate.round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of so many keys, as good as drawn by lot.
    fn keys(count: u64) -> impl Iterator<Item = u64> {
        (1..=count).map(|key| {
            let mixed = (key ^ key >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
            mixed ^ mixed >> 31
        })
    }

    #[test]
    fn few_are_counted_one_by_one_and_many_within_a_tenth() {
        for count in [0, 1, 5, 20, 100, 1_000, 3_000, 20_000, 300_000] {
            let users = Users::default();
            for _ in 0..2 {
                keys(count).for_each(|key| users.see(key));
            }
            let (told, most) = (Users::count(&[&users]), count / 10);
            assert!(told.abs_diff(count) <= most, "{told} of {count}");
        }
    }

    #[test]
    fn who_was_here_and_there_is_counted_once() {
        let (here, there) = (Users::default(), Users::default());
        keys(60).for_each(|key| here.see(key));
        keys(100).skip(40).for_each(|key| there.see(key));
        let count = Users::count(&[&here, &there]);
        assert!((95..=105).contains(&count), "{count}");
        there.take_from(&here);
        assert_eq!(Users::count(&[&here]), 0);
        assert!((57..=63).contains(&Users::count(&[&there])));
    }
}
