//! Where the body of a response ends.
//!
//! Bytes go in as they come, in whatever pieces; what comes out does not depend on that. A chunk is read by
//! one rule: its size is hexadecimal digits, then perhaps an extension, which is passed over, and both of its
//! lines end in CRLF. Others may forgive more. But where two read the end of a body differently, the second
//! takes a part of it for another response.

use bytes::{Buf, Bytes, BytesMut};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use httparse::{EMPTY_HEADER, Status};

use super::Malformed;
use super::head::blank_line;
use crate::gateway::bounds::{CHUNK_LINE_BYTES_MAX, RESPONSE_FIELDS_MAX, TRAILER_BYTES_MAX};

/// How a body tells its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// So many bytes are to come.
    Length(u64),
    /// In chunks, and this is next of them.
    Chunked(Next),
    /// By the end of its connection.
    UntilEnd,
}

/// What is next in a body that comes in chunks.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The line with a chunk's size.
    Size,
    /// So many bytes of a chunk.
    Data(u64),
    /// The end of the line that a chunk is.
    LineEnd,
    /// Fields behind the last chunk.
    Trailers,
    Nothing,
}

/// What comes next of a body.
#[derive(Debug)]
pub(super) enum Piece {
    Data(Bytes),
    Trailers(HeaderMap),
    /// It is over.
    End,
    /// That cannot be told before more has come.
    More,
}

impl Framing {
    pub(super) const CHUNKED: Self = Self::Chunked(Next::Size);

    /// Whether nothing is to come any more.
    pub(super) fn is_over(&self) -> bool {
        matches!(self, Self::Length(0) | Self::Chunked(Next::Nothing))
    }

    /// How much may come at most, if that is known.
    pub(super) fn most(&self) -> Option<usize> {
        match self {
            Self::Length(left) => Some(usize::try_from(*left).unwrap_or(usize::MAX)),
            Self::Chunked(_) | Self::UntilEnd => None,
        }
    }

    /// Takes what is next out of what was read.
    pub(super) fn next(&mut self, read: &mut BytesMut) -> Result<Piece, Malformed> {
        match self {
            Self::Length(0) => Ok(Piece::End),
            Self::Length(left) => Ok(data(left, read)),
            Self::UntilEnd => Ok(data(&mut { u64::MAX }, read)),
            Self::Chunked(next) => next.piece(read),
        }
    }
}

/// As much of the `left` bytes as was read.
fn data(left: &mut u64, read: &mut BytesMut) -> Piece {
    if read.is_empty() {
        return Piece::More;
    }
    let length = usize::try_from(*left).map_or(read.len(), |left| left.min(read.len()));
    *left -= length as u64;
    Piece::Data(read.split_to(length).freeze())
}

impl Next {
    fn piece(&mut self, read: &mut BytesMut) -> Result<Piece, Malformed> {
        loop {
            match self {
                Self::Size => {
                    let Some(size) = chunk_size(read)? else { return Ok(Piece::More) };
                    *self = if size == 0 { Self::Trailers } else { Self::Data(size) };
                }
                Self::Data(left) => {
                    let piece = data(left, read);
                    if *left == 0 {
                        *self = Self::LineEnd;
                    }
                    return Ok(piece);
                }
                Self::LineEnd => {
                    if !b"\r\n".starts_with(&read[..read.len().min(2)]) {
                        return Err(Malformed("a chunk is not as long as it says"));
                    }
                    if read.len() < 2 {
                        return Ok(Piece::More);
                    }
                    read.advance(2);
                    *self = Self::Size;
                }
                Self::Trailers => {
                    let Some(trailers) = trailers(read)? else { return Ok(Piece::More) };
                    *self = Self::Nothing;
                    if !trailers.is_empty() {
                        return Ok(Piece::Trailers(trailers));
                    }
                }
                Self::Nothing => return Ok(Piece::End),
            }
        }
    }
}

/// Takes the line with a chunk's size, if all of it is there.
fn chunk_size(read: &mut BytesMut) -> Result<Option<u64>, Malformed> {
    const NONE: Malformed = Malformed("a chunk has no size");
    let end = match memchr::memchr(b'\n', read) {
        Some(end) if end <= CHUNK_LINE_BYTES_MAX => end,
        None if read.len() <= CHUNK_LINE_BYTES_MAX => return Ok(None),
        _ => return Err(Malformed("the size of a chunk is too long")),
    };
    let line = read[..end].strip_suffix(b"\r").filter(|line| !line.contains(&b'\r')).ok_or(NONE)?;
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii_end();
    // Sixteen digits are all that there is room for.
    if !(1..=16).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(NONE);
    }
    let digit = |byte: &u8| u64::from((*byte as char).to_digit(16).unwrap_or_default());
    let size = digits.iter().fold(0, |size, byte| size << 4 | digit(byte));
    read.advance(end + 1);
    Ok(Some(size))
}

