//! Exact under concurrency: whoever races, exactly as much is admitted as there is.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;

use tollgate_core::{Algorithm, Limit, Micros, Quota};
use tollgate_store::{Enrolled, Taken, snapshot};

use crate::support::{Order, Rng, Subject, limit_of, limit_over};

/// Units there are of a key that is raced for.
const UNITS: u32 = 300;

/// Threads that race. More than there are cores here, so that they also stop in the middle.
const RACERS: u64 = 4;

const HOUR: Micros = Micros::from_secs(3_600);

/// Runs `race` in many threads at once, each with its number, while `beside` runs again and again
/// until they are done.
fn race(race: impl Fn(u64) + Sync, beside: impl Fn(&mut u64) + Sync) {
    let start = Barrier::new(RACERS as usize + 1);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let racers: Vec<_> = (0..RACERS)
            .map(|racer| {
                let (start, race) = (&start, &race);
                scope.spawn(move || {
                    start.wait();
                    race(racer);
                })
            })
            .collect();
        scope.spawn(|| {
            start.wait();
            let mut turn = 0;
            while !is_over.load(Ordering::Relaxed) {
                beside(&mut turn);
                turn += 1;
            }
        });
        let ended: Vec<_> = racers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok), "a racer panicked");
    });
}

/// Nothing happens beside the race.
fn nothing(_turn: &mut u64) {
    thread::yield_now();
}

/// New keys come in all the time, so that the table grows and its shards move.
fn newcomers(subject: &Subject, limit: Enrolled) -> impl Fn(&mut u64) + Sync {
    move |turn| {
        for key in 0..16 {
            subject.take_one(&Order::new(1 << 32 | *turn << 8 | key, limit));
        }
    }
}

#[test]
fn exactly_as_many_units_are_admitted_as_there_are() {
    for algorithm in Algorithm::ALL {
        let subject = Subject::in_memory();
        let order = Order::new(1, subject.enroll(limit_of(algorithm, UNITS)));
        let admitted = AtomicU32::new(0);
        race(|_| count_admitted(&subject, &order, UNITS, &admitted), nothing);
        assert_eq!(admitted.into_inner(), UNITS, "{algorithm}");
        assert_eq!(subject.remaining(&order), 0, "{algorithm}");
    }
}

/// Asks `times` times.
fn count_admitted(subject: &Subject, order: &Order, times: u32, admitted: &AtomicU32) {
    let allowed = (0..times).filter(|_| subject.take_one(order).is_allowed()).count();
    admitted.fetch_add(allowed as u32, Ordering::Relaxed);
}

#[test]
fn exactly_as_many_are_admitted_while_the_table_grows_and_its_shards_move() {
    for algorithm in Algorithm::ALL {
        let subject = Subject::in_memory();
        let order = Order::new(1, subject.enroll(limit_of(algorithm, UNITS)));
        let other = subject.enroll(limit_over(Algorithm::TokenBucket, 5, HOUR));
        let admitted = AtomicU32::new(0);
        let before = subject.store.bytes();
        race(
            |racer| {
                for key in 0..u64::from(UNITS) {
                    count_admitted(&subject, &order, 1, &admitted);
                    subject.take_one(&Order::new((racer + 1) << 40 | key, other));
                }
            },
            newcomers(&subject, other),
        );
        assert!(subject.store.bytes() > before, "{algorithm}: the table has grown");
        assert_eq!(admitted.into_inner(), UNITS, "{algorithm}");
        assert_eq!(subject.remaining(&order), 0, "{algorithm}");
    }
}

#[test]
fn a_new_key_that_many_bring_at_once_is_one_key() {
    for algorithm in Algorithm::ALL {
        let subject = Subject::in_memory();
        let limit = subject.enroll(limit_of(algorithm, 3));
        let keys = 400;
        let admitted: Vec<AtomicU32> = (0..keys).map(|_| AtomicU32::new(0)).collect();
        race(
            |_| {
                for (key, admitted) in (0..keys).zip(&admitted) {
                    count_admitted(&subject, &Order::new(key, limit), 2, admitted);
                }
            },
            nothing,
        );
        for (key, admitted) in admitted.iter().enumerate() {
            assert_eq!(admitted.load(Ordering::Relaxed), 3, "{algorithm} key {key}");
        }
        assert_eq!(subject.store.keys(), keys as usize, "{algorithm}");
    }
}

#[test]
fn a_small_table_that_many_let_grow_at_once_forgets_nobody() {
    for round in 0..300 {
        // One shard, so that all of them find it crowded at the same moment, again and again.
        let subject = Subject::of_size(64 << 10);
        let limit = subject.enroll(limit_of(Algorithm::FixedWindow, 9));
        let keys = 50;
        race(
            |racer| {
                for key in 0..keys {
                    let key = racer << 8 | key;
                    assert!(subject.take_one(&Order::new(key, limit)).receipt().is_some());
                }
            },
            nothing,
        );
        for (racer, key) in (0..RACERS).flat_map(|racer| (0..keys).map(move |key| (racer, key))) {
            let left = subject.remaining(&Order::new(racer << 8 | key, limit));
            assert_eq!(left, 8, "round {round}: key {key} of racer {racer} was forgotten");
        }
    }
}

