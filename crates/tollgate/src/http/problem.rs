//! The body of a refusal, for clients.
//!
//! It is a problem document (RFC 9457), with a type that is registered for it where there is one, and
//! with what a program wants to know:
//!
//! | member | what it is |
//! |---|---|
//! | `type`, `title`, `status`, `detail` | as RFC 9457 has them |
//! | `violated-policies` | the names of the limits that refuse, as `RateLimit-Policy` has them |
//! | `code` | what became of the request: see [`Ruling::name`] |
//! | `message` | the same as `detail` |
//! | `retry_after` | the shortest wait that works, in whole seconds; `null` if there is none |
//! | `limits` | every limit that applied, with its figures and whether it was `exceeded` |
//!
//! The wait is exact: only the `Retry-After` fields are spread. Limits in shadow are not in it: they
//! are the operator's, and refuse nobody.

use std::borrow::Cow;
use std::fmt::Write;

use ::http::header::{ACCEPT, HeaderMap, HeaderValue};

use super::json::{boolean, figures, optional, rate};
use super::status;
use super::text::{json_string, number, number_before};
use crate::{Answer, Micros, Outcome, Ruling, Verdict};

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
pub(super) const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// How a refusal is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// `application/problem+json`.
    #[default]
    Problem,
    /// The same document as `application/json`.
    Json,
    /// `text/plain`: its message.
    Text,
}

impl Form {
    const ALL: [(Self, &'static str, &'static str); 3] = [
        (Self::Problem, "application", "problem+json"),
        (Self::Json, "application", "json"),
        (Self::Text, "text", "plain"),
    ];

    /// The form that a client prefers by its `Accept`: of those it likes best the first of
    /// problem, JSON and text. A client that accepts none of them, or says what cannot be
    /// understood, gets a problem: a refusal is better read in the wrong form than not at all.
    pub fn preferred(headers: &HeaderMap) -> Self {
        let lines: Option<Vec<&str>> =
            headers.get_all(ACCEPT).iter().map(|line| line.to_str().ok()).collect();
        let ranges: Option<Vec<Range<'_>>> = lines
            .unwrap_or_default()
            .into_iter()
            .flat_map(|line| line.split(','))
            .filter(|range| !range.trim().is_empty())
            .map(Range::read)
            .collect();
        let ranges = ranges.unwrap_or_default();
        let mut best = (Self::Problem, 0);
        for (form, kind, subtype) in Self::ALL {
            let meant = ranges.iter().filter(|range| range.matches(kind, subtype));
            let quality = meant.max_by_key(|range| range.precision()).map_or(0, |it| it.quality);
            if quality > best.1 {
                best = (form, quality);
            }
        }
        best.0
    }

    /// The `Content-Type` of this form.
    pub const fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Problem => "application/problem+json",
            Self::Json => "application/json",
            Self::Text => "text/plain; charset=utf-8",
        })
    }
}

/// One media range of `Accept`.
struct Range<'a> {
    kind: &'a str,
    subtype: &'a str,
    /// In thousandths.
    quality: u32,
}

impl<'a> Range<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let (kind, subtype) = parts.next()?.split_once('/')?;
        if kind.is_empty() || subtype.is_empty() || kind == "*" && subtype != "*" {
            return None;
        }
        let mut quality = 1000;
        for parameter in parts {
            if let Some((name, value)) = parameter.split_once('=')
                && name.eq_ignore_ascii_case("q")
            {
                quality = read_quality(value)?;
            }
        }
        Some(Self { kind, subtype, quality })
    }

    fn matches(&self, kind: &str, subtype: &str) -> bool {
        (self.kind == "*" || self.kind.eq_ignore_ascii_case(kind))
            && (self.subtype == "*" || self.subtype.eq_ignore_ascii_case(subtype))
    }

    fn precision(&self) -> u8 {
        u8::from(self.kind != "*") + u8::from(self.subtype != "*")
    }
}

/// `0`, `0.5`, `1.000`: at most three digits after the point, in thousandths.
fn read_quality(text: &str) -> Option<u32> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if !matches!(whole, "0" | "1") || fraction.len() > 3 {
        return None;
    }
    let digits = fraction.bytes().chain(std::iter::repeat(b'0')).take(3);
    let thousandths = digits.map(|digit| (digit as char).to_digit(10));
    let fraction = thousandths.reduce(|sum, digit| Some(sum? * 10 + digit?))??;
    let quality = u32::from(whole == "1") * 1000 + fraction;
    (quality <= 1000).then_some(quality)
}

