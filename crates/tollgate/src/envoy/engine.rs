//! Which limits a call is under, what is charged, and what comes of it.
//!
//! A call is asked about once. What is done with the answers is a [`Plan`], which borrows nothing, since
//! they may come later: from Redis they take a round trip. Only what depends on them takes another:
//! where nothing or not everything is charged to a call that is over, what is given back and what is
//! counted past a limit.

mod count;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, RwLock};

use arc_swap::ArcSwap;
use smallvec::SmallVec;
use tollgate_core::{Algorithm, Align, Cost, Counter, Key, Limit, Micros, Quota, Timestamp, Value};
use tollgate_policy::bounds::RATES_MAX;
use tollgate_policy::{
    Charging, DescriptorLimit, DescriptorRule, DescriptorSettings, Descriptors, Domain, Layer,
};
use tollgate_store::{
    Answers, Asked, Charge, Claim, Enrolled, Mode, OnFailure, Store, Taken, TooManyLimits, Waiting,
};

use super::tell;
use super::{Call, CurrentLimit, Descriptor, Metadata, Override, Response, Status};
use crate::bounds::{METRICS_SERIES_MAX, OVERRIDES_MAX};
use crate::limiter::{Limiter, on_failure};
use crate::metrics::{Counted, Counting, LimitCount, Series};
use count::{CountLater, Counts};

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
    /// By the number of a domain, where what its limits say is counted.
    series: Vec<Series>,
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
struct Item {
    descriptor: usize,
    limit: Enrolled,
    told: CurrentLimit,
    name: &'static str,
    /// What it is counted by, among the values of all.
    values: Range<usize>,
    cost: Cost,
    is_credit: bool,
    on_failure: OnFailure,
}

type Items = SmallVec<[Item; INLINE]>;

/// What the store says of each item.
type Said = SmallVec<[Taken; INLINE]>;

/// What is to be known of a descriptor when the answers come.
#[derive(Clone, Copy)]
struct Standing {
    is_unlimited: bool,
    is_quota: bool,
    is_shadow: bool,
}

impl Engine {
    /// What [`Engine::put_in_force`] takes.
    pub(super) fn prepare(
        &self,
        store: &Store,
        counted: &Counted,
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
        let before = self.in_force.load();
        let known = |name: &&str| {
            let domain = before.descriptors.domain(name)?;
            before.series.get(domain.number()).filter(|_| domain.number() < METRICS_SERIES_MAX)
        };
        let series = descriptors.domains().into_iter().enumerate().map(|(number, name)| {
            if number >= METRICS_SERIES_MAX {
                return counted.others.clone();
            }
            known(&name).cloned().unwrap_or_else(|| Series::new(false))
        });
        let series = series.collect();
        Ok(Arc::new(InForce { descriptors, enrolled, settings, headers, series }))
    }

    pub(super) fn put_in_force(&self, prepared: Arc<InForce>) {
        self.in_force.store(prepared);
    }

    /// What the limits of each domain have said.
    pub(crate) fn tell(&self) -> Vec<LimitCount> {
        let in_force = self.in_force.load();
        let domains = in_force.descriptors.domains();
        let told = domains.iter().zip(&in_force.series).take(METRICS_SERIES_MAX);
        told.map(|(name, series)| series.tell(format!("envoy:{name}").into(), String::new()))
            .collect()
    }

