//! Several nodes and one Redis.

use std::fs;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use serde_json::{Value, json};
use tollgate_harness::{Client, Flavour, Proxy, Server};

use super::{Node, has_key, patient, policy};
use crate::Folder;
use crate::support::http::{Connection, Response};
use crate::support::{eventually, within_a_second};

#[test]
fn without_redis_it_is_ready_within_a_second_and_goes_over_to_redis_when_it_comes() {
    let redis = Server::start(Flavour::Redis);
    redis.kill();
    let limits = "  \
        - { name: open, per: [open], rate: 2/year, on_store_failure: allow }\n  \
        - { name: shut, per: [shut], rate: 2/year, on_store_failure: deny }\n  \
        - { name: own, per: [own], rate: 6/year, algorithm: fixed_window }\n\
        nodes: 2\n";
    let mut node = Node::spawn(&patient(&redis.url()), limits);
    within_a_second("it is ready", || {
        let is_up = node.server.log().iter().any(|line| line.contains("\"admin\""));
        assert_eq!(node.server.process.has_ended(), None);
        is_up && node.admin("GET", "/readyz", "").status == 200
    });
    assert_eq!(node.statuses("open=a"), [200, 200, 200], "uncounted");
    assert_eq!(node.statuses("own=a"), [200, 200, 200, 429], "half of the limit");
    let refused = node.check("shut=a");
    assert_eq!((refused.status, &refused.json()["allowed"]), (503, &json!(false)));
    let asked = [
        ("X-Forwarded-Method", "GET"),
        ("X-Forwarded-Uri", "/?shut=a"),
        ("X-Forwarded-Host", "localhost"),
        ("X-Forwarded-For", "203.0.113.7"),
    ];
    // At the HTTP doors a missing attribute is one value, so the limits apply to everybody.
    let address = node.server.address("http");
    let refused = crate::support::http::get(address, "/v1/forward-auth", &asked);
    let problem = refused.json();
    let kind = problem["type"].as_str().unwrap();
    assert_eq!(refused.status, 503);
    assert!(kind.ends_with("#temporary-reduced-capacity"), "{problem}");
    assert_eq!(problem["code"], "uncounted");
    redis.restart();
    node.until_redis_is_there();
    assert_eq!(node.statuses("own=a"), [200; 6], "and what Redis counts is all of it");
    assert_eq!(node.statuses("own=a"), [429]);
    assert!(has_key(&redis, "tollgate:{a}:own"));
    let told = |what: &str| node.server.log().iter().filter(|line| line.contains(what)).count();
    assert_eq!((told("redis is unreachable"), told("redis is back")), (1, 1));
}

#[test]
fn a_redis_that_hangs_at_the_start_holds_nobody_up() {
    let redis = Server::start(Flavour::Redis);
    let proxy = Proxy::start(redis.address());
    proxy.hang();
    let store = format!("{{ redis: {{ url: '{}', timeout: 100ms }} }}", proxy.url());
    let node = Node::spawn(&store, "  - { name: api, per: [user], rate: 2/year }\n");
    within_a_second("it is ready", || {
        let is_up = node.server.log().iter().any(|line| line.contains("\"admin\""));
        is_up && node.admin("GET", "/readyz", "").status == 200
    });
    assert_eq!(node.statuses("user=a"), [200, 200, 429], "it counts by itself");
    proxy.heal();
    node.until_redis_is_there();
}

#[test]
fn a_call_that_redis_does_not_answer_in_time_is_told_once_with_the_server_and_what_is_done() {
    let redis = Server::start(Flavour::Redis);
    let proxy = Proxy::start(redis.address());
    let store = format!("{{ redis: {{ url: '{}', timeout: 300ms }} }}", proxy.url());
    let node = Node::start(&store, "  - { name: api, per: [user], rate: 1000/year }\n");
    let silent = |line: &Value| line["message"] == "Redis does not answer a call";
    for round in 1..=3 {
        eventually("a check is settled without Redis", || {
            proxy.drop_replies();
            let before = settled(&node);
            node.check("user=a");
            let is_settled = settled(&node) > before;
            proxy.cut();
            proxy.heal();
            node.until_redis_is_there();
            is_settled.then_some(())
        });
        let mut told = node.warnings();
        told.retain(|line| silent(line) && line["error"].as_str().unwrap().contains("deadline"));
        assert_eq!(told.len(), 1, "after {round}: {told:?}");
        assert_eq!(told[0]["server"], proxy.address().to_string(), "{told:?}");
        assert_eq!(told[0]["done"], "limits are settled by on_store_failure", "{told:?}");
    }
}

