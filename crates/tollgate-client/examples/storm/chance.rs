//! Chance from a seed.

/// `SplitMix64`.
pub(crate) struct Chance(u64);

impl Chance {
    /// Another for each number.
    pub(crate) fn new(seed: u64, number: usize) -> Self {
        let mut of_seed = Self(seed);
        Self(of_seed.next() ^ number as u64)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A part of one.
    pub(crate) fn part(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
