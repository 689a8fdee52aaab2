//! States kept across restarts.
//!
//! A snapshot is written aside, flushed to disk and renamed over the last one, so that at every
//! moment there is one whole snapshot or the other. Held slots of concurrency limits are not kept:
//! whoever held them is gone. A file that is damaged, or of a format this version does not read,
//! is set aside under another name and the store starts empty: an operator finds it, and no limit
//! is enforced from rubbish.
//!
//! The format, all numbers little-endian:
//!
//! ```text
//! "tollgate" version:u32                       then blocks of
//! length:u32 last:u8 payload checksum:u128     whose payloads, joined, are
//!
//! seed:u128 saved_at:u64
//! states  { fingerprint:u128 limit:u32 definition? low:u64 high:u64 }                   of a counter
//!         { fingerprint:u128 limit:u32 definition? entries:u32 { at:u64 units:u32 } }   of a log
//!
//! definition  algorithm:u8 numbers:[u64; 5]
//! ```
//!
//! States go on until the payload ends. Limits are numbered as they come: the first state of a limit
//! has the next number and defines it, so those that no state names are not there. A block's checksum covers its place in the file, so blocks
//! cannot be exchanged, and the last one says so, so none can be missing.

mod block;
mod file;
mod format;

pub use file::{Keeper, Restored};
#[doc(hidden)]
pub use format::sealed;
pub use format::{SnapshotError, read, write};
