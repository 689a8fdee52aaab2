//! `sync: leased`: units of hot keys are taken from Redis in batches and spent at memory speed.
//!
//! Each key has a [`Pool`], which is where the rules are; this is the table of them, what waits for
//! them, and the calls they make. A request that cannot be paid from its pool waits for a call; there
//! is one at a time for a key, and whoever comes meanwhile waits behind, in order. Nothing waits for a
//! call that only gets more in time, or gives back what is not needed.
//!
//! A call runs once or, for all anybody knows, not at all: it is never sent again. What becomes of
//! units whose call was lost is said in [`pool`].

mod bounds;
#[cfg(test)]
mod model;
mod pool;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tollgate_core::lua::{self, LEASE_FIELDS};
use tollgate_core::{Cost, Decision, Leasable, LeaseAnswer, LeaseCall, Micros, Timestamp};

use self::bounds::{POOLS_MAX, RETURN_PAUSE, REVIEW_PAUSE, SHARDS, WAITERS_MAX};
pub(crate) use self::pool::Payment;
use self::pool::Pool;
use super::call::{Call, Failure, Reply};
use super::fleet::Fleet;
use super::script::Script;
use super::slots;
use super::words::Words;
use crate::asked::Asked;
use crate::clock::Clock;
use crate::fingerprint::Fingerprint;

static LEASE: LazyLock<Script> = LazyLock::new(|| Script::new(lua::LEASE));

/// What this node holds of leased keys.
pub(crate) struct Leased {
    fleet: Weak<Fleet>,
    clock: Clock,
    /// Whether the clock is a test's, and so told to the script.
    is_virtual: bool,
    /// How long a request waits before it gives up rather than wait for another call. With the
    /// deadline of that call it is one and a half deadlines.
    patience: Micros,
    /// The last call's, before it is scrambled. It starts anywhere, so that no two nodes' meet.
    last_number: AtomicU64,
    shards: Box<[Mutex<Shard>]>,
}

/// What was said to a request, and how it was paid for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Paid {
    pub(crate) decision: Decision,
    pub(crate) payment: Payment,
}

type Shard = HashMap<Fingerprint, Entry, BuildHasherDefault<SecondHalf>>;
type Answer = Result<Paid, Failure>;

/// One key.
struct Entry {
    /// What Redis knows it by.
    name: Box<str>,
    pool: Pool,
    waiters: VecDeque<Waiter>,
    /// Whether the call under way is for the first who waits.
    is_for_first: bool,
}

/// A request that its pool could not pay for.
struct Waiter {
    limit: Leasable,
    cost: Cost,
    since: Timestamp,
    caller: oneshot::Sender<Answer>,
}

/// A call that is to be sent.
struct Errand {
    number: u64,
    words: Words,
    slot: u16,
}

impl Leased {
    /// Holds nothing yet. `timeout` is that of the fleet's calls.
    pub(crate) fn new(
        fleet: &Arc<Fleet>,
        clock: Clock,
        is_virtual: bool,
        timeout: Duration,
    ) -> Arc<Self> {
        let leased = Arc::new(Self {
            fleet: Arc::downgrade(fleet),
            clock,
            is_virtual,
            patience: Micros::from(timeout / 2),
            last_number: AtomicU64::new(RandomState::new().hash_one(0u8)),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        });
        fleet.spawn(keep(Arc::downgrade(&leased)));
        leased
    }

