//! How much of anything a WebSocket may have.

use std::time::Duration;

/// Bytes of one message, all its fragments together, and so of one frame. Whoever announces more is
/// closed with 1009.
pub(crate) const MESSAGE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Fragments that one message has for its price: with more it counts once more for every so many, as
/// otherwise a message in single bytes would be a flood that counts as one.
pub(crate) const FRAGMENTS_A_MESSAGE: u64 = 256;

/// Bytes that are under way in each direction, for each socket; none while it is quiet.
pub(crate) const RELAYED_BYTES: usize = 16 * 1024;

/// Bytes of the reason in a close frame: a control frame holds 125, and the code takes two.
pub(crate) const REASON_BYTES_MAX: usize = 123;

/// How long a socket that one side has ended may take to end on the other.
pub(crate) const CLOSING_MAX: Duration = Duration::from_secs(5);

const _: () = assert!(RELAYED_BYTES > super::frames::HEADER_BYTES_MAX);
