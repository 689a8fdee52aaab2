//! How often a figure was how large.

use std::sync::atomic::{AtomicU64, Ordering};

/// Figures that were seen, by their size.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// Up to which size, and how many figures were no larger: each counts those before it too.
    pub buckets: Vec<(f64, u64)>,
    /// All figures there were.
    pub count: u64,
    /// What they add up to.
    pub sum: f64,
}

/// A histogram that is being added to. Figures are whole numbers of some small unit.
#[derive(Debug)]
pub(crate) struct Live {
    scale: &'static Scale,
    /// One for each bound, and one for what is larger.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

#[derive(Debug)]
struct Scale {
    bounds: &'static [u64],
    /// How many of the small units are one of what is told.
    units: f64,
}

/// From a microsecond to a second, in nanoseconds.
static DURATIONS: Scale = Scale {
    bounds: &[
        1_000,
        2_500,
        5_000,
        10_000,
        25_000,
        50_000,
        100_000,
        250_000,
        500_000,
        1_000_000,
        2_500_000,
        5_000_000,
        10_000_000,
        25_000_000,
        50_000_000,
        100_000_000,
        250_000_000,
        500_000_000,
        1_000_000_000,
    ],
    units: 1e9,
};

/// Shares of a whole, in millionths.
static SHARES: Scale =
    Scale { bounds: &[100_000, 250_000, 500_000, 750_000, 900_000, 990_000], units: 1e6 };

/// From a millisecond to a minute, in microseconds.
#[cfg(feature = "tower")]
static WAITS: Scale = Scale {
    bounds: &[
        1_000, 5_000, 10_000, 50_000, 100_000, 500_000, 1_000_000, 5_000_000, 10_000_000,
        30_000_000, 60_000_000,
    ],
    units: 1e6,
};

impl Live {
    /// Of nanoseconds, told in seconds.
    pub(crate) fn of_durations() -> Self {
        Self::new(&DURATIONS)
    }

    /// Of millionths, told as shares.
    pub(crate) fn of_shares() -> Self {
        Self::new(&SHARES)
    }

    /// Of microseconds that somebody waits, told in seconds.
    #[cfg(feature = "tower")]
    pub(crate) fn of_waits() -> Self {
        Self::new(&WAITS)
    }

    fn new(scale: &'static Scale) -> Self {
        let counts = (0..=scale.bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { scale, counts, sum: AtomicU64::new(0) }
    }

    /// Adds a figure that stands for so many.
    pub(crate) fn add(&self, figure: u64, weight: u64) {
        let place = self.scale.bounds.partition_point(|bound| *bound < figure);
        self.counts[place].fetch_add(weight, Ordering::Relaxed);
        self.sum.fetch_add(figure.saturating_mul(weight), Ordering::Relaxed);
    }

    pub(crate) fn tell(&self) -> Histogram {
        let Scale { bounds, units } = self.scale;
        let mut count = 0;
        let mut up_to = |counter: &AtomicU64| {
            count += counter.load(Ordering::Relaxed);
            count
        };
        let counts: Vec<u64> = self.counts.iter().map(&mut up_to).collect();
        let buckets =
            bounds.iter().zip(counts).map(|(bound, count)| (*bound as f64 / units, count));
        let buckets = buckets.collect();
        Histogram { buckets, count, sum: self.sum.load(Ordering::Relaxed) as f64 / units }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_counted_in_its_bucket_and_all_above() {
        let live = Live::of_shares();
        for figure in [0, 100_000, 100_001, 990_000, 1_000_000] {
            live.add(figure, 1);
        }
        let told = live.tell();
        let expected = [(0.1, 2), (0.25, 3), (0.5, 3), (0.75, 3), (0.9, 3), (0.99, 4)];
        assert_eq!((&*told.buckets, told.count), (&expected[..], 5));
        assert!((told.sum - 2.190_001).abs() < 1e-9, "{}", told.sum);
    }

    #[test]
    fn a_figure_counts_for_as_many_as_it_stands_for() {
        let live = Live::of_shares();
        live.add(200_000, 64);
        live.add(800_000, 1);
        let told = live.tell();
        assert_eq!((told.buckets[1], told.buckets[4], told.count), ((0.25, 64), (0.9, 65), 65));
        assert!((told.sum - 13.6).abs() < 1e-9, "{}", told.sum);
    }

    #[test]
    fn durations_are_told_in_seconds_from_a_microsecond_to_a_second() {
        let told = Live::of_durations().tell();
        let bounds: Vec<f64> = told.buckets.iter().map(|(bound, _)| *bound).collect();
        assert_eq!((bounds.first(), bounds.last()), (Some(&1e-6), Some(&1.0)));
    }
}
