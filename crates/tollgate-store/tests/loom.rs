//! The hot path of the memory store, run in every order that two or three threads can run in, with
//! every value that the memory model lets them read.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --release -p tollgate-store --test loom
//! ```
//!
//! Under this cfg a table may be very small, and keys always have the same places in it.

#![cfg(loom)]

use std::sync::atomic::{AtomicUsize, Ordering};

use loom::sync::Arc;
use loom::thread;
use tollgate_core::{Algorithm, Align, Cost, Key, Limit, Micros, Quota, Timestamp, Value};
use tollgate_store::{Charge, Clock, Enrolled, MemoryStore, Receipt, Taken};

/// Orders tried of a model that has more: there are too many where two threads let a table grow.
const ORDERS_MAX: usize = 50_000;

/// A model with fewer no longer tries what it is named for: those who should meet do not.
const ORDERS_MIN: usize = 6;

/// Runs `check` in every order with at most `preemptions` switches that nobody asked for: as many as
/// take some seconds at most.
fn model(preemptions: usize, check: impl Fn() + Send + Sync + 'static) {
    let runs = std::sync::Arc::new(AtomicUsize::new(0));
    let count = runs.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.max_permutations = Some(ORDERS_MAX);
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        check();
    });
    let runs = runs.load(Ordering::Relaxed);
    assert!(preemptions == 0 || runs >= ORDERS_MIN, "{runs} orders: nobody meets anybody");
    println!("{runs} orders{}", if runs < ORDERS_MAX { "" } else { ", and no more were tried" });
}

/// One shard, which holds seven keys and may grow to hold ten and fourteen.
const SMALL: usize = 590;

/// Two shards, which hold seven keys each and may grow.
const TWO_SHARDS: usize = 1_300;

/// One shard that holds seven keys and cannot grow.
const SMALLEST: usize = 300;

const START: Timestamp = Timestamp::from_micros(1_760_000_000_000_000);

/// A store and one limit of it.
#[derive(Clone)]
struct Subject {
    store: Arc<MemoryStore>,
    clock: Clock,
    limit: Enrolled,
}

impl Subject {
    fn new(max_bytes: usize, limit: Limit) -> Self {
        let clock = Clock::manual(START);
        let store = MemoryStore::with_max_bytes(clock.clone(), max_bytes).expect("some bytes");
        let limit = store.enroll(limit).expect("one limit");
        Self { store: Arc::new(store), clock, limit }
    }

