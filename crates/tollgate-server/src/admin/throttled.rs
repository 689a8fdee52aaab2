//! Keys under limits that callers of `CL.THROTTLE` bring along.
//!
//! The policy knows nothing of them, and a key does not tell with which limit it is asked about: told
//! is what each limit says of it that this server was asked for.

use serde_json::{Value, json};
use tollgate::{Asked, Enrolled, Key, KeyBuf, KeyRefused, Micros, Quota, Taken};

use super::live::millis;
use crate::gate::Gate;
use crate::resp::KEY_SPACE;

/// Whether a key is one of these.
pub(super) fn is_one(key: &KeyBuf) -> bool {
    key.limit() == KEY_SPACE
}

/// What is left to a key, as [`write_look`](tollgate::http::json::write_look) tells it of others; nothing
/// if the store does not answer.
pub(super) fn look(key: &KeyBuf, gate: &Gate) -> Result<Asked<Option<Value>>, KeyRefused> {
    check(key)?;
    let limits = gate.throttles.newest();
    if limits.is_empty() {
        let why = "callers of CL.THROTTLE bring their limit along, and nobody has asked this server for \
                   one since it started: what is left to the key is not known";
        return Err(KeyRefused::Unknown { why: why.to_owned() });
    }
    let asked = Key { limit: KEY_SPACE, values: &key.values() };
    let asked = gate.limiter.look_under(&asked, limits.iter().map(|(_, limit)| limit));
    let (key, recent) = (key.to_string(), gate.limiter.recent(key));
    Ok(asked.map(move |told| {
        let said = limits.iter().zip(told?);
        let said: Vec<Value> =
            said.filter_map(|(limit, taken)| in_figures(&key, limit, &taken)).collect();
        let recent = recent.iter().map(|one| {
            json!({
                "at_ms": millis(one.at),
                "allowed": one.is_allowed,
                "remaining": one.remaining,
            })
        });
        let recent: Vec<Value> = recent.collect();
        Some(json!({"key": key, "limits": said, "override": null, "recent": recent}))
    }))
}

/// What one limit says of a key.
fn in_figures(key: &str, (rate, limit): &(Quota, Enrolled), taken: &Taken) -> Option<Value> {
    let decision = taken.decision()?;
    Some(json!({
        "name": KEY_SPACE,
        "key": key,
        "allowed": decision.is_allowed(),
        "limit": decision.limit,
        "remaining": decision.remaining,
        "retry_after_ms": decision.retry_after().map(Micros::as_millis_up),
        "reset_after_ms": decision.reset_after.as_millis_up(),
        "next_after_ms": decision.next_after.map(Micros::as_millis_up),
        "algorithm": limit.limit().algorithm().name(),
        "rate": rate.to_string(),
        "shadow": false,
    }))
}

/// Forgets what a key has consumed, as [`Limiter::reset`](tollgate::Limiter::reset) does of others.
pub(super) fn reset(key: &KeyBuf, gate: &Gate) -> Result<Asked<Option<bool>>, KeyRefused> {
    check(key)?;
    Ok(gate.limiter.store().reset(&Key { limit: KEY_SPACE, values: &key.values() }))
}

/// Why none of them is allowed something else.
pub(super) fn no_override() -> KeyRefused {
    let why = "callers of CL.THROTTLE bring their limit along, and nothing is put in its place; write the \
               limit into the policy and ask with TG.CHECK, then its keys can be banned and overridden";
    KeyRefused::Change { why: why.to_owned() }
}

/// Whether somebody can be counted under a key.
fn check(key: &KeyBuf) -> Result<(), KeyRefused> {
    let why = match key.values()[..] {
        [value] if value == tollgate::Value::new(value.bytes.unwrap_or_default()) => return Ok(()),
        [value] if value.is_secret() => {
            "CL.THROTTLE counts by its key itself, and a hash of it, as operators are shown under \
             observe: {keys: hashed}, does not tell it; write the value in its place"
        }
        _ => "a key of CL.THROTTLE has one value, as in %28CL.THROTTLE%29:user123",
    };
    Err(KeyRefused::Unknown { why: why.to_owned() })
}
