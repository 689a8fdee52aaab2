//! Every bound of the command, with its reason.

/// Addresses that one limit of an nftables ruleset remembers at a time, of each kind: about 10 MiB of
/// the kernel's memory. Beyond them newcomers are not limited there, and are by the gateway.
pub(crate) const NFTABLES_ADDRESSES_MAX: u32 = 65_536;

/// Seconds after which nftables forgets an address that opens no connection. A bucket that takes
/// longer to fill is then full too early; remembering it for a year would keep others out of the
/// set, which holds only so many.
pub(crate) const NFTABLES_IDLE_SECONDS_MAX: u64 = 3_600;

/// Seconds that `top` remembers: as many as a server tells at once.
pub(crate) const TOP_SECONDS_MAX: usize = 900;

/// Letters of what `top` searches for: more than a line shows find nothing else.
pub(crate) const TOP_SEARCH_LETTERS_MAX: usize = 100;

/// Rows of each table that `top --once` prints: what lies below is small.
pub(crate) const TOP_ONCE_ROWS_MAX: usize = 100;
