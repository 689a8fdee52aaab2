//! How much of anything a door takes.

use std::time::Duration;

use tollgate::Micros;

/// Connections at a time, over all doors; one more is closed at once. Fewer if the process may open
/// fewer files.
pub(crate) const CONNECTIONS_MAX: usize = 65_536;

/// Files that are no connections: sockets that listen, a policy that is read, a snapshot that is
/// written.
pub(crate) const FILES_FOR_US: usize = 64;

/// Connections that only the admin door may have beyond those, so that whoever takes all others
/// does not make us look dead.
pub(crate) const CONNECTIONS_FOR_ADMIN: usize = 32;

/// Connections that have been made and not yet accepted when we stop: more than the system keeps
/// waiting.
pub(crate) const BACKLOG_MAX: usize = 8_192;

/// A client that takes longer for its TLS handshake is cut off, and so is a proxy that takes longer to
/// say for whom it speaks.
pub(crate) const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// The head of an HTTP request: how long it may take after the last request, and how large it may
/// be. It is looked at so often whether a request came meanwhile, so twice as long passes at most.
pub(crate) const HEAD_MAX: Duration = Duration::from_secs(40);
pub(crate) const HEAD_BYTES_MAX: usize = 64 * 1024;

/// A plain check: what is read of it at a time and in all, how many fields may be in it, and how long the rest of
/// one that has begun to arrive is waited for before it is no plain one.
pub(crate) const PLAIN_READ: usize = 4 * 1024;
pub(crate) const PLAIN_FIELDS_MAX: usize = 32;
pub(crate) const PLAIN_REST_MAX: Duration = Duration::from_millis(100);

/// Bytes of answers to plain checks that wait to be written before more are looked at, and the room for them that
/// is kept for the next: more was for an answer as few are.
pub(crate) const ANSWERS_BYTES_MAX: usize = 16 * 1024;
pub(crate) const ANSWERS_ROOM_MAX: usize = 32 * 1024;

/// The body of an HTTP request: how long it may take, and how large it may be.
pub(crate) const BODY_MAX: Duration = Duration::from_secs(10);
pub(crate) const BODY_BYTES_MAX: usize = 1024 * 1024;

/// How long a client may leave an answer unread.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(30);

/// An answer that was written so long ago has reached whoever asked, whatever happens to the connection
/// from then on: a caller that is gone is found out within one way there and back, and one that is busy
/// has read it by then.
pub(crate) const DELIVERED_AFTER: Duration = Duration::from_secs(5);

/// How often a connection that ends before that is looked at, and the first pause between two looks; each
/// is twice as long as the one before. Together they are a second.
pub(crate) const DELIVERY_LOOKS: u32 = 10;
pub(crate) const DELIVERY_PAUSE: Duration = Duration::from_millis(1);
const _: () = assert!(DELIVERY_PAUSE.as_millis() << DELIVERY_LOOKS <= DELIVERED_AFTER.as_millis());

/// Bodies that are being read at a time, over all connections: with their size, what they may take
/// of memory. One more is refused with 503.
pub(crate) const BODIES_MAX: usize = 1_024;

/// Checks in one batch.
pub(crate) const BATCH_MAX: usize = 1_000;

/// Attributes of one check, and bytes of their values together: every limit that counts by a value
/// is told of with it, so a long one is answered many times over.
pub(crate) const ATTRIBUTES_MAX: usize = 128;
pub(crate) const ATTRIBUTE_BYTES_MAX: usize = 64 * 1024;

/// After an accept that failed for want of something (file descriptors, memory) there will be one
/// only when somebody has left.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How often files are looked at for changes. One that changed is read when it has stayed the same
/// for one more look, since it may be half written.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How long we say that we are not ready before we stop accepting, so that whoever sends us traffic
/// can hear of it.
pub(crate) const UNREADY_BEFORE_DRAIN: Duration = Duration::from_millis(500);

/// How long requests under way may take when we are told to stop.
pub(crate) const DRAIN_MAX: Duration = Duration::from_secs(10);

/// Bytes of a PEM or token file.
pub(crate) const SECRET_FILE_BYTES_MAX: usize = 1024 * 1024;

/// Bytes of all descriptor files together, and files in their folder.
pub(crate) const DESCRIPTORS_BYTES_MAX: usize = 32 * 1024 * 1024;
pub(crate) const DESCRIPTOR_FILES_MAX: usize = 10_000;

