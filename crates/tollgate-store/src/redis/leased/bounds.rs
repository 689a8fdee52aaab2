//! Every bound of what nodes hold on lease, with its reason.

use std::time::Duration;

use tollgate_core::Micros;

/// Keys of which a node holds units or knows how much they are used. Each takes some 300 bytes; a key
/// beyond that is decided by Redis, request by request.
pub(crate) const POOLS_MAX: usize = 65_536;

/// Parts of the table of pools that are locked by themselves.
pub(crate) const SHARDS: usize = 64;

/// Requests that wait for one key. They wait for a round trip or two, so this is more than a key is
/// asked for in any deadline.
pub(crate) const WAITERS_MAX: usize = 16_384;

/// How finely it is observed how much of a key is used. What a node takes on lease is what it used
/// of late, and that is at least this time and at most twice as much.
pub(crate) const USAGE_WINDOW: Micros = Micros::from_millis(100);

/// After how long without a call a node reports what it spent, and gives back what it does not need:
/// long enough for everything in [`USAGE_WINDOW`] twice to have passed.
pub(crate) const REVIEW_AFTER: Micros = Micros::from_millis(200);

/// How often pools are looked through for that.
pub(crate) const REVIEW_PAUSE: Duration = Duration::from_millis(50);

/// How often it is looked, at the end, whether a call under way has come back: as long as one takes.
pub(crate) const RETURN_PAUSE: Duration = Duration::from_millis(1);

/// A node asks for more when it holds so small a part, as a divisor, of what it used of late.
pub(crate) const AHEAD_SHARE: u32 = 4;

/// Below so many units of late, more is asked for when a request needs it, and not ahead.
pub(crate) const AHEAD_MIN: u32 = 8;

/// The part of a lease, as a divisor, that a node leaves unused at its end, since no two clocks run
/// alike.
pub(crate) const MARGIN_SHARE: u64 = 32;

const _: () = assert!(REVIEW_AFTER.as_micros() >= 2 * USAGE_WINDOW.as_micros());
const _: () = assert!(POOLS_MAX.is_multiple_of(SHARDS));
