//! All the servers there are, and the thread that talks to them.
//!
//! One thread does all input and output, whatever runs the callers: they hand a call over and await a
//! future that needs no runtime. Each server has a task on that thread; which server has a key is
//! looked up by the caller, and so is whether that server is any use, so that an outage costs a check
//! no more than a glance.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::warn;

use super::bounds::{PATIENCE, PATIENCE_CALLS, REFRESH_PAUSE, SENTINEL_PAUSE};
use super::call::{Call, Failure, Pending};
use super::client::Address;
use super::cluster::{self, Map};
use super::meaning::Place;
use super::node::{Health, Node, Status, Way};
use super::sentinel::Sentinels;
use super::slots;
use super::troubles::Troubles;
use super::words::Words;
use crate::clock;
use crate::memory::Unreservable;

/// Where Redis is. URLs are `redis://`, `rediss://`, `redis+unix://` or `unix://`, with user,
/// password and database.
#[derive(Clone, PartialEq, Eq)]
pub enum Servers {
    /// One server.
    Single(String),
    /// The master that Sentinels watch over.
    Sentinel {
        /// The name they know it by.
        master: String,
        /// The Sentinels. User, password and database are the master's, and tried on Sentinels too.
        nodes: Vec<String>,
    },
    /// Servers of a Cluster, by which the others are found. User and password are the same for all.
    Cluster(Vec<String>),
}

/// Where Redis is was not told well, or the system is out of threads.
#[derive(Debug)]
pub enum OpenError {
    /// A URL is none of Redis.
    Url {
        /// The place of the URL among those given.
        index: usize,
        /// What is wrong with it. The URL itself may hold a password and is not told.
        why: String,
    },
    /// No URL was given.
    NoServers,
    /// Braces in a prefix would decide where keys lie on a Cluster, in place of our own.
    Prefix {
        /// The prefix.
        prefix: String,
    },
    /// There is no starting a thread.
    Thread(std::io::Error),
    /// There is no memory to count in while Redis is away.
    Memory(Unreservable),
}

/// The servers, single, under Sentinels, or a Cluster.
pub(crate) struct Fleet {
    shared: Arc<Shared>,
    /// The thread ends when this goes.
    _stop: oneshot::Sender<()>,
}

impl Fleet {
    /// Starts the thread. A server that is not there is looked for in the background; keys of ours
    /// begin with `prefix`.
    pub(crate) fn open(
        servers: &Servers,
        timeout: Duration,
        prefix: &str,
    ) -> Result<Self, OpenError> {
        let seeds = servers.addresses()?;
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(1)
            .build()
            .map_err(OpenError::Thread)?;
        let shared = Shared::start(servers, &seeds, timeout, prefix, runtime.handle().clone());
        let (stop, stopped) = oneshot::channel::<()>();
        std::thread::Builder::new()
            .name("tollgate-redis".to_owned())
            .spawn(move || {
                // Nothing is ever sent: the other end goes.
                let _ = runtime.block_on(stopped);
                runtime.shutdown_background();
            })
            .map_err(OpenError::Thread)?;
        Ok(Self { shared, _stop: stop })
    }

    /// Hands a call over.
    pub(crate) fn send(&self, call: Call) -> Pending {
        self.send_by(call, self.deadline())
    }

    /// When a call that is made now must be answered.
    pub(crate) fn deadline(&self) -> Instant {
        clock::moment() + self.shared.timeout
    }

    /// Hands a call over that must be answered by a deadline: that of the first one, if a request
    /// takes several calls after each other.
    pub(crate) fn send_by(&self, call: Call, deadline: Instant) -> Pending {
        match self.shared.map.load().route(call.slot) {
            Some(node) => node.send(call, deadline),
            None => Pending::NOT_SENT,
        }
    }

    /// The slot of a key, on a Cluster or not.
    pub(crate) fn slot(&self, key: &[u8]) -> u16 {
        slots::slot(key)
    }

