//! Slots that are held by one node and wanted by another.

use tollgate_core::{Algorithm, Micros};
use tollgate_harness::eventually;

use super::{every_server, lasting, open_all, time};
use crate::support::{Order, limit_over};

#[test]
fn a_slot_that_one_node_releases_is_free_at_once_for_another() {
    for server in every_server() {
        let [one, other] = open_all(&server);
        let slots = lasting(Algorithm::Concurrency, 2);
        let [here, there] = [&one, &other].map(|it| Order::new(1, it.enroll(slots)));
        for _ in 0..20 {
            let held = [one.charge(&here), other.charge(&there)];
            assert!(!one.decide(&here).is_allowed() && !other.decide(&there).is_allowed());
            assert!(one.refund(&held[0]));
            let again = other.charge(&there);
            assert!(!one.refund(&held[0]), "once is enough");
            assert!(other.refund(&held[1]) && other.refund(&again));
        }
    }
}

#[test]
fn slots_of_a_node_that_is_gone_come_back_when_their_lease_ends_and_not_before() {
    for server in every_server() {
        let [one, other] = open_all(&server);
        let lease = Micros::from_millis(700);
        let slots = limit_over(Algorithm::Concurrency, 2, lease);
        let [here, there] = [&one, &other].map(|it| Order::new(1, it.enroll(slots)));
        let took = time(|| {
            one.charge(&here.costing(2));
            drop(one);
            eventually("the slots are back", || {
                other.decide(&there.costing(2)).is_allowed().then_some(())
            });
        });
        assert!(took >= lease, "{took:?}");
        assert!(took <= Micros::from_secs(2), "{took:?}");
    }
}

#[test]
fn a_slot_whose_lease_is_renewed_is_held_on() {
    for server in every_server() {
        let [one, other] = open_all(&server);
        let lease = Micros::from_secs(1);
        let slots = limit_over(Algorithm::Concurrency, 1, lease);
        let [here, there] = [&one, &other].map(|it| Order::new(1, it.enroll(slots)));
        let held = one.charge(&here);
        let held_at = one.clock.now();
        eventually("it was held for twice its lease", || {
            assert!(one.renew(&held));
            assert!(!other.decide(&there).is_allowed());
            (one.clock.now().since(held_at) > Micros::from_secs(2)).then_some(())
        });
        assert!(one.refund(&held) && other.decide(&there).is_allowed());
    }
}
