//! A quick hash for tables that are filled once, from the policy.
//!
//! It is not keyed, so anybody can make two texts collide under it. That is no use to them here:
//! the tables hold the operator's words only, and a stranger's value is looked up, never inserted,
//! so how far a lookup walks was decided when the policy was written.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map from the operator's words.
pub(crate) type WordMap<K, V> = HashMap<K, V, BuildHasherDefault<WordHasher>>;

/// Folds eight bytes at a time with one multiplication.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WordHasher(u64);

/// Odd, with its bits well spread: 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

impl WordHasher {
    #[inline]
    fn fold(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * u128::from(SPREAD);
        // Both halves, so that every bit of the word reaches the low bits that pick the bucket.
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }
}

impl Hasher for WordHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            self.fold(u64::from_le_bytes(chunk.try_into().expect("chunks of eight")));
        }
        let mut last = [0; 8];
        let rest = chunks.remainder();
        last[..rest.len()].copy_from_slice(rest);
        // The length keeps a short text apart from the same text padded with zero bytes.
        self.fold(u64::from_le_bytes(last) ^ ((bytes.len() as u64) << 56));
    }

    #[inline]
    fn write_u8(&mut self, byte: u8) {
        self.fold(u64::from(byte));
    }

    #[inline]
    fn write_u32(&mut self, word: u32) {
        self.fold(u64::from(word));
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.fold(word);
    }

    #[inline]
    fn write_usize(&mut self, word: usize) {
        self.fold(word as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
