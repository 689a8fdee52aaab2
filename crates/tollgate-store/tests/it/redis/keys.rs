//! What is in Redis, and what it takes to get there.

use tollgate_core::{Algorithm, Key, Micros, Value};
use tollgate_harness::{Client, Cluster, Flavour, Reply, Server, eventually};
use tollgate_store::redis::{OpenError, RedisSettings, RedisStore, Servers};
use tollgate_store::{Charge, Enrolled, Store, Taken};

use super::{every_server, lasting, open, open_all, open_at, time};
use crate::places::settings;
use crate::support::{Order, Subject, limit_over};

/// All keys there are.
fn names(server: &Server) -> Vec<String> {
    let names = server.command(&["KEYS", "*"]);
    let mut names: Vec<String> = names.list().iter().map(Reply::text).collect();
    names.sort();
    names
}

#[test]
fn keys_are_named_prefix_values_limit_and_every_one_has_a_ttl() {
    for server in every_server() {
        let prefix = "our tollgate".to_owned();
        let subject = open(RedisSettings { prefix, ..settings(Servers::Single(server.url())) });
        let values = [Value::new(b"203.0.113.7"), Value::new(b"a:{b}\r\n")];
        for algorithm in Algorithm::ALL {
            let limit = subject.enroll(limit_over(algorithm, 5, Micros::from_secs(60)));
            let key = Key { limit: algorithm.name(), values: &values };
            assert!(take(&subject, &[(key, &limit)]));
        }
        eventually("the node is known", || {
            names(&server).contains(&"our tollgate:{%}:%nodes".to_owned()).then_some(())
        });
        let names = names(&server);
        for algorithm in Algorithm::ALL {
            let name = format!("our tollgate:{{203.0.113.7:a%3A%7Bb%7D%0D%0A}}:{algorithm}");
            assert!(names.contains(&name), "{name} in {names:?}");
        }
        assert!(names.iter().all(|name| name.starts_with("our tollgate:")), "{names:?}");
        for name in &names {
            // What another type of call finds is gone only if it has just expired.
            let ttl = server.command(&["PTTL", name]).integer();
            assert!(ttl > 0 || ttl == -2, "{name}: {ttl}");
        }
    }
}

