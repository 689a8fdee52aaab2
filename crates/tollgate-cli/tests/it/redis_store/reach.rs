//! Every way of reaching Redis that a policy can tell of.

use std::path::Path;
use std::process::Command;

use tollgate_harness::{Cluster, Flavour, Sentinel, Server, Setup};

use super::{Node, PAGE, has_key, patient};
use crate::Folder;
use crate::support::eventually;

const LIMITS: &str = "  - { name: api, per: [user], rate: 2/year, algorithm: token_bucket }\n";

const PASSWORD: &str = "pa55word";

/// Whether a node that is started like this counts, and says nothing of the password.
fn check(node: &Node) {
    node.until_redis_is_there();
    assert_eq!(node.statuses("user=a"), [200, 200, 429]);
    check_discretion(node);
}

fn check_discretion(node: &Node) {
    let told = node.admin("GET", "/v1/policy", "");
    assert_eq!(told.status, 200);
    for text in node.server.log().iter().chain([&told.body]) {
        assert!(!text.contains(PASSWORD), "{text}");
    }
}

#[test]
fn password_user_database_prefix_and_socket_are_taken_from_the_policy() {
    for flavour in Flavour::ALL {
        let with_password = Setup::new(flavour).password(PASSWORD).start();
        let rights =
            format!("user limiter on >{PASSWORD} ~limits:* resetchannels +@all\nuser default off");
        let with_users = Setup::new(flavour).users(&rights).start();
        let (address, socket) = (with_users.address(), with_users.socket());
        let socket = socket.display();
        let prefixed = "timeout: 5s, prefix: limits";
        for (server, database, key, store) in [
            (&with_password, "0", "tollgate:{a}:api", patient(&with_password.url())),
            (&with_password, "3", "tollgate:{a}:api", patient(&(with_password.url() + "/3"))),
            (
                &with_users,
                "0",
                "limits:{a}:api",
                format!(
                    "{{ redis: {{ url: 'redis://limiter:{PASSWORD}@{address}', {prefixed} }} }}"
                ),
            ),
            (
                &with_users,
                "2",
                "limits:{a}:api",
                format!(
                    "{{ redis: {{ url: 'redis+unix://{socket}?user=limiter&pass={PASSWORD}&db=2', {prefixed} }} }}"
                ),
            ),
        ] {
            let node = Node::spawn(&store, LIMITS);
            check(&node);
            server.command(&["SELECT", database]).ok();
            assert!(has_key(server, key), "{key} in {database}, {flavour:?}");
            server.command(&["SELECT", "0"]).ok();
        }
    }
}

#[test]
fn tls_is_spoken_to_a_server_whose_certificate_the_system_trusts() {
    let server = Setup::new(Flavour::Redis).password(PASSWORD).tls().start();
    let authority = &server.certificates().unwrap().authority;
    let store = patient(&server.url());
    let node = Node::spawn_in(Folder::new(), &store, LIMITS, |serve| {
        serve.env("SSL_CERT_FILE", authority);
    });
    check(&node);
    let distrustful = Node::spawn(&store, LIMITS);
    distrustful.server.says("redis is unreachable");
    assert!(!distrustful.reaches_redis());
    check_discretion(&distrustful);
}

#[test]
fn a_password_is_told_to_nobody_when_it_is_wrong_or_nobody_is_there_to_hear_it() {
    let server = Setup::new(Flavour::Redis).password("another").start();
    let absent = format!("redis://user:{PASSWORD}@127.0.0.1:{}", tollgate_harness::free_port());
    let wrong = format!("redis://:{PASSWORD}@{}", server.address());
    for url in [absent, wrong] {
        let node = Node::spawn(&patient(&url), LIMITS);
        node.server.says("redis is unreachable");
        check_discretion(&node);
    }
}

