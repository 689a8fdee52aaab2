//! Charges that are settled when their real cost is known. Each test runs over every store there is.

use std::thread;

use tollgate_core::{Algorithm, Align, Cost, Decision, Limit, Micros, Quota};
use tollgate_store::{Claim, Enrolled, Store, Taken};

use crate::places::Places;
use crate::support::{self, Order, Rng, limit_of, limit_over};

/// Any store.
type Subject = support::Subject<Store>;

impl Subject {
    fn settle(&self, claim: &Claim, cost: u32) -> Decision {
        let settled = self.store.settle(claim, Cost::new(cost)).wait();
        assert_eq!(settled.receipt(), None, "there is nothing to give back of it");
        settled.decision().expect("there is room")
    }
}

/// Each algorithm at each store, empty.
fn everywhere(check: impl Fn(&Subject, Algorithm)) {
    let places = Places::start();
    for algorithm in Algorithm::ALL {
        (0..places.count()).for_each(|place| check(&places.subject(place), algorithm));
    }
}

fn order(subject: &Subject, algorithm: Algorithm, count: u32) -> Order {
    Order::new(1, subject.enroll(limit_of(algorithm, count)))
}

#[test]
fn what_was_used_less_comes_back() {
    everywhere(|subject, algorithm| {
        let order = order(subject, algorithm, 10).costing(8);
        let claim = subject.charge(&order);
        assert_eq!(subject.settle(&claim, 3).remaining, 7, "{algorithm}");
        assert_eq!(subject.remaining(&order), 7, "{algorithm}");
        let claim = subject.charge(&order.costing(7));
        assert_eq!(subject.settle(&claim, 0).remaining, 7, "{algorithm}");
        let claim = subject.charge(&order.costing(7));
        let same = subject.settle(&claim, 7);
        assert_eq!((same.remaining, same.is_allowed()), (0, true), "{algorithm}");
    });
}

#[test]
fn what_was_used_more_is_charged_past_the_end_and_every_figure_stays_right() {
    everywhere(|subject, algorithm| {
        let order = order(subject, algorithm, 10);
        let claim = subject.charge(&order.costing(8));
        let told = subject.settle(&claim, 25);
        assert!(!told.is_allowed(), "{algorithm} is exceeded, as a peek says");
        assert_eq!((told.limit, told.remaining), (10, 0), "{algorithm}");
        assert_eq!(told, subject.peek(&order), "{algorithm}");
        let Some(wait) = subject.decide(&order).retry_after() else {
            assert_eq!(algorithm, Algorithm::Concurrency);
            return;
        };
        subject.advance(Micros::new(wait.as_micros() - 1));
        assert!(!subject.decide(&order).is_allowed(), "{algorithm}");
        subject.advance(Micros::new(1));
        assert!(subject.decide(&order).is_allowed(), "{algorithm}");
    });
}

#[test]
fn what_was_only_looked_at_is_charged_when_it_is_settled() {
    everywhere(|subject, algorithm| {
        let order = order(subject, algorithm, 10);
        let claim = subject.look(&order);
        assert_eq!(subject.settle(&claim, 4).remaining, 6, "{algorithm}");
        // The key is known by now.
        let claim = subject.look(&order);
        assert_eq!(subject.settle(&claim, 0).remaining, 6, "{algorithm}");
        let claim = subject.look(&order);
        assert_eq!(subject.settle(&claim, 12).remaining, 0, "{algorithm}");
        assert!(!subject.peek(&order).is_allowed(), "{algorithm}");
    });
}

#[test]
fn what_time_has_given_back_is_not_given_back_again() {
    everywhere(|subject, algorithm| {
        let order = order(subject, algorithm, 10);
        let claim = subject.charge(&order.costing_all());
        subject.advance(Micros::from_secs(120));
        assert_eq!(subject.settle(&claim, 1).remaining, 10, "{algorithm}");
        let held = subject.charge(&order.costing_all());
        assert_eq!(subject.settle(&claim, 1).remaining, 0, "{algorithm}: others stay charged");
        assert!(subject.refund(&held), "{algorithm}");
    });
}

/// Debts are repaid in the order they were made: of ten units at six seconds each, four are repaid
/// after 24 seconds, and those were of the three that were used.
#[test]
fn a_bucket_is_as_full_as_if_the_real_cost_had_been_charged_at_once() {
    let places = Places::start();
    for place in 0..places.count() {
        for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket] {
            let subject = places.subject(place);
            let reserved = order(&subject, algorithm, 10);
            let charged = Order { key: 2, ..reserved };
            for order in [reserved, charged] {
                subject.charge(&order.costing(2));
            }
            let claim = subject.charge(&reserved.costing(8));
            subject.charge(&charged.costing(3));
            subject.advance(Micros::new(23_456_789));
            subject.settle(&claim, 3);
            assert_eq!(subject.peek(&reserved), subject.peek(&charged), "{algorithm}");
        }
    }
}

