//! A store as bytes, and bytes as a store.

use std::io::{self, Read, Write};
use std::{error, fmt};

use tollgate_core::bounds::LOG_ENTRIES_MAX;
use tollgate_core::{Algorithm, ChargeId, Entry, Limit, Log, NUMBERS, Timestamp, Word};

use super::block::{BlockReader, BlockWriter};
use crate::bounds::LIMITS_MAX;
use crate::clock::Clock;
use crate::enrolled::Enrolled;
use crate::fingerprint::{Fingerprint, Secret};
use crate::logs::LogNumber;
use crate::memory::{MemoryStore, Unreservable};
use crate::table::Record;

const MAGIC: [u8; 8] = *b"tollgate";
const VERSION: u32 = 2;

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
    // States name limits by number, so those enrolled while this is written must not appear.
    let limits: Vec<Limit> = store.register.all().collect();
    blocks.write(&(limits.len() as u32).to_le_bytes())?;
    for limit in &limits {
        write_limit(&mut blocks, limit)?;
    }
    let upkeep = store.upkeep(now);
    let mut states = Vec::new();
    for shard in 0..store.table.shards() {
        states.clear();
        store.table.for_each_in(shard, |key, record| {
            if let Some(limit) = limits.get(record.limit as usize)
                && !upkeep.is_vacant(record)
            {
                encode_state(&mut states, store, key, record, limit);
            }
        });
        blocks.write(&states)?;
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
    let limits = read_limits(&mut blocks, &store)?;
    let now = store.clock.now();
    while !blocks.is_at_end()? {
        let key = Fingerprint { first: number(&mut blocks)?, second: number(&mut blocks)? };
        let limit = limits
            .get(u32::from_le_bytes(blocks.take()?) as usize)
            .filter(|_| key != Fingerprint::NONE)
            .ok_or(SnapshotError::Damaged { what: "a state names no limit" })?;
        let word = match limit.limit {
            Limit::Counter(_) => {
                let word = Word { low: number(&mut blocks)?, high: number(&mut blocks)? };
                if (word.low | word.high) >> Word::HALF_BITS != 0 {
                    return Err(SnapshotError::Damaged { what: "a state is out of its bounds" });
                }
                word
            }
            Limit::Logged(logged) => {
                let log = read_log(&mut blocks)?;
                let vacant_at = logged.vacant_at(&log);
                LogNumber::word(store.put_up(key, log, now), vacant_at)
            }
        };
        if word != Word::VACANT {
            store.put(key, Record { limit: limit.number, word }, now);
        }
    }
    Ok(store)
}

fn write_limit<W: Write>(blocks: &mut BlockWriter<W>, limit: &Limit) -> io::Result<()> {
    let algorithm = limit.algorithm();
    let code = Algorithm::ALL.iter().position(|known| *known == algorithm);
    let numbers = limit.numbers();
    blocks.write(&[code.expect("every algorithm is one of all") as u8])?;
    numbers.iter().try_for_each(|number| blocks.write(&number.to_le_bytes()))
}

fn read_limits<R: Read>(
    blocks: &mut BlockReader<R>,
    store: &MemoryStore,
) -> Result<Vec<Enrolled>, SnapshotError> {
    let count = u32::from_le_bytes(blocks.take()?) as usize;
    if count > LIMITS_MAX {
        return Err(SnapshotError::Damaged { what: "it has too many limits" });
    }
    let limit = |blocks: &mut BlockReader<R>| {
        let [algorithm] = blocks.take()?;
        let mut numbers = [0; NUMBERS];
        for place in &mut numbers {
            *place = number(blocks)?;
        }
        Algorithm::ALL
            .get(usize::from(algorithm))
            .and_then(|algorithm| Limit::from_numbers(*algorithm, numbers))
            .and_then(|limit| store.enroll(limit).ok())
            .ok_or(SnapshotError::Damaged { what: "a limit makes no sense" })
    };
    (0..count).map(|_| limit(blocks)).collect()
}

fn encode_state(
    states: &mut Vec<u8>,
    store: &MemoryStore,
    key: Fingerprint,
    record: Record,
    limit: &Limit,
) {
    if limit.algorithm() == Algorithm::Concurrency {
        return;
    }
    states.extend(key.first.to_le_bytes());
    states.extend(key.second.to_le_bytes());
    states.extend(record.limit.to_le_bytes());
    match limit {
        Limit::Counter(_) => {
            states.extend(record.word.low.to_le_bytes());
            states.extend(record.word.high.to_le_bytes());
        }
        Limit::Logged(_) => store.logs.look(LogNumber::of(record.word), |log| {
            states.extend((log.len() as u32).to_le_bytes());
            for entry in log.entries() {
                states.extend(entry.at.as_micros().to_le_bytes());
                states.extend(entry.units.to_le_bytes());
            }
        }),
    }
}

fn read_log<R: Read>(blocks: &mut BlockReader<R>) -> Result<Log, SnapshotError> {
    let count = u32::from_le_bytes(blocks.take()?);
    if count > LOG_ENTRIES_MAX {
        return Err(SnapshotError::Damaged { what: "a log is too long" });
    }
    let mut latest = Timestamp::EPOCH;
    let mut entry = || {
        let at = Timestamp::from_micros(number(blocks)?);
        let units = u32::from_le_bytes(blocks.take()?);
        if at < latest || units == 0 {
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
