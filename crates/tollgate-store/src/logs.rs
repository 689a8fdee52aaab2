//! Logs of keys whose limit needs more than one word.
//!
//! The table keeps one word a key. For a logged limit that word is the number of a log kept here,
//! and the moment from which on it is vacant. A log is touched only by whoever holds its key's slot,
//! so the locks here are held for a moment and nothing is waited for under them.

use tollgate_core::{Log, Timestamp, Word};

use crate::sync::{AtomicUsize, Mutex, Ordering};

/// Enough that two threads rarely meet, few enough to be nothing in an empty store.
const SHELVES: usize = 64;

/// What a log costs beside its entries.
const LOG_BYTES: usize = size_of::<Option<Log>>();
const ENTRY_BYTES: usize = size_of::<tollgate_core::Entry>();

/// All logs of a store.
#[derive(Debug)]
pub(crate) struct Logs {
    shelves: Box<[Mutex<Shelf>]>,
    next: AtomicUsize,
    bytes: AtomicUsize,
}

#[derive(Debug, Default)]
struct Shelf {
    logs: Vec<Option<Log>>,
    free: Vec<u32>,
}

/// The number of a log, plus one: a vacant word is all zeroes and has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogNumber(u64);

impl Logs {
    pub(crate) fn new() -> Self {
        let shelves = (0..SHELVES).map(|_| Mutex::new(Shelf::default())).collect();
        Self { shelves, next: AtomicUsize::new(0), bytes: AtomicUsize::new(0) }
    }

    /// Bytes of all logs and their entries.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes that one more entry would add to a log that is at its capacity.
    pub(crate) fn growth(log: &Log) -> usize {
        LOG_BYTES + ENTRY_BYTES * log.capacity().max(4)
    }

    /// Shows a log, or an empty one if there is none, to `look`.
    pub(crate) fn look<T>(&self, number: Option<LogNumber>, look: impl FnOnce(&Log) -> T) -> T {
        let Some(number) = number else { return look(&Log::default()) };
        let shelf = self.shelf(number).lock().expect("nothing under a shelf's lock panics");
        look(shelf.logs[number.place()].as_ref().expect("a word names a log that is there"))
    }

    /// Lets `change` change a log, putting up a new one if there is none and taking it down if
    /// nothing is left in it.
    pub(crate) fn change<T>(
        &self,
        number: Option<LogNumber>,
        change: impl FnOnce(&mut Log) -> T,
    ) -> (Option<LogNumber>, T) {
        let number = number.unwrap_or_else(|| self.put_up());
        let mut shelf = self.shelf(number).lock().expect("nothing under a shelf's lock panics");
        let place = number.place();
        let log = shelf.logs[place].as_mut().expect("a word names a log that is there");
        let before = log.capacity() * ENTRY_BYTES;
        let result = change(log);
        let after = log.capacity() * ENTRY_BYTES;
        self.bytes.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        if log.is_empty() {
            self.bytes.fetch_sub(after + LOG_BYTES, Ordering::Relaxed);
            shelf.logs[place] = None;
            shelf.free.push(place as u32);
            return (None, result);
        }
        (Some(number), result)
    }

    /// Takes a log down.
    pub(crate) fn take_down(&self, number: LogNumber) {
        self.change(Some(number), |log| *log = Log::default());
    }

    fn put_up(&self) -> LogNumber {
        let shelf_index = self.next.fetch_add(1, Ordering::Relaxed) % SHELVES;
        let mut shelf =
            self.shelves[shelf_index].lock().expect("nothing under a shelf's lock panics");
        let place = match shelf.free.pop() {
            Some(place) => place as usize,
            None => {
                shelf.logs.push(None);
                shelf.logs.len() - 1
            }
        };
        shelf.logs[place] = Some(Log::default());
        self.bytes.fetch_add(LOG_BYTES, Ordering::Relaxed);
        LogNumber((place * SHELVES + shelf_index) as u64)
    }

    fn shelf(&self, number: LogNumber) -> &Mutex<Shelf> {
        &self.shelves[number.0 as usize % SHELVES]
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
