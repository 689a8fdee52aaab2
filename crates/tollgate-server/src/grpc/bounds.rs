//! How much one gRPC client may hold.

use std::time::Duration;

/// A client that has not said by then that it speaks HTTP/2 is cut off.
pub(super) const PREFACE_WAIT_MAX: Duration = Duration::from_secs(5);

/// Calls in flight on one connection. Envoy opens another connection when it needs more.
pub(super) const STREAMS_MAX: u32 = 256;

/// Bytes of one message. Envoy takes 60 KiB of header fields, and may send each of them in several
/// descriptors.
pub(super) const MESSAGE_BYTES_MAX: usize = 256 * 1024;

/// A client that takes longer for its message is told so.
pub(super) const MESSAGE_WAIT_MAX: Duration = Duration::from_secs(5);

/// Bytes of the header fields of one call, and of one frame.
pub(super) const HEADER_BYTES_MAX: u32 = 16 * 1024;
pub(super) const FRAME_BYTES_MAX: u32 = 16 * 1024;

/// Bytes on their way to us that nobody has read yet: on one call, and on the whole connection.
pub(super) const STREAM_WINDOW: u32 = 64 * 1024;
pub(super) const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// Bytes of answers on one call that the client has not made room for.
pub(super) const SEND_BYTES_MAX: usize = 64 * 1024;

/// Calls that the client, or its mistakes, may reset before we have seen them; one more ends the
/// connection.
pub(super) const RESETS_MAX: usize = 64;

/// How often a silent client is asked whether it is there, and how long it may take to answer.
pub(super) const PING_EVERY: Duration = Duration::from_secs(60);
pub(super) const PONG_WAIT_MAX: Duration = Duration::from_secs(20);
