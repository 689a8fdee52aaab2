//! The page: a model, drawn.
//!
//! From the top: whom we ask, what is wrong, how much is allowed and denied, the limits, the keys, what
//! to think about, how the server is, and what may be pressed. Every text of others is
//! [narrow](figures::narrow), so that one letter is one cell. Colours say nothing that words do not.

mod tables;

use ratatui::Frame;
use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, RenderDirection, Sparkline};

use super::figures::{self, count, cut, narrow};
use super::model::{Deed, Mode, Model};
use super::told::{Live, Second};
use crate::bounds::{TOP_ONCE_COLUMNS_MAX, TOP_ONCE_ROWS_MAX};
use crate::output::{Palette, Tone};
use tables::{BEFORE_KEY, key_name, key_table, keys_wanted, limit_table, limits_wanted};

/// Lines of the charts of allowed, denied and latency, below a line each that says what they show.
const CHARTS: [u16; 3] = [2, 1, 1];
/// The same on a page of few lines, and of many.
const CHARTS_SMALL: [u16; 3] = [1, 1, 0];
const CHARTS_LARGE: [u16; 3] = [5, 3, 2];

/// Lines of advice, at most, and of servers that fail.
const ADVICE_MAX: usize = 6;
const FAILING_MAX: usize = 6;

/// Columns of a page that is printed, at least.
const ONCE_WIDTH: usize = 120;

const HELP: &str = "  tab, ← →      to the limits, to the keys
  ↑ ↓, j k      up and down; also page up and down, home, end
  d, b          the keys denied most, the busiest keys
  m, h, y       of the last minute, hour, day
  /             search keys; enter keeps the search, esc ends it
  r             reset the key: forget what it has consumed (asks first)
  x             ban the key: allow it nothing (asks first)
  q, ctrl-c     quit
  ?             this help

  early         denied requests that came before the wait they had been told
  obeys         whether a key waits as it is told; - if it never was told
  used          how much of the limit is in use, on average, by who is allowed";

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, model: &Model, palette: Palette) {
    let look = Look(palette);
    let area = frame.area();
    let width = usize::from(area.width);
    let texts = Texts::of(model, look, width);
    let charts = match area.height {
        _ if model.is_printed => CHARTS,
        ..24 => CHARTS_SMALL,
        24..40 => CHARTS,
        40.. => CHARTS_LARGE,
    };
    let lines = |count: usize| Constraint::Length(u16::try_from(count).unwrap_or(u16::MAX));
    // The tables share what is left; what one does not need is for the other.
    let room = usize::from(area.height).saturating_sub(texts.lines() + lines_of(charts));
    let limits = limits_wanted(model).min((room / 2).max(room.saturating_sub(keys_wanted(model))));
    let Texts { banners, advice, status } = texts;
    let [top, wrong, chart, limit_area, key_area, hints, state, prompt] = Layout::vertical([
        lines(1),
        lines(banners.len()),
        lines(lines_of(charts)),
        lines(limits + 1),
        Constraint::Fill(1),
        lines(advice.len()),
        lines(status.len()),
        lines(1),
    ])
    .areas(area);
    let mut text = |lines: Vec<Line<'_>>, area| frame.render_widget(Paragraph::new(lines), area);
    text(vec![title(model, look, width)], top);
    text(banners, wrong);
    text(limit_table(model, look, limit_area), limit_area);
    if model.mode == Mode::Help {
        text(HELP.lines().map(Line::raw).collect(), key_area);
    } else {
        text(key_table(model, look, key_area), key_area);
    }
    text(advice, hints);
    text(status, state);
    text(vec![last_line(model, look, width)], prompt);
    draw_charts(frame, model, look, charts, chart);
}

/// What is drawn, as text.
pub(super) fn lines_drawn(page: &Buffer) -> Vec<String> {
    let rows = page.content().chunks(usize::from(page.area.width.max(1)));
    let rows = rows.map(|row| row.iter().map(Cell::symbol).collect::<String>());
    rows.map(|row| row.trim_end().to_owned()).collect()
}

