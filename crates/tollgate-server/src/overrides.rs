//! Overrides of single keys, known to all nodes that share their states.
//!
//! In memory an override lives as long as the process. In Redis it is kept beside the states: a node
//! that changes one tells Redis first, and the others read them again when they hear of the change.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tollgate::{KeyBuf, KeyRefused, Override};

use crate::gate::Gate;

/// How often a change is looked for. Nodes hear of changes twice a second.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Why an override was not put.
pub(crate) enum NotPut {
    /// It means nothing.
    Refused(KeyRefused),
    /// Redis does not answer, and nodes would differ.
    NoAnswer,
}

/// Puts an override, here and for all nodes.
pub(crate) async fn put(gate: &Gate, one: Override) -> Result<(), NotPut> {
    gate.limiter.try_override(&one).map_err(NotPut::Refused)?;
    if let Some(redis) = gate.limiter.store().redis() {
        let (key, text) = (one.key.to_string(), one.to_string());
        redis.share_override(&key, Some(&text)).await.ok_or(NotPut::NoAnswer)?;
    }
    gate.limiter.put_override(one).map_err(NotPut::Refused)
}

/// Removes one, here and for all nodes; false if there was none, nothing if Redis does not answer.
pub(crate) async fn remove(gate: &Gate, key: &KeyBuf) -> Option<bool> {
    let mut was_there = false;
    if let Some(redis) = gate.limiter.store().redis() {
        was_there = redis.share_override(&key.to_string(), None).await?;
    }
    Some(gate.limiter.remove_override(key) | was_there)
}

/// Takes over what other nodes changed, for as long as the server runs.
pub(crate) async fn follow(gate: Arc<Gate>) {
    let Some(redis) = gate.limiter.store().redis() else { return };
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut known = 0;
    loop {
        looks.tick().await;
        let version = redis.overrides_version();
        if version == known {
            continue;
        }
        let Some(texts) = redis.shared_overrides().await else { continue };
        known = version;
        let read = |(key, text): (String, String)| {
            let one = key.parse().ok().and_then(|key| Override::from_json(key, &text).ok());
            if one.is_none() {
                tracing::warn!(%key, "an override in Redis cannot be read, and is left out");
            }
            one
        };
        let overrides: Vec<Override> = texts.into_iter().filter_map(read).collect();
        let count = overrides.len();
        match gate.limiter.replace_overrides(overrides) {
            Ok(()) => tracing::info!(overrides = count, "took over the overrides that nodes share"),
            Err(error) => tracing::error!(%error, "cannot take over the overrides in Redis"),
        }
    }
}
