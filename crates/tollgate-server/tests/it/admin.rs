//! The admin door, and the policy that is loaded anew.

use std::fs;
use std::os::unix::fs::symlink;

use tollgate_server::{Door, Server, Source};

use crate::server::{Folder, Running, eventually, with_doors};

const DOORS: &[&str] = &["http", "admin"];

fn policy(rate: &str) -> String {
    format!("limits: [{{ name: api, per: [user], rate: {rate}, algorithm: fixed_window }}]")
}

fn limit_of(running: &Running, user: &str) -> u64 {
    let answer = running.ask(Door::Http, &format!("GET /v1/check?user={user}&cost=0"), "");
    answer.json()["limits"][0]["limit"].as_u64().expect("a limit")
}

#[test]
fn health_is_told_to_everybody() {
    let running = Running::start(DOORS, &policy("5/day"));
    for path in ["/healthz", "/readyz"] {
        assert_eq!(
            running.ask(Door::Admin, &format!("GET {path}\nhost: evil.example"), "").status,
            200
        );
        assert_eq!(running.ask(Door::Admin, &format!("POST {path}"), "").status, 405);
    }
}

#[test]
fn a_policy_is_loaded_when_it_is_asked_for_and_a_bad_one_is_not() {
    let running = Running::start(DOORS, &policy("5/day"));
    assert_eq!(limit_of(&running, "a"), 5);
    running.folder.write("policy.yaml", &with_doors(DOORS, &policy("7/day")));
    assert_eq!(running.ask(Door::Admin, "POST /v1/reload", "").status, 200);
    assert_eq!(limit_of(&running, "a"), 7);

    running.folder.write("policy.yaml", &with_doors(DOORS, &policy("7/dya")));
    let answer = running.ask(Door::Admin, "POST /v1/reload", "");
    assert_eq!(answer.status, 422);
    assert!(answer.json()["detail"].as_str().unwrap().contains("7/dya"), "{}", answer.body);
    assert_eq!(limit_of(&running, "a"), 7);
    let shown = running.ask(Door::Admin, "GET /v1/policy", "").json();
    assert!(shown["error"].as_str().unwrap().contains("7/dya"));
    assert_eq!(shown["limits"][0]["rates"][0], "7/day");
}

#[test]
fn what_was_consumed_stays_consumed() {
    let running = Running::start(DOORS, &policy("5/day"));
    for _ in 0..5 {
        assert_eq!(running.ask(Door::Http, "GET /v1/check?user=a", "").status, 200);
    }
    running.folder.write("policy.yaml", &with_doors(DOORS, &policy("6/day")));
    assert_eq!(running.ask(Door::Admin, "POST /v1/reload", "").status, 200);
    let statuses = [(); 2].map(|()| running.ask(Door::Http, "GET /v1/check?user=a", "").status);
    assert_eq!(statuses, [200, 429]);
}

#[test]
fn a_file_that_changes_is_loaded_by_itself_also_through_a_swapped_link() {
    let folder = Folder::new();
    // As Kubernetes mounts a ConfigMap: the file is a link into a folder that is a link.
    folder.write("..first/policy.yaml", &with_doors(DOORS, &policy("5/day")));
    folder.write("..second/policy.yaml", &with_doors(DOORS, &policy("7/day")));
    symlink("..first", folder.path("..data")).unwrap();
    symlink("..data/policy.yaml", folder.path("policy.yaml")).unwrap();
    let running = Running::at(folder);
    assert_eq!(limit_of(&running, "a"), 5);
    symlink("..second", running.folder.path("..data.new")).unwrap();
    fs::rename(running.folder.path("..data.new"), running.folder.path("..data")).unwrap();
    eventually("the other policy is in force", || limit_of(&running, "a") == 7);
}