/// How large a page must be to show everything that is known.
pub(super) fn wanted_size(model: &Model) -> (u16, u16) {
    let keys = model.keys.iter().flat_map(|keys| &keys.keys);
    let longest = keys.map(|key| key_name(key).chars().count()).max();
    let width = ONCE_WIDTH.max(BEFORE_KEY + longest.unwrap_or_default()).min(TOP_ONCE_COLUMNS_MAX);
    let rows =
        limits_wanted(model).min(TOP_ONCE_ROWS_MAX) + keys_wanted(model).min(TOP_ONCE_ROWS_MAX);
    let texts = Texts::of(model, Look(Palette::plain()), width).lines();
    let size = |wanted: usize| u16::try_from(wanted).unwrap_or(u16::MAX);
    (size(width), size(texts + lines_of(CHARTS) + rows))
}

/// Lines that charts of these heights take, with what they are called.
fn lines_of(charts: [u16; 3]) -> usize {
    charts.iter().map(|height| usize::from(*height) + 1).sum()
}

/// What is as long as it is.
struct Texts {
    banners: Vec<Line<'static>>,
    advice: Vec<Line<'static>>,
    status: Vec<Line<'static>>,
}

impl Texts {
    fn of(model: &Model, look: Look, width: usize) -> Self {
        Self {
            banners: banners(model, look, width),
            advice: advice(model, width),
            status: status(model, width),
        }
    }

    /// With the first line, the last, and the heading of the limits.
    fn lines(&self) -> usize {
        self.banners.len() + self.advice.len() + self.status.len() + 3
    }
}

/// Styles, for who has colours and who has none.
#[derive(Clone, Copy)]
struct Look(Palette);

impl Look {
    fn of(self, tone: Tone) -> Style {
        let style = match tone {
            Tone::Good => Style::new().fg(Color::Green),
            Tone::Waiting => Style::new().fg(Color::Yellow),
            Tone::Bad => Style::new().fg(Color::Red),
            Tone::Strong => return Style::new().add_modifier(Modifier::BOLD),
            Tone::Quiet => return Style::new().add_modifier(Modifier::DIM),
        };
        if self.0.is_coloured() { style } else { Style::new() }
    }
}

fn title(model: &Model, look: Look, width: usize) -> Line<'static> {
    let server = narrow(&model.server);
    let text = match &model.live {
        Some(live) => {
            let up = figures::since(live.now_ms, live.started_ms);
            format!("tollgate {} at {server}, up {up}", narrow(&live.version))
        }
        None => format!("tollgate at {server}"),
    };
    Line::styled(cut(&text, width), look.of(Tone::Strong))
}

/// What is wrong: one line each.
fn banners(model: &Model, look: Look, width: usize) -> Vec<Line<'static>> {
    let mut banners = Vec::new();
    if let Some(trouble) = &model.trouble {
        let text = format!("{}; trying again", narrow(trouble));
        banners.push(Line::styled(cut(&text, width), look.of(Tone::Waiting)));
    }
    let Some(live) = &model.live else { return banners };
    let storm = &live.storm;
    if storm.is_storm {
        let keys: Vec<String> = storm.keys.iter().map(|key| narrow(key)).collect();
        let (early, denied) = (count(storm.early), count(storm.denied));
        let text = format!(
            "RETRY STORM: {early} of {denied} denied in the last minute did not wait as told: {}",
            keys.join(", ")
        );
        banners.push(Line::styled(cut(&text, width), look.of(Tone::Bad)));
    }
    if let Some(error) = &live.policy.error {
        let text = format!("POLICY REJECTED, the last good one is in force: {}", narrow(error));
        banners.push(Line::styled(cut(&text, width), look.of(Tone::Bad)));
    }
    let redis = live.redis.iter().flat_map(|redis| &redis.servers);
    for server in redis.filter(|server| !server.is_well).take(FAILING_MAX) {
        let text = format!("REDIS at {} is left alone: it fails", narrow(&server.address));
        banners.push(Line::styled(cut(&text, width), look.of(Tone::Bad)));
    }
    banners
}

