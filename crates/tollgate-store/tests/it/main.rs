//! What tollgate-store promises, tested through its public surface.

mod bounds;
mod concurrency;
mod conformance;
mod credit;
mod model;
mod places;
mod snapshot;
mod support;
