//! What all nodes share beside the states: who is there, and what secrets are hashed with.
//!
//! Every node says twice a second that it is there, and hears how many there are: by so many a limit
//! is divided while Redis does not answer. It also hears the key that secret values are hashed with.
//! The first node made it; should Redis lose it, every node offers the one that it knows, and of two the
//! older one is taken over by all.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use tokio::time::sleep;
use tollgate_core::{Key, Shown, Timestamp};

use super::bounds::{HEARTBEAT, HOUSE_KEPT, NODE_GONE, SECRET_WAITS};
use super::call::{Call, Failure, Reply};
use super::census::Census;
use super::overrides::OverridesVersion;
use super::panics::has_panicked;
use super::script::Script;
use super::store::{Inner, SETTLED};
use super::words::Words;
use super::{checks, names};
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
    /// How often nobody told the key, one time after the other.
    untold: AtomicU32,
    /// Whether it was told that something else is in the key's place.
    is_none_told: AtomicBool,
    /// How many nodes the policy says there are.
    nodes_said: Option<u32>,
    census: Census,
    /// What secret values are hashed with; nobody knows before the first answer.
    concealer: RwLock<Option<Concealer>>,
    /// See [`RedisStore::overrides_version`](super::RedisStore::overrides_version).
    overrides_version: AtomicU64,
    /// How much later it is by the clock of Redis than by this node's, in microseconds.
    ahead_micros: AtomicI64,
}

impl House {
    pub(super) fn new(prefix: &str, nodes_said: Option<u32>) -> Self {
        let random = || RandomState::new().hash_one(0u8);
        Self {
            keys: ["nodes", "secret", "overrides", "override-ends"]
                .map(|what| names::of_house(prefix, what)),
            node: format!("{:016x}", random()),
            offered: Mutex::new(format!("{:016x}{:016x}", random(), random())),
            untold: AtomicU32::new(0),
            is_none_told: AtomicBool::new(false),
            nodes_said,
            census: Census::new(),
            concealer: RwLock::new(None),
            overrides_version: AtomicU64::new(0),
            ahead_micros: AtomicI64::new(0),
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

    fn call(&self, slot: u16) -> Call {
        let mut words = Words::with_capacity(256);
        words.push_number(self.keys.len() as u64);
        self.keys.iter().for_each(|key| words.push(key.as_bytes()));
        words.push(self.node.as_bytes());
        words.push(self.offered().as_bytes());
        words.push_number(NODE_GONE.as_millis() as u64);
        words.push_number(HOUSE_KEPT.as_millis() as u64);
        let is_heard = self.concealer.read().unwrap_or_else(PoisonError::into_inner).is_some();
        let has_waited = self.untold.load(Ordering::Relaxed) >= SECRET_WAITS;
        let whose: &str = match (is_heard, has_waited) {
            (true, _) => "known",
            (false, true) => "waited",
            (false, false) => "own",
        };
        words.push(whose.as_bytes());
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
            Reply::Integer(is_none),
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
        self.hear_secret(secret);
        let is_news = *is_none == 1 && !self.is_none_told.load(Ordering::Relaxed);
        self.is_none_told.store(*is_none == 1, Ordering::Relaxed);
        if is_news {
            tracing::warn!(
                "what Redis had in the place of the key that secret values are hashed with was none; \
                 it is put anew"
            );
        }
    }

    /// Takes the key over that secret values are hashed with.
    fn hear_secret(&self, secret: &[u8]) {
        let Some(seed) = seed_of(secret) else {
            self.untold.fetch_add(1, Ordering::Relaxed);
            return;
        };
        self.untold.store(0, Ordering::Relaxed);
        let text = String::from_utf8_lossy(secret).into_owned();
        let before = std::mem::replace(&mut *self.offered(), text.clone());
        let mut concealer = self.concealer.write().unwrap_or_else(PoisonError::into_inner);
        if concealer.is_some() && before != text {
            tracing::warn!(
                "secret values are hashed with another key from now on; what their keys consumed and \
                 were allowed by overrides under the last one no longer counts"
            );
        }
        *concealer = Some(Concealer::new(seed));
    }
}

/// What the key is; nothing if it is none. It begins with its digits, and may end with when it was made.
fn seed_of(text: &[u8]) -> Option<[u64; 2]> {
    let (digits, _) = text.split_first_chunk::<32>()?;
    let half = |digits: &[u8]| {
        let digit = |number: u64, digit: &u8| {
            char::from(*digit).to_digit(16).map(|digit| number << 4 | u64::from(digit))
        };
        digits.iter().try_fold(0, digit)
    };
    Some([half(&digits[..16])?, half(&digits[16..])?])
}

/// Says that this node is there, for as long as its store is. Something is sent to `told` when Redis
/// has answered, or cannot be reached.
pub(super) async fn keep(store: Weak<Inner>, told: SyncSender<()>) {
    let mut is_checked = false;
    // What panics is a mistake of ours, and no reason to be counted as gone and to hear of nothing.
    while has_panicked(beat(&store, &told, &mut is_checked)).await {
        tracing::error!("the task that tells Redis of this node panicked; it goes on");
        sleep(HEARTBEAT).await;
    }
}

async fn beat(store: &Weak<Inner>, told: &SyncSender<()>, is_checked: &mut bool) {
    loop {
        let Some(inner) = store.upgrade() else { return };
        let slot = inner.fleet.slot(inner.house.keys[0].as_bytes());
        let pending = inner.fleet.send(inner.house.call(slot));
        drop(inner);
        let answer = pending.await;
        let Some(inner) = store.upgrade() else { return };
        // Whoever refuses is there as well, and what it lacks is the more worth telling.
        let is_there = matches!(answer, Ok(_) | Err(Failure::Refused(_)));
        if is_there && !*is_checked && !inner.is_virtual {
            inner.fleet.spawn(checks::run(Weak::clone(store)));
        }
        *is_checked |= is_there;
        let is_known = is_there || inner.fleet.health().iter().all(|server| !server.is_well);
        let pause = match answer {
            Ok(reply) => {
                inner.house.hear(&reply, inner.clock.now());
                HEARTBEAT
            }
            Err(failure) => {
                // Nobody's request hangs on it, so what will be otherwise next time is not worth a word.
                if is_there {
                    inner.fleet.tell(slot, &failure, SETTLED);
                }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_by_its_digits_and_whatever_else_is_none() {
        let digits = "00000000000000010123456789abcdef";
        let seed = Some([1, 0x0123_4567_89ab_cdef]);
        assert_eq!(seed_of(digits.as_bytes()), seed);
        assert_eq!(seed_of(format!("{digits}:1700000000000").as_bytes()), seed);
        let across = format!("{}é{}", "a".repeat(15), "a".repeat(15));
        let signed = format!("+{}", "a".repeat(31));
        for none in ["", "a", across.as_str(), signed.as_str()] {
            assert_eq!(seed_of(none.as_bytes()), None, "{none}");
        }
        assert_eq!(seed_of(&[0xff; 32]), None);
    }
}
