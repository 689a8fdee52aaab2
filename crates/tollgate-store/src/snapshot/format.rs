//! A store as bytes, and bytes as a store.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::{error, fmt};

use tollgate_core::bounds::LOG_ENTRIES_MAX;
use tollgate_core::{Algorithm, ChargeId, Counter, Entry, Limit, Log, NUMBERS, Timestamp, Word};

use super::block::{BlockReader, BlockWriter};
use crate::clock::Clock;
use crate::enrolled::Enrolled;
use crate::fingerprint::{Fingerprint, Secret};
use crate::logs::LogNumber;
use crate::memory::{MemoryStore, Unreservable};
use crate::table::Record;

const MAGIC: [u8; 8] = *b"tollgate";
const VERSION: u32 = 5;

/// Writes every state of `store` that is not vacant. Decisions go on meanwhile; each key is
/// written as it was at one moment, different keys at different moments.
pub fn write<W: Write>(store: &MemoryStore, mut to: W) -> Result<W, SnapshotError> {
    to.write_all(&MAGIC)?;
    to.write_all(&VERSION.to_le_bytes())?;
    let mut blocks = BlockWriter::new(to);
    let now = store.clock.now();
    for word in store.secret.seed() {
        blocks.write(&word.to_le_bytes())?;
    }
    blocks.write(&now.as_micros().to_le_bytes())?;
    let upkeep = store.upkeep(now);
    let mut states = States::default();
    for shard in 0..store.table.shards() {
        states.bytes.clear();
        store.table.for_each_in(shard, |key, record| {
            if !upkeep.is_vacant(record) {
                states.encode(store, key, record);
            }
        });
        blocks.write(&states.bytes)?;
    }
    Ok(blocks.finish()?)
}

/// The store that `from` is a snapshot of. Whatever is wrong with it, nothing is taken from it.
pub fn read(
    mut from: impl Read,
    clock: Clock,
    max_bytes: usize,
) -> Result<MemoryStore, SnapshotError> {
    let (mut magic, mut version) = ([0; 8], [0; 4]);
    from.read_exact(&mut magic)?;
    if magic != MAGIC {
        return Err(SnapshotError::Damaged { what: "it does not begin as a snapshot does" });
    }
    from.read_exact(&mut version)?;
    let version = u32::from_le_bytes(version);
    if version != VERSION {
        return Err(SnapshotError::OtherFormat { version });
    }
    let mut blocks = BlockReader::new(from);
    let secret = Secret::from_seed([number(&mut blocks)?, number(&mut blocks)?]);
    let _saved_at = number(&mut blocks)?;
    let store = MemoryStore::with_secret(clock, max_bytes, secret)?;
    let mut limits = Vec::new();
    let now = store.clock.now();
    while !blocks.is_at_end()? {
        let key = Fingerprint { first: number(&mut blocks)?, second: number(&mut blocks)? };
        if key == Fingerprint::NONE {
            return Err(SnapshotError::Damaged { what: "a state belongs to no key" });
        }
        let Enrolled { limit, number, .. } = read_limit(&mut blocks, &mut limits, &store)?;
        let word = match limit {
            Limit::Counter(counter) => read_word(&mut blocks, &counter)?,
            Limit::Logged(logged) => {
                let log = read_log(&mut blocks)?;
                let vacant_at = logged.vacant_at(&log);
                LogNumber::word(store.put_up(key, log, now), vacant_at)
            }
        };
        if word != Word::VACANT && !store.put(key, Record { limit: number, word }, now) {
            return Err(SnapshotError::Damaged { what: "a key has two states" });
        }
    }
    Ok(store)
}

/// The snapshot with this payload, be it rubbish behind checksums that fit. For tests and fuzzing.
#[doc(hidden)]
pub fn sealed(payload: &[u8]) -> Vec<u8> {
    let start = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
    let mut blocks = BlockWriter::new(start);
    let written = blocks.write(payload).and_then(|()| blocks.finish());
    written.expect("memory takes everything")
}

/// States on their way to a file.
#[derive(Default)]
struct States {
    bytes: Vec<u8>,
    /// By its number in the store, the number of each limit that has a definition in the file.
    numbers: HashMap<u32, u32>,
}

impl States {
    fn encode(&mut self, store: &MemoryStore, key: Fingerprint, record: Record) {
        let Some(limit) = store.register.get(record.limit) else { return };
        if limit.algorithm() == Algorithm::Concurrency {
            return;
        }
        self.bytes.extend(key.first.to_le_bytes());
        self.bytes.extend(key.second.to_le_bytes());
        self.encode_limit(record.limit, &limit);
        match limit {
            Limit::Counter(_) => {
                self.bytes.extend(record.word.low.to_le_bytes());
                self.bytes.extend(record.word.high.to_le_bytes());
            }
            Limit::Logged(_) => store.logs.look(LogNumber::of(record.word), |log| {
                self.bytes.extend((log.len() as u32).to_le_bytes());
                for entry in log.entries() {
                    self.bytes.extend(entry.at.as_micros().to_le_bytes());
                    self.bytes.extend(entry.units.to_le_bytes());
                }
            }),
        }
    }

