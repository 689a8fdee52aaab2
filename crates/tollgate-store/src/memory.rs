//! The store in this process's memory: the default, with nothing to install.
//!
//! Exact under concurrency: all charges of one call are taken or none is, and nobody sees half of
//! it. Bounded: at `max_bytes` it forgets vacant states first, then those that lose least, and a
//! key at its limit never.

use std::{fmt, io};

use smallvec::SmallVec;
use tollgate_core::{ChargeId, Cost, Counter, Decision, Key, Limit, Log, Logged, Step, Timestamp};

use crate::account::{self, Account, NoRoom};
use crate::bounds::{
    LOGS_FORGOTTEN_MAX, LOGS_SHARE, MAX_BYTES_DEFAULT, MAX_BYTES_MIN, TABLE_SHARE,
};
use crate::charge::{Charge, Counted, Kept, Mode, Receipt, Taken};
use crate::clock::Clock;
use crate::enrolled::{Enrolled, Register, TooManyLimits};
use crate::fingerprint::{Fingerprint, Secret};
use crate::logs::{LogNumber, Logs};
use crate::sync::{AtomicU64, AtomicUsize, Ordering};
use crate::table::{Crowded, Home, Locked, Record, Table};
use crate::upkeep::Upkeep;

/// Holds states in memory and charges them.
///
/// ```
/// use tollgate_core::{Key, Limit, Quota, Value};
/// use tollgate_store::{Charge, Clock, MemoryStore};
///
/// let store = MemoryStore::new(Clock::system())?;
/// let limit = store.enroll(Limit::sliding_window(Quota::per_minute(2)))?;
/// let address = [Value::new(b"203.0.113.7")];
/// let charge = Charge::new(Key { limit: "login", values: &address }, &limit);
/// let allowed = [(); 3].map(|()| store.take_one(&charge).is_allowed());
/// assert_eq!(allowed, [true, true, false]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MemoryStore {
    pub(crate) table: Table,
    pub(crate) logs: Logs,
    pub(crate) register: Register,
    pub(crate) clock: Clock,
    pub(crate) secret: Secret,
    max_bytes: usize,
    /// See [`Reserved`].
    reserved: AtomicUsize,
    pub(crate) next_charge: AtomicU64,
    /// Keys that were forgotten though they were not vacant. No other memory depends on it, so that loom
    /// need not know.
    evicted: std::sync::atomic::AtomicU64,
    /// Held while a snapshot is written.
    pub(crate) saving: std::sync::Mutex<()>,
}

/// Bytes that somebody is about to take. Until they have them nobody else may, so that all who grow
/// at the same moment stay within the bound together.
pub(crate) struct Reserved<'s> {
    store: &'s MemoryStore,
    bytes: usize,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.store.reserved.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// Charges of one request that need no allocation.
const INLINE: usize = 8;

/// Charges whose memory is fetched together. More than a core can wait for at a time is no faster.
const BATCH: usize = 32;

/// Where the state of a charge is.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    /// In this slot, unless it has moved since.
    At(usize),
    /// Nowhere: the key is unknown and the request takes nothing.
    NotNeeded,
    /// Nowhere yet: the key is unknown, and room is made for it if no known key denies.
    Unknown,
    /// Nowhere, because there is no room.
    Full,
}

/// What a request has to get before it can be decided.
enum Lacks {
    /// Slots for its unknown keys.
    Slots,
    /// Room for a log to grow.
    Room,
}

impl MemoryStore {
    /// A store of the default size, 256 MiB.
    pub fn new(clock: Clock) -> Result<Self, Unreservable> {
        Self::with_max_bytes(clock, MAX_BYTES_DEFAULT)
    }

    /// A store that uses at most `max_bytes`: reserved now, committed as it is used.
    pub fn with_max_bytes(clock: Clock, max_bytes: usize) -> Result<Self, Unreservable> {
        Self::with_secret(clock, max_bytes, Secret::random())
    }

    pub(crate) fn with_secret(
        clock: Clock,
        max_bytes: usize,
        secret: Secret,
    ) -> Result<Self, Unreservable> {
        let max_bytes = max_bytes.max(MAX_BYTES_MIN);
        Ok(Self {
            table: Table::new(max_bytes - max_bytes / LOGS_SHARE)
                .map_err(|source| Unreservable { max_bytes, source })?,
            logs: Logs::new(),
            register: Register::new(),
            clock,
            secret,
            max_bytes,
            reserved: AtomicUsize::new(0),
            next_charge: AtomicU64::new(1),
            evicted: std::sync::atomic::AtomicU64::new(0),
            saving: std::sync::Mutex::default(),
        })
    }

