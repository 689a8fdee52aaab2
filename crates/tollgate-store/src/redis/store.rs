//! The store in Redis or Valkey: one limit over many nodes.
//!
//! A request's charges are decided by one script call where their keys lie on one server; on a
//! Cluster by one call for each slot, in parallel, and what was taken is given back if one denies.
//! What Redis does not answer within the deadline each limit settles as it says: [`OnFailure`].

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::mem;
use std::slice;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Weak, mpsc};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, interval, timeout};
use tollgate_core::lua::{self, ANSWER_FIELDS, Answer};
use tollgate_core::{ChargeId, Cost, Decision, Key, Leasable, Limit, Logged, Timestamp, Value};

use super::bounds::{RELEASE_PAUSE, RELEASE_TRIES, RELEASES_MAX, START_PATIENCE};
use super::call::{Call, Failure, Late, Pending, Reply};
use super::denials::Denials;
use super::fleet::{Fleet, OpenError, Servers};
use super::house::{self, House};
use super::leased::{Leased, Paid, Payment};
use super::names::Names;
use super::node::Health;
use super::script::Script;
use super::shares::Shares;
use super::words::Words;
use crate::account::decide_unknown;
use crate::asked::{Asked, Waiting};
use crate::charge::{Charge, Kept, Mode, OnFailure, Receipt, Taken};
use crate::clock::Clock;
use crate::enrolled::{Enrolled, TooManyLimits};
use crate::fingerprint::Fingerprint;
use crate::memory::MemoryStore;
use crate::store::{Answers, Claim, INLINE, Origin};

pub(super) static TAKE: LazyLock<Script> = LazyLock::new(|| Script::new(lua::TAKE));
static REFUND: LazyLock<Script> = LazyLock::new(|| Script::new(lua::REFUND));
static SETTLE: LazyLock<Script> = LazyLock::new(|| Script::new(lua::SETTLE));

/// What is said of a limit that did not answer, to somebody whose request is over.
const UNKNOWN: Taken = Taken::Uncounted { is_allowed: true };

/// Where a store in Redis is, and how it is used.
#[derive(Clone, Debug)]
pub struct RedisSettings {
    /// The servers.
    pub servers: Servers,
    /// How long a check may take.
    pub timeout: Duration,
    /// What every key begins with.
    pub prefix: String,
    /// How many nodes share the limits while Redis does not answer; those last seen if not said.
    pub nodes: Option<u32>,
}

/// Holds states in Redis and charges them. Cheap to clone: all clones are one store.
#[derive(Clone)]
pub struct RedisStore(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) fleet: Arc<Fleet>,
    leased: Arc<Leased>,
    pub(super) prefix: String,
    /// Counts when Redis does not, and numbers the limits.
    local: MemoryStore,
    shares: Shares,
    denials: Denials,
    /// Whether the clock is a test's, and so told to the scripts; which then answer everything.
    pub(super) is_virtual: bool,
    pub(super) clock: Clock,
    /// The last charge's. It starts anywhere, so that no two nodes give the same.
    last_id: AtomicU64,
    /// Requests that were settled without Redis.
    settled: AtomicU64,
    /// Releases that wait to be tried again.
    releases: AtomicUsize,
    /// How much is being given back at the moment.
    underway: Arc<watch::Sender<usize>>,
    /// How long a check may take.
    timeout: Duration,
    pub(super) house: House,
}

/// What is known of one charge of a request until it is settled, and as long as it can be given back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    limit: Enrolled,
    cost: Cost,
    mode: lua::Mode,
    count_denied: bool,
    on_failure: OnFailure,
    /// As what its units are taken in advance, if they are.
    leasable: Option<Leasable>,
    id: ChargeId,
    key: Fingerprint,
    /// Whether its name is of this node alone, which does not know yet what secrets are hashed with:
    /// in Redis no other node would find it, so it is counted as if Redis did not answer.
    is_private: bool,
}

/// The charges of a request, with their names in Redis.
#[derive(Debug, Default)]
pub(crate) struct Items {
    names: Names,
    list: SmallVec<[Item; 4]>,
}

/// Some charges of a request that are decided together.
enum Part {
    /// By one call.
    Called { places: Places, pending: Pending, deadline: Instant },
    /// By units that this node gets for the purpose.
    Leased { place: usize, waiting: Waiting<Result<Paid, Failure>> },
}

/// A request that waits for its parts.
///
/// Its caller may go away before all of them have answered. Then what one part took must still come
/// back if another denies, and so it is brought to its end on the I/O thread.
struct Gathering {
    inner: Arc<Inner>,
    origin: Arc<Origin>,
    parts: SmallVec<[Part; 2]>,
    told: Told,
    asked_at: Timestamp,
    /// Whether it has to be brought to its end. A single call sees to itself: see [`Inner::late`].
    must_end: bool,
}

/// What was said to each charge, as far as it is known.
type Told = SmallVec<[Option<Taken>; INLINE]>;

type Places = SmallVec<[usize; INLINE]>;

