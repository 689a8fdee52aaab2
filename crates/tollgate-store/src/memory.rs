//! The store in this process's memory: the default, with nothing to install.
//!
//! Exact under concurrency: all charges of one call are taken or none is, and nobody sees half of
//! it. Bounded: at `max_bytes` it forgets vacant states first, then those that lose least, and a
//! key at its limit never.

mod together;

use std::{fmt, io};

use smallvec::SmallVec;
use tollgate_core::{ChargeId, Cost, Counter, Key, Limit, Log, Logged, Step, Timestamp};

use crate::account::{self, Account, NoRoom};
use crate::bounds::{
    LOGS_FORGOTTEN_MAX, LOGS_SHARE, MAX_BYTES_DEFAULT, MAX_BYTES_MIN, TABLE_SHARE,
};
use crate::charge::{Charge, Counted, Kept, Receipt, Taken};
use crate::clock::Clock;
use crate::enrolled::{Enrolled, Register, TooManyLimits};
use crate::fingerprint::{Fingerprint, Named, Secret};
use crate::logs::{LogNumber, Logs};
use crate::sync::{AtomicU64, AtomicUsize, Ordering};
use crate::table::{Crowded, Home, Record, Table};
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

/// Charges whose memory is on its way while others are decided. More than a core can wait for at a
/// time is no faster.
const AHEAD: usize = 8;

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

    /// The name of a limit as the keys of this store begin with it. A charge that says it is found
    /// sooner.
    pub fn named(&self, limit: &str) -> Named {
        self.secret.named(limit)
    }

    /// Takes one charge, or not.
    #[inline]
    pub fn take_one(&self, charge: &Charge<'_>) -> Taken {
        let (key, home) = self.fetch(charge);
        // Reading the clock holds the processor up; the memory is on its way meanwhile.
        let now = self.clock.now();
        match self.step_known(key, home, charge, now) {
            Some((counter, step)) => counted(key, charge, counter, step, now),
            None => self.take_otherwise(key, charge, now),
        }
    }

    /// Takes one charge, or not, and says no more than that: the quickest way to ask.
    // Always inlined, so that a caller's charge need not be put together in memory and taken apart again.
    #[inline(always)]
    pub fn allows(&self, charge: &Charge<'_>) -> bool {
        let (key, home) = self.fetch(charge);
        let now = self.clock.now();
        match self.step_known(key, home, charge, now) {
            Some((_, step)) => step.is_allowed,
            None => self.allows_otherwise(key, charge.without_key(), now),
        }
    }

    /// Takes each of `charges` on its own, whatever becomes of the others. Cheaper than one by
    /// one: their memory is fetched together, and the clock is read once.
    pub fn take_each(&self, charges: &[Charge<'_>], mut answer: impl FnMut(Taken)) {
        let now = self.clock.now();
        let mut fetched = [None; AHEAD];
        for (place, charge) in fetched.iter_mut().zip(charges) {
            *place = Some(self.fetch(charge));
        }
        for (number, charge) in charges.iter().enumerate() {
            let place = &mut fetched[number % AHEAD];
            let (key, home) = place.expect("there is one for each charge");
            *place = charges.get(number + AHEAD).map(|charge| self.fetch(charge));
            // Said in both arms, not after them: then of a counter's answer only what is asked of
            // it is worked out.
            match self.step_known(key, home, charge, now) {
                Some((counter, step)) => answer(counted(key, charge, counter, step, now)),
                None => answer(self.take_otherwise(key, charge, now)),
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
        let keys: SmallVec<[(Fingerprint, Home<'_>); INLINE]> =
            charges.iter().map(|charge| self.fetch(charge)).collect();
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

    /// The usual case, told apart from all others for its speed: a counter of a key that is near its home
    /// and in nobody's hands, whose state was written under the same limit. Nothing in any other case.
    #[inline(always)]
    fn step_known<'c>(
        &self,
        key: Fingerprint,
        home: Home<'_>,
        charge: &Charge<'c>,
        now: Timestamp,
    ) -> Option<(&'c Counter, Step)> {
        let Limit::Counter(counter) = &charge.limit.limit else { return None };
        let mut slot = home.lock(key)?;
        let stamp = charge.limit.stamp;
        let step = counter.step(slot.word_under(stamp)?, now, charge.cost);
        if charge.count_denied && !step.is_allowed {
            return None;
        }
        slot.write_under(stamp, step.word);
        Some((counter, step))
    }

    /// Is given a charge of its own: otherwise every caller's would have to be in memory for it.
    #[inline(never)]
    fn allows_otherwise(&self, key: Fingerprint, charge: Charge<'_>, now: Timestamp) -> bool {
        self.take_otherwise(key, &charge, now).is_allowed()
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
        let Enrolled { limit, number, .. } = charge.limit;
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
        let Enrolled { limit, number, .. } = charge.limit;
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

    /// The fingerprint of a charge's key, with the memory that it names on its way.
    #[inline(always)]
    fn fetch(&self, charge: &Charge<'_>) -> (Fingerprint, Home<'_>) {
        let key = self.secret.fingerprint_of(charge);
        (key, self.table.fetch(key))
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

/// What a counter did.
#[inline(always)]
fn counted(
    key: Fingerprint,
    charge: &Charge<'_>,
    counter: &Counter,
    step: Step,
    now: Timestamp,
) -> Taken {
    let (number, cost) = (charge.limit.number, charge.cost);
    Taken::Counted(Counted { key, number, counter: *counter, step, now, cost })
}

/// The answer when there is no state to charge.
fn without_state(place: Place, key: Fingerprint, charge: &Charge<'_>, now: Timestamp) -> Taken {
    match place {
        Place::Full => charge.on_failure.uncounted(),
        Place::At(_) | Place::NotNeeded | Place::Unknown => {
            let Enrolled { limit, number, .. } = charge.limit;
            let decision = account::decide_unknown(limit, now, charge.cost);
            Taken::Decided { decision, receipt: Receipt::of_nothing(key, *number) }
        }
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
