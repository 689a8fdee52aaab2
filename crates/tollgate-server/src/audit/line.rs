//! A line of the audit log: JSON in plain ASCII.
//!
//! Whatever callers send, a line stays one line, and a terminal that shows it shows nothing else:
//! every character that is not a plain one is written as its number.

use std::fmt::Write;
use std::net::SocketAddr;

use serde::Serialize;
use serde_json::{Map, Number, Value};
use tollgate::{Denial, Timestamp};

use super::bounds::{KEY_BYTES_MAX, LIMITS_MAX, VALUES_MAX};
use crate::door::Door;

/// What became of an admin action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Done,
    /// Whoever asked may not.
    Refused,
    /// It was not to be done.
    Failed,
}

/// What somebody did at the admin door, and what it was answered with.
pub(super) struct Acted {
    pub(super) action: &'static str,
    pub(super) peer: SocketAddr,
    pub(super) status: u16,
}

/// What it was done to.
pub(super) struct Subject {
    /// As it may be shown.
    pub(super) key: Option<String>,
    /// What the key is allowed from now on.
    pub(super) change: Option<Value>,
}

impl Acted {
    pub(super) fn is_done(&self) -> bool {
        self.outcome() == Outcome::Done
    }

    fn outcome(&self) -> Outcome {
        match self.status {
            200..=299 => Outcome::Done,
            401 | 403 => Outcome::Refused,
            _ => Outcome::Failed,
        }
    }
}

#[derive(Serialize)]
struct DenialLine<'a> {
    at: String,
    kind: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    door: Option<&'a str>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    sender: Map<String, Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    limits: Vec<LimitLine>,
    /// How many there are that are not listed.
    #[serde(skip_serializing_if = "is_zero")]
    more_limits: usize,
    sampled: Number,
}

#[derive(Serialize)]
struct LimitLine {
    key: String,
    retry_after_ms: Option<u64>,
}

#[derive(Serialize)]
struct ActionLine<'a> {
    at: String,
    kind: &'a str,
    door: &'a str,
    action: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(rename = "override", skip_serializing_if = "Option::is_none")]
    change: Option<Value>,
    peer: String,
    outcome: Outcome,
    status: u16,
}

/// The line for a denial at a door that stands for so many, in thousandths.
pub(super) fn of_denial(denial: &Denial<'_>, door: Option<Door>, thousandths: u64) -> String {
    let (mut limits, mut more_limits) = (Vec::new(), 0);
    denial.each_limit(|key, wait| {
        if limits.len() == LIMITS_MAX {
            more_limits += 1;
            return;
        }
        let retry_after_ms = wait.map(tollgate::Micros::as_millis_up);
        limits.push(LimitLine { key: shortened(key), retry_after_ms });
    });
    let mut sender = Map::new();
    denial.each_value(|name, value| {
        if sender.len() < VALUES_MAX {
            sender.insert(name.to_owned(), shortened(value).into());
        }
    });
    plain(&DenialLine {
        at: date(denial.at),
        kind: denial.ruling.name(),
        door: door.map(Door::name),
        sender,
        limits,
        more_limits,
        sampled: thousandths_of(thousandths),
    })
}

/// The line for an action at the admin door.
pub(super) fn of_action(at: Timestamp, acted: &Acted, subject: Subject) -> String {
    plain(&ActionLine {
        at: date(at),
        kind: "admin",
        door: Door::Admin.name(),
        action: acted.action,
        key: subject.key.map(|key| shortened(&key)),
        change: subject.change,
        peer: acted.peer.to_string(),
        outcome: acted.outcome(),
        status: acted.status,
    })
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

fn thousandths_of(thousandths: u64) -> Number {
    let share = || Number::from_f64(thousandths as f64 / 1e3);
    let is_whole = thousandths.is_multiple_of(1_000);
    let whole = Number::from(thousandths / 1_000);
    if is_whole { whole } else { share().unwrap_or(whole) }
}

/// A key as it is written down: of a long one the beginning.
fn shortened(key: &str) -> String {
    if key.len() <= KEY_BYTES_MAX {
        return key.to_owned();
    }
    format!("{}…", &key[..key.floor_char_boundary(KEY_BYTES_MAX)])
}

/// JSON in plain ASCII, with the end of the line. What is not ASCII in JSON is inside of strings, where
/// it may as well be a number.
fn plain(line: &impl Serialize) -> String {
    let json = serde_json::to_string(line).expect("texts and numbers can be written");
    let mut plain = String::with_capacity(json.len() + 1);
    for letter in json.chars() {
        if matches!(letter, ' '..='~') {
            plain.push(letter);
            continue;
        }
        for unit in letter.encode_utf16(&mut [0; 2]) {
            write!(plain, "\\u{unit:04x}").expect("a text takes all that is written");
        }
    }
    plain.push('\n');
    plain
}

/// A moment as RFC 3339 has it, to the millisecond.
fn date(at: Timestamp) -> String {
    let millis = at.as_micros() / 1_000;
    let (seconds, day) = (millis / 1_000, millis / 86_400_000);
    let (year, month, day) = civil(day);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    let millis = millis % 1_000;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// The year, month and day that is so many days after the first of 1970. Years are counted from the
/// first of March, so that a leap day is the last of its year.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, next_year) = (day - (153 * month + 2) / 5 + 1, month >= 10);
    let month = if next_year { month - 9 } else { month + 3 };
    (era * 400 + year + u64::from(next_year), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_told_by_its_date() {
        for (seconds, told) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (951_868_800, "2000-03-01T00:00:00.000Z"),
            (1_709_164_800, "2024-02-29T00:00:00.000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(date(Timestamp::from_micros(seconds * 1_000_000)), told);
        }
        assert_eq!(date(Timestamp::from_micros(1_999)), "1970-01-01T00:00:00.001Z");
    }

    #[test]
    fn what_is_no_plain_letter_is_written_as_its_number() {
        let hostile = "a\n\r\t\u{1b}[31m\u{7f}\u{85}\u{202e}\u{2066}\u{feff}ä😀\"\\</script>";
        let line = plain(&hostile);
        let (line, end) = line.split_at(line.len() - 1);
        assert_eq!(end, "\n");
        assert!(line.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{line}");
        assert_eq!(serde_json::from_str::<String>(line).unwrap(), hostile);
    }

    #[test]
    fn a_denial_stands_for_a_number_that_need_not_be_whole() {
        for (thousandths, told) in [(1_000, "1"), (64_000, "64"), (3_333, "3.333"), (0, "0")] {
            assert_eq!(thousandths_of(thousandths).to_string(), told);
        }
    }
}
