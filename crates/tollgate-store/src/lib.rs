//! Where rate limit states live.
//!
//! [`MemoryStore`] keeps them in this process: 32 bytes a key, bounded, exact under concurrency,
//! and kept across restarts by a snapshot if asked to. It holds states and charges them; what is
//! charged, and why, is decided by [`tollgate_core`].
//!
//! ```
//! use tollgate_core::{Key, Limit, Quota, Value};
//! use tollgate_store::{Charge, Clock, MemoryStore};
//!
//! let store = MemoryStore::new(Clock::system())?;
//! let user = store.enroll(Limit::token_bucket(Quota::per_second(10), 2)?)?;
//! let total = store.enroll(Limit::sliding_window(Quota::per_minute(100)))?;
//!
//! // One request under two limits pays both or none.
//! let who = [Value::new(b"42")];
//! let charges = [
//!     Charge::new(Key { limit: "user", values: &who }, &user),
//!     Charge::new(Key { limit: "total", values: &[] }, &total),
//! ];
//! assert!(store.take(&charges).iter().all(|taken| taken.is_allowed()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod account;
mod asked;
pub mod bounds;
mod charge;
mod clock;
mod concealer;
mod credit;
mod enrolled;
mod fingerprint;
mod logs;
mod memory;
#[cfg(not(loom))]
mod pages;
#[cfg(loom)]
#[path = "pages/modelled.rs"]
mod pages;
#[cfg(feature = "redis")]
pub mod redis;
mod settle;
mod siphash;
pub mod snapshot;
mod store;
mod sync;
mod table;
mod upkeep;

pub use asked::{Answering, Asked, Waiting};
pub use charge::{Charge, Counted, Mode, OnFailure, Receipt, Taken};
pub use clock::{Clock, Started};
pub use enrolled::{Enrolled, TooManyLimits};
pub use fingerprint::Named;
pub use memory::{MemoryStore, Unreservable};
pub use store::{Answers, Claim, Origin, Store};