    fn with_charge<T>(&self, key: u8, cost: u32, give: impl FnOnce(&Charge<'_>) -> T) -> T {
        let key = [key];
        let values = [Value::new(&key)];
        let key = Key { limit: "limit", values: &values };
        give(&Charge { cost: Cost::new(cost), ..Charge::new(key, &self.limit) })
    }

    fn take(&self, key: u8) -> Taken {
        self.with_charge(key, 1, |charge| self.store.take_one(charge))
    }

    fn allows(&self, key: u8) -> bool {
        self.take(key).is_allowed()
    }

    fn charge(&self, key: u8) -> Receipt {
        self.take(key).receipt().expect("there is something left")
    }

    fn charge_each(&self, keys: impl IntoIterator<Item = u8>) {
        for key in keys {
            self.charge(key);
        }
    }

    /// Takes one unit of each of two keys, or of none.
    fn allows_both(&self, keys: [u8; 2]) -> bool {
        let [first, second] = keys.map(|key| [key]);
        let values = [[Value::new(&first)], [Value::new(&second)]];
        let charges = values
            .each_ref()
            .map(|values| Charge::new(Key { limit: "limit", values }, &self.limit));
        self.store.take(&charges).iter().all(Taken::is_allowed)
    }

    fn remaining(&self, key: u8) -> u32 {
        let peek = self.with_charge(key, 0, |charge| self.store.take_one(charge));
        peek.decision().expect("a peek needs no room").remaining
    }

    fn reset(&self, key: u8) -> bool {
        self.with_charge(key, 0, |charge| self.store.reset(&charge.key))
    }
}

/// So many units an hour.
fn window(units: u32) -> Limit {
    Limit::fixed_window(Quota::per_hour(units), Align::Key)
}

fn of_algorithm(algorithm: Algorithm, units: u32) -> Limit {
    let (quota, hour) = (Quota::per_hour(units), Micros::from_secs(3_600));
    let limit = match algorithm {
        Algorithm::SlidingWindow => Ok(Limit::sliding_window(quota)),
        Algorithm::TokenBucket => Limit::token_bucket(quota, units),
        Algorithm::LeakyBucket => Limit::leaky_bucket(quota, units, None),
        Algorithm::FixedWindow => Ok(window(units)),
        Algorithm::SlidingLog => Limit::sliding_log(quota),
        Algorithm::Concurrency => Limit::concurrency(units, hour),
    };
    limit.expect("a modest limit")
}

#[test]
fn of_two_who_want_the_last_unit_one_gets_it() {
    for algorithm in Algorithm::ALL {
        model(5, move || {
            let subject = Subject::new(4 << 10, of_algorithm(algorithm, 2));
            subject.charge(1);
            let other = subject.clone();
            let racer = thread::spawn(move || other.allows(1));
            let allowed = [subject.allows(1), racer.join().expect("no panic")];
            assert_eq!(allowed.iter().filter(|it| **it).count(), 1, "{algorithm}");
            assert_eq!(subject.remaining(1), 0, "{algorithm}");
        });
    }
}

#[test]
fn a_new_key_that_two_bring_at_once_is_one_key() {
    model(5, || {
        let subject = Subject::new(SMALL, window(1));
        let other = subject.clone();
        let racer = thread::spawn(move || other.allows(1));
        let allowed = [subject.allows(1), racer.join().expect("no panic")];
        assert_eq!(allowed.iter().filter(|it| **it).count(), 1);
        assert_eq!(subject.store.keys(), 1);
    });
}

#[test]
fn two_new_keys_that_come_at_once_are_two_keys() {
    model(4, || {
        let subject = Subject::new(SMALL, window(2));
        let other = subject.clone();
        let racer = thread::spawn(move || other.allows(2));
        assert!(subject.allows(1) && racer.join().expect("no panic"));
        assert_eq!([subject.remaining(1), subject.remaining(2)], [1, 1]);
        assert_eq!(subject.store.keys(), 2);
    });
}

#[test]
fn a_key_is_charged_while_its_shard_moves() {
    model(2, || {
        let subject = Subject::new(SMALL, window(2));
        subject.charge_each(0..7);
        let before = subject.store.bytes();
        let other = subject.clone();
        // There is no slot for an eighth key, so the table grows.
        let newcomer = thread::spawn(move || other.allows(7));
        assert!(subject.allows(0));
        assert!(newcomer.join().expect("no panic"));
        assert!(subject.store.bytes() > before, "the table has grown");
        let left: Vec<u32> = (0..8).map(|key| subject.remaining(key)).collect();
        assert_eq!(left, [0, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(subject.store.keys(), 8);
    });
}

/// A key of the shard that moves first, and one of the other. Which are where is up to the fingerprints of a model,
/// which are the same each time.
#[test]
fn a_key_is_charged_while_one_of_two_shards_has_moved() {
    for (asked, preemptions) in [(0, 2), (5, 3)] {
        model(preemptions, move || {
            let subject = Subject::new(TWO_SHARDS, window(2));
            subject.charge_each(0..9);
            let before = subject.store.bytes();
            let other = subject.clone();
            // The eighth of its shard, for which there is no slot.
            let newcomer = thread::spawn(move || other.allows(9));
            assert!(subject.allows(asked));
            assert!(newcomer.join().expect("no panic"));
            assert!(subject.store.bytes() > before, "the table has grown");
            for key in 0..10 {
                assert_eq!(subject.remaining(key), u32::from(key != asked), "{key}");
            }
        });
    }
}

#[test]
fn two_who_find_no_slot_let_the_table_grow_together() {
    model(1, || {
        let subject = Subject::new(SMALL, window(2));
        subject.charge_each(0..7);
        let other = subject.clone();
        let newcomer = thread::spawn(move || other.allows(7));
        assert!(subject.allows(8));
        assert!(newcomer.join().expect("no panic"));
        assert!((0..9).all(|key| subject.remaining(key) == 1));
        assert_eq!(subject.store.keys(), 9);
    });
}

#[test]
fn a_key_is_charged_while_the_one_with_least_to_lose_is_pushed_out() {
    model(5, || {
        let subject = Subject::new(SMALLEST, window(4));
        subject.charge_each(0..7);
        subject.charge_each(1..7);
        subject.charge_each(1..7);
        let other = subject.clone();
        let newcomer = thread::spawn(move || other.allows(7));
        assert!(subject.allows(0));
        assert!(newcomer.join().expect("no panic"));
        assert!((1..7).all(|key| subject.remaining(key) == 1), "others had more to lose");
        // It was charged and then forgotten, or the other way around, or it was the newcomer who
        // had to go.
        let left = [subject.remaining(0), subject.remaining(7)];
        assert!(matches!(left, [4, 3] | [3, 4] | [2, 4]), "{left:?}");
        assert_eq!(subject.store.keys(), 7);
    });
}

#[test]
fn a_key_that_reaches_its_limit_as_it_is_looked_at_is_not_forgotten() {
    model(5, || {
        let subject = Subject::new(SMALLEST, window(2));
        // All at their limits but one, which takes its last unit while a newcomer wants its place.
        subject.charge_each(0..7);
        subject.charge_each(1..7);
        let other = subject.clone();
        let newcomer = thread::spawn(move || other.take(7).decision().is_some());
        let taken = subject.take(0);
        let has_room = newcomer.join().expect("no panic");
        assert!((1..7).all(|key| subject.remaining(key) == 0), "never these");
        match taken.decision().map(|decision| decision.remaining) {
            // It came first, so nobody could be spared.
            Some(0) => assert!(!has_room && subject.remaining(0) == 0),
            // It was forgotten first, and then it was the newcomer's turn to go, or its own.
            Some(1) | None => assert!(has_room),
            Some(left) => panic!("{left} are left of two, one of them taken"),
        }
    });
}

#[test]
fn a_key_comes_back_while_its_vacant_slot_is_given_away() {
    let newcomer = neighbour_of(0);
    model(5, move || {
        let subject = Subject::new(SMALL, window(2));
        subject.charge(0);
        subject.clock.advance(Micros::from_secs(3_600));
        let other = subject.clone();
        let racer = thread::spawn(move || other.allows(newcomer));
        assert!(subject.allows(0));
        assert!(racer.join().expect("no panic"));
        assert_eq!([subject.remaining(0), subject.remaining(newcomer)], [1, 1]);
    });
}

/// A key that takes the slot of `key` when that is vacant.
fn neighbour_of(key: u8) -> u8 {
    neighbours_of(key)[0]
}

/// All of them: the keys with the same home.
fn neighbours_of(key: u8) -> Vec<u8> {
    let found = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let find = found.clone();
    model(0, move || {
        let is_neighbour = |other: &u8| {
            let subject = Subject::new(SMALL, window(2));
            subject.charge(key);
            subject.clock.advance(Micros::from_secs(3_600));
            subject.charge(*other);
            subject.store.keys() == 1
        };
        let others = (0..=255).filter(|other| *other != key);
        *find.lock().expect("no panic") = others.filter(is_neighbour).collect();
    });
    std::mem::take(&mut *found.lock().expect("no panic"))
}

/// Who is not at home takes the first slot there for a moment, to see whose it is.
#[test]
fn a_key_is_charged_while_one_that_had_no_room_at_its_home_is_looked_for() {
    let neighbours = neighbours_of(0);
    model(5, move || {
        let subject = Subject::new(SMALL, window(2));
        let elsewhere = neighbours[3];
        subject.charge_each([0, neighbours[0], neighbours[1], neighbours[2], elsewhere]);
        let other = subject.clone();
        let racer = thread::spawn(move || other.allows(elsewhere));
        assert!(subject.allows(0));
        assert!(racer.join().expect("no panic"));
        assert_eq!([subject.remaining(0), subject.remaining(elsewhere)], [0, 0]);
        assert_eq!([0, 1, 2].map(|index| subject.remaining(neighbours[index])), [1, 1, 1]);
    });
}

#[test]
fn requests_over_two_keys_in_opposite_orders_pay_all_or_nothing() {
    model(5, || {
        let subject = Subject::new(SMALL, window(2));
        // One is left of the first key and two of the second.
        subject.charge(1);
        subject.charge(2);
        assert!(subject.reset(2));
        let other = subject.clone();
        let racer = thread::spawn(move || other.allows_both([1, 2]));
        let allowed = [subject.allows_both([2, 1]), racer.join().expect("no panic")];
        assert_eq!(allowed.iter().filter(|it| **it).count(), 1);
        assert_eq!([subject.remaining(1), subject.remaining(2)], [0, 1]);
    });
}

#[test]
fn requests_that_bring_two_new_keys_in_opposite_orders_pay_both() {
    let (first, second) = (0, neighbour_of(0));
    model(3, move || {
        let subject = Subject::new(SMALL, window(3));
        let other = subject.clone();
        let racer = thread::spawn(move || other.allows_both([first, second]));
        assert!(subject.allows_both([second, first]));
        assert!(racer.join().expect("no panic"));
        assert_eq!([subject.remaining(first), subject.remaining(second)], [1, 1]);
        assert_eq!(subject.store.keys(), 2);
    });
}

#[test]
fn a_request_over_two_keys_that_are_seen_in_one_slot_pays_both() {
    let newcomer = neighbour_of(0);
    model(4, move || {
        let subject = Subject::new(SMALL, window(3));
        subject.charge(0);
        subject.clock.advance(Micros::from_secs(3_600));
        let other = subject.clone();
        // The newcomer may take the vacant slot after the request has seen the first key there, and
        // before it looks for the second.
        let racer = thread::spawn(move || other.allows(newcomer));
        assert!(subject.allows_both([0, newcomer]));
        assert!(racer.join().expect("no panic"));
        assert_eq!([subject.remaining(0), subject.remaining(newcomer)], [2, 1]);
    });
}

#[test]
fn a_request_over_two_keys_and_one_that_lets_the_table_grow_both_end() {
    model(2, || {
        let subject = Subject::new(SMALL, window(2));
        subject.charge_each(0..7);
        let other = subject.clone();
        let newcomer = thread::spawn(move || other.allows(7));
        assert!(subject.allows_both([3, 0]));
        assert!(newcomer.join().expect("no panic"));
        let left: Vec<u32> = (0..8).map(|key| subject.remaining(key)).collect();
        assert_eq!(left, [0, 1, 1, 0, 1, 1, 1, 1]);
    });
}

#[test]
fn what_is_given_back_can_be_taken_once() {
    for algorithm in Algorithm::ALL {
        model(5, move || {
            let subject = Subject::new(4 << 10, of_algorithm(algorithm, 1));
            let receipt = subject.charge(1);
            let other = subject.clone();
            let racer = thread::spawn(move || other.store.refund(&receipt));
            let is_allowed = subject.allows(1);
            assert!(racer.join().expect("no panic"), "{algorithm}");
            assert_eq!(subject.remaining(1), u32::from(!is_allowed), "{algorithm}");
        });
    }
}
