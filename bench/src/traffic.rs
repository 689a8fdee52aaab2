//! Keys, and the order in which they are asked for.
//!
//! Drawn beforehand, the same for every contender, and laid out in the order of asking: a server has just read
//! the key it asks about, so the key is warm and only the contender's own memory is cold.

/// Draws per distribution.
pub const DRAWS: usize = 1 << 22;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distribution {
    Uniform,
    /// Exponent 1: the second key is asked for half as often as the first.
    Zipf,
}

impl Distribution {
    pub const ALL: [Self; 2] = [Self::Uniform, Self::Zipf];

    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Zipf => "zipf",
        }
    }

    /// The keys to ask about, in order.
    pub fn traffic(self, keys: &[String]) -> Vec<String> {
        let mut random = Random::new();
        match self {
            Self::Uniform => (0..DRAWS).map(|_| keys[random.below(keys.len())].clone()).collect(),
            Self::Zipf => zipf(keys, &mut random),
        }
    }
}

/// `user:00000000` and on, 13 bytes each.
pub fn keys(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("user:{n:08}")).collect()
}

fn zipf(keys: &[String], random: &mut Random) -> Vec<String> {
    // Popular keys must not be neighbours in anybody's table, so ranks are dealt out at random.
    let mut by_rank: Vec<&String> = keys.iter().collect();
    for last in (1..by_rank.len()).rev() {
        by_rank.swap(last, random.below(last + 1));
    }
    let mut total = 0.0;
    let weights_up_to: Vec<f64> = (1..=keys.len())
        .map(|rank| {
            total += 1.0 / rank as f64;
            total
        })
        .collect();
    let draw = |point| weights_up_to.partition_point(|weight| *weight <= point);
    (0..DRAWS).map(|_| by_rank[draw(random.fraction() * total)].clone()).collect()
}

/// SplitMix64: plenty for drawing keys, and the same on every run.
pub struct Random(u64);

impl Random {
    pub fn new() -> Self {
        Self(0x9E37_79B9_7F4A_7C15)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    /// At least 0 and less than 1.
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}