    /// Makes a limit known, so that states can name it. Equal limits are one.
    pub fn enroll(&self, limit: Limit) -> Result<Enrolled, TooManyLimits> {
        self.register.enroll(limit)
    }

    /// Takes one charge, or not.
    #[inline]
    pub fn take_one(&self, charge: &Charge<'_>) -> Taken {
        let key = self.secret.fingerprint(&charge.key);
        let home = self.table.fetch(key);
        self.take_keyed(key, home, charge, self.clock.now())
    }

    /// Takes one charge, or not, and says no more than that: the quickest way to ask.
    #[inline]
    pub fn allows(&self, charge: &Charge<'_>) -> bool {
        let key = self.secret.fingerprint(&charge.key);
        // Reading the clock holds the processor up; the memory is on its way meanwhile.
        let (home, now) = (self.table.fetch(key), self.clock.now());
        match self.step_known(key, home, charge, now) {
            Some(step) => step.is_allowed,
            None => self.take_otherwise(key, charge, now).is_allowed(),
        }
    }

    /// Takes each of `charges` on its own, whatever becomes of the others. Cheaper than one by
    /// one: their memory is fetched together, and the clock is read once.
    pub fn take_each(&self, charges: &[Charge<'_>], mut answer: impl FnMut(Taken)) {
        let now = self.clock.now();
        for charges in charges.chunks(BATCH) {
            let keys = self.fetch(charges);
            for ((key, home), charge) in keys.iter().zip(charges) {
                answer(self.take_keyed(*key, *home, charge, now));
            }
        }
    }

    /// Takes all of `charges`, or none if one that is enforced is denied.
    pub fn take(&self, charges: &[Charge<'_>]) -> SmallVec<[Taken; INLINE]> {
        let mut answers = SmallVec::new();
        self.take_all(charges, |taken| answers.push(taken));
        answers
    }

    /// The same for whoever needs no list: what each limit says is told to `answer`, in their order.
    pub fn take_all(&self, charges: &[Charge<'_>], mut answer: impl FnMut(Taken)) {
        if let [charge] = charges {
            return answer(self.take_one(charge));
        }
        let now = self.clock.now();
        let keys = self.fetch(charges);
        if !self.take_all_known(&keys, charges, now, &mut answer) {
            let keys: SmallVec<[Fingerprint; INLINE]> = keys.iter().map(|(key, _)| *key).collect();
            self.take_together(&keys, charges, now).into_iter().for_each(answer);
        }
    }

    /// Gives back what a charge took and time has not given back already; a lease is released by
    /// it. False if nothing was left of it. Of one receipt, call it once.
    pub fn refund(&self, receipt: &Receipt) -> bool {
        let now = self.clock.now();
        self.account_of(receipt.key).is_some_and(|mut account| account.refund(receipt, now))
    }

    /// Starts the lease of a held slot anew; false if it has ended or was released.
    pub fn renew(&self, receipt: &Receipt) -> bool {
        let now = self.clock.now();
        self.account_of(receipt.key).is_some_and(|mut account| account.renew(receipt, now))
    }

    /// Forgets what a key has consumed; false if nothing was known of it.
    pub fn reset(&self, key: &Key<'_>) -> bool {
        let upkeep = self.upkeep(self.clock.now());
        self.account_of(self.secret.fingerprint(key)).is_some_and(|mut account| {
            let is_known = !upkeep.is_vacant(account.record());
            account.reset();
            is_known
        })
    }

    /// A key as it may be shown: secret values as a hash that only this store can make.
    pub fn key_text(&self, key: &Key<'_>) -> String {
        key.text(|secret| self.secret.concealer().conceal(secret))
    }

    /// The same, written to the end of `text`.
    pub fn write_key_text(&self, key: &Key<'_>, text: &mut String) {
        key.write_text(|secret| self.secret.concealer().conceal(secret), text);
    }

    /// What time it is for the states.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Keys that are remembered, vacant ones that nobody missed yet included.
    pub fn keys(&self) -> usize {
        self.table.keys()
    }

    /// Bytes in use.
    pub fn bytes(&self) -> usize {
        self.table.bytes() + self.logs.bytes()
    }

    /// The most it may use.
    pub fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// Keys that were forgotten before their time, since memory was full.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(std::sync::atomic::Ordering::Relaxed)
    }

    #[inline]
    fn take_keyed(
        &self,
        key: Fingerprint,
        home: Home<'_>,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Taken {
        match (self.step_known(key, home, charge, now), &charge.limit.limit) {
            (Some(step), Limit::Counter(counter)) => Taken::Counted(Counted {
                key,
                number: charge.limit.number,
                counter: *counter,
                step,
                now,
                cost: charge.cost,
            }),
            _ => self.take_otherwise(key, charge, now),
        }
    }

    /// The usual case, told apart from all others for its speed: a counter of a known key whose
    /// state was written under the same limit. Nothing in any other case.
    #[inline(always)]
    fn step_known(
        &self,
        key: Fingerprint,
        home: Home<'_>,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Option<Step> {
        let Limit::Counter(counter) = &charge.limit.limit else { return None };
        let mut slot = self.table.lock_known(key, home)?;
        let Record { limit, word } = slot.record();
        if limit != charge.limit.number {
            return None;
        }
        let step = counter.step(word, now, charge.cost);
        if charge.count_denied && !step.is_allowed {
            return None;
        }
        slot.write(Record { limit, word: step.word });
        Some(step)
    }

    /// The same of several: all of them counters of known keys, and all allowed. In any other case
    /// nothing is done, and false.
    fn take_all_known(
        &self,
        keys: &[(Fingerprint, Home<'_>)],
        charges: &[Charge<'_>],
        now: Timestamp,
        answer: &mut impl FnMut(Taken),
    ) -> bool {
        let mut slots: SmallVec<[Locked<'_>; INLINE]> = SmallVec::new();
        let mut steps: SmallVec<[(Counter, Step); INLINE]> = SmallVec::new();
        for ((key, home), charge) in keys.iter().zip(charges) {
            let Limit::Counter(counter) = charge.limit.limit else { return false };
            // Whoever waited here, with others locked, might wait for somebody who waits for those.
            let Some(slot) = self.table.try_lock_known(*key, *home) else { return false };
            let Record { limit, word } = slot.record();
            let step = counter.step(word, now, charge.cost);
            if limit != charge.limit.number || !step.is_allowed {
                return false;
            }
            slots.push(slot);
            steps.push((counter, step));
        }
        for (slot, (_, step)) in slots.iter_mut().zip(&steps) {
            slot.write(Record { word: step.word, ..slot.record() });
        }
        drop(slots);
        for (((key, _), charge), (counter, step)) in keys.iter().zip(charges).zip(steps) {
            let (key, number, cost) = (*key, charge.limit.number, charge.cost);
            answer(Taken::Counted(Counted { key, number, counter, step, now, cost }));
        }
        true
    }

    #[inline(never)]
    fn take_otherwise(&self, key: Fingerprint, charge: &Charge<'_>, now: Timestamp) -> Taken {
        let known = self.table.find(key);
        if let Some(mut account) = known.and_then(|index| self.account_at(index, key)) {
            let taken = self.take_from(&mut account, key, charge, now);
            if !matches!(taken, Taken::Uncounted { .. }) {
                return taken;
            }
        }
        self.take_with_room(key, charge, now)
    }

    /// Takes a charge of a key that was not found at first sight, or whose log has no room to grow.
    fn take_with_room(&self, key: Fingerprint, charge: &Charge<'_>, now: Timestamp) -> Taken {
        let mut forgotten = 0;
        loop {
            let place = self.place(key, charge, now, &[], true);
            let Place::At(index) = place else { return without_state(place, key, charge, now) };
            let Some(mut account) = self.account_at(index, key) else { continue };
            let taken = self.take_from(&mut account, key, charge, now);
            drop(account);
            let lacks_room = matches!(taken, Taken::Uncounted { .. });
            if !lacks_room || !self.forget_another_log(&mut forgotten, now, &[key]) {
                return taken;
            }
        }
    }

    /// Decides a charge that stands alone, and so is never taken back.
    fn take_from(
        &self,
        account: &mut Account<'_>,
        key: Fingerprint,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Taken {
        let taken = self.charge(account, key, charge, now);
        if charge.count_denied && !taken.is_allowed() {
            return self.punished(account, key, charge, taken, now);
        }
        taken
    }

    fn charge(
        &self,
        account: &mut Account<'_>,
        key: Fingerprint,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Taken {
        let Enrolled { limit, number } = charge.limit;
        match limit {
            Limit::Counter(counter) => {
                let step = account.charge_counter(counter, *number, now, charge.cost);
                let (number, counter, cost) = (*number, *counter, charge.cost);
                Taken::Counted(Counted { key, number, counter, step, now, cost })
            }
            Limit::Logged(logged) => self.charge_log(account, key, charge, logged, now),
        }
    }

    /// The answer to a denied request that is charged all the same. One that costs more than the
    /// limit holds is not: nobody would ever be free of it again.
    #[cold]
    fn punished(
        &self,
        account: &mut Account<'_>,
        key: Fingerprint,
        charge: &Charge<'_>,
        denial: Taken,
        now: Timestamp,
    ) -> Taken {
        let Enrolled { limit, number } = charge.limit;
        match limit {
            Limit::Counter(counter) if !account::takes_nothing(limit, charge.cost) => {
                let decision = account.punish(counter, *number, now, charge.cost);
                Taken::Decided { decision, receipt: Receipt::of_nothing(key, *number) }
            }
            _ => denial,
        }
    }

    fn charge_log(
        &self,
        account: &mut Account<'_>,
        key: Fingerprint,
        charge: &Charge<'_>,
        logged: &Logged,
        now: Timestamp,
    ) -> Taken {
        let (number, cost) = (charge.limit.number, charge.cost);
        let id = self.next_charge.fetch_add(1, Ordering::Relaxed);
        let reserve = |bytes| self.reserve_for_logs(bytes);
        match account.charge_log(logged, number, now, cost, ChargeId(id), reserve) {
            Ok(decision) => {
                let cost = if decision.is_allowed() { cost } else { Cost::PEEK };
                let kept = Kept::Memory;
                let receipt = Receipt { key, limit: number, cost, at: now, mark: id, kept };
                Taken::Decided { decision, receipt }
            }
            Err(NoRoom) => charge.on_failure.uncounted(),
        }
    }

    #[inline(never)]
    fn take_together(
        &self,
        keys: &[Fingerprint],
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> SmallVec<[Taken; INLINE]> {
        // A request that a known key denies must not push anybody out for its unknown ones.
        let mut makes_room = keys.iter().all(|key| self.table.find(*key).is_none());
        let (mut may_forget, mut forgotten) = (true, 0);
        loop {
            let places: SmallVec<[Place; INLINE]> = keys
                .iter()
                .zip(charges)
                .map(|(key, charge)| match self.table.find(*key) {
                    Some(index) => Place::At(index),
                    None => {
                        // A limit that counts denied requests needs its state in any case, and what
                        // a key named twice says the second time only a state can tell.
                        let is_twice = keys.iter().filter(|other| *other == key).nth(1).is_some();
                        let makes_room = makes_room || charge.count_denied || is_twice;
                        self.place(*key, charge, now, keys, makes_room)
                    }
                })
                .collect();
            if let Some(mut accounts) = self.lock_all(keys, &places) {
                match self.take_from_all(&mut accounts, keys, &places, charges, now, may_forget) {
                    Ok(answers) => return answers,
                    Err(Lacks::Slots) => makes_room = true,
                    Err(Lacks::Room) => {
                        drop(accounts);
                        may_forget = self.forget_another_log(&mut forgotten, now, keys);
                    }
                }
            }
        }
    }

    /// Locks every slot once, in ascending order, so that two calls never wait for each other;
    /// nothing if one has moved since.
    fn lock_all(&self, keys: &[Fingerprint], places: &[Place]) -> Option<Accounts<'_>> {
        let mut wanted: SmallVec<[(usize, Fingerprint); INLINE]> = places
            .iter()
            .zip(keys)
            .filter_map(|(place, key)| match place {
                Place::At(index) => Some((*index, *key)),
                Place::NotNeeded | Place::Unknown | Place::Full => None,
            })
            .collect();
        wanted.sort_unstable_by_key(|(index, _)| *index);
        wanted.dedup();
        if wanted.windows(2).any(|two| two[0].0 == two[1].0) {
            // Two keys were seen in one slot, so one of them is there no longer.
            return None;
        }
        let accounts: Option<_> = wanted
            .into_iter()
            .map(|(index, key)| Some((index, self.account_at(index, key)?)))
            .collect();
        accounts.map(Accounts)
    }

    /// Takes all charges or none. Nothing is done yet if no limit denies and there are unknown keys,
    /// or if a log has no room to grow and it `may_forget` another.
    fn take_from_all(
        &self,
        accounts: &mut Accounts<'_>,
        keys: &[Fingerprint],
        places: &[Place],
        charges: &[Charge<'_>],
        now: Timestamp,
        may_forget: bool,
    ) -> Result<SmallVec<[Taken; INLINE]>, Lacks> {
        let mut before: SmallVec<[Record; INLINE]> = SmallVec::new();
        let mut answers: SmallVec<[Taken; INLINE]> = SmallVec::new();
        for ((key, place), charge) in keys.iter().zip(places).zip(charges) {
            let (record, answer) = match accounts.at(*place) {
                Some(account) => (account.record(), self.charge(account, *key, charge, now)),
                None => (Record::VACANT, without_state(*place, *key, charge, now)),
            };
            before.push(record);
            answers.push(answer);
        }
        let denies =
            |index: usize| charges[index].mode == Mode::Enforce && !answers[index].is_allowed();
        let may_gain_room = |index: usize| {
            may_forget
                && matches!(
                    (places[index], answers[index]),
                    (Place::At(_), Taken::Uncounted { .. })
                )
        };
        let is_denied = (0..charges.len()).any(denies);
        let is_settled = (0..charges.len()).any(|index| denies(index) && !may_gain_room(index));
        let lacks = if is_settled {
            None
        } else if places.iter().any(|place| matches!(place, Place::Unknown)) {
            Some(Lacks::Slots)
        } else {
            (0..charges.len()).any(may_gain_room).then_some(Lacks::Room)
        };
        if is_denied || lacks.is_some() {
            for index in (0..charges.len()).rev() {
                if let Some(account) = accounts.at(places[index]) {
                    take_back(account, &charges[index], &answers[index], before[index], now);
                }
            }
        }
        if let Some(lacks) = lacks {
            return Err(lacks);
        }
        for index in 0..charges.len() {
            let (charge, answer) = (&charges[index], &mut answers[index]);
            match accounts.at(places[index]) {
                // A limit in shadow may have denied what goes on.
                Some(account) if is_denied || !answer.is_allowed() => {
                    *answer = self.after_denial(account, keys[index], charge, *answer, now);
                }
                None if matches!(places[index], Place::Unknown) => {
                    *answer = untouched(keys[index], charge, now);
                }
                _ => {}
            }
        }
        Ok(answers)
    }

    /// What is said of a limit after it, or another, denied the request: nothing was taken of it,
    /// unless it counts denied requests.
    fn after_denial(
        &self,
        account: &mut Account<'_>,
        key: Fingerprint,
        charge: &Charge<'_>,
        answer: Taken,
        now: Timestamp,
    ) -> Taken {
        if !answer.is_allowed() {
            return if charge.count_denied {
                self.punished(account, key, charge, answer, now)
            } else {
                answer
            };
        }
        let counts = charge.count_denied && matches!(charge.limit.limit, Limit::Counter(_));
        let cost = if counts { charge.cost } else { Cost::PEEK };
        let mut told = self.charge(account, key, &Charge { cost, ..*charge }, now);
        match (&mut told, answer) {
            (Taken::Counted(told), Taken::Counted(answer)) => {
                told.step.is_allowed = answer.step.is_allowed;
                told.step.delay = answer.step.delay;
            }
            (Taken::Decided { decision: told, .. }, Taken::Decided { decision: answer, .. }) => {
                told.outcome = answer.outcome;
            }
            _ => {}
        }
        // What a denied request was charged is not given back.
        told.take_receipt();
        told
    }

    /// Finds a slot for a key that was not found; one who `makes_room` lets the table grow or forget
    /// for it. The keys of one request, `together`, leave each other alone.
    fn place(
        &self,
        key: Fingerprint,
        charge: &Charge<'_>,
        now: Timestamp,
        together: &[Fingerprint],
        makes_room: bool,
    ) -> Place {
        let elsewhere = match account::takes_nothing(&charge.limit.limit, charge.cost) {
            true => Place::NotNeeded,
            false if makes_room => return self.make_room(key, now, together),
            false => Place::Unknown,
        };
        // Only the shard's lock tells a key that is moving from one that is unknown.
        let _shard = self.table.lock_shard_of(key);
        self.table.find(key).map_or(elsewhere, Place::At)
    }

    /// A slot for a key that may have none; the table grows or forgets somebody if it must.
    pub(crate) fn make_room(
        &self,
        key: Fingerprint,
        now: Timestamp,
        together: &[Fingerprint],
    ) -> Place {
        let upkeep = Upkeep { together, ..self.upkeep(now) };
        let mut may_grow = true;
        loop {
            let mut shard = self.table.lock_shard_of(key);
            match self.table.find_or_insert(&mut shard, key, &upkeep) {
                Ok(index) => {
                    let is_filling = self.table.is_filling(&shard);
                    drop(shard);
                    if !self.table.move_one_shard(&upkeep) && is_filling && self.can_grow() {
                        self.start_growing();
                    }
                    return Place::At(index);
                }
                Err(Crowded) if may_grow && self.can_grow() => {
                    drop(shard);
                    may_grow = self.table.move_one_shard(&upkeep) || self.start_growing();
                }
                Err(Crowded) => {
                    let Ok(forgotten) = self.table.forget_one(&mut shard, key, &upkeep) else {
                        return Place::Full;
                    };
                    if forgotten.is_some_and(|record| !upkeep.is_vacant(record)) {
                        self.count_evicted();
                    }
                }
            }
        }
    }

    /// Forgets the log that loses least among some, unless others changed that meanwhile; false if
    /// none of them can be spared. Of the keys of one request, `together`, none can.
    pub(crate) fn forget_a_log(&self, now: Timestamp, together: &[Fingerprint]) -> bool {
        let upkeep = Upkeep { together, ..self.upkeep(now) };
        let candidate = |key: Fingerprint| {
            let account = self.account_of(key).filter(|_| upkeep.may_forget(key))?;
            Some((upkeep.loss_of_log(account.record())?, account))
        };
        let victim = self
            .logs
            .some_keys()
            .into_iter()
            .filter_map(|key| Some((candidate(key)?.0, key)))
            .min_by_key(|(loss, _)| *loss);
        let Some((_, key)) = victim else { return false };
        if let Some((_, mut account)) = candidate(key) {
            account.reset();
            self.count_evicted();
        }
        true
    }

    fn count_evicted(&self) {
        self.evicted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    /// The same, unless this request has had its share of that.
    pub(crate) fn forget_another_log(
        &self,
        forgotten: &mut usize,
        now: Timestamp,
        together: &[Fingerprint],
    ) -> bool {
        *forgotten += 1;
        *forgotten <= LOGS_FORGOTTEN_MAX && self.forget_a_log(now, together)
    }

    /// Keeps a log that comes from elsewhere, if there is room or others can be spared.
    pub(crate) fn put_up(&self, key: Fingerprint, log: Log, now: Timestamp) -> Option<LogNumber> {
        let _reserved = loop {
            match self.reserve_for_logs(self.logs.growth(None, log.capacity())) {
                Some(reserved) => break reserved,
                None if self.forget_a_log(now, &[]) => {}
                None => return None,
            }
        };
        self.logs.change(self.logs.put_up(key), |empty| *empty = log).0
    }

    /// Keeps a state that comes from elsewhere, if there is room; false if the key has one.
    pub(crate) fn put(&self, key: Fingerprint, record: Record, now: Timestamp) -> bool {
        while let Place::At(index) = self.make_room(key, now, &[]) {
            if let Some(mut slot) = self.table.lock_at(index, key) {
                let is_new = slot.record() == Record::VACANT;
                slot.write(record);
                return is_new;
            }
        }
        self.upkeep(now).let_go(record);
        true
    }

    pub(crate) fn upkeep(&self, now: Timestamp) -> Upkeep<'_> {
        Upkeep { limits: &self.register, logs: &self.logs, now, together: &[] }
    }

    /// Whether the table is growing, or may.
    fn can_grow(&self) -> bool {
        self.table.can_grow(|bytes| bytes + self.logs.bytes() <= self.max_bytes)
    }

    /// Lets the table begin to grow; false if there is no room for that.
    fn start_growing(&self) -> bool {
        self.table.start_growing(|bytes| self.reserve(bytes, 0))
    }

    /// The right to take `bytes` more for logs, of what the table does not use, nor is kept for.
    pub(crate) fn reserve_for_logs(&self, bytes: usize) -> Option<Reserved<'_>> {
        self.reserve(bytes, self.max_bytes / TABLE_SHARE)
    }

    /// The right to take `bytes` more, if all who have it then stay within the bound, and a table
    /// smaller than `table_bytes` can become so large.
    fn reserve(&self, bytes: usize, table_bytes: usize) -> Option<Reserved<'_>> {
        let before = self.reserved.fetch_add(bytes, Ordering::AcqRel);
        let reserved = Reserved { store: self, bytes };
        let in_use = self.table.bytes().max(table_bytes) + self.logs.bytes();
        (in_use + before + bytes <= self.max_bytes).then_some(reserved)
    }

    /// The fingerprints of some charges, with the memory they name on its way.
    fn fetch(&self, charges: &[Charge<'_>]) -> SmallVec<[(Fingerprint, Home<'_>); BATCH]> {
        let fetch = |charge: &Charge<'_>| {
            let key = self.secret.fingerprint(&charge.key);
            (key, self.table.fetch(key))
        };
        charges.iter().map(fetch).collect()
    }

    /// The account of a key, if it is known.
    pub(crate) fn account_of(&self, key: Fingerprint) -> Option<Account<'_>> {
        loop {
            let index = match self.table.find(key) {
                Some(index) => index,
                None => {
                    let _shard = self.table.lock_shard_of(key);
                    self.table.find(key)?
                }
            };
            if let Some(account) = self.account_at(index, key) {
                return Some(account);
            }
        }
    }

    #[inline]
    pub(crate) fn account_at(&self, index: usize, key: Fingerprint) -> Option<Account<'_>> {
        let slot = self.table.lock_at(index, key)?;
        Some(Account { slot, logs: &self.logs, register: &self.register })
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("keys", &self.keys())
            .field("bytes", &self.bytes())
            .field("max_bytes", &self.max_bytes)
            .finish_non_exhaustive()
    }
}

/// The accounts of one call, each with the slot it is in.
struct Accounts<'s>(SmallVec<[(usize, Account<'s>); INLINE]>);

impl<'s> Accounts<'s> {
    fn at(&mut self, place: Place) -> Option<&mut Account<'s>> {
        let Place::At(wanted) = place else { return None };
        self.0.iter_mut().find(|(index, _)| *index == wanted).map(|(_, account)| account)
    }
}

