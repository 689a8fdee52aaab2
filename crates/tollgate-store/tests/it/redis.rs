//! The store in Redis and Valkey as it is in production: on the machine's clock, with its denial
//! cache, and with servers that fail.

mod denials;
mod faults;
mod gone;
mod keys;
mod leased;
mod load;
mod nodes;
mod overrides;
mod race;
mod secrets;
mod settle;
mod skew;
mod worker;

use tollgate_core::{Algorithm, Limit, Micros};
use tollgate_harness::{Flavour, Server};
use tollgate_store::redis::{RedisSettings, RedisStore, Servers};
use tollgate_store::{Clock, Store};

use crate::places::settings;
use crate::support::{Subject, limit_over};

/// Long beside any test, so that time gives nothing back.
const YEAR: Micros = Micros::from_secs(365 * 86_400);

/// A limit that time gives nothing back of during a test.
fn lasting(algorithm: Algorithm, count: u32) -> Limit {
    limit_over(algorithm, count, YEAR)
}

/// A store with the machine's clock.
fn open(settings: RedisSettings) -> Subject<Store> {
    let store = RedisStore::open(settings).expect("URLs of the harness");
    Subject { store: store.into(), clock: Clock::system() }
}

/// A store at one server, with a prefix of its own.
fn open_at(server: &Server) -> Subject<Store> {
    open(settings(Servers::Single(server.url())))
}

/// One of each server.
fn every_server() -> impl Iterator<Item = Server> {
    Flavour::ALL.into_iter().map(Server::start)
}

/// Several nodes that share their states.
fn open_all<const NODES: usize>(server: &Server) -> [Subject<Store>; NODES] {
    let settings = settings(Servers::Single(server.url()));
    std::array::from_fn(|_| open(settings.clone()))
}

impl Subject<Store> {
    fn redis(&self) -> &RedisStore {
        match &self.store {
            Store::Redis(store) => store,
            Store::Memory(_) => unreachable!("these tests are about Redis"),
        }
    }
}

/// How long something takes.
fn time(work: impl FnOnce()) -> Micros {
    let clock = Clock::system();
    let before = clock.now();
    work();
    clock.now().since(before)
}