#[test]
fn sentinels_lead_to_the_master_and_to_the_next_one() {
    for flavour in Flavour::ALL {
        let sentinels = Sentinel::start(flavour);
        let urls = sentinels.urls().join(", ");
        let master = sentinels.name();
        let node = Node::start(
            &format!(
                "{{ redis: {{ sentinel: {{ master: {master}, nodes: [{urls}] }}, timeout: 5s }} }}"
            ),
            LIMITS,
        );
        check(&node);
        assert!(has_key(&sentinels.servers()[sentinels.master()], "tollgate:{a}:api"));
        let master = sentinels.failover();
        eventually("the next master is found", || {
            // Whoever is asked for the first time is counted by the next master.
            node.check("user=b");
            has_key(&sentinels.servers()[master], "tollgate:{b}:api").then_some(())
        });
    }
}

#[test]
fn a_cluster_is_found_through_one_of_its_servers() {
    for flavour in Flavour::ALL {
        let cluster = Cluster::start(flavour);
        let store = format!("{{ redis: {{ cluster: ['{}'], timeout: 5s }} }}", cluster.urls()[0]);
        let node = Node::start(&store, LIMITS);
        let users: Vec<String> = (0..20).map(|user| format!("u{user}")).collect();
        for user in &users {
            assert_eq!(node.statuses(&format!("user={user}")), [200, 200, 429]);
        }
        let has_some = |server: &Server| {
            let has = |user: &&String| {
                let key = format!("tollgate:{{{user}}}:api");
                server
                    .try_command(&["EXISTS", &key])
                    .is_ok_and(|it| it == tollgate_harness::Reply::Integer(1))
            };
            users.iter().any(|user| has(&user))
        };
        assert!(cluster.nodes()[..3].iter().all(has_some), "all masters have some");
    }
}

#[test]
fn every_policy_of_the_page_is_one() {
    let policies = PAGE.split("```yaml\n").skip(1).map(|rest| rest.split_once("```").unwrap().0);
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `store:")?.split('`').next());
    let rows = rows.map(|store| format!("store:{store}\n"));
    let all: Vec<String> = policies.map(str::to_owned).chain(rows).collect();
    assert!(all.len() >= 6, "only {} were found", all.len());
    for text in all {
        let folder = Folder::with(&[("policy.yaml", &text)]);
        let run = folder.tollgate(&["validate", "policy.yaml"]);
        assert_eq!(run.code, Some(0), "{text}{}", run.stderr);
    }
}

#[test]
fn two_nodes_as_the_readme_starts_them_share_one_limit() {
    let readme = include_str!("../../../../../README.md");
    let (_, rest) = readme.split_once("cat > node.yaml <<'YAML'\n").unwrap();
    let policy = rest.split_once("\nYAML\n").unwrap().0;
    let redis = Server::start(Flavour::Redis);
    // For machines that are busy with other tests, and for any minute of the hour.
    let policy = policy.replace("redis://127.0.0.1:6379", &patient(&redis.url()));
    let policy = policy.replace("5/minute", "5/year");
    let folder = Folder::with(&[("node.yaml", &policy)]);
    let start = || crate::support::server::Server::start(Path::new(&folder.path("node.yaml")));
    let nodes = [start(), start()];
    eventually("both count in Redis", || {
        (redis.command(&["ZCARD", "tollgate:{%}:%nodes"]).integer() == 2).then_some(())
    });
    let ask = |turn: usize| nodes[turn % 2].get("http", "/v1/check?user=42").status;
    let allowed = (0..10).map(ask).filter(|status| *status == 200).count();
    assert_eq!(allowed, 5);
}

#[test]
fn keys_in_redis_look_as_the_page_shows_them() {
    let redis = Server::start(Flavour::Redis);
    let node = Node::start(
        &patient(&redis.url()),
        "  - { name: api, per: [client_ip], rate: 100/minute }\n",
    );
    assert_eq!(node.statuses("client_ip=203.0.113.7"), [200]);
    let (_, session) = PAGE.split_once("$ redis-cli ").unwrap();
    let (line, shown) = session.split_once('\n').unwrap();
    let shown = shown.split_once("```").unwrap().0;
    let line = format!("redis-cli -p {} {line}", redis.port());
    let output = Command::new("sh").args(["-c", &line]).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), shown);
}
