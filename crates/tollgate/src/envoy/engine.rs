//! Which limits a call is under, what is charged, and what comes of it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, RwLock};

use arc_swap::ArcSwap;
use smallvec::SmallVec;
use tollgate_core::{Algorithm, Align, Cost, Counter, Key, Limit, Micros, Quota, Timestamp, Value};
use tollgate_policy::bounds::RATES_MAX;
use tollgate_policy::{
    Charging, DescriptorLimit, DescriptorRule, DescriptorSettings, Descriptors, Domain,
};
use tollgate_store::{Charge, Enrolled, MemoryStore, Mode, OnFailure, Store, Taken, TooManyLimits};

use super::tell;
use super::{Call, CurrentLimit, Descriptor, Override, Response, Status};
use crate::bounds::OVERRIDES_MAX;
use crate::limiter::on_failure;

/// The descriptors in force, and the limits that calls brought along.
#[derive(Default)]
pub(crate) struct Engine {
    in_force: ArcSwap<InForce>,
    overrides: RwLock<HashMap<(Override, Algorithm), Enrolled>>,
}

/// Descriptors with their limits enrolled.
#[derive(Default)]
pub(super) struct InForce {
    descriptors: Descriptors,
    enrolled: Vec<Enrolled>,
    settings: DescriptorSettings,
    headers: Option<[Arc<str>; 3]>,
}

/// What the keys of a descriptor's limits begin with, by their place in its list. No limit of a policy
/// has a colon in its name.
const NAMES: [&str; RATES_MAX] =
    ["envoy:1", "envoy:2", "envoy:3", "envoy:4", "envoy:5", "envoy:6", "envoy:7", "envoy:8"];

/// Descriptors and limits of one call that need no allocation.
const INLINE: usize = 4;

/// What one descriptor of a call is under.
enum Under<'s> {
    /// No limit.
    Nothing,
    /// A rule that says `unlimited`.
    Unlimited(&'s DescriptorRule),
    /// The limits of a rule that nobody replaced.
    Rule(&'s DescriptorRule),
    /// The limit that came with it, in place of those of the rule, if there is one.
    Override(Override, Enrolled, Option<&'s DescriptorRule>),
}

/// One limit that one descriptor of a call is under.
struct Item<'s> {
    descriptor: usize,
    limit: Enrolled,
    counted: Counted<'s>,
    name: &'static str,
    /// What it is counted by, among the values of all.
    values: Range<usize>,
    cost: Cost,
    is_credit: bool,
    /// Whether it is told and does not make the call over.
    is_shadow: bool,
}

/// Whose words a limit is told in.
#[derive(Clone, Copy)]
enum Counted<'s> {
    Written(&'s DescriptorLimit),
    Brought(Override),
}

type Items<'s> = SmallVec<[Item<'s>; INLINE]>;

impl Engine {
    /// What [`Engine::put_in_force`] takes.
    pub(super) fn prepare(
        store: &Store,
        descriptors: Descriptors,
        settings: &DescriptorSettings,
    ) -> Result<Arc<InForce>, TooManyLimits> {
        let enrolled = descriptors.limits().iter().map(|limit| store.enroll(*limit));
        let enrolled = enrolled.collect::<Result<_, _>>()?;
        let headers = settings.response_headers.as_ref();
        let headers = headers.map(|names| {
            [&names.limit, &names.remaining, &names.reset].map(|name| Arc::from(name.as_str()))
        });
        let settings = settings.clone();
        Ok(Arc::new(InForce { descriptors, enrolled, settings, headers }))
    }

    pub(super) fn put_in_force(&self, prepared: Arc<InForce>) {
        self.in_force.store(prepared);
    }

