//! A store in Redis or Valkey, as a policy names it.

use std::time::Duration;

use tollgate_policy::RedisServers;

pub use tollgate_store::redis::{
    Health, OVERRIDES_MAX, OpenError, OverridesVersion, RedisSettings, RedisStore, Servers,
    SharedOverride, SharedOverrides, Sharing,
};

const _: () = assert!(OVERRIDES_MAX == crate::bounds::KEY_OVERRIDES_MAX);

/// What [`RedisStore::open`] takes: the policy's `store`, and its `nodes`.
pub fn settings(store: &tollgate_policy::RedisStore, nodes: Option<u32>) -> RedisSettings {
    let servers = match &store.servers {
        RedisServers::Single(url) => Servers::Single(url.clone()),
        RedisServers::Cluster(urls) => Servers::Cluster(urls.clone()),
        RedisServers::Sentinel { master, nodes } => {
            Servers::Sentinel { master: master.clone(), nodes: nodes.clone() }
        }
    };
    RedisSettings {
        servers,
        timeout: Duration::from_micros(store.timeout.as_micros()),
        prefix: store.prefix.clone(),
        nodes,
    }
}
