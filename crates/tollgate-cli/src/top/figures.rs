//! Numbers, times and texts as people read them at a glance, none wider than its letters.

use ratatui::text::Span;

use crate::output;

/// A number in at most five letters: `999`, `1.2k`, `34M`.
pub(super) fn count(number: u64) -> String {
    scaled(number as f64, 1_000.0, &["", "k", "M", "G", "T", "P", "E"])
}

/// Bytes: `1.0KiB`.
pub(super) fn bytes(number: u64) -> String {
    scaled(number as f64, 1_024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"])
}

fn scaled(number: f64, step: f64, units: &[&str]) -> String {
    let (mut rest, mut unit) = (number, 0);
    // 999.6 would be written as 1000.
    while rest >= step - 0.5 && unit + 1 < units.len() {
        (rest, unit) = (rest / step, unit + 1);
    }
    let places = usize::from(unit > 0 && rest < 9.95);
    format!("{rest:.places$}{}", units[unit])
}

/// So many a second: `0.25`, `12`, `1.2k`.
pub(super) fn rate(a_second: f64) -> String {
    match a_second {
        none if none < 0.005 => "0".to_owned(),
        few if few < 9.95 => format!("{few:.2}").trim_end_matches('0').trim_end_matches('.').into(),
        many => count(many as u64),
    }
}

/// A time in microseconds: `0.4 µs`, `12 µs`, `1.5 ms`.
pub(super) fn micros(micros: f64) -> String {
    let (number, unit) = match micros {
        short if short < 999.5 => (short, "µs"),
        long if long < 999_500.0 => (long / 1e3, "ms"),
        longest => (longest / 1e6, "s"),
    };
    let places = usize::from(number < 9.95);
    format!("{number:.places$} {unit}")
}

/// How long something took, in its largest unit: `12 s`, `3 min`, `5 h`, `2 d`.
pub(super) fn since(now_ms: u64, then_ms: u64) -> String {
    match now_ms.saturating_sub(then_ms) / 1_000 {
        seconds @ ..60 => format!("{seconds} s"),
        seconds @ 60..3_600 => format!("{} min", seconds / 60),
        seconds @ 3_600..86_400 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// Text that is not ours, every letter of which takes one cell: others are written out.
pub(super) fn narrow(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in output::visible(text).chars() {
        let mut buffer = [0; 4];
        let is_narrow = Span::raw(&*letter.encode_utf8(&mut buffer)).width() == 1;
        if is_narrow { shown.push(letter) } else { shown.extend(letter.escape_default()) }
    }
    shown
}

/// The beginning of a text, if all of it is wider than that.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).take(width).collect()
}

/// A line of bars, the newest last.
pub(super) fn spark(figures: &[u64], width: usize) -> String {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = figures.iter().copied().max().unwrap_or_default().max(1);
    let bar = |figure: &u64| {
        let eighths = (u128::from(*figure) * 8).div_ceil(u128::from(most));
        BARS[usize::try_from(eighths).map_or(8, |eighths| eighths.min(8))]
    };
    figures[figures.len().saturating_sub(width)..].iter().map(bar).collect()
}

/// Words in lines of at most this width.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(cut(word, width)),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (number, expected) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1.0k"),
            (9_949, "9.9k"),
            (9_951, "10k"),
            (999_499, "999k"),
            (999_501, "1.0M"),
            (u64::MAX, "18E"),
        ] {
            assert_eq!(count(number), expected);
        }
        assert_eq!(bytes(1_023), "1023B");
        assert_eq!(bytes(1 << 30), "1.0GiB");
        for (a_second, expected) in
            [(0.0, "0"), (0.25, "0.25"), (0.5, "0.5"), (3.0, "3"), (12.7, "12"), (1e6, "1.0M")]
        {
            assert_eq!(rate(a_second), expected);
        }
        for (time, expected) in
            [(0.42, "0.4 µs"), (12.0, "12 µs"), (999.9, "1.0 ms"), (2.5e6, "2.5 s")]
        {
            assert_eq!(micros(time), expected);
        }
        for (seconds, expected) in [(59, "59 s"), (61, "1 min"), (7_300, "2 h"), (172_800, "2 d")] {
            assert_eq!(since(seconds * 1_000, 0), expected);
        }
        assert_eq!(since(0, 5_000), "0 s");
    }

    #[test]
    fn letters_that_take_no_cell_or_two_are_written_out() {
        assert_eq!(narrow("a\u{1b}[2J\r\n"), "a\\u{1b}[2J\\r\\n");
        assert_eq!(narrow("größe"), "größe");
        assert_eq!(narrow("漢e\u{301}🦀"), "\\u{6f22}e\\u{301}\\u{1f980}");
    }

    #[test]
    fn what_does_not_fit_is_cut_or_goes_on_below() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("abcd", 3), "ab…");
        assert_eq!(cut("abcd", 0), "");
        assert_eq!(wrapped("one two three", 8), ["one two", "three"]);
        assert_eq!(wrapped("averylongword ok", 8), ["averylo…", "ok"]);
    }

    #[test]
    fn bars_show_the_newest_by_the_most_there_is() {
        assert_eq!(spark(&[0, 1, 4, 8], 10), " ▁▄█");
        assert_eq!(spark(&[8, 0, 1], 2), " ▁");
        assert_eq!(spark(&[], 5), "");
        assert_eq!(spark(&[0, 0], 5), "  ");
        assert_eq!(spark(&[u64::MAX, 1], 5), "█▁");
    }
}
