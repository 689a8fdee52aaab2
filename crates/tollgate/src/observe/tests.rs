use std::thread;

use tollgate_core::{Limit, Quota, Value};
use tollgate_store::{Charge, Clock, MemoryStore};

use super::summary::tests::number;
use super::*;
use crate::bounds::{KEY_TEXT_BYTES_MAX, RECENT_KEYS, SUMMARY_KEYS, WAITS_SLOTS};
use crate::metrics::Counted;

const START: Timestamp = Timestamp::from_micros(1_760_000_000_000_000);

/// What a limit that allows one request a minute says to some of a key.
fn said(key: &str, requests: usize) -> Vec<Taken> {
    let store = MemoryStore::with_max_bytes(Clock::manual(START), 1 << 20).expect("a megabyte");
    let limit = store.enroll(Limit::sliding_window(Quota::per_minute(1))).expect("one limit");
    let values = [Value::new(key.as_bytes())];
    let charge = Charge::new(Key { limit: "api", values: &values }, &limit);
    (0..requests).map(|_| store.take_one(&charge)).collect()
}

fn looked(requests: u64, denials: u64) -> Looked {
    let (turn, _) = Turn::next(&Clock::manual(START));
    Looked { turn, now: START, requests, denials }
}

#[test]
fn threads_that_meet_lose_nothing_of_the_sum() {
    const EACH: u64 = 5_000;
    let (observer, series) = (Observer::new(START), Counted::new().series(false));
    let look = |key: &str, taken: &Taken, looked: Looked| {
        let said = Said { place: 0, series: &series, mode: Mode::Enforce, taken };
        observer.look(looked, std::iter::once(said), |_, text| text.push_str(key));
    };
    thread::scope(|scope| {
        for thread in 0..4 {
            let look = &look;
            scope.spawn(move || {
                let key = thread.to_string();
                let denied = said(&key, 2)[1];
                (0..EACH).for_each(|_| look(&key, &denied, looked(3, 2)));
            });
        }
    });
    // Whoever comes next counts for those who found nobody after them.
    look("last", &said("last", 2)[1], looked(1, 1));
    let (slice, _) = observer.tell(Span::Minute, START);
    assert_eq!((slice.requests, slice.denied), (4 * 3 * EACH + 1, 4 * 2 * EACH + 1));
    let sum = |summary: &Summary| summary.counters.iter().map(|it| it.weight).sum::<u64>();
    assert_eq!((slice.busiest.total, sum(&slice.busiest)), (slice.requests, slice.requests));
    assert_eq!((slice.most_denied.total, sum(&slice.most_denied)), (slice.denied, slice.denied));
}

#[test]
fn ten_million_keys_change_the_memory_by_nothing() {
    const FIRST: u64 = 100_000;
    let (clock, observer) = (Clock::manual(START), Observer::new(START));
    let decision = said("a", 1)[0].decision().expect("memory counts");
    let text = "a key of forty letters, as most of them are, or longer ".repeat(9);
    let come = |keys: std::ops::Range<u64>| {
        for key in keys {
            // As many are looked at as of requests that come as fast as this.
            let weight: u64 = Turn::next(&clock).0.weight().into();
            if weight > 0 {
                let key = number(key);
                let came = observer.waits.see(key, START, Some(Micros::from_secs(1)));
                let (requests, denials, early) = (weight, weight, 0);
                let used = used(&decision);
                let seen = Seen { key, now: START, decision, requests, denials, early, came, used };
                observer.kept().see(&seen, |to| to.push_str(&text));
            }
        }
        let kept = observer.kept();
        let counters = kept.slices.tell(Span::Minute).0;
        let longest = counters.iter().flat_map(|slice| &slice.busiest.counters);
        let longest = longest.map(|counter| counter.text.len()).max();
        (kept.slices.room(), kept.text.capacity(), longest)
    };
    let before = come(0..FIRST);
    assert_eq!(before.2, Some(KEY_TEXT_BYTES_MAX + '…'.len_utf8()));
    assert_eq!(come(FIRST..10_000_000), before);
}

#[test]
fn memory_is_what_the_page_on_metrics_says() {
    // docs/metrics.md: when these change, so does what it says.
    let counter = size_of::<Counter>();
    let text = 16 + KEY_TEXT_BYTES_MAX + '…'.len_utf8();
    let summaries = 2 * (6 + 12 + 24 + 3);
    assert!(summaries * SUMMARY_KEYS * (counter + text) <= 17_500_000, "{counter}");
    assert!(summaries * SUMMARY_KEYS * (counter + 16 + 40) <= 8_000_000);
    assert_eq!(WAITS_SLOTS * size_of::<u64>(), 512 << 10);
    assert!(size_of::<Option<Recent>>() * crate::bounds::RECENT_DECISIONS * RECENT_KEYS <= 200_000);
}
