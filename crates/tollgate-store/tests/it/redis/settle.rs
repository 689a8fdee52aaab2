//! Settlements when servers forget scripts, replies are lost, callers leave, and units are leased.

use std::time::Duration;

use tollgate_core::{Algorithm, Cost};
use tollgate_harness::{Proxy, eventually};
use tollgate_store::redis::{RedisSettings, Servers};
use tollgate_store::{Charge, Claim, Taken};

use super::{every_server, lasting, open, open_all, open_at};
use crate::places::settings;
use crate::support::Order;

#[test]
fn a_script_that_a_server_has_forgotten_is_sent_again() {
    for server in every_server() {
        let subject = open_at(&server);
        let order = Order::new(1, subject.enroll(lasting(Algorithm::TokenBucket, 100)));
        for used in 1..=4 {
            let claim = subject.charge(&order.costing(10));
            server.command(&["SCRIPT", "FLUSH"]);
            let settled = subject.store.settle(&claim, Cost::ONE).wait();
            let remaining = settled.decision().map(|decision| decision.remaining);
            assert_eq!(remaining, Some(100 - used));
        }
    }
}

#[test]
fn what_nobody_waits_for_is_settled_and_seen_by_other_nodes() {
    for server in every_server() {
        let [one, other] = open_all(&server);
        let limit = lasting(Algorithm::FixedWindow, 100);
        let [here, there] = [&one, &other].map(|it| Order::new(1, it.enroll(limit)));
        let claim = one.charge(&here.costing(50));
        drop(one.store.settle(&claim, Cost::new(20)));
        eventually("it is settled", || (other.remaining(&there) == 80).then_some(()));
    }
}

/// A key at its limit is denied by this node alone for a while; not after something came back.
#[test]
fn what_a_settlement_gives_back_is_there_at_once_for_who_was_denied() {
    for server in every_server() {
        let subject = open_at(&server);
        let order = Order::new(1, subject.enroll(lasting(Algorithm::TokenBucket, 10)));
        let claim = subject.charge(&order.costing_all());
        assert!(!subject.decide(&order).is_allowed());
        assert!(subject.store.settle(&claim, Cost::new(4)).wait().is_allowed());
        assert!(subject.decide(&order).is_allowed());
    }
}

#[test]
fn a_settlement_whose_reply_is_lost_is_made_once_at_most() {
    const TIMEOUT: Duration = Duration::from_millis(300);
    for server in every_server() {
        let proxy = Proxy::start(server.address());
        let settings = settings(Servers::Single(proxy.url()));
        let subject = open(RedisSettings { timeout: TIMEOUT, ..settings });
        let limit = subject.enroll(lasting(Algorithm::TokenBucket, 100));
        // A server that does not know the script says so, and that would be what is lost.
        eventually("Redis settles", || {
            let claim = subject.claim(&[Order::new(99, limit)]).remove(0).1?;
            subject.store.settle(&claim, Cost::ONE).wait().decision()
        });
        let mut settled = 0;
        for key in 0..6 {
            let order = Order::new(key, limit).denied_on_failure();
            let charge = || subject.claim(&[order.costing(10)]).remove(0).1;
            let claim = eventually("Redis counts", charge);
            proxy.drop_replies();
            let told = subject.store.settle(&claim, Cost::new(17)).wait();
            assert_eq!(told, Taken::Uncounted { is_allowed: true });
            proxy.cut();
            proxy.heal();
            let peek = || subject.take_one(&order.costing(0)).decision();
            let left = eventually("Redis counts", peek).remaining;
            // A charge whose own reply was late stands, and was asked for again: so tens do not tell.
            let more = (100 - left) % 10;
            assert!(matches!(more, 0 | 7), "{left}");
            settled += u32::from(more == 7);
        }
        assert!(settled > 0, "at least one ran before its reply was lost");
    }
}

#[test]
fn of_leased_units_no_less_is_charged_than_was_used() {
    for server in every_server() {
        let [one, other] = open_all(&server);
        let limit = lasting(Algorithm::TokenBucket, 10_000);
        let [here, there] = [&one, &other].map(|it| Order::new(1, it.enroll(limit)));
        let (mut used, mut most) = (0, 0);
        for number in 0..60 {
            let order = here.costing(5);
            let answers = order.with_charge(|charge| {
                one.store.take(&[Charge { is_leased: true, ..*charge }]).wait()
            });
            let receipt = answers.taken()[0].receipt().expect("there is plenty");
            let cost = number % 12;
            let claim = Claim::new(receipt, answers.origin(), 0);
            let settled = one.store.settle(&claim, Cost::new(cost)).wait();
            assert!(settled.decision().is_some(), "{settled:?}");
            (used, most) = (used + cost, most + cost.max(5));
        }
        one.store.close().wait();
        let left = other.remaining(&there);
        assert!((10_000 - most..=10_000 - used).contains(&left), "{used} to {most}: {left}");
    }
}
