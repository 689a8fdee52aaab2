//! HTTP/2 by hand: what no client would send, and what becomes of it.

use crate::gateway::Gateway;
use crate::gateway::client::Client;
use crate::grpc::frames::{END_HEADERS, HEADERS, RST_STREAM, field, frame, opening};

const GO_AWAY: u8 = 7;

/// A connection of HTTP/2.
pub(super) struct Wire {
    pub(super) client: Client,
}

/// What becomes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// 200.
    Passed,
    /// 400.
    Refused,
    /// Another status.
    Answered,
    /// It is reset, or the whole connection ends.
    Ended,
}

impl Wire {
    pub(super) fn open(gateway: &Gateway) -> Self {
        let mut client = gateway.connect();
        client.send(opening());
        Self { client }
    }

    /// What becomes of a stream.
    pub(super) fn outcome(&mut self, stream: u32) -> Outcome {
        loop {
            let Some((kind, number, payload)) = self.next() else { return Outcome::Ended };
            match kind {
                // The status is the first field, and these two have a byte of their own.
                HEADERS if number == stream => match payload[0] {
                    0x88 => return Outcome::Passed,
                    0x8c => return Outcome::Refused,
                    _ => return Outcome::Answered,
                },
                RST_STREAM if number == stream => return Outcome::Ended,
                GO_AWAY => return Outcome::Ended,
                _ => {}
            }
        }
    }

    /// The next frame: its kind, its stream and what is in it.
    fn next(&mut self) -> Option<(u8, u32, Vec<u8>)> {
        let head = self.client.take(9)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        Some((head[3], stream, self.client.take(length as usize)?))
    }
}

/// The fields that every request has.
pub(super) fn plain(method: &str, path: &str) -> Vec<u8> {
    [
        field(":method", method),
        field(":scheme", "http"),
        field(":path", path),
        field(":authority", "a"),
    ]
    .concat()
}

/// The head of a request, with the flags beside that it is complete.
pub(super) fn request(stream: u32, fields: &[u8], flags: u8) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | flags, stream, fields)
}
