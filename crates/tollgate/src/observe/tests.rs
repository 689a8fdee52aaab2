use std::thread;

use tollgate_core::{Limit, Quota, Value};
use tollgate_store::{Charge, Clock, MemoryStore, Store};

use super::*;
use crate::bounds::{KEY_TEXT_BYTES_MAX, METRICS_SHARDS_MAX, METRICS_TENANTS_MAX, RECENT_KEYS};
use crate::bounds::{SUMMARY_KEYS, USERS_SERIES_MAX, WAITS_SLOTS};
use crate::metrics::{Live, Shard, Turn};

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
    Looked { now: START, requests, denials }
}

#[test]
fn threads_that_meet_lose_nothing_of_the_sum() {
    const EACH: u64 = 5_000;
    let (observer, series) = (Observer::new(START), Series::new(false));
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

/// Lists of keys: of every row what has ended and what has begun, those that are being counted, and one
/// that is put together of others.
const LISTS: usize = 2 * (6 + 12 + 24 + 3) + 1;

#[test]
fn ten_million_keys_in_a_day_take_no_more_memory_than_a_hundred_thousand() {
    const FIRST: u64 = 100_000;
    const ALL: u64 = 10_000_000;
    const AT_ONCE: u64 = 250;
    let (clock, observer) = (Clock::manual(START), Observer::new(START));
    let memory = MemoryStore::with_max_bytes(clock.clone(), 1 << 20).expect("a megabyte");
    let (store, series) = (Store::from(memory), Series::new(true));
    let limit = store.enroll(Limit::sliding_window(Quota::per_minute(1))).expect("one limit");
    let decision = said("a", 2)[1].decision().expect("memory counts");
    let text = "a key of forty letters, as most of them are, or longer ".repeat(9);
    let come = |key: u64| {
        if key.is_multiple_of(AT_ONCE) {
            clock.advance(Micros::new(86_400_000_000 / (ALL / AT_ONCE)));
        }
        let bytes = key.to_be_bytes();
        let values = [Value::new(&bytes)];
        let taken =
            &store.decided_without(&Key { limit: "api", values: &values }, &limit, decision);
        let (turn, _) = Turn::next(&clock);
        series.count(Mode::Enforce, taken);
        // As many are looked at as of requests that come as fast as this.
        let (requests, now) = (turn.weight().into(), clock.now());
        if requests > 0 {
            let said = Said { place: 0, series: &series, mode: Mode::Enforce, taken };
            let looked = Looked { now, requests, denials: requests };
            observer.look(looked, std::iter::once(said), |_, to| to.push_str(&text));
        }
    };
    let room = || {
        let kept = observer.kept();
        let (ended, present) = kept.slices.room();
        assert!(ended <= LISTS * SUMMARY_KEYS, "{ended}");
        (ended, (present, kept.text.capacity(), kept.slices.longest_text()))
    };
    (0..FIRST).for_each(come);
    let before = room().1;
    assert_eq!(before.2, Some(KEY_TEXT_BYTES_MAX + '…'.len_utf8()));
    for hour in 0..24 {
        let at = |hour| FIRST + (ALL - FIRST) * hour / 24;
        (at(hour)..at(hour + 1)).for_each(come);
        assert_eq!(room().1, before);
    }
    assert!(room().0 > 30 * 2 * SUMMARY_KEYS, "lists of a whole day are full: {}", room().0);
}

#[test]
fn memory_is_what_the_page_on_metrics_says() {
    let page = include_str!("../../../../docs/metrics.md");
    let says = |row: String| assert!(page.contains(&row), "docs/metrics.md should say {row:?}");
    // Whatever is shared has two counts before it.
    let shared = 2 * size_of::<usize>();
    let histogram = shared + size_of::<Live>() + (Live::of_shares().tell().buckets.len() + 1) * 8;
    let besides = size_of::<Series>() + align_of::<Shard>() + histogram + shared + size_of::<Day>();
    let shard = size_of::<Shard>();
    says(format!(
        "| counters | {shard} bytes a limit and tier for each processor (32 at most), and {besides} for its histogram and its last day |"
    ));
    let users = 4 * size_of::<users::Users>() / 1024;
    says(format!("| {users} KiB a limit and tier, of the first 1,024 |"));
    assert_eq!((METRICS_SHARDS_MAX, USERS_SERIES_MAX, METRICS_TENANTS_MAX), (32, 1_024, 1_000));
    let counter = size_of::<Counter>();
    says(format!(
        "| who: {LISTS} lists of {SUMMARY_KEYS} keys, {counter} bytes each and the key's text |"
    ));
    let lists = |text| (LISTS * SUMMARY_KEYS * (counter + shared + text)) as f64 / 1e6;
    let longest = KEY_TEXT_BYTES_MAX + '…'.len_utf8();
    says(format!(
        "| {:.1} MB with keys of 40 bytes, {:.1} MB with the longest;",
        lists(40),
        lists(longest)
    ));
    // What is put together for a day: 23 hours, what has begun of each length, and the present, which has
    // its texts copied.
    let told = (23 + 3 + 1) * SUMMARY_KEYS * (counter + size_of::<(&Counter, u64)>())
        + 2 * SUMMARY_KEYS * (shared + longest);
    says(format!(" {:.1} MB more while a day is told |", told as f64 / 1e6));
    says(format!(
        "| waits that were told | {} KiB |",
        WAITS_SLOTS * size_of::<waits::Slot>() / 1024
    ));
    says(format!(
        "| last decisions of keys | {} KiB |",
        RECENT_KEYS * size_of::<recent::Slot>() / 1024
    ));
    // A map has room for up to twice its entries and a seventh, each with a byte beside it.
    let entry = 2 * (size_of::<(Arc<str>, Arc<Live>)>() + 1) * 8 / 7;
    let tenant = histogram + shared + entry;
    assert!((150..=200).contains(&tenant), "{tenant}");
    says("| 200 bytes a limit and tenant and the tenant's name, of the first 1,000 |".to_owned());
}