/// Writes the body of a refusal to the end of `out`.
pub fn write(out: &mut Vec<u8>, verdict: &Verdict, form: Form) {
    let wait = verdict.retry_after().map(Micros::as_secs_up);
    let message = message(verdict, wait);
    if form == Form::Text {
        out.extend_from_slice(message.as_bytes());
        out.push(b'\n');
        return;
    }
    let (kind, title) = kind_and_title(verdict.ruling());
    member(out, b"{\"type\":", kind);
    member(out, b",\"title\":", title);
    out.extend_from_slice(b",\"status\":");
    number(out, u64::from(status(verdict).as_u16()));
    out.extend_from_slice(b",\"detail\":");
    let start = out.len();
    json_string(out, &message);
    let detail = start..out.len();
    out.extend_from_slice(b",\"violated-policies\":[");
    list(out, violated(verdict), |out, answer| json_string(out, answer.rule().name()));
    member(out, b"],\"code\":", verdict.ruling().name());
    out.extend_from_slice(b",\"message\":");
    out.extend_from_within(detail);
    out.extend_from_slice(b",\"retry_after\":");
    optional(out, wait);
    out.extend_from_slice(b",\"limits\":[");
    list(out, verdict.answers().filter(Answer::is_enforced), |out, answer| {
        out.extend_from_slice(b"{\"name\":");
        json_string(out, answer.rule().name());
        out.extend_from_slice(b",\"exceeded\":");
        boolean(out, !answer.is_allowed());
        figures(out, answer);
        rate(out, answer);
        out.push(b'}');
    });
    out.extend_from_slice(b"]}");
}

/// A member whose value is a text of our own, in which nothing is odd.
fn member(out: &mut Vec<u8>, before: &[u8], value: &'static str) {
    out.extend_from_slice(before);
    out.push(b'"');
    out.extend_from_slice(value.as_bytes());
    out.push(b'"');
}

fn list<'v>(
    out: &mut Vec<u8>,
    answers: impl Iterator<Item = Answer<'v>>,
    mut write: impl FnMut(&mut Vec<u8>, &Answer<'v>),
) {
    for (number, answer) in answers.enumerate() {
        if number > 0 {
            out.push(b',');
        }
        write(out, &answer);
    }
}

/// The limits because of which the request was refused.
fn violated(verdict: &Verdict) -> impl Iterator<Item = Answer<'_>> {
    verdict.answers().filter(|answer| answer.is_enforced() && !answer.is_allowed())
}

/// A type of its own has only what others registered one for; of the rest the status says it all.
const fn kind_and_title(ruling: Ruling) -> (&'static str, &'static str) {
    match ruling {
        Ruling::Denied => (QUOTA_EXCEEDED, "Quota exceeded"),
        Ruling::Uncounted => (REDUCED_CAPACITY, "Temporarily reduced capacity"),
        Ruling::Blocked => ("about:blank", "Forbidden"),
        Ruling::UnknownKey => ("about:blank", "Unauthorized"),
        Ruling::BadCost => ("about:blank", "Bad Request"),
        Ruling::Allowed | Ruling::Exempt => ("about:blank", "OK"),
    }
}

/// What happened, in a sentence, and in how many seconds to try again.
fn message(verdict: &Verdict, wait: Option<u64>) -> Cow<'static, str> {
    match verdict.ruling() {
        Ruling::Denied => denial(verdict, wait).into(),
        Ruling::Uncounted => "requests cannot be counted now; try again later".into(),
        Ruling::Blocked => "requests of this kind are not accepted".into(),
        Ruling::UnknownKey => "the API key is missing or unknown".into(),
        Ruling::BadCost => "what the request says it costs is not a whole number".into(),
        Ruling::Allowed | Ruling::Exempt => "the request may go on".into(),
    }
}

/// What becomes of most floods, and so not left to the machinery of `format!` where it is quick to say.
fn denial(verdict: &Verdict, wait: Option<u64>) -> String {
    let mut text = String::with_capacity(128);
    for answer in violated(verdict) {
        text.push_str(if text.is_empty() { "" } else { "; " });
        let name = answer.rule().name();
        let outcome = answer.decision().map(|decision| decision.outcome);
        if outcome == Some(Outcome::TooCostly) {
            text.push_str("the request costs more than ");
        }
        text.push_str("limit ");
        push_quoted(&mut text, name);
        match (outcome, answer.spelled().rate(answer)) {
            (None, _) => text.push_str(" could not count"),
            (Some(Outcome::TooCostly), _) => text.push_str(" ever allows"),
            (Some(_), Some(rate)) => {
                text.push_str(" allows ");
                text.push_str(rate);
            }
            (Some(_), None) => {
                text.push_str(" allows ");
                push_number(&mut text, u64::from(answer.limit().capacity()));
                text.push_str(" at a time");
            }
        }
    }
    if let Some(seconds) = wait {
        text.push_str("; try again in ");
        push_number(&mut text, seconds);
        text.push_str(if seconds == 1 { " second" } else { " seconds" });
    }
    text
}

fn push_quoted(text: &mut String, name: &str) {
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    if name.bytes().all(is_plain) {
        text.push('"');
        text.push_str(name);
        text.push('"');
    } else {
        write!(text, "{name:?}").expect("a String takes everything");
    }
}

fn push_number(text: &mut String, number: u64) {
    let mut digits = [b'0'; 20];
    let start = number_before(&mut digits, number);
    text.push_str(str::from_utf8(&digits[start..]).expect("digits are text"));
}
