//! One path for everything that servers take for one.
//!
//! Limits match paths byte by byte, while a server behind us decodes and tidies them: `/%6cogin`,
//! `//login`, `/./login` and `/x/../login` all reach its `/login`. So a path is brought into one form
//! before it is matched, and forwarded in that form, so that both of us speak of the same thing. What
//! servers read in different ways has no such form and is refused.

use std::borrow::Cow;
use std::error;
use std::fmt;

use super::text::{hexadecimal, percent_decoded};

/// The one form of a path: as it may stand in a request, with nothing encoded that need not be,
/// without empty segments, `.` and `..`. `raw` is the path alone, without a query.
///
/// ```
/// use tollgate::http::path::resolve;
/// assert_eq!(resolve("/x/..//%6cog%69n")?, "/login");
/// assert!(resolve("/files/..%2Fetc").is_err());
/// # Ok::<(), tollgate::http::path::Ambiguous>(())
/// ```
pub fn resolve(raw: &str) -> Result<Cow<'_, str>, Ambiguous> {
    // The path of a request about the server itself.
    if raw == "*" {
        return Ok(Cow::Borrowed(raw));
    }
    if !raw.starts_with('/') {
        return Err(Ambiguous::Relative);
    }
    if is_plain(raw.as_bytes()) {
        return Ok(Cow::Borrowed(raw));
    }
    let decoded = decode(raw.as_bytes())?;
    without_dots(&decoded).map(Cow::Owned)
}

/// Whether a path is in its one form at first sight. Segments that begin with a dot get a closer
/// look, whatever they are.
fn is_plain(path: &[u8]) -> bool {
    path.iter().all(|byte| stands_for_itself(*byte) || *byte == b'/')
        && !path.windows(2).any(|pair| pair == b"//" || pair == b"/.")
}

/// What a segment may hold as it is. A semicolon may stand there too, but is not the same as an
/// encoded one: some servers end the segment at it.
fn stands_for_itself(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,=:@".contains(&byte)
}

/// Decodes what stands for itself, and encodes everything else in one way.
fn decode(raw: &[u8]) -> Result<String, Ambiguous> {
    let mut path = String::with_capacity(raw.len());
    let mut beyond_ascii = Beyond::default();
    let mut at = 0;
    while at < raw.len() {
        let byte = raw[at];
        at += 1;
        let byte = match byte {
            b'%' => {
                let decoded = percent_decoded(&raw[at..]).ok_or(Ambiguous::BadEncoding)?;
                at += 2;
                decoded
            }
            b'/' | b';' => {
                beyond_ascii.end()?;
                path.push(byte as char);
                continue;
            }
            b'\\' => return Err(Ambiguous::Slash),
            // Neither is part of a path; whoever splits at another one than we do sees another path.
            b'?' | b'#' => return Err(Ambiguous::NotInAPath),
            0..=b' ' | 0x7F.. => return Err(Ambiguous::NotInAPath),
            byte => byte,
        };
        match byte {
            0 => return Err(Ambiguous::Nul),
            b'/' | b'\\' => return Err(Ambiguous::Slash),
            0x80.. => beyond_ascii.push(byte),
            _ => beyond_ascii.end()?,
        }
        if stands_for_itself(byte) {
            path.push(byte as char);
        } else {
            path.push('%');
            path.extend(hexadecimal(byte).map(char::from));
        }
    }
    beyond_ascii.end()?;
    Ok(path)
}

/// A run of encoded bytes beyond ASCII. It must be UTF-8 in the one way there is: some decoders take
/// longer ways of writing a slash for one.
#[derive(Default)]
struct Beyond(Vec<u8>);

impl Beyond {
    fn push(&mut self, byte: u8) {
        self.0.push(byte);
    }

    fn end(&mut self) -> Result<(), Ambiguous> {
        let is_text = std::str::from_utf8(&self.0).is_ok();
        self.0.clear();
        if is_text { Ok(()) } else { Err(Ambiguous::BadEncoding) }
    }
}

/// The path without empty segments, `.` and `..`; it stays a folder if it was one. There is nothing
/// above the root.
fn without_dots(path: &str) -> Result<String, Ambiguous> {
    let mut resolved = String::with_capacity(path.len());
    let mut segments = path[1..].split('/').peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            "" | "." => {}
            ".." => resolved.truncate(resolved.rfind('/').unwrap_or(0)),
            _ if is_dots_with_parameters(segment) => return Err(Ambiguous::DotsWithParameters),
            _ => {
                resolved.push('/');
                resolved.push_str(segment);
                continue;
            }
        }
        if is_last {
            resolved.push('/');
        }
    }
    Ok(resolved)
}

/// `..;x` is a step up to servers that take parameters off first, and a name to all others.
fn is_dots_with_parameters(segment: &str) -> bool {
    let rest = segment.trim_start_matches('.');
    segment.len() - rest.len() <= 2
        && segment.starts_with('.')
        && (rest.starts_with(';') || rest.starts_with("%3B"))
}

/// Why a path has no one form: a bad request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ambiguous {
    /// It does not begin with a slash.
    Relative,
    /// It holds an encoded slash, or a backslash: a slash to some.
    Slash,
    /// It holds an encoded NUL: the end to some.
    Nul,
    /// It holds a percent sign that encodes nothing, or bytes that are not UTF-8.
    BadEncoding,
    /// It holds a byte that no path does: a control character, a space, `?`, `#`, or one beyond
    /// ASCII.
    NotInAPath,
    /// It holds `..;`: a step up to some.
    DotsWithParameters,
}

impl fmt::Display for Ambiguous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Relative => "the path does not begin with /",
            Self::Slash => "the path holds an encoded slash or a backslash",
            Self::Nul => "the path holds an encoded NUL",
            Self::BadEncoding => "the path holds an encoding that is not one of UTF-8",
            Self::NotInAPath => "the path holds a byte that must be encoded",
            Self::DotsWithParameters => "the path holds dots with parameters",
        })
    }
}

impl error::Error for Ambiguous {}