    pub(super) fn decide(&self, store: &MemoryStore, call: &Call<'_>) -> Response {
        let in_force = self.in_force.load();
        let settings = &in_force.settings;
        let under = self.under(store, &in_force, call);
        let mut values: SmallVec<[Value<'_>; 16]> = SmallVec::new();
        let items = items(&in_force, call, &under, &mut values);
        let quotas = Quotas { settings, under: &under };
        let taken = charge(store, &quotas, &items, &values);
        let mut response = Response {
            is_over: quotas.are_over(&items, &taken) && !settings.shadow,
            statuses: statuses(store, &under, &items, &taken),
            headers: Vec::new(),
            metadata: None,
        };
        if let Some(names) = &in_force.headers {
            response.headers = tell::headers(names, &response.statuses);
        }
        if settings.dynamic_metadata {
            let quotas = (0..under.len()).filter(|index| quotas.has(*index));
            response.metadata = Some(tell::metadata(call, &response.statuses, quotas));
        }
        response
    }

    /// What each descriptor is under, those that others replace left out.
    fn under<'s>(
        &self,
        store: &MemoryStore,
        in_force: &'s InForce,
        call: &Call<'_>,
    ) -> SmallVec<[Under<'s>; INLINE]> {
        // As in the service that the files are of, a domain it does not know has no limits at all.
        let Some(domain) = in_force.descriptors.domain(call.domain) else {
            return call.descriptors.iter().map(|_| Under::Nothing).collect();
        };
        call.descriptors
            .iter()
            .map(|descriptor| self.under_one(store, in_force, &domain, descriptor))
            .collect()
    }

    fn under_one<'s>(
        &self,
        store: &MemoryStore,
        in_force: &'s InForce,
        domain: &Domain<'s>,
        descriptor: &Descriptor<'_>,
    ) -> Under<'s> {
        let found = domain.find(descriptor.entries);
        if let Some(limit) = descriptor.limit
            && let Some(enrolled) = self.enroll(store, limit, in_force.counts(found))
        {
            return Under::Override(limit, enrolled, found);
        }
        match found {
            None => Under::Nothing,
            Some(rule) if rule.is_unlimited() => Under::Unlimited(rule),
            Some(rule) => Under::Rule(rule),
        }
    }

    /// A limit that came with a call; nothing if it cannot be counted, or too many came before it.
    fn enroll(
        &self,
        store: &MemoryStore,
        limit: Override,
        algorithm: Algorithm,
    ) -> Option<Enrolled> {
        let known = "nothing under this lock panics";
        if let Some(enrolled) = self.overrides.read().expect(known).get(&(limit, algorithm)) {
            return Some(*enrolled);
        }
        let units = u64::from(limit.unit_multiplier.max(1));
        let period = Micros::new(limit.unit.period().as_micros().saturating_mul(units));
        let quota = Quota::new(limit.requests_per_unit, period).ok()?;
        let mut overrides = self.overrides.write().expect(known);
        if overrides.len() == OVERRIDES_MAX {
            return None;
        }
        let counted = match algorithm {
            Algorithm::TokenBucket => Limit::token_bucket(quota, quota.count()).ok()?,
            Algorithm::SlidingWindow => Limit::sliding_window(quota),
            Algorithm::SlidingLog => Limit::sliding_log(quota).ok()?,
            Algorithm::FixedWindow | Algorithm::LeakyBucket | Algorithm::Concurrency => {
                Limit::fixed_window(quota, Align::Clock)
            }
        };
        let enrolled = store.enroll(counted).ok()?;
        overrides.insert((limit, algorithm), enrolled);
        Some(enrolled)
    }
}

impl InForce {
    /// How the files count what a rule is for. A limit that comes with a call is counted the same
    /// way, since only so is what was used under the files still used.
    fn counts(&self, rule: Option<&DescriptorRule>) -> Algorithm {
        let written = rule.and_then(|rule| rule.limits().first());
        let limit = written.map(|limit| self.descriptors.limits()[limit.limit()]);
        limit.map_or(Algorithm::FixedWindow, |limit| limit.algorithm())
    }
}

