//! Asks the policy what applies and the store what is left.

mod afterwards;
mod elsewhere;
mod error;
mod in_force;
mod keys;
mod together;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::{ArcSwap, Guard};
use smallvec::SmallVec;
use tollgate_core::{Decision, Key, Timestamp};
use tollgate_policy::Store as StoreSettings;
use tollgate_policy::{Admission, Charges, Layer, Mode, Policy, Request, Rule, Scratch};
use tollgate_store::bounds::MAX_BYTES_DEFAULT;
use tollgate_store::{Asked, Charge, Clock, MemoryStore, Store, Taken, TooManyLimits, Waiting};

pub use self::afterwards::Lease;
use self::elsewhere::Elsewhere;
pub use self::error::LimiterError;
pub(crate) use self::in_force::{InForce, asked, key, on_failure};
pub use self::keys::Keys;
use crate::denial::{DenialSink, ShowValue};
use crate::envoy::Engine;
use crate::metrics::{Counted, Counting, Live, Table};
use crate::observe::{self, Looked, Observer, Said};
use crate::overrides::Bans;
use crate::verdict::{Entry, Ruling, Verdict, decided_at};

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
    // Filled where it is: what is collected is moved, and this is large.
    let mut asked: SmallVec<[Charge<'_>; INLINE]> = SmallVec::new();
    asked.extend(charges.iter().map(ask));
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

/// A verdict that is there, where it was made, or one that is to be waited for.
pub(crate) enum Boxed {
    Ready(Box<Verdict>),
    Waiting(Waiting<Verdict>),
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

    /// The same for whoever hands the verdict on: one is large, and stays where it was made. It may be kept for
    /// long: it has a reference of its own to the policy, and holds up nobody who replaces that.
    pub(crate) fn ask_boxed(&self, request: &Request<'_>) -> Boxed {
        let mut verdict = Box::new(Verdict::begin(self.guard()));
        match self.limiter.decide(&mut verdict, request, None) {
            None => Boxed::Ready(verdict),
            Some(Asked::Ready(verdict)) => Boxed::Ready(Box::new(verdict)),
            Some(Asked::Waiting(waiting)) => Boxed::Waiting(waiting),
        }
    }

    /// See [`Limiter::ask_showing`].
    pub fn ask_showing(&self, request: &Request<'_>, keys: &mut Keys) -> Asked<Verdict> {
        self.limiter.ask_under(self.guard(), request, Some(keys))
    }

    fn guard(&self) -> Guard<Arc<InForce>> {
        Guard::from_inner(Arc::clone(&self.policy))
    }
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
