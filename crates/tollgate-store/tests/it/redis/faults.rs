//! Servers that fail, each in its way.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use tollgate_core::{Algorithm, Key, Micros, Value};
use tollgate_harness::{
    Cluster, Flavour, Proxy, Reply, Sentinel, Server, Setup, eventually, free_port, write_command,
};
use tollgate_store::redis::{RedisSettings, Servers};
use tollgate_store::{Charge, OnFailure, Taken};

use super::load::{Fault, SHARE, TIMEOUT, UNITS, endure};
use super::{every_server, lasting, open, open_at, time};
use crate::places::settings;
use crate::support::Order;

const KEYS: [u64; 4] = [1, 2, 3, 4];

/// What may be admitted in an outage that Redis comes out of as it went in.
const KEPT: u32 = UNITS + SHARE;

/// What may be admitted in an outage after which Redis knows nothing of what was before.
const LOST: u32 = 2 * UNITS + SHARE;

fn at(server: &Server) -> RedisSettings {
    settings(Servers::Single(server.url()))
}

/// Waits until a server answers writes with this error.
fn until_it_says(server: &Server, code: &str) {
    eventually(&format!("the server says {code}"), || {
        let reply = server.try_command(&["SET", "probe", "1", "PX", "1"]).ok()?;
        matches!(reply, Reply::Error(error) if error.starts_with(code)).then_some(())
    });
}

fn configure(server: &Server, name: &str, value: &str) {
    server.command(&["CONFIG", "SET", name, value]).ok();
}

#[test]
fn redis_that_is_absent_at_the_start_is_no_obstacle_to_one() {
    let url = format!("redis://127.0.0.1:{}", free_port());
    let mut subject = None;
    let settings = RedisSettings { timeout: TIMEOUT, ..settings(Servers::Single(url)) };
    let took = time(|| subject = Some(open(settings)));
    assert!(took < Micros::from_secs(1), "{took:?}");
    let subject = subject.unwrap();
    let limit = subject.enroll(lasting(Algorithm::SlidingLog, 2));
    let order = Order::new(1, limit);
    for _ in 0..3 {
        let allowed = Taken::Uncounted { is_allowed: true };
        assert_eq!(subject.take_one(&order.allowed_on_failure()), allowed);
        let denied = Taken::Uncounted { is_allowed: false };
        assert_eq!(subject.take_one(&order.denied_on_failure()), denied);
    }
    // Nobody else was ever seen, so the share is the whole.
    let admitted = (0..9).filter(|_| subject.take_one(&order).is_allowed()).count();
    assert_eq!(admitted, 2);
    assert_eq!(subject.redis().settled(), 15);
}

#[test]
fn redis_that_comes_later_is_used_from_then_on() {
    for server in every_server() {
        server.kill();
        let subject = open(RedisSettings { timeout: TIMEOUT, ..at(&server) });
        let order = Order::new(1, subject.enroll(lasting(Algorithm::TokenBucket, 1_000_000)));
        let order = order.denied_on_failure();
        assert_eq!(subject.take_one(&order).decision(), None);
        server.restart();
        let took = time(|| {
            eventually("Redis counts", || subject.take_one(&order).decision());
        });
        assert!(took <= Micros::from_secs(2), "{took:?}");
    }
}

#[test]
fn redis_is_killed_under_load_and_starts_again() {
    for server in every_server() {
        let fail = || server.kill();
        endure(at(&server), KEYS, Fault { fail, mend: Some(|| server.restart()), most: LOST });
    }
}

#[test]
fn redis_hangs_and_goes_on() {
    for server in every_server() {
        let (fail, mend) = (|| server.stop(), Some(|| server.cont()));
        endure(at(&server), KEYS, Fault { fail, mend, most: KEPT });
    }
}

#[test]
fn redis_is_slow_and_then_quick_again() {
    for server in every_server() {
        let proxy = Proxy::start(server.address());
        let settings = settings(Servers::Single(proxy.url()));
        let fail = || proxy.delay_replies(Duration::from_millis(200));
        endure(settings, KEYS, Fault { fail, mend: Some(|| proxy.heal()), most: KEPT });
        assert!(proxy.open() <= 1, "one connection, whatever happens");
    }
}

