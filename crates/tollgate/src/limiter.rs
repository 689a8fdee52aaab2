//! Asks the policy what applies and the store what is left.

use std::collections::BTreeMap;
use std::error;
use std::fmt;
use std::slice;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::{ArcSwap, Guard};
use smallvec::SmallVec;
use tollgate_core::{Cost, Decision, Key, Limit, Logged, Micros, Quota, Shown, Timestamp, Value};
use tollgate_policy::{Admission, Charges, Layer, Mistakes, Mode, OnStoreFailure, Policy, Request};
use tollgate_policy::{Rule, Scratch, ShownKeys, Store as StoreSettings, SyncMode};
use tollgate_store::bounds::MAX_BYTES_DEFAULT;
use tollgate_store::{
    Answers, Asked, Charge, Claim, Clock, Enrolled, MemoryStore, Named, OnFailure,
};
use tollgate_store::{Store, Taken, TooManyLimits, Unreservable, Waiting};

use crate::bounds::{KEYS_BYTES_MAX, TOGETHER};
use crate::denial::{DenialSink, ShowValue};
use crate::envoy::Engine;
use crate::http::fields::Spelled;
use crate::metrics::{Counted, Counting, Live, Table, Turn};
use crate::observe::{self, Looked, Observer, Said};
use crate::overrides::{Bans, Overridden, Override, Overrides};
use crate::verdict::{Entry, Ruling, Verdict};

/// Decides requests under a policy, which can be replaced while it does.
pub struct Limiter {
    store: Store,
    policy: ArcSwap<InForce>,
    /// Held while something else is put in force, since that is made of what is.
    pub(crate) changing: Mutex<()>,
    pub(crate) observer: Arc<Observer>,
    pub(crate) counted: Arc<Counted>,
    envoy: Engine,
}

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

/// Limits of one request that need no allocation.
const INLINE: usize = 8;

impl Limiter {
    /// A limiter that keeps its states in `store`.
    pub fn new(policy: Policy, store: impl Into<Store>) -> Result<Self, TooManyLimits> {
        let store = store.into();
        let counted = Arc::new(Counted::new());
        let series = Arc::new(Table::new(&policy, None, &counted));
        let in_force = InForce::new(Arc::new(policy), BTreeMap::new(), &store, series)?;
        let observer = Arc::new(Observer::new(store.now()));
        Ok(Self {
            store,
            policy: ArcSwap::from_pointee(in_force),
            changing: Mutex::default(),
            observer,
            counted,
            envoy: Engine::default(),
        })
    }

