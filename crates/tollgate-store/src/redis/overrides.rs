//! What single keys are allowed instead, kept where every node finds it.
//!
//! What an override is, is not this crate's to know: it is a text, by the key it is for, that may have
//! an end. A number grows with every change; every node hears of it with its heartbeat, and reads them
//! again. The end is by the clock of Redis, so that it is the same moment for all nodes.

use std::sync::{Arc, LazyLock};

use tollgate_core::Timestamp;

use super::bounds::{HOUSE_KEPT, OVERRIDES_MAX, OVERRIDES_PAGE, OVERRIDES_RESTORED};
use super::call::{Call, Failure, Reply};
use super::script::Script;
use super::store::{Inner, RedisStore};
use super::words::Words;
use crate::asked::Asked;

static OVERRIDE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("override.lua")));
static OVERRIDES: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("overrides.lua")));
static RESTORE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("restore.lua")));

/// An override as all nodes share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedOverride {
    /// What it is.
    pub text: String,
    /// When it ends, by [`shared_now`](RedisStore::shared_now); never if not said.
    pub until: Option<Timestamp>,
}

/// What became of a change to the overrides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// It was made.
    Changed,
    /// It is as was asked for already.
    Unchanged,
    /// It was not made: there are [`OVERRIDES_MAX`] others.
    TooMany,
    /// It was not made: Redis is away, or refuses.
    NotMade,
    /// Redis did not answer in time, and it may have been made.
    Unknown,
}

/// All overrides at some moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedOverrides {
    /// What [`overrides_version`](RedisStore::overrides_version) was then.
    pub version: OverridesVersion,
    /// The last version that was lost, and of which all that was known is here again.
    pub restored: OverridesVersion,
    /// Each key with what its override is.
    pub list: Vec<(String, String)>,
}

impl SharedOverrides {
    /// Whether these came of what there was at an `earlier` version. If not Redis has lost some or all of
    /// that, and nobody has put it there again.
    pub fn hold(&self, earlier: OverridesVersion) -> bool {
        self.version.follows(earlier) || self.restored >= earlier
    }
}

/// Which changes of the overrides are made. Zero before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct OverridesVersion(pub(super) u64);

impl OverridesVersion {
    /// Whether Redis kept what there was at an `earlier` version, and only changed it since. If not it
    /// has lost some or all of it: it was emptied, or a replica took over.
    pub fn follows(self, earlier: Self) -> bool {
        earlier == Self(0) || (self >= earlier && self.began_with(earlier))
    }

    /// Whether the first change was the same, so that this one knows the older of both.
    pub fn began_with(self, other: Self) -> bool {
        // The moment of the first change stands before the number of those that came after: a millisecond. Of
        // two beginnings within one, nobody sees that what followed the first was lost.
        self.0 >> 20 == other.0 >> 20
    }
}

impl RedisStore {
    /// Puts the override of a key, or removes it.
    pub fn share_override(&self, key: &str, put: Option<&SharedOverride>) -> Asked<Sharing> {
        let mut words = self.0.of_overrides();
        words.push(key.as_bytes());
        words.push(put.map_or("", |put| &put.text).as_bytes());
        push_end(&mut words, put.and_then(|put| put.until));
        words.push_number(OVERRIDES_MAX as u64);
        words.push_number(HOUSE_KEPT.as_millis() as u64);
        let pending = self.0.fleet.send(self.0.on_overrides(&OVERRIDE, words));
        let inner = Arc::downgrade(&self.0);
        Asked::later(async move {
            let answer = pending.await;
            if let (Err(failure), Some(inner)) = (&answer, inner.upgrade()) {
                inner.tell_of_overrides(failure);
            }
            match answer {
                Ok(Reply::Integer(1)) => Sharing::Changed,
                Ok(Reply::Integer(-1)) => Sharing::TooMany,
                Ok(_) => Sharing::Unchanged,
                Err(Failure::Timeout | Failure::Lost) => Sharing::Unknown,
                Err(Failure::NotSent | Failure::TryAgain | Failure::Refused(_)) => Sharing::NotMade,
            }
        })
    }

    /// What the override of a key is now; nothing if it has none, or if Redis does not answer.
    pub fn shared_override(&self, key: &str) -> Asked<Option<String>> {
        let words = ["HGET", &self.0.house.overrides()[0], key].into_iter().collect();
        let slot = self.0.fleet.slot(self.0.house.overrides()[0].as_bytes());
        let pending = self.0.fleet.send(Call { script: None, words, slot, late: None });
        Asked::later(async move {
            match pending.await {
                Ok(Reply::Bytes(text)) => String::from_utf8(text).ok(),
                _ => None,
            }
        })
    }

