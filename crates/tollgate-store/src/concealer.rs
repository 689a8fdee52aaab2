//! Values that must not be shown, by a keyed hash of them.
//!
//! The hash is all that is known of such a value: it is shown and stored, states are found by it, and
//! nodes that share states share its key. It has 128 bits, so that no two values are ever one, and
//! without the key nobody can try guesses against it.

use crate::siphash::SipHasher;

/// Hashes secret values, all under one key.
#[derive(Clone, Copy)]
pub(crate) struct Concealer {
    key: [u64; 2],
}

impl Concealer {
    /// One with the key that is given; nobody else may know it.
    pub(crate) fn new(key: [u64; 2]) -> Self {
        Self { key }
    }

    /// What stands for `value`.
    pub(crate) fn conceal(&self, value: &[u8]) -> u128 {
        let mut hasher = SipHasher::new(self.key);
        hasher.absorb_part(value);
        let [first, second] = hasher.finish();
        u128::from(first) << 64 | u128::from(second)
    }
}
