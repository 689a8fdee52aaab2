//! What an operator asks and changes of single keys.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use arc_swap::Guard;
use smallvec::SmallVec;
use tollgate_core::{Cost, Key, KeyBuf, Timestamp, Value};
use tollgate_policy::Named;
use tollgate_store::{Asked, Charge, Enrolled, OnFailure, Taken};

use crate::bounds::{KEY_OVERRIDES_MAX, LOOKS_MAX};
use crate::limiter::{InForce, Limiter};
use crate::observe::Recent;
use crate::overrides::{Bans, KeyRefused, Overridden, Override, changed};
use crate::verdict::{Entry, Ruling, Verdict};

/// A key as it is now.
#[derive(Debug)]
pub struct Look {
    verdict: Verdict,
    /// What it is allowed instead of what the policy says, if it is.
    pub changed: Option<Override>,
    /// What it was told last, as [`Limiter::recent`] has it.
    pub recent: Vec<Recent>,
}

impl Look {
    /// What its limit says of it. There are several answers if the limit goes by something that the
    /// key does not tell, as a tier: one for each.
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }
}

impl Limiter {
    /// Looks at a key, and changes nothing; nothing is told if the store does not answer.
    pub fn look(&self, key: &KeyBuf) -> Result<Asked<Option<Look>>, KeyRefused> {
        let policy = self.in_force();
        let named = named(&policy, key)?;
        let recent = self.recent(key);
        let values = key.values();
        let key = Key { limit: key.limit(), values: &values };
        let text = self.store().key_text(&key);
        let changed = policy.overridden(named.rule, &key, self.store());
        let limits: SmallVec<[usize; 4]> = match changed {
            Some(Overridden::Limit(limit)) => std::iter::once(limit).collect(),
            _ => named.limits.into_iter().take(LOOKS_MAX).collect(),
        };
        let mut bans = Bans::default();
        if let Some(Overridden::Banned(left)) = changed {
            for (place, limit) in limits.iter().enumerate() {
                bans.add(place, left, &key, &policy.enrolled[*limit], self.store());
            }
        }
        let enrolled = limits.iter().map(|limit| &policy.enrolled[*limit]);
        let asked = self.look_under(&key, enrolled);
        let changed = policy.overrides.of(&text, self.store().shared_now()).cloned();
        let rule = named.rule as u32;
        Ok(asked.map(move |told| {
            let mut told = told?;
            bans.apply(&mut told);
            let taken = limits.iter().zip(&told);
            let taken =
                taken.map(|(limit, taken)| Entry { rule, limit: *limit as u32, taken: *taken });
            let (taken, ruling) = (taken.collect(), Ruling::Allowed);
            let policy = Guard::from_inner(policy);
            let verdict = Verdict { ruling, taken, origin: None, policy };
            Some(Look { verdict, changed, recent })
        }))
    }