    /// A limiter for a policy that needs no other file, with a memory store of its own, as large as
    /// the policy says. Reading files is the caller's, and so is another store: see
    /// [`Policy::parse`] and [`Limiter::new`].
    pub fn from_yaml(text: &str) -> Result<Self, LimiterError> {
        let no_files = |_: &str| {
            Err("from_yaml reads no files; read them for Policy::parse and Limiter::new".to_owned())
        };
        let policy = Policy::parse("policy", text, &mut { no_files })?;
        // A limit counted where nobody asked for it would multiply with the replicas.
        let StoreSettings::Memory(memory) = &policy.settings().store else {
            return Err(LimiterError::OtherStore);
        };
        let max_bytes = memory.max_bytes;
        let max_bytes = max_bytes
            .map_or(MAX_BYTES_DEFAULT, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let store = MemoryStore::with_max_bytes(Clock::system(), max_bytes)?;
        Ok(Self::new(policy, store)?)
    }

    /// Has requests that are refused told to `sink`, or to whoever wanted them first.
    pub fn set_denial_sink(&self, sink: Arc<dyn DenialSink>) {
        self.observer.record.keep(sink);
    }

    /// Decides one request, and waits for the answer if the states are not in memory. Whatever goes
    /// wrong, the answer is a verdict.
    pub fn check(&self, request: &Request<'_>) -> Verdict {
        let mut verdict = Verdict::begin(self.policy.load());
        let Some(asked) = self.decide(&mut verdict, request, None) else { return verdict };
        // It has hold of the policy, which for long makes others slower.
        drop(verdict);
        asked.wait()
    }

    /// Decides one request without waiting: for callers that have other things to do until the
    /// answer is there.
    pub fn ask(&self, request: &Request<'_>) -> Asked<Verdict> {
        self.ask_under(self.policy.load(), request, None)
    }

    /// The same, and shows which keys were asked: `keys` then holds one for each of
    /// [`Verdict::answers`], and whatever it held before is gone.
    pub fn ask_showing(&self, request: &Request<'_>, keys: &mut Keys) -> Asked<Verdict> {
        self.ask_under(self.policy.load(), request, Some(keys))
    }

    /// The same for whoever can use the verdict where it is made, since one is large; or gives one that
    /// is to be waited for.
    pub fn check_showing<T>(
        &self,
        request: &Request<'_>,
        keys: &mut Keys,
        tell: impl FnOnce(&mut Verdict, &Keys) -> T,
    ) -> Result<T, Waiting<Verdict>> {
        let mut verdict = Verdict::begin(self.policy.load());
        match self.decide(&mut verdict, request, Some(keys)) {
            None => Ok(tell(&mut verdict, keys)),
            Some(Asked::Ready(mut verdict)) => Ok(tell(&mut verdict, keys)),
            Some(Asked::Waiting(waiting)) => Err(waiting),
        }
    }

    /// Decides each of `requests` on its own, in their order, and shows every verdict to `show`. Where
    /// each is under one limit that is cheaper than one by one: their memory is fetched together. A
    /// slot that one is given comes back when its lease ends, so this is for requests of which nobody
    /// learns when they [end](crate::End). False, and nothing is decided, if the states are not in
    /// memory.
    pub fn check_each(&self, requests: &[Request<'_>], mut show: impl FnMut(&Verdict)) -> bool {
        let Some(store) = self.store.memory() else { return false };
        let mut verdict = Verdict::begin(self.policy.load());
        for requests in requests.chunks(TOGETHER) {
            self.check_batch(store, requests, &mut verdict, &mut show);
        }
        true
    }

    /// Decides a few requests under the policy of a verdict, which is used for all of them.
    fn check_batch(
        &self,
        store: &MemoryStore,
        requests: &[Request<'_>],
        verdict: &mut Verdict,
        show: &mut impl FnMut(&Verdict),
    ) {
        let (clock, policy) = (self.store.clock(), &verdict.policy);
        let mut scratches: [Scratch; TOGETHER] = Default::default();
        let mut charges = Charges::new();
        let mut begun: SmallVec<[Begun<'_, '_, '_>; TOGETHER]> = SmallVec::new();
        for (request, scratch) in requests.iter().zip(&mut scratches) {
            let (counting, before) = (Counting::start(clock, request.layer), charges.len());
            let admission = policy.policy.admit(request, scratch, &mut charges);
            begun.push(Begun { request, counting, admission, charges: charges.len() - before });
        }
        // Most requests are under one limit, and most keys are not allowed anything else.
        if policy.overrides.are_none() && begun.iter().all(|begun| begun.charges == 1) {
            let asked: SmallVec<[Charge<'_>; TOGETHER]> =
                charges.iter().map(|charge| asked(policy, charge)).collect();
            let mut answers: SmallVec<[Taken; TOGETHER]> = SmallVec::new();
            store.take_each(&asked, |taken| answers.push(taken));
            for (begun, (charge, taken)) in begun.iter().zip(charges.iter().zip(&answers)) {
                verdict.taken.clear();
                verdict.ruling = add(policy, charge, *taken, Ruling::Allowed, &mut verdict.taken);
                let charges = slice::from_ref(charge);
                self.note(begun, policy, charges, verdict.ruling, &verdict.taken);
                show(verdict);
            }
            return;
        }
        let mut charges = charges.into_iter();
        for begun in &begun {
            let mut own: Charges<'_, '_> = charges.by_ref().take(begun.charges).collect();
            verdict.taken.clear();
            let (ruling, taken) = (&mut verdict.ruling, &mut verdict.taken);
            let elsewhere = self.pay(begun, policy, &mut own, ruling, taken, None);
            debug_assert!(elsewhere.is_none(), "memory answers at once");
            show(verdict);
        }
    }

    /// The policy in force, to ask more than one thing of it: what to look for in a request, and
    /// then what to say to it.
    pub fn pin(&self) -> Pinned<'_> {
        Pinned { limiter: self, policy: self.policy.load_full() }
    }

    /// What time it is where the states are.
    pub fn now(&self) -> Timestamp {
        self.store.now()
    }

    fn ask_under(
        &self,
        policy: Guard<Arc<InForce>>,
        request: &Request<'_>,
        keys: Option<&mut Keys>,
    ) -> Asked<Verdict> {
        // Made where it is returned.
        let mut asked = Asked::Ready(Verdict::begin(policy));
        if let Asked::Ready(verdict) = &mut asked
            && let Some(elsewhere) = self.decide(verdict, request, keys)
        {
            asked = elsewhere;
        }
        asked
    }

    /// Decides a request under the policy that a verdict has begun with, and completes it; or gives
    /// another, if the states are not in memory. A verdict is large, and moved as seldom as can be.
    #[inline]
    fn decide(
        &self,
        verdict: &mut Verdict,
        request: &Request<'_>,
        mut keys: Option<&mut Keys>,
    ) -> Option<Asked<Verdict>> {
        let counting = Counting::start(self.store.clock(), request.layer);
        let Verdict { ruling, taken, policy, .. } = verdict;
        let (mut scratch, mut charges) = (Scratch::default(), Charges::new());
        if let Some(keys) = &mut keys {
            keys.clear();
        }
        let admission = policy.policy.admit(request, &mut scratch, &mut charges);
        let begun = Begun { request, counting, admission, charges: charges.len() };
        self.pay(&begun, policy, &mut charges, ruling, taken, keys)
    }

    /// Takes what a request is charged, and says what becomes of it; or gives a verdict that is not
    /// there yet.
    #[inline]
    fn pay<'p: 'r, 'r>(
        &self,
        begun: &Begun<'_, 'p, 'r>,
        policy: &'p Guard<Arc<InForce>>,
        charges: &mut Charges<'p, 'r>,
        ruling: &mut Ruling,
        taken: &mut SmallVec<[Entry; 4]>,
        keys: Option<&mut Keys>,
    ) -> Option<Asked<Verdict>> {
        if !matches!(begun.admission, Admission::Charged) {
            *ruling = self.rule_out(begun, policy);
            return None;
        }
        let bans = match policy.overrides.are_none() {
            true => Bans::default(),
            false => policy.override_charges(charges, &self.store),
        };
        let mut elsewhere = None;
        match self.store.memory() {
            _ if !bans.are_none() => *ruling = deny(policy, charges, &bans, taken),
            Some(store) => *ruling = settle(store, policy, charges, taken),
            None => elsewhere = Elsewhere::ask(self, policy, charges, begun.counting.turn),
        }
        if let Some(keys) = keys {
            for charge in &*charges {
                keys.push(|text| self.store.write_key_text(&key(charge), text));
            }
        }
        if let Some(elsewhere) = elsewhere {
            return Some(elsewhere.verdict(Arc::clone(policy), begun.counting));
        }
        self.note(begun, policy, charges, *ruling, taken);
        None
    }

    /// Counts a request that was decided, and looks at it if it is its turn.
    #[inline]
    fn note(
        &self,
        begun: &Begun<'_, '_, '_>,
        policy: &InForce,
        charges: &[tollgate_policy::Charge<'_, '_>],
        ruling: Ruling,
        taken: &[Entry],
    ) {
        let (clock, counting) = (self.store.clock(), begun.counting);
        // Who connects has not sent a request, and is looked at only if that is limited.
        if (begun.request.layer == Layer::Request || !charges.is_empty())
            && let Some(looked) = counting.looked(clock, ruling, decided_at(taken))
        {
            self.observe(looked, policy, charges, taken);
        }
        if ruling == Ruling::Uncounted {
            let said = said(policy, charges, taken);
            let write = self.write(policy, charges);
            self.observer.record.tell(clock, ruling, &said, write);
        }
        counting.end(&self.counted, clock, ruling);
    }

    /// What becomes of a request that no limit is asked about.
    fn rule_out<'p: 'r, 'r>(&self, begun: &Begun<'_, 'p, 'r>, policy: &'p InForce) -> Ruling {
        let Begun { request, counting, admission, .. } = begun;
        let (clock, ruling) = (self.store.clock(), ruled_out(admission));
        let sender = |show: &mut ShowValue<'_>| {
            policy.show_sender(&self.store, request, admission, show);
        };
        self.observer.record.tell_unasked(clock, ruling, &sender);
        counting.end(&self.counted, clock, ruling);
        ruling
    }

    /// The keys that the limits which apply to a request count under, as they may be shown: in the
    /// order of [`Verdict::answers`].
    pub fn keys(&self, request: &Request<'_>) -> Vec<String> {
        self.policy.load().keys(request, &self.store)
    }

    /// Puts another policy in force. Requests under way finish under the one they began with; what
    /// keys have consumed stays consumed.
    pub fn replace_policy(&self, policy: Policy) -> Result<(), TooManyLimits> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.in_force();
        let overrides = before.overrides.list().clone();
        let series = Table::new(&policy, Some((&before.policy, &before.series)), &self.counted);
        let series = Arc::new(series);
        self.put_in_force(InForce::new(Arc::new(policy), overrides, &self.store, series)?);
        Ok(())
    }

