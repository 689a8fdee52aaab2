//! Every bound of the command, with its reason.

use std::time::Duration;

/// How long a server may take from the first byte to it to the last of its answer: somebody waits.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Bytes of an answer: a longer one is none of ours.
pub(crate) const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// Addresses that one limit of an nftables ruleset remembers at a time, of each kind: about 10 MiB of
/// the kernel's memory. Beyond them newcomers are not limited there, and are by the gateway.
pub(crate) const NFTABLES_ADDRESSES_MAX: u32 = 65_536;

/// Seconds after which nftables forgets an address that opens no connection. A bucket that takes
/// longer to fill is then full too early; remembering it for a year would keep others out of the
/// set, which holds only so many.
pub(crate) const NFTABLES_IDLE_SECONDS_MAX: u64 = 3_600;

/// Seconds that `top` remembers: as many as a server tells at once.
pub(crate) const TOP_SECONDS_MAX: usize = 900;

/// Rows that `top` keeps of each list of an answer, and what it keeps of each list in a row. A server tells
/// of some thousand limits and keys, and of each limit sixty steps; one that is broken may tell millions.
pub(crate) const TOP_ROWS_MAX: usize = 10_000;
pub(crate) const TOP_IN_ROW_MAX: usize = 120;

/// Answers for which `top` goes on to say what came of an order: long enough to be read.
pub(crate) const TOP_SAID_ANSWERS: u8 = 5;

/// Letters of what `top` searches for: more than a line shows find nothing else.
pub(crate) const TOP_SEARCH_LETTERS_MAX: usize = 100;

/// Rows of each table that `top --once` prints: what lies below is small.
pub(crate) const TOP_ONCE_ROWS_MAX: usize = 100;

/// Columns that it prints: of a longer key nobody reads the end, and a page is kept whole.
pub(crate) const TOP_ONCE_COLUMNS_MAX: usize = 1_000;
