//! Where stores are, one after the other: in memory, and in the servers that a test starts.

#[cfg(feature = "redis")]
use std::sync::atomic::{AtomicU32, Ordering};
#[cfg(feature = "redis")]
use std::time::Duration;

#[cfg(feature = "redis")]
use tollgate_store::Clock;
use tollgate_store::Store;
#[cfg(feature = "redis")]
use tollgate_store::redis::{RedisSettings, RedisStore, Servers};

use crate::support::Subject;

/// Places for stores. The first is memory; the servers of the others end with this.
pub(crate) struct Places {
    #[cfg(feature = "redis")]
    servers: Vec<tollgate_harness::Server>,
}

impl Places {
    /// Memory, and a Redis and a Valkey.
    pub(crate) fn start() -> Self {
        Self {
            #[cfg(feature = "redis")]
            servers: tollgate_harness::Flavour::ALL.map(tollgate_harness::Server::start).into(),
        }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn count(&self) -> usize {
        1 + self.servers.len()
    }

    #[cfg(not(feature = "redis"))]
    pub(crate) fn count(&self) -> usize {
        1
    }

    /// A store of its own at one of the places.
    pub(crate) fn subject(&self, place: usize) -> Subject<Store> {
        match place.checked_sub(1) {
            None => Subject::in_memory().into(),
            #[cfg(feature = "redis")]
            Some(server) => subject_at(Servers::Single(self.servers[server].url())),
            #[cfg(not(feature = "redis"))]
            Some(_) => unreachable!("there is one place"),
        }
    }
}

/// An empty store in Redis that goes by a clock of the test's own.
#[cfg(feature = "redis")]
pub(crate) fn subject_at(servers: Servers) -> Subject<Store> {
    let clock = Clock::manual(crate::support::START);
    let store = RedisStore::open_at(settings(servers), clock.clone()).expect("URLs of the harness");
    Subject { store: store.into(), clock }
}

/// Settings with a prefix that nobody else has, for checks that are patient.
#[cfg(feature = "redis")]
pub(crate) fn settings(servers: Servers) -> RedisSettings {
    static STORES: AtomicU32 = AtomicU32::new(0);
    let prefix = format!("test-{}", STORES.fetch_add(1, Ordering::Relaxed));
    RedisSettings { servers, timeout: Duration::from_secs(5), prefix, nodes: None }
}
