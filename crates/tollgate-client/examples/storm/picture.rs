//! The storms beside each other: what arrives at the server, in each half second.

use std::fmt::Write;
use std::time::Duration;

use crate::habit::Habit;
use crate::{LIMIT, Storm};

const WIDTH: u32 = 880;
const LEFT: u32 = 24;
const TOP: u32 = 84;
/// From one row to the next, and how much of it are bars.
const ROW: u32 = 74;
const BARS: u32 = 42;

/// What is shown of each, and in which parts.
const SECONDS: u32 = 26;
const PARTS_A_SECOND: u32 = 2;
const SECOND_WIDTH: u32 = 32;

/// As many a second as the highest bar; more are shown by a bar that is cut off.
const MOST: usize = 4 * LIMIT;

const STYLE: &str = "\
text { font-family: system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; font-size: 13px; fill: #1f2430; }
.title { font-size: 18px; font-weight: 600; }
.name { font-weight: 600; }
.quiet { fill: #5c6475; font-size: 12px; }
.page { fill: #ffffff; stroke: #d9dde5; }
.base { stroke: #b4bac7; }
.limit { stroke: #8b93a5; stroke-dasharray: 3 4; }
.bar { fill: #1f6feb; }
.over { fill: #c4412f; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6e9f0; }
  .quiet { fill: #9aa3b5; }
  .page { fill: #12151c; stroke: #2b313d; }
  .base { stroke: #4a5262; }
  .limit { stroke: #6d768a; }
  .bar { fill: #5b9dff; }
  .over { fill: #ff8a7a; }
}
";

pub(crate) fn of(storms: &[(Habit, Storm)]) -> String {
    let height = TOP + ROW * storms.len() as u32 + 26;
    let told: Vec<String> = storms
        .iter()
        .map(|(habit, storm)| format!("{}: {}", habit.name(), figures(storm)))
        .collect();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         role=\"img\" aria-labelledby=\"title summary\">\n\
         <title id=\"title\">A thousand clients, denied at once by a limit of {LIMIT} a second</title>\n\
         <desc id=\"summary\">{}</desc>\n<style>\n{STYLE}</style>\n\
         <rect class=\"page\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"10\"/>\n\
         <text class=\"title\" x=\"{LEFT}\" y=\"38\">A thousand clients, denied at once by a limit of {LIMIT} a second</text>\n\
         <text class=\"quiet\" x=\"{LEFT}\" y=\"60\">What arrives after that, in each half second. The line is the limit; \
         red is more than twice as much; what is higher than four times is cut off.</text>\n",
        told.join("; "),
        WIDTH - 1,
        height - 1,
    );
    for (number, (habit, storm)) in storms.iter().enumerate() {
        row(&mut svg, TOP + ROW * number as u32, *habit, storm);
    }
    let y = TOP + ROW * storms.len() as u32 + 10;
    for second in (0..=SECONDS).step_by(5) {
        let x = LEFT + second * SECOND_WIDTH;
        add(&mut svg, &format!("<text class=\"quiet\" x=\"{x}\" y=\"{y}\">{second} s</text>"));
    }
    svg += "</svg>\n";
    svg
}

fn row(svg: &mut String, top: u32, habit: Habit, storm: &Storm) {
    let (base, right) = (top + ROW - 8, LEFT + SECONDS * SECOND_WIDTH);
    let (name, figures) = (habit.name(), figures(storm));
    add(svg, &format!("<text class=\"name\" x=\"{LEFT}\" y=\"{}\">{name}</text>", top + 14));
    add(
        svg,
        &format!(
            "<text class=\"quiet\" x=\"{right}\" y=\"{}\" text-anchor=\"end\">{figures}</text>",
            top + 14
        ),
    );
    for part in 0..SECONDS * PARTS_A_SECOND {
        let length = Duration::from_secs(1) / PARTS_A_SECOND;
        let (start, end) = (length * part, length * (part + 1));
        let arrived = storm.arrivals.iter().filter(|after| (start..end).contains(*after)).count();
        let a_second = arrived * PARTS_A_SECOND as usize;
        if a_second == 0 {
            continue;
        }
        let class = if a_second > 2 * LIMIT { "over" } else { "bar" };
        let height = (a_second.min(MOST) as u32 * BARS).div_ceil(MOST as u32);
        let width = SECOND_WIDTH / PARTS_A_SECOND;
        add(
            svg,
            &format!(
                "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{height}\"/>",
                LEFT + part * width,
                base - height,
                width - 2,
            ),
        );
    }
    let limit = base - LIMIT as u32 * BARS / MOST as u32;
    add(svg, &format!("<path class=\"limit\" d=\"M{LEFT} {limit}.5H{right}\"/>"));
    add(svg, &format!("<path class=\"base\" d=\"M{LEFT} {base}.5H{right}\"/>"));
}

fn figures(storm: &Storm) -> String {
    let through = match storm.lost {
        0 => "all through".to_owned(),
        lost => format!("all but {lost} through"),
    };
    format!(
        "{through} after {:.1} s, {:.1} requests for each, {} in the busiest second",
        storm.seconds(),
        storm.requests_per_success(),
        storm.busiest_second(),
    )
}

fn add(svg: &mut String, line: &str) {
    writeln!(svg, "{line}").expect("there is room for text");
}
