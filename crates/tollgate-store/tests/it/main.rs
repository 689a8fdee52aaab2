//! What tollgate-store promises, tested through its public surface.

mod bounds;
mod concurrency;
mod conformance;
mod credit;
mod model;
mod places;
#[cfg(feature = "redis")]
mod redis;
mod settle;
mod snapshot;
mod support;