    /// Call it with `changing` held.
    pub(crate) fn put_in_force(&self, in_force: InForce) {
        self.policy.store(Arc::new(in_force));
    }

    pub(crate) fn in_force(&self) -> Arc<InForce> {
        self.policy.load_full()
    }

    /// Looks closely at a request that was decided.
    #[cold]
    fn observe(
        &self,
        looked: Looked,
        policy: &InForce,
        charges: &[tollgate_policy::Charge<'_, '_>],
        entries: &[Entry],
    ) {
        let said = said(policy, charges, entries);
        let write = self.write(policy, charges);
        self.observer.look(looked, said, write);
        if looked.requests > 0 {
            for (charge, entry) in charges.iter().zip(entries) {
                let tenant = policy.series.of_tenant(charge);
                tenant.iter().for_each(|used| look(used, looked, &entry.taken));
            }
        }
    }

    /// Writes the key of the charge in some place as operators are shown it.
    fn write<'c>(
        &'c self,
        policy: &'c InForce,
        charges: &'c [tollgate_policy::Charge<'_, '_>],
    ) -> impl Fn(usize, &mut String) + 'c {
        |place, text| policy.write_shown_key(&self.store, &key(&charges[place]), text)
    }

    /// Writes a key as operators are shown it.
    pub(crate) fn write_shown_key(&self, key: &Key<'_>, text: &mut String) {
        self.policy.load().write_shown_key(&self.store, key, text);
    }

    /// Shows the policy in force to `look`.
    pub fn with_policy<T>(&self, look: impl FnOnce(&Policy) -> T) -> T {
        look(&self.policy.load().policy)
    }

    pub(crate) fn envoy(&self) -> &Engine {
        &self.envoy
    }

    /// Where the states are.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Gives back everything that a request was charged and time has not given back already. Nobody
    /// is told when that is done.
    pub fn refund(&self, verdict: Verdict) {
        let Verdict { taken, origin, .. } = verdict;
        for (place, entry) in taken.into_iter().enumerate() {
            if let Some(receipt) = entry.taken.receipt() {
                // What is on its way gets there whether somebody waits for the answer or not.
                drop(self.store.refund(&Claim::new(receipt, origin.as_ref(), place)));
            }
        }
    }

    /// Brings what a request was charged to what it really cost, when that is known: less comes back,
    /// as far as time has not given it back already, and more is charged, past the end of a limit if
    /// need be. The verdict that comes back tells what is left then, as to a peek, and has nothing to
    /// refund.
    ///
    /// Limits that say themselves what a request costs stay charged as they are, unless they say that
    /// it is settled; so do concurrency slots, whose lease is released or refunded as ever. A request
    /// that was denied has nothing to settle.
    pub fn settle(&self, verdict: Verdict, cost: Cost) -> Asked<Verdict> {
        let is_settled = |rule: &Rule| !rule.has_own_cost() || rule.settle().is_some();
        self.settle_each(verdict, |rule| is_settled(rule).then_some(cost))
    }

    /// The same, with what a request really cost under each limit; nothing for one that stays charged
    /// as it is.
    pub fn settle_each(
        &self,
        verdict: Verdict,
        cost: impl Fn(&Rule) -> Option<Cost>,
    ) -> Asked<Verdict> {
        if !verdict.is_allowed() {
            return Asked::Ready(verdict);
        }
        let Verdict { ruling, mut taken, origin, policy } = verdict.kept();
        let settle = |(place, entry): (usize, &Entry)| {
            let Some(receipt) = entry.taken.open_receipt() else {
                return Asked::Ready(entry.taken);
            };
            let claim = Claim::new(receipt, origin.as_ref(), place);
            let limit = policy.enrolled[entry.limit as usize].limit();
            let is_slot = matches!(limit, Limit::Logged(Logged::Concurrency(_)));
            if is_slot && claim.cost() != Cost::PEEK {
                // Still to be released.
                return Asked::Ready(entry.taken);
            }
            let rule = &policy.policy.rules()[entry.rule as usize];
            // A limit in shadow may have denied what went on, and was not charged for it.
            let is_charged = entry.taken.is_allowed() && !is_slot;
            let cost = cost(rule).filter(|_| is_charged).unwrap_or(claim.cost());
            self.store.settle(&claim, cost)
        };
        // All are asked before the first answer is waited for.
        let mut asked: SmallVec<[Asked<Taken>; 4]> = taken.iter().enumerate().map(settle).collect();
        if asked.iter().all(|asked| matches!(asked, Asked::Ready(_))) {
            for (entry, asked) in taken.iter_mut().zip(asked) {
                entry.taken = asked.wait();
            }
            return Asked::Ready(Verdict { ruling, taken, origin, policy });
        }
        let policy = Guard::into_inner(policy);
        Asked::later(async move {
            for (entry, asked) in taken.iter_mut().zip(asked.drain(..)) {
                entry.taken = asked.await;
            }
            Verdict { ruling, taken, origin, policy: Guard::from_inner(policy) }
        })
    }

    /// Gives the slots of a lease back; false if all of them had come back by themselves, nothing if
    /// nobody can tell, since the store does not answer. Then they come back when it does, or when the
    /// lease ends.
    pub fn release(&self, lease: Lease) -> Asked<Option<bool>> {
        every(lease.slots.into_iter().map(|slot| self.store.refund(&slot)), true)
    }

    /// Starts a lease anew; false if one of its slots has come back by itself, nothing if nobody can
    /// tell.
    pub fn renew(&self, lease: &Lease) -> Asked<Option<bool>> {
        every(lease.slots.iter().map(|slot| self.store.renew(slot)), false)
    }
}

