//! Keys as they may be shown now.
//!
//! A key is kept as it was written when it came up. If values have become hashes since, by a reload, what
//! was kept before must not show more than what is kept after.

use tollgate_core::{Key, KeyBuf};
use tollgate_policy::ShownKeys;
use tollgate_store::Store;

use super::summary::Counter;
use crate::limiter::{InForce, Limiter};

/// Writes keys as the policy in force says.
pub(super) fn rewrite<'c>(limiter: &Limiter, counters: impl Iterator<Item = &'c mut Counter>) {
    let policy = limiter.in_force();
    if policy.policy.settings().observe.keys == ShownKeys::Plain {
        return;
    }
    for counter in counters.filter(|counter| !is_hashed(&counter.text)) {
        counter.text = hashed(&policy, limiter.store(), &counter.text).into();
    }
}

/// Whether a text shows no value but as a hash. What marks one cannot come from inside a value.
fn is_hashed(text: &str) -> bool {
    text.split(':').skip(1).all(|part| {
        let numbered = part.strip_prefix("%n").and_then(|rest| rest.split_once('.'));
        let value = numbered.map_or(part, |(_, value)| value);
        value == "%" || value.starts_with("%h") || value.starts_with("%s")
    })
}

/// The same key with every value as a hash. Of a text that was cut, the value where it was is left out.
fn hashed(policy: &InForce, store: &Store, text: &str) -> String {
    let mut shown = String::new();
    match (text.parse::<KeyBuf>(), text.rsplit_once(':')) {
        (Ok(key), _) => {
            let key = Key { limit: key.limit(), values: &key.values() };
            policy.write_shown_key(store, &key, &mut shown);
        }
        (Err(_), Some((whole, _))) => shown = hashed(policy, store, whole) + ":…",
        (Err(_), None) => text.clone_into(&mut shown),
    }
    shown
}
