//! What reaches the user: data on standard output, messages on standard error, an exit code.
//!
//! A reader that leaves early, as `head` does, is no failure. Colours are for people: only on a
//! terminal, and not when they asked for none.

use std::env;
use std::ffi::OsStr;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::process::ExitCode;

use clap::ValueEnum;
use tollgate_core::Micros;

/// For whom data is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It was asked for something that cannot be.
    Usage(String),
    /// It tried, and failed.
    Failed(String),
    /// It was asked whether a request may go on, and it may not.
    Denied,
    /// Nobody reads the data any more.
    ReaderLeft,
}

impl Failure {
    /// Says what went wrong, and turns it into an exit code.
    pub(crate) fn exit(self) -> ExitCode {
        let (text, code) = match self {
            Self::Usage(text) => (text, 2),
            Self::Failed(text) => (text, 1),
            Self::Denied => return ExitCode::from(3),
            Self::ReaderLeft => return ExitCode::SUCCESS,
        };
        let lines: Vec<String> = text.lines().map(visible).collect();
        message(&format!("error: {}", lines.join("\n")));
        ExitCode::from(code)
    }
}

/// Writes data.
pub(crate) fn data(bytes: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(bytes.as_ref()).and_then(|()| stdout.flush());
    written.map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::ReaderLeft,
        _ => Failure::Failed(format!("cannot write to standard output: {error}")),
    })
}

/// Writes a message. One that cannot be written has nowhere else to go.
pub(crate) fn message(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Text that is not ours, as one line that cannot paint a terminal: what would move the cursor,
/// change colours or turn the neighbours around is written out.
pub(crate) fn visible(text: &str) -> String {
    let turns_around = |letter: char| matches!(letter, '\u{200B}'..='\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}' | '\u{FEFF}');
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() || turns_around(letter) {
            shown.extend(letter.escape_default());
        } else {
            shown.push(letter);
        }
    }
    shown
}

/// A time as people say it, in its two largest units and never too short: `420ms`, `42s`, `3m 20s`, `2h`.
pub(crate) fn time(time: Micros) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let millis = time.as_millis_up();
    if millis < 1_000 {
        return format!("{millis}ms");
    }
    let seconds = millis.div_ceil(1_000);
    // Days are told with hours, hours with minutes: what is smaller is rounded up.
    let finest = match seconds {
        86_400.. => 3_600,
        3_600.. => 60,
        _ => 1,
    };
    let mut rest = seconds.next_multiple_of(finest);
    let mut parts = Vec::new();
    for (unit, name) in UNITS {
        if rest >= unit {
            parts.push(format!("{}{name}", rest / unit));
            rest %= unit;
        }
    }
    parts.join(" ")
}

/// Writes a question, and stays on its line.
pub(crate) fn prompt(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = write!(stderr, "{text} ").and_then(|()| stderr.flush());
}

/// What a colour says. Never only a colour: whatever is painted also reads without.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tone {
    Good,
    Waiting,
    Bad,
    Strong,
    Quiet,
}

/// Whether to colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Palette {
    is_coloured: bool,
}

impl Palette {
    /// What suits standard output, as it is.
    pub(crate) fn of_stdout() -> Self {
        let (no_color, terminal) = (env::var_os("NO_COLOR"), env::var_os("TERM"));
        Self::suiting(io::stdout().is_terminal(), no_color.as_deref(), terminal.as_deref())
    }

    /// No colours.
    pub(crate) fn plain() -> Self {
        Self { is_coloured: false }
    }

    fn suiting(is_terminal: bool, no_color: Option<&OsStr>, terminal: Option<&OsStr>) -> Self {
        let is_unwanted = no_color.is_some_and(|value| !value.is_empty());
        let is_unable = terminal.is_some_and(|name| name == "dumb");
        Self { is_coloured: is_terminal && !is_unwanted && !is_unable }
    }

    /// Whether colours are wanted.
    pub(crate) fn is_coloured(self) -> bool {
        self.is_coloured
    }

    /// The text in this tone.
    pub(crate) fn paint(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Good => "32",
            Tone::Waiting => "33",
            Tone::Bad => "31",
            Tone::Strong => "1",
            Tone::Quiet => "2",
        };
        if self.is_coloured { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use tollgate_core::Micros;

    use super::{Palette, time, visible};

    fn check(is_terminal: bool, no_color: Option<&str>, terminal: &str, expected: bool) {
        let palette =
            Palette::suiting(is_terminal, no_color.map(OsStr::new), Some(OsStr::new(terminal)));
        assert_eq!(palette.is_coloured, expected, "{is_terminal} {no_color:?} {terminal}");
    }

    #[test]
    fn colours_are_for_a_terminal_whose_user_did_not_decline_them() {
        check(true, None, "xterm", true);
        check(true, Some(""), "xterm", true);
        check(true, Some("1"), "xterm", false);
        check(true, None, "dumb", false);
        check(false, None, "xterm", false);
    }

    #[test]
    fn a_time_is_told_in_its_two_largest_units_and_never_too_short() {
        for (micros, expected) in [
            (0, "0ms"),
            (1, "1ms"),
            (420_000, "420ms"),
            (1_000_000, "1s"),
            (41_000_001, "42s"),
            (59_999_001, "1m"),
            (200_000_000, "3m 20s"),
            (3_600_000_000, "1h"),
            (3_599_999_999, "1h"),
            (7_200_000_001, "2h 1m"),
            (86_399_000_000, "1d"),
            (90_000_000_001, "1d 2h"),
            (31_536_000_000_000, "365d"),
        ] {
            assert_eq!(time(Micros::new(micros)), expected);
        }
    }

    #[test]
    fn what_would_paint_a_terminal_is_written_out() {
        assert_eq!(visible("a\u{1b}[31m\r\n\u{9b}b"), "a\\u{1b}[31m\\r\\n\\u{9b}b");
        assert_eq!(visible("\u{202e}größe\u{feff}"), "\\u{202e}größe\\u{feff}");
    }
}