    /// Puts overrides there again, each for its key, that were known at the version `lost`. That they are
    /// lost was told by overrides at the version `seen`: should anybody have changed those since, nothing
    /// more is put. Tells how many were missing; nothing if they were changed, or if Redis does not answer.
    pub fn restore_overrides(
        &self,
        list: Vec<(String, SharedOverride)>,
        lost: OverridesVersion,
        seen: OverridesVersion,
    ) -> Asked<Option<usize>> {
        let inner = Arc::clone(&self.0);
        Asked::later(async move {
            let mut count = 0;
            let mut rest = &list[..];
            loop {
                let (some, others) = rest.split_at(rest.len().min(OVERRIDES_RESTORED));
                rest = others;
                let mut words = inner.of_overrides();
                words.push_number(seen.0);
                // A replica that took over has what was put before. Redis that was emptied has only what
                // was put since, which is newer than what anybody knew.
                words.push_number(seen.began_with(lost).into());
                words.push_number(OVERRIDES_MAX as u64);
                words.push_number(HOUSE_KEPT.as_millis() as u64);
                match rest.is_empty() {
                    true => words.push_number(lost.0),
                    false => words.push(b""),
                }
                for (key, one) in some {
                    words.push(key.as_bytes());
                    words.push(one.text.as_bytes());
                    push_end(&mut words, one.until);
                }
                let reply = inner.fleet.send(inner.on_overrides(&RESTORE, words)).await;
                let reply = reply.inspect_err(|failure| inner.tell_of_overrides(failure)).ok()?;
                let Reply::Integer(put) = reply else { return None };
                count += usize::try_from(put).ok()?;
                if rest.is_empty() {
                    return Some(count);
                }
            }
        })
    }

    /// All overrides; nothing if Redis does not answer, or if they are changed meanwhile.
    pub fn shared_overrides(&self) -> Asked<Option<SharedOverrides>> {
        let inner = Arc::clone(&self.0);
        Asked::later(async move {
            let mut list = Vec::new();
            let mut first = None;
            loop {
                // In parts, since all of them take longer than a check may.
                let mut words = inner.of_overrides();
                words.push_number(list.len() as u64);
                words.push_number(OVERRIDES_PAGE as u64);
                let reply = inner.fleet.send(inner.on_overrides(&OVERRIDES, words)).await;
                let reply = reply.inspect_err(|failure| inner.tell_of_overrides(failure)).ok()?;
                let SharedOverrides { version, restored, list: some } = read(&reply)?;
                if *first.get_or_insert(version) != version {
                    return None;
                }
                let is_last = some.len() < OVERRIDES_PAGE;
                list.extend(some);
                if is_last || list.len() >= OVERRIDES_MAX {
                    return Some(SharedOverrides { version, restored, list });
                }
            }
        })
    }

    /// What time it is by the clock of Redis, as far as it was heard of: the same for all nodes.
    pub fn shared_now(&self) -> Timestamp {
        let now = self.0.clock.now();
        if self.0.is_virtual { now } else { self.0.house.shared_time(now) }
    }

    /// Another one when the overrides change, here or on another node; seen within a second.
    pub fn overrides_version(&self) -> OverridesVersion {
        self.0.house.overrides_version()
    }
}

impl Inner {
    /// The words with which every call about overrides begins.
    fn of_overrides(&self) -> Words {
        let keys = self.house.overrides();
        let mut words = Words::with_capacity(256);
        words.push_number(keys.len() as u64);
        keys.iter().for_each(|key| words.push(key.as_bytes()));
        words
    }

    fn tell_of_overrides(&self, failure: &Failure) {
        let slot = self.fleet.slot(self.house.overrides()[0].as_bytes());
        self.fleet.tell(slot, failure, "overrides are those that it last told");
    }

    fn on_overrides(&self, script: &'static Script, words: Words) -> Call {
        let slot = self.fleet.slot(self.house.overrides()[0].as_bytes());
        Call { script: Some(script), words, slot, late: None }
    }
}

fn push_end(words: &mut Words, until: Option<Timestamp>) {
    match until {
        Some(until) => words.push_number(until.as_micros().div_ceil(1_000)),
        None => words.push(b"inf"),
    }
}

fn read(reply: &Reply) -> Option<SharedOverrides> {
    let Reply::List(fields) = reply else { return None };
    let text = |reply: &Reply| match reply {
        Reply::Bytes(bytes) => String::from_utf8(bytes.clone()).ok(),
        _ => None,
    };
    let version = |reply: &Reply| Some(OverridesVersion(text(reply)?.parse().ok()?));
    let [first, restored, fields @ ..] = &fields[..] else { return None };
    let (pairs, _) = fields.as_chunks::<2>();
    let list: Option<_> =
        pairs.iter().map(|[key, value]| Some((text(key)?, text(value)?))).collect();
    Some(SharedOverrides { version: version(first)?, restored: version(restored)?, list: list? })
}