    /// Whether keys of different slots may be on different servers.
    pub(crate) fn is_cluster(&self) -> bool {
        self.shared.is_cluster()
    }

    /// For each server that has slots, a hash tag whose keys are there.
    pub(crate) fn tags(&self) -> Vec<String> {
        if !self.is_cluster() {
            return vec!["%".to_owned()];
        }
        let map = self.shared.map.load();
        let mut found: Vec<(&Arc<Node>, String)> = Vec::new();
        // More numbers than there are slots, so that a server with a part of them is met.
        for tag in (0..u16::MAX).map(|number| number.to_string()) {
            if let Some(node) = map.route(slots::slot(tag.as_bytes()))
                && !found.iter().any(|(known, _)| Arc::ptr_eq(known, node))
            {
                found.push((node, tag));
            }
        }
        found.into_iter().map(|(_, tag)| tag).collect()
    }

    /// Where the server of a slot is, or was when it was last reached.
    pub(crate) fn address(&self, slot: u16) -> String {
        let map = self.shared.map.load();
        map.route(slot).map_or_else(String::new, |node| node.status().address())
    }

    /// Tells that the server of a slot failed a call and what is done about it, once a minute for each kind
    /// of failure and each thing that is done.
    pub(crate) fn tell(&self, slot: u16, failure: &Failure, done: &str) {
        let map = self.shared.map.load();
        let Some(node) = map.route(slot) else { return };
        // That it is left alone is told by who does that.
        if *failure == Failure::NotSent && node.status().is_open() {
            return;
        }
        let server = node.status().address();
        if !self.shared.troubles.is_news(&server, failure.kind(), done, clock::moment()) {
            return;
        }
        match failure {
            Failure::Refused(error) => warn!(server, error, done, "Redis refuses a call"),
            _ => warn!(server, error = %failure, done, "Redis does not answer a call"),
        }
    }

    /// Tells that something held at the server of a slot will not be released, once a minute for each reason.
    pub(crate) fn tell_unreleased(&self, slot: u16, why: &str) {
        let server = self.address(slot);
        if self.shared.troubles.is_news(&server, "unreleased", why, clock::moment()) {
            warn!(
                server,
                why, "a release is given up; what it holds comes back when its lease ends"
            );
        }
    }

    /// Every server in figures.
    pub(crate) fn health(&self) -> Vec<Health> {
        self.shared.map.load().nodes().map(|(_, node)| node.status().health()).collect()
    }

    /// Runs something on the I/O thread; it must not hold the fleet, or that never ends.
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.shared.runtime.spawn(future);
    }
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet").field("servers", &self.health()).finish_non_exhaustive()
    }
}

/// What the tasks of the fleet share.
pub(super) struct Shared {
    runtime: Handle,
    timeout: Duration,
    prefix: String,
    /// By which a Cluster is found; empty if this is none.
    seeds: Vec<Address>,
    /// Replaced by tasks of the I/O thread only.
    map: ArcSwap<Map>,
    /// Wakes the task that asks where the slots are.
    outdated: Notify,
    turn: AtomicUsize,
    troubles: Troubles,
}

