//! Numbers that look random and are the same in every run.

pub(crate) struct Random(u64);

impl Random {
    /// Begins anew; zero would only be followed by zeros.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.max(1))
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}
