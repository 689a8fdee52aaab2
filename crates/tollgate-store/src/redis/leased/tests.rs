//! Nodes that lease from a real Redis.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use tollgate_core::bounds::LEASE_MICROS;
use tollgate_core::{Align, Limit, Outcome, Quota};
use tollgate_harness::{Flavour, Proxy, Server, eventually};

use super::*;
use crate::redis::fleet::Servers;

/// So long that a busy machine does not make a difference.
const TIMEOUT: Duration = Duration::from_secs(5);

const NAME: &str = "tollgate:{a}:api";
const KEY: Fingerprint = Fingerprint { first: 3, second: 4 };

/// A node of its own, as far as Redis can tell.
struct Node {
    leased: Arc<Leased>,
    _fleet: Arc<Fleet>,
}

impl Node {
    /// A node by the machine's clock.
    fn start(url: &str) -> Self {
        Self::with(url, TIMEOUT, Clock::system(), false)
    }

    /// A node, and a Redis, by a clock that is set.
    fn start_at(url: &str, clock: &Clock) -> Self {
        Self::with(url, TIMEOUT, clock.clone(), true)
    }

    fn with(url: &str, timeout: Duration, clock: Clock, is_virtual: bool) -> Self {
        let servers = Servers::Single(url.to_owned());
        let fleet = Fleet::open(&servers, timeout, "tollgate").expect("a URL of Redis");
        let fleet = Arc::new(fleet);
        let leased = Leased::new(&fleet, clock, is_virtual, timeout);
        let node = Self { leased, _fleet: fleet };
        let other = Fingerprint { first: 1, second: 1 };
        let limit = window(1, 3_600);
        eventually("the server is reached", || {
            node.leased.take(other, "tollgate:{}:reached", &limit, Cost::PEEK).wait().ok()
        });
        node
    }

    fn take(&self, limit: &Leasable, cost: u32) -> Answer {
        self.leased.take(KEY, NAME, limit, Cost::new(cost)).wait()
    }

    fn is_allowed(&self, limit: &Leasable) -> bool {
        self.take(limit, 1).expect("Redis answers").decision.is_allowed()
    }

    /// Whether a request is paid from what the node holds.
    fn pays_itself(&self, limit: &Leasable) -> bool {
        let paid = self.take(limit, 1).expect("Redis answers");
        matches!(paid.payment, Payment::Held { .. })
    }

    fn remaining(&self, limit: &Leasable) -> u32 {
        self.take(limit, 0).expect("Redis answers").decision.remaining
    }
}

fn bucket(quota: Quota, burst: u32) -> Leasable {
    let limit = Limit::token_bucket(quota, burst).expect("a bucket");
    Leasable::of(&limit).expect("buckets can be leased")
}

fn window(count: u32, seconds: u64) -> Leasable {
    let quota = Quota::new(count, Micros::from_secs(seconds)).expect("a quota");
    Leasable::of(&Limit::fixed_window(quota, Align::Clock)).expect("windows can be leased")
}

/// One of each, that does not come back while a test runs.
fn slow_limits(count: u32) -> [Leasable; 2] {
    [
        bucket(Quota::new(1, Micros::from_secs(86_400)).expect("a quota"), count),
        window(count, 86_400),
    ]
}

#[test]
fn nodes_that_race_admit_exactly_the_limit() {
    for flavour in Flavour::ALL {
        let server = Server::start(flavour);
        for limit in slow_limits(2_000) {
            server.command(&["FLUSHALL"]).ok();
            let nodes = [Node::start(&server.url()), Node::start(&server.url())];
            let admitted = AtomicU32::new(0);
            let admit_until_denied = |node: &Node| {
                while node.is_allowed(&limit) {
                    admitted.fetch_add(1, Ordering::Relaxed);
                }
            };
            thread::scope(|scope| {
                for node in nodes.iter().chain(&nodes) {
                    scope.spawn(|| admit_until_denied(node));
                }
            });
            // What one still held when the other was denied is spent, or comes back.
            eventually("all of it is admitted", || {
                nodes.iter().for_each(admit_until_denied);
                (admitted.load(Ordering::Relaxed) >= 2_000).then_some(())
            });
            assert_eq!(admitted.load(Ordering::Relaxed), 2_000, "{limit:?}");
        }
    }
}

#[test]
fn a_hot_key_costs_redis_a_call_for_many_decisions() {
    let server = Server::start(Flavour::Redis);
    let node = Node::start(&server.url());
    for limit in [bucket(Quota::per_second(1_000_000), 1_000_000), window(10_000_000, 3_600)] {
        server.command(&["FLUSHALL"]).ok();
        server.command(&["CONFIG", "RESETSTAT"]).ok();
        for _ in 0..20_000 {
            assert!(node.is_allowed(&limit));
        }
        let scripts = server.command(&["INFO", "commandstats"]).text();
        let calls = scripts.lines().find_map(|line| {
            let calls = line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next()?;
            calls.parse::<u32>().ok()
        });
        let calls = calls.expect("scripts were called");
        assert!(calls <= 20_000 / 20, "{calls} calls for 20,000 decisions");
    }
}

