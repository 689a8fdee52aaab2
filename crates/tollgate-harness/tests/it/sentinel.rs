//! Sentinels and what they watch.

use tollgate_harness::{Sentinel, Server, eventually};

use crate::{is_there, on_both, text};

#[test]
fn replicas_follow_the_master_that_all_sentinels_name() {
    on_both(|flavour| {
        let sentinel = Sentinel::start(flavour);
        assert_eq!(sentinel.master(), 0);
        sentinel.servers()[0].command(&["SET", "key", "value"]).ok();
        for replica in &sentinel.servers()[1..] {
            assert!(replica.command(&["SET", "key", "other"]).error().starts_with("READONLY"));
            eventually("the value is replicated", || {
                (replica.command(&["GET", "key"]) == text("value")).then_some(())
            });
        }
        assert_eq!(sentinel.urls().len(), 3);
        for one in sentinel.sentinels() {
            let told = one.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", sentinel.name()]);
            let port = sentinel.servers()[0].port().to_string();
            assert_eq!(told.list(), [text("127.0.0.1"), text(&port)]);
        }
        let all = sentinel.servers().iter().chain(sentinel.sentinels());
        let processes: Vec<u32> = all.map(Server::process_id).collect();
        drop(sentinel);
        assert!(!processes.iter().any(|process| is_there(*process)));
    });
}

#[test]
fn a_killed_master_is_replaced_and_comes_back_as_a_replica() {
    on_both(|flavour| {
        let sentinel = Sentinel::start(flavour);
        let killed = sentinel.kill_master();
        assert_eq!(killed, 0);
        let master = sentinel.master();
        assert_ne!(master, killed);
        sentinel.servers()[master].command(&["SET", "key", "value"]).ok();
        sentinel.servers()[killed].restart();
        sentinel.until_whole();
        assert_eq!(sentinel.servers()[killed].info("role").as_deref(), Some("slave"));
        assert_eq!(sentinel.servers()[killed].command(&["GET", "key"]), text("value"));
    });
}

#[test]
fn a_replica_is_made_the_master_when_asked_for() {
    on_both(|flavour| {
        let sentinel = Sentinel::start(flavour);
        let master = sentinel.failover();
        assert_ne!(master, 0);
        assert_eq!(sentinel.master(), master);
        sentinel.servers()[master].command(&["SET", "key", "value"]).ok();
        sentinel.until_whole();
        assert!(sentinel.servers()[0].command(&["SET", "a", "b"]).error().starts_with("READONLY"));
    });
}