#[test]
fn descriptors_are_loaded_with_the_policy_and_one_bad_file_changes_nothing() {
    let files = |count: u32| {
        format!(
            "domain: shop\ndescriptors: [{{key: user, rate_limit: {{unit: day, \
             requests_per_unit: {count}}}}}]\n"
        )
    };
    let policy = with_doors(DOORS, "descriptors: ./envoy/\nlimits: []");
    let running = Running::with_files(&policy, &[("envoy/shop.yaml", &files(2))]);
    let limit = || {
        let call = r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "a"}], "hitsAddend": "0"}]}"#;
        let answer = running.ask(Door::Http, "POST /json", call).json();
        answer["statuses"][0]["currentLimit"]["requestsPerUnit"].as_u64()
    };
    assert_eq!(limit(), Some(2));
    running.folder.write("envoy/shop.yaml", &files(3));
    running.folder.write("envoy/bad.yaml", "domain: bad\ndescriptors: [{key: 5, rat: 1}]\n");
    assert_eq!(running.ask(Door::Admin, "POST /v1/reload", "").status, 422);
    assert_eq!(limit(), Some(2));
    fs::remove_file(running.folder.path("envoy/bad.yaml")).unwrap();
    assert_eq!(running.ask(Door::Admin, "POST /v1/reload", "").status, 200);
    assert_eq!(limit(), Some(3));
}

#[test]
fn a_page_of_another_site_cannot_speak_for_the_operator() {
    let running = Running::start(DOORS, &policy("5/day"));
    let ask =
        |fields: &str| running.ask(Door::Admin, &format!("POST /v1/reload\n{fields}"), "").status;
    assert_eq!(ask("host: evil.example"), 403);
    assert_eq!(ask("host: localhost\nhost: localhost"), 400);
    assert_eq!(ask("host: localhost\norigin: http://evil.example"), 403);
    assert_eq!(ask("host: localhost\norigin: null"), 403);
    assert_eq!(ask("host: localhost\nsec-fetch-site: cross-site"), 403);
    assert_eq!(ask("host: localhost\norigin: http://localhost"), 200);
    assert_eq!(ask("host: 127.0.0.1:8082"), 200);
    assert_eq!(ask("host: [::1]:8082"), 200);
}

#[test]
fn a_token_is_asked_for_where_there_is_one() {
    let policy = "
listen: { admin: { address: 127.0.0.1:0, token_file: token.txt } }
limits: []
";
    let running = Running::with_files(policy, &[("token.txt", "s3cret")]);
    let ask =
        |fields: &str| running.ask(Door::Admin, &format!("GET /v1/policy{fields}"), "").status;
    assert_eq!(ask(""), 401);
    assert_eq!(ask("\nauthorization: Bearer s3cre"), 401);
    assert_eq!(ask("\nauthorization: Bearer s3cret"), 200);
    // A token that is changed on disk is asked for without a restart.
    running.folder.write("token.txt", "another");
    eventually("the new token opens", || ask("\nauthorization: Bearer another") == 200);
    assert_eq!(ask("\nauthorization: Bearer s3cret"), 401);
}

#[test]
fn an_admin_door_that_others_can_reach_and_that_asks_for_nothing_is_not_opened() {
    let folder = Folder::new();
    folder.write("policy.yaml", "listen: { admin: 0.0.0.0:0 }\nlimits: []\n");
    let error = Server::bind(Source::File(folder.path("policy.yaml"))).expect_err("it is open");
    assert!(error.to_string().contains("token_file"), "{error}");
}

#[test]
fn a_server_does_not_start_with_what_it_cannot_use() {
    for (policy, told) in [
        ("limits: [", "policy.yaml:1"),
        (
            "listen: { http: { address: 127.0.0.1:0, token_file: none.txt } }\nlimits: []",
            "none.txt",
        ),
        (
            "listen: { http: { address: 127.0.0.1:0, token_file: empty.txt } }\nlimits: []",
            "holds no token",
        ),
        (
            "listen: { http: { address: 127.0.0.1:0, tls: { cert: empty.txt, key: empty.txt } } }\nlimits: []",
            "holds no certificate",
        ),
        ("descriptors: ./none/\nlimits: []", "none"),
    ] {
        let folder = Folder::new();
        folder.write("policy.yaml", policy);
        folder.write("empty.txt", "\n");
        let error = Server::bind(Source::File(folder.path("policy.yaml"))).expect_err(policy);
        assert!(error.to_string().contains(told), "{error}");
    }
}