#[test]
fn a_key_that_is_seldom_asked_for_is_charged_as_if_nothing_were_leased() {
    let server = Server::start(Flavour::Redis);
    let clock = Clock::manual(Timestamp::from_micros(1_760_000_000_000_000));
    let node = Node::start_at(&server.url(), &clock);
    for limit in slow_limits(10) {
        server.command(&["FLUSHALL"]).ok();
        for left in (5..10).rev() {
            let paid = node.take(&limit, 1).expect("Redis answers");
            assert!(matches!(paid.payment, Payment::Charged(_)), "{paid:?}");
            assert_eq!(paid.decision.remaining, left);
            clock.advance(Micros::from_millis(300));
        }
    }
}

/// Brings a node to hold something: it is asked for the key a few times at once.
fn warm(node: &Node, limit: &Leasable) -> u32 {
    let mut spent = 0;
    eventually("the node holds something", || {
        spent += 1;
        node.pays_itself(limit).then_some(())
    });
    spent
}

#[test]
fn what_is_not_used_is_given_back_within_the_bound_that_is_stated() {
    let server = Server::start(Flavour::Redis);
    let clock = Clock::manual(Timestamp::from_micros(1_760_000_000_000_000));
    for limit in slow_limits(100) {
        server.command(&["FLUSHALL"]).ok();
        let nodes = [0, 1].map(|_| Node::start_at(&server.url(), &clock));
        let spent = warm(&nodes[0], &limit) + warm(&nodes[0], &limit);
        let held_back = 100 - spent - nodes[1].remaining(&limit);
        assert!((1..=spent).contains(&held_back), "{held_back} held after {spent}");
        clock.advance(bounds::REVIEW_AFTER);
        eventually("it comes back", || (nodes[1].remaining(&limit) == 100 - spent).then_some(()));
    }
}

#[test]
fn a_node_that_ends_well_leaves_nothing_behind() {
    let server = Server::start(Flavour::Redis);
    let clock = Clock::manual(Timestamp::from_micros(1_760_000_000_000_000));
    for limit in slow_limits(100) {
        server.command(&["FLUSHALL"]).ok();
        let nodes = [0, 1].map(|_| Node::start_at(&server.url(), &clock));
        let spent = warm(&nodes[0], &limit) + warm(&nodes[0], &limit);
        nodes[0].leased.return_all().wait();
        assert_eq!(nodes[1].remaining(&limit), 100 - spent);
    }
}

#[test]
fn a_node_that_dies_keeps_its_units_for_a_second_and_they_count_as_spent_then() {
    let server = Server::start(Flavour::Redis);
    let clock = Clock::manual(Timestamp::from_micros(1_760_000_000_000_000));
    let limit = bucket(Quota::per_second(10), 100);
    let nodes = [0, 1].map(|_| Node::start_at(&server.url(), &clock));
    warm(&nodes[0], &limit);
    let [dead, other] = nodes;
    drop(dead);
    clock.advance(Micros::new(LEASE_MICROS.as_micros() - 1));
    // All but what is out has come back by now.
    let out = 100 - other.remaining(&limit);
    assert!(out > 0, "something was held");
    clock.advance(Micros::new(1));
    assert_eq!(other.remaining(&limit), 100 - out);
    clock.advance(Micros::from_millis(100));
    assert_eq!(other.remaining(&limit), 100 - out + 1);
}

#[test]
fn a_node_that_slept_past_its_lease_spends_nothing_of_it() {
    let server = Server::start(Flavour::Redis);
    let clock = Clock::manual(Timestamp::from_micros(1_760_000_000_000_000));
    for limit in slow_limits(100) {
        server.command(&["FLUSHALL"]).ok();
        let node = Node::start_at(&server.url(), &clock);
        warm(&node, &limit);
        warm(&node, &limit);
        clock.advance(LEASE_MICROS);
        let paid = node.take(&limit, 1).expect("Redis answers");
        assert!(!matches!(paid.payment, Payment::Held { .. }), "{limit:?}: {paid:?}");
    }
}