fn draw_charts(frame: &mut Frame<'_>, model: &Model, look: Look, heights: [u16; 3], area: Rect) {
    let per_second = |of: fn(&Second) -> u64| model.seconds.iter().map(of).collect::<Vec<u64>>();
    let shown = usize::from(area.width);
    let title = |name: &str, figures: &[u64]| {
        let newest = figures.last().map_or("-".to_owned(), |figure| count(*figure));
        let most = figures.iter().rev().take(shown).max().copied().unwrap_or_default();
        format!("{name:<8} {newest:>5}/s   most {}/s", count(most))
    };
    let (allowed, denied) = (per_second(|of| of.allowed), per_second(|of| of.denied));
    // In a quiet second nothing is timed.
    let latency = |of: fn(&Second) -> Option<f64>| {
        model.seconds.iter().rev().find_map(of).map_or("-".to_owned(), figures::micros)
    };
    let (p99, p50) = (latency(|of| of.p99_us), latency(|of| of.p50_us));
    // Bars are whole numbers: nanoseconds tell enough.
    let slow = per_second(|of| (of.p99_us.unwrap_or_default() * 1_000.0) as u64);
    let charts = [
        (title("allowed", &allowed), allowed, Tone::Good),
        (title("denied", &denied), denied, Tone::Bad),
        (format!("latency  p99 {p99}   p50 {p50}"), slow, Tone::Waiting),
    ];
    let mut top = area.y;
    for ((title, figures, tone), height) in charts.into_iter().zip(heights) {
        let lines = Rect { y: top, height: 1, ..area }.intersection(area);
        frame.render_widget(Line::styled(cut(&title, shown), look.of(Tone::Strong)), lines);
        let bars = Rect { y: top + 1, height, ..area }.intersection(area);
        let newest_first: Vec<u64> = figures.into_iter().rev().take(shown).collect();
        let chart = Sparkline::default().direction(RenderDirection::RightToLeft);
        frame.render_widget(chart.data(newest_first).style(look.of(tone)), bars);
        top += 1 + height;
    }
}

fn advice(model: &Model, width: usize) -> Vec<Line<'static>> {
    let advice = model.live.iter().flat_map(|live| &live.advice);
    let lines = advice.flat_map(|advice| {
        let lines = figures::wrapped(&narrow(&advice.sentence), width.saturating_sub(2));
        let marked = lines.into_iter().enumerate();
        marked.map(|(number, line)| format!("{}{line}", if number == 0 { "* " } else { "  " }))
    });
    lines.take(ADVICE_MAX).map(Line::raw).collect()
}

/// How the server is.
fn status(model: &Model, width: usize) -> Vec<Line<'static>> {
    let Some(live) = &model.live else { return Vec::new() };
    [store(live), doors(live), policy(live)].map(|line| Line::raw(cut(&line, width))).into()
}

fn store(live: &Live) -> String {
    let memory = &live.memory;
    let mut text = format!(
        "store   {} keys, {} of {}, {} forgotten too early",
        count(memory.keys),
        figures::bytes(memory.bytes),
        figures::bytes(memory.max_bytes),
        count(memory.evictions)
    );
    if let Some(redis) = &live.redis {
        let well = redis.servers.iter().filter(|server| server.is_well).count();
        let (all, without) = (redis.servers.len(), count(redis.settled_without));
        text += &format!("; Redis: {well} of {all} well, {without} settled without");
    }
    text
}

fn doors(live: &Live) -> String {
    let doors = live.doors.iter().map(|door| format!("{} {}", narrow(&door.door), door.open));
    let doors: Vec<String> = doors.collect();
    let (held, shed) = (count(live.held.now), count(live.held.shed));
    format!("doors   {}; {held} requests held, {shed} shed", doors.join(", "))
}

fn policy(live: &Live) -> String {
    let policy = &live.policy;
    let loaded = figures::since(live.now_ms, policy.loaded_ms);
    let (good, bad) = (count(policy.reloads.succeeded), count(policy.reloads.failed));
    let mut text = format!("policy  loaded {loaded} ago; {good} reloads, {bad} failed");
    if let Some(first) = policy.warnings.first() {
        text += &format!("; {} warnings: {}", policy.warnings.len(), narrow(first));
    }
    text
}

fn last_line(model: &Model, look: Look, width: usize) -> Line<'static> {
    let (text, tone) = match &model.mode {
        _ if model.is_printed => (String::new(), Tone::Quiet),
        Mode::Asking(deed, key) => {
            let key = narrow(key);
            let question = match deed {
                Deed::Reset => format!("reset {key}, so that it begins anew?"),
                Deed::Ban => format!("ban {key}, so that it is allowed nothing?"),
            };
            (format!("{question} y, or any other key"), Tone::Strong)
        }
        Mode::Searching => (format!("/{}_", narrow(&model.search)), Tone::Strong),
        Mode::Watching | Mode::Help => match model.said() {
            Some(said) => (narrow(said), Tone::Strong),
            None => (
                "? help  q quit  / search  d denied  b busy  m h y span  r reset  x ban".to_owned(),
                Tone::Quiet,
            ),
        },
    };
    Line::styled(cut(&text, width), look.of(tone))
}
