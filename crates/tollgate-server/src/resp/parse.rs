//! Commands out of bytes.
//!
//! One pass, no copies: the words of a command are slices of what was read. What is said of a
//! stream never depends on how it was cut: a command is refused as soon as the bytes that are
//! there make it wrong, and none of those before it in the stream is.

use std::fmt;
use std::mem;

use smallvec::SmallVec;

use crate::bounds::{COMMAND_BYTES_MAX, COMMAND_WORDS_MAX};

/// The words of one command, its name first. None for an empty line, which asks for nothing.
pub(super) type Words<'b> = SmallVec<[&'b [u8]; 8]>;

/// What is not a command, nor the beginning of one. Nothing after it can be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Garbage {
    /// A web request: somebody's browser was sent here. It gets no answer it could use.
    Http,
    /// An array of too many words, or one whose length is no number.
    ArrayLength,
    /// A word whose length is no number, or too many bytes.
    WordLength,
    /// Something else than a word in an array.
    NotAWord(u8),
    /// A word that goes on where its length says that it ends.
    WordEnd,
    /// A quote that is never closed, or closed in the middle of a word.
    Quotes,
    /// A line that does not end.
    TooLong,
}

impl fmt::Display for Garbage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http => write!(f, "this is not HTTP"),
            Self::ArrayLength => {
                write!(
                    f,
                    "invalid multibulk length; a command has at most {COMMAND_WORDS_MAX} words"
                )
            }
            Self::WordLength => {
                write!(f, "invalid bulk length; a command has at most {COMMAND_BYTES_MAX} bytes")
            }
            Self::NotAWord(byte) => write!(f, "expected '$', got '{}'", byte.escape_ascii()),
            Self::WordEnd => write!(f, "expected CRLF after a bulk string"),
            Self::Quotes => write!(f, "unbalanced quotes in request"),
            Self::TooLong => {
                write!(f, "too big inline request; a command has at most {COMMAND_BYTES_MAX} bytes")
            }
        }
    }
}

/// Reads the command at the start of `bytes` and says how many of them it takes; nothing if it has
/// not arrived as a whole.
///
/// `scanned` is zero when a command begins, and is brought back until it is whole: a line is looked
/// through once, however many pieces it comes in.
pub(super) fn command<'b>(
    bytes: &'b [u8],
    scanned: &mut usize,
    words: &mut Words<'b>,
) -> Result<Option<usize>, Garbage> {
    words.clear();
    match bytes.first() {
        None => Ok(None),
        Some(b'*') => array(bytes, words),
        Some(_) => line(bytes, scanned, words),
    }
}

fn array<'b>(bytes: &'b [u8], words: &mut Words<'b>) -> Result<Option<usize>, Garbage> {
    let Some((count, mut at)) = length(bytes, 1).map_err(|NotALength| Garbage::ArrayLength)? else {
        return Ok(None);
    };
    if count > COMMAND_WORDS_MAX as i64 {
        return Err(Garbage::ArrayLength);
    }
    for _ in 0..count {
        match bytes.get(at) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(other) => return Err(Garbage::NotAWord(*other)),
        }
        let Some((length, start)) =
            length(bytes, at + 1).map_err(|NotALength| Garbage::WordLength)?
        else {
            return Ok(None);
        };
        let length = usize::try_from(length).map_err(|_| Garbage::WordLength)?;
        let end = start + length;
        at = end + 2;
        if at > COMMAND_BYTES_MAX {
            return Err(Garbage::WordLength);
        }
        match bytes.get(end..) {
            Some([b'\r', b'\n', ..]) => words.push(&bytes[start..end]),
            None | Some([] | [b'\r']) => return Ok(None),
            Some(_) => return Err(Garbage::WordEnd),
        }
    }
    Ok(Some(at))
}

struct NotALength;

/// Longer lengths are wrong whatever they are.
const LENGTH_DIGITS_MAX: usize = 10;

/// Reads the number and the line end at `start`, and says where the line after it begins.
#[inline]
fn length(bytes: &[u8], start: usize) -> Result<Option<(i64, usize)>, NotALength> {
    let is_negative = bytes.get(start) == Some(&b'-');
    let digits = start + usize::from(is_negative);
    let mut number: i64 = 0;
    for (count, byte) in bytes.get(digits..).unwrap_or_default().iter().enumerate() {
        match byte {
            b'0'..=b'9' if count < LENGTH_DIGITS_MAX => {
                number = number * 10 + i64::from(byte - b'0');
            }
            b'\r' if count > 0 => {
                let end = digits + count + 1;
                return match bytes.get(end) {
                    None => Ok(None),
                    Some(b'\n') => Ok(Some((if is_negative { -number } else { number }, end + 1))),
                    Some(_) => Err(NotALength),
                };
            }
            _ => return Err(NotALength),
        }
    }
    Ok(None)
}