    /// Decides one request about the key that Redis knows by `name`, and this node by `key`.
    pub(crate) fn take(
        self: &Arc<Self>,
        key: Fingerprint,
        name: &str,
        limit: &Leasable,
        cost: Cost,
    ) -> Asked<Answer> {
        let now = self.clock.now();
        let mut shard = self.shard(key);
        if let Some(entry) = shard.get_mut(&key)
            && entry.waiters.is_empty()
            && let Some((decision, payment)) = entry.pool.spend(now, limit, cost)
        {
            let errand = entry.pool.is_due(now).then(|| self.review_of(entry, now));
            drop(shard);
            if let Some(errand) = errand {
                self.send(key, errand);
            }
            return Asked::Ready(Ok(Paid { decision, payment }));
        }
        if shard.len() >= POOLS_MAX / SHARDS && !shard.contains_key(&key) {
            drop(shard);
            return self.take_alone(name, limit, cost, now);
        }
        let entry = shard.entry(key).or_insert_with(|| Entry::new(name, limit));
        if entry.waiters.len() >= WAITERS_MAX {
            return Asked::Ready(Err(Failure::NotSent));
        }
        let (caller, mut answer) = oneshot::channel();
        entry.waiters.push_back(Waiter { limit: *limit, cost, since: now, caller });
        let errand = (!entry.pool.is_asking()).then(|| self.ask_for_first(entry, now)).flatten();
        drop(shard);
        if let Some(errand) = errand {
            self.send(key, errand);
        }
        match answer.try_recv() {
            Ok(answer) => Asked::Ready(answer),
            Err(_) => Asked::later(async { answer.await.unwrap_or(Err(Failure::Lost)) }),
        }
    }

    /// Takes back what was paid for a request that is not to be counted; false if it stays spent. What
    /// Redis charged is given back by its receipt, and not here.
    pub(crate) fn give_back(&self, key: Fingerprint, payment: Payment) -> bool {
        let Payment::Held { mark, units } = payment else { return false };
        let mut shard = self.shard(key);
        shard.get_mut(&key).is_some_and(|entry| entry.pool.give_back(mark, units))
    }

    /// Forgets what is held of a key, since somebody made Redis forget it.
    pub(crate) fn forget(&self, key: Fingerprint) {
        if let Some(entry) = self.shard(key).get_mut(&key) {
            entry.pool.abandon();
        }
    }

    /// Reports and gives back what is due, and forgets keys that nobody asks for.
    pub(crate) fn review(self: &Arc<Self>) {
        let now = self.clock.now();
        for shard in &self.shards {
            let mut errands = Vec::new();
            let mut shard = locked(shard);
            shard.retain(|key, entry| {
                if entry.pool.is_due(now) {
                    errands.push((*key, self.review_of(entry, now)));
                }
                !(entry.pool.is_vacant(now) && entry.waiters.is_empty())
            });
            drop(shard);
            errands.into_iter().for_each(|(key, errand)| self.send(key, errand));
        }
    }

    /// Gives back everything that is held, at the end, when nobody asks any more. A call under way is
    /// waited for, since what it brings is to be given back too; for as long as a call may take.
    pub(crate) fn return_all(self: &Arc<Self>) -> Asked<()> {
        let Some(fleet) = self.fleet.upgrade() else { return Asked::Ready(()) };
        let (told, returned) = oneshot::channel();
        let leased = Arc::clone(self);
        fleet.spawn(async move {
            let longest = Duration::from_micros(4 * leased.patience.as_micros());
            let mut pauses = interval(RETURN_PAUSE);
            let returning = async {
                while !leased.return_idle().await {
                    pauses.tick().await;
                }
            };
            // What is not given back by then lapses.
            let _ = timeout(longest, returning).await;
            // Whoever went away does not want to know.
            let _ = told.send(());
        });
        Asked::later(async { returned.await.unwrap_or_default() })
    }

    /// Gives back what there is no call about under way; tells whether that was everything.
    async fn return_idle(&self) -> bool {
        let Some(fleet) = self.fleet.upgrade() else { return true };
        let now = self.clock.now();
        let mut sent = Vec::new();
        let mut is_all = true;
        for shard in &self.shards {
            locked(shard).retain(|_, entry| {
                if entry.pool.is_asking() {
                    is_all = false;
                    return true;
                }
                if entry.pool.has_to_tell(now) {
                    let number = self.next_number();
                    let call = entry.pool.close(now, number);
                    let errand = self.errand(&entry.name, &entry.pool.limit(), &call, number, now);
                    sent.push(fleet.send(errand.into_call()));
                }
                false
            });
        }
        drop(fleet);
        for pending in sent {
            // A lease that was not given back lapses.
            let _ = pending.await;
        }
        is_all
    }