/// What becomes of several answers, of which there is one at least: that which `decides`, whatever the
/// others say, or else the other if all say so.
fn every(asked: impl Iterator<Item = Asked<Option<bool>>>, decides: bool) -> Asked<Option<bool>> {
    let both = move |one: Option<bool>, other: Option<bool>| {
        if [one, other].contains(&Some(decides)) { Some(decides) } else { one.and(other) }
    };
    // All are asked before the first answer is waited for.
    let asked: SmallVec<[Asked<Option<bool>>; 2]> = asked.collect();
    asked
        .into_iter()
        .reduce(|one, other| match (one, other) {
            (Asked::Ready(one), Asked::Ready(other)) => Asked::Ready(both(one, other)),
            (one, other) => Asked::later(async move { both(one.await, other.await) }),
        })
        .unwrap_or(Asked::Ready(Some(false)))
}

/// Takes what is charged, and adds what each limit said to `entries`.
fn settle(
    store: &MemoryStore,
    policy: &InForce,
    charges: &Charges<'_, '_>,
    entries: &mut SmallVec<[Entry; 4]>,
) -> Ruling {
    let ask = |charge| asked(policy, charge);
    // Most requests are under one limit, and lists of more are costly to hand around.
    if let [charge] = &charges[..] {
        return add(policy, charge, store.take_one(&ask(charge)), Ruling::Allowed, entries);
    }
    let asked: SmallVec<[Charge<'_>; INLINE]> = charges.iter().map(ask).collect();
    let (mut ruling, mut charged) = (Ruling::Allowed, charges.iter());
    store.take_all(&asked, |taken| {
        let charge = charged.next().expect("there is an answer for each");
        ruling = add(policy, charge, taken, ruling, entries);
    });
    ruling
}

/// Adds what a limit said, and says what becomes of the request then.
#[inline(always)]
fn add(
    policy: &InForce,
    charge: &tollgate_policy::Charge<'_, '_>,
    taken: Taken,
    so_far: Ruling,
    entries: &mut SmallVec<[Entry; 4]>,
) -> Ruling {
    count(policy, charge, &taken);
    entries.push(entry(charge, taken));
    ruled(so_far, charge.rule, &taken)
}

/// Denies a request with keys that are banned, by these alone: whoever is banned must not cost a
/// question to the store. Only their charges remain.
#[cold]
fn deny(
    policy: &InForce,
    charges: &mut Charges<'_, '_>,
    bans: &Bans,
    entries: &mut SmallVec<[Entry; 4]>,
) -> Ruling {
    *charges = bans.iter().map(|(place, _)| charges[*place].clone()).collect();
    for (charge, (_, taken)) in charges.iter().zip(bans.iter()) {
        count(policy, charge, taken);
        entries.push(entry(charge, *taken));
    }
    Ruling::Denied
}

#[inline(always)]
fn count(policy: &InForce, charge: &tollgate_policy::Charge<'_, '_>, taken: &Taken) {
    policy.series.of(charge.rule_index, charge.tier).count(charge.rule.mode(), taken);
}

/// When a request was decided, if an answer says so.
fn decided_at(entries: &[Entry]) -> Option<Timestamp> {
    entries.first().and_then(|entry| entry.taken.counted_at())
}

/// Counts the share of a limit that is in use after a decision that is looked at.
fn look(used: &Live, looked: Looked, taken: &Taken) {
    if let Some(decision) = taken.decision().filter(Decision::is_allowed) {
        used.add(observe::used(&decision).into(), looked.requests);
    }
}

/// What each limit said to what it was charged.
fn said<'c>(
    policy: &'c InForce,
    charges: &'c [tollgate_policy::Charge<'_, '_>],
    entries: &'c [Entry],
) -> impl Iterator<Item = Said<'c>> + Clone {
    charges.iter().zip(entries).enumerate().map(|(place, (charge, entry))| Said {
        place,
        series: policy.series.of(charge.rule_index, charge.tier),
        mode: charge.rule.mode(),
        taken: &entry.taken,
    })
}

