//! Any bytes are a snapshot or are refused, be they what is behind right checksums. What was read is written and read
//! again as much of it, and whatever state a snapshot may hold can be decided on.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_core::{Algorithm, Cost, Counter, Limit, Receipt, Timestamp, Word};
use tollgate_store::{Clock, MemoryStore, snapshot};

const NOW: Timestamp = Timestamp::from_micros(1_760_000_000_000_000);

fuzz_target!(|bytes: &[u8]| {
    let _ = read(bytes);
    if let Ok(store) = read(&snapshot::sealed(bytes)) {
        let written = write(&store);
        let again = read(&written).expect("what is written is read");
        // Keys that are neighbours may have changed places.
        assert_eq!(write(&again).len(), written.len());
    }
    decide_on(bytes);
});

fn read(bytes: &[u8]) -> Result<MemoryStore, snapshot::SnapshotError> {
    snapshot::read(bytes, Clock::manual(NOW), 64 << 10)
}

fn write(store: &MemoryStore) -> Vec<u8> {
    snapshot::write(store, Vec::new()).expect("memory takes everything")
}

/// The end of the bytes as the definition of a limit, its state, a time and a cost.
fn decide_on(bytes: &[u8]) {
    let Some((_, &[code, ref rest @ ..])) = bytes.split_last_chunk::<73>() else { return };
    let number =
        |place: usize| u64::from_le_bytes(rest[8 * place..][..8].try_into().expect("eight bytes"));
    let Some(&algorithm) = Algorithm::ALL.get(usize::from(code)) else { return };
    let numbers = [0, 1, 2, 3, 4].map(number);
    let Some(Limit::Counter(limit)) = Limit::from_numbers(algorithm, numbers) else { return };
    let word = Word { low: number(5), high: number(6) };
    let (now, cost) = (Timestamp::from_micros(number(7)), Cost::new(number(8) as u32));
    if limit.can_be_at(word) {
        check_decisions(&limit, word, now, cost);
    }
}

fn check_decisions(limit: &Counter, word: Word, now: Timestamp, cost: Cost) {
    let decided = limit.decide(word, now, cost);
    let forced = limit.force(word, now, cost);
    let refund = |word, receipt: &Receipt| limit.refund(word, now, receipt);
    for word in [
        decided.word,
        forced.word,
        limit.punish(word, now, cost),
        limit.credit(word, now, cost),
        refund(decided.word, &decided.receipt),
        refund(forced.word, &forced.receipt),
    ] {
        assert!(limit.can_be_at(word), "{limit:?} at {word:?}");
        let peek = limit.decide(word, now, Cost::PEEK);
        assert!(peek.decision.remaining <= peek.decision.limit);
        // The end of time stands for later than can be told.
        if limit.vacant_at(word) <= now && now < Timestamp::END {
            assert_eq!(peek.decision, limit.decide(Word::VACANT, now, Cost::PEEK).decision);
        }
    }
}
