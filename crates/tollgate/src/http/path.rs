//! One path for everything that servers take for one.
//!
//! Limits match paths byte by byte, while a server behind us decodes and tidies them: `/%6cogin`,
//! `//login`, `/./login` and `/x/../login` all reach its `/login`. So a path is brought into one form
//! before it is matched. What servers read in different ways has no such form and is refused, unless
//! the policy's [`Paths`] say which way is theirs.

use std::borrow::Cow;
use std::error;
use std::fmt;

use tollgate_policy::{EncodedSlash, Likeness, Paths};

use super::text::{hexadecimal, percent_decoded};

/// The one form in which a path is judged: [tidy], and [folded](Paths::fold) as the policy says.
/// `raw` is the path alone, without a query.
///
/// ```
/// use tollgate::Paths;
/// use tollgate::http::path::resolve;
///
/// let paths = Paths::default();
/// assert_eq!(resolve("/x/..//%6cog%69n;a=1/", &paths)?, "/login");
/// assert!(resolve("/files/..%2Fetc", &paths).is_err());
/// # Ok::<(), tollgate::http::path::Ambiguous>(())
/// ```
pub fn resolve<'r>(raw: &'r str, paths: &Paths) -> Result<Cow<'r, str>, Ambiguous> {
    Ok(paths.fold(tidy(raw, paths)?))
}

/// The form in which a path is sent on: with nothing encoded that need not be, without empty
/// segments, `.` and `..`. Nobody who reads it sees another path than the one that was judged, and
/// what the policy [folds together](Paths::fold) stays as it was sent. `raw` is the path alone,
/// without a query; it is borrowed if it is tidy already.
///
/// ```
/// use tollgate::Paths;
/// use tollgate::http::path::tidy;
///
/// let paths = Paths::default();
/// assert_eq!(tidy("/x/..//%6cog%69n;a=1/", &paths)?, "/login;a=1/");
/// assert!(tidy("/files/..%2Fetc", &paths).is_err());
/// # Ok::<(), tollgate::http::path::Ambiguous>(())
/// ```
pub fn tidy<'r>(raw: &'r str, paths: &Paths) -> Result<Cow<'r, str>, Ambiguous> {
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
    let decoded = decode(raw.as_bytes(), paths.encoded_slash)?;
    let tidy = without_dots(&decoded)?;
    // With a plain semicolon, such a segment is what servers that know parameters send out
    // themselves (`/;jsessionid=1`). Nobody sends out this one.
    if paths.params == Likeness::Same && tidy.contains("/%3B") {
        return Err(Ambiguous::EncodedParameters);
    }
    Ok(if tidy == raw { Cow::Borrowed(raw) } else { Cow::Owned(tidy) })
}

/// Whether a path is tidy at first sight. Segments that begin with a dot get a closer
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
fn decode(raw: &[u8], encoded_slash: EncodedSlash) -> Result<String, Ambiguous> {
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
            b'/' | b'\\' if encoded_slash == EncodedSlash::Refuse => return Err(Ambiguous::Slash),
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
            ".." => {
                let above = resolved.rfind('/').unwrap_or(0);
                // Parameters alone are a folder to step out of, or nothing at all.
                let left = &resolved[above..];
                if left.starts_with("/;") || left.starts_with("/%3B") {
                    return Err(Ambiguous::HiddenDots);
                }
                resolved.truncate(above);
            }
            _ if has_hidden_dots(segment) => return Err(Ambiguous::HiddenDots),
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
/// `..%2Fx` is one to servers that decode first.
fn has_hidden_dots(segment: &str) -> bool {
    let mut pieces = segment.split("%2F").flat_map(|piece| piece.split("%5C"));
    pieces.any(|piece| {
        let name = piece.split(';').next().and_then(|piece| piece.split("%3B").next());
        name == Some(".") || name == Some("..")
    })
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
    /// It holds dots beside parameters or an encoded slash, as in `..;` and `..%2F`: a step up to
    /// some.
    HiddenDots,
    /// It holds a segment that begins with an encoded semicolon: nothing to some, a name to others.
    EncodedParameters,
}

impl fmt::Display for Ambiguous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Relative => "the path does not begin with /",
            Self::Slash => "the path holds an encoded slash or a backslash",
            Self::Nul => "the path holds an encoded NUL",
            Self::BadEncoding => "the path holds an encoding that is not one of UTF-8",
            Self::NotInAPath => "the path holds a byte that must be encoded",
            Self::HiddenDots => "the path holds dots beside parameters or an encoded slash",
            Self::EncodedParameters => "the path holds a segment that begins with an encoded ;",
        })
    }
}

impl error::Error for Ambiguous {}
