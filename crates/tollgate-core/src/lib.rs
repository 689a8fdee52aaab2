//! Rate limiting as pure integer functions.
//!
//! This crate decides; it stores nothing, reads no clock, allocates nothing while deciding and
//! depends on nothing. A [`Limit`] is a quota bound to one of six algorithms. Given what is
//! remembered of a key, the time, and what a request costs, it answers with what to remember from
//! now on and with a [`Decision`]: allowed or not, what is left, and the shortest wait that works.
//!
//! ```
//! use tollgate_core::{Cost, Limit, Micros, Quota, Timestamp, Word};
//!
//! let Limit::Counter(limit) = Limit::token_bucket(Quota::per_minute(60), 2)? else { unreachable!() };
//! let now = Timestamp::from_micros(1_760_000_000_000_000);
//!
//! let first = limit.decide(Word::VACANT, now, Cost::ONE);
//! let second = limit.decide(first.word, now, Cost::ONE);
//! let third = limit.decide(second.word, now, Cost::ONE);
//!
//! assert!(first.decision.is_allowed() && second.decision.is_allowed());
//! assert_eq!(third.decision.retry_after(), Some(Micros::from_secs(1)));
//! assert_eq!(third.word, second.word, "a denied request leaves no trace");
//! # Ok::<(), tollgate_core::QuotaError>(())
//! ```
//!
//! All arithmetic is on integers below 2^53, so that each algorithm has a twin in Lua that Redis
//! runs with the same result to the last digit.

pub mod bounds;
mod concurrency;
mod decision;
mod divisor;
mod fixed_window;
mod held;
mod key;
mod leaky_bucket;
mod leases;
mod limit;
pub mod lua;
mod numbers;
mod quota;
mod share;
mod sliding_log;
mod sliding_window;
mod time;
mod token_bucket;

pub use concurrency::Concurrency;
pub use decision::{Decision, Outcome};
pub use fixed_window::{Align, FixedWindow};
pub use held::{ChargeId, Entry, Log, LogChange, LogTransition};
pub use key::{Key, KeyBuf, KeyError, Shown, Value};
pub use leaky_bucket::LeakyBucket;
pub use leases::{Leasable, Lease, LeaseAnswer, LeaseCall, LeasedState};
pub use limit::{
    Algorithm, AlgorithmError, Counter, Limit, Logged, Receipt, Step, Transition, Word,
};
pub use numbers::NUMBERS;
pub use quota::{Cost, CostError, Quota, QuotaError};
pub use sliding_log::SlidingLog;
pub use sliding_window::SlidingWindow;
pub use time::{Micros, TimeError, Timestamp};
pub use token_bucket::TokenBucket;
