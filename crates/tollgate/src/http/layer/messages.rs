//! Where the messages of a stream are, told from its bytes as they pass.
//!
//! Each message is due somewhere: there it has to be paid before more may pass. One of gRPC is due
//! before its first byte, since that is where it tells its length. An event tells its end, and is due
//! before that: it may pass but for the last line end, without which no client acts on it.

use ::http::HeaderMap;
use ::http::header::CONTENT_TYPE;

use super::refusal::is_grpc;
use crate::http::settle::Form;

/// Finds the messages of one stream.
pub(super) enum Messages {
    Grpc(Grpc),
    Events(Events),
}

/// What is next in a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// So many bytes, at least one, that may pass.
    Passes(usize),
    /// A message that is due here, with its length.
    Due(u64),
    /// Too little to tell.
    Unknown,
}

impl Messages {
    /// Finds the messages of a body with this head, if it is a stream of them.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        if is_grpc(headers) {
            return Some(Self::Grpc(Grpc::default()));
        }
        let kind = headers.get(CONTENT_TYPE).map(AsRef::as_ref);
        let is_readable = Form::of(kind) == Form::Events && super::bill::is_plain(headers);
        is_readable.then(|| Self::Events(Events::default()))
    }

    /// What is next, where `bytes` are those that have not passed yet.
    pub(super) fn next(&mut self, bytes: &[u8]) -> Next {
        match self {
            Self::Grpc(grpc) => grpc.next(bytes),
            Self::Events(events) => events.next(bytes),
        }
    }

    /// The message that is due is paid.
    pub(super) fn pay(&mut self, length: u64) {
        match self {
            Self::Grpc(grpc) => grpc.left = length,
            Self::Events(events) => events.is_paid = true,
        }
    }
}

/// A byte of flags and four of length before each message.
const GRPC_HEAD: usize = 5;

/// Messages of gRPC.
#[derive(Default)]
pub(super) struct Grpc {
    /// Bytes of a message that is paid and has not passed whole.
    left: u64,
}

impl Grpc {
    fn next(&mut self, bytes: &[u8]) -> Next {
        if self.left > 0 {
            let passing = usize::try_from(self.left).map_or(bytes.len(), |it| it.min(bytes.len()));
            self.left -= passing as u64;
            return Next::Passes(passing);
        }
        match bytes {
            [_, a, b, c, d, ..] => {
                let length = u32::from_be_bytes([*a, *b, *c, *d]);
                Next::Due(GRPC_HEAD as u64 + u64::from(length))
            }
            _ => Next::Unknown,
        }
    }
}

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();
const DATA: &[u8] = b"data";

/// Server-sent events. Only what has data is one: comments that keep a connection alive are not, and
/// their bytes are part of the next event.
#[derive(Default)]
pub(super) struct Events {
    /// Bytes of the mark that a text may begin with; all of them from the first other byte on.
    mark: usize,
    line: Line,
    /// The last byte ended a line, and a line feed after it belongs to that end.
    is_after_return: bool,
    /// Since the last event that was paid.
    has_data: bool,
    length: u64,
    is_paid: bool,
}

/// What is known of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// So many bytes of it are those of a name that makes it one of data.
    Begun(usize),
    /// Which it is does not matter any more.
    Known,
}

impl Default for Line {
    fn default() -> Self {
        Self::Begun(0)
    }
}

impl Events {
    fn next(&mut self, bytes: &[u8]) -> Next {
        let mut passing = 0;
        while let Some((&byte, rest)) = bytes[passing..].split_first() {
            if self.is_due(byte) {
                return match passing {
                    0 => Next::Due(self.length + 1),
                    _ => Next::Passes(passing),
                };
            }
            // Most of a stream is inside of lines.
            let more = match self.line {
                Line::Known if !is_line_end(byte) => rest.iter().position(|it| is_line_end(*it)),
                _ => Some(0),
            };
            let count = 1 + more.unwrap_or(rest.len());
            self.pass(byte);
            self.length += count as u64;
            if std::mem::take(&mut self.is_paid) {
                (self.length, self.has_data) = (0, false);
            }
            passing += count;
        }
        Next::Passes(passing)
    }

    /// Whether this byte would end an event that is not paid.
    fn is_due(&self, byte: u8) -> bool {
        let ends_empty_line = is_line_end(byte)
            && self.line == Line::Begun(0)
            && !(byte == b'\n' && self.is_after_return);
        ends_empty_line && self.has_data && !self.is_paid
    }

    fn pass(&mut self, byte: u8) {
        let is_after_return = std::mem::take(&mut self.is_after_return);
        if let Some(expected) = BYTE_ORDER_MARK.get(self.mark) {
            if byte == *expected {
                self.mark += 1;
                return;
            }
            // Half a mark is none, and so part of the line.
            if self.mark > 0 {
                self.line = Line::Known;
            }
            self.mark = BYTE_ORDER_MARK.len();
        }
        let is_data = self.line == Line::Begun(DATA.len());
        self.line = match (byte, self.line) {
            (b'\n', line) if is_after_return => line,
            (b'\r' | b'\n', _) => {
                self.has_data |= is_data;
                self.is_after_return = byte == b'\r';
                Line::Begun(0)
            }
            (_, Line::Begun(known)) if DATA.get(known) == Some(&byte) => Line::Begun(known + 1),
            (_, Line::Begun(_)) => {
                self.has_data |= is_data && byte == b':';
                Line::Known
            }
            (_, Line::Known) => Line::Known,
        };
    }
}

const fn is_line_end(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}