/// Something to be given back to a key.
struct Change {
    script: Option<&'static Script>,
    words: Words,
    slot: u16,
    /// The key, if it may have been denied for what is given back. Nobody who is denied a slot is told
    /// to wait, and so is always asked about.
    denied: Option<Fingerprint>,
    /// Whether it is of a log, which knows what was given back before.
    is_release: bool,
}

/// Something that is being given back, until this goes.
struct Underway(Arc<watch::Sender<usize>>);

impl RedisStore {
    /// A store at the servers that `settings` name. That they cannot be reached is no error: until
    /// they can, every limit is settled as it says. Blocks for a round trip or two, for half a second
    /// at most.
    pub fn open(settings: RedisSettings) -> Result<Self, OpenError> {
        Self::with_clock(settings, Clock::system(), false)
    }

    /// The same with a clock that a test sets, and that the scripts go by.
    #[doc(hidden)]
    pub fn open_at(settings: RedisSettings, clock: Clock) -> Result<Self, OpenError> {
        Self::with_clock(settings, clock, true)
    }

    fn with_clock(
        settings: RedisSettings,
        clock: Clock,
        is_virtual: bool,
    ) -> Result<Self, OpenError> {
        let RedisSettings { servers, timeout, prefix, nodes } = settings;
        if prefix.contains(['{', '}']) {
            return Err(OpenError::Prefix { prefix });
        }
        let local = MemoryStore::new(clock.clone()).map_err(OpenError::Memory)?;
        let fleet = Arc::new(Fleet::open(&servers, timeout, &prefix)?);
        let inner = Arc::new(Inner {
            leased: Leased::new(&fleet, clock.clone(), is_virtual, timeout),
            fleet,
            house: House::new(&prefix, nodes),
            prefix,
            local,
            shares: Shares::default(),
            denials: Denials::default(),
            is_virtual,
            clock,
            last_id: AtomicU64::new(RandomState::new().hash_one(0u8) >> 1),
            settled: AtomicU64::new(0),
            releases: AtomicUsize::new(0),
            underway: Arc::default(),
            timeout,
        });
        let (told, heard) = mpsc::sync_channel(1);
        inner.fleet.spawn(house::keep(Arc::downgrade(&inner), told));
        // Before Redis has told what secrets are hashed with they cannot be counted there. Redis that
        // does not answer is not waited for any longer.
        let _ = heard.recv_timeout(START_PATIENCE);
        Ok(Self(inner))
    }

    /// Makes a limit known, so that it can be charged. Equal limits are one.
    pub fn enroll(&self, limit: Limit) -> Result<Enrolled, TooManyLimits> {
        self.0.local.enroll(limit)
    }