impl Shared {
    fn start(
        servers: &Servers,
        seeds: &[Address],
        timeout: Duration,
        prefix: &str,
        runtime: Handle,
    ) -> Arc<Self> {
        let is_cluster = matches!(servers, Servers::Cluster(_));
        let shared = Arc::new(Self {
            runtime,
            timeout,
            prefix: prefix.to_owned(),
            seeds: if is_cluster { seeds.to_vec() } else { Vec::new() },
            map: ArcSwap::from_pointee(Map::default()),
            outdated: Notify::new(),
            turn: AtomicUsize::new(0),
            troubles: Troubles::default(),
        });
        let node = |way| Node::start(way, &shared);
        let seed = seeds[0].clone();
        let map = match servers {
            Servers::Single(_) => Map::of_one(seed.clone(), node(Way::Fixed(seed))),
            Servers::Sentinel { master, .. } => {
                let sentinels = Sentinels { master: master.clone(), nodes: seeds.to_vec() };
                let sentinels = Arc::new(sentinels);
                let node = node(Way::Master(Arc::clone(&sentinels)));
                shared.runtime.spawn(Arc::clone(&shared).watch_master(sentinels));
                Map::of_one(seed, node)
            }
            Servers::Cluster(_) => {
                shared.outdated.notify_one();
                shared.runtime.spawn(Arc::clone(&shared).keep_map());
                let seeds = seeds.iter().cloned();
                Map::of_seeds(seeds.map(|seed| (seed.clone(), node(Way::Fixed(seed)))).collect())
            }
        };
        shared.map.store(Arc::new(map));
        shared
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// How long a dial or a probe may take.
    pub(super) fn patience(&self) -> Duration {
        PATIENCE.max(self.timeout * PATIENCE_CALLS)
    }

    pub(super) fn is_cluster(&self) -> bool {
        !self.seeds.is_empty()
    }

    /// Whether it is to be told that a server is unwell, and has been for a minute or more.
    pub(super) fn is_news(&self, status: &Status) -> bool {
        self.troubles.is_news(&status.address(), "unwell", "", clock::moment())
    }

    /// A server became unwell: its slots may have gone elsewhere.
    pub(super) fn unwell(&self) {
        self.outdated.notify_one();
    }

    /// A command that tells whether a server is well: a write, since a server that is out of memory
    /// or read-only still reads. A server that has no slots has nothing that could be written.
    pub(super) fn probe(&self, status: &Arc<Status>) -> Words {
        let map = self.map.load();
        let is_here = |tag: &u32| {
            let slot = slots::slot(tag.to_string().as_bytes());
            map.route(slot).is_some_and(|node| Arc::ptr_eq(node.status(), status))
        };
        let has_slots = !self.is_cluster() || map.has_slots(status);
        match (0..=u32::MAX).find(|tag| !has_slots || is_here(tag)) {
            Some(tag) if has_slots => {
                let key = format!("{}:{{{tag}}}:%probe", self.prefix);
                ["SET", &key, "1", "PX", "1000"].iter().collect()
            }
            _ => ["PING"].iter().collect(),
        }
    }

    /// Takes note of where a slot is, and gives the server there.
    pub(super) fn moved(self: &Arc<Self>, place: &Place<'_>, said_by: &Way) -> Option<Arc<Node>> {
        self.outdated.notify_one();
        let map = self.map.load_full();
        let address = said_by.neighbour(place)?;
        let node = map.find(&address).unwrap_or_else(|| self.start_node(&address));
        if !map.route(place.slot).is_some_and(|known| Arc::ptr_eq(known, &node)) {
            self.map.store(Arc::new(map.with_moved(place.slot, &address, Arc::clone(&node))));
        }
        Some(node)
    }

    /// The server at a place, known or not.
    pub(super) fn node_at(self: &Arc<Self>, place: &Place<'_>, said_by: &Way) -> Option<Arc<Node>> {
        let map = self.map.load_full();
        let address = said_by.neighbour(place)?;
        Some(map.find(&address).unwrap_or_else(|| {
            let node = self.start_node(&address);
            self.map.store(Arc::new(map.with_node(&address, Arc::clone(&node))));
            node
        }))
    }

    fn start_node(self: &Arc<Self>, address: &Address) -> Arc<Node> {
        Node::start(Way::Fixed(address.clone()), self)
    }

    /// Asks where the slots are whenever there is a reason to, and goes on while a server is unwell.
    async fn keep_map(self: Arc<Self>) {
        let mut is_known = true;
        loop {
            let is_unwell = self.map.load().nodes().any(|(_, node)| node.status().is_open());
            if !is_unwell && is_known {
                self.outdated.notified().await;
            }
            let asked = cluster::ask_for_ranges(self.servers_to_ask());
            let told = timeout(self.patience(), asked).await;
            match told.unwrap_or_else(|_| Err("nobody answers".to_owned())) {
                Ok(ranges) => {
                    let map = self.map.load().of_ranges(&ranges, |at| self.start_node(at));
                    self.map.store(Arc::new(map));
                    is_known = true;
                }
                Err(why) => {
                    if is_known {
                        warn!(why, "nobody of the redis cluster tells where its slots are");
                    }
                    is_known = false;
                }
            }
            sleep_until(clock::moment() + REFRESH_PAUSE).await;
        }
    }

    /// Those we know and that are well, each time another one first, and then the seeds.
    fn servers_to_ask(&self) -> Vec<Address> {
        let map = self.map.load();
        let well = map.nodes().filter(|(_, node)| !node.status().is_open());
        let mut servers: Vec<Address> = well.map(|(address, _)| address.clone()).collect();
        if !servers.is_empty() {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % servers.len();
            servers.rotate_left(turn);
        }
        servers.extend(self.seeds.iter().cloned());
        servers
    }

    /// Asks now and then whether the master is still the master. One that was cut off from its
    /// Sentinels answers us as before, and what it counts is lost.
    async fn watch_master(self: Arc<Self>, sentinels: Arc<Sentinels>) {
        for turn in 0.. {
            sleep_until(clock::moment() + SENTINEL_PAUSE).await;
            let map = self.map.load_full();
            let Some(node) = map.route(0) else { continue };
            let master = node.status().address();
            let patience = self.patience();
            let asked = sentinels.is_elsewhere(&master, turn, patience);
            let moved = timeout(patience, asked).await;
            // One that is unwell is looked for anyway.
            if moved == Ok(true) && !node.status().is_open() {
                node.status().suspect();
            }
        }
    }
}

impl Servers {
    fn urls(&self) -> &[String] {
        match self {
            Self::Single(url) => std::slice::from_ref(url),
            Self::Sentinel { nodes, .. } | Self::Cluster(nodes) => nodes,
        }
    }

