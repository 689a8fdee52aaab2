//! Every bound of reaching Redis, with its reason.

use std::time::Duration;

/// Calls that wait for one server. More than this is more than a server answers within any deadline
/// a check would have.
pub(crate) const QUEUE_MAX: usize = 65_536;

/// Those of them that were handed over and not looked at yet.
pub(crate) const INBOX_MAX: usize = QUEUE_MAX / 2;

/// Pipelines on their way to one server. With one, the server idles while its replies are read; with
/// more than a few, batches no longer grow and calls wait in sockets, where they cannot be taken back.
pub(crate) const FLIGHTS_MAX: usize = 3;

/// Calls of one pipeline. What is in flight is some milliseconds of a server's work, so that a call
/// that must wait longer than its deadline is still ours and is not sent at all.
pub(crate) const BATCH_MAX: usize = 128;

/// Failures in a row after which a server is left alone until a probe finds it well. No more than
/// there are flights, so that a server that answers none is found unwell by those on their way.
pub(crate) const FAILURES_MAX: u32 = 3;
const _: () = assert!(FAILURES_MAX as usize <= FLIGHTS_MAX);

/// How often one call is sent on to where a server says that its keys are.
pub(crate) const HOPS_MAX: u8 = 5;

/// Servers of a Cluster that we keep track of. Redis itself advises against more than a thousand.
pub(crate) const NODES_MAX: usize = 1_000;

/// How many servers are asked at once where things are, and how many answers of theirs are told.
pub(crate) const ASKED_MAX: usize = 5;

/// The longest first pause before a server that failed is looked at again.
pub(crate) const PAUSE_BASE: Duration = Duration::from_millis(50);

/// The longest pause between two looks.
pub(crate) const PAUSE_MAX: Duration = Duration::from_millis(400);

/// At least so long from one look to the next. With [`REFRESH_PAUSE`] no server is dialled more than
/// ten times a second by one of us.
pub(crate) const PAUSE_MIN: Duration = Duration::from_millis(125);

/// How long a dial or a probe may take before the connection is given up. A server that is well
/// again after a look began in vain is seen within this and [`PAUSE_MAX`].
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);

/// The same, for those who gave their calls more time than that: so many times a call's deadline.
pub(crate) const PATIENCE_CALLS: u32 = 4;

/// Sentinels that are silent are waited for during one part in so many of the patience, so that the
/// rest is left for the master that the others name.
pub(crate) const ABSENT_SENTINELS: u32 = 4;

/// How long the servers of a Cluster are not asked again where its slots are.
pub(crate) const REFRESH_PAUSE: Duration = Duration::from_millis(500);

/// How often Sentinels are asked whether the master is still the master.
pub(crate) const SENTINEL_PAUSE: Duration = Duration::from_secs(1);

const _: () = assert!(PATIENCE.as_millis() + PAUSE_MAX.as_millis() < 1_000);
const _: () = assert!(PAUSE_MIN.as_millis() <= PAUSE_MAX.as_millis());
const _: () = assert!(1_000 / PAUSE_MIN.as_millis() + 1_000 / REFRESH_PAUSE.as_millis() <= 10);

/// Keys that a node denies by itself. Each is good for a second at most, and takes some 200 bytes.
pub(crate) const DENIALS_MAX: usize = 32_768;

/// Shares of limits that are kept ready while Redis is away.
pub(super) const SHARES_MAX: usize = 65_536;

/// How often a node says that it is there, and hears what changed: an override put elsewhere is in
/// force within a second.
pub(super) const HEARTBEAT: Duration = Duration::from_millis(500);

/// After how long a node that is not heard of is counted no longer.
pub(super) const NODE_GONE: Duration = Duration::from_secs(5);

/// How often a node that is new hears nothing of the key that secrets are hashed with before it offers one
/// of its own: for as long as a node that knows one may be silent.
pub(super) const SECRET_WAITS: u32 = (NODE_GONE.as_millis() / HEARTBEAT.as_millis()) as u32;

/// How long Redis keeps what all nodes share when there is no node left.
pub(super) const HOUSE_KEPT: Duration = Duration::from_secs(30 * 86_400);

/// Bytes of an error that are kept and told. What Redis has to say is a line.
pub(super) const ERROR_BYTES_MAX: usize = 512;

/// How long the same trouble with the same server is not told again.
pub(super) const TROUBLE_PAUSE: Duration = Duration::from_secs(60);

/// Troubles that are told of one server within that time. There are a dozen kinds; whoever has read so many
/// lines knows.
pub(super) const TROUBLES_MAX: usize = 32;

/// How often Redis must tell of fewer nodes than before until it is believed: for twice as long as a
/// node takes to tell that it is there, or to be gone.
pub(super) const FEWER_TOLD: u32 = (2 * NODE_GONE.as_millis() / HEARTBEAT.as_millis()) as u32;

/// How long until what Redis must allow is looked at again, if it did not answer.
pub(super) const CHECK_PAUSE: Duration = Duration::from_secs(1);

/// How long a store that starts waits for Redis to tell what all nodes share.
pub(super) const START_PATIENCE: Duration = Duration::from_millis(500);

/// How often the release of a slot is sent again that Redis did not answer, with [`RELEASE_PAUSE`]
/// between: for longer than a failover takes. After that the slot's lease must do. What is not sent,
/// since Redis is known to be away, is no try; that goes on until it is back, or until the lease has
/// ended.
pub(super) const RELEASE_TRIES: u32 = 100;

/// A few times a second, since Redis is back within one.
pub(super) const RELEASE_PAUSE: Duration = Duration::from_millis(200);

/// Releases that are being tried again, of some 500 bytes each. For others their lease must do.
pub(super) const RELEASES_MAX: usize = 16_384;

/// Overrides that all nodes share: as many as one node has in force.
pub const OVERRIDES_MAX: usize = 10_000;

/// Overrides that are read by one call, so that no check waits for it.
pub(super) const OVERRIDES_PAGE: usize = 500;

/// Overrides that are put again by one call. Each may be as long as a key.
pub(super) const OVERRIDES_RESTORED: usize = 100;
