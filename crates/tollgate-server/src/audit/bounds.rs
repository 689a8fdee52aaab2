//! How much is written down, and how much waits for it.

use std::time::Duration;

use tollgate::Quota;

/// Lines of the audit log that wait to be written: of denials, of what operators change, and of what
/// changes nothing. With their length some 10 MiB at most, and a few hundred KiB as a rule.
pub(super) const DENIALS_QUEUED: usize = 1_024;
pub(super) const CHANGES_QUEUED: usize = 256;
pub(super) const NOTHING_QUEUED: usize = 64;

/// Limits that one line lists, values of a sender, and bytes of a key or value: more of any is for
/// nobody to read.
pub(super) const LIMITS_MAX: usize = 8;
pub(super) const VALUES_MAX: usize = 8;
pub(super) const KEY_BYTES_MAX: usize = 1_024;

/// Lines of what operators change, of what they do without changing anything, and of strangers who are
/// turned away at their door. Operators' scripts are quick, and who tries over and over, or guesses tokens,
/// must neither fill the disk nor hide what operators do.
pub(super) const CHANGES_RATE: Quota = Quota::per_second(200);
pub(super) const NOTHING_RATE: Quota = Quota::per_second(50);
pub(super) const STRANGERS_RATE: Quota = Quota::per_second(10);

/// Bytes of lines that are written at once, and a line more.
pub(super) const WRITE_BYTES: usize = 64 * 1024;

/// How long the last lines may take to be written when we stop.
pub(super) const CLOSE_MAX: Duration = Duration::from_secs(1);