    fn addresses(&self) -> Result<Vec<Address>, OpenError> {
        let needs_host = !matches!(self, Self::Single(_));
        let is_cluster = matches!(self, Self::Cluster(_));
        let address = |(index, url): (usize, &String)| {
            let address = Address::parse(url).and_then(|address| match address.host() {
                None if needs_host => Err("a socket is not reached from other hosts".to_owned()),
                _ if is_cluster && address.database() != 0 => {
                    Err("a cluster has no database but 0".to_owned())
                }
                _ => Ok(address),
            });
            address.map_err(|why| OpenError::Url { index, why })
        };
        let addresses: Vec<_> =
            self.urls().iter().enumerate().map(address).collect::<Result<_, _>>()?;
        if addresses.is_empty() { Err(OpenError::NoServers) } else { Ok(addresses) }
    }
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown =
            |url: &String| Address::parse(url).map_or("?".to_owned(), |url| url.to_string());
        let urls: Vec<String> = self.urls().iter().map(shown).collect();
        match self {
            Self::Single(_) => f.debug_tuple("Single").field(&urls[0]).finish(),
            Self::Sentinel { master, .. } => {
                f.debug_struct("Sentinel").field("master", master).field("nodes", &urls).finish()
            }
            Self::Cluster(_) => f.debug_tuple("Cluster").field(&urls).finish(),
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url { index, why } => {
                write!(
                    f,
                    "URL {} of Redis: {why}; write for example redis://127.0.0.1:6379",
                    index + 1
                )
            }
            Self::NoServers => f.write_str("no URL of Redis is given"),
            Self::Prefix { prefix } => {
                write!(f, "prefix {prefix:?} has braces; write for example tollgate")
            }
            Self::Thread(_) => f.write_str("the thread that talks to Redis does not start"),
            Self::Memory(error) => error.fmt(f),
        }
    }
}

impl Error for OpenError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Thread(error) => Some(error),
            Self::Memory(error) => error.source(),
            Self::Url { .. } | Self::NoServers | Self::Prefix { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod told;