#[test]
fn requests_over_shared_keys_in_any_order_pay_all_or_nothing() {
    for algorithm in Algorithm::ALL {
        let subject = Subject::in_memory();
        let limit = subject.enroll(limit_of(algorithm, UNITS));
        let other = subject.enroll(limit_over(Algorithm::SlidingWindow, 5, HOUR));
        // How many requests were admitted that named each key.
        let paid: [AtomicU32; 5] = Default::default();
        race(
            |racer| {
                let mut rng = Rng::new(racer);
                for _ in 0..UNITS {
                    let many = 2 + rng.below(3);
                    let orders: Vec<Order> =
                        (0..many).map(|_| Order::new(rng.below(5), limit)).collect();
                    if subject.take(&orders).iter().all(Taken::is_allowed) {
                        for order in &orders {
                            paid[order.key as usize].fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            },
            newcomers(&subject, other),
        );
        let left: Vec<u32> = (0..5).map(|key| subject.remaining(&Order::new(key, limit))).collect();
        for (key, (left, paid)) in left.iter().zip(&paid).enumerate() {
            let paid = paid.load(Ordering::Relaxed);
            assert_eq!(*left, UNITS - paid, "{algorithm}: {paid} were paid by key {key}");
        }
        assert!(left.contains(&0), "{algorithm}: the race was for more than there is: {left:?}");
    }
}

#[test]
fn requests_that_bring_new_keys_together_in_any_order_pay_all_or_nothing() {
    let subject = Subject::in_memory();
    let limit = subject.enroll(limit_of(Algorithm::FixedWindow, 10));
    let rounds = 400;
    race(
        |racer| {
            for round in 0..rounds {
                let mut keys = [0, 1, 2].map(|key| round * 3 + key);
                keys.rotate_left(racer as usize % 3);
                let orders = keys.map(|key| Order::new(key, limit));
                assert!(subject.take(&orders).iter().all(Taken::is_allowed));
            }
        },
        nothing,
    );
    for key in 0..rounds * 3 {
        let left = subject.remaining(&Order::new(key, limit));
        assert_eq!(left, 10 - RACERS as u32, "key {key}");
    }
}

#[test]
fn what_is_given_back_can_be_taken_again_and_no_more_than_that() {
    for algorithm in Algorithm::ALL {
        let subject = Subject::in_memory();
        let slots = 3;
        let order = Order::new(1, subject.enroll(limit_of(algorithm, slots)));
        let other = subject.enroll(limit_over(Algorithm::SlidingWindow, 5, HOUR));
        // Counted up after a unit was taken and down before it is given back, so never more than
        // are out.
        let out = AtomicU32::new(0);
        let turns = AtomicU64::new(0);
        race(
            |_| {
                for _ in 0..400 {
                    if let Some(receipt) = subject.take_one(&order).receipt() {
                        let out_now = out.fetch_add(1, Ordering::SeqCst) + 1;
                        assert!(out_now <= slots, "{algorithm}: {out_now} of {slots}");
                        if algorithm == Algorithm::Concurrency {
                            assert!(subject.store.renew(&receipt));
                        }
                        out.fetch_sub(1, Ordering::SeqCst);
                        assert!(subject.store.refund(&receipt), "{algorithm}");
                        turns.fetch_add(1, Ordering::Relaxed);
                    }
                }
            },
            newcomers(&subject, other),
        );
        assert!(turns.into_inner() > u64::from(slots), "{algorithm}");
        assert_eq!(subject.remaining(&order), slots, "{algorithm}");
    }
}

#[test]
fn a_reset_hands_out_one_quota_each_time() {
    for algorithm in Algorithm::ALL {
        let subject = Subject::in_memory();
        let order = Order::new(1, subject.enroll(limit_of(algorithm, 20)));
        let (admitted, resets) = (AtomicU32::new(0), AtomicU32::new(0));
        race(
            |racer| {
                for turn in 0..300 {
                    count_admitted(&subject, &order, 1, &admitted);
                    if racer == 0 && turn % 25 == 24 {
                        subject.reset(1);
                        resets.fetch_add(1, Ordering::Relaxed);
                    }
                }
            },
            nothing,
        );
        let (admitted, resets) = (admitted.into_inner(), resets.into_inner());
        assert!(admitted <= 20 * (resets + 1), "{algorithm}: {admitted} in {resets} resets");
        assert!(admitted >= 20, "{algorithm}");
        subject.reset(1);
        let after = AtomicU32::new(0);
        count_admitted(&subject, &order, 50, &after);
        assert_eq!(after.into_inner(), 20, "{algorithm}");
    }
}

#[test]
fn a_key_under_two_quotas_at_once_is_one_key() {
    for algorithm in Algorithm::ALL {
        let subject = Subject::in_memory();
        let small = Order::new(1, subject.enroll(limit_of(algorithm, UNITS - 50)));
        let large = Order::new(1, subject.enroll(limit_of(algorithm, UNITS)));
        let admitted = AtomicU32::new(0);
        race(
            |racer| {
                let order = if racer % 2 == 0 { &small } else { &large };
                count_admitted(&subject, order, UNITS, &admitted);
            },
            nothing,
        );
        assert_eq!(admitted.into_inner(), UNITS, "{algorithm}");
    }
}

#[test]
fn floods_from_all_sides_leave_memory_within_its_bound_and_limited_keys_denied() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::SlidingLog] {
        let max_bytes = 64 << 10;
        let subject = Subject::of_size(max_bytes);
        let limit = subject.enroll(limit_over(algorithm, 5, HOUR));
        let limited: Vec<Order> = (0..20).map(|key| Order::new(key, limit)).collect();
        for order in &limited {
            subject.charge(&order.costing_all());
        }
        race(
            |racer| {
                for key in 0..1_000 {
                    subject.take_one(&Order::new((racer + 1) << 32 | key, limit));
                    let order = &limited[key as usize % limited.len()];
                    assert!(!subject.decide(order).is_allowed(), "{algorithm} key {}", order.key);
                }
            },
            |_| {
                // Of two threads that both saw a free place for a log, one finds it taken, and makes
                // another.
                let bytes = subject.store.bytes();
                assert!(bytes <= max_bytes + RACERS as usize * 64, "{algorithm}: {bytes} bytes");
            },
        );
    }
}

#[test]
fn two_requests_whose_keys_push_each_other_out_both_end() {
    // Many small requests in a table that is full of keys with little to lose.
    let subject = Subject::of_size(64 << 10);
    let limit = subject.enroll(limit_over(Algorithm::FixedWindow, 100, HOUR));
    race(
        |racer| {
            let mut rng = Rng::new(racer);
            for _ in 0..300 {
                let orders: Vec<Order> =
                    (0..4).map(|_| Order::new(rng.below(1 << 20), limit)).collect();
                assert!(subject.take(&orders).iter().all(Taken::is_allowed));
            }
        },
        newcomers(&subject, limit),
    );
}

#[test]
fn a_snapshot_taken_during_a_race_holds_no_more_than_was_admitted() {
    for algorithm in Algorithm::ALL.into_iter().filter(|it| *it != Algorithm::Concurrency) {
        let subject = Subject::in_memory();
        let order = Order::new(1, subject.enroll(limit_of(algorithm, UNITS)));
        let other = subject.enroll(limit_over(Algorithm::SlidingWindow, 5, HOUR));
        let admitted = AtomicU32::new(0);
        race(
            |racer| {
                if racer > 0 {
                    return count_admitted(&subject, &order, UNITS, &admitted);
                }
                let mut left = UNITS;
                for _ in 0..5 {
                    let bytes = snapshot::write(&subject.store, Vec::new()).expect("to memory");
                    let store = snapshot::read(&bytes[..], subject.clock.clone(), 16 << 20)
                        .expect("what was just written");
                    let restored = Subject { store, clock: subject.clock.clone() };
                    let order = Order::new(1, restored.enroll(*order.limit.limit()));
                    let left_now = restored.remaining(&order);
                    assert!(left_now <= left, "{algorithm}: what was used stays used");
                    left = left_now;
                }
            },
            newcomers(&subject, other),
        );
        assert_eq!(admitted.into_inner(), UNITS, "{algorithm}");
    }
}

#[test]
fn logs_that_grow_at_the_same_moment_stay_within_the_bound_together() {
    // Eight logs that are full to their capacity, in memory that has room for one to double.
    const LOGS: u64 = 8;
    const ENTRIES: u32 = 4_096;
    let max_bytes = (LOGS as usize + 1) * ENTRIES as usize * 24 * 4 / 3 + (64 << 10);
    let subject = Subject::of_size(max_bytes);
    let limit = subject.enroll(Limit::sliding_log(Quota::per_day(100_000)).unwrap());
    for key in 0..LOGS {
        for _ in 0..ENTRIES {
            subject.take_one(&Order::new(key, limit));
        }
    }
    let start = Barrier::new(LOGS as usize);
    std::thread::scope(|scope| {
        for key in 0..LOGS {
            let (subject, start) = (&subject, &start);
            scope.spawn(move || {
                start.wait();
                subject.take_one(&Order::new(key, limit));
                assert!(subject.store.bytes() <= max_bytes, "{} bytes", subject.store.bytes());
            });
        }
    });
    assert!(subject.store.bytes() <= max_bytes, "{} bytes", subject.store.bytes());
}
