//! A caller that plays by the rules.
//!
//! Limiting is a conversation. A server says how much may still be sent; a client that listens
//! never hits the wall, and one that was refused comes back when it was told to, not before.
//!
//! - [`Budget`] is what a response says, whoever the vendor is.
//! - [`Retry`] tries again what failed, as seldom as it takes, with [`Backoff`] between.
//! - [`Breaker`] leaves alone what does not work.
//! - [`Throttle`] slows down before the wall.

mod backoff;
pub mod bounds;
mod breaker;
mod budget;
mod clock;
mod events;
mod keyed;
mod random;
mod retry;
mod throttle;

pub use backoff::Backoff;
pub use breaker::{Breaker, CallError, Change, Circuit, Open, Permit, Reason, State};
pub use budget::{Allowance, Budget, Unit};
pub use retry::{Attempt, Retry};
pub use throttle::{Lane, Pass, Throttle, Throttled};