fn take(subject: &Subject<Store>, keys: &[(Key<'_>, &Enrolled)]) -> bool {
    let charges: Vec<_> = keys.iter().map(|(key, limit)| Charge::new(*key, limit)).collect();
    subject.store.take(&charges).wait().taken().iter().all(Taken::is_allowed)
}

#[test]
fn secrets_appear_only_hashed_and_all_nodes_agree_on_the_hash() {
    for server in every_server() {
        let [one, other] = open_all(&server);
        let limit = lasting(Algorithm::TokenBucket, 1);
        let limits = [one.enroll(limit), other.enroll(limit)];
        let values = [Value::secret(b"a-very-secret-key")];
        let key = Key { limit: "api", values: &values };
        let texts = || [one.store.key_text(&key), other.store.key_text(&key)];
        let [text, same] = texts();
        assert_eq!(text, same, "from the first request on");
        assert!(take(&one, &[(key, &limits[0])]));
        assert!(!take(&other, &[(key, &limits[1])]), "it is one key");
        let shown = |name: &String| name.contains("a-very-secret-key");
        assert!(!names(&server).iter().any(shown));

        server.command(&["FLUSHALL"]).ok();
        let took = time(|| {
            eventually("the hash is in Redis again", || {
                names(&server).iter().any(|name| name.ends_with("%secret")).then_some(())
            });
        });
        assert!(took <= Micros::from_secs(2), "{took:?}");
        assert_eq!(texts(), [text.clone(), text], "nobody ever saw another");
    }
}

#[test]
fn a_prefix_with_braces_is_refused_since_it_would_say_where_keys_lie() {
    let servers = Servers::Single("redis://127.0.0.1:6379".to_owned());
    for prefix in ["{app}", "a{", "}"] {
        let prefix = prefix.to_owned();
        let opened = RedisStore::open(RedisSettings { prefix, ..settings(servers.clone()) });
        assert!(matches!(opened, Err(OpenError::Prefix { .. })), "{opened:?}");
    }
}

/// The calls of scripts about keys under a prefix that a server is sent during some work.
fn calls(servers: &[&Server], prefix: &str, work: impl FnOnce()) -> Vec<String> {
    let watch = |server: &&Server| {
        let mut client = server.client();
        client.command(&["MONITOR"]).ok();
        client
    };
    let mut watchers: Vec<Client> = servers.iter().map(watch).collect();
    work();
    let mut calls = Vec::new();
    for (server, watcher) in servers.iter().zip(&mut watchers) {
        server.command(&["PING", "that is all"]);
        loop {
            let line = watcher.receive().text();
            if line.contains("\"that is all\"") {
                break;
            }
            // What a script does inside is told as well, and so is what nodes tell each other.
            if line.contains("EVAL") && line.contains(prefix) && !line.contains("{%}") {
                calls.push(line);
            }
        }
    }
    calls
}

/// A request under three limits: two of one subject, and one of another.
fn under_three(limit: &Enrolled, subject: &Subject<Store>, who: u64) {
    let orders = [(who, "first"), (who, "second"), (who + 1, "third")];
    let bytes = orders.map(|(who, _)| who.to_le_bytes());
    let values: Vec<[Value<'_>; 1]> = bytes.iter().map(|bytes| [Value::new(bytes)]).collect();
    let key = |place: usize| Key { limit: orders[place].1, values: &values[place] };
    assert!(take(subject, &[(key(0), limit), (key(1), limit), (key(2), limit)]));
}

#[test]
fn a_request_under_three_limits_is_one_call_on_a_single_server() {
    for server in every_server() {
        let settings = settings(Servers::Single(server.url()));
        let subject = open(settings.clone());
        let limit = subject.enroll(lasting(Algorithm::SlidingWindow, 10));
        // From then on the script is known.
        under_three(&limit, &subject, 1);
        let calls = calls(&[&server], &settings.prefix, || under_three(&limit, &subject, 1));
        assert_eq!(calls.len(), 1, "{calls:?}");
    }
}

#[test]
fn on_a_cluster_it_is_one_call_for_each_slot() {
    for flavour in Flavour::ALL {
        let cluster = Cluster::start(flavour);
        let settings = settings(Servers::Cluster(cluster.urls()));
        let subject = open(settings.clone());
        let limit = subject.enroll(lasting(Algorithm::SlidingWindow, 100));
        let servers: Vec<&Server> = cluster.nodes().iter().collect();
        // From then on the scripts are known, and so is where the slots are.
        (0..20).for_each(|who| under_three(&limit, &subject, who));
        for who in 100..120 {
            let calls = calls(&servers, &settings.prefix, || under_three(&limit, &subject, who));
            assert_eq!(calls.len(), 2, "{calls:?}");
        }
    }
}

#[test]
fn what_one_slot_took_is_given_back_when_another_denies() {
    let cluster = Cluster::start(Flavour::Redis);
    let subject = open(settings(Servers::Cluster(cluster.urls())));
    for algorithm in Algorithm::ALL {
        let generous = subject.enroll(lasting(algorithm, 5));
        let strict = Order::new(1, subject.enroll(lasting(algorithm, 1)));
        subject.charge(&strict);
        for key in 100..150 {
            let order = Order::new(key, generous).costing(5);
            let taken = subject.take(&[order, strict]);
            assert!(taken[0].is_allowed() && !taken[1].is_allowed(), "{algorithm}");
            let told = taken[0].decision().expect("it was counted");
            assert_eq!(told.remaining, 5, "{algorithm}");
            // Windows of different keys end at different times.
            if algorithm != Algorithm::FixedWindow {
                let fresh = subject.peek(&Order { key: key + 1_000, ..order });
                let waits = [told, fresh].map(|it| (it.reset_after, it.next_after));
                assert_eq!(waits[0], waits[1], "{algorithm}");
            }
            eventually("it is back", || (subject.remaining(&order) == 5).then_some(()));
        }
    }
    assert_eq!(subject.redis().settled(), 0);
}

#[test]
fn what_nobody_waits_for_is_given_back_all_the_same() {
    for server in every_server() {
        let subject = open_at(&server);
        for algorithm in Algorithm::ALL {
            let order = Order::new(1, subject.enroll(lasting(algorithm, 300)));
            for _ in 0..100 {
                let claim = subject.charge(&order.costing(3));
                drop(subject.store.refund(&claim));
            }
            eventually("all of it is back", || (subject.remaining(&order) == 300).then_some(()));
            subject.reset(1);
        }
    }
}