/// Bytes of one command of the Redis protocol, which is also what is held of one that has not
/// arrived as a whole.
pub(crate) const COMMAND_BYTES_MAX: usize = 64 * 1024;

/// Words of one command: its name, and the attributes and the cost of a check.
pub(crate) const COMMAND_WORDS_MAX: usize = 1 + 2 * ATTRIBUTES_MAX + 2;

/// How long a command that has begun to arrive may take.
pub(crate) const COMMAND_MAX: Duration = Duration::from_secs(10);

/// What is read from a connection at a time: some hundreds of commands.
pub(crate) const COMMANDS_READ: usize = 16 * 1024;

/// Replies that wait to be written before more commands are looked at. A short command may have a
/// long reply.
pub(crate) const REPLIES_BYTES_MAX: usize = 64 * 1024;

/// Questions of one connection that wait for the store before more commands are looked at.
pub(crate) const QUESTIONS_MAX: usize = 1_024;

/// How long a client may take to accept its replies.
pub(crate) const REPLIES_MAX: Duration = Duration::from_secs(10);

/// How long a connection that we close is still listened to, and how much of what it says is thrown
/// away: closing while bytes are on their way would take the last replies with it.
pub(crate) const FAREWELL_MAX: Duration = Duration::from_secs(1);
pub(crate) const FAREWELL_BYTES_MAX: usize = 1024 * 1024;

/// Different limits that `CL.THROTTLE` may ask for as long as the process lives. A store can tell
/// half a million limits apart, and the policy needs its share.
pub(crate) const THROTTLES_MAX: usize = 65_536;

/// Of those, how many are told what they say of one key: a key does not tell which of them is meant.
pub(crate) const THROTTLES_TOLD_MAX: usize = 16;

/// Bytes of the name that a client gives to its connection.
pub(crate) const CLIENT_NAME_BYTES_MAX: usize = 256;

/// Bytes of the answer to a batch. Every check is told of every limit that applies to it, so a few
/// bytes may ask for very many.
pub(crate) const BATCH_BYTES_MAX: usize = 8 * 1024 * 1024;

/// How long a reservation may be settled unless it says so itself, and at most.
pub(crate) const RESERVATION_TTL: Micros = Micros::from_secs(60);
pub(crate) const RESERVATION_TTL_MAX: Micros = Micros::from_secs(3_600);

/// Reservations at a time, settled ones that are still told of included, and what they may take of
/// memory. One more is refused with 503.
pub(crate) const RESERVATIONS_MAX: usize = 65_536;
pub(crate) const RESERVATIONS_BYTES_MAX: usize = 128 * 1024 * 1024;

/// How long it is told again what became of a settlement, to callers who did not hear it.
pub(crate) const SETTLED_KEPT: Micros = Micros::from_secs(60);

/// What is remembered of the last quarter of an hour: all requests by the second, and of so many
/// limits what they said, in steps of so many seconds. Together some 300 KiB.
pub(crate) const HISTORY_SECONDS: usize = 900;
pub(crate) const HISTORY_LIMITS: usize = 256;
pub(crate) const HISTORY_STEPS: usize = 60;
pub(crate) const STEP_SECONDS: u64 = 15;

/// How long advice is told again before it is thought of anew.
pub(crate) const ADVICE_SECONDS: u64 = 10;

const _: () = assert!(HISTORY_STEPS as u64 * STEP_SECONDS == HISTORY_SECONDS as u64);

/// Requests that wait to be told about in traces. A span is 96 bytes, so these are 384 KiB.
pub(crate) const SPANS_MAX: usize = 4_096;

/// How long a collector may take to answer; and for all that is left, when the process is to end.
pub(crate) const OTLP_MAX: Duration = Duration::from_secs(5);
pub(crate) const OTLP_LAST_MAX: Duration = Duration::from_secs(2);

/// Bytes of a collector's answer that are read before the connection is closed.
pub(crate) const OTLP_ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Requests of one play, their bytes, and how long it may last: a year. Nobody sees more of it at once.
pub(crate) const PLAY_SENT_MAX: usize = 500;
pub(crate) const PLAY_BYTES_MAX: usize = 64 * 1024;

/// Bytes of the limit that is played: as many as of an override.
pub(crate) const PLAY_LIMIT_BYTES_MAX: usize = 4_096;

pub(crate) const PLAY_MILLIS_MAX: u64 = 366 * 86_400 * 1_000;