/// Takes the fields behind the last chunk, if all of them are there.
fn trailers(read: &mut BytesMut) -> Result<Option<HeaderMap>, Malformed> {
    const BAD: Malformed = Malformed("a trailer is no field");
    if read.starts_with(b"\r\n") {
        read.advance(2);
        return Ok(Some(HeaderMap::new()));
    }
    let end = match blank_line(read) {
        Some(end) if end <= TRAILER_BYTES_MAX => end,
        None if read.len() < TRAILER_BYTES_MAX => return Ok(None),
        _ => return Err(Malformed("its trailers are too long")),
    };
    let lines = read.split_to(end);
    let mut room = [EMPTY_HEADER; RESPONSE_FIELDS_MAX];
    let fields = match httparse::parse_headers(&lines, &mut room) {
        Ok(Status::Complete((length, fields))) if length == end => fields,
        _ => return Err(BAD),
    };
    let mut trailers = HeaderMap::with_capacity(fields.len());
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| BAD)?;
        let value = HeaderValue::from_bytes(field.value).map_err(|_| BAD)?;
        trailers.append(name, value);
    }
    Ok(Some(trailers))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a body is read as when it comes in pieces of this length: its bytes, its trailers, and what
    /// lies behind it; or where it stopped.
    fn read(
        mut framing: Framing,
        sent: &str,
        piece: usize,
    ) -> Result<(String, String, String), &'static str> {
        let (mut body, mut trailers) = (Vec::new(), String::new());
        let (mut buffer, mut pieces) = (BytesMut::new(), sent.as_bytes().chunks(piece));
        loop {
            match framing.next(&mut buffer).map_err(|malformed| malformed.0)? {
                Piece::Data(bytes) => body.extend_from_slice(&bytes),
                Piece::Trailers(fields) => trailers = format!("{fields:?}"),
                Piece::End => break,
                Piece::More => match pieces.next() {
                    Some(piece) => buffer.extend_from_slice(piece),
                    None if framing == Framing::UntilEnd => break,
                    None => return Err("it breaks off"),
                },
            }
        }
        pieces.for_each(|piece| buffer.extend_from_slice(piece));
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        Ok((text(&body), trailers, text(&buffer)))
    }

    /// However it comes, it is read alike.
    fn check(framing: fn() -> Framing, sent: &str, expected: Result<(&str, &str, &str), &str>) {
        for piece in 1..=sent.len().max(1) {
            let found = read(framing(), sent, piece);
            let found =
                found.as_ref().map(|(body, trailers, rest)| (&**body, &**trailers, &**rest));
            assert_eq!(found.map_err(|why| *why), expected, "{sent:?} in pieces of {piece}");
        }
    }

    #[test]
    fn a_body_with_a_length_is_so_long() {
        check(|| Framing::Length(0), "", Ok(("", "", "")));
        check(|| Framing::Length(0), "more", Ok(("", "", "more")));
        check(|| Framing::Length(5), "hello", Ok(("hello", "", "")));
        check(|| Framing::Length(5), "hello, world", Ok(("hello", "", ", world")));
        check(|| Framing::Length(5), "hell", Err("it breaks off"));
    }

    #[test]
    fn a_body_without_one_ends_with_its_connection() {
        check(|| Framing::UntilEnd, "", Ok(("", "", "")));
        check(|| Framing::UntilEnd, "0\r\n\r\n", Ok(("0\r\n\r\n", "", "")));
    }

    #[test]
    fn chunks_are_put_together() {
        for (sent, body, trailers, rest) in [
            ("0\r\n\r\n", "", "", ""),
            ("5\r\nhello\r\n0\r\n\r\n", "hello", "", ""),
            ("2;x=y\r\nhe\r\n3 ; z\r\nllo\r\n000\r\n\r\n", "hello", "", ""),
            ("00000000000a\r\n0123456789\r\n0\r\n\r\nHTTP/1.1", "0123456789", "", "HTTP/1.1"),
            ("1A\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\n\r\n", "abcdefghijklmnopqrstuvwxyz", "", ""),
            ("1\r\n\n\r\n0\r\nA: b\r\n\r\n!", "\n", "{\"a\": \"b\"}", "!"),
        ] {
            check(|| Framing::CHUNKED, sent, Ok((body, trailers, rest)));
        }
    }

    #[test]
    fn what_is_no_chunk_is_no_body() {
        const SIZE: &str = "a chunk has no size";
        const LENGTH: &str = "a chunk is not as long as it says";
        for (sent, why) in [
            ("", "it breaks off"),
            ("5\r\nhel", "it breaks off"),
            ("5\r\nhello\r\n", "it breaks off"),
            ("0\r\n", "it breaks off"),
            ("0\r\na: b\r\n", "it breaks off"),
            ("5\nhello\r\n0\r\n\r\n", SIZE),
            ("\r\n", SIZE),
            (";x\r\n", SIZE),
            (" 5\r\nhello\r\n", SIZE),
            ("+5\r\nhello\r\n", SIZE),
            ("-5\r\n", SIZE),
            ("0x5\r\n", SIZE),
            ("5 5\r\n", SIZE),
            ("5_\r\n", SIZE),
            ("5;a\rb\r\n", SIZE),
            ("10000000000000000\r\n", SIZE),
            ("5\r\nhello0\r\n\r\n", LENGTH),
            ("5\r\nhello\n0\r\n\r\n", LENGTH),
            ("5\r\nhello\r0\r\n\r\n", LENGTH),
            ("0\r\nno field\r\n\r\n", "a trailer is no field"),
            ("0\r\na: b\r\n c\r\n\r\n", "a trailer is no field"),
        ] {
            check(|| Framing::CHUNKED, sent, Err(why));
        }
    }

    #[test]
    fn nobody_is_listened_to_for_ever() {
        let line = format!("5;{}\r\nhello\r\n", "x".repeat(CHUNK_LINE_BYTES_MAX));
        let trailer = format!("0\r\na: {}\r\n\r\n", "x".repeat(TRAILER_BYTES_MAX));
        for piece in [100, 2 * TRAILER_BYTES_MAX] {
            let found = [&line, &trailer].map(|sent| read(Framing::CHUNKED, sent, piece));
            let expected =
                ["the size of a chunk is too long", "its trailers are too long"].map(Err);
            assert_eq!(found, expected, "in pieces of {piece}");
        }
        let many = format!("0\r\n{}\r\n", "a: b\r\n".repeat(RESPONSE_FIELDS_MAX + 1));
        assert_eq!(read(Framing::CHUNKED, &many, 100), Err("a trailer is no field"));
    }
}