#[test]
fn replies_are_lost_and_then_arrive_again() {
    for server in every_server() {
        let proxy = Proxy::start(server.address());
        let settings = settings(Servers::Single(proxy.url()));
        let (fail, mend) = (|| proxy.drop_replies(), Some(|| proxy.heal()));
        endure(settings, KEYS, Fault { fail, mend, most: KEPT });
    }
}

#[test]
fn connections_are_cut_and_refused_and_then_taken_again() {
    for server in every_server() {
        let proxy = Proxy::start(server.address());
        let settings = settings(Servers::Single(proxy.url()));
        let fail = || {
            proxy.refuse();
            proxy.cut();
        };
        endure(settings, KEYS, Fault { fail, mend: Some(|| proxy.heal()), most: KEPT });
    }
}

#[test]
fn redis_is_out_of_memory() {
    for server in every_server() {
        let fail = || {
            configure(&server, "maxmemory", "1");
            until_it_says(&server, "OOM");
        };
        let mend = Some(|| configure(&server, "maxmemory", "0"));
        endure(at(&server), KEYS, Fault { fail, mend, most: KEPT });
    }
}

#[test]
fn redis_has_become_a_replica() {
    for server in every_server() {
        let master = Server::start(server.flavour());
        let fail = || {
            let port = master.port().to_string();
            server.command(&["REPLICAOF", "127.0.0.1", &port]).ok();
            until_it_says(&server, "READONLY");
        };
        let mend = Some(|| server.command(&["REPLICAOF", "NO", "ONE"]).ok());
        endure(at(&server), KEYS, Fault { fail, mend, most: LOST });
    }
}

#[test]
fn redis_cannot_write_to_its_disk() {
    for flavour in Flavour::ALL {
        let server = Setup::new(flavour).line("save 3600 1000000").start();
        // Where the snapshot is to be there is a folder.
        let in_the_way = server.folder().join("dump.rdb");
        let saves = |status: &str| {
            eventually("the snapshot is tried", || {
                // One may be under way.
                server.command(&["BGSAVE"]);
                (server.info("rdb_last_bgsave_status")? == status).then_some(())
            });
        };
        let fail = || {
            fs::create_dir_all(in_the_way.join("in the way")).expect("the folder is ours");
            saves("err");
            until_it_says(&server, "MISCONF");
        };
        let mend = || {
            fs::remove_dir_all(&in_the_way).expect("it is there");
            saves("ok");
        };
        endure(at(&server), KEYS, Fault { fail, mend: Some(mend), most: KEPT });
    }
}

#[test]
fn redis_misses_its_replicas() {
    for server in every_server() {
        let fail = || {
            configure(&server, "min-replicas-to-write", "1");
            until_it_says(&server, "NOREPLICAS");
        };
        let mend = Some(|| configure(&server, "min-replicas-to-write", "0"));
        endure(at(&server), KEYS, Fault { fail, mend, most: KEPT });
    }
}

#[test]
fn redis_is_busy_with_somebody_elses_script() {
    for server in every_server() {
        configure(&server, "busy-reply-threshold", "5");
        let mut somebody = server.client();
        let fail = || {
            let mut command = Vec::new();
            write_command(&mut command, &["EVAL", "while true do end", "0"]);
            somebody.send(&command);
            until_it_says(&server, "BUSY");
        };
        let mend = Some(|| server.command(&["SCRIPT", "KILL"]).ok());
        endure(at(&server), KEYS, Fault { fail, mend, most: KEPT });
    }
}

#[test]
fn redis_loads_its_data() {
    for flavour in Flavour::ALL {
        let server = Setup::new(flavour)
            .line("key-load-delay 100")
            .line("loading-process-events-interval-bytes 1024")
            .start();
        let fill = "for i = 1, 6000 do redis.call('SET', 'key' .. i, string.rep('x', 64)) end";
        server.command(&["EVAL", fill, "0"]);
        let fail = || {
            server.command(&["SAVE"]).ok();
            server.restart();
            until_it_says(&server, "LOADING");
        };
        let mend = || {
            eventually("it is loaded", || {
                let is_loaded = server.info("loading")? == "0";
                is_loaded.then_some(())
            });
        };
        endure(at(&server), KEYS, Fault { fail, mend: Some(mend), most: LOST });
    }
}

