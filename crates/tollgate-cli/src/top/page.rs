//! The page: a model, drawn.
//!
//! From the top: whom we ask, what is wrong, how much is allowed and denied, the limits, the keys, what
//! to think about, how the server is, and what may be pressed. Every text of others is
//! [narrow](figures::narrow), so that one letter is one cell. Colours say nothing that words do not.

use ratatui::Frame;
use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, RenderDirection, Sparkline};

use super::figures::{self, count, cut, narrow, rate};
use super::model::{Focus, List, Mode, Model};
use super::told::{Key, Limit, Live, Second};
use crate::bounds::TOP_ONCE_ROWS_MAX;
use crate::output::{Palette, Tone};

/// Lines of the charts of allowed, denied and latency, below a line each that says what they show.
const CHARTS_LOW: [u16; 3] = [2, 1, 1];
const CHARTS_HIGH: [u16; 3] = [5, 3, 2];
/// From how many lines on charts are high.
const HIGH: u16 = 40;

/// Lines of advice, at most.
const ADVICE_MAX: usize = 6;

/// Columns of a page that is printed, at least.
const ONCE_WIDTH: usize = 120;

/// What stands left of a key in its table.
const BEFORE_KEY: usize = 61;

const HELP: &str = "\
  tab, ← →      to the limits, to the keys
  ↑ ↓, j k      up and down; also page up and down, home, end
  d, b          the keys denied most, the busiest keys
  m, h, y       of the last minute, hour, day
  /             search keys; enter keeps the search, esc ends it
  r             reset the key: forget what it has consumed (asks first)
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
    let is_high = area.height >= HIGH && !model.is_printed;
    let charts = if is_high { CHARTS_HIGH } else { CHARTS_LOW };
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
    let longest = model.keys.keys.iter().map(|key| key_name(key).chars().count()).max();
    let width = ONCE_WIDTH.max(BEFORE_KEY + longest.unwrap_or_default());
    let rows =
        limits_wanted(model).min(TOP_ONCE_ROWS_MAX) + keys_wanted(model).min(TOP_ONCE_ROWS_MAX);
    let texts = Texts::of(model, Look(Palette::plain()), width).lines();
    let size = |wanted: usize| u16::try_from(wanted).unwrap_or(u16::MAX);
    (size(width), size(texts + lines_of(CHARTS_LOW) + rows))
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
    for server in redis.filter(|server| !server.is_well) {
        let text = format!("REDIS at {} is left alone: it fails", narrow(&server.address));
        banners.push(Line::styled(cut(&text, width), look.of(Tone::Bad)));
    }
    banners
}

fn draw_charts(frame: &mut Frame<'_>, model: &Model, look: Look, heights: [u16; 3], area: Rect) {
    let per_second = |of: fn(&Second) -> u64| model.seconds.iter().map(of).collect::<Vec<u64>>();
    let last = model.seconds.back();
    let shown = usize::from(area.width);
    let title = |name: &str, figures: &[u64]| {
        let newest = figures.last().map_or("-".to_owned(), |figure| count(*figure));
        let most = figures.iter().rev().take(shown).max().copied().unwrap_or_default();
        format!("{name:<8} {newest:>5}/s   most {}/s", count(most))
    };
    let (allowed, denied) = (per_second(|of| of.allowed), per_second(|of| of.denied));
    let latency = |of: Option<f64>| of.map_or("-".to_owned(), figures::micros);
    let p99 = latency(last.and_then(|last| last.p99_us));
    let p50 = latency(last.and_then(|last| last.p50_us));
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

fn limits_wanted(model: &Model) -> usize {
    model.live.as_ref().map_or(0, |live| live.limits.len())
}

fn limit_table(model: &Model, look: Look, area: Rect) -> Vec<Line<'static>> {
    let limits = model.live.as_ref().map_or(&[][..], |live| &live.limits);
    let names = limits.iter().map(|limit| narrow(&limit.limit).chars().count()).max();
    let tiers = limits.iter().map(|limit| narrow(&limit.tier).chars().count()).max();
    let widths = (names.unwrap_or_default().clamp(5, 24), tiers.unwrap_or_default().clamp(4, 16));
    let (name, tier) = widths;
    let heading = format!(
        "  {:name$}  {:tier$}  {:7}  used  allowed  denied  shadow  failed  last 15 minutes",
        "limit", "tier", "mode"
    );
    let width = usize::from(area.width);
    let mut lines = vec![Line::styled(cut(&heading, width), look.of(Tone::Strong))];
    let chosen = is_focus(model, Focus::Limits).then_some(model.limit);
    lines.extend(rows(limits, model.limit, chosen, area, |limit| {
        vec![Span::raw(cut(&limit_row(limit, widths, width), width))]
    }));
    lines
}

