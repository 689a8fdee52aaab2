//! A comparison as a picture: one SVG file, without scripts, that follows the reader's light or
//! dark scheme.
//!
//! As in the terminal, nothing is told by colour alone: what is allowed is filled, what is delayed
//! is round or striped, and what is denied is hollow.

use std::fmt::Write;

use tollgate_core::Algorithm;
use tollgate_sim::{Comparison, Lane};

use super::axis::{Axis, Column};

const WIDTH: u64 = 880;
const MARGIN: u64 = 24;
/// Where time begins: left of it are the names.
const PLOT_LEFT: u64 = 160;
const PLOT_WIDTH: u64 = 540;
const PLOT_RIGHT: u64 = PLOT_LEFT + PLOT_WIDTH;
/// Where the first lane begins: above it are the title and the legend.
const LANES_TOP: u64 = 92;
/// From one lane's top to the next.
const LANE_HEIGHT: u64 = 92;
/// The highest stack of requests in a lane; below it are its base line and its busiest stretch.
const STACK_HEIGHT: u64 = 60;
const MOST_COLUMNS: usize = 90;
const TICK_COLUMNS: u64 = 9;
/// Requests lower than this many thousandths of a pixel are drawn as one bar.
const LOWEST_CELL: u64 = 4_000;
/// No bar is lower, so that a single request among hundreds still shows.
const LOWEST_BAR: u64 = 2_000;

