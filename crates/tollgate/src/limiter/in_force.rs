//! A policy as it is in force: with its limits enrolled, and what single keys are allowed instead.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::{Key, Quota, Shown, Value};
use tollgate_policy::{Admission, Charges, Mode, OnStoreFailure, Policy, Request, Rule, Scratch};
use tollgate_policy::{ShownKeys, SyncMode};
use tollgate_store::{Charge, Enrolled, Named, OnFailure, Store, TooManyLimits};

use super::Keys;
use crate::denial::ShowValue;
use crate::http::fields::Spelled;
use crate::metrics::Table;
use crate::overrides::{Bans, Overridden, Override, Overrides};

/// A policy and what single keys are allowed instead, with their limits enrolled.
pub(crate) struct InForce {
    pub(crate) policy: Arc<Policy>,
    /// The policy's, and after them those of overrides.
    pub(crate) enrolled: Vec<Enrolled>,
    /// The rules' names, as the keys of the store begin with them.
    named: Vec<Option<Named>>,
    pub(crate) overrides: Overrides,
    /// Where what its limits say is counted.
    pub(crate) series: Arc<Table>,
    pub(crate) spelled: Spelled,
}

impl fmt::Debug for InForce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InForce").field("limits", &self.enrolled.len()).finish_non_exhaustive()
    }
}

impl InForce {
    pub(crate) fn new(
        policy: Arc<Policy>,
        overrides: BTreeMap<String, Override>,
        store: &Store,
        series: Arc<Table>,
    ) -> Result<Self, TooManyLimits> {
        let enrolled = policy.limits().iter().map(|limit| store.enroll(*limit));
        let mut enrolled = enrolled.collect::<Result<Vec<Enrolled>, _>>()?;
        let overrides = Overrides::new(overrides, &policy, store, &mut enrolled)?;
        let rates = (0..enrolled.len()).map(|limit| rate(&policy, &overrides, limit));
        let limits = enrolled.iter().map(Enrolled::limit).zip(rates);
        let named = policy.rules().iter().map(|rule| store.named(rule.name())).collect();
        let spelled = Spelled::new(policy.rules().iter().map(|rule| &**rule.name()), limits);
        Ok(Self { policy, enrolled, named, overrides, series, spelled })
    }

    /// Writes a key as operators are shown it: every value as a hash, if the policy says so.
    pub(crate) fn write_shown_key(&self, store: &Store, key: &Key<'_>, text: &mut String) {
        if self.policy.settings().observe.keys == ShownKeys::Plain {
            return store.write_key_text(key, text);
        }
        let mut values: SmallVec<[Value<'_>; 4]> = key.values.into();
        let plain = |value: &&mut Value<'_>| !value.is_secret() && value.shard_number().is_none();
        values.iter_mut().filter(plain).for_each(|value| value.shown = Shown::AsHash);
        store.write_key_text(&Key { limit: key.limit, values: &values }, text);
    }

    /// Shows what is known of the sender of a request that no limit was asked about, as operators are
    /// shown it.
    pub(super) fn show_sender<'p: 'r, 'r>(
        &'p self,
        store: &Store,
        request: &Request<'r>,
        admission: &Admission<'p, 'r>,
        show: &mut ShowValue<'_>,
    ) {
        for (name, value) in self.policy.sender(request, admission) {
            let mut text = String::new();
            self.write_shown_key(store, &Key { limit: "sender", values: &[value] }, &mut text);
            show(name, text.trim_start_matches("sender:"));
        }
    }

    /// What a key under a rule has by an override; a limit is one of those enrolled.
    pub(crate) fn overridden(
        &self,
        rule: usize,
        key: &Key<'_>,
        store: &Store,
    ) -> Option<Overridden> {
        Some(match self.overrides.find(rule, key, store)? {
            Overridden::Limit(place) => Overridden::Limit(self.policy.limits().len() + place),
            banned @ Overridden::Banned(_) => banned,
        })
    }

    /// Puts the limits of overrides in the place of those of the policy, and says which keys are banned.
    #[cold]
    pub(crate) fn override_charges(&self, charges: &mut Charges<'_, '_>, store: &Store) -> Bans {
        let mut bans = Bans::default();
        for (place, charge) in charges.iter_mut().enumerate() {
            match self.overridden(charge.rule_index, &key(charge), store) {
                Some(Overridden::Limit(limit)) => charge.limit = limit,
                Some(Overridden::Banned(left)) => {
                    bans.add(place, left, &key(charge), &self.enrolled[charge.limit], store);
                }
                None => {}
            }
        }
        bans
    }

    /// The keys that the limits of a request count under; none if it is ruled out before.
    pub(crate) fn keys(&self, request: &Request<'_>, store: &Store) -> Vec<String> {
        let (mut scratch, mut charges) = (Scratch::default(), Charges::new());
        let Admission::Charged = self.policy.admit(request, &mut scratch, &mut charges) else {
            return Vec::new();
        };
        let mut keys = Keys::default();
        for charge in &charges {
            keys.push(|text| store.write_key_text(&key(charge), text));
        }
        keys.iter().map(str::to_owned).collect()
    }

    /// The rate of an enrolled limit as it was written; none of a concurrency limit.
    pub(crate) fn rate(&self, limit: usize) -> Option<Quota> {
        rate(&self.policy, &self.overrides, limit)
    }
}

fn rate(policy: &Policy, overrides: &Overrides, limit: usize) -> Option<Quota> {
    match limit.checked_sub(policy.limits().len()) {
        None => policy.rate(limit),
        Some(place) => overrides.rate(place),
    }
}

pub(crate) fn asked<'c>(
    policy: &'c InForce,
    charge: &'c tollgate_policy::Charge<'_, '_>,
) -> Charge<'c> {
    Charge {
        key: key(charge),
        named: policy.named[charge.rule_index],
        limit: &policy.enrolled[charge.limit],
        cost: charge.cost,
        mode: store_mode(charge.rule),
        count_denied: charge.rule.count_denied(),
        on_failure: on_failure(charge.rule.on_store_failure()),
        is_leased: charge.rule.sync() == SyncMode::Leased,
    }
}

pub(crate) fn key<'c>(charge: &'c tollgate_policy::Charge<'_, '_>) -> Key<'c> {
    Key { limit: charge.rule.name(), values: &charge.values }
}

fn store_mode(rule: &Rule) -> tollgate_store::Mode {
    match rule.mode() {
        Mode::Enforce => tollgate_store::Mode::Enforce,
        Mode::Shadow => tollgate_store::Mode::Shadow,
    }
}

pub(crate) fn on_failure(said: OnStoreFailure) -> OnFailure {
    match said {
        OnStoreFailure::Allow => OnFailure::Allow,
        OnStoreFailure::Deny => OnFailure::Deny,
        OnStoreFailure::Local => OnFailure::Local,
    }
}
