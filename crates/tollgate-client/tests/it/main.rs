//! What tollgate-client promises, tested through its public surface.

mod allowances;
#[cfg(feature = "tower")]
mod blame;
mod breaker;
mod budget;
#[cfg(all(feature = "reqwest", feature = "server", feature = "tower"))]
mod cancel;
#[cfg(feature = "tower")]
mod contract;
#[cfg(feature = "metrics")]
mod events;
#[cfg(feature = "server")]
mod grpc;
#[cfg(feature = "tower")]
mod keys;
#[cfg(feature = "tower")]
mod layer;
#[cfg(feature = "reqwest")]
mod peers;
mod probes;
mod reading;
#[cfg(feature = "reqwest")]
mod reqwest;
mod retry;
#[cfg(feature = "server")]
mod server;
#[cfg(feature = "server")]
mod server_circuit;
#[cfg(feature = "server")]
mod server_fallback;
#[cfg(feature = "tower")]
mod storm;
mod support;
mod throttle;
mod told;