    pub(super) fn decide(&self, limiter: &Limiter, call: &Call<'_>) -> Asked<Response> {
        let store = limiter.store();
        let counting = Counting::start(store.clock(), Layer::Request);
        let in_force = self.in_force.load();
        let domain = in_force.descriptors.domain(call.domain);
        let series = domain.map(|domain| &in_force.series[domain.number()]);
        let under = self.under(store, &in_force, domain.as_ref(), call);
        let mut values: SmallVec<[Value<'_>; 16]> = SmallVec::new();
        let mut plan = Plan::new(&in_force, call, &under, &mut values);
        let said = match plan.charging {
            _ if plan.items.is_empty() => Asked::Ready(Said::new()),
            Charging::Every => plan.take_each(store, &values),
            Charging::UnlessOver | Charging::AllOrNothing => {
                match plan.take_together(store, &values) {
                    Asked::Ready(answers) => plan.settle(store, &values, &answers),
                    Asked::Waiting(answers) => {
                        let later = CountLater::new(limiter, series, &plan, &values);
                        let values = Kept::new(&values);
                        return Asked::later(async move {
                            let answers = answers.await;
                            let said = plan.settle(&later.store, &values.lent(), &answers);
                            let said = said.await;
                            later.count(&plan, &said, counting);
                            plan.tell(&later.store, &said)
                        });
                    }
                }
            }
        };
        match said {
            Asked::Ready(said) => {
                let (counted, observer) = (&limiter.counted, &limiter.observer);
                let write = |place: usize, text: &mut String| {
                    limiter.write_shown_key(&plan.items[place].key(&values), text);
                };
                plan.count(Counts { store, counted, observer, series }, &said, counting, write);
                Asked::Ready(plan.tell(store, &said))
            }
            Asked::Waiting(said) => {
                let later = CountLater::new(limiter, series, &plan, &values);
                Asked::later(async move {
                    let said = said.await;
                    later.count(&plan, &said, counting);
                    plan.tell(&later.store, &said)
                })
            }
        }
    }

    /// What each descriptor is under, those that others replace left out.
    fn under<'s>(
        &self,
        store: &Store,
        in_force: &'s InForce,
        domain: Option<&Domain<'s>>,
        call: &Call<'_>,
    ) -> SmallVec<[Under<'s>; INLINE]> {
        // As in the service that the files are of, a domain it does not know has no limits at all.
        let Some(domain) = domain else {
            return call.descriptors.iter().map(|_| Under::Nothing).collect();
        };
        call.descriptors
            .iter()
            .map(|descriptor| self.under_one(store, in_force, domain, descriptor))
            .collect()
    }

    fn under_one<'s>(
        &self,
        store: &Store,
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
    fn enroll(&self, store: &Store, limit: Override, algorithm: Algorithm) -> Option<Enrolled> {
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
) -> Items {
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
        let item = |told, limit, place: usize, on_failure| Item {
            descriptor: index,
            limit,
            told,
            name: NAMES[place],
            values: start..values.len(),
            cost: cost(call, descriptor),
            is_credit: descriptor.is_negative_hits,
            on_failure,
        };
        if let Under::Override(limit, enrolled, _) = under {
            items.push(item(limit.told(), *enrolled, 0, OnFailure::Local));
        }
        for (place, limit) in limits.iter().enumerate().filter(|(_, it)| !is_replaced(it)) {
            let enrolled = in_force.enrolled[limit.limit()];
            items.push(item(told(limit), enrolled, place, on_failure(limit.on_store_failure())));
        }
    }
    items
}

fn cost(call: &Call<'_>, descriptor: &Descriptor<'_>) -> Cost {
    let hits = descriptor.hits.unwrap_or(u64::from(call.hits.max(1)));
    Cost::new(u32::try_from(hits).unwrap_or(u32::MAX))
}

fn told(limit: &DescriptorLimit) -> CurrentLimit {
    CurrentLimit {
        name: limit.name().cloned(),
        requests_per_unit: limit.requests_per_unit(),
        unit: limit.unit(),
        unit_multiplier: Some(limit.unit_multiplier()).filter(|it| *it > 1),
    }
}

impl Override {
    fn told(&self) -> CurrentLimit {
        CurrentLimit {
            name: None,
            requests_per_unit: self.requests_per_unit,
            unit: self.unit,
            unit_multiplier: Some(self.unit_multiplier).filter(|it| *it > 1),
        }
    }
}

impl Standing {
    fn new(under: &Under<'_>, settings: &DescriptorSettings) -> Self {
        let rule = match under {
            Under::Rule(rule) => Some(rule),
            Under::Nothing | Under::Unlimited(_) | Under::Override(..) => None,
        };
        let is_unlimited = matches!(under, Under::Unlimited(_));
        Self {
            is_unlimited,
            is_quota: !is_unlimited && (settings.quota || rule.is_some_and(|rule| rule.is_quota())),
            is_shadow: rule.is_some_and(|rule| rule.is_shadow()),
        }
    }
}

