//! Every bound of what is read from a request, or kept of it, with its reason.

/// Addresses in `X-Forwarded-For` or `Forwarded`. A chain of proxies is a handful long; whoever
/// sends more wants us to read.
pub const FORWARDED_MAX: usize = 64;

/// How much later than the wait a denied client may be told to come back, in percent of the wait.
pub const SPREAD_PERCENT: u64 = 30;

/// Requests whose memory is fetched together: until all have said what they ask for, it is there.
pub const TOGETHER: usize = 8;

/// Requests that a layer holds at a time, unless it is told another number. Each has a timer and keeps
/// its connection busy; whoever has more of them waiting has another problem than their order.
pub const HELD_MAX: usize = 10_000;

/// Bytes that a thread keeps to decode the values of its next request in. Most need a few dozen.
#[cfg(feature = "tower")]
pub(crate) const ROOM_BYTES_KEPT: usize = 4_096;

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

/// Keys that may have a limit of their own by an operator's word. Tenants that always have one belong
/// into the tenants file.
pub const KEY_OVERRIDES_MAX: usize = 10_000;

/// Limits that are told of one key, whose limit goes by something that the key does not tell. Tiers are
/// few; who has more of them than this sees the first.
pub const LOOKS_MAX: usize = 16;

/// Keys that a list of the busiest, or of the most denied, tells apart. Its error is one part in so many.
pub const SUMMARY_KEYS: usize = 512;

/// Bytes of a key that such a list shows. Addresses, tenants and hashes of API keys have a quarter of it;
/// what is longer is cut, and told apart all the same.
pub const KEY_TEXT_BYTES_MAX: usize = 256;

/// Keys of which it is remembered how long they were told to wait. When two meet in one slot, the later
/// one stays.
pub const WAITS_SLOTS: usize = 65_536;

/// For how many milliseconds after a key is told to wait requests of it may come that were sent before it
/// heard: as long as a way through a continent takes. Clients that try again at once mostly pause for longer.
pub const UNDER_WAY_MILLIS_MAX: u64 = 50;

/// Of short waits one part in so many, so that who never waits is seen by the rest.
pub const UNDER_WAY_SHARE: u64 = 4;

/// As many requests of one key may be under way. Who sends more in a moment is seen by the others.
pub const UNDER_WAY_MAX: u64 = 16;

/// Keys whose last decisions are remembered.
pub const RECENT_KEYS: usize = 1_024;

/// Decisions that are remembered of such a key.
pub const RECENT_DECISIONS: usize = 8;

/// Bytes that different users of one limit and tier are counted in. See `observe/users.rs`.
pub const USERS_REGISTERS: usize = 1_024;

/// Limits and tiers whose users are counted: the first of a policy, four kilobytes each. Who has more of
/// them does not read as much advice.
pub const USERS_SERIES_MAX: usize = 1_024;

/// Keys that are told of a retry storm.
pub const STORM_KEYS_MAX: usize = 10;

/// Sentences of one kind of advice; nobody reads more.
pub const ADVICE_MAX: usize = 10;

/// Limits and tiers that are counted apart. Each is a dozen lines to whoever collects metrics, and fifty
/// thousand of those are enough; limits beyond it are counted together.
pub const METRICS_SERIES_MAX: usize = 4_096;

/// Limits and tenants whose headroom is told apart. Each is ten lines to whoever collects metrics; the
/// others are counted together.
pub const METRICS_TENANTS_MAX: usize = 1_000;

/// Shards of each counter. A shard is two lines of the cache; threads beyond so many share them.
pub(crate) const METRICS_SHARDS_MAX: usize = 32;

/// Bytes of the keys that one answer shows. Those of ten thousand limits with short values are fewer; of a
/// request with values of many thousand bytes under very many limits the last are told as `…`.
pub const KEYS_BYTES_MAX: usize = 1 << 20;

/// Values of `RateLimit-Policy` that a thread keeps for the next request under the same limits.
pub(crate) const POLICIES_KEPT: usize = 16;