    /// Decides a request about a key that there is no room to know.
    fn take_alone(
        &self,
        name: &str,
        limit: &Leasable,
        cost: Cost,
        now: Timestamp,
    ) -> Asked<Answer> {
        let Some(fleet) = self.fleet.upgrade() else { return Asked::Ready(Err(Failure::NotSent)) };
        let number = self.next_number();
        let call = Pool::new(*limit).ask(now, limit, cost, 0, number);
        let pending = fleet.send(self.errand(name, limit, &call, number, now).into_call());
        let limit = *limit;
        Asked::later(async move { Ok(paid(&read(pending.await)?, &limit, cost)) })
    }

    fn ask_for_first(&self, entry: &mut Entry, now: Timestamp) -> Option<Errand> {
        let first = entry.waiters.front()?;
        let (limit, cost) = (first.limit, first.cost);
        let others = entry.waiters.iter().skip(1).map(|waiter| waiter.cost.units());
        let waiting = others.fold(0, u32::saturating_add);
        let number = self.next_number();
        let call = entry.pool.ask(now, &limit, cost, waiting, number);
        entry.is_for_first = true;
        Some(self.errand(&entry.name, &limit, &call, number, now))
    }

    fn review_of(&self, entry: &mut Entry, now: Timestamp) -> Errand {
        let number = self.next_number();
        let call = entry.pool.review(now, number);
        entry.is_for_first = false;
        self.errand(&entry.name, &entry.pool.limit(), &call, number, now)
    }

    fn errand(
        &self,
        name: &str,
        limit: &Leasable,
        call: &LeaseCall,
        number: u64,
        now: Timestamp,
    ) -> Errand {
        let mut words = Words::with_capacity(192 + name.len());
        words.push_number(1);
        words.push(name.as_bytes());
        match self.is_virtual {
            true => words.push_number(now.as_micros()),
            false => words.push(b""),
        }
        words.push(&lua::lease_argument(limit, call));
        Errand { number, words, slot: slots::slot(name.as_bytes()) }
    }

    fn send(self: &Arc<Self>, key: Fingerprint, errand: Errand) {
        let number = errand.number;
        let Some(fleet) = self.fleet.upgrade() else {
            return self.settle(key, number, Err(Failure::NotSent));
        };
        let mut pending = fleet.send(errand.into_call());
        // What is known at once, since Redis is out of reach, is not sent around.
        if let Poll::Ready(result) =
            Pin::new(&mut pending).poll(&mut Context::from_waker(Waker::noop()))
        {
            return self.settle(key, number, read(result));
        }
        let leased = Arc::downgrade(self);
        fleet.spawn(async move {
            let result = pending.await;
            if let Some(leased) = Weak::upgrade(&leased) {
                leased.settle(key, number, read(result));
            }
        });
    }

    /// Takes the answer to a call in, and answers whoever waits for it.
    fn settle(
        self: &Arc<Self>,
        key: Fingerprint,
        number: u64,
        result: Result<LeaseAnswer, Failure>,
    ) {
        let now = self.clock.now();
        let mut shard = self.shard(key);
        let Some(entry) = shard.get_mut(&key) else { return };
        let is_unpaid = match result {
            Ok(answer) => entry.answered(now, number, &answer, self.patience),
            Err(failure) => {
                entry.failed(number, &failure);
                false
            }
        };
        let errand = is_unpaid.then(|| self.ask_for_first(entry, now)).flatten();
        drop(shard);
        if let Some(errand) = errand {
            self.send(key, errand);
        }
    }

    /// A number that no other call has had, here or on another node, for all anybody will see.
    fn next_number(&self) -> u64 {
        let mut number = self.last_number.fetch_add(1, Ordering::Relaxed);
        // Scrambled as SplitMix does it, so that those of nodes that started close are far apart, and
        // below 2^53, for Lua.
        number = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((number ^ (number >> 31)) >> 11).max(1)
    }

