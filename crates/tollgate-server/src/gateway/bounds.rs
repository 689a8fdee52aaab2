//! How much of anything the gateway takes.

use std::time::Duration;

use tollgate::Micros;

/// Servers whose failures are counted and told. Each is two lines to whoever collects metrics.
pub(crate) const UPSTREAMS_TOLD_MAX: usize = 1_000;

/// Requests of one HTTP/2 connection at a time.
pub(super) const STREAMS_MAX: u32 = 200;

/// How much of one body may come over HTTP/2 before it is passed on, and of all bodies of a client's
/// connection together.
pub(super) const STREAM_WINDOW: u32 = 256 * 1024;
pub(super) const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// How much of a response waits for an HTTP/2 client that reads slowly.
pub(super) const SEND_BUFFER_MAX: usize = 64 * 1024;

/// Bytes that are copied together to be one plain write. Most heads are smaller, with their body if that
/// is small.
pub(super) const GATHERED_BYTES_MAX: usize = 1_024;

/// Room that is made for a request without a body, and then for its response: most heads need less.
pub(super) const WIRE_ROOM: usize = 1_024;

/// What is read of a response at a time, at first and where much comes. Most responses are smaller than the
/// first, and of a large one no more lies here.
pub(super) const WIRE_READ: usize = 4 * 1024;
pub(super) const WIRE_READ_MAX: usize = 64 * 1024;

/// Fields of most responses, with those that are added on the way: room for them is made at once. No more,
/// since hyper keeps the room for the next request of a client, and most clients are idle.
pub(super) const RESPONSE_FIELDS_FEW: usize = 12;

/// Fields of a response, interim responses before it, bytes of the line that a chunk begins with, and of the
/// fields behind the last.
pub(super) const RESPONSE_FIELDS_MAX: usize = 100;
pub(super) const INTERIM_MAX: usize = 100;
pub(super) const CHUNK_LINE_BYTES_MAX: usize = 4 * 1024;
pub(super) const TRAILER_BYTES_MAX: usize = 16 * 1024;

/// Connections to one server that a thread keeps for later.
pub(super) const IDLE_MAX: usize = 1_024;

/// How often kept connections are looked through for those that nobody has used for long.
pub(crate) const IDLE_LOOK: Duration = Duration::from_secs(5);

/// Requests at a time on one connection of HTTP/2 to a server, which should take at least so many;
/// for more there is another connection.
pub(super) const REQUESTS_MAX: usize = 100;

/// And of all bodies of a connection to a server. They are for different clients, none of whom may
/// have to wait because others do not read.
pub(super) const SERVER_WINDOW: u32 = STREAM_WINDOW * REQUESTS_MAX as u32;

/// How much of a request's body is kept until its response begins, so that it can be sent again if a
/// server of HTTP/2 ends the connection without looking at it. Most requests that change something
/// are smaller.
pub(super) const SENT_AGAIN_BYTES_MAX: usize = 16 * 1024;

/// Servers that a request is sent to, one after the other, until one takes it.
pub(super) const ATTEMPTS_MAX: usize = 3;

/// Failures in a row after which a server is left out, how long at first, and at most. It is left
/// out twice as long every time.
pub(super) const FAILURES_MAX: u32 = 3;
pub(super) const LEFT_OUT: Duration = Duration::from_secs(5);
pub(super) const LEFT_OUT_MAX: Duration = Duration::from_secs(60);

/// Routes that take turns by themselves; those beyond share the turns of others.
pub(super) const TURNS: usize = 64;

/// Bytes of a request id that a client may choose.
pub(super) const REQUEST_ID_BYTES_MAX: usize = 128;

/// What is read at a time of a connection that has left HTTP.
pub(super) const TUNNEL_BYTES: usize = 16 * 1024;

/// Bytes of a header of the PROXY protocol. Its addresses take 232 at most; the rest is what proxies
/// add for others to read.
pub(super) const PROXY_HEADER_BYTES_MAX: usize = 4 * 1024;

/// How often the log is told of connections that limits keep out, however many come.
pub(super) const CLOSED_TOLD_EVERY: Micros = Micros::from_secs(10);

/// How much longer than it may a request takes that is told so: whoever reads gets the answer first.
pub(super) const LATE_GRACE: Duration = Duration::from_secs(1);

/// How long a client may be gone unnoticed that has sent more than the request which is under way.
pub(super) const UNHEARD_AT_MOST: Duration = Duration::from_millis(500);
