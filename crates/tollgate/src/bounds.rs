//! Every bound of what is read from a request, with its reason.

/// Addresses in `X-Forwarded-For`. A chain of proxies is a handful long; whoever sends more wants
/// us to read.
pub const FORWARDED_MAX: usize = 64;

/// How much later than the wait a denied client may be told to come back, in percent of the wait.
pub const SPREAD_PERCENT: u64 = 30;

pub use tollgate_policy::bounds::{POLICY_BYTES_MAX, TENANTS_BYTES_MAX};
pub use tollgate_store::bounds::MAX_BYTES_DEFAULT;