/// What is asked for a call, and what is made of the answers.
struct Plan {
    items: Items,
    descriptors: SmallVec<[Standing; INLINE]>,
    charging: Charging,
    /// Whether no call is ever over.
    is_shadow: bool,
    headers: Option<[Arc<str>; 3]>,
    metadata: Option<Metadata>,
}

impl Plan {
    /// Also fills in the `values` that its items are counted by.
    fn new<'s: 'v, 'c: 'v, 'v>(
        in_force: &'s InForce,
        call: &Call<'c>,
        under: &[Under<'s>],
        values: &mut SmallVec<[Value<'v>; 16]>,
    ) -> Self {
        let InForce { settings, headers, .. } = in_force;
        let descriptors: SmallVec<[Standing; INLINE]> =
            under.iter().map(|under| Standing::new(under, settings)).collect();
        let has_quotas = descriptors.iter().any(|standing| standing.is_quota);
        Self {
            items: items(in_force, call, under, values),
            descriptors,
            charging: settings.charging,
            is_shadow: settings.shadow,
            headers: headers.clone(),
            metadata: settings.dynamic_metadata.then(|| tell::asked(call, has_quotas)),
        }
    }

    /// Charges every item, also if it is over.
    fn take_each(&self, store: &Store, values: &[Value<'_>]) -> Asked<Said> {
        if self.items.iter().any(|item| item.is_credit || item.is_too_costly()) {
            return self.take_in_turn(store, values);
        }
        let charges: SmallVec<[Charge<'_>; INLINE]> =
            self.items.iter().map(|item| item.charge_past_the_limit(values)).collect();
        // Lists of answers are costly to hand around.
        if let Some(memory) = store.memory() {
            let mut said = Said::new();
            memory.take_each(&charges, |taken| said.push(taken));
            return Asked::Ready(said);
        }
        store.take_each(&charges).map(|answers| Said::from_slice(answers.taken()))
    }

    /// The same one by one, since what one item does may decide about the next.
    #[cold]
    fn take_in_turn(&self, store: &Store, values: &[Value<'_>]) -> Asked<Said> {
        let mut past = Vec::new();
        let take = |item: &Item| {
            if item.is_credit {
                return store.credit(&item.charge(values));
            }
            let charge = item.charge_past_the_limit(values);
            let taken = store.take_each(&[charge]).map(|answers| answers.taken()[0]);
            if item.is_too_costly() {
                past.extend(item.count_past_the_limit(store, values));
            }
            taken
        };
        let said = self.items.iter().map(take).collect();
        after(past, all(said))
    }

    /// Charges all items, or none if the call is over; but one of several quotas does not stop it,
    /// and what is given back is given back when it is known that the call is not over.
    fn take_together(&self, store: &Store, values: &[Value<'_>]) -> Asked<Answers> {
        let some_quotas = self.quotas().count() > 1;
        let mut charges: SmallVec<[Charge<'_>; INLINE]> = SmallVec::new();
        for item in &self.items {
            let standing = self.descriptors[item.descriptor];
            let is_told_only = self.is_shadow
                || standing.is_shadow
                || item.is_credit
                || (some_quotas && standing.is_quota);
            let mode = if is_told_only { Mode::Shadow } else { Mode::Enforce };
            let cost = if item.is_credit { Cost::PEEK } else { item.cost };
            charges.push(Charge { mode, cost, ..item.charge(values) });
        }
        store.take(&charges)
    }

    /// Does what follows from what was taken together.
    fn settle(&self, store: &Store, values: &[Value<'_>], answers: &Answers) -> Asked<Said> {
        let mut said = Asked::Ready(Said::from_slice(answers.taken()));
        if self.is_over(answers.taken()) {
            // There is something to give back only if it was the last of the quotas that said no.
            for (place, taken) in answers.taken().iter().enumerate() {
                if let Some(receipt) = taken.receipt() {
                    drop(store.refund(&Claim::new(receipt, answers.origin(), place)));
                }
            }
        } else if self.items.iter().any(|item| item.is_credit) {
            said = self.give_back(store, values, answers.taken());
        }
        if self.charging != Charging::UnlessOver {
            return said;
        }
        let over = self.items.iter().zip(answers.taken());
        let over = over.filter(|(item, taken)| item.is_over(taken));
        let past = over.filter_map(|(item, _)| item.count_past_the_limit(store, values));
        after(past.collect(), said)
    }

    /// Gives back what is to be given back, and says anew what is left there.
    #[cold]
    fn give_back(&self, store: &Store, values: &[Value<'_>], said: &[Taken]) -> Asked<Said> {
        let asked = self.items.iter().zip(said).map(|(item, taken)| match item.is_credit {
            true => store.credit(&item.charge(values)),
            false => Asked::Ready(*taken),
        });
        all(asked.collect())
    }

    /// Which descriptors are quotas.
    fn quotas(&self) -> impl Iterator<Item = usize> + Clone {
        let quotas = self.descriptors.iter().enumerate().filter(|(_, standing)| standing.is_quota);
        quotas.map(|(index, _)| index)
    }

    /// A call is over its limits if a limit is that is no quota, or if all quotas are.
    fn is_over(&self, said: &[Taken]) -> bool {
        if self.is_shadow {
            return false;
        }
        let over = self.items.iter().zip(said).filter(|(item, taken)| {
            item.is_over(taken) && !self.descriptors[item.descriptor].is_shadow
        });
        let mut quotas: SmallVec<[usize; INLINE]> = SmallVec::new();
        for (item, _) in over {
            if !self.descriptors[item.descriptor].is_quota {
                return true;
            }
            if quotas.last() != Some(&item.descriptor) {
                quotas.push(item.descriptor);
            }
        }
        !quotas.is_empty() && quotas.len() == self.quotas().count()
    }

    /// The response; once, since it is made of what is here.
    fn tell(&mut self, store: &Store, said: &[Taken]) -> Response {
        let is_over = self.is_over(said);
        let statuses = self.statuses(store, said);
        let headers = self.headers.take();
        let headers = headers.map_or_else(Vec::new, |names| tell::headers(names, &statuses));
        let mut metadata = self.metadata.take();
        if let Some(metadata) = &mut metadata {
            tell::violations(metadata, &statuses, self.quotas());
        }
        Response { is_over, statuses, headers, metadata }
    }

    /// The answer to each descriptor.
    fn statuses(&mut self, store: &Store, said: &[Taken]) -> SmallVec<[Status; INLINE]> {
        let mut rest = self.items.iter_mut().zip(said).peekable();
        let status = |(index, standing): (usize, &Standing)| {
            let mut tightest: Option<(Figures, &mut Item)> = None;
            while let Some((item, taken)) = rest.next_if(|(item, _)| item.descriptor == index) {
                let figures = Figures::new(store, item, taken);
                if tightest.as_ref().is_none_or(|(other, _)| figures.rank() < other.rank()) {
                    tightest = Some((figures, item));
                }
            }
            match tightest {
                Some((figures, item)) => Status {
                    is_over: figures.is_over && !standing.is_shadow,
                    current_limit: Some(item.take_told()),
                    limit_remaining: figures.remaining,
                    seconds_until_reset: Some(figures.seconds),
                },
                None if standing.is_unlimited => {
                    Status { limit_remaining: u32::MAX, ..Status::default() }
                }
                None => Status::default(),
            }
        };
        self.descriptors.iter().enumerate().map(status).collect()
    }
}

impl Item {
    fn key<'a>(&'a self, values: &'a [Value<'a>]) -> Key<'a> {
        Key { limit: self.name, values: &values[self.values.clone()] }
    }

    fn charge<'a>(&'a self, values: &'a [Value<'a>]) -> Charge<'a> {
        let (cost, on_failure) = (self.cost, self.on_failure);
        Charge { cost, on_failure, ..Charge::new(self.key(values), &self.limit) }
    }

    /// The same, counted also if it is refused, as the service does that the files are of: its counters
    /// go on past the limit until their window ends, which a peek can tell from one that is just used
    /// up. The algorithms that are ours would carry the excess over, and lock out whoever goes on
    /// asking.
    fn charge_past_the_limit<'a>(&'a self, values: &'a [Value<'a>]) -> Charge<'a> {
        Charge { count_denied: self.is_window(), ..self.charge(values) }
    }

    /// Counts what was refused and has not been counted. It is counted for sure when what is returned
    /// has been waited for.
    #[cold]
    fn count_past_the_limit(&self, store: &Store, values: &[Value<'_>]) -> Option<Waiting<()>> {
        if !self.is_window() || self.cost == Cost::PEEK {
            return None;
        }
        let (cost, most) = (self.cost.units(), self.limit.limit().capacity());
        // What costs more than there ever is takes all there is first, and then some.
        let parts = [cost.min(most), cost.saturating_sub(most).min(most)];
        let charge = |part| Charge { cost: Cost::new(part), ..self.charge_past_the_limit(values) };
        let charges: SmallVec<[Charge<'_>; 2]> =
            parts.into_iter().filter(|part| *part > 0).map(charge).collect();
        match store.take_each(&charges).map(drop) {
            Asked::Ready(()) => None,
            Asked::Waiting(counted) => Some(counted),
        }
    }

    /// Whether a limit says no. What is given back is never too much, whatever was taken before.
    fn is_over(&self, taken: &Taken) -> bool {
        !taken.is_allowed() && !self.is_credit
    }

    /// Whether it asks for more than there ever is.
    fn is_too_costly(&self) -> bool {
        self.cost.units() > self.limit.limit().capacity()
    }

    fn is_window(&self) -> bool {
        matches!(self.limit.limit(), Limit::Counter(Counter::FixedWindow(_)))
    }

    fn period(&self) -> Micros {
        let units = self.told.unit_multiplier.unwrap_or(1);
        Micros::new(self.told.unit.period().as_micros() * u64::from(units))
    }

    /// How it is told; once, since a name is not copied.
    fn take_told(&mut self) -> CurrentLimit {
        CurrentLimit { name: self.told.name.take(), ..self.told }
    }
}

/// What is told of one limit.
struct Figures {
    is_over: bool,
    remaining: u32,
    seconds: u64,
}

impl Figures {
    fn new(store: &Store, item: &Item, taken: &Taken) -> Self {
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
        // A window on the clock ends at a known time, also if nothing was taken in it.
        let wait = match wait {
            Micros::ZERO if item.is_window() => until_next(item.period(), store.now()),
            wait => wait,
        };
        Self { is_over, remaining, seconds: wait.as_micros().div_ceil(1_000_000) }
    }

    /// Least for the limit that is most in the way.
    fn rank(&self) -> (bool, u32, std::cmp::Reverse<u64>) {
        (!self.is_over, self.remaining, std::cmp::Reverse(self.seconds))
    }
}

fn until_next(period: Micros, now: Timestamp) -> Micros {
    Micros::new(period.as_micros() - now.as_micros() % period.as_micros())
}

/// All of some answers, in their order.
fn all(asked: Vec<Asked<Taken>>) -> Asked<Said> {
    if asked.iter().all(|asked| matches!(asked, Asked::Ready(_))) {
        return Asked::Ready(asked.into_iter().map(Asked::wait).collect());
    }
    Asked::later(async move {
        let mut said = Said::new();
        for asked in asked {
            said.push(asked.await);
        }
        said
    })
}

/// An answer, when something else is done too.
fn after(others: Vec<Waiting<()>>, said: Asked<Said>) -> Asked<Said> {
    if others.is_empty() {
        return said;
    }
    Asked::later(async move {
        for other in others {
            other.await;
        }
        said.await
    })
}

/// Values that outlive the call they came with.
struct Kept(Vec<(Box<[u8]>, u8)>);

impl Kept {
    fn new(values: &[Value<'_>]) -> Self {
        let kept = |value: &Value<'_>| (value.bytes.unwrap_or_default().into(), value.source);
        Self(values.iter().map(kept).collect())
    }

    fn lent(&self) -> SmallVec<[Value<'_>; 16]> {
        self.0
            .iter()
            .map(|(bytes, source)| Value { source: *source, ..Value::new(bytes) })
            .collect()
    }
}
