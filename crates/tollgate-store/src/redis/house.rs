//! What all nodes share beside the states: who is there, and what secrets are hashed with.
//!
//! Every node says twice a second that it is there, and hears how many there are: by so many a limit
//! is divided while Redis does not answer. It also hears the key that secret values are hashed with.
//! The first node made it; should Redis lose it, every node offers the one that it knows.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use tokio::time::sleep;
use tollgate_core::{Key, Shown, Timestamp};

use super::bounds::{HEARTBEAT, HOUSE_KEPT, NODE_GONE};
use super::call::{Call, Failure, Reply};
use super::census::Census;
use super::overrides::OverridesVersion;
use super::refusals::Refusals;
use super::script::Script;
use super::store::Inner;
use super::words::Words;
use super::{checks, names};
use crate::clock;
use crate::concealer::Concealer;
use crate::memory::MemoryStore;

static HEARTBEAT_SCRIPT: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("heartbeat.lua")));

/// What this node knows of what all share.
pub(super) struct House {
    keys: [String; 4],
    /// This node's name.
    node: String,
    /// The key it offers if Redis has none: the one last heard of, or at first one of its own.
    offered: Mutex<String>,
    /// How many nodes the policy says there are.
    nodes_said: Option<u32>,
    census: Census,
    /// What secret values are hashed with; nobody knows before the first answer.
    concealer: RwLock<Option<Concealer>>,
    /// See [`RedisStore::overrides_version`](super::RedisStore::overrides_version).
    overrides_version: AtomicU64,
    /// How much later it is by the clock of Redis than by this node's, in microseconds.
    ahead_micros: AtomicI64,
    refusals: Refusals,
}

impl House {
    pub(super) fn new(prefix: &str, nodes_said: Option<u32>) -> Self {
        let random = || RandomState::new().hash_one(0u8);
        Self {
            keys: ["nodes", "secret", "overrides", "override-ends"]
                .map(|what| names::of_house(prefix, what)),
            node: format!("{:016x}", random()),
            offered: Mutex::new(format!("{:016x}{:016x}", random(), random())),
            nodes_said,
            census: Census::new(),
            concealer: RwLock::new(None),
            overrides_version: AtomicU64::new(0),
            ahead_micros: AtomicI64::new(0),
            refusals: Refusals::default(),
        }
    }

    /// Where the overrides are, and when they end.
    pub(super) fn overrides(&self) -> &[String] {
        &self.keys[2..]
    }

    pub(super) fn overrides_version(&self) -> OverridesVersion {
        OverridesVersion(self.overrides_version.load(Ordering::Relaxed))
    }

    /// What time it is by the clock of Redis, when it is `now` by this node's.
    pub(super) fn shared_time(&self, now: Timestamp) -> Timestamp {
        let ahead = self.ahead_micros.load(Ordering::Relaxed);
        Timestamp::from_micros(now.as_micros().saturating_add_signed(ahead))
    }

    /// By how many a limit is divided while Redis does not answer.
    pub(super) fn nodes(&self) -> u32 {
        self.nodes_said.unwrap_or_else(|| self.census.nodes()).max(1)
    }

    /// A key as it is shown, and named in Redis: the same on every node. Before the first answer of
    /// Redis a secret is hashed with a key of this node's own, and the text is no other node's: false.
    pub(super) fn write_key_text(
        &self,
        key: &Key<'_>,
        local: &MemoryStore,
        text: &mut String,
    ) -> bool {
        let shared = *self.concealer.read().unwrap_or_else(PoisonError::into_inner);
        let concealer = shared.as_ref().unwrap_or(local.secret.concealer());
        key.write_text(|value| concealer.conceal(value), text);
        shared.is_some() || key.values.iter().all(|value| value.shown != Shown::AsHash)
    }

    /// Tells that Redis refused something, once a minute for each kind of refusal. What means that
    /// Redis is away or unwell is told by who reaches it.
    pub(super) fn note(&self, failure: &Failure) {
        let Failure::Refused(error) = failure else { return };
        if self.refusals.is_news(error, clock::moment()) {
            tracing::warn!(%error, "Redis refuses; limits are settled by on_store_failure");
        }
    }

    fn call(&self, slot: u16) -> Call {
        let mut words = Words::with_capacity(256);
        words.push_number(self.keys.len() as u64);
        self.keys.iter().for_each(|key| words.push(key.as_bytes()));
        words.push(self.node.as_bytes());
        words.push(self.offered().as_bytes());
        words.push_number(NODE_GONE.as_millis() as u64);
        words.push_number(HOUSE_KEPT.as_millis() as u64);
        let is_heard = self.concealer.read().unwrap_or_else(PoisonError::into_inner).is_some();
        words.push_number(u64::from(is_heard));
        Call { script: Some(&HEARTBEAT_SCRIPT), words, slot, late: None }
    }

    fn offered(&self) -> MutexGuard<'_, String> {
        self.offered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hears what Redis told at some moment of this node's clock.
    fn hear(&self, reply: &Reply, heard_at: Timestamp) {
        let Reply::List(fields) = reply else { return };
        let [
            Reply::Integer(nodes),
            Reply::Bytes(secret),
            Reply::Bytes(version),
            Reply::Integer(micros),
        ] = &fields[..]
        else {
            return;
        };
        self.census.hear(u32::try_from(*nodes).unwrap_or(u32::MAX));
        let version = std::str::from_utf8(version).ok().and_then(|digits| digits.parse().ok());
        if let Some(version) = version {
            self.overrides_version.store(version, Ordering::Relaxed);
        }
        self.ahead_micros.store(micros - heard_at.as_micros() as i64, Ordering::Relaxed);
        if let Some(seed) = seed_of(secret) {
            *self.offered() = String::from_utf8_lossy(secret).into_owned();
            *self.concealer.write().unwrap_or_else(PoisonError::into_inner) =
                Some(Concealer::new(seed));
        }
    }
}

fn seed_of(text: &[u8]) -> Option<[u64; 2]> {
    let text = std::str::from_utf8(text).ok().filter(|text| text.len() == 32)?;
    let half = |digits: &str| u64::from_str_radix(digits, 16).ok();
    Some([half(&text[..16])?, half(&text[16..])?])
}

/// Says that this node is there, for as long as its store is. Something is sent to `told` when Redis
/// has answered, or cannot be reached.
pub(super) async fn keep(store: Weak<Inner>, told: SyncSender<()>) {
    let mut is_checked = false;
    loop {
        let Some(inner) = store.upgrade() else { return };
        let slot = inner.fleet.slot(inner.house.keys[0].as_bytes());
        let pending = inner.fleet.send(inner.house.call(slot));
        drop(inner);
        let answer = pending.await;
        let Some(inner) = store.upgrade() else { return };
        // Whoever refuses is there as well, and what it lacks is the more worth telling.
        let is_there = matches!(answer, Ok(_) | Err(Failure::Refused(_)));
        if is_there && !is_checked && !inner.is_virtual {
            inner.fleet.spawn(checks::run(Weak::clone(&store)));
        }
        is_checked |= is_there;
        let is_known = is_there || inner.fleet.health().iter().all(|server| !server.is_well);
        let pause = match answer {
            Ok(reply) => {
                inner.house.hear(&reply, inner.clock.now());
                HEARTBEAT
            }
            Err(failure) => {
                inner.house.note(&failure);
                HEARTBEAT / 5
            }
        };
        if is_known {
            // Most often nobody waits any more.
            let _ = told.try_send(());
        }
        drop(inner);
        sleep(pause).await;
    }
}

const _: () = assert!(HEARTBEAT.as_millis() < NODE_GONE.as_millis());