/// The answer when there is no state to charge.
fn without_state(place: Place, key: Fingerprint, charge: &Charge<'_>, now: Timestamp) -> Taken {
    match place {
        Place::Full => charge.on_failure.uncounted(),
        Place::At(_) | Place::NotNeeded | Place::Unknown => {
            let Enrolled { limit, number } = charge.limit;
            let decision = account::decide_unknown(limit, now, charge.cost);
            Taken::Decided { decision, receipt: Receipt::of_nothing(key, *number) }
        }
    }
}

/// What is said of an unknown key after another denied the request: it would have been allowed, and
/// nothing was taken.
fn untouched(key: Fingerprint, charge: &Charge<'_>, now: Timestamp) -> Taken {
    let Enrolled { limit, number } = charge.limit;
    let outcome = account::decide_unknown(limit, now, charge.cost).outcome;
    let decision = Decision { outcome, ..account::decide_unknown(limit, now, Cost::PEEK) };
    Taken::Decided { decision, receipt: Receipt::of_nothing(key, *number) }
}

/// Undoes a charge that was taken before another was denied.
fn take_back(
    account: &mut Account<'_>,
    charge: &Charge<'_>,
    answer: &Taken,
    before: Record,
    now: Timestamp,
) {
    match (answer.receipt(), charge.limit.limit) {
        (Some(_), Limit::Counter(_)) => account.restore(before),
        (Some(receipt), Limit::Logged(_)) => {
            account.refund(&receipt, now);
        }
        (None, _) => {}
    }
}

/// The operating system would not reserve the memory.
#[derive(Debug)]
pub struct Unreservable {
    max_bytes: usize,
    source: io::Error,
}

impl fmt::Display for Unreservable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of memory cannot be reserved; lower max_bytes", self.max_bytes)
    }
}

impl std::error::Error for Unreservable {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}
