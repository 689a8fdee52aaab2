//! What Redis must allow and keep: the access rules of the page are enough, and all needed; what is
//! missing is told.

use std::collections::BTreeSet;

use serde_json::json;
use tollgate_harness::{Cluster, Flavour, Reply, Sentinel, Server, Setup};

use super::{Node, PAGE};
use crate::support::eventually;

/// Every algorithm, and both ways to agree.
const LIMITS: &str = "  \
    - { name: sliding_window, per: [user], rate: 5/year }\n  \
    - { name: token_bucket, per: [user], rate: 5/year, algorithm: token_bucket }\n  \
    - { name: leaky_bucket, per: [user], rate: 5/hour, algorithm: leaky_bucket, queue: 5 }\n  \
    - { name: fixed_window, per: [user], rate: 5/year, algorithm: fixed_window }\n  \
    - { name: sliding_log, per: [user], rate: 5/year, algorithm: sliding_log }\n  \
    - { name: slots, per: [job], concurrency: 2 }\n  \
    - { name: short, per: [short], rate: 1000/5ms, algorithm: sliding_log }\n  \
    - { name: narrow, per: [job], rate: 3/year, algorithm: sliding_log }\n  \
    - { name: hot, per: [hot], rate: 1000/year, algorithm: token_bucket, sync: leased }\n  \
    - { name: day, per: [hot], rate: 1000/year, algorithm: fixed_window, sync: leased }\n";

/// The lines of the page that make users, by what they are for.
fn rules(user: &str) -> Vec<&'static str> {
    let wanted = format!("ACL SETUSER {user} ");
    let line = PAGE.lines().find(|line| line.starts_with(&wanted));
    line.unwrap_or_else(|| panic!("the page has no {wanted}")).split(' ').collect()
}

/// The rights of such a line.
fn rights(user: &str) -> BTreeSet<String> {
    let rights = rules(user).into_iter().filter_map(|word| word.strip_prefix('+'));
    rights.map(str::to_owned).collect()
}

fn make_user(server: &Server, rules: &[&str]) {
    server.command(rules).ok();
    server.command(&["ACL", "LOG", "RESET"]).ok();
    server.command(&["CONFIG", "RESETSTAT"]).ok();
}

/// What is needed to reach a server rather than to decide.
const TO_REACH: [&str; 8] =
    ["asking", "cluster|slots", "config|get", "eval", "evalsha", "ping", "role", "select"];

/// Asks for everything that can be asked for, and tells which commands that took. Those that are
/// tried only to see whether they are allowed are not among them.
fn ask_for_everything(node: &mut Node, servers: &[Server]) -> BTreeSet<String> {
    let all_commands = || servers.iter().flat_map(commands).collect::<BTreeSet<String>>();
    eventually("all have been tried", || all_commands().contains("hdel").then_some(()));
    let mut used = all_commands();
    used.retain(|command| TO_REACH.contains(&command.as_str()));
    for server in servers {
        server.command(&["CONFIG", "RESETSTAT"]).ok();
    }
    ask(node);
    node.stop();
    check_silence(node, servers);
    used.extend(all_commands());
    used
}