#[test]
fn redis_forgets_all_scripts_and_nobody_notices() {
    for server in every_server() {
        let subject = open_at(&server);
        let order = Order::new(1, subject.enroll(lasting(Algorithm::SlidingWindow, 1_000_000)));
        let is_over = AtomicBool::new(false);
        let admitted = AtomicU32::new(0);
        thread::scope(|scope| {
            let load = || {
                while !is_over.load(Ordering::SeqCst) {
                    let claim = subject.charge(&order.denied_on_failure());
                    let back = admitted.fetch_add(1, Ordering::SeqCst).is_multiple_of(4);
                    assert!(!back || subject.refund(&claim));
                }
            };
            let threads = [scope.spawn(load), scope.spawn(load)];
            for flushes in 1..=100 {
                server.command(&["SCRIPT", "FLUSH"]).ok();
                eventually("requests go on", || {
                    (admitted.load(Ordering::SeqCst) > flushes * 8).then_some(())
                });
            }
            is_over.store(true, Ordering::SeqCst);
            assert!(threads.into_iter().all(|thread| thread.join().is_ok()));
        });
        assert_eq!(subject.redis().settled(), 0);
        let admitted = admitted.into_inner();
        let left = 1_000_000 - admitted + admitted.div_ceil(4);
        assert_eq!(subject.remaining(&order), left, "each is charged once");
    }
}

#[test]
fn a_charge_whose_answer_is_lost_is_made_once_at_most_and_admits_nobody() {
    for server in every_server() {
        let proxy = Proxy::start(server.address());
        let settings = settings(Servers::Single(proxy.url()));
        let subject = open(RedisSettings { timeout: TIMEOUT, ..settings });
        let limit = subject.enroll(lasting(Algorithm::TokenBucket, 10));
        let counts = |order: &Order| subject.take_one(&order.costing(0)).decision();
        let mut charged = 0;
        for key in 0..8 {
            let order = Order::new(key, limit).denied_on_failure();
            eventually("Redis counts", || counts(&order));
            proxy.drop_replies();
            assert!(!subject.take_one(&order).is_allowed());
            proxy.cut();
            proxy.heal();
            let left = eventually("Redis counts", || counts(&order)).remaining;
            assert!((9..=10).contains(&left), "{left}");
            charged += 10 - left;
        }
        assert!(charged > 0, "at least one ran before it was lost");
    }
}

#[test]
fn a_slot_whose_answer_came_too_late_is_released() {
    for server in every_server() {
        let proxy = Proxy::start(server.address());
        let settings = settings(Servers::Single(proxy.url()));
        let subject = open(RedisSettings { timeout: TIMEOUT, ..settings });
        let order = Order::new(1, subject.enroll(lasting(Algorithm::Concurrency, 2)));
        let order = order.denied_on_failure();
        let left = || subject.take_one(&order.costing(0)).decision().map(|it| it.remaining);
        eventually("Redis counts", left);
        for _ in 0..5 {
            proxy.delay_replies(3 * TIMEOUT);
            // The last of them when the server is left alone already.
            (0..4).for_each(|_| assert!(!subject.take_one(&order).is_allowed()));
            proxy.heal();
            eventually("both slots are free", || (left() == Some(2)).then_some(()));
        }
    }
}

#[test]
fn a_slot_that_is_released_while_redis_is_away_is_free_when_it_is_back() {
    for server in every_server() {
        let subject = open(RedisSettings { timeout: TIMEOUT, ..at(&server) });
        let order = Order::new(1, subject.enroll(lasting(Algorithm::Concurrency, 2)));
        let order = order.denied_on_failure();
        let left = || subject.take_one(&order.costing(0)).decision().map(|it| it.remaining);
        eventually("Redis counts", left);
        let hold = || eventually("a slot is held", || subject.claim(&[order]).remove(0).1);
        let held = [hold(), hold()];
        server.stop();
        assert!(held.iter().all(|slot| subject.store.refund(slot).wait().is_none()));
        server.cont();
        eventually("both slots are free", || (left() == Some(2)).then_some(()));
    }
}

