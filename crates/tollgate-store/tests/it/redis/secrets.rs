//! Nodes that do not know yet what secret values are hashed with.

use tollgate_core::{Algorithm, Key, Value};
use tollgate_harness::{Cluster, Flavour, Reply, Server, eventually};
use tollgate_store::redis::Servers;
use tollgate_store::{Charge, Enrolled, OnFailure, Store, Taken};

use super::{every_server, lasting, open};
use crate::places::settings;
use crate::support::Subject;

fn take(subject: &Subject<Store>, value: Value<'_>, limit: &Enrolled) -> Taken {
    let key = Key { limit: "api", values: &[value] };
    let charge = Charge { on_failure: OnFailure::Deny, ..Charge::new(key, limit) };
    subject.store.take(&[charge]).wait().taken()[0]
}

#[test]
fn secrets_are_counted_in_redis_once_all_nodes_hash_them_alike_and_not_before() {
    let cluster = Cluster::start(Flavour::Redis);
    let settings = settings(Servers::Cluster(cluster.urls()));
    // That a part is missing is no reason for the others not to serve.
    for node in cluster.nodes() {
        node.command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]).ok();
    }
    let away = cluster.master_of(cluster.slot("{%}"));
    let is_elsewhere =
        |value: &String| cluster.master_of(cluster.slot(&format!("{{{value}}}"))) != away;
    let public = (0..).map(|number| number.to_string()).find(is_elsewhere).unwrap();
    let there = [away, away + 3];
    there.iter().for_each(|node| cluster.nodes()[*node].stop());

    let nodes = [open(settings.clone()), open(settings.clone())];
    let limits = [0, 1].map(|node| nodes[node].enroll(lasting(Algorithm::TokenBucket, 1)));
    let secrets: Vec<String> = (0..20).map(|number| format!("secret {number}")).collect();
    for (node, limit) in nodes.iter().zip(&limits) {
        eventually("what is no secret is counted", || {
            take(node, Value::new(public.as_bytes()), limit).decision()
        });
        for secret in &secrets {
            let taken = take(node, Value::secret(secret.as_bytes()), limit);
            assert_eq!(taken, Taken::Uncounted { is_allowed: false });
        }
    }
    for (number, server) in cluster.nodes().iter().enumerate() {
        if !there.contains(&number) {
            let names = server.command(&["KEYS", &format!("{}:*:api", settings.prefix)]);
            let names: Vec<String> = names.list().iter().map(Reply::text).collect();
            assert!(names.iter().all(|name| name.contains(&format!("{{{public}}}"))), "{names:?}");
        }
    }

    there.iter().for_each(|node| cluster.nodes()[*node].cont());
    cluster.until_whole();
    for secret in &secrets {
        let value = Value::secret(secret.as_bytes());
        let [one, other] = [0, 1].map(|node| {
            let taken = || take(&nodes[node], value, &limits[node]);
            eventually("it is counted", || taken().decision()).is_allowed()
        });
        assert!(one && !other, "{secret} is one key");
    }
}

#[test]
fn a_node_that_is_new_leaves_it_to_those_who_know_what_secrets_are_hashed_with() {
    for server in every_server() {
        let settings = settings(Servers::Single(server.url()));
        let values = [Value::secret(b"a-very-secret-key")];
        let key = Key { limit: "api", values: &values };
        let first = open(settings.clone());
        let text = first.store.key_text(&key);
        let name = format!("{}:{{%}}:%secret", settings.prefix);
        // Emptied, Redis does not know that there are others, and may hear of the new one first.
        let losses: [&[&str]; 2] = [&["DEL", &name], &["FLUSHALL"]];
        for loss in losses.into_iter().cycle().take(10) {
            server.command(loss);
            let new = open(settings.clone());
            eventually("both agree", || (new.store.key_text(&key) == text).then_some(()));
            assert_eq!(first.store.key_text(&key), text, "nobody who knows takes over another");
        }
    }
}

#[test]
fn what_is_no_key_for_secrets_is_replaced_by_the_one_that_is_known() {
    for server in every_server() {
        let settings = settings(Servers::Single(server.url()));
        let values = [Value::secret(b"a-very-secret-key")];
        let key = Key { limit: "api", values: &values };
        let name = format!("{}:{{%}}:%secret", settings.prefix);
        let first = open(settings.clone());
        let text = first.store.key_text(&key);
        let known = server.command(&["GET", &name]).text();
        let across = format!("{}é{}", "a".repeat(15), "a".repeat(15));
        for poison in [across.as_str(), "", "1", &"f".repeat(33), &format!("{known}x")] {
            server.command(&["SET", &name, poison]);
            eventually("it is put anew", || {
                (server.command(&["GET", &name]).text() == known).then_some(())
            });
        }
        assert_eq!(first.store.key_text(&key), text);
    }
}

#[test]
fn nodes_of_which_none_knows_a_key_for_secrets_agree_on_one_in_the_end() {
    let server = Server::start(Flavour::Redis);
    let settings = settings(Servers::Single(server.url()));
    let nodes = format!("{}:{{%}}:%nodes", settings.prefix);
    let soon = server.command(&["TIME"]).list()[0].text() + "000";
    // One that was there a moment ago, and is not any more.
    server.command(&["ZADD", &nodes, &soon, "gone"]);
    let values = [Value::secret(b"a-very-secret-key")];
    let key = Key { limit: "api", values: &values };
    let name = format!("{}:{{%}}:%secret", settings.prefix);
    let both = [open(settings.clone()), open(settings.clone())];
    eventually("one is made", || (server.command(&["EXISTS", &name]).integer() == 1).then_some(()));
    eventually("both agree", || {
        let [one, other] = [0, 1].map(|node| both[node].store.key_text(&key));
        (one == other).then_some(())
    });
}
