//! Units that several nodes take in advance from servers of every kind.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use tollgate_core::Algorithm;
use tollgate_harness::{Cluster, Flavour, Sentinel};
use tollgate_store::redis::Servers;
use tollgate_store::{Charge, Store};

use super::{lasting, open};
use crate::places::settings;
use crate::support::{Order, Subject};

const NODES: usize = 4;
const UNITS: u32 = 400;

/// As many as are on several servers of a Cluster.
const KEYS: u64 = 6;

/// How many of so many units a node admits.
fn admitted(node: &Subject<Store>, order: &Order, attempts: u32) -> u32 {
    let is_allowed = |_: &u32| {
        let take = |charge: &Charge<'_>| node.store.take(&[Charge { is_leased: true, ..*charge }]);
        order.with_charge(take).wait().taken()[0].is_allowed()
    };
    (0..attempts).filter(is_allowed).count() as u32
}

/// Nodes that race for keys of which nothing comes back admit no more than there is, and what they took
/// and did not use is there for others when they have ended.
fn no_more_than_the_limit_is_admitted(servers: Servers) {
    let settings = settings(servers);
    for (turn, algorithm) in (0..).zip([Algorithm::TokenBucket, Algorithm::FixedWindow]) {
        let limit = lasting(algorithm, UNITS);
        let nodes: Vec<_> = (0..NODES).map(|_| open(settings.clone())).collect();
        let totals: Vec<AtomicU32> = (0..KEYS).map(|_| AtomicU32::new(0)).collect();
        let order = |node: &Subject<Store>, key: u64| {
            Order::new(turn * KEYS + key, node.enroll(limit)).denied_on_failure()
        };
        thread::scope(|scope| {
            for node in &nodes {
                scope.spawn(|| {
                    // A little of each by turns, so that all race for all.
                    for _ in 0..UNITS / 10 {
                        for (key, total) in (0..).zip(&totals) {
                            total.fetch_add(
                                admitted(node, &order(node, key), 10),
                                Ordering::Relaxed,
                            );
                        }
                    }
                });
            }
        });
        assert!(nodes.iter().all(|node| node.redis().settled() == 0), "Redis counts");
        for node in &nodes {
            node.store.close().wait();
        }
        drop(nodes);
        let last = open(settings.clone());
        for (key, total) in (0..).zip(totals) {
            let total = total.into_inner();
            assert!((1..=UNITS).contains(&total), "{algorithm}: {total}");
            let rest = admitted(&last, &order(&last, key), UNITS);
            assert_eq!(total + rest, UNITS, "{algorithm}: {rest} were left");
        }
    }
}

#[test]
fn nodes_that_lease_from_a_cluster_admit_no_more_than_the_limit() {
    for flavour in Flavour::ALL {
        let cluster = Cluster::start(flavour);
        no_more_than_the_limit_is_admitted(Servers::Cluster(cluster.urls()));
    }
}

#[test]
fn nodes_that_lease_through_sentinels_admit_no_more_than_the_limit() {
    for flavour in Flavour::ALL {
        let sentinels = Sentinel::start(flavour);
        let (master, nodes) = (sentinels.name().to_owned(), sentinels.urls());
        no_more_than_the_limit_is_admitted(Servers::Sentinel { master, nodes });
    }
}