#[test]
fn a_slot_that_nobody_waited_for_is_released() {
    for server in every_server() {
        let subject = open_at(&server);
        let order = Order::new(1, subject.enroll(lasting(Algorithm::Concurrency, 100)));
        subject.remaining(&order);
        (0..100).for_each(|_| drop(order.with_charge(|charge| subject.store.take(&[*charge]))));
        eventually("all slots are free", || (subject.remaining(&order) == 100).then_some(()));
    }
}

#[test]
fn fifty_nodes_whose_redis_is_gone_dial_no_more_than_ten_times_a_second_each() {
    const NODES: u64 = 50;
    let server = Server::start(Flavour::Redis);
    let proxy = Proxy::start(server.address());
    let settings = RedisSettings { timeout: TIMEOUT, ..settings(Servers::Single(proxy.url())) };
    let nodes: Vec<_> = (0..NODES).map(|_| open(settings.clone())).collect();
    let order = |node: &crate::support::Subject<_>| {
        Order::new(1, node.enroll(lasting(Algorithm::TokenBucket, 1_000_000))).denied_on_failure()
    };
    let all_count =
        || nodes.iter().all(|node| node.take_one(&order(node)).decision().is_some()).then_some(());
    eventually("all count", all_count);
    proxy.refuse();
    proxy.cut();
    let before = proxy.dials();
    let clock = tollgate_store::Clock::system();
    let begin = clock.now();
    eventually("some seconds are over", || {
        assert!(nodes.iter().all(|node| !node.take_one(&order(node)).is_allowed()));
        (clock.now().since(begin) > Micros::from_secs(2)).then_some(())
    });
    let seconds = clock.now().since(begin).as_micros() / 1_000_000 + 1;
    let dials = proxy.dials() - before;
    assert!(dials <= NODES * 10 * seconds, "{dials} dials in {seconds} seconds");
    assert!(dials >= NODES, "each has tried: {dials}");
    proxy.heal();
    let took = time(|| eventually("all count again", all_count));
    assert!(took <= Micros::from_secs(2), "{took:?}");
    assert!(proxy.open() <= NODES, "{} connections", proxy.open());
}

#[test]
fn the_master_under_sentinels_is_lost() {
    for flavour in Flavour::ALL {
        let sentinel = Sentinel::start(flavour);
        let (master, nodes) = (sentinel.name().to_owned(), sentinel.urls());
        let fail = || assert_eq!(sentinel.kill_master(), 0);
        let settings = settings(Servers::Sentinel { master, nodes });
        endure(settings, KEYS, Fault { fail, mend: None::<fn()>, most: LOST });
    }
}

/// Numbers none of whose bytes is a letter, so that they are all written alike.
pub(super) const NUMBERS: std::ops::Range<u64> = 128..256;

/// Whether a key is one that the master at 0 has at first.
pub(super) fn is_of_the_first(cluster: &Cluster, settings: &RedisSettings, key: u64) -> bool {
    let bytes = key.to_le_bytes().map(|byte| format!("%{byte:02X}")).concat();
    cluster.slot(&format!("{}:{{{bytes}}}:limit", settings.prefix)) < 5_461
}

pub(super) fn keys_of_the_first(cluster: &Cluster, settings: &RedisSettings) -> [u64; 4] {
    let mut keys = NUMBERS.filter(|key| is_of_the_first(cluster, settings, *key));
    std::array::from_fn(|_| keys.next().expect("a third of all"))
}

#[test]
fn a_master_of_a_cluster_is_lost() {
    for flavour in Flavour::ALL {
        let cluster = Cluster::start(flavour);
        let settings = settings(Servers::Cluster(cluster.urls()));
        let keys = keys_of_the_first(&cluster, &settings);
        let fail = || assert_eq!(cluster.kill_master_of(0), 0);
        endure(settings, keys, Fault { fail, mend: None::<fn()>, most: LOST });
    }
}