#[test]
fn a_settlement_is_made_under_the_quota_that_the_key_is_in_by_now() {
    everywhere(|subject, algorithm| {
        let period = Micros::from_secs(60);
        let old = order(subject, algorithm, 10);
        let claim = subject.charge(&old.costing(6));
        let new = Order::new(1, subject.enroll(limit_over(algorithm, 20, period)));
        assert_eq!(subject.decide(&new).remaining, 13, "{algorithm}");
        subject.settle(&claim, 2);
        assert_eq!(subject.remaining(&new), 17, "{algorithm}");
        let claim = subject.charge(&new.costing(1));
        let newest = Order::new(1, subject.enroll(limit_over(algorithm, 40, period)));
        assert_eq!(subject.decide(&newest).remaining, 35, "{algorithm}");
        subject.settle(&claim, 11);
        assert_eq!(subject.remaining(&newest), 25, "{algorithm}");
    });
}

#[test]
fn what_another_algorithm_has_started_afresh_is_left_alone() {
    let places = Places::start();
    for place in 0..places.count() {
        for first in Algorithm::ALL {
            for second in Algorithm::ALL {
                if first == second {
                    continue;
                }
                let subject = places.subject(place);
                let claims = [0; 2].map(|_| subject.charge(&order(&subject, first, 10).costing(4)));
                let second = order(&subject, second, 10);
                subject.charge(&second.costing(5));
                for (claim, cost) in claims.iter().zip([1, 9]) {
                    let settled = subject.store.settle(claim, Cost::new(cost)).wait();
                    assert_eq!(settled, Taken::Uncounted { is_allowed: true }, "{first}");
                    assert_eq!(subject.remaining(&second), 5, "{first} {second:?}");
                }
            }
        }
    }
}

/// One trace after the other, the same at every store.
#[test]
fn stores_settle_alike_in_every_field() {
    let places = Places::start();
    for seed in 0..24 {
        let told: Vec<Vec<Taken>> =
            (0..places.count()).map(|place| trace(&places.subject(place), seed)).collect();
        for other in &told[1..] {
            for (step, (one, other)) in told[0].iter().zip(other).enumerate() {
                assert_eq!(one.decision(), other.decision(), "seed {seed}, step {step}");
            }
        }
    }
}

fn trace(subject: &Subject, seed: u64) -> Vec<Taken> {
    let mut rng = Rng::new(seed);
    let limit = |rng: &mut Rng, subject: &Subject| -> Enrolled {
        let count = 1 + rng.below(40) as u32;
        let period = Micros::new(1_000_000 * (1 + rng.below(90)));
        let quota = Quota::new(count, period).expect("a period that is allowed");
        subject.enroll(match Algorithm::ALL[seed as usize % 6] {
            Algorithm::FixedWindow => Limit::fixed_window(quota, Align::Clock),
            algorithm => limit_over(algorithm, count, period),
        })
    };
    let order = Order::new(1, limit(&mut rng, subject));
    let (mut told, mut open): (Vec<Taken>, Vec<Claim>) = Default::default();
    for _ in 0..120 {
        subject.advance(Micros::new(rng.below(8_000_000)));
        if open.is_empty() || rng.one_in(2) {
            let (taken, claim) = subject.claim(&[order.costing(rng.below(12) as u32)]).remove(0);
            told.push(taken);
            open.extend(claim);
        } else {
            let claim = open.swap_remove(rng.below(open.len() as u64) as usize);
            let cost = Cost::new(rng.below(2 * u64::from(claim.cost().units()) + 2) as u32);
            told.push(subject.store.settle(&claim, cost).wait());
        }
    }
    told
}

#[test]
fn settlements_of_many_threads_all_count() {
    let places = Places::start();
    for place in 0..places.count() {
        for algorithm in [Algorithm::TokenBucket, Algorithm::SlidingLog] {
            let subject = places.subject(place);
            let order = order(&subject, algorithm, 1_000);
            let subject = &subject;
            thread::scope(|scope| {
                for thread in 0..4u32 {
                    scope.spawn(move || {
                        for number in 0..10 {
                            let claim = subject.charge(&order.costing(5));
                            subject.settle(&claim, (thread + number) % 11);
                        }
                    });
                }
            });
            let used: u32 = (0..4u32).map(|t| (0..10).map(|n| (t + n) % 11).sum::<u32>()).sum();
            assert_eq!(subject.remaining(&order), 1_000 - used, "{algorithm}");
        }
    }
}

#[test]
fn a_log_grows_for_what_is_settled_and_stays_within_the_bound_of_memory() {
    let subject = support::Subject::of_size(1 << 20);
    let limit = subject.enroll(limit_of(Algorithm::SlidingLog, 50_000));
    let mut uncounted = 0;
    for key in 0..40 {
        let order = Order::new(key, limit).denied_on_failure();
        for _ in 0..2_000 {
            let Some(receipt) = subject.take_one(&order.costing(0)).open_receipt() else {
                panic!("a peek needs no room");
            };
            let settled = subject.store.settle(&receipt, Cost::ONE);
            uncounted += u32::from(matches!(settled, Taken::Uncounted { .. }));
            assert!(subject.store.bytes() <= 1 << 20);
        }
    }
    assert!(uncounted < 80_000, "some found room");
}

impl Subject {
    /// What settles an order that is only looked at.
    fn look(&self, order: &Order) -> Claim {
        let order = order.costing(0);
        let answers = order.with_charge(|charge| self.store.take(&[*charge]).wait());
        let receipt = answers.taken()[0].open_receipt().expect("it was counted");
        Claim::new(receipt, answers.origin(), 0)
    }
}