/// How a web request begins. None of these is a command of ours.
const HTTP: [&[u8]; 11] = [
    b"GET /",
    b"GET http",
    b"HEAD /",
    b"POST ",
    b"PUT /",
    b"DELETE /",
    b"PATCH /",
    b"OPTIONS ",
    b"CONNECT ",
    b"TRACE /",
    b"PRI * HTTP/",
];

/// A command as people type it: words between spaces, in quotes if they hold some.
fn line<'b>(
    bytes: &'b [u8],
    scanned: &mut usize,
    words: &mut Words<'b>,
) -> Result<Option<usize>, Garbage> {
    if HTTP.iter().any(|start| bytes.starts_with(start)) {
        return Err(Garbage::Http);
    }
    let considered = &bytes[..bytes.len().min(COMMAND_BYTES_MAX)];
    let unseen = &considered[*scanned..];
    let Some(end) = unseen.iter().position(|byte| *byte == b'\n') else {
        *scanned = considered.len();
        return if considered.len() < COMMAND_BYTES_MAX { Ok(None) } else { Err(Garbage::TooLong) };
    };
    let end = mem::take(scanned) + end;
    let mut rest = bytes[..end].trim_ascii();
    while let Some(first) = rest.first() {
        let (word, after) = match first {
            quote @ (b'"' | b'\'') => {
                let inside = &rest[1..];
                let closing = inside.iter().position(|byte| byte == quote);
                let closing = closing.ok_or(Garbage::Quotes)?;
                (&inside[..closing], &inside[closing + 1..])
            }
            _ => rest.split_at(rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len())),
        };
        if after.first().is_some_and(|byte| !byte.is_ascii_whitespace()) {
            return Err(Garbage::Quotes);
        }
        if words.len() == COMMAND_WORDS_MAX {
            return Err(Garbage::ArrayLength);
        }
        words.push(word);
        rest = after.trim_ascii_start();
    }
    Ok(Some(end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads bytes that come at once.
    fn command<'b>(bytes: &'b [u8], words: &mut Words<'b>) -> Result<Option<usize>, Garbage> {
        super::command(bytes, &mut 0, words)
    }

    /// Reads one command that must be whole and have these words.
    fn check(bytes: &[u8], expected: &[&str]) {
        let mut words = Words::new();
        assert_eq!(command(bytes, &mut words), Ok(Some(bytes.len())), "{}", bytes.escape_ascii());
        let words: Vec<_> = words.iter().map(|word| word.escape_ascii().to_string()).collect();
        assert_eq!(words, expected);
        for cut in 0..bytes.len() {
            assert_eq!(command(&bytes[..cut], &mut Words::new()), Ok(None), "cut at {cut}");
        }
    }

    /// Says that bytes are refused, as soon as they are there and not before.
    fn check_garbage(bytes: &[u8], expected: Garbage) {
        for cut in 0..bytes.len() {
            let cut = command(&bytes[..cut], &mut Words::new());
            assert_eq!(cut, Ok(None), "{}", bytes.escape_ascii());
        }
        for rest in [&b""[..], b"\r\n", b"*1\r\n$4\r\nPING\r\n"] {
            let told = command(&[bytes, rest].concat(), &mut Words::new());
            assert_eq!(told, Err(expected), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn an_array_of_strings_is_a_command_whatever_bytes_they_hold() {
        check(b"*1\r\n$4\r\nPING\r\n", &["PING"]);
        check(b"*2\r\n$4\r\nECHO\r\n$7\r\na\r\n\0$1\xff\r\n", &["ECHO", r"a\r\n\x00$1\xff"]);
        check(b"*2\r\n$0\r\n\r\n$0\r\n\r\n", &["", ""]);
    }

    #[test]
    fn a_line_of_words_is_a_command() {
        check(b"PING\r\n", &["PING"]);
        check(b"  PING\t hello  \n", &["PING", "hello"]);
        check(
            b"ECHO \"two words\" 'and \"more\"' it's\r\n",
            &["ECHO", "two words", "and \\\"more\\\"", "it\\'s"],
        );
        check(b"ECHO ''\n", &["ECHO", ""]);
    }

    #[test]
    fn a_line_that_comes_in_pieces_is_looked_through_once() {
        let (bytes, mut scanned) = (b"ECHO hello\nPING\n", 0);
        for arrived in 1..=10 {
            let read = super::command(&bytes[..arrived], &mut scanned, &mut Words::new());
            assert_eq!((read, scanned), (Ok(None), arrived));
        }
        let mut words = Words::new();
        assert_eq!(super::command(bytes, &mut scanned, &mut words), Ok(Some(11)));
        assert_eq!((words.as_slice(), scanned), (&[&b"ECHO"[..], b"hello"][..], 0));
    }

    #[test]
    fn an_empty_line_and_an_empty_array_ask_for_nothing() {
        check(b"\r\n", &[]);
        check(b"\n", &[]);
        check(b"  \r\n", &[]);
        check(b"*0\r\n", &[]);
        check(b"*-1\r\n", &[]);
    }

    #[test]
    fn what_follows_a_command_is_left_alone() {
        let mut words = Words::new();
        assert_eq!(command(b"*1\r\n$4\r\nPING\r\n*1\r\n$", &mut words), Ok(Some(14)));
        assert_eq!(command(b"PING\r\nPI", &mut words), Ok(Some(6)));
    }

    #[test]
    fn lengths_that_nobody_sends_are_refused_at_once() {
        check_garbage(b"*2147483647\r\n", Garbage::ArrayLength);
        check_garbage(b"*99999999999", Garbage::ArrayLength);
        check_garbage(b"*1x", Garbage::ArrayLength);
        check_garbage(b"*+", Garbage::ArrayLength);
        check_garbage(b"*--", Garbage::ArrayLength);
        check_garbage(b"*1\r\r", Garbage::ArrayLength);
        check_garbage(b"*1\r\n$-5\r\n", Garbage::WordLength);
        check_garbage(b"*1\r\n$0x", Garbage::WordLength);
        check_garbage(b"*1\r\n$65536\r\n", Garbage::WordLength);
        check_garbage(b"*1\r\n$92233720368", Garbage::WordLength);
    }

    #[test]
    fn nesting_and_other_types_are_refused_at_once() {
        check_garbage(b"*1\r\n*", Garbage::NotAWord(b'*'));
        check_garbage(b"*2\r\n$4\r\nECHO\r\n:", Garbage::NotAWord(b':'));
        check_garbage(b"*1\r\n$4\r\nPINGS", Garbage::WordEnd);
        check_garbage(b"*1\r\n$4\r\nPING\r\r", Garbage::WordEnd);
    }

    #[test]
    fn quotes_that_do_not_match_are_refused() {
        for line in ["ECHO \"a\n", "ECHO 'a\"\n", "ECHO \"a\"b\n", "ECHO ''x\n"] {
            check_garbage(line.as_bytes(), Garbage::Quotes);
        }
    }

    #[test]
    fn a_web_request_is_known_before_its_first_line_ends() {
        check_garbage(b"GET /", Garbage::Http);
        check_garbage(b"POST ", Garbage::Http);
        check_garbage(b"PRI * HTTP/", Garbage::Http);
        check(b"GET key\r\n", &["GET", "key"]);
    }

    #[test]
    fn no_command_is_longer_than_its_bound() {
        let line = |length: usize| [&b"ECHO "[..], &vec![b'x'; length - 6], b"\n"].concat();
        let whole = command(&line(COMMAND_BYTES_MAX), &mut Words::new());
        assert_eq!(whole, Ok(Some(COMMAND_BYTES_MAX)));
        check_refused(&line(COMMAND_BYTES_MAX + 1), Garbage::TooLong);
        check_refused(&vec![b'x'; 1 << 20], Garbage::TooLong);

        let words = |count: usize| {
            let words = "$1\r\nx\r\n".repeat(count);
            format!("*{count}\r\n{words}").into_bytes()
        };
        assert!(command(&words(COMMAND_WORDS_MAX), &mut Words::new()).is_ok_and(|it| it.is_some()));
        check_refused(&words(COMMAND_WORDS_MAX + 1), Garbage::ArrayLength);
        check_refused(&b"x ".repeat(COMMAND_WORDS_MAX + 1), Garbage::ArrayLength);

        let long = "$40000\r\n".to_owned() + &"x".repeat(40_000) + "\r\n$30000\r\n";
        check_refused(format!("*2\r\n{long}").as_bytes(), Garbage::WordLength);
    }

    fn check_refused(bytes: &[u8], expected: Garbage) {
        let bytes = [bytes, b"\n"].concat();
        assert_eq!(command(&bytes, &mut Words::new()), Err(expected));
    }
}
