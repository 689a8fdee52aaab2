//! Units given back without naming the charge.

use tollgate_core::{Algorithm, Micros};
use tollgate_store::Store;

use crate::conformance::{every_algorithm, every_store};
use crate::support::{Order, Subject, limit_of};

fn credit(subject: &Subject<Store>, order: &Order) -> u32 {
    let taken = order.with_charge(|charge| subject.store.credit(charge)).wait();
    taken.decision().expect("a credit needs no room").remaining
}

#[test]
fn a_credit_gives_back_what_was_taken_and_never_more() {
    for (subject, algorithm) in every_algorithm() {
        let limit = subject.enroll(limit_of(algorithm, 10));
        let order = Order::new(1, limit);
        assert_eq!(credit(&subject, &order.costing(3)), 10, "{algorithm}: nothing was taken");
        subject.take_one(&order.costing(4));
        subject.take_one(&order.costing(3));
        assert_eq!(subject.remaining(&order), 3, "{algorithm}");
        assert_eq!(credit(&subject, &order.costing(5)), 8, "{algorithm}");
        assert_eq!(credit(&subject, &order.costing(9)), 10, "{algorithm}");
        assert_eq!(subject.remaining(&order), 10, "{algorithm}");
    }
}

#[test]
fn a_credit_gives_back_nothing_of_a_window_that_has_ended() {
    for subject in every_store() {
        let limit = subject.enroll(limit_of(Algorithm::FixedWindow, 10));
        let order = Order::new(1, limit);
        subject.take_one(&order.costing(10));
        subject.advance(Micros::from_secs(60));
        subject.take_one(&order.costing(1));
        assert_eq!(credit(&subject, &order.costing(5)), 10);
        assert_eq!(subject.remaining(&order), 10);
    }
}

#[test]
fn a_credit_counts_under_the_limit_it_is_given_under() {
    for subject in every_store() {
        let old = subject.enroll(limit_of(Algorithm::FixedWindow, 10));
        let new = subject.enroll(limit_of(Algorithm::FixedWindow, 20));
        subject.take_one(&Order::new(1, old).costing(10));
        assert_eq!(credit(&subject, &Order::new(1, new).costing(2)), 12);
    }
}
