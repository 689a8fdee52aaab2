//! Headroom by tenant of the tenants file, if the policy wants it told.
//!
//! Only limits that count by tenant have it, and only requests that are looked at closely are asked
//! whose they are. A tenant is a word of the tenants file: an API key that is not in it has none, so
//! whatever callers send, no more is told. And of a file of a million tenants no more is told than of
//! the first [`METRICS_TENANTS_MAX`] limits and tenants that come.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

use tollgate_policy::{Charge, Policy};

use super::{Histogram, Live, OTHER_LIMITS};
use crate::bounds::METRICS_TENANTS_MAX;

/// How much of a limit one tenant uses.
#[derive(Clone, Debug)]
pub struct TenantCount {
    /// The limit's name; [`OTHER_LIMITS`] for all limits and tenants that are not told apart.
    pub limit: Arc<str>,
    /// The tenant; the same for those.
    pub tenant: Arc<str>,
    /// Which share of the limit was used, from 0 to 1, after a request that it allowed.
    pub used: Histogram,
}

/// What is counted by limit and tenant.
#[derive(Debug)]
pub(super) struct Tenants {
    pairs: RwLock<Pairs>,
    others: Arc<Live>,
}

#[derive(Debug, Default)]
struct Pairs {
    /// By rule, then by tenant.
    used: HashMap<usize, HashMap<Arc<str>, Arc<Live>>>,
    count: usize,
}

impl Tenants {
    /// What `policy` wants counted, if it does, with what was counted `before`.
    pub(super) fn new(policy: &Policy, before: Option<(&Policy, &Self)>) -> Option<Self> {
        if !policy.settings().observe.tenants {
            return None;
        }
        let Some((old, before)) = before else {
            return Some(Self { pairs: RwLock::default(), others: Arc::new(Live::of_shares()) });
        };
        let pairs = before.pairs.read().unwrap_or_else(PoisonError::into_inner).kept(old, policy);
        Some(Self { pairs: RwLock::new(pairs), others: Arc::clone(&before.others) })
    }

    /// Where what a limit says to a charge is counted, if that is by tenant.
    pub(super) fn of(&self, charge: &Charge<'_, '_>) -> Option<Arc<Live>> {
        let tenant = tenant(charge)?;
        let found = |pairs: &Pairs| pairs.used.get(&charge.rule_index)?.get(tenant).cloned();
        let known = found(&self.pairs.read().unwrap_or_else(PoisonError::into_inner));
        Some(known.unwrap_or_else(|| self.enter(charge.rule_index, tenant)))
    }

    #[cold]
    fn enter(&self, rule: usize, tenant: &str) -> Arc<Live> {
        if self.pairs.read().unwrap_or_else(PoisonError::into_inner).is_full() {
            return Arc::clone(&self.others);
        }
        let mut pairs = self.pairs.write().unwrap_or_else(PoisonError::into_inner);
        if pairs.is_full() {
            return Arc::clone(&self.others);
        }
        pairs.add(rule, tenant.into(), || Arc::new(Live::of_shares()))
    }

    pub(super) fn tell(&self, policy: &Policy) -> Vec<TenantCount> {
        let pairs = self.pairs.read().unwrap_or_else(PoisonError::into_inner);
        let mut told: Vec<TenantCount> = pairs
            .each()
            .map(|(rule, tenant, used)| TenantCount {
                limit: Arc::clone(policy.rules()[rule].name()),
                tenant: Arc::clone(tenant),
                used: used.tell(),
            })
            .collect();
        told.sort_by(|one, other| (&one.limit, &one.tenant).cmp(&(&other.limit, &other.tenant)));
        let others = Arc::from(OTHER_LIMITS);
        told.push(TenantCount {
            limit: Arc::clone(&others),
            tenant: others,
            used: self.others.tell(),
        });
        told
    }
}

impl Pairs {
    fn is_full(&self) -> bool {
        self.count >= METRICS_TENANTS_MAX
    }

    fn add(
        &mut self,
        rule: usize,
        tenant: Arc<str>,
        used: impl FnOnce() -> Arc<Live>,
    ) -> Arc<Live> {
        let count = &mut self.count;
        let entry = self.used.entry(rule).or_default().entry(tenant).or_insert_with(|| {
            *count += 1;
            used()
        });
        Arc::clone(entry)
    }

    fn each(&self) -> impl Iterator<Item = (usize, &Arc<str>, &Arc<Live>)> {
        let of_rule = |(rule, tenants): (&usize, _)| (*rule, tenants);
        self.used.iter().map(of_rule).flat_map(|(rule, tenants): (usize, &HashMap<_, _>)| {
            tenants.iter().map(move |(tenant, used)| (rule, tenant, used))
        })
    }

    /// Those whose limit and tenant another policy has too: room is for who is there.
    fn kept(&self, old: &Policy, new: &Policy) -> Self {
        let known: HashSet<&str> = self.each().map(|(_, tenant, _)| &**tenant).collect();
        let known: HashSet<&str> = new.tenants().filter(|tenant| known.contains(tenant)).collect();
        let rules = new.rules().iter().enumerate();
        let rules: HashMap<&str, usize> = rules.map(|(rule, it)| (&**it.name(), rule)).collect();
        let mut kept = Self::default();
        for (rule, tenant, used) in self.each() {
            let name: &str = old.rules()[rule].name();
            if let (Some(rule), true) = (rules.get(name), known.contains(&**tenant)) {
                kept.add(*rule, Arc::clone(tenant), || Arc::clone(used));
            }
        }
        kept
    }
}

/// Whose a charge is, if the limit counts by that. With a tenants section nobody can say so themselves.
fn tenant<'c>(charge: &'c Charge<'_, '_>) -> Option<&'c str> {
    let mut counted = charge.rule.per().iter().zip(&charge.values);
    let (_, value) = counted.find(|(per, value)| {
        let source = per.sources().get(usize::from(value.source));
        source.is_some_and(|source| source.name() == "tenant")
    })?;
    std::str::from_utf8(value.bytes?).ok()
}
