//! Callers that go away before the answer, answers that never come, and nodes that end.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use tollgate_core::{Algorithm, Key, Value};
use tollgate_harness::{Cluster, Flavour, Proxy, eventually};
use tollgate_store::Charge;
use tollgate_store::redis::{RedisSettings, Servers};

use super::faults::{NUMBERS, is_of_the_first, keys_of_the_first};
use super::load::TIMEOUT;
use super::{every_server, lasting, open};
use crate::places::settings;
use crate::support::Order;

#[test]
fn what_one_slot_took_comes_back_though_the_caller_went_before_another_answered() {
    let cluster = Cluster::start(Flavour::Redis);
    let settings = settings(Servers::Cluster(cluster.urls()));
    let slow = keys_of_the_first(&cluster, &settings)[0];
    let is_other = |key: &u64| !is_of_the_first(&cluster, &settings, *key);
    let others: Vec<u64> = NUMBERS.filter(is_other).take(5).collect();
    let [subject, watcher] = [open(settings.clone()), open(settings.clone())];
    let full = lasting(Algorithm::TokenBucket, 1);
    let bad = Order::new(slow, subject.enroll(full));
    let slow = slow.to_le_bytes();
    let slow = [Value::new(&slow)];
    for algorithm in Algorithm::ALL {
        let limit = lasting(algorithm, 3);
        let (here, there) = (subject.enroll(limit), watcher.enroll(limit));
        // A slot is released whatever the other limit says, the rest is given back if it denies.
        for is_denied in [true, false] {
            if !is_denied && algorithm != Algorithm::Concurrency {
                continue;
            }
            for key in &others {
                subject.reset(bad.key);
                if is_denied {
                    subject.charge(&bad);
                }
                let watched = Order::new(*key, there);
                assert_eq!(watcher.remaining(&watched), 3, "{algorithm}");
                cluster.nodes()[0].stop();
                let bytes = key.to_le_bytes();
                let quick = [Value::new(&bytes)];
                let charges = [
                    Charge::new(Key { limit: "limit", values: &slow }, &bad.limit),
                    Charge::new(Key { limit: "limit", values: &quick }, &here),
                ];
                let mut asked = subject.store.take(&charges).into_future();
                let mut poll = || {
                    let mut context = Context::from_waker(Waker::noop());
                    Pin::new(&mut asked).poll(&mut context).is_pending()
                };
                eventually("one has answered", || {
                    assert!(poll());
                    (watcher.remaining(&watched) == 2).then_some(())
                });
                assert!(poll());
                drop(asked);
                cluster.nodes()[0].cont();
                eventually("it is back", || (watcher.remaining(&watched) == 3).then_some(()));
            }
        }
    }
}

#[test]
fn a_slot_whose_answer_is_lost_is_released() {
    for server in every_server() {
        let proxy = Proxy::start(server.address());
        let settings = settings(Servers::Single(proxy.url()));
        let watcher =
            open(RedisSettings { servers: Servers::Single(server.url()), ..settings.clone() });
        let slots = lasting(Algorithm::Concurrency, 2);
        let watched = Order::new(1, watcher.enroll(slots));
        for timeout in [TIMEOUT, settings.timeout] {
            let subject = open(RedisSettings { timeout, ..settings.clone() });
            let order = Order::new(1, subject.enroll(slots)).denied_on_failure();
            eventually("Redis counts", || subject.take_one(&order.costing(0)).decision());
            proxy.drop_replies();
            let asked = order.with_charge(|charge| subject.store.take(&[*charge]));
            eventually("it is taken", || (watcher.remaining(&watched) == 1).then_some(()));
            // Before its time is over, or just after.
            proxy.cut();
            assert!(!asked.wait().taken()[0].is_allowed());
            proxy.heal();
            eventually("it is free", || (watcher.remaining(&watched) == 2).then_some(()));
        }
    }
}

#[test]
fn what_is_being_given_back_when_a_node_ends_gets_there() {
    for server in every_server() {
        let proxy = Proxy::start(server.address());
        let settings = settings(Servers::Single(proxy.url()));
        let watcher =
            open(RedisSettings { servers: Servers::Single(server.url()), ..settings.clone() });
        for algorithm in Algorithm::ALL {
            let subject = open(settings.clone());
            let limit = lasting(algorithm, 2);
            let order = Order::new(algorithm as u64, subject.enroll(limit));
            let claim = subject.charge(&order);
            proxy.delay_requests(Duration::from_millis(50));
            drop(subject.store.refund(&claim));
            subject.store.close().wait();
            drop(subject);
            let watched = Order { limit: watcher.enroll(limit), ..order };
            assert_eq!(watcher.remaining(&watched), 2, "{algorithm}");
            proxy.heal();
        }
    }
}
