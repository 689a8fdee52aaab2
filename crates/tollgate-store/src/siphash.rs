//! SipHash-1-3 with 128 bits of result, over words and over parts.
//!
//! It is written out here rather than imported because what is hashed comes in parts, which are
//! hashed word by word straight from where they are.

/// The state between two words.
pub(crate) struct SipHasher {
    v0: u64,
    v1: u64,
    v2: u64,
    v3: u64,
}

/// Top byte of the last word of a part too long for a byte: its length is in the word before.
const LONG: u64 = 255;

impl SipHasher {
    pub(crate) fn new([first, second]: [u64; 2]) -> Self {
        Self {
            v0: first ^ 0x736f_6d65_7073_6575,
            v1: second ^ 0x646f_7261_6e64_6f6d ^ 0xee,
            v2: first ^ 0x6c79_6765_6e65_7261,
            v3: second ^ 0x7465_6462_7974_6573,
        }
    }

    /// Absorbs bytes so that no two lists of parts are alike: read from the end, the last word of a
    /// part tells by its top byte how many words came before it.
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
        let rest = rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        self.absorb(rest | top << 56);
    }

    /// The 128 bits of result.
    pub(crate) fn finish(mut self) -> [u64; 2] {
        self.v2 ^= 0xee;
        self.rounds::<3>();
        let first = self.v0 ^ self.v1 ^ self.v2 ^ self.v3;
        self.v1 ^= 0xdd;
        self.rounds::<3>();
        [first, self.v0 ^ self.v1 ^ self.v2 ^ self.v3]
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The published vectors of SipHash are of the byte-oriented form with 2-4 rounds; the same
    /// words through a plain rendering of the definition must give the same result here.
    #[test]
    fn the_rounds_are_those_of_siphash() {
        use siphasher::sip128::{Hasher128, SipHasher13};
        use std::hash::Hasher;
        let [first, second] = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        for words in 0..9_u64 {
            let mut ours = SipHasher::new([first, second]);
            let mut theirs = SipHasher13::new_with_keys(first, second);
            for word in 0..words {
                ours.absorb(word.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                theirs.write(&word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
            }
            // The byte-oriented form ends with a word that holds the length in its top byte.
            ours.absorb((words * 8) << 56);
            let theirs = theirs.finish128();
            assert_eq!(ours.finish(), [theirs.h1, theirs.h2], "{words} words");
        }
    }

    #[test]
    fn parts_do_not_run_together() {
        let lists: [&[&[u8]]; 6] =
            [&[b"ab", b"c"], &[b"a", b"bc"], &[b"abc"], &[b"", b"abc"], &[b"abc", b""], &[]];
        let hashes = lists.map(|parts| {
            let mut hasher = SipHasher::new([1, 2]);
            parts.iter().for_each(|part| hasher.absorb_part(part));
            hasher.finish()
        });
        for (index, hash) in hashes.iter().enumerate() {
            assert!(!hashes[..index].contains(hash), "{:?}", lists[index]);
        }
    }
}
