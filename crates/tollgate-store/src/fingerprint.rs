//! Keys are told apart by a 128-bit keyed hash of them.
//!
//! The table keeps the fingerprint and not the key, so a key of a megabyte costs no more than one
//! of a byte. The hash is SipHash-1-3 with 128 bits of result, keyed at random, so nobody outside
//! can look for two keys that collide; by chance, among ten million keys, it happens in one store
//! of 10^24.
//!
//! SipHash is written out here rather than imported because keys come in parts, which are hashed
//! word by word straight from where they are.

use std::hash::{BuildHasher, RandomState};

use tollgate_core::{Key, Value};

/// What a key is known by. `first` is never zero: that marks an empty slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Fingerprint {
    pub(crate) first: u64,
    pub(crate) second: u64,
}

impl Fingerprint {
    /// Of no key: an empty slot.
    pub(crate) const NONE: Self = Self { first: 0, second: 0 };
}

/// The secret of one store, kept with its snapshot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Secret {
    pub(crate) first: u64,
    pub(crate) second: u64,
}

impl Secret {
    /// A new secret, from the operating system's randomness.
    pub(crate) fn random() -> Self {
        if cfg!(loom) {
            // A model is run many times over, and must meet the same table each time.
            return Self { first: 1, second: 2 };
        }
        let random = || RandomState::new().hash_one(0u8);
        Self { first: random(), second: random() }
    }

    /// The fingerprint of `key`.
    #[inline]
    pub(crate) fn fingerprint(&self, key: &Key<'_>) -> Fingerprint {
        let mut hasher = SipHasher::new(self);
        hasher.absorb_part(key.limit.as_bytes());
        for value in key.values {
            hasher.absorb_value(value);
        }
        let (first, second) = hasher.finish();
        Fingerprint { first: first.max(1), second }
    }

    /// What stands for a secret value where keys are shown.
    pub(crate) fn conceal(&self, value: &[u8]) -> u64 {
        let mut hasher = SipHasher::new(self);
        hasher.absorb_part(value);
        hasher.finish().0
    }
}

/// Top bytes that are not the length of a part: one too long for a byte has its length in the word
/// before.
const LONG: u64 = 253;
const MISSING: u64 = 254;
const SOURCE: u64 = 255;

/// SipHash-1-3 over words: the state between two of them.
pub(crate) struct SipHasher {
    v0: u64,
    v1: u64,
    v2: u64,
    v3: u64,
}

impl SipHasher {
    #[inline]
    pub(crate) fn new(secret: &Secret) -> Self {
        Self {
            v0: secret.first ^ 0x736f_6d65_7073_6575,
            v1: secret.second ^ 0x646f_7261_6e64_6f6d ^ 0xee,
            v2: secret.first ^ 0x6c79_6765_6e65_7261,
            v3: secret.second ^ 0x7465_6462_7974_6573,
        }
    }

    /// Absorbs bytes so that no two lists of parts are alike: read from the end, the last word of a
    /// part tells by its top byte how many words came before it.
    #[inline]
    pub(crate) fn absorb_part(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.absorb(u64::from_le_bytes(*word));
        }
        let mut top = bytes.len() as u64;
        if top >= LONG {
            self.absorb(top);
            top = LONG;
        }
        self.absorb(short_word(rest) | top << 56);
    }

    #[inline]
    fn absorb_value(&mut self, value: &Value<'_>) {
        match value.bytes {
            Some(bytes) => self.absorb_part(bytes),
            None => self.absorb(MISSING << 56),
        }
        if value.source > 0 {
            self.absorb(SOURCE << 56 | u64::from(value.source));
        }
    }

    /// The 128 bits of result.
    #[inline]
    pub(crate) fn finish(mut self) -> (u64, u64) {
        self.v2 ^= 0xee;
        self.rounds::<3>();
        let first = self.v0 ^ self.v1 ^ self.v2 ^ self.v3;
        self.v1 ^= 0xdd;
        self.rounds::<3>();
        (first, self.v0 ^ self.v1 ^ self.v2 ^ self.v3)
    }

    #[inline]
    fn absorb(&mut self, word: u64) {
        self.v3 ^= word;
        self.rounds::<1>();
        self.v0 ^= word;
    }

    #[inline]
    fn rounds<const N: usize>(&mut self) {
        for _ in 0..N {
            self.v0 = self.v0.wrapping_add(self.v1);
            self.v1 = self.v1.rotate_left(13) ^ self.v0;
            self.v0 = self.v0.rotate_left(32);
            self.v2 = self.v2.wrapping_add(self.v3);
            self.v3 = self.v3.rotate_left(16) ^ self.v2;
            self.v0 = self.v0.wrapping_add(self.v3);
            self.v3 = self.v3.rotate_left(21) ^ self.v0;
            self.v2 = self.v2.wrapping_add(self.v1);
            self.v1 = self.v1.rotate_left(17) ^ self.v2;
            self.v2 = self.v2.rotate_left(32);
        }
    }
}