    fn encode_limit(&mut self, number: u32, limit: &Limit) {
        let next = self.numbers.len() as u32;
        let number = *self.numbers.entry(number).or_insert(next);
        self.bytes.extend(number.to_le_bytes());
        if number == next {
            let algorithm = limit.algorithm();
            let code = Algorithm::ALL.iter().position(|known| *known == algorithm);
            self.bytes.push(code.expect("every algorithm is one of all") as u8);
            self.bytes.extend(limit.numbers().iter().flat_map(|number| number.to_le_bytes()));
        }
    }
}

/// The limit of a state, and its definition if it is the first of it.
fn read_limit<R: Read>(
    blocks: &mut BlockReader<R>,
    limits: &mut Vec<Enrolled>,
    store: &MemoryStore,
) -> Result<Enrolled, SnapshotError> {
    let index = u32::from_le_bytes(blocks.take()?) as usize;
    if index == limits.len() {
        let [algorithm] = blocks.take()?;
        let mut numbers = [0; NUMBERS];
        for place in &mut numbers {
            *place = number(blocks)?;
        }
        let limit = Algorithm::ALL
            .get(usize::from(algorithm))
            // Held slots are not kept.
            .filter(|algorithm| **algorithm != Algorithm::Concurrency)
            .and_then(|algorithm| Limit::from_numbers(*algorithm, numbers))
            .and_then(|limit| store.enroll(limit).ok())
            .ok_or(SnapshotError::Damaged { what: "a limit makes no sense" })?;
        limits.push(limit);
    }
    limits.get(index).copied().ok_or(SnapshotError::Damaged { what: "a state names no limit" })
}

fn read_word<R: Read>(
    blocks: &mut BlockReader<R>,
    counter: &Counter,
) -> Result<Word, SnapshotError> {
    let word = Word { low: number(blocks)?, high: number(blocks)? };
    if !counter.can_be_at(word) {
        return Err(SnapshotError::Damaged { what: "a state is out of its bounds" });
    }
    Ok(word)
}

fn read_log<R: Read>(blocks: &mut BlockReader<R>) -> Result<Log, SnapshotError> {
    let count = u32::from_le_bytes(blocks.take()?);
    if count > LOG_ENTRIES_MAX {
        return Err(SnapshotError::Damaged { what: "a log is too long" });
    }
    let mut latest = Timestamp::EPOCH;
    let mut entry = || {
        let micros = number(blocks)?;
        let at = Timestamp::from_micros(micros);
        let units = u32::from_le_bytes(blocks.take()?);
        if at.as_micros() != micros || at < latest || units == 0 {
            return Err(SnapshotError::Damaged { what: "a log is out of order" });
        }
        latest = at;
        // Whoever could have given these charges back is gone.
        Ok(Entry { at, id: ChargeId(0), units })
    };
    (0..count).map(|_| entry()).collect()
}

fn number<R: Read>(blocks: &mut BlockReader<R>) -> Result<u64, SnapshotError> {
    Ok(u64::from_le_bytes(blocks.take()?))
}

/// Why a snapshot was not written, or not read.
#[derive(Debug)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The file could not be read or written.
    Io(io::Error),
    /// It is not what was written.
    Damaged {
        /// What shows it.
        what: &'static str,
    },
    /// Another version of tollgate wrote it.
    OtherFormat {
        /// The version of its format.
        version: u32,
    },
    /// There is no memory to read it into.
    Unreservable(Unreservable),
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(_) => write!(f, "the snapshot cannot be read or written"),
            Self::Damaged { what } => write!(f, "the snapshot is damaged: {what}"),
            Self::OtherFormat { version } => {
                write!(f, "the snapshot has format {version}, and this version reads {VERSION}")
            }
            Self::Unreservable(_) => write!(f, "there is no memory to read the snapshot into"),
        }
    }
}

impl error::Error for SnapshotError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Io(source) => Some(source),
            Self::Unreservable(source) => Some(source),
            Self::Damaged { .. } | Self::OtherFormat { .. } => None,
        }
    }
}

impl From<io::Error> for SnapshotError {
    fn from(source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::UnexpectedEof => Self::Damaged { what: "it ends too early" },
            _ => Self::Io(source),
        }
    }
}