/// A request of which it is known what it is charged.
struct Begun<'q, 'p, 'r> {
    request: &'q Request<'r>,
    counting: Counting,
    admission: Admission<'p, 'r>,
    /// How many charges are its own.
    charges: usize,
}

/// What is asked of a store that is not in memory.
struct Elsewhere {
    asked: Asked<Answers>,
    charged: SmallVec<[Charged; INLINE]>,
    /// The keys of all, should they be looked at.
    keys: Keys,
    observer: Arc<Observer>,
    counted: Arc<Counted>,
    clock: Clock,
}

/// What is kept of a charge until its answer is there.
struct Charged {
    rule: u32,
    limit: u32,
    tier: u32,
    /// Where it is counted by its tenant, if it is.
    tenant: Option<Arc<Live>>,
}

impl Elsewhere {
    /// Nobody is asked if no limit applies.
    fn ask(
        limiter: &Limiter,
        policy: &InForce,
        charges: &Charges<'_, '_>,
        turn: Turn,
    ) -> Option<Self> {
        let store = &limiter.store;
        let ask = |charge| asked(policy, charge);
        let asked: SmallVec<[Charge<'_>; INLINE]> = charges.iter().map(ask).collect();
        let charged = charges.iter().map(|charge| Charged {
            rule: charge.rule_index as u32,
            limit: charge.limit as u32,
            tier: charge.tier,
            tenant: (turn.weight() > 0).then(|| policy.series.of_tenant(charge)).flatten(),
        });
        let charged = charged.collect();
        let mut keys = Keys::default();
        for charge in charges {
            keys.push(|text| policy.write_shown_key(store, &key(charge), text));
        }
        (!asked.is_empty()).then(|| Self {
            asked: store.take(&asked),
            charged,
            keys,
            observer: Arc::clone(&limiter.observer),
            counted: Arc::clone(&limiter.counted),
            clock: store.clock().clone(),
        })
    }

    fn verdict(self, policy: Arc<InForce>, counting: Counting) -> Asked<Verdict> {
        let Self { asked, charged, keys, observer, counted, clock } = self;
        asked.map(move |answers| {
            let (mut ruling, mut taken) = (Ruling::Allowed, SmallVec::new());
            for (&Charged { rule, limit, tier, .. }, said) in charged.iter().zip(answers.taken()) {
                let charged = &policy.policy.rules()[rule as usize];
                policy.series.of(rule as usize, tier).count(charged.mode(), said);
                ruling = ruled(ruling, charged, said);
                taken.push(Entry { rule, limit, taken: *said });
            }
            counting.end(&counted, &clock, ruling);
            let told = charged.iter().zip(answers.taken()).enumerate();
            let said = told.map(|(place, (charged, taken))| Said {
                place,
                series: policy.series.of(charged.rule as usize, charged.tier),
                mode: policy.policy.rules()[charged.rule as usize].mode(),
                taken,
            });
            let write = |place: usize, text: &mut String| text.push_str(keys.at(place));
            if ruling == Ruling::Uncounted {
                observer.record.tell(&clock, ruling, &said, write);
            }
            if let Some(looked) = counting.looked(&clock, ruling, None) {
                observer.look(looked, said, write);
                for (charged, taken) in charged.iter().zip(answers.taken()) {
                    charged.tenant.iter().for_each(|used| look(used, looked, taken));
                }
            }
            let origin = answers.origin().cloned();
            Verdict { ruling, taken, origin, policy: Guard::from_inner(policy) }
        })
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

fn entry(charge: &tollgate_policy::Charge<'_, '_>, taken: Taken) -> Entry {
    Entry { rule: charge.rule_index as u32, limit: charge.limit as u32, taken }
}

/// What becomes of a request when one more limit has answered. A caller who sends too much is told
/// so even when another limit could not count.
pub(crate) fn ruled(so_far: Ruling, rule: &Rule, taken: &Taken) -> Ruling {
    if rule.mode() != Mode::Enforce || taken.is_allowed() {
        return so_far;
    }
    match (so_far, taken) {
        (Ruling::Denied, _) | (_, Taken::Counted(_) | Taken::Decided { .. }) => Ruling::Denied,
        (_, Taken::Uncounted { .. }) => Ruling::Uncounted,
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("store", &self.store).finish_non_exhaustive()
    }
}

/// A policy that stays the same from one question to the next, whatever is put in force meanwhile.
#[derive(Debug)]
pub struct Pinned<'l> {
    limiter: &'l Limiter,
    policy: Arc<InForce>,
}

impl Pinned<'_> {
    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy.policy
    }

