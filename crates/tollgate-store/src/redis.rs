//! States kept in Redis or Valkey: one server, a master under Sentinels, or a Cluster.

mod bounds;
mod breaker;
mod call;
mod client;
mod cluster;
mod fleet;
mod meaning;
mod node;
mod script;
mod sentinel;
mod slots;
mod words;

pub(crate) use call::{Call, Failure, Late, Pending, Reply};
pub(crate) use fleet::Fleet;
pub use fleet::{OpenError, Servers};
pub use node::Health;
pub(crate) use script::Script;
pub(crate) use words::Words;
