//! Every bound of the core, with its reason.

use crate::Micros;

/// The largest integer below which every integer has its own double: Redis's Lua knows no other
/// number, so nothing the twins compute may exceed it.
pub const EXACT_MAX: u64 = (1 << 53) - 1;

/// Ticks of debt a full bucket may owe. Three quarters of what is exact: enough for the largest
/// bucket to be counted to one part in a million, and a forced charge can still take it past its
/// end by a third.
pub const CAPACITY_TICKS_MAX: u64 = 3 << 51;

/// The shortest window or period. Below it the clock's own microseconds would be most of the error.
pub const PERIOD_MICROS_MIN: u64 = 1_000;

/// The longest window or period: a year of 365 days.
pub const PERIOD_MICROS_MAX: u64 = 365 * 86_400 * 1_000_000;

/// The longest time in which an empty bucket may refill: 100 years. More is a misprint, and the
/// moment it would be whole again could no longer be told exactly.
pub const REFILL_MICROS_MAX: u64 = 100 * PERIOD_MICROS_MAX;

/// Entries a log may hold. A log is memory per key: 100,000 entries are 2.4 MB of it.
pub const LOG_ENTRIES_MAX: u32 = 100_000;

/// Entries of a log that are looked at one by one to tell a wait. Redis serves nobody else meanwhile, and
/// looks at a thousand in less than a millisecond.
pub const LOG_WALK_MAX: u32 = 1_000;

/// How long a lease lasts unless it is renewed. A node that died keeps its units from the others for
/// that long; one that lives renews a few times in it, and may miss some.
pub const LEASE_MICROS: Micros = Micros::from_secs(1);

/// Leases a key may have at a time. They are read and written with every call, so a key that more
/// nodes ask for serves the others without.
pub const LEASES_MAX: usize = 64;

/// Window numbers fit 44 bits because no period is shorter than a millisecond.
pub(crate) const WINDOW_NUMBER_MAX: u64 = (1 << 44) - 1;

const _: () = assert!(EXACT_MAX / PERIOD_MICROS_MIN < WINDOW_NUMBER_MAX);
// A coarsened bucket is repaid at least two ticks a microsecond, so a unit is at least two thirds of
// the ticks there is room for, and rounding it up by one is an error below one in a million.
const _: () = assert!(CAPACITY_TICKS_MAX / REFILL_MICROS_MAX >= 2);
const _: () = assert!(CAPACITY_TICKS_MAX / (u32::MAX as u64) / 3 * 2 > 1_000_000);