fn ask(node: &Node) {
    assert_eq!(node.statuses("user=a"), [200, 200, 200, 200, 200, 429]);
    let held = [(); 2].map(|()| node.check("job=a"));
    let lease = json!({ "lease": held[0].json()["lease"] }).to_string();
    assert_eq!(node.check("job=a").status, 429);
    for what in ["renew", "release"] {
        let answer = node.server.post("http", &format!("/v1/{what}"), &lease);
        assert_eq!(answer.status, 200, "{what}: {answer:?}");
    }
    assert_eq!(node.check("job=a").status, 200);
    assert_eq!(node.statuses("hot=a"), [200; 50]);
    // For longer than the period, so that some entries of the log are gone and others not.
    assert_eq!(node.statuses("short=a"), [200; 100]);
    let key = "token_bucket:a";
    let told = node.admin("GET", &format!("/v1/keys/{key}"), "").json();
    assert_eq!(told["limits"][0]["remaining"], 0, "{told}");
    for (method, body) in [("PUT", r#"{"rate": "6/year"}"#), ("DELETE", "")] {
        let answer = node.admin(method, &format!("/v1/overrides/{key}"), body);
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    for limit in ["token_bucket", "sliding_log"] {
        let answer = node.admin("DELETE", &format!("/v1/keys/{limit}:a"), "").json();
        assert_eq!(answer["was_known"], true, "{limit}: {answer}");
    }
    node.server.says("took over the overrides that nodes share");
}

/// What was refused, in the words of the server.
fn refused(server: &Server) -> Vec<Reply> {
    server.command(&["ACL", "LOG"]).list().to_vec()
}

/// The commands that a server has run since it was last asked to forget them.
fn commands(server: &Server) -> BTreeSet<String> {
    let told = server.command(&["INFO", "commandstats"]).text();
    let names = told.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split(':').next());
    names.map(str::to_owned).collect()
}

fn check_silence(node: &Node, servers: &[Server]) {
    assert_eq!(node.warnings(), [] as [serde_json::Value; 0]);
    for server in servers {
        assert_eq!(refused(server), []);
    }
}

#[test]
fn the_rules_of_the_page_are_enough_and_none_is_too_much() {
    for flavour in Flavour::ALL {
        let mut used = BTreeSet::new();
        used.extend(on_a_server(flavour));
        used.extend(on_a_cluster(flavour));
        used.extend(under_sentinels(flavour));
        let idle: Vec<_> = rights("tollgate").difference(&used).cloned().collect();
        assert_eq!(idle, [] as [String; 0], "{flavour:?}");
    }
}

fn on_a_server(flavour: Flavour) -> BTreeSet<String> {
    let server = Server::start(flavour);
    make_user(&server, &rules("tollgate"));
    let url = format!("redis://tollgate:password@{}/1", server.address());
    let mut node = Node::start(&super::patient(&url), LIMITS);
    ask_for_everything(&mut node, std::slice::from_ref(&server))
}

fn on_a_cluster(flavour: Flavour) -> BTreeSet<String> {
    let cluster = Cluster::start(flavour);
    cluster.nodes().iter().for_each(|server| make_user(server, &rules("tollgate")));
    // Replicas are asked where the slots are, like others.
    let urls: Vec<String> = cluster.nodes().iter().map(url).collect();
    let store = format!("{{ redis: {{ cluster: [{}], timeout: 5s }} }}", urls.join(", "));
    let mut node = Node::start(&store, LIMITS);
    // A key of a slot on its way is asked for where it goes.
    let slot = cluster.slot("tollgate:{b}:token_bucket");
    let to = (cluster.master_of(slot) + 1) % 3;
    let migration = cluster.begin_migration(slot, to);
    assert_eq!(node.check("user=b").status, 200);
    migration.finish();
    assert_eq!(node.statuses("user=b"), [200, 200, 200, 200, 429]);
    ask_for_everything(&mut node, cluster.nodes())
}

fn under_sentinels(flavour: Flavour) -> BTreeSet<String> {
    let all = Sentinel::start(flavour);
    all.servers().iter().for_each(|server| make_user(server, &rules("tollgate")));
    let urls: Vec<String> = all.sentinels().iter().map(url).collect();
    let store = format!(
        "{{ redis: {{ sentinel: {{ master: {}, nodes: [{}] }}, timeout: 5s }} }}",
        all.name(),
        urls.join(", ")
    );
    // Sentinels without users are asked without one.
    let node = Node::start(&store, LIMITS);
    check_silence(&node, all.servers());
    // Those with users, by rules of their own.
    let words = rules("tollgate").into_iter().filter(|word| !word.starts_with(['+', '~']));
    let own = sentinel_rules();
    let words: Vec<&str> = words.chain(own.iter().map(String::as_str)).collect();
    for sentinel in all.sentinels() {
        sentinel.command(&words).ok();
        sentinel.command(&["ACL", "SETUSER", "default", "resetpass", "-@all"]);
        sentinel.command(&["ACL", "LOG", "RESET"]);
    }
    let mut node = Node::start(&store, LIMITS);
    ask_for_everything(&mut node, all.servers())
}

fn url(server: &Server) -> String {
    format!("'redis://tollgate:password@{}'", server.address())
}

/// What a user of the same name needs at the Sentinels.
fn sentinel_rules() -> Vec<String> {
    let (_, rest) = PAGE.split_once("On the Sentinels themselves").expect("the page tells");
    let rules = rest.split('`').nth(1).expect("the rules are in backticks");
    rules.split(' ').map(str::to_owned).collect()
}

#[test]
fn a_right_that_is_missing_is_named_once() {
    for flavour in Flavour::ALL {
        for right in ["zadd", "zrem", "hincrby", "unlink", "time"] {
            let server = Server::start(flavour);
            let without = format!("-{right}");
            make_user(&server, &[&rules("tollgate")[..], &[&without]].concat());
            let url = format!("redis://tollgate:password@{}", server.address());
            let node = Node::spawn(&super::patient(&url), LIMITS);
            node.server.says("docs/redis.md lists the access rules");
            node.statuses::<20>("user=a");
            let warnings = node.warnings();
            let told: Vec<_> = warnings
                .iter()
                .filter(|it| it["message"].as_str().is_some_and(|it| it.contains("docs/redis.md")))
                .collect();
            assert_eq!(told.len(), 1, "{warnings:?}");
            let errors = told[0]["errors"].as_str().expect("a text");
            assert_eq!(errors.matches("NOPERM").count(), 1, "{errors}");
            assert!(errors.contains(&format!("'{right}'")), "{errors}");
        }
    }
}

#[test]
fn what_a_server_refuses_is_told_with_its_name() {
    let server = Server::start(Flavour::Redis);
    make_user(&server, &[&rules("tollgate")[..], &["-zadd"]].concat());
    let url = format!("redis://tollgate:password@{}", server.address());
    let node = Node::spawn(&super::patient(&url), LIMITS);
    node.server.says("Redis refuses a call");
    node.statuses::<20>("user=a");
    let mut told = node.warnings();
    told.retain(|line| line["message"] == "Redis refuses a call");
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0]["server"], server.address().to_string(), "{told:?}");
}