#[test]
fn what_other_slots_took_is_given_back_when_one_cannot_be_asked() {
    let cluster = Cluster::start(Flavour::Redis);
    let settings = RedisSettings { timeout: TIMEOUT, ..settings(Servers::Cluster(cluster.urls())) };
    let failing = keys_of_the_first(&cluster, &settings)[0];
    let is_other = |key: &u64| !is_of_the_first(&cluster, &settings, *key);
    let others: Vec<u64> = NUMBERS.filter(is_other).take(20).collect();
    let subject = open(settings);
    for algorithm in Algorithm::ALL {
        let limit = subject.enroll(lasting(algorithm, 3));
        let bad = Order::new(failing, limit).denied_on_failure();
        let good: Vec<Order> = others.iter().map(|key| Order { key: *key, ..bad }).collect();
        let left = |order: &Order| {
            let taken = subject.take_one(&order.costing(0));
            taken.decision().map(|it| it.remaining)
        };
        for order in &good {
            eventually("Redis counts", || left(order));
        }
        cluster.nodes()[0].stop();
        let mut counted = Vec::new();
        for order in &good {
            let taken = subject.take(&[order.costing(2), bad]);
            assert!(!taken[1].is_allowed(), "{algorithm}");
            // What took too long on a busy machine may have run, and stays charged.
            counted.push(taken[0].decision().is_some());
        }
        assert!(counted.contains(&true), "{algorithm}");
        cluster.nodes()[0].cont();
        for (order, is_counted) in good.iter().zip(counted) {
            eventually("all of it is back", || {
                let left = left(order)?;
                (left == 3 || !is_counted).then_some(())
            });
            subject.reset(order.key);
        }
        subject.reset(bad.key);
    }
}

#[test]
fn a_cluster_is_down() {
    for flavour in Flavour::ALL {
        let cluster = Cluster::start(flavour);
        let settings = settings(Servers::Cluster(cluster.urls()));
        let keys = keys_of_the_first(&cluster, &settings);
        let server = &cluster.nodes()[0];
        let fail = || server.command(&["CLUSTER", "DELSLOTS", "0"]).ok();
        let mend = || {
            server.command(&["CLUSTER", "ADDSLOTS", "0"]).ok();
            cluster.until_whole();
        };
        endure(settings, keys, Fault { fail, mend: Some(mend), most: KEPT });
    }
}

#[test]
fn slots_that_move_under_load_cost_nobody_anything() {
    const LIMIT: u32 = 3_000;
    for flavour in Flavour::ALL {
        let cluster = Cluster::start(flavour);
        let settings = settings(Servers::Cluster(cluster.urls()));
        let subject = open(settings.clone());
        let values = [Value::new(b"anna")];
        let slot = cluster.slot("{anna}");
        // Two limits of one subject are one call, but for the moment in which their keys are apart.
        let limits =
            [lasting(Algorithm::TokenBucket, LIMIT), lasting(Algorithm::SlidingLog, LIMIT)]
                .map(|limit| subject.enroll(limit));
        let take = || {
            let charge = |(name, limit)| Charge {
                on_failure: OnFailure::Deny,
                ..Charge::new(Key { limit: name, values: &values }, limit)
            };
            let charges = [charge(("first", &limits[0])), charge(("second", &limits[1]))];
            subject.store.take(&charges).wait().taken().iter().all(Taken::is_allowed)
        };
        assert!(take());
        let (admitted, is_over) = (AtomicU32::new(1), AtomicBool::new(false));
        thread::scope(|scope| {
            let load = || {
                while !is_over.load(Ordering::SeqCst) {
                    if take() {
                        admitted.fetch_add(1, Ordering::SeqCst);
                    }
                }
            };
            let threads = [scope.spawn(load), scope.spawn(load)];
            for turn in 0..6 {
                let to = (cluster.master_of(slot) + 1) % 3;
                let migration = cluster.begin_migration(slot, to);
                // One key there and the other here, for a while.
                migration.move_keys(1);
                let before = admitted.load(Ordering::SeqCst);
                eventually("requests go on", || {
                    let now = admitted.load(Ordering::SeqCst);
                    (now >= before + 20 || now >= LIMIT).then_some(())
                });
                migration.finish();
                assert_eq!(subject.redis().settled(), 0, "turn {turn}");
            }
            eventually("all is spent", || (admitted.load(Ordering::SeqCst) >= LIMIT).then_some(()));
            is_over.store(true, Ordering::SeqCst);
            assert!(threads.into_iter().all(|thread| thread.join().is_ok()));
        });
        assert_eq!(subject.redis().settled(), 0);
        assert_eq!(admitted.into_inner(), LIMIT);
        assert!(!take());
    }
}