#[test]
fn what_a_denied_request_gives_back_is_there_for_the_next() {
    let server = Server::start(Flavour::Redis);
    let clock = Clock::manual(Timestamp::from_micros(1_760_000_000_000_000));
    let node = Node::start_at(&server.url(), &clock);
    for limit in slow_limits(100) {
        server.command(&["FLUSHALL"]).ok();
        node.leased.forget(KEY);
        warm(&node, &limit);
        let paid = eventually("it pays itself", || {
            let paid = node.take(&limit, 1).expect("Redis answers");
            matches!(paid.payment, Payment::Held { .. }).then_some(paid)
        });
        assert!(node.leased.give_back(KEY, paid.payment));
        let after = node.take(&limit, 0).expect("Redis answers").decision;
        assert_eq!(after.remaining, paid.decision.remaining + 1, "{limit:?}");
    }
}

#[test]
fn callers_that_come_together_share_calls_and_are_told_the_truth_each() {
    let server = Server::start(Flavour::Redis);
    let clock = Clock::manual(Timestamp::from_micros(1_760_000_000_000_000));
    for limit in slow_limits(20) {
        server.command(&["FLUSHALL"]).ok();
        let node = Node::start_at(&server.url(), &clock);
        server.command(&["CONFIG", "RESETSTAT"]).ok();
        let asked: Vec<_> =
            (0..100).map(|_| node.leased.take(KEY, NAME, &limit, Cost::ONE)).collect();
        let told: Vec<Answer> = asked.into_iter().map(Asked::wait).collect();
        let is_allowed = |answer: &Answer| answer.as_ref().is_ok_and(|it| it.decision.is_allowed());
        assert!(told[..20].iter().all(is_allowed), "first come, first served: {told:?}");
        for denied in &told[20..] {
            let decision = denied.as_ref().expect("Redis answers").decision;
            assert!(matches!(decision.outcome, Outcome::Denied { retry_after: Some(_) }));
            assert_eq!(decision.remaining, 0);
        }
    }
}

#[test]
fn a_lost_answer_costs_what_was_asked_for_and_admits_nothing_extra() {
    let server = Server::start(Flavour::Redis);
    for limit in slow_limits(200) {
        server.command(&["FLUSHALL"]).ok();
        let proxy = Proxy::start(server.address());
        let clock = Clock::system();
        let short = Duration::from_millis(100);
        let node = Node::with(&proxy.url(), short, clock, false);
        let mut admitted = 0;
        let mut ask = |times: u32| {
            for _ in 0..times {
                let is_allowed = |paid: Paid| paid.decision.is_allowed();
                admitted += u32::from(node.take(&limit, 1).is_ok_and(is_allowed));
            }
        };
        ask(20);
        proxy.drop_replies();
        ask(50);
        proxy.heal();
        eventually("everything is used up", || {
            ask(50);
            let denied = node.take(&limit, 1).is_ok_and(|paid| !paid.decision.is_allowed());
            denied.then_some(())
        });
        assert!(admitted <= 200, "{admitted} of {limit:?}");
    }
}

#[test]
fn without_redis_what_is_held_is_spent_and_then_the_failure_is_told() {
    let server = Server::start(Flavour::Redis);
    let clock = Clock::manual(Timestamp::from_micros(1_760_000_000_000_000));
    let limit = bucket(Quota::per_hour(1_000), 1_000);
    let node = Node::with(&server.url(), Duration::from_millis(100), clock.clone(), true);
    eventually("the node holds enough", || {
        let _ = node.take(&limit, 1);
        let held = node.leased.shard(KEY).get(&KEY).map_or(0, |entry| entry.pool.held());
        (held > 6).then_some(())
    });
    server.kill();
    for _ in 0..3 {
        assert!(node.pays_itself(&limit));
    }
    clock.advance(LEASE_MICROS);
    assert!(node.take(&limit, 1).is_err());
}

#[test]
fn a_flood_of_keys_leaves_no_more_pools_than_the_bound_and_is_decided_all_the_same() {
    let server = Server::start(Flavour::Redis);
    let clock = Clock::manual(Timestamp::from_micros(1_760_000_000_000_000));
    let node = Node::start_at(&server.url(), &clock);
    let limit = window(1, 3_600);
    // All in one shard, which is full long before the others.
    let take = |number: u64| {
        let key = Fingerprint { first: SHARDS as u64 * number, second: 0 };
        node.leased.take(key, &format!("tollgate:{{{number}}}:api"), &limit, Cost::ONE)
    };
    let room = (POOLS_MAX / SHARDS) as u64;
    let asked: Vec<_> = (1..=2 * room).map(take).collect();
    assert!(asked.into_iter().all(|asked| asked.wait().is_ok_and(|it| it.decision.is_allowed())));
    assert!(node.leased.shards.iter().all(|shard| locked(shard).len() <= POOLS_MAX / SHARDS));
    for number in [1, 2 * room] {
        assert!(!take(number).wait().expect("Redis answers").decision.is_allowed());
    }
    clock.advance(bounds::REVIEW_AFTER);
    eventually("they are forgotten", || {
        node.leased.shards.iter().all(|shard| locked(shard).is_empty()).then_some(())
    });
}