/// Up to seven bytes as a word, zeroes above them.
#[inline]
fn short_word(bytes: &[u8]) -> u64 {
    // Overlapping reads are cheaper than a loop over a length the processor cannot guess.
    if let (Some(front), Some(back)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        let back = u64::from(u32::from_le_bytes(*back)) << (8 * (bytes.len() - 4));
        return u64::from(u32::from_le_bytes(*front)) | back;
    }
    let [first, .., last] = bytes else { return bytes.first().map_or(0, |byte| (*byte).into()) };
    let middle = bytes[bytes.len() / 2];
    u64::from(*first)
        | u64::from(middle) << (8 * (bytes.len() / 2))
        | u64::from(*last) << (8 * (bytes.len() - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published vectors of SipHash are of the byte-oriented form with 2-4 rounds; the same
    /// words through a plain rendering of the definition must give the same result here.
    #[test]
    fn the_rounds_are_those_of_siphash() {
        use siphasher::sip128::{Hasher128, SipHasher13};
        use std::hash::Hasher;
        let secret = Secret { first: 0x0706_0504_0302_0100, second: 0x0f0e_0d0c_0b0a_0908 };
        for words in 0..9_u64 {
            let mut ours = SipHasher::new(&secret);
            let mut theirs = SipHasher13::new_with_keys(secret.first, secret.second);
            for word in 0..words {
                ours.absorb(word.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                theirs.write(&word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
            }
            // The byte-oriented form ends with a word that holds the length in its top byte.
            ours.absorb((words * 8) << 56);
            let theirs = theirs.finish128();
            assert_eq!(ours.finish(), (theirs.h1, theirs.h2), "{words} words");
        }
    }

    #[test]
    fn parts_do_not_run_together() {
        let secret = Secret { first: 1, second: 2 };
        let value = |bytes: &'static [u8]| Value::new(bytes);
        let second = |bytes: &'static [u8]| Value { source: 1, ..Value::new(bytes) };
        let lists: [&[Value<'_>]; 10] = [
            &[value(b"a:b"), value(b"c")],
            &[value(b"a"), value(b"b:c")],
            &[value(b"a:b:c")],
            &[value(b""), value(b"a:bc")],
            &[value(b"a:bc"), value(b"")],
            &[value(b"a:bc")],
            &[second(b"a:bc")],
            &[],
            &[value(b"")],
            &[Value::MISSING],
        ];
        let mut seen: Vec<Fingerprint> = Vec::new();
        for values in lists {
            let fingerprint = secret.fingerprint(&Key { limit: "l", values });
            assert!(!seen.contains(&fingerprint), "{values:?}");
            seen.push(fingerprint);
        }
    }

    #[test]
    fn every_length_of_rest_is_read_whole() {
        for length in 0..8 {
            let bytes: Vec<u8> = (1..=length).collect();
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(&bytes);
            assert_eq!(short_word(&bytes), u64::from_le_bytes(padded));
        }
    }
}
