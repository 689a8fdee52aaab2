//! Randomness from a seed, in integers only.
//!
//! A logarithm may differ in its last digit from one machine to the next, and then the same seed
//! would no longer mean the same traffic. So there is none, and no other float.

/// SplitMix64: one addition and a mixing function, good enough for traffic and four lines long.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: u64,
}

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A number from 0 to `bound`, which is not among them unless it is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// An exponentially distributed number of mean 2^32: the waits of a Poisson process.
    ///
    /// This is von Neumann's method, which needs comparisons only. A run of draws, each no larger
    /// than the one before, is odd in length with the probability e^−first; so the first draw of an
    /// odd run is the fraction, and the even runs before it are the whole part.
    pub(crate) fn exponential(&mut self) -> u64 {
        let mut whole = 0;
        loop {
            let first = self.fraction();
            let (mut last, mut length) = (first, 1);
            loop {
                let draw = self.fraction();
                if draw > last {
                    break;
                }
                (last, length) = (draw, length + 1);
            }
            if length % 2 == 1 {
                return (whole << 32) + first;
            }
            whole += 1;
        }
    }

    fn fraction(&mut self) -> u64 {
        self.next() >> 32
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn exponential_waits_have_their_mean_and_their_spread() {
        let mut random = Random::new(1);
        let waits: Vec<u64> = (0..100_000).map(|_| random.exponential()).collect();
        let mean = waits.iter().sum::<u64>() / 100_000;
        let one = 1_u64 << 32;
        assert!(mean.abs_diff(one) < one / 100, "the mean is {mean}, not about {one}");
        // Of an exponential wait, e^−1 = 36.8 % are longer than the mean and e^−3 = 5.0 % than three.
        let longer = |wait: u64| waits.iter().filter(|&&drawn| drawn > wait).count();
        assert!(longer(one).abs_diff(36_788) < 500, "{} are longer than one", longer(one));
        assert!(longer(3 * one).abs_diff(4_979) < 250, "{} than three", longer(3 * one));
    }

    #[test]
    fn numbers_below_a_bound_are_below_it_and_reach_all_of_it() {
        let mut random = Random::new(7);
        let mut seen = [false; 10];
        (0..1_000).for_each(|_| seen[random.below(10) as usize] = true);
        assert_eq!(seen, [true; 10]);
        assert_eq!(random.below(0), 0);
    }
}