    /// See [`Limiter::ask`].
    pub fn ask(&self, request: &Request<'_>) -> Asked<Verdict> {
        self.limiter.ask_under(self.guard(), request, None)
    }

    /// See [`Limiter::ask_showing`].
    pub fn ask_showing(&self, request: &Request<'_>, keys: &mut Keys) -> Asked<Verdict> {
        self.limiter.ask_under(self.guard(), request, Some(keys))
    }

    fn guard(&self) -> Guard<Arc<InForce>> {
        Guard::from_inner(Arc::clone(&self.policy))
    }
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
    fn show_sender<'p: 'r, 'r>(
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

impl Verdict {
    /// The concurrency slots that the request holds, if it holds any: give them back with
    /// [`Limiter::release`] when its work ends. They are the lease's from then on, and no longer
    /// refunded with the verdict.
    pub fn take_lease(&mut self) -> Option<Lease> {
        let limits = &self.policy.enrolled;
        let (mut slots, mut length) = (SmallVec::new(), Micros::ZERO);
        for (place, entry) in self.taken.iter_mut().enumerate() {
            if let Limit::Logged(Logged::Concurrency(limit)) = limits[entry.limit as usize].limit()
                && let Some(slot) = entry.taken.take_receipt()
            {
                slots.push(Claim::new(slot, self.origin.as_ref(), place));
                length = length.max(limit.lease());
            }
        }
        (!slots.is_empty()).then_some(Lease { slots, length })
    }
}

/// The keys that a request was counted under, as they may be shown. One is used for many requests:
/// its room stays.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    text: String,
    ends: Vec<usize>,
}

