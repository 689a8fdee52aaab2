//! The doors around one limiter.
//!
//! A door turns bytes from a socket into a request, asks the [`tollgate::Limiter`], and turns the
//! verdict into the answer its protocol has for it. A [`Server`] opens the doors that a policy
//! names, loads the policy anew when its files change, and ends without losing a request.
//!
//! ```no_run
//! use tollgate_server::{Server, Source};
//!
//! let server = Server::bind(Source::File("policy.yaml".into()))?;
//! for (door, address) in server.addresses() {
//!     println!("{door} at {address}");
//! }
//! server.run()?; // until SIGTERM
//! # Ok::<(), tollgate_server::StartError>(())
//! ```

mod admin;
mod attributes;
mod audit;
mod bounds;
mod connection;
mod delivery;
mod door;
mod envoy_json;
mod files;
mod gate;
mod gateway;
mod grpc;
mod history;
mod http;
mod http1;
mod impatient;
mod leases;
mod metrics;
mod moment;
mod otlp;
mod overrides;
pub mod policy_file;
mod prefixed;
mod protobuf;
#[cfg(test)]
mod random;
mod reload;
mod reservations;
mod resp;
mod seldom;
mod server;
mod stage;
mod tickets;
mod tls;
mod token;
mod watched;
mod workers;

pub use door::Door;
#[doc(hidden)]
pub use http::{ReadAs, read_checks};
#[doc(hidden)]
pub use resp::conversation;
pub use server::{QUICKSTART, Server, Source, StartError};