    /// What each of these limits says of a key, and changes nothing; nothing is told if the store does not
    /// answer. For keys that a policy knows there is [`look`](Self::look).
    pub fn look_under<'l>(
        &self,
        key: &Key<'_>,
        limits: impl Iterator<Item = &'l Enrolled>,
    ) -> Asked<Option<Vec<Taken>>> {
        let charge = |limit| Charge {
            cost: Cost::PEEK,
            // Not what this node counts by itself meanwhile: that is not what the key has consumed.
            on_failure: OnFailure::Allow,
            ..Charge::new(*key, limit)
        };
        let charges: SmallVec<[Charge<'_>; 4]> = limits.map(charge).collect();
        self.store().take_each(&charges).map(|answers| {
            let told = answers.taken();
            let are_counted = !told.iter().any(|taken| matches!(taken, Taken::Uncounted { .. }));
            are_counted.then(|| told.to_vec())
        })
    }

    /// Forgets what a key has consumed; false if nothing was known of it, nothing if nobody can tell,
    /// since the store does not answer.
    pub fn reset(&self, key: &KeyBuf) -> Result<Asked<Option<bool>>, KeyRefused> {
        named(&self.in_force(), key)?;
        Ok(self.store().reset(&Key { limit: key.limit(), values: &key.values() }))
    }

    /// Allows a key something else from now on. What it has consumed stays consumed.
    pub fn put_override(&self, one: Override) -> Result<(), KeyRefused> {
        self.try_override(&one)?;
        self.change(|list, now| {
            list.retain(|_, other| other.is_in_time(now));
            list.insert(one.key.to_string(), one);
        })
    }

    /// Whether [`put_override`](Self::put_override) would take it, by the policy in force.
    pub fn try_override(&self, one: &Override) -> Result<(), KeyRefused> {
        let policy = self.in_force();
        let named = named(&policy, &one.key)?;
        let changed = changed(&policy.policy, named.rule, &one.change);
        changed.map(drop).map_err(|why| KeyRefused::Change { why })
    }

    /// Takes it back; false if there was none.
    pub fn remove_override(&self, key: &KeyBuf) -> bool {
        let mut was_there = false;
        let changed = self.change(|list, now| {
            was_there = list.remove(&key.to_string()).is_some_and(|one| one.is_in_time(now));
        });
        // Fewer than before are never too many.
        changed.is_ok() && was_there
    }

    /// What a key is allowed instead of what the policy says, also if the policy in force does not know it.
    pub fn override_of(&self, key: &KeyBuf) -> Option<Override> {
        let now = self.store().shared_now();
        let one = self.in_force().overrides.list().get(&key.to_string()).cloned();
        one.filter(|one| one.is_in_time(now))
    }

    /// A key as operators are shown it: with `observe: {keys: hashed}` every value as a hash.
    pub fn shown_key(&self, key: &KeyBuf) -> String {
        let mut text = String::new();
        let key = Key { limit: key.limit(), values: &key.values() };
        self.write_shown_key(&key, &mut text);
        text
    }

    /// The key that an operator means who names one as it is shown. A value that is shown as a hash does
    /// not tell itself: of keys whose values are not secret, those with an override are found by it.
    pub fn meant(&self, named: &KeyBuf) -> KeyBuf {
        let policy = self.in_force();
        let has_hash = named.values().iter().any(Value::is_secret);
        if !has_hash || policy.policy.named(named).is_ok() {
            return named.clone();
        }
        let text = named.to_string();
        let is_it =
            |one: &&Override| one.key.limit() == named.limit() && self.shown_key(&one.key) == text;
        policy.overrides.list().values().find(is_it).map_or(named, |one| &one.key).clone()
    }

    /// All keys that are allowed something else, also those that the policy in force does not know.
    pub fn overrides(&self) -> Vec<Override> {
        let now = self.store().shared_now();
        let policy = self.in_force();
        policy.overrides.list().values().filter(|one| one.is_in_time(now)).cloned().collect()
    }

    /// Puts others in their place, as many nodes do that share them. Those that mean nothing to the
    /// policy are kept, and have no effect; those whose time is over are not.
    pub fn replace_overrides(&self, list: Vec<Override>) -> Result<(), KeyRefused> {
        let now = self.store().shared_now();
        let list = list.into_iter().filter(|one| one.is_in_time(now));
        let list: BTreeMap<String, Override> = list.map(|one| (one.key.to_string(), one)).collect();
        if *self.in_force().overrides.list() == list {
            return Ok(());
        }
        self.change(|known, _| *known = list)
    }

    /// Changes the overrides in force.
    fn change(
        &self,
        change: impl FnOnce(&mut BTreeMap<String, Override>, Timestamp),
    ) -> Result<(), KeyRefused> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.in_force();
        let mut list = before.overrides.list().clone();
        change(&mut list, self.store().shared_now());
        if list.len() > KEY_OVERRIDES_MAX {
            return Err(KeyRefused::TooMany);
        }
        let policy = Arc::clone(&before.policy);
        let series = Arc::clone(&before.series);
        self.put_in_force(InForce::new(policy, list, self.store(), series)?);
        Ok(())
    }
}

fn named(policy: &InForce, key: &KeyBuf) -> Result<Named, KeyRefused> {
    policy.policy.named(key).map_err(|why| KeyRefused::Unknown { why })
}