impl Keys {
    /// The key of the `number`th answer.
    pub fn get(&self, number: usize) -> Option<&str> {
        let end = *self.ends.get(number)?;
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.text[start..end])
    }

    /// All of them, in the order of the answers.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.ends.len()).map(|number| self.at(number))
    }

    fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
    }

    /// The same of one that is there.
    pub(crate) fn at(&self, number: usize) -> &str {
        self.get(number).expect("there is one for each answer")
    }

    /// Adds one, which is `write`'s to write at the end of what is there.
    pub(crate) fn push(&mut self, write: impl FnOnce(&mut String)) {
        if self.text.len() < KEYS_BYTES_MAX {
            write(&mut self.text);
        } else {
            self.text.push('…');
        }
        self.ends.push(self.text.len());
    }
}

/// Slots held while a request's work goes on.
#[derive(Debug)]
#[must_use = "slots that are not released come back only when their lease ends"]
pub struct Lease {
    slots: SmallVec<[Claim; 2]>,
    length: Micros,
}

impl Lease {
    /// After how long the last of its slots comes back if nobody gives it back or renews it.
    pub fn length(&self) -> Micros {
        self.length
    }
}

pub(crate) fn key<'c>(charge: &'c tollgate_policy::Charge<'_, '_>) -> Key<'c> {
    Key { limit: charge.rule.name(), values: &charge.values }
}

