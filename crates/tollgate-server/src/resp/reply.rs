//! Replies into bytes.

use std::fmt::{self, Write};
use std::mem;

use tollgate::http::number_before;
use tollgate::{Asked, Waiting};

use crate::bounds::{QUESTIONS_MAX, REPLIES_BYTES_MAX};

/// Which generation of the protocol a client speaks. Ours differ in two types only: the second
/// has no maps and another way to say "nothing".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Protocol {
    /// What every client speaks until it asks for the other.
    #[default]
    Resp2,
    Resp3,
}

/// Replies in the order of their commands, of which some may still be on their way.
#[derive(Debug, Default)]
pub(super) struct Output {
    /// Those that are known.
    bytes: Vec<u8>,
    gaps: Vec<Gap>,
}

/// A reply that is not known yet.
#[derive(Debug)]
struct Gap {
    /// Where it belongs among those that are.
    at: usize,
    reply: Waiting<Vec<u8>>,
}

impl Output {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.gaps.is_empty()
    }

    /// Whether as much is to be written as a client should wait for at a time.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.bytes.len() > REPLIES_BYTES_MAX || self.gaps.len() >= QUESTIONS_MAX
    }

    /// Whether nothing is on its way.
    #[inline]
    pub(super) fn is_whole(&self) -> bool {
        self.gaps.is_empty()
    }

    /// Waits for what is on its way. All of it was asked for before, so it comes at about the same
    /// time.
    pub(super) async fn complete(&mut self) {
        let known = mem::take(&mut self.bytes);
        let mut written = 0;
        for Gap { at, reply } in self.gaps.drain(..) {
            self.bytes.extend_from_slice(&known[written..at]);
            self.bytes.append(&mut reply.await);
            written = at;
        }
        self.bytes.extend_from_slice(&known[written..]);
    }

    /// The replies, all of which are known.
    pub(super) fn bytes(&self) -> &[u8] {
        debug_assert!(self.is_whole(), "what is on its way is waited for first");
        &self.bytes
    }

    /// Makes room for the next replies.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(REPLIES_BYTES_MAX);
    }

    /// Bytes that are held for replies.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.bytes.capacity()
    }

    /// Lets go of the room for replies.
    pub(super) fn free(&mut self) {
        *self = Self::default();
    }
}

/// Writes replies behind each other. What a reply promises (an array of so many) the caller keeps.
pub(super) struct Replies<'o> {
    output: &'o mut Output,
    protocol: Protocol,
}

impl<'o> Replies<'o> {
    pub(super) fn new(output: &'o mut Output, protocol: Protocol) -> Self {
        Self { output, protocol }
    }

    /// Has `write` write the reply when the answer is there; what follows is written behind it. It is shown the
    /// answer where that is, since some are large.
    #[inline]
    pub(super) fn write_when<T: 'static>(
        &mut self,
        asked: Asked<T>,
        write: impl FnOnce(&T, &mut Replies<'_>) + Send + 'static,
    ) {
        match asked {
            Asked::Ready(ref answer) => write(answer, self),
            Asked::Waiting(waiting) => {
                let protocol = self.protocol;
                let reply = Waiting::new(async move {
                    let answer = waiting.await;
                    let mut output = Output::default();
                    write(&answer, &mut Replies::new(&mut output, protocol));
                    output.bytes
                });
                self.output.gaps.push(Gap { at: self.output.bytes.len(), reply });
            }
        }
    }

    pub(super) fn simple(&mut self, text: &'static str) {
        self.output.bytes.push(b'+');
        self.end(text.as_bytes());
    }

    /// An error, of which clients understand the first word.
    pub(super) fn error(&mut self, error: &Complaint) {
        self.output.bytes.push(b'-');
        self.end(error.0.as_bytes());
    }

    #[inline]
    pub(super) fn integer(&mut self, number: i64) {
        self.number(b':', number);
    }

    pub(super) fn bulk(&mut self, bytes: &[u8]) {
        self.number(b'$', bytes.len() as i64);
        self.end(bytes);
    }

