//! Every bound of the client, with its reason.

use std::time::Duration;

/// The longest wait that a response can tell. A longer one is a mistake of a clock or of a unit, or
/// a budget so far away that a look once a day does no harm.
pub const WAIT_MAX: Duration = Duration::from_secs(86_400);

/// The longest time for which a lane is closed, whatever it was told: then a request looks. Many take milliseconds
/// for seconds, and a host that nobody asks any more cannot say that it was a mistake.
pub const CLOSED_MAX: Duration = Duration::from_secs(3_600);

/// The longest time that anything can be set to: a year. Longer is for ever, and moments so far away cannot be
/// counted with.
pub const FOREVER: Duration = Duration::from_secs(365 * 86_400);

/// Bytes of one field that are read. Budgets are short; a longer one is no budget.
pub const FIELD_BYTES_MAX: usize = 4_096;

/// Allowances that are read from one response.
pub const ALLOWANCES_MAX: usize = 16;

/// Retries that requests may save up. Many requests that went well do not pay for a storm.
pub const RETRIES_SAVED_BY_REQUESTS_MAX: u64 = 100;

/// Retries that time may save up, for those who send little.
pub const RETRIES_SAVED_BY_TIME_MAX: u64 = 10;

/// Hosts, or other keys, that are told apart at a time.
pub const KEYS_MAX: usize = 1_024;

/// Of these, how many may be of somebody under a name that others have as well, such as callers with keys of their own
/// to one host. However many keys somebody makes up, there is room for hosts.
pub const KEYS_OF_SOMEBODY_MAX: usize = KEYS_MAX / 4 * 3;

/// Newcomers with keys of their own, without room, for whom it is not looked again what can be forgotten: to look at all there is
/// takes as long as many requests.
pub(crate) const KEYS_LOOKED_AT_EVERY: usize = 64;

/// Parts into which a breaker's window is cut: what it counts is that much too old at most.
pub(crate) const WINDOW_PARTS: usize = 10;

/// How long a call that is to see keeps its place. However short a circuit was open, what hangs is not called ever more.
pub(crate) const PROBE_LASTS: Duration = Duration::from_secs(30);

/// Refusals in a row, at least, before they are persistent.
pub(crate) const REFUSALS_MIN: u32 = 10;

/// Changes of a circuit that are kept for a listener who is busy with another. Of more than that the last ones are told
/// as one.
pub(crate) const CHANGES_UNTOLD_MAX: usize = 1_000;

/// Requests that may wait in one lane. One more fails at once.
pub const WAITING_MAX: usize = 10_000;

/// How long a request waits at most so that what is left lasts. A day's quota of which half is left is not
/// spread over the other half of the day: who has come to ask wants an answer.
pub const SPREAD_MAX: Duration = Duration::from_secs(1);

/// How long it is remembered that a lane has heard of more than one name. Servers change their names, and what goes by
/// one name alone can be waited for.
pub(crate) const NAMES_LAST: Duration = Duration::from_secs(3_600);

/// Requests under way up to which their number grows fast after a first refusal.
pub(crate) const CARE_FAST_MAX: u32 = 64;

/// How long requests under way may stay without an answer before that is taken for a good sign: who refuses does so
/// at once, and what is slow would hold up all who wait behind it.
pub(crate) const CARE_PATIENCE: Duration = Duration::from_secs(2);

/// How long after a wall or a refusal the number of requests under way is watched, at least.
pub(crate) const CARE_LASTS: Duration = Duration::from_secs(10);

/// The longest wait that is taken for a bucket's time from one unit to the next. Longer ones may be the end of
/// a window, behind which there is more than one.
pub(crate) const GAP_MAX: Duration = Duration::from_millis(100);

/// Requests that must go well before they follow each other twice as fast.
pub(crate) const GAP_ROUND: u32 = 8;

/// Attributes of one check, as the server bounds them.
pub const CHECK_ATTRIBUTES_MAX: usize = 128;

/// Bytes of the values of one check, as the server bounds them.
pub const CHECK_BYTES_MAX: usize = 64 << 10;

/// How long a reservation can be settled at most, as the server bounds it.
pub const RESERVATION_MAX: Duration = Duration::from_secs(3_600);

/// Descriptors of one call over gRPC, as the server bounds them.
pub const DESCRIPTORS_MAX: usize = 128;

/// Entries of one descriptor, as the server bounds them.
pub const DESCRIPTORS_ENTRIES_MAX: usize = 64;

/// Bytes of one call over gRPC, as the server bounds them.
pub const DESCRIPTORS_BYTES_MAX: usize = 256 << 10;

/// Connections to a server. A second one asks while the first waits; more would only make batches smaller.
#[cfg(feature = "server")]
pub(crate) const SERVER_CONNECTIONS: usize = 2;

/// Questions that may wait for a connection. One more is answered by the fallback.
#[cfg(feature = "server")]
pub(crate) const SERVER_QUEUE_MAX: usize = 10_000;

/// Checks in one batch, as the server bounds them.
#[cfg(feature = "server")]
pub(crate) const SERVER_BATCH_MAX: usize = 1_000;

/// Bytes of a batch before no other check joins it: half of what the server reads, and a last check of
/// the longest kind still fits.
#[cfg(feature = "server")]
pub(crate) const SERVER_BATCH_BYTES_MAX: usize = 512 << 10;

/// Characters of the reason that all checks of a batch are told which was not answered.
#[cfg(feature = "server")]
pub(crate) const SERVER_REASON_CHARS_MAX: usize = 1_000;

/// Bytes of an answer. The server's own bound is half of it.
#[cfg(feature = "server")]
pub(crate) const SERVER_ANSWER_BYTES_MAX: usize = 16 << 20;

/// Sets that the keys of a fallback's limit are spread over. With eight places in each it is 65,536 keys at a
/// time, some ten megabytes where each is a counter; what a limit remembers besides, such as slots, comes on top.
#[cfg(feature = "server")]
pub(crate) const FALLBACK_SETS: usize = 8_192;

/// Places in one set: as many as are looked at for a check.
#[cfg(feature = "server")]
pub(crate) const FALLBACK_PLACES: usize = 8;

/// How often it is said aloud that a server does not let us ask: not with every check.
#[cfg(feature = "server")]
pub(crate) const UNWILLING_TOLD_EVERY: Duration = Duration::from_secs(60);
