//! What tollgate-client promises, tested through its public surface.

mod breaker;
mod budget;
#[cfg(feature = "tower")]
mod layer;
#[cfg(feature = "reqwest")]
mod reqwest;
mod retry;
#[cfg(feature = "tower")]
mod storm;
mod support;
mod throttle;
