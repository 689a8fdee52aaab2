//! What a server tells, as `GET /v1/live` and `GET /v1/keys` write it.
//!
//! A field that is missing is empty: a server of another version tells what it can. Of a list that is
//! longer than any server's the beginning is kept.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};

use crate::bounds::{TOP_IN_ROW_MAX, TOP_ROWS_MAX};

/// How everything is.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Live {
    pub(super) now_ms: u64,
    pub(super) started_ms: u64,
    pub(super) version: String,
    /// The number of the last of `seconds`.
    pub(super) second: u64,
    #[serde(deserialize_with = "first::<_, _, TOP_ROWS_MAX>")]
    pub(super) seconds: Vec<Second>,
    #[serde(deserialize_with = "first::<_, _, TOP_ROWS_MAX>")]
    pub(super) limits: Vec<Limit>,
    pub(super) storm: Storm,
    #[serde(deserialize_with = "first::<_, _, TOP_ROWS_MAX>")]
    pub(super) advice: Vec<Advice>,
    pub(super) memory: Memory,
    pub(super) redis: Option<Redis>,
    #[serde(deserialize_with = "first::<_, _, TOP_ROWS_MAX>")]
    pub(super) doors: Vec<Door>,
    pub(super) held: Held,
    pub(super) policy: Policy,
}

/// What happened in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Second {
    pub(super) allowed: u64,
    pub(super) denied: u64,
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
}

/// What a limit said of a tier, since the start.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Limit {
    pub(super) limit: String,
    pub(super) tier: String,
    pub(super) mode: String,
    pub(super) allowed: u64,
    pub(super) denied: u64,
    pub(super) shadow_denied: u64,
    pub(super) store_failed: u64,
    pub(super) used: Option<f64>,
    /// Allowed and denied in the last 15 minutes, in steps.
    #[serde(deserialize_with = "first::<_, _, TOP_IN_ROW_MAX>")]
    pub(super) spark: Vec<(u64, u64)>,
}

impl Limit {
    /// Whether it stands for limits that are not told apart (`#callers`, `#others`), and there are none.
    pub(super) fn is_idle_remainder(&self) -> bool {
        let counts = [self.allowed, self.denied, self.shadow_denied, self.store_failed];
        self.limit.starts_with('#') && counts == [0; 4]
    }
}

/// Those who come back too early, in the last minute.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Storm {
    pub(super) is_storm: bool,
    pub(super) denied: u64,
    pub(super) early: u64,
    #[serde(deserialize_with = "first::<_, _, TOP_ROWS_MAX>")]
    pub(super) keys: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Advice {
    pub(super) sentence: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Memory {
    pub(super) keys: u64,
    pub(super) bytes: u64,
    pub(super) max_bytes: u64,
    pub(super) evictions: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Redis {
    #[serde(deserialize_with = "first::<_, _, TOP_ROWS_MAX>")]
    pub(super) servers: Vec<RedisServer>,
    pub(super) settled_without: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RedisServer {
    pub(super) address: String,
    pub(super) is_well: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Door {
    pub(super) door: String,
    pub(super) open: u64,
}

/// Requests that wait for their turn, and those that were turned away since too many did.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Held {
    pub(super) now: u64,
    pub(super) shed: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Policy {
    pub(super) loaded_ms: u64,
    pub(super) reloads: Reloads,
    pub(super) error: Option<String>,
    #[serde(deserialize_with = "first::<_, _, TOP_ROWS_MAX>")]
    pub(super) warnings: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Reloads {
    pub(super) succeeded: u64,
    pub(super) failed: u64,
}

/// The keys denied most, or the busiest.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Keys {
    pub(super) requests: u64,
    pub(super) denied: u64,
    #[serde(deserialize_with = "first::<_, _, TOP_ROWS_MAX>")]
    pub(super) keys: Vec<Key>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Key {
    pub(super) key: String,
    pub(super) requests: u64,
    pub(super) denied: u64,
    pub(super) rate: f64,
    pub(super) denied_rate: f64,
    pub(super) first_seen_ms: u64,
    #[serde(deserialize_with = "first::<_, _, TOP_IN_ROW_MAX>")]
    pub(super) limits: Vec<String>,
    pub(super) early: u64,
    pub(super) obeys: Option<bool>,
}

/// The beginning of a list.
fn first<'de, D, T, const MOST: usize>(list: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    list.deserialize_seq(First::<T, MOST>(PhantomData))
}

struct First<T, const MOST: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for First<T, MOST> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let mut kept = Vec::new();
        while kept.len() < MOST {
            let Some(one) = list.next_element()? else { return Ok(kept) };
            kept.push(one);
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(kept)
    }
}