#[test]
fn keys_that_are_another_s_are_told_of() {
    let server = Server::start(Flavour::Redis);
    make_user(&server, &rules("tollgate"));
    let url = format!("redis://tollgate:password@{}", server.address());
    let store = format!("{{ redis: {{ url: '{url}', timeout: 5s, prefix: mine }} }}");
    let node = Node::spawn(&store, LIMITS);
    node.server.says("docs/redis.md lists the access rules");
    let errors = node.warnings().iter().find_map(|it| it["errors"].as_str().map(str::to_owned));
    let errors = errors.expect("they are told");
    assert_eq!(errors.matches("NOPERM").count(), 1, "{errors}");
    assert!(errors.contains("key"), "{errors}");
}

#[test]
fn every_server_of_a_cluster_is_looked_at() {
    for flavour in Flavour::ALL {
        let cluster = Cluster::start(flavour);
        // Not the one that is asked what all nodes share.
        let shared = cluster.master_of(cluster.slot("tollgate:{%}:%nodes"));
        let masters = [0, 8_000, 16_000].map(|slot| cluster.master_of(slot));
        let other = masters.into_iter().find(|master| *master != shared).expect("there are three");
        let server = &cluster.nodes()[other];
        server.command(&["CONFIG", "SET", "maxmemory", "100mb"]).ok();
        server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).ok();
        let store = format!("{{ redis: {{ cluster: {}, timeout: 5s }} }}", json!(cluster.urls()));
        let node = Node::start(&store, LIMITS);
        node.server.says("set maxmemory-policy to noeviction");
    }
}

#[test]
fn a_server_that_forgets_keys_is_warned_of_and_one_that_does_not_is_not() {
    for flavour in Flavour::ALL {
        for (policy, is_told) in
            [("allkeys-lru", true), ("volatile-ttl", true), ("noeviction", false)]
        {
            let server = Setup::new(flavour)
                .line("maxmemory 100mb")
                .line(&format!("maxmemory-policy {policy}"))
                .start();
            let node = Node::start(&super::patient(&server.url()), LIMITS);
            if is_told {
                node.server.says("set maxmemory-policy to noeviction");
                let warnings = node.warnings();
                assert_eq!(warnings.len(), 1, "{warnings:?}");
                assert_eq!(warnings[0]["policy"], policy);
            } else {
                // The last that is looked at is asked for before the key is forgotten.
                eventually("it has been looked at", || server.info("cmdstat_config|get").map(drop));
                assert_eq!(node.warnings(), [] as [serde_json::Value; 0]);
            }
        }
    }
}