pub(crate) fn ruled_out(admission: &Admission<'_, '_>) -> Ruling {
    match admission {
        Admission::Exempt(_) => Ruling::Exempt,
        Admission::Blocked(_) => Ruling::Blocked,
        Admission::UnknownKey => Ruling::UnknownKey,
        Admission::BadCost { .. } => Ruling::BadCost,
        Admission::Charged => Ruling::Allowed,
    }
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

/// Why a limiter could not be made.
#[non_exhaustive]
pub enum LimiterError {
    /// The policy has mistakes.
    Policy(Mistakes),
    /// The store can tell no more limits apart.
    Limits(TooManyLimits),
    /// There is no memory for the store.
    Memory(Unreservable),
    /// The policy asks for a store that is not in this process's memory.
    OtherStore,
}

impl fmt::Debug for LimiterError {
    /// As for people: a `main` that returns this shows it so, and mistakes in a policy are lines.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for LimiterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy(mistakes) => mistakes.fmt(f),
            Self::Limits(error) => error.fmt(f),
            Self::Memory(error) => error.fmt(f),
            Self::OtherStore => {
                f.write_str("the policy asks for a Redis store, and this limiter counts in memory")
            }
        }
    }
}

impl error::Error for LimiterError {}

impl From<Mistakes> for LimiterError {
    fn from(mistakes: Mistakes) -> Self {
        Self::Policy(mistakes)
    }
}

impl From<TooManyLimits> for LimiterError {
    fn from(error: TooManyLimits) -> Self {
        Self::Limits(error)
    }
}

impl From<Unreservable> for LimiterError {
    fn from(error: Unreservable) -> Self {
        Self::Memory(error)
    }
}
