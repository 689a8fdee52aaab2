//! Who is denied is asked about once a second.

use tollgate_core::{Algorithm, Micros};
use tollgate_harness::{Server, eventually};
use tollgate_store::Taken;

use super::{every_server, lasting, open_all, open_at, time};
use crate::support::{Order, limit_over};

/// Algorithms that tell when it goes on.
fn that_tell_a_wait() -> impl Iterator<Item = Algorithm> {
    Algorithm::ALL.into_iter().filter(|it| *it != Algorithm::Concurrency)
}

/// The scripts that a server has run so far.
fn scripts_run(server: &Server) -> u64 {
    let told = |command| {
        let text = server.info(&format!("cmdstat_{command}"))?;
        text.split(',').find_map(|field| field.strip_prefix("calls=")?.parse().ok())
    };
    let runs: [Option<u64>; 2] = ["eval", "evalsha"].map(told);
    runs.iter().flatten().sum()
}

#[test]
fn a_flood_of_denied_requests_costs_redis_one_call_in_a_hundred_at_most() {
    for server in every_server() {
        let subject = open_at(&server);
        for algorithm in that_tell_a_wait() {
            let order = Order::new(1, subject.enroll(lasting(algorithm, 1)));
            subject.charge(&order);
            let before = scripts_run(&server);
            for _ in 0..10_000 {
                assert!(!subject.decide(&order).is_allowed(), "{algorithm}");
            }
            let calls = scripts_run(&server) - before;
            assert!(calls <= 100, "{algorithm}: {calls}");
            subject.reset(1);
        }
    }
}

#[test]
fn what_is_given_back_here_is_seen_at_once() {
    for server in every_server() {
        let subject = open_at(&server);
        for algorithm in that_tell_a_wait() {
            let order = Order::new(1, subject.enroll(lasting(algorithm, 1)));
            for _ in 0..20 {
                let claim = subject.charge(&order);
                assert!(!subject.decide(&order).is_allowed(), "{algorithm}");
                assert!(subject.refund(&claim), "{algorithm}");
                subject.charge(&order);
                assert!(!subject.decide(&order).is_allowed(), "{algorithm}");
                assert!(subject.reset(1), "{algorithm}");
            }
        }
    }
}

#[test]
fn what_is_given_back_elsewhere_is_seen_within_a_second() {
    for server in every_server() {
        let [one, other] = open_all(&server);
        let orders = |algorithm| {
            let key = algorithm as u64;
            [&one, &other].map(|it| Order::new(key, it.enroll(lasting(algorithm, 1))))
        };
        let orders: Vec<[Order; 2]> = that_tell_a_wait().map(orders).collect();
        let claims: Vec<_> = orders.iter().map(|[here, _]| one.charge(here)).collect();
        let mut denied: Vec<Order> = orders.iter().map(|[_, there]| *there).collect();
        assert!(denied.iter().all(|there| !other.decide(there).is_allowed()));
        assert!(claims.iter().all(|claim| one.refund(claim)));
        let took = time(|| {
            eventually("the other sees it", || {
                denied.retain(|there| !other.decide(there).is_allowed());
                denied.is_empty().then_some(())
            });
        });
        // A second, and what it takes to look.
        assert!(took < Micros::from_millis(1_500), "{took:?}");
    }
}

#[test]
fn a_request_that_would_be_allowed_by_now_is_allowed() {
    for server in every_server() {
        let subject = open_at(&server);
        let limit = limit_over(Algorithm::TokenBucket, 1, Micros::from_millis(200));
        let order = Order::new(1, subject.enroll(limit));
        subject.charge(&order);
        let denied = subject.decide(&order);
        let took = time(|| {
            eventually("it is", || subject.decide(&order).is_allowed().then_some(()));
        });
        assert!(denied.retry_after().is_some_and(|wait| wait <= Micros::from_millis(200)));
        assert!(took < Micros::from_secs(1), "{took:?}");
    }
}

#[test]
fn penalties_and_slots_are_always_asked_about() {
    for server in every_server() {
        let subject = open_at(&server);
        let punished = subject.enroll(lasting(Algorithm::TokenBucket, 1));
        let slots = subject.enroll(lasting(Algorithm::Concurrency, 1));
        for order in [Order::new(1, punished).counting_denied(), Order::new(2, slots)] {
            subject.charge(&order);
            let before = scripts_run(&server);
            (0..100).for_each(|_| assert!(!subject.decide(&order).is_allowed()));
            assert!(scripts_run(&server) - before >= 100);
        }
    }
}

#[test]
fn a_release_is_no_reason_to_ask_about_who_asks_for_more_than_there_is() {
    for server in every_server() {
        let subject = open_at(&server);
        let order = Order::new(1, subject.enroll(lasting(Algorithm::Concurrency, 1)));
        let before = scripts_run(&server);
        for _ in 0..100 {
            let slot = subject.charge(&order);
            assert!(!subject.decide(&order.costing(2)).is_allowed());
            assert!(subject.refund(&slot));
        }
        // One to hold, one to release; the machine may be so slow that a second passes now and then.
        let calls = scripts_run(&server) - before;
        assert!(calls < 250, "{calls}");
    }
}

#[test]
fn a_cheaper_request_and_a_peek_are_asked_about() {
    for server in every_server() {
        let subject = open_at(&server);
        let order = Order::new(1, subject.enroll(lasting(Algorithm::SlidingLog, 5)));
        subject.charge(&order.costing(3));
        assert!(!subject.decide(&order.costing(3)).is_allowed());
        assert_eq!(subject.remaining(&order), 2);
        assert!(subject.decide(&order.costing(2)).is_allowed());
    }
}

#[test]
fn who_is_denied_by_one_limit_is_told_the_last_figures_of_the_others() {
    for server in every_server() {
        let subject = open_at(&server);
        let shut = Order::new(1, subject.enroll(lasting(Algorithm::FixedWindow, 1)));
        let open = Order::new(2, subject.enroll(lasting(Algorithm::TokenBucket, 9)));
        subject.charge(&shut);
        subject.charge(&open.costing(2));
        let asked = subject.take(&[shut, open]);
        let before = scripts_run(&server);
        for _ in 0..10 {
            let told = subject.take(&[shut, open]);
            assert_eq!(told.iter().map(Taken::is_allowed).collect::<Vec<_>>(), [false, true]);
            let left = |taken: &[Taken]| taken[1].decision().map(|it| (it.remaining, it.limit));
            assert_eq!(left(&told), Some((7, 9)));
            assert_eq!(left(&told), left(&asked));
            assert!(told.iter().all(|taken| taken.receipt().is_none()));
        }
        assert!(scripts_run(&server) - before <= 2);
        assert_eq!(subject.remaining(&open), 7);
    }
}