const STYLE: &str = "\
text { font-family: system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; font-size: 13px; fill: #1f2430; stroke: #ffffff; stroke-width: 3px; paint-order: stroke; }
.title { font-size: 19px; font-weight: 600; }
.name { font-family: ui-monospace, 'SF Mono', Menlo, 'DejaVu Sans Mono', monospace; font-weight: 600; }
.quiet { fill: #5c6475; font-size: 12px; }
.over { fill: #b3261e; font-weight: 600; }
.page { fill: #ffffff; stroke: #d9dde5; }
.grid { stroke: #eceef3; }
.end { stroke: #8b93a5; stroke-dasharray: 3 4; }
.base { stroke: #b4bac7; }
.allowed { fill: #1f6feb; }
.delayed { fill: #b7791f; }
.striped { fill: url(#stripes); stroke: #b7791f; stroke-width: 0.8; }
.stripe { stroke: #b7791f; stroke-width: 2; }
.denied { fill: none; stroke: #c4412f; stroke-width: 1.2; }
.stretch { fill: none; stroke: #8b93a5; }
.stretch-over { fill: none; stroke: #b3261e; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6e9f0; stroke: #12151c; }
  .quiet { fill: #9aa3b5; }
  .over { fill: #ff8a7a; }
  .page { fill: #12151c; stroke: #2b313d; }
  .grid { stroke: #222733; }
  .end { stroke: #6d768a; }
  .base { stroke: #4a5262; }
  .allowed { fill: #5b9dff; }
  .delayed { fill: #e0ad4f; }
  .striped, .stripe { stroke: #e0ad4f; }
  .denied { stroke: #ff8a7a; }
  .stretch { stroke: #6d768a; }
  .stretch-over { stroke: #ff8a7a; }
}
";

/// What becomes of a request, in the order in which requests are stacked.
#[derive(Clone, Copy)]
enum Mark {
    Allowed,
    Delayed,
    Denied,
}

pub(super) fn draw(comparison: &Comparison) -> String {
    let picture = Picture::new(comparison);
    let scenario = comparison.scenario;
    let lanes = comparison.lanes.len() as u64;
    let height = LANES_TOP + lanes * LANE_HEIGHT + 60;
    let title = format!("{}, {} traffic", scenario.quota, scenario.traffic);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-labelledby=\"title summary\">\n\
         <title id=\"title\">{title}, through six algorithms</title>\n\
         <desc id=\"summary\">{}</desc>\n\
         <style>\n{STYLE}</style>\n\
         <defs><pattern id=\"stripes\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" \
         patternTransform=\"rotate(45)\"><path class=\"stripe\" d=\"M0 0V5\"/></pattern></defs>\n\
         <rect class=\"page\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"10\"/>\n\
         <text class=\"title\" x=\"{MARGIN}\" y=\"40\">{title}</text>\n",
        summary(comparison),
        WIDTH - 1,
        height - 1,
    );
    svg += &picture.legend();
    svg += &picture.time(LANES_TOP + lanes * LANE_HEIGHT);
    for (lane, top) in comparison.lanes.iter().zip((LANES_TOP..).step_by(LANE_HEIGHT as usize)) {
        svg += &picture.lane(lane, top);
    }
    let slots = comparison.lane(Algorithm::Concurrency);
    let _ = writeln!(
        svg,
        "<text class=\"quiet\" x=\"{MARGIN}\" y=\"{}\">concurrency knows no rate: here at most {} \
         are at work at a time, each for {}</text>\n</svg>",
        height - 18,
        slots.capacity,
        slots.work
    );
    svg
}

/// The picture in words, for who does not see it.
fn summary(comparison: &Comparison) -> String {
    let period = comparison.scenario.quota.period();
    let lanes: Vec<String> = comparison
        .lanes
        .iter()
        .map(|lane| {
            let Lane { algorithm, admitted, denied, most_in_any_window, .. } = lane;
            format!(
                "{algorithm}: {admitted} admitted, {denied} denied, at most {most_in_any_window} \
                 in any {period}"
            )
        })
        .collect();
    lanes.join("; ")
}

struct Picture<'a> {
    comparison: &'a Comparison,
    axis: Axis,
    /// The most requests in any column of any lane.
    fullest: u64,
}

impl<'a> Picture<'a> {
    fn new(comparison: &'a Comparison) -> Self {
        let period = comparison.scenario.quota.period();
        let lanes = || comparison.lanes.iter();
        let events = lanes().flat_map(|lane| &lane.events);
        let moments = events
            .flat_map(|event| [event.at, event.released_at().unwrap_or(event.at)])
            // The busiest stretches are drawn whole.
            .chain(lanes().filter(|lane| lane.admitted > 0).map(|l| l.busiest_from.plus(period)));
        let axis = Axis::over(comparison.origin, moments, MOST_COLUMNS).with_margin();
        let columns = lanes().flat_map(|lane| axis.histogram(lane));
        let fullest = columns.map(|column| column.total()).max().unwrap_or(0).max(1);
        Self { comparison, axis, fullest: fullest.into() }
    }

    fn legend(&self) -> String {
        let mut svg = String::new();
        let entries =
            [(Mark::Allowed, "allowed"), (Mark::Delayed, "delayed"), (Mark::Denied, "denied")];
        for (x, (mark, name)) in (MARGIN..).step_by(86).zip(entries) {
            svg += &mark.cell(x * 1_000, 58_000, 9_000, 9_000);
            let _ = writeln!(svg, "<text class=\"quiet\" x=\"{}\" y=\"67\">{name}</text>", x + 15);
        }
        let x = MARGIN + 3 * 86;
        let period = self.comparison.scenario.quota.period();
        let marks = match self.cell_height() {
            Some(_) => "each mark is a request".to_owned(),
            None => format!("the highest bar is {} requests", self.fullest),
        };
        let _ = writeln!(
            svg,
            "<path class=\"end\" d=\"M{x}.5 55v15\"/>\
             <text class=\"quiet\" x=\"{}\" y=\"67\">end of a window</text>\
             <text class=\"quiet\" x=\"{}\" y=\"67\" text-anchor=\"end\">{marks}; below each lane, \
             its busiest {period}</text>",
            x + 9,
            WIDTH - MARGIN
        );
        svg
    }

    /// Lines and labels of time, from the first lane to `bottom`.
    fn time(&self, bottom: u64) -> String {
        let mut svg = String::new();
        let top = LANES_TOP - 8;
        for tick in self.axis.ticks(TICK_COLUMNS) {
            let x = pixels(self.x(self.axis.place_of(tick.offset)));
            let label = tick.label;
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{x} {top}V{bottom}\"/>\
                 <text class=\"quiet\" x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
                bottom + 18
            );
        }
        for end in self.axis.window_ends(self.comparison.scenario.quota.period()) {
            let x = pixels(self.x(self.axis.place_of(end)));
            let _ = writeln!(svg, "<path class=\"end\" d=\"M{x} {top}V{bottom}\"/>");
        }
        svg
    }

    fn lane(&self, lane: &Lane, top: u64) -> String {
        let base = top + STACK_HEIGHT;
        let mut svg = format!(
            "<text class=\"name\" x=\"{MARGIN}\" y=\"{}\">{}</text>\n\
             <text class=\"quiet\" x=\"{MARGIN}\" y=\"{}\">{} bytes per key</text>\n\
             <path class=\"base\" d=\"M{PLOT_LEFT} {base}.5H{PLOT_RIGHT}\"/>\n",
            base - 18,
            lane.algorithm,
            base,
            lane.bytes_per_key
        );
        for (index, column) in self.axis.histogram(lane).iter().enumerate() {
            svg += &self.stack(column, self.x(index as u64 * 1_000), base * 1_000);
        }
        svg += &self.stretch(lane, base);
        svg += &outcome(lane, base);
        svg
    }

    /// The requests of one column, one above the other; all in thousandths of a pixel.
    fn stack(&self, column: &Column, left: u64, base: u64) -> String {
        let width = PLOT_WIDTH * 1_000 / self.axis.columns() as u64;
        let gap = (width / 5).min(1_500);
        // A single column would otherwise be as wide as the plot.
        let width = width.saturating_sub(gap).clamp(500, 14_000);
        let marks = [
            (Mark::Allowed, u64::from(column.allowed)),
            (Mark::Delayed, u64::from(column.delayed)),
            (Mark::Denied, u64::from(column.denied)),
        ];
        let mut svg = String::new();
        let mut stacked = 0;
        for (mark, number) in marks.into_iter().filter(|(_, number)| *number > 0) {
            match self.cell_height() {
                Some(height) => {
                    for request in stacked..stacked + number {
                        let top = base - (request + 1) * height;
                        svg += &mark.cell(left + gap / 2, top, width, height - 1_000);
                    }
                }
                None => {
                    let height = |requests| requests * STACK_HEIGHT * 1_000 / self.fullest;
                    let (bottom, top) = (height(stacked), height(stacked + number));
                    let height = (top - bottom).max(LOWEST_BAR);
                    svg += &mark.bar(left + gap / 2, base - bottom - height, width, height);
                }
            }
            stacked += number;
        }
        svg
    }

    /// The period in which most was let through.
    fn stretch(&self, lane: &Lane, base: u64) -> String {
        let quota = self.comparison.scenario.quota;
        if lane.admitted == 0 {
            return String::new();
        }
        let left = self.x(self.axis.place(lane.busiest_from));
        let right = self.x(self.axis.place(lane.busiest_from.plus(quota.period())));
        let (line, words, over) = match lane.most_in_any_window.saturating_sub(quota.count()) {
            0 => ("stretch", "quiet", String::new()),
            over => ("stretch-over", "quiet over", format!(", {over} over")),
        };
        format!(
            "<path class=\"{line}\" d=\"M{} {y}v4H{}v-4\"/>\
             <text class=\"{words}\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{} in {}{over}</text>\n",
            pixels(left),
            pixels(right),
            pixels((left + right) / 2),
            base + 22,
            lane.most_in_any_window,
            quota.period(),
            y = base + 4,
        )
    }

    /// A place on the axis, in thousandths of a pixel.
    fn x(&self, place: u64) -> u64 {
        PLOT_LEFT * 1_000 + place * PLOT_WIDTH / self.axis.columns() as u64
    }

    /// How high one request is drawn, in thousandths of a pixel, if each is drawn by itself.
    fn cell_height(&self) -> Option<u64> {
        let height = (STACK_HEIGHT * 1_000 / self.fullest).min(8_000);
        (height >= LOWEST_CELL).then_some(height)
    }
}

/// How many came to what, beside the lane.
fn outcome(lane: &Lane, base: u64) -> String {
    let x = PLOT_RIGHT + 20;
    let line = |class: &str, y: u64, number: u32, what: &str| {
        format!("<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{number} {what}</text>\n")
    };
    let denied = line("quiet", base, lane.denied, "denied");
    if lane.delayed == 0 {
        return line("figure", base - 18, lane.admitted, "admitted") + &denied;
    }
    let delayed = line("quiet", base - 18, lane.delayed, "of them delayed");
    line("figure", base - 36, lane.admitted, "admitted") + &delayed + &denied
}

impl Mark {
    /// One request; all in thousandths of a pixel.
    fn cell(self, x: u64, y: u64, width: u64, height: u64) -> String {
        match self {
            Self::Allowed => rectangle("allowed", x, y, width, height, 1_000),
            Self::Delayed => rectangle("delayed", x, y, width, height, height / 2),
            Self::Denied => hollow(x, y, width, height),
        }
    }

    /// Many requests.
    fn bar(self, x: u64, y: u64, width: u64, height: u64) -> String {
        match self {
            Self::Allowed => rectangle("allowed", x, y, width, height, 0),
            Self::Delayed => rectangle("striped", x, y, width, height, 0),
            Self::Denied => hollow(x, y, width, height),
        }
    }
}

/// A line is drawn on both sides of an edge, so the edge goes in by half of it.
fn hollow(x: u64, y: u64, width: u64, height: u64) -> String {
    let inner = |side: u64| side.saturating_sub(1_200).max(100);
    rectangle("denied", x + 600, y + 600, inner(width), inner(height), 600)
}

fn rectangle(class: &str, x: u64, y: u64, width: u64, height: u64, radius: u64) -> String {
    let radius = if radius == 0 { String::new() } else { format!(" rx=\"{}\"", pixels(radius)) };
    format!(
        "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"{radius}/>\n",
        pixels(x),
        pixels(y),
        pixels(width),
        pixels(height)
    )
}

/// Thousandths of a pixel as pixels, to a tenth.
fn pixels(thousandths: u64) -> String {
    let tenths = (thousandths + 50) / 100;
    match tenths % 10 {
        0 => (tenths / 10).to_string(),
        rest => format!("{}.{rest}", tenths / 10),
    }
}