/// How many requests a node has settled without Redis.
fn settled(node: &Node) -> u64 {
    let store = node.admin("GET", "/v1/policy", "").json()["store"].clone();
    store["settled_without"].as_u64().unwrap_or_else(|| panic!("{store}"))
}

#[test]
fn nodes_together_allow_exactly_the_limit_over_http_and_the_redis_protocol() {
    const LIMIT: u32 = 300;
    let limits =
        format!("  - {{ name: api, per: [user], rate: {LIMIT}/year, algorithm: token_bucket }}\n");
    for (flavour, count) in [(Flavour::Redis, 3), (Flavour::Valkey, 2)] {
        let redis = Server::start(flavour);
        let start = || Node::start(&patient(&redis.url()), &limits);
        let nodes: Vec<Node> = (0..count).map(|_| start()).collect();
        let allowed = AtomicU32::new(0);
        let note = |is_allowed: bool| allowed.fetch_add(u32::from(is_allowed), Ordering::Relaxed);
        thread::scope(|scope| {
            for node in &nodes {
                for _ in 0..2 {
                    scope.spawn(|| {
                        let mut connection = Connection::open(node.server.address("http"));
                        for _ in 0..LIMIT / 2 {
                            let answer = connection.ask("GET", "/v1/check?user=a", &[], "");
                            let status = answer.expect("an answer").status;
                            assert!([200, 429].contains(&status), "{status}");
                            note(status == 200);
                        }
                    });
                    scope.spawn(|| {
                        let client = Client::tcp(node.server.address("resp"));
                        let mut client = client.expect("the door is open");
                        for _ in 0..LIMIT / 2 {
                            let answer = client.command(&["TG.CHECK", "user", "a"]);
                            note(answer.list()[0].integer() == 1);
                        }
                    });
                }
            }
        });
        assert_eq!(allowed.into_inner(), LIMIT, "{count} nodes, {flavour:?}");
    }
}

