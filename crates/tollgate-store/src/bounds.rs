//! Every bound of the memory store, with its reason.

/// What a memory store may use unless told otherwise: room for some six million keys.
pub const MAX_BYTES_DEFAULT: usize = 256 << 20;

/// The least a memory store works with: below it there is no room to forget the right key. A model
/// checker watches every slot, so under loom a table may be as small as it can be and still grow.
pub const MAX_BYTES_MIN: usize = if cfg!(loom) { 256 } else { 64 << 10 };

/// The share of its memory that a store keeps for logs, as a divisor: a table that has grown does
/// not shrink, and a flood of counted keys must not leave logs without room for good.
pub(crate) const LOGS_SHARE: usize = 8;

/// The share of its memory that a store keeps for the table, as a divisor: long logs must not leave
/// counted keys without room.
pub(crate) const TABLE_SHARE: usize = 4;

/// Slots of one shard when the table is largest. A shard is moved at once when the table grows, so
/// this bounds how long anybody waits for that: a fraction of a millisecond.
pub(crate) const SHARD_SLOTS_MAX: usize = if cfg!(loom) { 32 } else { 16_384 };

/// Slots of one shard in an empty table.
pub(crate) const SHARD_SLOTS_MIN: usize = 8;

/// How many keys are looked at to find the one that loses least by being forgotten.
pub(crate) const VICTIMS_LOOKED_AT: usize = 16;

/// How many logs one request may have forgotten so that its own can grow. Each takes some
/// microseconds, and whoever asks must not wait while a thousand short logs make room for a long one.
pub const LOGS_FORGOTTEN_MAX: usize = 64;

/// Different limits a store can tell apart. The number of its limit lies with every state, in the
/// bits that the core leaves free.
pub const LIMITS_MAX: usize = 1 << 19;
