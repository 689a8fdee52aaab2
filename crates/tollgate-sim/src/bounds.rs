//! Every bound of the simulator, with its reason.

/// The largest count of a quota that is compared. A picture of more requests shows nothing more,
/// and a retry storm of twice as many clients already makes a million events.
pub const COUNT_MAX: u32 = 10_000;

/// How many periods of traffic are made: the first fills a limit, the second shows it at work, and
/// the third that nothing else happens.
pub const PERIODS: u64 = 3;

/// How many periods accuracy is measured over: enough that another seed moves no share by more
/// than a few points.
pub const ACCURACY_PERIODS: u64 = 1_000;