/// The limits of all descriptors, in order, each with what it is counted by.
fn items<'s: 'v, 'c: 'v, 'v>(
    in_force: &'s InForce,
    call: &Call<'c>,
    under: &[Under<'s>],
    values: &mut SmallVec<[Value<'v>; 16]>,
) -> Items<'s> {
    let replaced: SmallVec<[&str; 4]> = under
        .iter()
        .filter_map(|under| match under {
            Under::Rule(rule) | Under::Unlimited(rule) => Some(rule.replaces()),
            Under::Nothing | Under::Override(..) => None,
        })
        .flatten()
        .map(|name| &**name)
        .collect();
    let is_replaced =
        |limit: &DescriptorLimit| limit.name().is_some_and(|name| replaced.contains(&&**name));
    let mut items = Items::new();
    for (index, (under, descriptor)) in under.iter().zip(call.descriptors).enumerate() {
        let (rule, limits) = match under {
            Under::Nothing | Under::Unlimited(_) => continue,
            Under::Rule(rule) => (Some(*rule), rule.limits()),
            Under::Override(_, _, rule) => (*rule, &[][..]),
        };
        let start = values.len();
        values.push(Value::new(call.domain.as_bytes()));
        for (index, (key, value)) in descriptor.entries.iter().enumerate() {
            values.push(Value::new(key.as_bytes()));
            values.push(match rule.and_then(|rule| rule.shared(index)) {
                // Not to be taken for a value that is written like the pattern.
                Some(pattern) => Value { source: 1, ..Value::new(pattern.as_bytes()) },
                None => Value::new(value.as_bytes()),
            });
        }
        let item = |counted, limit, place: usize| Item {
            descriptor: index,
            limit,
            counted,
            name: NAMES[place],
            values: start..values.len(),
            cost: cost(call, descriptor),
            is_credit: descriptor.is_negative_hits,
            is_shadow: in_force.settings.shadow
                || matches!(under, Under::Rule(rule) if rule.is_shadow()),
        };
        if let Under::Override(limit, enrolled, _) = under {
            items.push(item(Counted::Brought(*limit), *enrolled, 0));
        }
        for (place, limit) in limits.iter().enumerate().filter(|(_, it)| !is_replaced(it)) {
            items.push(item(Counted::Written(limit), in_force.enrolled[limit.limit()], place));
        }
    }
    items
}

fn cost(call: &Call<'_>, descriptor: &Descriptor<'_>) -> Cost {
    let hits = descriptor.hits.unwrap_or(u64::from(call.hits.max(1)));
    Cost::new(u32::try_from(hits).unwrap_or(u32::MAX))
}

/// Which descriptors of a call are quotas, and so whether the call is over its limits.
struct Quotas<'a, 's> {
    settings: &'a DescriptorSettings,
    under: &'a [Under<'s>],
}

impl Quotas<'_, '_> {
    /// Whether a descriptor is a quota.
    fn has(&self, descriptor: usize) -> bool {
        match &self.under[descriptor] {
            Under::Unlimited(_) => false,
            Under::Rule(rule) => self.settings.quota || rule.is_quota(),
            Under::Nothing | Under::Override(..) => self.settings.quota,
        }
    }

    fn count(&self) -> usize {
        (0..self.under.len()).filter(|index| self.has(*index)).count()
    }

