//! The tables of limits and of keys.

use ratatui::layout::Rect;
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};

use super::super::figures::{self, count, cut, narrow, rate};
use super::super::model::{Focus, List, Model};
use super::super::told::{Key, Limit};
use super::Look;
use crate::output::Tone;

/// What stands left of a key in its table.
pub(super) const BEFORE_KEY: usize = 61;

pub(super) fn limits_wanted(model: &Model) -> usize {
    model.live.as_ref().map_or(0, |live| live.limits.len())
}

pub(super) fn limit_table(model: &Model, look: Look, area: Rect) -> Vec<Line<'static>> {
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

pub(super) fn keys_wanted(model: &Model) -> usize {
    // A title and a heading, and a line that says why there is no key.
    2 + model.shown_keys().len().max(1)
}

pub(super) fn key_table(model: &Model, look: Look, area: Rect) -> Vec<Line<'static>> {
    let width = usize::from(area.width);
    let keys = model.shown_keys();
    let heading = "    denied      /s  requests      /s   early  obeys  since   key";
    let mut lines = vec![
        Line::styled(cut(&key_title(model, keys.len()), width), look.of(Tone::Strong)),
        Line::styled(cut(heading, width), look.of(Tone::Quiet)),
    ];
    match &model.keys {
        None => lines.push(Line::raw("  loading")),
        Some(_) if keys.is_empty() => lines.push(Line::raw("  none")),
        Some(_) => {}
    }
    let now = model.live.as_ref().map_or(0, |live| live.now_ms);
    let chosen = is_focus(model, Focus::Keys).then_some(model.key);
    let below = Rect { height: area.height.saturating_sub(1), ..area };
    lines.extend(rows(&keys, model.key, chosen, below, |key| key_row(key, now, look, width)));
    lines
}

/// Which keys are listed, with what is known of all of them together.
fn key_title(model: &Model, found: usize) -> String {
    let name = match model.wanted.list {
        List::Denied => "most denied",
        List::Busy => "busiest",
    };
    let mut title = format!("{name} keys of the last {}", model.wanted.span.name());
    let Some(keys) = &model.keys else { return title };
    title += &match model.wanted.list {
        List::Denied => format!(": {} denied", count(keys.denied)),
        List::Busy => format!(": {} requests", count(keys.requests)),
    };
    if !model.search.is_empty() {
        let all = keys.keys.len();
        title += &format!("; {found} of {all} keys with \"{}\"", narrow(&model.search));
    }
    title
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
pub(super) fn key_name(key: &Key) -> String {
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
