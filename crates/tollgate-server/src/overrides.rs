//! Overrides of single keys, known to all nodes that share their states.
//!
//! In memory an override lives as long as the process. In Redis it is kept beside the states: a node
//! that changes one tells Redis first, and the others read them again when they hear of the change.
//! What Redis loses, the nodes that know it put there again.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tollgate::redis::{OverridesVersion, RedisStore, SharedOverride, SharedOverrides, Sharing};
use tollgate::{KeyBuf, KeyRefused, Override};

use crate::gate::Gate;

/// How often a change is looked for. Nodes hear of changes twice a second.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Why an override was not put.
pub(crate) enum NotPut {
    /// It means nothing, or there are too many.
    Refused(KeyRefused),
    /// The others cannot be told, and nodes would differ.
    NotShared(NotShared),
}

/// Why a change does not reach all nodes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotShared {
    /// Redis is away, or refuses.
    NotMade,
    /// Redis did not answer, and nobody can tell whether it was changed.
    Unknown,
}

/// Puts an override, here and for all nodes.
pub(crate) async fn put(gate: &Gate, one: Override) -> Result<(), NotPut> {
    gate.limiter.try_override(&one).map_err(NotPut::Refused)?;
    if let Some(redis) = gate.limiter.store().redis() {
        let (key, shared) = shared(&one);
        match redis.share_override(&key, Some(&shared)).await {
            Sharing::Changed | Sharing::Unchanged => {}
            Sharing::TooMany => return Err(NotPut::Refused(KeyRefused::TooMany)),
            Sharing::NotMade => return Err(NotPut::NotShared(NotShared::NotMade)),
            Sharing::Unknown => return Err(NotPut::NotShared(NotShared::Unknown)),
        }
    }
    gate.limiter.put_override(one).map_err(NotPut::Refused)
}

/// Removes one, here and for all nodes; false if there was none.
pub(crate) async fn remove(gate: &Gate, key: &KeyBuf) -> Result<bool, NotShared> {
    let mut was_there = false;
    if let Some(redis) = gate.limiter.store().redis() {
        was_there = match redis.share_override(&key.to_string(), None).await {
            Sharing::Changed => true,
            Sharing::Unchanged | Sharing::TooMany => false,
            Sharing::NotMade => return Err(NotShared::NotMade),
            Sharing::Unknown => return Err(NotShared::Unknown),
        };
    }
    Ok(gate.limiter.remove_override(key) | was_there)
}

/// Hears of the override of one key before the other nodes' changes are heard of, since somebody asks.
pub(crate) async fn hear_of(gate: &Gate, key: &KeyBuf) {
    let Some(redis) = gate.limiter.store().redis() else { return };
    // That there is none may mean that it was lost, and is known here to be put again.
    let Some(text) = redis.shared_override(&key.to_string()).await else { return };
    let one = Override::from_json(key.clone(), &text).ok();
    if let Some(one) = one.filter(|one| gate.limiter.override_of(key).as_ref() != Some(one)) {
        // One that means nothing to the policy in force is not shown either.
        let _ = gate.limiter.put_override(one);
    }
}

fn shared(one: &Override) -> (String, SharedOverride) {
    (one.key.to_string(), SharedOverride { text: one.to_string(), until: one.until })
}

/// Takes over what other nodes changed, for as long as the server runs.
pub(crate) async fn follow(gate: Arc<Gate>) {
    let Some(redis) = gate.limiter.store().redis() else { return };
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut known = OverridesVersion::default();
    let mut is_told = false;
    loop {
        looks.tick().await;
        // What was heard may be older than what is known. It tells only that there is something to read.
        if redis.overrides_version() == known {
            continue;
        }
        let caught_up = catch_up(&gate, redis, known).await;
        if caught_up.is_none() && !is_told {
            tracing::warn!("the overrides in Redis cannot be read yet; those known stay");
        }
        is_told = caught_up.is_none();
        known = caught_up.unwrap_or(known);
    }
}

/// Puts in force what is in Redis, after what it has lost of the `known` version is there again, and
/// tells which version that is; nothing if it does not answer, or if all of it is being changed.
async fn catch_up(
    gate: &Gate,
    redis: &RedisStore,
    known: OverridesVersion,
) -> Option<OverridesVersion> {
    let mut shared = redis.shared_overrides().await?;
    if !shared.hold(known) {
        restore(gate, redis, known, shared.version).await?;
        shared = redis.shared_overrides().await.filter(|shared| shared.hold(known))?;
    }
    let version = shared.version;
    if version != known {
        take_over(gate, shared);
    }
    Some(version)
}

/// Puts what this node knows where Redis has lost it; nothing if Redis does not answer, or if somebody
/// else changed what it has seen there.
async fn restore(
    gate: &Gate,
    redis: &RedisStore,
    known: OverridesVersion,
    seen: OverridesVersion,
) -> Option<()> {
    let list = gate.limiter.overrides().iter().map(shared).collect();
    let overrides = redis.restore_overrides(list, known, seen).await?;
    if overrides > 0 {
        tracing::warn!(overrides, "Redis lost overrides; those known here are put again");
    }
    Some(())
}

/// Puts in force what is in Redis.
fn take_over(gate: &Gate, shared: SharedOverrides) {
    let read = |(key, text): (String, String)| {
        let key: Option<KeyBuf> = key.parse().ok();
        let one = key.clone().and_then(|key| Override::from_json(key, &text).ok());
        if one.is_none() {
            let key = key.map(|key| gate.limiter.shown_key(&key));
            tracing::warn!(key, "an override in Redis cannot be read, and is left out");
        }
        one
    };
    let overrides: Vec<Override> = shared.list.into_iter().filter_map(read).collect();
    let count = overrides.len();
    match gate.limiter.replace_overrides(overrides) {
        Ok(()) => tracing::info!(overrides = count, "took over the overrides that nodes share"),
        Err(error) => tracing::error!(%error, "cannot take over the overrides in Redis"),
    }
}