    fn shard(&self, key: Fingerprint) -> MutexGuard<'_, Shard> {
        locked(&self.shards[key.number() as usize % SHARDS])
    }
}

impl Entry {
    fn new(name: &str, limit: &Leasable) -> Self {
        Self {
            name: name.into(),
            pool: Pool::new(*limit),
            waiters: VecDeque::new(),
            is_for_first: false,
        }
    }

    /// Answers those who wait, as far as the answer goes; true if somebody is left whom another call
    /// must be made for.
    fn answered(
        &mut self,
        now: Timestamp,
        number: u64,
        answer: &LeaseAnswer,
        patience: Micros,
    ) -> bool {
        if !self.pool.answered(now, number, answer) {
            return false;
        }
        let mut denied = None;
        if mem::take(&mut self.is_for_first)
            && let Some(first) = self.waiters.pop_front()
        {
            denied = (!answer.is_allowed).then_some((first.limit, first.cost));
            let (limit, cost) = (first.limit, first.cost);
            first.tell(Ok(paid(answer, &limit, cost)));
        }
        while let Some(first) = self.waiters.front() {
            let (limit, cost) = (first.limit, first.cost);
            let is_denied = denied.is_some_and(|(other, least)| limit == other && cost >= least);
            let told = match self.pool.spend(now, &limit, cost) {
                Some((decision, payment)) => Ok(Paid { decision, payment }),
                None if is_denied => Ok(paid(answer, &limit, cost)),
                None if now.since(first.since) >= patience => Err(Failure::Timeout),
                None => return true,
            };
            if let Some(first) = self.waiters.pop_front() {
                first.tell(told);
            }
        }
        false
    }

    fn failed(&mut self, number: u64, failure: &Failure) {
        match failure {
            Failure::NotSent | Failure::TryAgain => self.pool.not_sent(number),
            Failure::Timeout | Failure::Lost | Failure::Refused(_) => self.pool.lost(number),
        }
        self.waiters.drain(..).for_each(|waiter| waiter.tell(Err(failure.clone())));
    }
}

impl Waiter {
    fn tell(self, answer: Answer) {
        // Whoever went away has asked all the same: what was paid stays paid.
        let _ = self.caller.send(answer);
    }
}

impl Errand {
    fn into_call(self) -> Call {
        let Self { words, slot, .. } = self;
        Call { script: Some(&LEASE), words, slot, late: None }
    }
}

/// Goes through the pools from time to time, as long as there are any.
async fn keep(leased: Weak<Leased>) {
    let mut pauses = interval(REVIEW_PAUSE);
    pauses.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        pauses.tick().await;
        match leased.upgrade() {
            Some(leased) => leased.review(),
            None => return,
        }
    }
}

/// What a request is told for which Redis was asked.
fn paid(answer: &LeaseAnswer, limit: &Leasable, cost: Cost) -> Paid {
    let receipt = answer.receipt(cost);
    let payment = match receipt.cost {
        Cost::PEEK => Payment::Nothing,
        _ => Payment::Charged(receipt),
    };
    Paid { decision: answer.decision(limit, cost), payment }
}

fn read(result: Result<Reply, Failure>) -> Result<LeaseAnswer, Failure> {
    let reply = result?;
    let integer = |reply: &Reply| match reply {
        Reply::Integer(integer) => Some(*integer),
        _ => None,
    };
    let fields = match &reply {
        Reply::List(replies) => replies.iter().map(integer).collect::<Option<Vec<_>>>(),
        _ => None,
    };
    let fields = fields.and_then(|fields| <[i64; LEASE_FIELDS]>::try_from(fields).ok());
    let answer = fields.and_then(lua::lease_answer);
    answer.ok_or_else(|| Failure::Refused(format!("{reply:?} is no answer of ours")))
}

fn locked(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A fingerprint's second half is a hash already.
#[derive(Default)]
struct SecondHalf(u64);

impl Hasher for SecondHalf {
    fn write(&mut self, _: &[u8]) {
        unreachable!("a fingerprint is two numbers");
    }

    fn write_u64(&mut self, half: u64) {
        self.0 = half;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
