//! What tollgate-client promises, tested through its public surface.

mod breaker;
mod budget;
#[cfg(all(feature = "reqwest", feature = "server", feature = "tower"))]
mod cancel;
#[cfg(feature = "metrics")]
mod events;
#[cfg(feature = "server")]
mod grpc;
#[cfg(feature = "tower")]
mod layer;
#[cfg(feature = "reqwest")]
mod peers;
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
