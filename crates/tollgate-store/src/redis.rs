//! States kept in Redis or Valkey: one server, a master under Sentinels, or a Cluster.

mod bounds;
mod breaker;
mod call;
mod census;
mod checks;
mod client;
mod cluster;
mod denials;
mod fleet;
mod house;
mod leased;
mod meaning;
mod names;
mod node;
mod overrides;
mod panics;
mod script;
mod sentinel;
mod shares;
mod slots;
mod store;
mod troubles;
mod words;

pub use bounds::OVERRIDES_MAX;
pub use fleet::{OpenError, Servers};
pub use node::Health;
pub use overrides::{OverridesVersion, SharedOverride, SharedOverrides, Sharing};
pub(crate) use store::Items;
pub use store::{RedisSettings, RedisStore};
