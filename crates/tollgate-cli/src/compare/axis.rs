//! Time as columns: which stretch is shown, and how wide a column is.
//!
//! A column is a round stretch of time and begins on a multiple of it, so that no column lies on
//! both sides of a window's end.

use tollgate_core::{Micros, Timestamp};
use tollgate_sim::{Comparison, Lane, Verdict};

/// Columns of equal width, counted from the origin of simulated time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Axis {
    origin: Timestamp,
    /// Microseconds from the origin to the first column.
    from: u64,
    /// Microseconds in a column.
    step: u64,
    columns: usize,
}

/// What one lane did in one column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Column {
    /// Requests that came and went on at once.
    pub(super) allowed: u32,
    /// Requests that went on here and had come earlier.
    pub(super) delayed: u32,
    /// Requests that came and were turned away.
    pub(super) denied: u32,
}

/// A moment with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tick {
    /// Microseconds from the origin.
    pub(super) offset: u64,
    pub(super) label: String,
}

impl Column {
    pub(super) fn total(&self) -> u32 {
        self.allowed + self.delayed + self.denied
    }
}

impl Axis {
    /// An axis over everything that happens, in at most so many columns.
    pub(super) fn over_events(comparison: &Comparison, most_columns: usize) -> Self {
        let moments = comparison
            .lanes
            .iter()
            .flat_map(|lane| &lane.events)
            .flat_map(|event| [event.at, event.released_at().unwrap_or(event.at)]);
        Self::over(comparison.origin, moments, most_columns)
    }

    /// An axis over these moments, in at most so many columns.
    pub(super) fn over(
        origin: Timestamp,
        moments: impl Iterator<Item = Timestamp>,
        most_columns: usize,
    ) -> Self {
        let mut range: Option<(u64, u64)> = None;
        for moment in moments {
            let offset = moment.since(origin).as_micros();
            let (first, last) = range.unwrap_or((offset, offset));
            range = Some((first.min(offset), last.max(offset)));
        }
        let (first, last) = range.unwrap_or((0, 0));
        let columns_of = |step: u64| (last / step - first / step + 1) as usize;
        let step = round_steps().find(|&step| columns_of(step) <= most_columns);
        let step = step.unwrap_or(last + 1);
        Self { origin, from: first - first % step, step, columns: columns_of(step) }
    }

    /// The same with an empty column at either end, except before the origin.
    pub(super) fn with_margin(self) -> Self {
        let from = self.from.saturating_sub(self.step);
        let before = usize::from(from < self.from);
        Self { from, columns: before + self.columns + 1, ..self }
    }

    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// How much time one column is.
    pub(super) fn step(&self) -> Micros {
        Micros::new(self.step)
    }

    /// Where a moment lies, in thousandths of a column from the left.
    pub(super) fn place(&self, moment: Timestamp) -> u64 {
        self.place_of(moment.since(self.origin).as_micros())
    }

    /// The same of a moment so many microseconds after the origin.
    pub(super) fn place_of(&self, offset: u64) -> u64 {
        let place = u128::from(offset.saturating_sub(self.from)) * 1_000 / u128::from(self.step);
        (place as u64).min(self.columns as u64 * 1_000)
    }

    /// What a lane did, column by column.
    pub(super) fn histogram(&self, lane: &Lane) -> Vec<Column> {
        let mut histogram = vec![Column::default(); self.columns];
        let index = |moment| (self.place(moment) / 1_000) as usize;
        for event in &lane.events {
            match event.verdict {
                Verdict::Allowed => histogram[index(event.at)].allowed += 1,
                Verdict::Delayed { delay } => histogram[index(event.at.plus(delay))].delayed += 1,
                Verdict::Denied { .. } => histogram[index(event.at)].denied += 1,
            }
        }
        histogram
    }

    /// Round moments at least so many columns apart.
    pub(super) fn ticks(&self, columns_apart: u64) -> Vec<Tick> {
        let apart = round_steps()
            .find(|&step| step >= self.step * columns_apart && step.is_multiple_of(self.step))
            .unwrap_or(self.step * columns_apart);
        let (unit, micros) = unit_of(apart);
        let end = self.from + self.step * self.columns as u64;
        let moments = (self.from.next_multiple_of(apart)..=end).step_by(apart as usize);
        moments.map(|offset| Tick { offset, label: format!("{}{unit}", offset / micros) }).collect()
    }

    /// Ends of windows of this length, in microseconds from the origin.
    pub(super) fn window_ends(&self, period: Micros) -> impl Iterator<Item = u64> {
        let period = period.as_micros();
        let end = self.from + self.step * self.columns as u64;
        (self.from.next_multiple_of(period)..=end).step_by(period as usize)
    }
}

const UNITS: [(&str, u64); 6] = [
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];

/// The largest unit of which this is a whole number.
fn unit_of(micros: u64) -> (&'static str, u64) {
    let unit = UNITS.into_iter().find(|(_, unit)| micros.is_multiple_of(*unit));
    unit.expect("every number is a whole number of microseconds")
}

/// Stretches of time that people count in, shortest first.
fn round_steps() -> impl Iterator<Item = u64> {
    const SECOND: u64 = 1_000_000;
    let below_a_second =
        (0..6).flat_map(|power| [1, 2, 5].map(|digit: u64| digit * 10_u64.pow(power)));
    let seconds = [1, 2, 5, 10, 15, 20, 30].map(|number| number * SECOND);
    let minutes = seconds.map(|seconds| seconds * 60);
    let hours = [1, 2, 3, 6, 12].map(|number| number * 3_600 * SECOND);
    let days = (0..5)
        .flat_map(|power| [1, 2, 5].map(|digit: u64| digit * 10_u64.pow(power) * 86_400 * SECOND));
    below_a_second.chain(seconds).chain(minutes).chain(hours).chain(days)
}

#[cfg(test)]
mod tests {
    use tollgate_core::{Micros, Timestamp};

    use super::Axis;

    fn axis(seconds: &[u64], most_columns: usize) -> Axis {
        let at = |second: &u64| Timestamp::EPOCH.plus(Micros::from_secs(*second));
        Axis::over(Timestamp::EPOCH, seconds.iter().map(at), most_columns)
    }

    #[test]
    fn columns_are_round_and_begin_on_a_multiple_of_themselves() {
        let axis = axis(&[59, 113], 50);
        assert_eq!(axis.step(), Micros::from_secs(2));
        assert_eq!(axis.columns(), 28);
        assert_eq!(axis.place_of(58_000_000), 0);
        assert_eq!(axis.place_of(61_000_000), 1_500);
    }

    #[test]
    fn ticks_are_round_and_told_in_one_unit() {
        let labels: Vec<String> =
            axis(&[59, 113], 50).ticks(8).into_iter().map(|tick| tick.label).collect();
        assert_eq!(labels, ["60s", "80s", "100s"]);
    }

    #[test]
    fn a_single_moment_and_a_century_both_have_an_axis() {
        assert_eq!(axis(&[], 50).columns(), 1);
        assert_eq!(axis(&[7], 50).columns(), 1);
        assert!(axis(&[0, 3_153_600_000], 50).columns() <= 50);
    }
}