    /// Takes all of `charges`, or none if one that is enforced is denied.
    pub fn take(&self, charges: &[Charge<'_>]) -> Asked<Answers> {
        let inner = &self.0;
        let asked_at = inner.clock.now();
        let origin = Arc::new(Origin { items: inner.items(charges) });
        if let Some(taken) = inner.denied_before(&origin.items, asked_at) {
            return Asked::Ready(Answers { taken, origin: Some(origin) });
        }
        let mut told = Told::new();
        told.resize(charges.len(), None);
        let parts = inner.send_all(&origin, &mut told);
        if parts.is_empty() {
            return Asked::Ready(inner.settle(origin, told, asked_at));
        }
        let must_end = parts.len() > 1 || told.iter().any(Option::is_some);
        let inner = Arc::clone(inner);
        let gathering = Gathering { inner, origin, parts, told, asked_at, must_end };
        Asked::later(gathering.end())
    }

    /// Takes each of `charges` on its own, whatever becomes of the others. They cannot be given back.
    pub fn take_each(&self, charges: &[Charge<'_>]) -> Asked<Answers> {
        let each: Vec<_> =
            charges.iter().map(|charge| self.take(slice::from_ref(charge))).collect();
        Asked::later(async {
            let mut all = Answers::default();
            for asked in each {
                for mut taken in asked.await.taken {
                    taken.take_receipt();
                    all.taken.push(taken);
                }
            }
            all
        })
    }

    /// Gives back `cost` units of what a key has consumed; see [`MemoryStore::credit`].
    pub fn credit(&self, charge: &Charge<'_>) -> Asked<Taken> {
        let inner = Arc::clone(&self.0);
        let mut items = inner.items(slice::from_ref(charge));
        items.list[0].mode = lua::Mode::Credit;
        if items.list[0].is_private {
            return Asked::Ready(UNKNOWN);
        }
        let asked_at = inner.clock.now();
        inner.denials.forget(items.list[0].key, asked_at);
        let slot = inner.fleet.slot(items.names.get(0).as_bytes());
        let origin = Arc::new(Origin { items });
        let part = inner.send(&origin, slot, SmallVec::from_slice(&[0]), inner.fleet.deadline());
        let (parts, told) = (SmallVec::from_iter([part]), Told::from_slice(&[None]));
        let mut gathering = Gathering { inner, origin, parts, told, asked_at, must_end: false };
        Asked::later(async move {
            gathering.gather().await;
            // What is not given back, since nobody answers, is at least not taken.
            gathering.told[0].unwrap_or(UNKNOWN)
        })
    }

    /// Gives back what a charge took and time has not given back already; a slot is released by it.
    /// False if nothing was left of it, nothing if Redis does not answer: then a slot comes back when
    /// it does, or when its lease ends. What a bucket paid from units taken in advance stays spent once Redis knows of it.
    pub fn refund(&self, claim: &Claim) -> Asked<Option<bool>> {
        match (claim.receipt.kept, &claim.origin) {
            (Kept::Redis, Some((origin, place))) => {
                self.0.give_back(&origin.items, *place, &claim.receipt)
            }
            (Kept::Lease, _) => {
                let Receipt { key, .. } = claim.receipt;
                self.0.denials.forget(key, self.0.clock.now());
                Asked::Ready(Some(self.0.leased.give_back(key, held(&claim.receipt))))
            }
            _ => Asked::Ready(Some(self.0.local.refund(&claim.receipt))),
        }
    }

    /// Brings a charge to what was really used; see [`Store::settle`](crate::Store::settle). Nobody
    /// knows what became of it if Redis does not answer: it is not sent twice.
    pub fn settle(&self, claim: &Claim, cost: Cost) -> Asked<Taken> {
        let inner = &self.0;
        let Claim { receipt, origin } = claim;
        let less = receipt.cost.units().saturating_sub(cost.units());
        match (receipt.kept, origin) {
            (Kept::Redis, Some((origin, place))) => {
                inner.send_settlement(origin, *place, receipt, cost)
            }
            (Kept::Lease, Some((origin, place))) if cost <= receipt.cost => {
                let back = Payment::Held { mark: receipt.mark, units: less };
                inner.leased.give_back(receipt.key, back);
                inner.look_at_leased(origin, *place)
            }
            (Kept::Lease, Some((origin, place))) => {
                // What the lease paid is paid. What is more may be more than it holds.
                let paid = Receipt { cost: Cost::PEEK, ..*receipt };
                let more = Cost::new(cost.units() - receipt.cost.units());
                inner.send_settlement(origin, *place, &paid, more)
            }
            _ => Asked::Ready(inner.local.settle(receipt, cost)),
        }
    }

    /// Starts the lease of a held slot anew; false if it has ended or was released, nothing if Redis
    /// does not answer.
    pub fn renew(&self, claim: &Claim) -> Asked<Option<bool>> {
        let Receipt { kept, mark, cost, .. } = claim.receipt;
        let (Kept::Redis, Some((origin, place))) = (kept, &claim.origin) else {
            return Asked::Ready(Some(self.0.local.renew(&claim.receipt)));
        };
        let Limit::Logged(limit) = &origin.items.list[*place].limit.limit else {
            return Asked::Ready(Some(false));
        };
        let renewal = lua::Return::Renew { limit, id: ChargeId(mark), held: cost };
        self.0.send_back(&origin.items, *place, &renewal)
    }

    /// Forgets what a key has consumed, here and in Redis; false if nothing was known of it, nothing if
    /// Redis does not answer.
    pub fn reset(&self, key: &Key<'_>) -> Asked<Option<bool>> {
        let inner = &self.0;
        let mut names = Names::default();
        names.push(&inner.prefix, &self.key_text(key));
        let name = names.get(0);
        let key = inner.known_by(name);
        inner.leased.forget(key);
        inner.local.reset(&local_key(&[Value::new(name.as_bytes())]));
        let words = ["UNLINK", name].into_iter().collect();
        let slot = inner.fleet.slot(name.as_bytes());
        inner.change(Change { script: None, words, slot, denied: Some(key), is_release: false })
    }

    /// A key as it may be shown, written to the end of `text`.
    pub fn write_key_text(&self, key: &Key<'_>, text: &mut String) {
        self.0.house.write_key_text(key, &self.0.local, text);
    }

    /// The same as a text of its own.
    pub fn key_text(&self, key: &Key<'_>) -> String {
        let mut text = String::new();
        self.write_key_text(key, &mut text);
        text
    }

    /// This node's time, to tell clients when something will be. Decisions go by that of Redis.
    pub fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    /// Gives back what this node took in advance and has not spent, and waits for what is being given
    /// back already, for as long as a check may take. To be called at the end: what is not given back
    /// comes back later, by itself.
    pub fn close(&self) -> Asked<()> {
        let (returned, longest) = (self.0.leased.return_all(), self.0.timeout);
        let mut underway = self.0.underway.subscribe();
        let (told, closed) = oneshot::channel();
        self.0.fleet.spawn(async move {
            // What takes longer may not come back at all.
            let _ = timeout(longest, underway.wait_for(|count| *count == 0)).await;
            returned.await;
            // Whoever went away does not want to know.
            let _ = told.send(());
        });
        Asked::later(async { closed.await.unwrap_or_default() })
    }

    /// Requests that were settled without Redis, so far.
    pub fn settled(&self) -> u64 {
        self.0.settled.load(Ordering::Relaxed)
    }

    /// Every server in figures.
    pub fn health(&self) -> Vec<Health> {
        self.0.fleet.health()
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("prefix", &self.0.prefix)
            .field("settled", &self.settled())
            .finish_non_exhaustive()
    }
}

impl Inner {
    fn items(&self, charges: &[Charge<'_>]) -> Items {
        let mut items = Items::default();
        let mut shown = String::new();
        let first = self.last_id.fetch_add(charges.len() as u64, Ordering::Relaxed);
        for (charge, id) in charges.iter().zip(first..) {
            shown.clear();
            let is_shared = self.house.write_key_text(&charge.key, &self.local, &mut shown);
            items.names.push(&self.prefix, &shown);
            items.list.push(Item {
                limit: *charge.limit,
                cost: charge.cost,
                mode: match charge.mode {
                    Mode::Enforce => lua::Mode::Enforce,
                    Mode::Shadow => lua::Mode::Shadow,
                },
                count_denied: charge.count_denied,
                on_failure: charge.on_failure,
                leasable: charge.is_leased.then(|| Leasable::of(&charge.limit.limit)).flatten(),
                id: ChargeId(id),
                key: self.known_by(items.names.get(items.list.len())),
                is_private: !is_shared,
            });
        }
        items
    }

    /// What a state is known by on this node.
    fn known_by(&self, name: &str) -> Fingerprint {
        self.local.secret.fingerprint(&local_key(&[Value::new(name.as_bytes())]))
    }

    /// The answer to a request that this node denies by itself, if it does.
    fn denied_before(&self, items: &Items, now: Timestamp) -> Option<SmallVec<[Taken; INLINE]>> {
        if items.count_denied() || self.is_virtual {
            return None;
        }
        let denial = |item: &Item| {
            let is_asked = item.mode == lua::Mode::Enforce && item.cost != Cost::PEEK;
            is_asked
                .then(|| self.denials.get(item.key, item.limit.number, item.cost, now))
                .flatten()
        };
        let denials: SmallVec<[_; 4]> = items.list.iter().map(denial).collect();
        let any = denials.iter().flatten().next()?;
        let told = |(item, own): (&Item, &Option<super::denials::Denial>)| {
            let decision = match own {
                Some(denial) => denial.decision(now),
                None => any
                    .decision_of(item.key, now)
                    .unwrap_or_else(|| decide_unknown(&item.limit.limit, now, Cost::PEEK)),
            };
            Taken::Decided { decision, receipt: Receipt::of_nothing(item.key, item.limit.number) }
        };
        Some(items.list.iter().zip(&denials).map(told).collect())
    }

    /// Asks for all charges of a request: by one call, or one for each slot of a Cluster; and each
    /// that is leased by itself, and told at once if this node holds enough.
    fn send_all(
        self: &Arc<Self>,
        origin: &Arc<Origin>,
        told: &mut [Option<Taken>],
    ) -> SmallVec<[Part; 2]> {
        let Items { names, list } = &origin.items;
        let mut parts = SmallVec::new();
        let mut slots: SmallVec<[(u16, Places); 2]> = SmallVec::new();
        for (place, item) in list.iter().enumerate() {
            if item.is_private {
                continue;
            }
            let name = names.get(place);
            if let Some(limit) = &item.leasable {
                match self.leased.take(item.key, name, limit, item.cost) {
                    Asked::Ready(answer) => {
                        told[place] = self.read_leased(&origin.items, place, answer);
                    }
                    Asked::Waiting(waiting) => parts.push(Part::Leased { place, waiting }),
                }
                continue;
            }
            let slot = if self.fleet.is_cluster() { self.fleet.slot(name.as_bytes()) } else { 0 };
            match slots.iter_mut().find(|(other, _)| *other == slot) {
                Some((_, places)) => places.push(place),
                None => slots.push((slot, SmallVec::from_slice(&[place]))),
            }
        }
        let deadline = self.fleet.deadline();
        let send = |(slot, places)| self.send(origin, slot, places, deadline);
        parts.extend(slots.into_iter().map(send));
        parts
    }

    /// Sends one call that takes the charges at `places`, or none of them.
    fn send(
        self: &Arc<Self>,
        origin: &Arc<Origin>,
        slot: u16,
        places: Places,
        deadline: Instant,
    ) -> Part {
        let Items { names, list } = &origin.items;
        let mut words = Words::with_capacity(64 + 192 * places.len());
        words.push_number(places.len() as u64);
        places.iter().for_each(|place| words.push(names.get(*place).as_bytes()));
        self.push_now(&mut words);
        for &place in &places {
            let Item { limit, cost, mode, count_denied, id, .. } = &list[place];
            let (limit, cost, mode) = (&limit.limit, *cost, *mode);
            let (count_denied, id) = (*count_denied, *id);
            let charge = lua::Charge { limit, cost, mode, count_denied, id };
            words.push(&charge.argument());
        }
        let late = self.late(origin, &places);
        let pending = self.fleet.send_by(Call { script: Some(&TAKE), words, slot, late }, deadline);
        Part::Called { places, pending, deadline }
    }

    /// What is done when a call was answered too late, or to nobody: slots are released, since nobody
    /// knows that they are held. Other charges stand: whoever goes away before the answer has asked.
    fn late(self: &Arc<Self>, origin: &Arc<Origin>, places: &Places) -> Option<Late> {
        let is_slot = |place: &usize| is_concurrency(&origin.items.list[*place].limit.limit);
        if !places.iter().any(is_slot) {
            return None;
        }
        let (inner, origin, places) = (Arc::downgrade(self), Arc::clone(origin), places.clone());
        Some(Box::new(move |reply| {
            let Some(inner) = Weak::upgrade(&inner) else { return };
            let answers = read(&origin.items, &places, &reply).into_iter().flatten();
            for (place, taken) in places.iter().zip(answers) {
                if is_concurrency(&origin.items.list[*place].limit.limit)
                    && let Some(receipt) = taken.receipt()
                {
                    drop(inner.give_back(&origin.items, *place, &receipt));
                }
            }
        }))
    }

    /// Releases slots, sooner or later, that may have been taken by a call whose answer is not known.
    fn release_unheard(self: &Arc<Self>, items: &Items, places: &Places) {
        for &place in places {
            let Item { limit, cost, id, .. } = items.list[place];
            let Limit::Logged(limit @ Logged::Concurrency(_)) = &limit.limit else { continue };
            let back = lua::Return::GiveBack { limit, id, held: cost, units: cost };
            let change = self.change_of(items, place, &back);
            self.fleet.spawn(release(Arc::downgrade(self), change));
        }
    }

    /// What a limit said whose units are leased; nothing if it could not.
    fn read_leased(
        &self,
        items: &Items,
        place: usize,
        answer: Result<Paid, Failure>,
    ) -> Option<Taken> {
        let Paid { decision, payment } =
            answer.inspect_err(|failure| self.house.note(failure)).ok()?;
        let Item { key, limit, .. } = items.list[place];
        let nothing = Receipt { kept: Kept::Lease, ..Receipt::of_nothing(key, limit.number) };
        let receipt = match payment {
            Payment::Nothing => nothing,
            Payment::Held { mark, units } => Receipt { cost: Cost::new(units), mark, ..nothing },
            Payment::Charged(tollgate_core::Receipt { at, cost, debt_before: mark }) => {
                Receipt { key, limit: limit.number, cost, at, mark, kept: Kept::Redis }
            }
        };
        Some(Taken::Decided { decision, receipt })
    }

    /// Makes one answer of what was said to a request's charges.
    fn settle(
        self: &Arc<Self>,
        origin: Arc<Origin>,
        mut told: Told,
        asked_at: Timestamp,
    ) -> Answers {
        let items = &origin.items;
        let failed: Places = (0..told.len()).filter(|place| told[*place].is_none()).collect();
        if !failed.is_empty() {
            self.settled.fetch_add(1, Ordering::Relaxed);
            self.take_locally(items, &failed, &mut told);
        }
        let mut taken: SmallVec<[Taken; INLINE]> = told.into_iter().flatten().collect();
        let denies =
            |(item, taken): (&Item, &Taken)| item.mode == lua::Mode::Enforce && !taken.is_allowed();
        if items.list.iter().zip(&taken).any(denies) {
            self.withhold(items, &mut taken);
            self.note_denials(items, &taken, &failed, asked_at);
        }
        Answers { taken, origin: Some(origin) }
    }

    /// Takes charges that Redis could not, as their limits say.
    fn take_locally(&self, items: &Items, places: &Places, told: &mut [Option<Taken>]) {
        let nodes = self.house.nodes();
        let values: SmallVec<[[Value<'_>; 1]; INLINE]> =
            places.iter().map(|place| [Value::new(items.names.get(*place).as_bytes())]).collect();
        let mut shares: SmallVec<[(usize, Enrolled); INLINE]> = SmallVec::new();
        for (number, place) in places.iter().enumerate() {
            let Item { limit, on_failure, .. } = &items.list[*place];
            let is_local = *on_failure == OnFailure::Local;
            let share = is_local.then(|| self.shares.of(limit, nodes, &self.local)).flatten();
            match share {
                Some(share) => shares.push((number, share)),
                None => told[*place] = Some(on_failure.uncounted()),
            }
        }
        let charge = |(number, share)| {
            let (number, share): (usize, &Enrolled) = (number, share);
            let Item { cost, mode, count_denied, on_failure, .. } = items.list[places[number]];
            let key = local_key(&values[number]);
            let mode = match mode {
                lua::Mode::Shadow => Mode::Shadow,
                _ => Mode::Enforce,
            };
            Charge { cost, mode, count_denied, on_failure, ..Charge::new(key, share) }
        };
        let charges: SmallVec<[Charge<'_>; INLINE]> =
            shares.iter().map(|(number, share)| charge((*number, share))).collect();
        for ((number, _), taken) in shares.iter().zip(self.local.take(&charges)) {
            told[places[*number]] = Some(taken);
        }
    }

    /// Gives back what some limits took before another denied the request. Their answers are told as
    /// if nothing had been taken.
    fn withhold(self: &Arc<Self>, items: &Items, taken: &mut [Taken]) {
        for (place, taken) in taken.iter_mut().enumerate() {
            let Some(receipt) = taken.take_receipt() else { continue };
            // A log never counts what was denied.
            let Item { limit, count_denied, .. } = &items.list[place];
            if *count_denied && matches!(limit.limit, Limit::Counter(_)) {
                continue;
            }
            match receipt.kept {
                Kept::Redis => drop(self.give_back(items, place, &receipt)),
                Kept::Lease => _ = self.leased.give_back(receipt.key, held(&receipt)),
                Kept::Memory => _ = self.local.refund(&receipt),
            }
            if let Some(decision) = taken.decision() {
                let decision = untaken(decision, receipt.cost, &limit.limit, self.clock.now());
                let receipt = Receipt::of_nothing(receipt.key, receipt.limit);
                *taken = Taken::Decided { decision, receipt };
            }
        }
    }

    /// Remembers whom Redis denied.
    fn note_denials(&self, items: &Items, taken: &[Taken], failed: &Places, asked_at: Timestamp) {
        if items.count_denied() {
            return;
        }
        let told_at = self.clock.now();
        let decisions = || {
            let all = items.list.iter().zip(taken).enumerate();
            all.filter_map(|(place, (item, taken))| Some((place, item, taken.decision()?)))
        };
        for (place, item, decision) in decisions() {
            // What this node counted by itself is at hand anyway, and Redis may be back any moment.
            // Of a key that comes twice only the request as a whole was denied.
            let comes_once = items.list.iter().filter(|other| other.key == item.key).count() == 1;
            let is_denied = item.mode == lua::Mode::Enforce && !decision.is_allowed();
            if is_denied && comes_once && !failed.contains(&place) {
                let others = decisions().filter(|(other, ..)| *other != place);
                let others = others.map(|(_, item, decision)| (item.key, decision)).collect();
                self.denials.note(
                    item.key,
                    item.limit.number,
                    item.cost,
                    decision,
                    asked_at..told_at,
                    others,
                );
            }
        }
    }

    fn give_back(
        self: &Arc<Self>,
        items: &Items,
        place: usize,
        receipt: &Receipt,
    ) -> Asked<Option<bool>> {
        let Receipt { cost, at, mark, .. } = *receipt;
        match &items.list[place].limit.limit {
            Limit::Counter(limit) => {
                let receipt = &tollgate_core::Receipt { at, cost, debt_before: mark };
                self.send_back(items, place, &lua::Return::Refund { limit, receipt })
            }
            Limit::Logged(limit) => {
                let (id, held, units) = (ChargeId(mark), cost, cost);
                self.send_back(items, place, &lua::Return::GiveBack { limit, id, held, units })
            }
        }
    }

    fn send_back(
        self: &Arc<Self>,
        items: &Items,
        place: usize,
        back: &lua::Return<'_>,
    ) -> Asked<Option<bool>> {
        self.change(self.change_of(items, place, back))
    }

    fn change_of(&self, items: &Items, place: usize, back: &lua::Return<'_>) -> Change {
        let name = items.names.get(place).as_bytes();
        let mut words = Words::with_capacity(256);
        words.push_number(1);
        words.push(name);
        self.push_now(&mut words);
        words.push(&back.argument());
        let Item { limit, key, .. } = items.list[place];
        Change {
            script: Some(&*REFUND),
            words,
            slot: self.fleet.slot(name),
            denied: (!is_concurrency(&limit.limit)).then_some(key),
            is_release: matches!(back, lua::Return::GiveBack { .. }),
        }
    }

    /// Gives something back to a key in Redis, whether somebody waits for the answer or not: a call
    /// that nobody waits for is not sent, and whoever releases a slot need not stay to hear of it.
    fn change(self: &Arc<Self>, change: Change) -> Asked<Option<bool>> {
        self.forget_denial(change.denied);
        let pending = self.fleet.send(change.call());
        let (told, answer) = oneshot::channel();
        let (inner, underway) = (Arc::downgrade(self), Underway::new(&self.underway));
        self.fleet.spawn(async move {
            let answer = pending.await;
            if let Some(inner) = inner.upgrade() {
                // Who was denied meanwhile may have been so before it was given back.
                inner.forget_denial(change.denied);
                if let Err(failure) = &answer {
                    inner.house.note(failure);
                }
            }
            // Whoever went away does not want to know.
            let _ = told.send(is_changed(&answer));
            drop(underway);
            if answer.is_err() && change.is_release {
                release(inner, change).await;
            }
        });
        Asked::later(async { answer.await.ok().flatten() })
    }

    fn forget_denial(&self, key: Option<Fingerprint>) {
        if let Some(key) = key {
            self.denials.forget(key, self.clock.now());
        }
    }

    /// Sends a settlement, which gets there whether somebody waits for the answer or not.
    fn send_settlement(
        self: &Arc<Self>,
        origin: &Arc<Origin>,
        place: usize,
        receipt: &Receipt,
        cost: Cost,
    ) -> Asked<Taken> {
        let Items { names, list } = &origin.items;
        let (name, Item { limit, key, .. }) = (names.get(place).as_bytes(), list[place]);
        let charged = tollgate_core::Receipt {
            at: receipt.at,
            cost: receipt.cost,
            debt_before: receipt.mark,
        };
        let more_id = ChargeId(self.last_id.fetch_add(1, Ordering::Relaxed));
        let (limit, receipt, id) = (&limit.limit, &charged, ChargeId(receipt.mark));
        let settlement = lua::Settlement { limit, receipt, id, cost, more_id };
        let mut words = Words::with_capacity(256);
        words.push_number(1);
        words.push(name);
        self.push_now(&mut words);
        words.push(&settlement.argument());
        let slot = self.fleet.slot(name);
        let pending = self.fleet.send(Call { script: Some(&SETTLE), words, slot, late: None });
        let (told, answer) = oneshot::channel();
        let (inner, origin) = (Arc::downgrade(self), Arc::clone(origin));
        let underway = Underway::new(&self.underway);
        self.fleet.spawn(async move {
            let reply = pending.await;
            drop(underway);
            let Some(inner) = inner.upgrade() else { return };
            inner.denials.forget(key, inner.clock.now());
            let reply = reply.inspect_err(|failure| inner.house.note(failure)).ok();
            let places = SmallVec::from_slice(&[place]);
            let taken = reply.and_then(|reply| read(&origin.items, &places, &reply)?.pop());
            // Whoever went away does not want to know.
            let _ = told.send(taken);
        });
        Asked::later(async { answer.await.ok().flatten().unwrap_or(UNKNOWN) })
    }

    /// What is left of a key whose units are leased.
    fn look_at_leased(self: &Arc<Self>, origin: &Arc<Origin>, place: usize) -> Asked<Taken> {
        let Items { names, list } = &origin.items;
        let Item { key, leasable, .. } = &list[place];
        let Some(limit) = leasable else { return Asked::Ready(UNKNOWN) };
        let asked = self.leased.take(*key, names.get(place), limit, Cost::PEEK);
        let (inner, origin) = (Arc::clone(self), Arc::clone(origin));
        asked.map(move |answer| inner.read_leased(&origin.items, place, answer).unwrap_or(UNKNOWN))
    }

    fn push_now(&self, words: &mut Words) {
        if self.is_virtual {
            words.push_number(self.clock.now().as_micros());
        } else {
            words.push(b"");
        }
    }
}

impl Gathering {
    /// Waits for everything that was asked, and makes one answer of it.
    async fn end(mut self) -> Answers {
        self.gather().await;
        self.must_end = false;
        let (origin, told) = (Arc::clone(&self.origin), mem::take(&mut self.told));
        self.inner.settle(origin, told, self.asked_at)
    }

    /// Waits for everything that was asked. A part stays until it has answered, so that nothing is
    /// lost if this is dropped.
    async fn gather(&mut self) {
        let (inner, items) = (&self.inner, &self.origin.items);
        while let Some(part) = self.parts.last_mut() {
            let (places, deadline, result) = match part {
                Part::Leased { place, waiting } => {
                    let answer = waiting.await;
                    self.told[*place] = inner.read_leased(items, *place, answer);
                    self.parts.pop();
                    continue;
                }
                Part::Called { places, pending, deadline } => {
                    let result = pending.await;
                    (mem::take(places), *deadline, result)
                }
            };
            self.parts.pop();
            match result {
                Ok(reply) => {
                    let answers = read(items, &places, &reply).into_iter().flatten();
                    for (place, taken) in places.iter().zip(answers) {
                        self.told[*place] = Some(taken);
                    }
                }
                // A slot on the move: each of its keys is somewhere, but they are not together.
                Err(Failure::TryAgain) if places.len() > 1 => {
                    let slot = inner.fleet.slot(items.names.get(places[0]).as_bytes());
                    let alone = |place: &usize| SmallVec::from_slice(&[*place]);
                    // The request has no more time than it had.
                    let send = |place| inner.send(&self.origin, slot, alone(place), deadline);
                    self.parts.extend(places.iter().map(send));
                    self.must_end = true;
                }
                Err(failure) => {
                    if matches!(failure, Failure::Timeout | Failure::Lost) {
                        inner.release_unheard(items, &places);
                    }
                    inner.house.note(&failure);
                }
            }
        }
    }

    /// Brings it to its end for nobody: slots are released, since nobody knows that they are held.
    async fn end_for_nobody(self) {
        let (inner, origin) = (Arc::clone(&self.inner), Arc::clone(&self.origin));
        let _underway = Underway::new(&inner.underway);
        let answers = self.end().await;
        for (place, taken) in answers.taken.iter().enumerate() {
            if is_concurrency(&origin.items.list[place].limit.limit)
                && let Some(receipt) = taken.receipt()
            {
                let claim = Claim::new(receipt, Some(&origin), place);
                drop(RedisStore(Arc::clone(&inner)).refund(&claim));
            }
        }
    }
}

impl Drop for Gathering {
    fn drop(&mut self) {
        if mem::take(&mut self.must_end) {
            let rest = Self {
                inner: Arc::clone(&self.inner),
                origin: Arc::clone(&self.origin),
                parts: mem::take(&mut self.parts),
                told: mem::take(&mut self.told),
                asked_at: self.asked_at,
                must_end: false,
            };
            // It holds the store for as long as its calls may take, and no longer.
            self.inner.fleet.spawn(rest.end_for_nobody());
        }
    }
}

impl Underway {
    fn new(count: &Arc<watch::Sender<usize>>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(Arc::clone(count))
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl Change {
    fn call(&self) -> Call {
        Call { script: self.script, words: self.words.clone(), slot: self.slot, late: None }
    }
}

/// Tries again to release what Redis did not answer to, so that it is not held until its lease ends.
/// Should it have been released before, there is nothing left to release.
async fn release(store: Weak<Inner>, change: Change) {
    let mut pauses = interval(RELEASE_PAUSE);
    // The first of them is over at once.
    pauses.tick().await;
    for _ in 0..RELEASE_TRIES {
        let Some(inner) = store.upgrade() else { return };
        if inner.releases.fetch_add(1, Ordering::Relaxed) >= RELEASES_MAX {
            inner.releases.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        drop(inner);
        pauses.tick().await;
        let Some(inner) = store.upgrade() else { return };
        inner.releases.fetch_sub(1, Ordering::Relaxed);
        let pending = inner.fleet.send(change.call());
        drop(inner);
        if pending.await.is_ok() {
            return;
        }
    }
}

impl Items {
    fn count_denied(&self) -> bool {
        self.list.iter().any(|item| item.count_denied)
    }
}

/// What the script said to the charges at `places`; nothing if that is no answer of ours.
fn read(items: &Items, places: &Places, reply: &Reply) -> Option<SmallVec<[Taken; INLINE]>> {
    let Reply::List(fields) = reply else { return None };
    let (answers, rest) = fields.as_chunks::<ANSWER_FIELDS>();
    if answers.len() != places.len() || !rest.is_empty() {
        return None;
    }
    let taken = |(place, fields): (&usize, &[Reply; ANSWER_FIELDS])| {
        let mut numbers = [0; ANSWER_FIELDS];
        for (number, field) in numbers.iter_mut().zip(fields) {
            let Reply::Integer(integer) = field else { return None };
            *number = *integer;
        }
        let Answer { decision, receipt } = Answer::from_fields(numbers)?;
        let Item { limit, id, key, .. } = items.list[*place];
        let mark = match limit.limit {
            Limit::Counter(_) => receipt.debt_before,
            Limit::Logged(_) => id.0,
        };
        let (limit, cost, at, kept) = (limit.number, receipt.cost, receipt.at, Kept::Redis);
        let receipt = Receipt { key, limit, cost, at, mark, kept };
        Some(Taken::Decided { decision, receipt })
    };
    places.iter().zip(answers).map(taken).collect()
}

/// What a limit is told to have said when what it took is given back. While something else is in use
/// its waits are those of before, and so rather too long than too short.
fn untaken(decision: Decision, cost: Cost, limit: &Limit, now: Timestamp) -> Decision {
    let remaining = decision.remaining.saturating_add(cost.units()).min(decision.limit);
    if remaining < decision.limit {
        return Decision { remaining, ..decision };
    }
    let Decision { reset_after, next_after, .. } = decide_unknown(limit, now, Cost::PEEK);
    Decision { remaining, reset_after, next_after, ..decision }
}

/// Whether something came of a return or a removal; nothing if nobody can tell.
fn is_changed(answer: &Result<Reply, Failure>) -> Option<bool> {
    match answer.as_ref().ok()? {
        Reply::Integer(changed) => Some(*changed > 0),
        Reply::List(changed) => Some(matches!(changed[..], [Reply::Integer(1..)])),
        _ => None,
    }
}

/// What was paid from a lease.
fn held(receipt: &Receipt) -> Payment {
    Payment::Held { mark: receipt.mark, units: receipt.cost.units() }
}

fn is_concurrency(limit: &Limit) -> bool {
    matches!(limit, Limit::Logged(Logged::Concurrency(_)))
}

/// What a state is called in this node's memory: by its name in Redis, which is all that is left of a
/// key when the answer does not come.
fn local_key<'v>(name: &'v [Value<'v>]) -> Key<'v> {
    Key { limit: "", values: name }
}
