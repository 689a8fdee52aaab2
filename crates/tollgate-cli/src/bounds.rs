//! Every bound of the command, with its reason.

/// Addresses that one limit of an nftables ruleset remembers at a time, of each kind: about 10 MiB of
/// the kernel's memory. Beyond them newcomers are not limited there, and are by the gateway.
pub(crate) const NFTABLES_ADDRESSES_MAX: u32 = 65_536;

/// Seconds after which nftables forgets an address that opens no connection. A bucket that takes
/// longer to fill is then full too early; remembering it for a year would keep others out of the
/// set, which holds only so many.
pub(crate) const NFTABLES_IDLE_SECONDS_MAX: u64 = 3_600;
