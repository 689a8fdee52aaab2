//! What is counted for each limit and tier of a policy.
//!
//! When a policy is put in force its limits and tiers are laid out in a row. So what a charge is counted
//! in is found by an addition. What the policy before had under the same name and tier is taken over as it
//! is, also while requests under way still count in it.

use std::collections::HashMap;
use std::iter;
use std::sync::Arc;

use tollgate_core::{Decision, Timestamp};
use tollgate_policy::{Charge, Mode, Policy, Rule};
use tollgate_store::Taken;

use super::lines::{LINE, Lines};
use super::tenants::{TenantCount, Tenants};
use super::{COUNTS, Counted, LimitCount, Live, OTHER_TIERS};
use crate::bounds::{METRICS_SERIES_MAX, USERS_SERIES_MAX};
use crate::observe::Day;

/// The counters of one limit and tier.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    /// By outcome.
    lines: Lines,
    used: Arc<Live>,
    day: Arc<Day>,
}

/// What a limit said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Allowed,
    Denied,
    ShadowDenied,
    StoreFailed,
}

/// Where early returns are counted, behind the outcomes.
const EARLY: usize = Outcome::StoreFailed as usize + 1;

const _: () = assert!(EARLY < LINE);

/// The counters of all limits of a policy.
#[derive(Debug)]
pub(crate) struct Table {
    series: Box<[Series]>,
    /// By rule, where its tiers begin; the first is for those that it does not name.
    firsts: Box<[u32]>,
    tenants: Option<Tenants>,
}

impl Series {
    /// Fresh ones; with its users, if they are counted.
    pub(crate) fn new(has_users: bool) -> Self {
        let day = if has_users { Day::with_users() } else { Day::default() };
        Self { lines: Lines::new(), used: Arc::new(Live::of_shares()), day: Arc::new(day) }
    }

    /// Counts what a limit said.
    #[inline(always)]
    pub(crate) fn count(&self, mode: Mode, taken: &Taken) {
        if !COUNTS {
            return;
        }
        match taken.counted() {
            None => self.lines.add(Outcome::StoreFailed as usize, 1),
            Some((key, true)) => {
                self.lines.add(Outcome::Allowed as usize, 1);
                self.day.see_allowed(key);
            }
            Some((key, false)) => {
                let outcome = match mode {
                    Mode::Enforce => Outcome::Denied,
                    Mode::Shadow => Outcome::ShadowDenied,
                };
                self.lines.add(outcome as usize, 1);
                self.day.see_denied(key);
            }
        }
    }

    /// Counts denials of those who did not wait.
    pub(crate) fn count_early(&self, count: u64) {
        self.lines.add(EARLY, count);
    }

    /// Looks closely at a decision that stands for so many, and leaves a share of the limit in use.
    pub(crate) fn look(&self, now: Timestamp, weight: u64, decision: &Decision, used: u32) {
        self.day.look(now, weight, used);
        if decision.is_allowed() && decision.limit > 0 {
            self.used.add(used.into(), weight);
        }
    }

    pub(crate) fn tell(&self, limit: Arc<str>, tier: String) -> LimitCount {
        let count = |outcome: Outcome| self.lines.sum(outcome as usize);
        LimitCount {
            limit,
            tier,
            allowed: count(Outcome::Allowed),
            denied: count(Outcome::Denied),
            shadow_denied: count(Outcome::ShadowDenied),
            store_failed: count(Outcome::StoreFailed),
            early: self.lines.sum(EARLY),
            used: self.used.tell(),
        }
    }
}

impl Table {
    /// The counters of `policy`, with what was counted `before`.
    pub(crate) fn new(
        policy: &Policy,
        before: Option<(&Policy, &Self)>,
        counted: &Counted,
    ) -> Self {
        let mut known = HashMap::new();
        if let Some((policy, table)) = before {
            for ((rule, tier), series) in names(policy).zip(&table.series).take(METRICS_SERIES_MAX)
            {
                known.insert((Arc::clone(rule.name()), tier), series);
            }
        }
        let series = names(policy).enumerate().map(|(place, (rule, tier))| {
            if place >= METRICS_SERIES_MAX {
                return counted.others.clone();
            }
            // Without `per` everybody is one user, and of a limit that is split each shard would be.
            let has_users =
                place < USERS_SERIES_MAX && !rule.per().is_empty() && rule.shards().is_none();
            let fresh = || Series::new(has_users);
            match known.get(&(Arc::clone(rule.name()), tier)) {
                Some(before) if before.day.has_users() == has_users => (*before).clone(),
                Some(before) => Series { day: fresh().day, ..(*before).clone() },
                None => fresh(),
            }
        });
        let mut first = 0;
        let firsts = policy.rules().iter().map(|rule| {
            let this = first;
            first += 1 + rule.tiers().len() as u32;
            this
        });
        let known = before.and_then(|(policy, table)| Some((policy, table.tenants.as_ref()?)));
        let tenants = Tenants::new(policy, known);
        Self { firsts: firsts.collect(), series: series.collect(), tenants }
    }

    /// Where a charge that is looked at is counted by its tenant, if it is.
    pub(crate) fn of_tenant(&self, charge: &Charge<'_, '_>) -> Option<Arc<Live>> {
        self.tenants.as_ref()?.of(charge)
    }

    pub(super) fn tell_tenants(&self, policy: &Policy) -> Vec<TenantCount> {
        self.tenants.as_ref().map_or_else(Vec::new, |tenants| tenants.tell(policy))
    }

    /// Where a charge under one of the policy's rules is counted.
    #[inline]
    pub(crate) fn of(&self, rule: usize, tier: u32) -> &Series {
        &self.series[(self.firsts[rule] + tier) as usize]
    }

    /// Every limit and tier that is told apart, and what it was like of late.
    pub(crate) fn days<'t>(
        &'t self,
        policy: &'t Policy,
    ) -> impl Iterator<Item = (&'t Rule, String, &'t Day)> {
        let told = names(policy).zip(&self.series).take(METRICS_SERIES_MAX);
        told.map(|((rule, tier), series)| (rule, tier, &*series.day))
    }

    pub(super) fn tell(&self, policy: &Policy) -> Vec<LimitCount> {
        let told = names(policy).zip(&self.series).take(METRICS_SERIES_MAX);
        let told = told.map(|((rule, tier), series)| series.tell(Arc::clone(rule.name()), tier));
        told.collect()
    }
}

/// Every limit and tier of a policy, in the order in which they are laid out.
fn names(policy: &Policy) -> impl Iterator<Item = (&Rule, String)> {
    policy.rules().iter().flat_map(|rule| {
        let tiers = rule.tiers();
        let others = if tiers.is_empty() { String::new() } else { OTHER_TIERS.to_owned() };
        let told = |tier: String| if tier.starts_with('#') { format!("#{tier}") } else { tier };
        iter::once(others).chain(tiers.into_iter().map(told)).map(move |tier| (rule, tier))
    })
}
