//! Every bound of what is read from a request, with its reason.

/// Addresses in `X-Forwarded-For`. A chain of proxies is a handful long; whoever sends more wants
/// us to read.
pub const FORWARDED_MAX: usize = 64;

/// How much later than the wait a denied client may be told to come back, in percent of the wait.
pub const SPREAD_PERCENT: u64 = 30;

pub use tollgate_policy::bounds::{POLICY_BYTES_MAX, TENANTS_BYTES_MAX};
pub use tollgate_store::bounds::MAX_BYTES_DEFAULT;

/// Descriptors in one call of Envoy's rate limit service. Envoy sends one for each of a route's rate
/// limits, of which people write a handful.
pub const DESCRIPTORS_MAX: usize = 128;

/// Entries of one such descriptor. Files nest no deeper than 16, so more match nothing.
pub const ENTRIES_MAX: usize = 64;

/// Different limits that such calls may bring along in a process's life. A store can tell half a
/// million limits apart, and whoever may call must not use them up. Beyond it the files decide.
pub const OVERRIDES_MAX: usize = 16_384;