fn limit_row(limit: &Limit, (name, tier): (usize, usize), width: usize) -> String {
    let used = limit.used.map_or("-".to_owned(), |used| format!("{:.0}%", used * 100.0));
    let row = format!(
        "{:name$}  {:tier$}  {:7}  {used:>4}  {:>7}  {:>6}  {:>6}  {:>6}  ",
        cut(&narrow(&limit.limit), name),
        cut(&narrow(&limit.tier), tier),
        cut(&narrow(&limit.mode), 7),
        count(limit.allowed),
        count(limit.denied),
        count(limit.shadow_denied),
        count(limit.store_failed),
    );
    let all: Vec<u64> = limit.spark.iter().map(|(one, other)| one.saturating_add(*other)).collect();
    let bars = figures::spark(&all, width.saturating_sub(row.chars().count() + 2));
    row + &bars
}

fn keys_wanted(model: &Model) -> usize {
    // A title and a heading, and a line for whoever finds nothing.
    2 + model.shown_keys().len().max(1)
}

fn key_table(model: &Model, look: Look, area: Rect) -> Vec<Line<'static>> {
    let width = usize::from(area.width);
    let keys = model.shown_keys();
    let (which, span) = (model.wanted.list, model.wanted.span.name());
    let (name, total) = match which {
        List::Denied => ("most denied", count(model.keys.denied) + " denied"),
        List::Busy => ("busiest", count(model.keys.requests) + " requests"),
    };
    let mut title = format!("{name} keys of the last {span}: {total}");
    if !model.search.is_empty() {
        let (found, all) = (keys.len(), model.keys.keys.len());
        title += &format!("; {found} of {all} keys with \"{}\"", narrow(&model.search));
    }
    let heading = "    denied      /s  requests      /s   early  obeys  since   key";
    let mut lines = vec![
        Line::styled(cut(&title, width), look.of(Tone::Strong)),
        Line::styled(cut(heading, width), look.of(Tone::Quiet)),
    ];
    if keys.is_empty() {
        lines.push(Line::raw("  none"));
    }
    let now = model.live.as_ref().map_or(0, |live| live.now_ms);
    let chosen = is_focus(model, Focus::Keys).then_some(model.key);
    let below = Rect { height: area.height.saturating_sub(1), ..area };
    lines.extend(rows(&keys, model.key, chosen, below, |key| key_row(key, now, look, width)));
    lines
}

fn key_row(key: &Key, now_ms: u64, look: Look, width: usize) -> Vec<Span<'static>> {
    let (obeys, tone) = match key.obeys {
        None => ("-", Tone::Quiet),
        Some(true) => ("yes", Tone::Good),
        Some(false) => ("no", Tone::Bad),
    };
    let figures = format!(
        "{:>8}  {:>6}  {:>8}  {:>6}  {:>6}  ",
        count(key.denied),
        rate(key.denied_rate),
        count(key.requests),
        rate(key.rate),
        count(key.early)
    );
    let seen = figures::since(now_ms, key.first_seen_ms);
    let name = cut(&key_name(key), width.saturating_sub(BEFORE_KEY));
    let obeys = Span::styled(format!("{obeys:<5}  "), look.of(tone));
    vec![Span::raw(figures), obeys, Span::raw(format!("{seen:<6}  {name}"))]
}

/// A key, with the other limits that know its values.
fn key_name(key: &Key) -> String {
    let own = key.key.split(':').next().unwrap_or_default();
    let others = key.limits.iter().filter(|limit| *limit != own).map(|limit| narrow(limit));
    let others: Vec<String> = others.collect();
    let also =
        if others.is_empty() { String::new() } else { format!(" (also {})", others.join(", ")) };
    narrow(&key.key) + &also
}

/// Whether the arrows are in a table, and there are any.
fn is_focus(model: &Model, table: Focus) -> bool {
    model.focus == table && !model.is_printed
}

/// Rows of a table below its heading, such that the chosen one is among them.
fn rows<T>(
    all: &[T],
    row: usize,
    chosen: Option<usize>,
    area: Rect,
    draw: impl Fn(&T) -> Vec<Span<'static>>,
) -> Vec<Line<'static>> {
    let room = usize::from(area.height).saturating_sub(1);
    let first = (row + 1).saturating_sub(room);
    let shown = all.iter().enumerate().skip(first).take(room);
    let line = |(number, one): (usize, &T)| {
        let is_chosen = chosen == Some(number);
        let mut spans = vec![Span::raw(if is_chosen { "> " } else { "  " })];
        spans.extend(draw(one));
        let line = Line::from(spans);
        if is_chosen { line.style(Modifier::REVERSED) } else { line }
    };
    shown.map(line).collect()
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
        Mode::Asking(key) => (
            format!("reset {}, so that it begins anew? y, or any other key", narrow(key)),
            Tone::Strong,
        ),
        Mode::Searching => (format!("/{}_", narrow(&model.search)), Tone::Strong),
        Mode::Watching | Mode::Help => match &model.said {
            Some(said) => (narrow(said), Tone::Strong),
            None => (
                "? help  q quit  / search  d denied  b busy  m h y span  r reset".to_owned(),
                Tone::Quiet,
            ),
        },
    };
    Line::styled(cut(&text, width), look.of(tone))
}