impl From<Unreservable> for SnapshotError {
    fn from(source: Unreservable) -> Self {
        Self::Unreservable(source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charge::Charge;
    use tollgate_core::{Key, Micros, Quota, Value};

    const HEADER_BYTES: usize = MAGIC.len() + size_of::<u32>();

    /// What the blocks of a snapshot hold.
    fn payload(snapshot: &[u8]) -> Vec<u8> {
        let mut blocks = BlockReader::new(&snapshot[HEADER_BYTES..]);
        let mut payload = Vec::new();
        while !blocks.is_at_end().expect("a good snapshot") {
            payload.extend(blocks.take::<1>().expect("a good snapshot"));
        }
        payload
    }

    /// A store with a few states under limits of every algorithm, some at and past their limits.
    fn store(clock: &Clock) -> MemoryStore {
        let store = MemoryStore::with_secret(clock.clone(), 1 << 20, Secret::from_seed([7, 8]))
            .expect("a megabyte");
        let quota = Quota::new(5, Micros::from_secs(60)).expect("a quota");
        let limits = [
            Limit::sliding_window(quota),
            Limit::token_bucket(quota, 5).expect("a bucket"),
            Limit::leaky_bucket(quota, 5, None).expect("a bucket"),
            Limit::fixed_window(quota, tollgate_core::Align::Key),
            Limit::sliding_log(quota).expect("a log"),
        ];
        for (key, limit) in (0_u8..).zip(limits) {
            let limit = store.enroll(limit).expect("five limits");
            for times in 1..4 {
                let bytes = [key, times];
                let values = [Value::new(&bytes)];
                let charge = Charge::new(Key { limit: "limit", values: &values }, &limit);
                (0..2 * times).for_each(|_| assert!(store.take_one(&charge).decision().is_some()));
            }
        }
        store
    }

    /// Uses every state that was read in every way there is.
    fn use_up(store: &MemoryStore) {
        for moment in [0, 1, 1 << 40, Timestamp::END.as_micros()] {
            let upkeep = store.upkeep(Timestamp::from_micros(moment));
            for shard in 0..store.table.shards() {
                store.table.for_each_in(shard, |_, record| {
                    let limit = store.register.get(record.limit).expect("a state names its limit");
                    if let Limit::Counter(counter) = limit {
                        assert!(counter.can_be_at(record.word), "{counter:?}: {record:?}");
                        for cost in [0, 1, u32::MAX] {
                            let (now, cost) = (upkeep.now, tollgate_core::Cost::new(cost));
                            counter.decide(record.word, now, cost);
                            counter.force(record.word, now, cost);
                            counter.punish(record.word, now, cost);
                        }
                    }
                    upkeep.loss(record);
                });
            }
        }
        write(store, Vec::new()).expect("to memory");
    }

    #[test]
    fn bytes_changed_behind_the_checksum_are_refused_or_harmless() {
        let clock = Clock::manual(Timestamp::from_micros(1_760_000_000_000_000));
        let good = payload(&write(&store(&clock), Vec::new()).expect("to memory"));
        let mut random = 1_u64;
        let mut below = |bound: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) as usize % bound
        };
        let (mut read_well, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let mut bytes = good.clone();
            for _ in 0..1 + below(3) {
                let place = below(bytes.len());
                bytes[place] = [0, 1, 0x7F, 0xFF, below(256) as u8][below(5)];
            }
            match read(&sealed(&bytes)[..], clock.clone(), 1 << 16) {
                Ok(store) => {
                    read_well += 1;
                    use_up(&store);
                }
                Err(_) => refused += 1,
            }
        }
        assert!(read_well > 1_000 && refused > 1_000, "{read_well} read, {refused} refused");
    }

    #[test]
    fn a_state_twice_is_refused() {
        let clock = Clock::manual(Timestamp::from_micros(1_760_000_000_000_000));
        let store = MemoryStore::with_max_bytes(clock.clone(), 1 << 16).expect("some memory");
        let limit = store.enroll(Limit::sliding_window(Quota::per_hour(2))).expect("one limit");
        for value in [Value::MISSING, Value::new(b"")] {
            store.take_one(&Charge::new(Key { limit: "limit", values: &[value] }, &limit));
        }
        let mut bytes = payload(&write(&store, Vec::new()).expect("to memory"));
        let read_again = |bytes: &[u8]| read(&sealed(bytes)[..], clock.clone(), 1 << 16);
        assert_eq!(read_again(&bytes).expect("a good snapshot").keys(), 2);
        let last_state = bytes.len() - 36..;
        bytes.extend_from_within(last_state);
        let why = read_again(&bytes).expect_err("one key has two states");
        assert!(matches!(why, SnapshotError::Damaged { what: "a key has two states" }), "{why}");
    }
}
