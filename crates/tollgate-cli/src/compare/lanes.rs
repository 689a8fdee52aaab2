//! A comparison for people: lanes of bars over time, and the figures below them.
//!
//! What happened to a request is told by the row its bar is in; colour only repeats it.

use std::fmt::Write;

use tollgate_core::Algorithm;
use tollgate_sim::{Comparison, Lane};

use super::axis::{Axis, Column};
use crate::output::{Palette, Tone};

/// Columns of time: with names before them, a lane fits a terminal of 80.
const COLUMNS: usize = 56;

/// Between two times on the axis there is room for the longer of them and a gap.
const TICK_COLUMNS: u64 = 9;

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A row of a lane: its name, what it shows of a column, and its tone.
type Row = (&'static str, fn(&Column) -> u32, Tone);

const ROWS: [Row; 3] = [
    ("allowed", |column| column.allowed, Tone::Good),
    ("delayed", |column| column.delayed, Tone::Waiting),
    ("denied", |column| column.denied, Tone::Bad),
];

pub(super) fn write(comparison: &Comparison, palette: Palette) -> String {
    let axis = Axis::over_events(comparison, COLUMNS);
    let histograms: Vec<Vec<Column>> =
        comparison.lanes.iter().map(|lane| axis.histogram(lane)).collect();
    let fullest = histograms
        .iter()
        .flatten()
        .flat_map(|column| [column.allowed, column.delayed, column.denied]);
    let fullest = fullest.max().unwrap_or(0).max(1);

    let mut text = heading(comparison, &axis, fullest, palette);
    text += &palette.paint(Tone::Quiet, &time_line(&axis));
    text.push('\n');
    for (lane, histogram) in comparison.lanes.iter().zip(&histograms) {
        text += &lane_rows(lane, histogram, fullest, palette);
    }
    text.push('\n');
    text += &figures(comparison, palette);
    text
}

fn heading(comparison: &Comparison, axis: &Axis, fullest: u32, palette: Palette) -> String {
    let scenario = comparison.scenario;
    let title = format!("{}, {} traffic", scenario.quota, scenario.traffic);
    let mut text = palette.paint(Tone::Strong, &title);
    let requests = if fullest == 1 { "request" } else { "requests" };
    let _ = writeln!(text, " (burst {}, seed {})", scenario.burst, scenario.seed);
    let scale = format!("a column is {}, a full bar {fullest} {requests}", axis.step());
    let _ = writeln!(text, "{scale}; delayed requests are drawn when they go on\n");
    text
}

fn time_line(axis: &Axis) -> String {
    let mut line = " ".repeat(NAME_WIDTH);
    for tick in axis.ticks(TICK_COLUMNS) {
        let place = NAME_WIDTH + (axis.place_of(tick.offset) / 1_000) as usize;
        let label = format!("╷{}", tick.label);
        let has_room = place + label.chars().count() <= NAME_WIDTH + COLUMNS;
        // Microseconds of a moment days after the origin are longer than the gap between two ticks.
        let gap = place.checked_sub(line.chars().count()).filter(|_| has_room);
        if let Some(gap) = gap {
            let _ = write!(line, "{:gap$}{label}", "");
        }
    }
    line
}

/// The name of the algorithm, the name of the row, and a space after each.
const NAME_WIDTH: usize = 15 + 1 + 7 + 1;

fn lane_rows(lane: &Lane, histogram: &[Column], fullest: u32, palette: Palette) -> String {
    let mut text = String::new();
    let mut name = lane.algorithm.name();
    for (row, (label, number, tone)) in ROWS.iter().enumerate() {
        let is_empty = histogram.iter().all(|column| number(column) == 0);
        // The first row is always there, so that a lane that lets nothing through shows as one.
        if is_empty && row > 0 {
            continue;
        }
        let bars: String = histogram.iter().map(|column| bar(number(column), fullest)).collect();
        let bars = match bars.trim_end() {
            "" => String::new(),
            bars => format!(" {}", palette.paint(*tone, bars)),
        };
        let name_shown = palette.paint(Tone::Strong, &format!("{name:15}"));
        let label = if bars.is_empty() { (*label).to_owned() } else { format!("{label:7}") };
        let _ = writeln!(text, "{name_shown} {label}{bars}");
        name = "";
    }
    text
}

/// The nearest eighth; any request at all shows.
fn bar(number: u32, fullest: u32) -> char {
    if number == 0 {
        return ' ';
    }
    let (number, fullest) = (u64::from(number), u64::from(fullest));
    let eighths = (number * 16 + fullest) / (2 * fullest);
    BARS[eighths.saturating_sub(1) as usize]
}

fn figures(comparison: &Comparison, palette: Palette) -> String {
    let quota = comparison.scenario.quota;
    let most = format!("most in any {}", quota.period());
    let heading = format!(
        "{:15} {:>8} {:>8} {:>8} {most:>20} {:>14}",
        "", "admitted", "delayed", "denied", "bytes per key"
    );
    let mut text = palette.paint(Tone::Quiet, &heading);
    text.push('\n');
    for lane in &comparison.lanes {
        let most = match lane.most_in_any_window.saturating_sub(quota.count()) {
            0 => format!("{:20}", lane.most_in_any_window),
            over => {
                let most = format!("{} ({over} over)", lane.most_in_any_window);
                palette.paint(Tone::Bad, &format!("{most:>20}"))
            }
        };
        let _ = writeln!(
            text,
            "{:15} {:8} {:8} {:8} {most} {:14}",
            lane.algorithm.name(),
            lane.admitted,
            lane.delayed,
            lane.denied,
            lane.bytes_per_key
        );
    }
    let slots = comparison.lane(Algorithm::Concurrency);
    let note = format!(
        "concurrency knows no rate: here at most {} are at work at a time, each for {}",
        slots.capacity, slots.work
    );
    let _ = writeln!(text, "\n{}", palette.paint(Tone::Quiet, &note));
    text
}

#[cfg(test)]
mod tests {
    use tollgate_core::{Micros, Timestamp};

    use super::{Axis, COLUMNS, NAME_WIDTH, time_line};

    #[test]
    fn times_that_are_long_to_write_leave_some_out() {
        let year = Timestamp::EPOCH.plus(Micros::from_secs(365 * 86_400));
        let moments = [year, year.plus(Micros::new(50))];
        let line = time_line(&Axis::over(Timestamp::EPOCH, moments.into_iter(), COLUMNS));
        assert!(line.chars().count() <= NAME_WIDTH + COLUMNS, "{line}");
        assert_eq!(line.trim_start(), "╷31536000000000us   ╷31536000000020us");
    }
}