    /// A call is over its limits if a limit is that is no quota, or if all quotas are.
    fn are_over(&self, items: &[Item<'_>], taken: &[Taken]) -> bool {
        let over = items.iter().zip(taken).filter(|(item, taken)| {
            item.is_over(taken) && !is_shadow(&self.under[item.descriptor])
        });
        let mut quotas: SmallVec<[usize; INLINE]> = SmallVec::new();
        for (item, _) in over {
            if !self.has(item.descriptor) {
                return true;
            }
            if quotas.last() != Some(&item.descriptor) {
                quotas.push(item.descriptor);
            }
        }
        !quotas.is_empty() && quotas.len() == self.count()
    }
}

fn is_shadow(under: &Under<'_>) -> bool {
    matches!(under, Under::Rule(rule) if rule.is_shadow())
}

/// What the store says of each item; what is charged when one is over is the settings' to say.
fn charge(
    store: &MemoryStore,
    quotas: &Quotas<'_, '_>,
    items: &[Item<'_>],
    values: &[Value<'_>],
) -> SmallVec<[Taken; INLINE]> {
    match quotas.settings.charging {
        Charging::Every => items.iter().map(|item| take_one(store, item, values)).collect(),
        charging => {
            let taken = take_together(store, quotas, items, values);
            if charging == Charging::UnlessOver {
                let over = items.iter().zip(&taken).filter(|(item, taken)| item.is_over(taken));
                over.for_each(|(item, _)| count_past_the_limit(store, &item.charge(values)));
            }
            taken
        }
    }
}

/// Charges an item on its own, also if it is over.
fn take_one(store: &MemoryStore, item: &Item<'_>, values: &[Value<'_>]) -> Taken {
    let charge = item.charge(values);
    if item.is_credit {
        return store.credit(&charge);
    }
    let taken = store.take_one(&charge);
    if !taken.is_allowed() {
        count_past_the_limit(store, &charge);
    }
    taken
}

/// Charges all items, or none if the call is over.
fn take_together(
    store: &MemoryStore,
    quotas: &Quotas<'_, '_>,
    items: &[Item<'_>],
    values: &[Value<'_>],
) -> SmallVec<[Taken; INLINE]> {
    // One of several quotas does not stop a call.
    let some_quotas = quotas.count() > 1;
    let charges: SmallVec<[Charge<'_>; INLINE]> = items
        .iter()
        .map(|item| {
            let is_told_only =
                item.is_shadow || item.is_credit || (some_quotas && quotas.has(item.descriptor));
            let mode = if is_told_only { Mode::Shadow } else { Mode::Enforce };
            let cost = if item.is_credit { Cost::PEEK } else { item.cost };
            Charge { mode, cost, ..item.charge(values) }
        })
        .collect();
    let mut taken: SmallVec<[Taken; INLINE]> = store.take(&charges).into_iter().collect();
    let is_over = quotas.are_over(items, &taken) && !quotas.settings.shadow;
    for (item, taken) in items.iter().zip(&mut taken) {
        // There is something to give back only if it was the last of the quotas that said no.
        if let Some(receipt) = taken.receipt().filter(|_| is_over) {
            store.refund(&receipt);
        }
        if item.is_credit && !is_over {
            *taken = store.credit(&item.charge(values));
        }
    }
    taken
}

impl Item<'_> {
    fn charge<'a>(&'a self, values: &'a [Value<'a>]) -> Charge<'a> {
        Charge {
            key: Key { limit: self.name, values: &values[self.values.clone()] },
            limit: &self.limit,
            cost: self.cost,
            mode: Mode::Enforce,
            count_denied: false,
            on_failure: match self.counted {
                Counted::Written(limit) => on_failure(limit.on_store_failure()),
                Counted::Brought(_) => OnFailure::Local,
            },
            is_leased: false,
        }
    }

    /// Whether a limit says no. What is given back is never too much, whatever was taken before.
    fn is_over(&self, taken: &Taken) -> bool {
        !taken.is_allowed() && !self.is_credit
    }

    fn period(&self) -> Micros {
        let (unit, multiplier) = match self.counted {
            Counted::Written(limit) => (limit.unit(), limit.unit_multiplier()),
            Counted::Brought(limit) => (limit.unit, limit.unit_multiplier.max(1)),
        };
        Micros::new(unit.period().as_micros() * u64::from(multiplier))
    }

    fn told(&self) -> CurrentLimit {
        let (name, requests_per_unit, unit, multiplier) = match self.counted {
            Counted::Written(limit) => (
                limit.name().cloned(),
                limit.requests_per_unit(),
                limit.unit(),
                limit.unit_multiplier(),
            ),
            Counted::Brought(limit) => {
                (None, limit.requests_per_unit, limit.unit, limit.unit_multiplier)
            }
        };
        let unit_multiplier = (multiplier > 1).then_some(multiplier);
        CurrentLimit { name, requests_per_unit, unit, unit_multiplier }
    }
}

/// Counts what was refused, as the service does that the files are of: its counters go on past the
/// limit until their window ends, which a peek can tell from one that is just used up. The
/// algorithms that are ours would carry the excess over, and lock out whoever goes on asking.
#[cold]
fn count_past_the_limit(store: &MemoryStore, charge: &Charge<'_>) {
    let Limit::Counter(Counter::FixedWindow(_)) = charge.limit.limit() else { return };
    let most = charge.limit.limit().capacity();
    let cost = charge.cost.units();
    // What costs more than there ever is takes all there is first, and then some.
    for part in [cost.min(most), cost.saturating_sub(most).min(most)] {
        let cost = Cost::new(part);
        if cost != Cost::PEEK {
            store.take_one(&Charge { cost, count_denied: true, ..*charge });
        }
    }
}

/// The answer to each descriptor.
fn statuses(
    store: &MemoryStore,
    under: &[Under<'_>],
    items: &[Item<'_>],
    taken: &[Taken],
) -> SmallVec<[Status; INLINE]> {
    let mut rest = items.iter().zip(taken).peekable();
    let status = |(index, under): (usize, &Under<'_>)| {
        let mut tightest: Option<Figures<'_, '_>> = None;
        while let Some((item, taken)) = rest.next_if(|(item, _)| item.descriptor == index) {
            let figures = Figures::new(store, item, taken);
            if tightest.as_ref().is_none_or(|other| figures.rank() < other.rank()) {
                tightest = Some(figures);
            }
        }
        match (tightest, under) {
            (Some(figures), _) => Status {
                is_over: figures.is_over && !is_shadow(under),
                current_limit: Some(figures.item.told()),
                limit_remaining: figures.remaining,
                seconds_until_reset: Some(figures.seconds),
            },
            (None, Under::Unlimited(_)) => {
                Status { limit_remaining: u32::MAX, ..Status::default() }
            }
            (None, _) => Status::default(),
        }
    };
    under.iter().enumerate().map(status).collect()
}

/// What is told of one limit.
struct Figures<'i, 's> {
    item: &'i Item<'s>,
    is_over: bool,
    remaining: u32,
    seconds: u64,
}

impl<'i, 's> Figures<'i, 's> {
    fn new(store: &MemoryStore, item: &'i Item<'s>, taken: &Taken) -> Self {
        let is_over = item.is_over(taken);
        let (remaining, wait) = match taken.decision() {
            // Envoy makes of it the time after which a client should come back.
            Some(decision) if is_over => {
                (0, decision.retry_after().unwrap_or(decision.reset_after))
            }
            Some(decision) => (decision.remaining, decision.reset_after),
            None if is_over => (0, Micros::ZERO),
            None => (item.limit.limit().capacity(), Micros::ZERO),
        };
        let is_window = matches!(item.limit.limit(), Limit::Counter(Counter::FixedWindow(_)));
        // A window on the clock ends at a known time, also if nothing was taken in it.
        let wait = match wait {
            Micros::ZERO if is_window => until_next(item.period(), store.now()),
            wait => wait,
        };
        Self { item, is_over, remaining, seconds: wait.as_micros().div_ceil(1_000_000) }
    }

    /// Least for the limit that is most in the way.
    fn rank(&self) -> (bool, u32, std::cmp::Reverse<u64>) {
        (!self.is_over, self.remaining, std::cmp::Reverse(self.seconds))
    }
}

fn until_next(period: Micros, now: Timestamp) -> Micros {
    Micros::new(period.as_micros() - now.as_micros() % period.as_micros())
}