    pub(super) fn null(&mut self) {
        self.output.bytes.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// An array; its elements follow.
    #[inline]
    pub(super) fn array(&mut self, elements: usize) {
        self.number(b'*', elements as i64);
    }

    /// A map; its keys and values follow, in turn.
    pub(super) fn map(&mut self, pairs: usize) {
        match self.protocol {
            Protocol::Resp2 => self.array(2 * pairs),
            Protocol::Resp3 => self.number(b'%', pairs as i64),
        }
    }

    #[inline]
    fn number(&mut self, kind: u8, number: i64) {
        // Most numbers are small.
        if let 0..=9 = number {
            let line = [kind, b'0' + number as u8, b'\r', b'\n'];
            return self.output.bytes.extend_from_slice(&line);
        }
        self.long_number(kind, number);
    }

    #[inline(never)]
    fn long_number(&mut self, kind: u8, number: i64) {
        // The longest line. Of any other as much is copied and the rest forgotten: copies of a length that is
        // known beforehand cost next to nothing, all others a call.
        const LINE: usize = 24;
        let mut lines = [0; 2 * LINE];
        let (room, end) = lines[..LINE].split_at_mut(LINE - 2);
        end.copy_from_slice(b"\r\n");
        let mut start = number_before(room, number.unsigned_abs());
        if number < 0 {
            start -= 1;
            room[start] = b'-';
        }
        start -= 1;
        room[start] = kind;
        let bytes = &mut self.output.bytes;
        let length = bytes.len() + LINE - start;
        let line: &[u8; LINE] = lines[start..].first_chunk().expect("there is room behind");
        bytes.extend_from_slice(line);
        bytes.truncate(length);
    }

    #[inline]
    fn end(&mut self, bytes: &[u8]) {
        self.output.bytes.extend_from_slice(bytes);
        self.output.bytes.extend_from_slice(b"\r\n");
    }
}

/// Why a command is not carried out: a code that clients understand and a sentence for people, in
/// one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Complaint(String);

impl Complaint {
    /// A mistake of the caller's that has no code of its own.
    pub(super) fn new(sentence: fmt::Arguments<'_>) -> Self {
        Self::coded("ERR", sentence)
    }

    pub(super) fn coded(code: &str, sentence: fmt::Arguments<'_>) -> Self {
        let mut text = format!("{code} ");
        text.write_fmt(sentence).expect("a String takes everything");
        debug_assert!(!text.contains(['\r', '\n']), "a complaint is one line");
        Self(text)
    }
}

/// A piece of what a caller sent, as it may be shown in one line.
pub(super) struct Shown<'b>(pub(super) &'b [u8]);

/// Bytes of a caller's word that a sentence repeats.
const SHOWN_BYTES_MAX: usize = 64;

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[..self.0.len().min(SHOWN_BYTES_MAX)];
        write!(f, "'{}'", shown.escape_ascii())?;
        if shown.len() < self.0.len() { f.write_str("…") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(protocol: Protocol, write: impl FnOnce(&mut Replies<'_>), expected: &str) {
        let mut output = Output::default();
        write(&mut Replies::new(&mut output, protocol));
        assert_eq!(output.bytes().escape_ascii().to_string(), expected);
    }

    #[test]
    fn a_number_has_its_digits() {
        for (number, expected) in [
            (0, r":0\r\n"),
            (-1, r":-1\r\n"),
            (10, r":10\r\n"),
            (4_294_967_295, r":4294967295\r\n"),
            (i64::MAX, r":9223372036854775807\r\n"),
            (i64::MIN, r":-9223372036854775808\r\n"),
        ] {
            check(Protocol::Resp2, |replies| replies.integer(number), expected);
        }
    }

    #[test]
    fn every_type_is_written_as_each_protocol_has_it() {
        for (protocol, expected) in [
            (Protocol::Resp2, r"*2\r\n$1\r\na\r\n$-1\r\n"),
            (Protocol::Resp3, r"%1\r\n$1\r\na\r\n_\r\n"),
        ] {
            let write = |replies: &mut Replies<'_>| {
                replies.map(1);
                replies.bulk(b"a");
                replies.null();
            };
            check(protocol, write, expected);
        }
    }

    #[test]
    fn what_a_caller_sent_is_shown_in_one_short_line() {
        let shown = Shown(b"a\r\n\x1b[31m\xff'").to_string();
        assert_eq!(shown, r"'a\r\n\x1b[31m\xff\''");
        assert_eq!(Shown(&[b'x'; 1000]).to_string(), format!("'{}'…", "x".repeat(64)));
    }
}
