//! Dividing by a number that a limit keeps, as a multiplication.
//!
//! A processor multiplies several times while it divides once, and a decision divides by the same few numbers
//! every time. So beside a divisor its limit keeps what turns a division by it into a multiplication, exactly.
//!
//! Of a divisor d let D = 2 d, 2^s < D ≤ 2^(s + 1), and M = ⌈2^(64 + s) ÷ D⌉, which is below 2^64. Then
//! M × D = 2^(64 + s) + e with e < D. For n below 2^62 let N = 2 n: N × M ÷ 2^(64 + s) is N ÷ D, and
//! N × e ÷ (D × 2^(64 + s)) too much. N × e is below 2^63 × 2^(s + 1), so that is less than 1 ÷ D, which is the least by
//! which N ÷ D falls short of the next whole number: rounded down it is the same.

/// A number to divide by; not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Divisor {
    divisor: u64,
    multiplier: u64,
    shift: u32,
}

impl Divisor {
    /// What is divided, and what it is divided by, is below this.
    pub(crate) const BOUND: u64 = 1 << 62;

    pub(crate) const fn new(divisor: u64) -> Self {
        assert!(0 < divisor && divisor < Self::BOUND);
        let doubled = 2 * divisor;
        let shift = (doubled - 1).ilog2();
        let multiplier = (1_u128 << (64 + shift)).div_ceil(doubled as u128) as u64;
        Self { divisor, multiplier, shift }
    }

    #[inline]
    pub(crate) const fn get(&self) -> u64 {
        self.divisor
    }

    /// How often it goes into `number`.
    #[inline]
    pub(crate) const fn divide(&self, number: u64) -> u64 {
        debug_assert!(number < Self::BOUND);
        let product = (2 * number) as u128 * self.multiplier as u128;
        (product >> 64) as u64 >> self.shift
    }

    /// The same, rounded up; both together are below the bound.
    #[inline]
    pub(crate) const fn divide_up(&self, number: u64) -> u64 {
        self.divide(number + (self.divisor - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(number: u64, divisor: u64) {
        let quotient = Divisor::new(divisor).divide(number);
        assert_eq!(quotient, number / divisor, "{number} / {divisor}");
    }

    #[test]
    fn small_numbers_are_divided_exactly() {
        for divisor in 1..300 {
            for number in 0..1_000 {
                check(number, divisor);
                let up = Divisor::new(divisor).divide_up(number);
                assert_eq!(up, number.div_ceil(divisor), "{number} / {divisor}");
            }
        }
    }

    #[test]
    fn every_size_of_number_is_divided_exactly_on_both_sides_of_a_whole_quotient() {
        let mut seed = 1_u64;
        let mut random = || {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            seed ^ seed >> 29
        };
        let near = |power: u32| (1_u64 << power).saturating_sub(1)..=(1 << power) + 1;
        let divisors: Vec<u64> = (0..62).flat_map(near).chain([1_000, 60_000_000]).collect();
        let drawn: Vec<u64> = (0..20_000).map(|_| random() >> (2 + random() % 62)).collect();
        for divisor in divisors.into_iter().chain(drawn) {
            if !(1..Divisor::BOUND).contains(&divisor) {
                continue;
            }
            let most = (Divisor::BOUND - 1) / divisor;
            for quotient in [0, 1, 2, most / 2, most - most.min(1), most, random() % (most + 1)] {
                let whole = quotient * divisor;
                for number in [whole.saturating_sub(1), whole, whole + 1, whole + (divisor - 1)] {
                    check(number.min(Divisor::BOUND - 1), divisor);
                }
            }
            check(Divisor::BOUND - 1, divisor);
        }
    }
}
