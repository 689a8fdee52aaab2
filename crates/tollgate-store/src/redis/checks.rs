//! What Redis must allow and keep, looked at once it is there.
//!
//! A user without the right to a command, or a server that forgets keys when its memory is full, would
//! be found out by the first customer. So it is told at the start, in the words of the documentation.

use std::sync::Weak;

use tollgate_core::lua;
use tollgate_core::{Align, ChargeId, Cost, Limit, Micros, Quota};
use tracing::warn;

use super::call::{Call, Failure, Reply};
use super::names;
use super::store::{Inner, TAKE};
use super::words::Words;

/// Warns of what is not as it should be. Runs when Redis has answered for the first time.
pub(super) async fn run(store: Weak<Inner>) {
    let Some(inner) = store.upgrade() else { return };
    let name = names::of_house(&inner.prefix, "check");
    let slot = inner.fleet.slot(name.as_bytes());
    let ask =
        |words: &[&str]| Call { script: None, words: words.iter().collect(), slot, late: None };
    let settings = ["maxmemory", "maxmemory-policy"]
        .map(|what| inner.fleet.send(ask(&["CONFIG", "GET", what])));
    let takes = limits().map(|limit| inner.fleet.send(take(&name, slot, &limit)));
    let removed = inner.fleet.send(ask(&["UNLINK", &name]));
    drop(inner);
    let mut refusals = Vec::new();
    for pending in takes.into_iter().chain([removed]) {
        if let Err(Failure::Refused(error)) = pending.await {
            refusals.push(error);
        }
    }
    refusals.dedup();
    for error in &refusals {
        warn!(%error, "Redis refuses what tollgate needs; docs/redis.md lists the access rules");
    }
    let [maxmemory, policy] = settings;
    // A server that does not tell its settings, as those of some providers, is not asked for more.
    let (Ok(maxmemory), Ok(policy)) = (maxmemory.await, policy.await) else { return };
    if let Some(policy) = forgets(&maxmemory, &policy) {
        warn!(
            %policy,
            "Redis forgets keys when its memory is full, and with them what was consumed; set \
             maxmemory-policy to noeviction"
        );
    }
}

/// The policy by which Redis forgets keys that are in use, if it does.
fn forgets(maxmemory: &Reply, policy: &Reply) -> Option<String> {
    let is_bounded = value(maxmemory)? != "0";
    value(policy).filter(|policy| is_bounded && policy != "noeviction")
}

fn value(setting: &Reply) -> Option<String> {
    match setting {
        Reply::List(fields) => match &fields[..] {
            [_, Reply::Bytes(value)] => String::from_utf8(value.clone()).ok(),
            _ => None,
        },
        _ => None,
    }
}

/// One of each kind of state, so that every command is tried that the scripts use to charge.
fn limits() -> [Limit; 3] {
    let quota = Quota::per_minute(1);
    let slots = Limit::concurrency(1, Micros::from_secs(1));
    [
        Limit::fixed_window(quota, Align::Clock),
        Limit::sliding_log(quota).expect("one entry is not too many"),
        slots.expect("a slot for a second"),
    ]
}

fn take(name: &str, slot: u16, limit: &Limit) -> Call {
    let mut words = Words::with_capacity(128);
    words.push_number(1);
    words.push(name.as_bytes());
    words.push(b"");
    words.push(&lua::Charge::new(limit, Cost::ONE, ChargeId(1)).argument());
    Call { script: Some(&TAKE), words, slot, late: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(value: &str) -> Reply {
        Reply::List(vec![Reply::Bytes(b"name".to_vec()), Reply::Bytes(value.as_bytes().to_vec())])
    }

    #[test]
    fn only_a_server_with_bounded_memory_and_another_policy_forgets() {
        for (maxmemory, policy, is_told) in [
            ("0", "allkeys-lru", false),
            ("100000000", "noeviction", false),
            ("100000000", "allkeys-lru", true),
            ("100000000", "volatile-ttl", true),
        ] {
            let told = forgets(&setting(maxmemory), &setting(policy));
            assert_eq!(told.is_some(), is_told, "{maxmemory} {policy}");
        }
        assert_eq!(forgets(&Reply::Nil, &setting("allkeys-lru")), None);
    }
}
