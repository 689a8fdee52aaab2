//! What tollgate-client promises, tested through its public surface.

mod breaker;
mod budget;
mod retry;
mod support;
mod throttle;