#[test]
fn nodes_together_allow_exactly_the_limit_to_envoy() {
    const DESCRIPTORS: &str = "domain: shop\n\
        descriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 7 } }]\n";
    let redis = Server::start(Flavour::Redis);
    let start = || {
        let folder = Folder::new();
        fs::create_dir(folder.path("envoy")).unwrap();
        folder.write("envoy/shop.yaml", DESCRIPTORS);
        let store = patient(&redis.url());
        let node = Node::spawn_in(folder, &store, "descriptors: ./envoy/\n", |_| {});
        node.until_redis_is_there();
        node
    };
    let nodes = [start(), start()];
    let call =
        json!({"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "a"}]}]});
    let ask = |turn: usize| {
        let answer = nodes[turn % 2].server.post("http", "/json", &call.to_string());
        answer.json()["overallCode"].clone()
    };
    let codes: Vec<Value> = (0..10).map(ask).collect();
    assert_eq!(codes.iter().filter(|code| **code == "OK").count(), 7, "{codes:?}");
}

#[test]
fn slots_are_released_at_once_by_who_gave_them_and_by_their_lease_when_that_node_is_killed() {
    let redis = Server::start(Flavour::Redis);
    let limits =
        "  - { name: jobs, per: [job], concurrency: 2, lease: 3s, on_store_failure: deny }\n";
    let start = || Node::start(&patient(&redis.url()), limits);
    let (mut first, second) = (start(), start());
    let held = [(); 2].map(|()| first.check("job=a"));
    assert_eq!((held[0].status, held[1].status, second.check("job=a").status), (200, 200, 429));
    let lease = |held: &Response| json!({ "lease": held.json()["lease"] }).to_string();
    // The name of a lease means something only to the node that gave it.
    assert_eq!(second.server.post("http", "/v1/release", &lease(&held[0])).status, 404);
    assert_eq!(second.check("job=a").status, 429);
    assert_eq!(first.server.post("http", "/v1/release", &lease(&held[0])).status, 200);
    assert_eq!(second.check("job=a").status, 200, "it is back at once, for all nodes");
    first.server.process.kill();
    assert_eq!(second.check("job=a").status, 429, "nobody knows yet that the holder is dead");
    eventually("its lease ends", || (second.check("job=a").status == 200).then_some(()));
}

#[test]
fn what_is_overridden_and_reset_through_one_node_holds_on_all_within_a_second() {
    let redis = Server::start(Flavour::Redis);
    let limits = "  - { name: api, per: [user], rate: 2/year, algorithm: fixed_window, on_store_failure: deny }\n";
    let start = || Node::start(&patient(&redis.url()), limits);
    let (mut first, second) = (start(), start());
    assert_eq!(second.statuses("user=anna"), [200, 200, 429]);
    let put = first.admin("PUT", "/v1/overrides/api:anna", r#"{"rate": "4/year"}"#);
    assert_eq!(put.status, 200, "{put:?}");
    let limit = |node: &Node| node.check("user=anna&cost=0").json()["limits"][0]["limit"].clone();
    within_a_second("the other node allows it too", || limit(&second) == 4);
    assert_eq!(second.statuses("user=anna"), [200, 200, 429], "what was consumed stays consumed");
    first.stop();
    let first = first.again();
    within_a_second("a node that comes later allows it", || limit(&first) == 4);
    assert_eq!(first.admin("DELETE", "/v1/keys/api:anna", "").json()["was_known"], true);
    within_a_second("the other node sees that it was reset", || {
        second.check("user=anna").status == 200
    });
    assert_eq!(first.admin("DELETE", "/v1/overrides/api:anna", "").status, 200);
    within_a_second("the override is gone everywhere", || limit(&second) == 2);
}

#[test]
fn the_ban_of_an_api_key_outlives_a_redis_that_is_emptied_while_a_node_starts() {
    let redis = Server::start(Flavour::Redis);
    let limits =
        "  - { name: api, per: ['header:x-api-key'], rate: 5/year, on_store_failure: deny }\n";
    let start = || Node::start(&patient(&redis.url()), limits);
    let mut nodes = vec![start(), start()];
    let asked = json!({"attributes": {"header:x-api-key": "k-1"}}).to_string();
    let check = |node: &Node| node.server.post("http", "/v1/check", &asked);
    let key = check(&nodes[0]).json()["limits"][0]["key"].as_str().unwrap().to_owned();
    let path = format!("/v1/overrides/{}", key.replace('%', "%25"));
    assert_eq!(nodes[0].admin("PUT", &path, r#"{"ban": true}"#).status, 200);
    let lost = |node: &Node| {
        let warnings = node.warnings();
        let is_it = |it: &&Value| it["message"].as_str().unwrap().starts_with("Redis lost");
        warnings.iter().filter(is_it).count()
    };
    for losses in 1..=2 {
        let all_knew = |node: &Node| {
            let told = node.admin("GET", "/v1/overrides", "").json();
            told["overrides"].as_array().is_some_and(|list| list.len() == 1)
        };
        eventually("all know", || nodes.iter().all(all_knew).then_some(()));
        // Known by its node is not yet read from Redis by it.
        let took = |node: &Node| node.server.log().iter().any(|line| line.contains("took over"));
        eventually("all have read it", || nodes.iter().all(took).then_some(()));
        redis.command(&["FLUSHALL"]);
        nodes.push(start());
        eventually("it is there again", || {
            let kept = redis.command(&["HEXISTS", "tollgate:{%}:%overrides", &key]);
            (kept.integer() == 1).then_some(())
        });
        eventually("all nodes ban it", || {
            nodes.iter().all(|node| check(node).status == 429).then_some(())
        });
        let told = || nodes.iter().map(lost).sum::<usize>();
        eventually("it is told", || (told() >= losses).then_some(()));
        assert_eq!(told(), losses, "once, by who made it good");
    }
}

#[test]
fn a_rolling_restart_under_load_loses_nothing_and_gives_leased_units_back() {
    const STRICT: u32 = 3_000;
    const LEASED: u32 = 20_000;
    let redis = Server::start(Flavour::Redis);
    let limits = format!(
        "  - {{ name: strict, per: [strict], rate: {STRICT}/year, algorithm: fixed_window, on_store_failure: deny }}\n  \
         - {{ name: leased, per: [leased], rate: {LEASED}/year, algorithm: token_bucket, sync: leased, on_store_failure: deny }}\n"
    );
    let start = || Node::start(&patient(&redis.url()), &limits);
    let mut nodes = vec![start(), start(), start()];
    let addresses = Mutex::new(addresses(&nodes));
    let is_done = AtomicBool::new(false);
    let allowed = [AtomicU32::new(0), AtomicU32::new(0)];
    thread::scope(|scope| {
        for worker in 0..4 {
            let (addresses, is_done, allowed) = (&addresses, &is_done, &allowed[worker % 2]);
            let path = ["/v1/check?strict=1", "/v1/check?leased=1"][worker % 2];
            scope.spawn(move || ask_one_after_the_other(addresses, path, is_done, allowed));
        }
        for place in 0..nodes.len() {
            let asked_before = allowed[0].load(Ordering::Relaxed);
            eventually("there is load", || {
                (allowed[0].load(Ordering::Relaxed) > asked_before + 100).then_some(())
            });
            let mut old = std::mem::replace(&mut nodes[place], start());
            *addresses.lock().unwrap() = self::addresses(&nodes);
            old.stop();
        }
        // Whatever a node held when it ended is to be had from the others.
        eventually("all is spent", || {
            let is_spent = |place: usize, limit| allowed[place].load(Ordering::Relaxed) >= limit;
            (is_spent(0, STRICT) && is_spent(1, LEASED)).then_some(())
        });
        is_done.store(true, Ordering::Relaxed);
    });
    assert_eq!(allowed.map(AtomicU32::into_inner), [STRICT, LEASED]);
}

#[test]
fn what_a_node_holds_of_a_lease_when_it_is_stopped_is_to_be_had_from_the_others() {
    const LIMIT: u32 = 1_000_000;
    let redis = Server::start(Flavour::Redis);
    let limits = format!(
        "  - {{ name: hot, per: [hot], rate: {LIMIT}/year, algorithm: token_bucket, sync: leased }}\n"
    );
    let start = || Node::start(&patient(&redis.url()), &limits);
    let (mut first, second) = (start(), start());
    let (allowed, is_done) = (AtomicU32::new(0), AtomicBool::new(false));
    let only_first = Mutex::new(addresses(std::slice::from_ref(&first)));
    thread::scope(|scope| {
        // To the very end: a node that is not asked for a while gives everything back by itself.
        scope.spawn(|| ask_one_after_the_other(&only_first, "/v1/check?hot=a", &is_done, &allowed));
        eventually("there is load", || (allowed.load(Ordering::Relaxed) > 500).then_some(()));
        first.stop();
        is_done.store(true, Ordering::Relaxed);
    });
    let left = LIMIT - allowed.into_inner();
    assert_eq!(second.statuses(&format!("hot=a&cost={left}")), [200], "{left} are left");
}

fn addresses(nodes: &[Node]) -> Vec<SocketAddr> {
    nodes.iter().map(|node| node.server.address("http")).collect()
}

/// Asks as a balancer does: on a connection until it is told that it closes, then on one to another
/// node. Only a connection that was never answered may end without a word.
fn ask_one_after_the_other(
    addresses: &Mutex<Vec<SocketAddr>>,
    path: &str,
    is_done: &AtomicBool,
    allowed: &AtomicU32,
) {
    for turn in 0.. {
        let address = {
            let addresses = addresses.lock().expect("nobody panics with it");
            addresses[turn % addresses.len()]
        };
        if is_done.load(Ordering::Relaxed) {
            return;
        }
        let Ok(mut connection) = Connection::try_open(address) else { continue };
        let mut is_in_use = false;
        for _ in 0..100 {
            if is_done.load(Ordering::Relaxed) {
                return;
            }
            let answer = match connection.ask("GET", path, &[], "") {
                Ok(answer) => answer,
                Err(error) => {
                    assert!(!is_in_use, "a request was lost: {error}");
                    break;
                }
            };
            is_in_use = true;
            assert!([200, 429].contains(&answer.status), "{answer:?}");
            allowed.fetch_add(u32::from(answer.status == 200), Ordering::Relaxed);
            if answer.field("connection") == Some("close") {
                break;
            }
        }
    }
}

#[test]
fn a_policy_loaded_anew_keeps_what_was_consumed_in_redis() {
    let redis = Server::start(Flavour::Valkey);
    let limits = |count: u32| {
        format!("  - {{ name: api, per: [user], rate: {count}/year, algorithm: token_bucket }}\n")
    };
    let store = patient(&redis.url());
    let nodes = [(); 2].map(|()| Node::start(&store, &limits(5)));
    assert_eq!(nodes[0].statuses("user=a"), [200, 200, 200, 200, 200, 429]);
    for node in &nodes {
        node.folder.write("policy.yaml", policy(&store, &limits(7)));
        assert_eq!(node.admin("POST", "/v1/reload", "").status, 200);
    }
    assert_eq!(nodes[1].statuses("user=a"), [200, 200, 429]);
    assert_eq!(nodes[0].statuses("user=a"), [429]);
}

#[test]
fn replicas_that_each_count_for_themselves_are_warned_of() {
    let redis = Server::start(Flavour::Redis);
    for (replicas, store, is_told) in [
        ("3", "memory".to_owned(), true),
        ("1", "memory".to_owned(), false),
        ("3", patient(&redis.url()), false),
    ] {
        let node = Node::spawn_in(Folder::new(), &store, "", |serve| {
            serve.env("TOLLGATE_REPLICAS", replicas);
        });
        node.until_redis_is_there();
        let warnings = node.warnings();
        let told = warnings.iter().filter(|it| it["replicas"] == 3).count();
        assert_eq!(told, usize::from(is_told), "{replicas} {store}: {warnings:?}");
    }
    let mut serve = crate::command(&["serve"]);
    serve.env("TOLLGATE_REPLICAS", "many");
    let run = crate::run(&mut serve, "");
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("TOLLGATE_REPLICAS"), "{}", run.stderr);
}
