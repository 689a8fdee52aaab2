//! How long and how often anything is tried.

use std::time::Duration;

/// How long something that must come is waited for in all, in steps of [`WAIT_STEP`]. Only what
/// never comes takes that long, on however busy a machine.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(30);

/// Short beside what is waited for, long beside what a look costs.
pub(crate) const WAIT_STEP: Duration = Duration::from_millis(5);

/// How long a reply may take before the server counts as dead.
pub(crate) const REPLY_MAX: Duration = Duration::from_secs(10);

/// How often a server is started again because somebody took its port meanwhile.
pub(crate) const PORT_CLASHES_MAX: u32 = 10;

/// Ports are taken from here on, below those that the system gives to outgoing connections: none of
/// those then takes one before the server does.
pub(crate) const PORT_FIRST: u16 = 20_000;

/// So many ports from [`PORT_FIRST`] on.
pub(crate) const PORT_COUNT: u16 = 12_000;

/// How long keys may take from one node of a Cluster to another.
pub(crate) const MIGRATE_MILLIS_MAX: u32 = 5_000;

/// What a proxy reads at once.
pub(crate) const CHUNK_BYTES: usize = 16 * 1024;

/// So many chunks may be under way in one direction of a slow connection; then nothing is read
/// until some have arrived, as on a network whose buffers are full.
pub(crate) const CHUNKS_MAX: usize = 4_096;

const _: () = assert!(PORT_FIRST + PORT_COUNT <= 32_768, "outgoing connections begin there");
