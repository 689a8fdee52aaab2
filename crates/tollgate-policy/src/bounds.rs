//! Every bound of a policy, with its reason.
//!
//! A policy is written by an operator, but also by half-finished uploads, runaway generators and
//! whoever can reach the file. Each bound is far above what a person would write and low enough
//! that a bad file is refused in a second with a sentence, rather than taking the process with it.

/// Bytes of a policy. Enough for [`LIMITS_MAX`] limits of three hundred bytes each.
pub const POLICY_BYTES_MAX: usize = 32 << 20;

/// Bytes of a tenants file: room for several million keys with their tenants.
pub const TENANTS_BYTES_MAX: usize = 1 << 30;

/// Characters of a policy that can begin or end a value (`,`, `:`, brackets, line ends). The YAML
/// scanner holds a whole bracketed value as tokens of about a hundred bytes before it hands out
/// the first, so this is what bounds the memory of reading one.
pub const POLICY_MARKS_MAX: usize = 8_000_000;

/// The same of a tenants file with a key a line, where seven such characters make an entry and no
/// more than an entry is held at a time.
pub const TENANTS_MARKS_MAX: usize = 100_000_000;

/// How deep lists and maps may nest. A policy of ours needs seven.
pub const DEPTH_MAX: usize = 64;

/// Limits in a policy. Matching does not mind more; people reading the file would.
pub const LIMITS_MAX: usize = 100_000;

/// Rates of one limit: a second, a minute, an hour, a day, a month and some to spare.
pub const RATES_MAX: usize = 8;

/// Bytes of a limit's name. It is part of every key and a label of every metric.
pub const NAME_BYTES_MAX: usize = 64;

/// Attributes that one limit counts by. A key holds the value of each.
pub const PER_MAX: usize = 8;

/// Attributes that one `first` tries in turn.
pub const FIRST_MAX: usize = 8;

/// Bytes of an attribute's name.
pub const ATTRIBUTE_BYTES_MAX: usize = 256;

/// Bytes of an override of one key, as text.
pub const CHANGE_BYTES_MAX: usize = 4096;

/// Bytes of a tenant's or a tier's name. A tenant's name is part of its keys.
pub const TENANT_BYTES_MAX: usize = 256;

/// Bytes of a path pattern.
pub const PATTERN_BYTES_MAX: usize = 4096;

/// Mistakes that are told apart; beyond them only their number is.
pub const MISTAKES_MAX: usize = 1_000;

/// Warnings that are kept; beyond them nobody reads.
pub const WARNINGS_MAX: usize = 1_000;

/// Descriptors in the files of Envoy's rate limit service, at all levels together.
pub const DESCRIPTORS_MAX: usize = 100_000;

/// How deep descriptors nest, and so how many entries of a request are looked at.
pub const DESCRIPTOR_LEVELS_MAX: usize = 16;

/// Bytes of a domain, of a key or a value of a descriptor, and of a limit's name in these files.
pub const DESCRIPTOR_TEXT_BYTES_MAX: usize = 1024;

/// Characters of the user's text that a message repeats.
pub const QUOTE_CHARACTERS_MAX: usize = 80;

/// Bytes of a line of which a piece is still shown with a mistake: looking for the piece takes
/// time, and there may be a thousand mistakes in one line.
pub const SNIPPET_LINE_BYTES_MAX: usize = 64 << 10;

/// A log longer than this per key is allowed and warned of: it is a quarter of a megabyte a key.
pub const LOG_ENTRIES_WARNED: u32 = 10_000;

/// The shortest and longest IPv6 prefix by which clients may be told apart.
pub const IPV6_PREFIX_RANGE: std::ops::RangeInclusive<u8> = 32..=128;

/// The least memory a store may be told to live in: a table smaller than this would forget clients
/// as quickly as they come.
pub const MEMORY_BYTES_MIN: u64 = 1 << 20;

/// How long a check may wait for the store. Less than a millisecond is no time to cross a network
/// in, and nobody waits for longer than ten seconds: Envoy itself gives up far earlier.
pub const STORE_TIMEOUT_MICROS_RANGE: std::ops::RangeInclusive<u64> = 1_000..=10_000_000;

/// Servers that a store is found by. A Cluster itself is not made for more.
pub const REDIS_SERVERS_MAX: usize = 1_000;

/// Over how many keys a limit may be split. One is not split, and the number of a shard is one byte of
/// its key.
pub const SHARDS_RANGE: std::ops::RangeInclusive<u32> = 2..=256;

/// Nodes that share limits. Beyond it the share of a node is nothing to speak of.
pub const NODES_MAX: u32 = 10_000;

/// Routes of an upstream. They are tried one after the other for every request.
pub const ROUTES_MAX: usize = 1_000;

/// Hosts of one route, and paths. They too are tried one after the other.
pub const ROUTE_PATTERNS_MAX: usize = 100;

/// Servers of one route.
pub const TARGETS_MAX: usize = 100;

/// How much is compared to find routes that are never taken, in pairs of bytes: enough for three
/// hundred routes of ordinary length, and done in less than a second. Routes beyond it are not looked
/// at.
pub const ROUTE_COMPARISONS_MAX: usize = 100_000_000;

/// Bytes of the name of a server, as names of hosts are bounded everywhere.
pub const HOST_BYTES_MAX: usize = 253;

/// What a timeout of the gateway may be. Less than a millisecond is no time to cross a network in; a
/// longer wait than a day is what `off` is for.
pub const GATEWAY_TIMEOUT_MICROS_RANGE: std::ops::RangeInclusive<u64> = 1_000..=86_400_000_000;

/// Requests that the gateway holds at a time. Each keeps its connection and its head in memory, so a
/// million is some gigabytes.
pub const HELD_MAX: u32 = 1_000_000;

/// How often metrics may be sent. More often than every second nobody looks, and what is sent less
/// often than every hour tells nothing in time.
pub const OTLP_INTERVAL_MICROS_RANGE: std::ops::RangeInclusive<u64> = 1_000_000..=3_600_000_000;

/// Names in the path to a number in a response's JSON.
pub const JSON_NAMES_MAX: usize = 16;

/// Bytes of that path.
pub const JSON_PATH_BYTES_MAX: usize = 256;

const _: () = assert!(PER_MAX <= u8::MAX as usize && FIRST_MAX <= u8::MAX as usize);
const _: () = assert!(*SHARDS_RANGE.end() <= u8::MAX as u32 + 1 && FIRST_MAX < u8::MAX as usize);
const _: () = assert!(LIMITS_MAX * RATES_MAX < u32::MAX as usize);
// A descriptor is a map in a list, and its limits are maps in a list below it.
const _: () = assert!(DESCRIPTOR_LEVELS_MAX * 2 + 6 <= DEPTH_MAX);
