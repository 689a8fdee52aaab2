//! What single keys are allowed instead, kept where every node finds it.
//!
//! What an override is, is not this crate's to know: it is a text, by the key it is for. A number
//! grows with every change; every node hears of it with its heartbeat, and reads them again.

use std::sync::LazyLock;

use super::bounds::HOUSE_KEPT;
use super::call::{Call, Reply};
use super::script::Script;
use super::store::RedisStore;
use super::words::Words;
use crate::asked::Asked;

static OVERRIDE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("override.lua")));

/// The field that is no key's: none begins with a bare percent sign.
const VERSION: &[u8] = b"%version";

impl RedisStore {
    /// Puts the override of a key, or removes it; false if there was none to remove, nothing if Redis
    /// does not answer.
    pub fn share_override(&self, key: &str, text: Option<&str>) -> Asked<Option<bool>> {
        let name = self.0.house.overrides();
        let mut words = Words::with_capacity(64 + key.len() + name.len());
        words.push_number(1);
        words.push(name.as_bytes());
        words.push(key.as_bytes());
        words.push(text.unwrap_or_default().as_bytes());
        words.push_number(HOUSE_KEPT.as_millis() as u64);
        let slot = self.0.fleet.slot(name.as_bytes());
        let pending = self.0.fleet.send(Call { script: Some(&OVERRIDE), words, slot, late: None });
        Asked::later(async {
            match pending.await {
                Ok(Reply::Integer(changed)) => Some(changed == 1),
                _ => None,
            }
        })
    }

    /// All overrides, each with the key it is for; nothing if Redis does not answer.
    pub fn shared_overrides(&self) -> Asked<Option<Vec<(String, String)>>> {
        let name = self.0.house.overrides();
        let words = ["HGETALL", name].iter().collect();
        let slot = self.0.fleet.slot(name.as_bytes());
        let pending = self.0.fleet.send(Call { script: None, words, slot, late: None });
        Asked::later(async { read(&pending.await.ok()?) })
    }

    /// Grows when the overrides change, here or on another node; seen within a second.
    pub fn overrides_version(&self) -> u64 {
        self.0.house.overrides_version()
    }
}

fn read(reply: &Reply) -> Option<Vec<(String, String)>> {
    let Reply::List(fields) = reply else { return None };
    let text = |reply: &Reply| match reply {
        Reply::Bytes(bytes) => String::from_utf8(bytes.clone()).ok(),
        _ => None,
    };
    let (pairs, _) = fields.as_chunks::<2>();
    let pairs = pairs.iter().filter(|[key, _]| *key != Reply::Bytes(VERSION.to_vec()));
    pairs.map(|[key, value]| Some((text(key)?, text(value)?))).collect()
}
