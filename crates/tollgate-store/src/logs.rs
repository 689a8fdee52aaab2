//! Logs of keys whose limit needs more than one word.
//!
//! The table keeps one word a key. For a logged limit that word is the number of a log kept here,
//! and the moment from which on it is vacant. A log is touched only by whoever holds its key's slot,
//! so the locks here are held for a moment and nothing is waited for under them.

use smallvec::SmallVec;
use tollgate_core::{Entry, Log, Timestamp, Word};

use crate::bounds::VICTIMS_LOOKED_AT;
use crate::fingerprint::Fingerprint;
use crate::sync::{AtomicUsize, Mutex, Ordering};

/// Enough that two threads rarely meet, few enough to be nothing in an empty store.
const SHELVES: usize = 64;

/// What a log costs beside its entries, whether the place is taken or free.
const PLACE_BYTES: usize = size_of::<Option<Kept>>() + size_of::<u32>();
const ENTRY_BYTES: usize = size_of::<Entry>();

/// All logs of a store.
#[derive(Debug)]
pub(crate) struct Logs {
    shelves: Box<[Mutex<Shelf>]>,
    next: AtomicUsize,
    /// Whom [`Logs::some_keys`] comes to next.
    hand: AtomicUsize,
    bytes: AtomicUsize,
}

#[derive(Debug, Default)]
struct Shelf {
    logs: Vec<Option<Kept>>,
    /// Has room for all of `logs`.
    free: Vec<u32>,
}

#[derive(Debug)]
struct Kept {
    key: Fingerprint,
    log: Log,
}

/// The number of a log, plus one: a vacant word is all zeroes and has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogNumber(u64);

impl Logs {
    pub(crate) fn new() -> Self {
        let shelves = (0..SHELVES).map(|_| Mutex::new(Shelf::default())).collect();
        let zero = || AtomicUsize::new(0);
        Self { shelves, next: zero(), hand: zero(), bytes: zero() }
    }

    /// Bytes of all logs and their entries, and of the places of logs that are gone.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes that `entries` more would add to a log that is at its capacity, or to a key that has
    /// none.
    pub(crate) fn growth(&self, number: Option<LogNumber>, entries: usize) -> usize {
        let entries = ENTRY_BYTES * entries;
        if number.is_some() {
            return entries;
        }
        let next = self.next.load(Ordering::Relaxed) % SHELVES;
        let shelf = self.shelves[next].lock().expect("nothing under a shelf's lock panics");
        entries + shelf.step() * PLACE_BYTES
    }

    /// The keys of some logs, other ones each time.
    pub(crate) fn some_keys(&self) -> SmallVec<[Fingerprint; VICTIMS_LOOKED_AT]> {
        let hand = self.hand.fetch_add(1, Ordering::Relaxed);
        let mut keys = SmallVec::new();
        for index in 0..SHELVES {
            let shelf = &self.shelves[(hand + index) % SHELVES];
            let shelf = shelf.lock().expect("nothing under a shelf's lock panics");
            let start = hand / SHELVES * VICTIMS_LOOKED_AT % shelf.logs.len().max(1);
            let (later, sooner) = shelf.logs.split_at(start);
            let kept = sooner.iter().chain(later).flatten();
            keys.extend(kept.map(|kept| kept.key).take(VICTIMS_LOOKED_AT - keys.len()));
            if keys.len() == VICTIMS_LOOKED_AT {
                break;
            }
        }
        keys
    }

    /// Shows a log, or an empty one if there is none, to `look`.
    pub(crate) fn look<T>(&self, number: Option<LogNumber>, look: impl FnOnce(&Log) -> T) -> T {
        let Some(number) = number else { return look(&Log::default()) };
        let shelf = self.shelf(number).lock().expect("nothing under a shelf's lock panics");
        look(&shelf.logs[number.place()].as_ref().expect("a word names a log that is there").log)
    }

    /// Lets `change` change a log, and takes it down if nothing is left in it.
    pub(crate) fn change<T>(
        &self,
        number: LogNumber,
        change: impl FnOnce(&mut Log) -> T,
    ) -> (Option<LogNumber>, T) {
        let mut shelf = self.shelf(number).lock().expect("nothing under a shelf's lock panics");
        let place = number.place();
        let log = &mut shelf.logs[place].as_mut().expect("a word names a log that is there").log;
        let before = log.capacity() * ENTRY_BYTES;
        let result = change(log);
        let after = log.capacity() * ENTRY_BYTES;
        self.bytes.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        if log.is_empty() {
            self.bytes.fetch_sub(after, Ordering::Relaxed);
            shelf.logs[place] = None;
            shelf.free.push(place as u32);
            // The next log comes here, where it needs no new place.
            self.next.store(number.0 as usize, Ordering::Relaxed);
            return (None, result);
        }
        (Some(number), result)
    }

    /// Takes a log down.
    pub(crate) fn take_down(&self, number: LogNumber) {
        self.change(number, |log| *log = Log::default());
    }

    /// Puts up an empty log for a key that has none.
    pub(crate) fn put_up(&self, key: Fingerprint) -> LogNumber {
        let shelf_index = self.next.fetch_add(1, Ordering::Relaxed) % SHELVES;
        let mut shelf =
            self.shelves[shelf_index].lock().expect("nothing under a shelf's lock panics");
        let added = shelf.grow() * PLACE_BYTES;
        self.bytes.fetch_add(added, Ordering::Relaxed);
        let kept = Some(Kept { key, log: Log::default() });
        let place = match shelf.free.pop() {
            Some(place) => {
                shelf.logs[place as usize] = kept;
                place as usize
            }
            None => {
                shelf.logs.push(kept);
                shelf.logs.len() - 1
            }
        };
        LogNumber((place * SHELVES + shelf_index) as u64)
    }

    fn shelf(&self, number: LogNumber) -> &Mutex<Shelf> {
        &self.shelves[number.0 as usize % SHELVES]
    }
}

impl Shelf {
    /// Places that it must grow by for one more log: an eighth at a time, so that a step is little
    /// beside what there is.
    fn step(&self) -> usize {
        let has_place = !self.free.is_empty() || self.logs.len() < self.logs.capacity();
        if has_place { 0 } else { (self.logs.len() / 8).max(1) }
    }

    /// Makes a place for one more log; tells how many were added.
    fn grow(&mut self) -> usize {
        let before = self.logs.capacity();
        self.logs.reserve_exact(self.step());
        self.free.reserve_exact(self.logs.capacity() - self.free.len());
        self.logs.capacity() - before
    }
}

impl LogNumber {
    fn place(self) -> usize {
        self.0 as usize / SHELVES
    }

    /// The number in a word of a logged limit.
    pub(crate) fn of(word: Word) -> Option<Self> {
        word.low.checked_sub(1).map(Self)
    }

    /// From when on the log of a word is vacant.
    pub(crate) fn vacant_at(word: Word) -> Timestamp {
        Timestamp::from_micros(word.high)
    }

    /// The word of a key whose log is vacant from `vacant_at` on.
    pub(crate) fn word(number: Option<Self>, vacant_at: Timestamp) -> Word {
        match number {
            None => Word::VACANT,
            Some(number) => Word { low: number.0 + 1, high: vacant_at.as_micros() },
        }
    }
}
