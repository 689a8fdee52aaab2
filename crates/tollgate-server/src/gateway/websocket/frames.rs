//! The frames of a WebSocket (RFC 6455), as far as whoever passes them on must know them.
//!
//! Nothing is kept of what passes but a few numbers: where the next frame begins, and how long the
//! message is so far. A header that has not arrived as a whole is left to the caller, who shows it
//! again with more behind it. No extension is ever agreed on ([`prepare`](super::prepare)), so every
//! reserved bit is wrong.

use std::fmt;

use super::bounds::MESSAGE_BYTES_MAX;

/// Bytes of the longest header: two, a length of eight and a mask of four.
pub(crate) const HEADER_BYTES_MAX: usize = 14;

const FINAL: u8 = 0x80;
const RESERVED: u8 = 0x70;
const OPCODE: u8 = 0x0f;
const MASKED: u8 = 0x80;
/// Control frames have it in their opcode.
const CONTROL: u8 = 0x8;
const CONTROL_BYTES_MAX: u64 = 125;

/// The beginning of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    first: u8,
    is_masked: bool,
    /// Bytes of the header itself, and those that follow it.
    bytes: usize,
    payload: u64,
}

impl Header {
    /// The header that `bytes` begin with; nothing if there must be more of it.
    fn read(bytes: &[u8]) -> Option<Self> {
        let (&[first, second], rest) = bytes.split_first_chunk()?;
        let (payload, length_bytes) = match second & !MASKED {
            126 => (u64::from(u16::from_be_bytes(*rest.first_chunk()?)), 2),
            127 => (u64::from_be_bytes(*rest.first_chunk()?), 8),
            short => (u64::from(short), 0),
        };
        let is_masked = second & MASKED != 0;
        let header = 2 + length_bytes + if is_masked { 4 } else { 0 };
        (bytes.len() >= header).then_some(Self { first, is_masked, bytes: header, payload })
    }
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// A part of a header.
    Unknown,
    /// So many bytes of a frame that has begun, at least one.
    Payload(usize),
    /// Another frame.
    Frame(Frame),
}

/// A frame of a client that begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    /// Bytes of its header.
    pub(crate) header: usize,
    /// Bytes that follow the header.
    pub(crate) payload: u64,
}

/// What a frame of a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The first frame of a message, or the only one.
    Message,
    /// One more frame of a message: its number, from 1 for the one behind the first.
    Fragment(u64),
    /// A ping or a pong.
    Control,
    /// The end of the socket.
    Close,
}

/// Why a client's frame is not passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is not allowed by the protocol.
    Protocol(&'static str),
    /// Its message is too long.
    TooLong,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protocol(why) => f.write_str(why),
            Self::TooLong => write!(f, "a message may have {MESSAGE_BYTES_MAX} bytes"),
        }
    }
}

/// What a client sends.
#[derive(Debug, Default)]
pub(crate) struct FromClient {
    /// Bytes of the frame that are still to come.
    left: u64,
    /// The message that has begun and not ended.
    message: Option<Message>,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    /// Frames behind the first.
    fragments: u64,
    bytes: u64,
}

impl FromClient {
    /// What `bytes` begin with: they are those behind what was told last. Shown nothing, or a part of
    /// a header, it tells nothing, and is to be shown the same with more.
    pub(crate) fn next(&mut self, bytes: &[u8]) -> Result<Next, Fault> {
        if self.left > 0 && !bytes.is_empty() {
            return Ok(Next::Payload(pass(&mut self.left, bytes.len())));
        }
        let Some(header) = Header::read(bytes) else { return Ok(Next::Unknown) };
        let kind = self.begin(&header)?;
        self.left = header.payload;
        Ok(Next::Frame(Frame { kind, header: header.bytes, payload: header.payload }))
    }

    /// Whether what was told last ends a frame.
    pub(crate) fn is_between_frames(&self) -> bool {
        self.left == 0
    }

    fn begin(&mut self, header: &Header) -> Result<Kind, Fault> {
        let wrong = |why| Err(Fault::Protocol(why));
        if header.first & RESERVED != 0 {
            return wrong("a reserved bit is set");
        }
        if !header.is_masked {
            return wrong("a frame of a client must be masked");
        }
        if header.payload >> 63 != 0 {
            return wrong("a length has its highest bit set");
        }
        let opcode = header.first & OPCODE;
        let is_final = header.first & FINAL != 0;
        if opcode & CONTROL != 0 {
            return match opcode {
                0x8..=0xa if !is_final => wrong("a control frame is fragmented"),
                0x8..=0xa if header.payload > CONTROL_BYTES_MAX => {
                    wrong("a control frame may have 125 bytes")
                }
                0x8 => Ok(Kind::Close),
                0x9 | 0xa => Ok(Kind::Control),
                _ => wrong("an opcode is reserved"),
            };
        }
        let (kind, begun) = match (opcode, self.message) {
            (0x0, Some(begun)) => {
                let fragments = begun.fragments + 1;
                (Kind::Fragment(fragments), Message { fragments, ..begun })
            }
            (0x0, None) => return wrong("a message goes on that has not begun"),
            (0x1 | 0x2, None) => (Kind::Message, Message { fragments: 0, bytes: 0 }),
            (0x1 | 0x2, Some(_)) => return wrong("a message begins within another"),
            _ => return wrong("an opcode is reserved"),
        };
        // Neither is above 2^63.
        let bytes = begun.bytes + header.payload;
        if bytes > MESSAGE_BYTES_MAX {
            return Err(Fault::TooLong);
        }
        self.message = (!is_final).then_some(Message { bytes, ..begun });
        Ok(kind)
    }
}

/// What a server sends: nobody but its client judges that, and all that matters to us is where a frame
/// of our own may be put.
#[derive(Debug, Default)]
pub(crate) struct FromServer {
    left: u64,
}

impl FromServer {
    /// How many of `bytes`, which are those behind what was told last, belong to frames whose header
    /// is there as a whole.
    pub(crate) fn pass(&mut self, bytes: &[u8]) -> usize {
        let mut passed = 0;
        loop {
            passed += pass(&mut self.left, bytes.len() - passed);
            if self.left > 0 {
                return passed;
            }
            let Some(header) = Header::read(&bytes[passed..]) else { return passed };
            passed += header.bytes;
            self.left = header.payload;
        }
    }

    /// How many of `bytes`, which are those behind what was told last, are left of the frame that has
    /// begun.
    pub(crate) fn pass_rest(&mut self, bytes: &[u8]) -> usize {
        pass(&mut self.left, bytes.len())
    }

    /// Whether what was told last ends a frame.
    pub(crate) fn is_between_frames(&self) -> bool {
        self.left == 0
    }
}

/// Takes what there is of `left` bytes.
fn pass(left: &mut u64, there: usize) -> usize {
    let passed = usize::try_from(*left).unwrap_or(usize::MAX).min(there);
    *left -= passed as u64;
    passed
}

#[cfg(test)]
mod tests;
