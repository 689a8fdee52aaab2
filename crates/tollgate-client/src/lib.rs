//! A caller that plays by the rules.
//!
//! Limiting is a conversation. A server says how much may still be sent; a client that listens
//! never hits the wall, and one that was refused comes back when it was told to, not before.
//!
//! - [`Budget`] is what a response says, whoever the vendor is.
//! - [`Retry`] tries again what failed, as seldom as it takes, with [`Backoff`] between.
//! - [`Breaker`] leaves alone what does not work.
//! - [`Throttle`] slows down before the wall.
//! - [`Rules`] are all of these together, to be put around a tower service (`ClientLayer`, with the
//!   feature `tower`) or around reqwest (`ClientMiddleware`, with the feature `reqwest`).
//! - `Client` asks tollgate's own server over HTTP, and `GrpcClient` over gRPC, with the feature `server`.

mod backoff;
pub mod bounds;
mod breaker;
mod budget;
mod clock;
mod events;
mod keyed;
#[cfg(feature = "tower")]
mod layer;
mod local;
mod random;
#[cfg(feature = "reqwest")]
mod reqwest;
mod retry;
#[cfg(any(feature = "reqwest", feature = "tower"))]
mod rules;
#[cfg(feature = "server")]
mod server;
mod throttle;
mod whose;

#[cfg(feature = "reqwest")]
pub use crate::reqwest::ClientMiddleware;
pub use backoff::Backoff;
pub use breaker::{Breaker, CallError, Change, Circuit, Open, Permit, Reason, State};
pub use budget::{Allowance, Budget, Scope, Unit};
#[cfg(feature = "tower")]
pub use layer::{ClientLayer, ClientService, SendError};
pub use retry::{Attempt, Retry};
#[cfg(any(feature = "reqwest", feature = "tower"))]
pub use rules::{Call, Repeatable, Rules};
#[cfg(feature = "server")]
pub use server::{
    Check, CheckError, Client, Connect, Descriptors, DescriptorsError, Fallback, GrpcClient,
    LimitAnswer, Reserved, ServerError, Source, TokenError, UrlError, Verdict,
};
pub use throttle::{Lane, Pass, Throttle, Throttled};

/// The examples of the documentation, compiled.
#[cfg(all(doctest, feature = "reqwest", feature = "server", feature = "tower"))]
#[doc = include_str!("../../../docs/client.md")]
struct Documentation;
