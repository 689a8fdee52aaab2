//! Six nodes.

use tollgate_harness::{Client, Cluster, Server};

use crate::{is_there, on_both, text};

/// What a node says to a client that should go elsewhere.
fn sent_to(node: &Server, kind: &str, slot: u16) -> String {
    format!("{kind} {slot} {}", node.address())
}

#[test]
fn every_slot_is_served_by_one_node_and_the_others_know_which() {
    on_both(|flavour| {
        let cluster = Cluster::start(flavour);
        assert_eq!(cluster.urls().len(), 6);
        for (key, slot) in [("123456789", 12_739), ("{user}:a", 5_474), ("{user}:b", 5_474)] {
            assert_eq!(cluster.slot(key), slot);
            let master = cluster.master_of(slot);
            cluster.nodes()[master].command(&["SET", key, "value"]).ok();
            for (place, node) in cluster.nodes().iter().enumerate().filter(|it| it.0 != master) {
                let moved = node.command(&["GET", key]);
                let expected = sent_to(&cluster.nodes()[master], "MOVED", slot);
                assert_eq!(moved.error(), expected, "node {place}");
            }
        }
        let processes: Vec<u32> = cluster.nodes().iter().map(Server::process_id).collect();
        assert!(processes.iter().all(|process| is_there(*process)));
        drop(cluster);
        assert!(!processes.iter().any(|process| is_there(*process)));
    });
}

#[test]
fn a_killed_master_is_replaced_by_its_replica_and_comes_back_as_one() {
    on_both(|flavour| {
        let cluster = Cluster::start(flavour);
        let slot = cluster.slot("key");
        let killed = cluster.kill_master_of(slot);
        let master = cluster.master_of(slot);
        assert_eq!(master, killed + 3, "the killed one's replica");
        cluster.nodes()[master].command(&["SET", "key", "value"]).ok();
        cluster.nodes()[killed].restart();
        cluster.until_whole();
        assert_eq!(cluster.nodes()[killed].info("role").as_deref(), Some("slave"));
        assert_eq!(cluster.failover(slot), killed);
        assert_eq!(cluster.master_of(slot), killed);
        assert_eq!(cluster.nodes()[killed].command(&["GET", "key"]), text("value"));
    });
}

#[test]
fn while_a_slot_moves_clients_are_sent_after_its_keys() {
    on_both(|flavour| {
        let cluster = Cluster::start(flavour);
        let slot = cluster.slot("{user}");
        let from = cluster.master_of(slot);
        let to = (from + 1) % 3;
        let [old, new] = [from, to].map(|node| &cluster.nodes()[node]);
        old.command(&["MSET", "{user}:a", "1", "{user}:b", "2"]).ok();

        let migration = cluster.begin_migration(slot, to);
        assert_eq!(migration.from(), from);
        assert_eq!(old.command(&["GET", "{user}:a"]), text("1"), "what is there is served");
        let new_key = old.command(&["SET", "{user}:c", "3"]);
        assert_eq!(new_key.error(), sent_to(new, "ASK", slot));
        let unasked = new.command(&["SET", "{user}:c", "3"]);
        assert_eq!(unasked.error(), sent_to(old, "MOVED", slot));
        let mut asking = Client::tcp(new.address()).unwrap();
        asking.command(&["ASKING"]).ok();
        asking.command(&["SET", "{user}:c", "3"]).ok();

        assert_eq!(migration.move_keys(1), 1);
        let both = ["MGET", "{user}:a", "{user}:b"];
        assert!(old.command(&both).error().starts_with("TRYAGAIN"));

        migration.finish();
        assert_eq!(cluster.master_of(slot), to);
        assert_eq!(old.command(&both).error(), sent_to(new, "MOVED", slot));
        let kept = new.command(&["MGET", "{user}:a", "{user}:b", "{user}:c"]);
        assert_eq!(kept.list(), ["1", "2", "3"].map(text));
        cluster.migrate_slot(slot, from);
        assert_eq!(old.command(&["GET", "{user}:c"]), text("3"));
    });
}
