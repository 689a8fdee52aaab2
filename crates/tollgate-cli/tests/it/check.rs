//! `tollgate check`, asking a real server.

use std::path::Path;

use crate::support::server::Server;
use crate::{Folder, tollgate};

#[test]
fn a_lease_is_told_so_that_it_can_be_given_back() {
    let folder = Folder::new();
    let policy = "
listen: { http: 127.0.0.1:0 }
limits: [{ name: jobs, per: [worker], concurrency: 1 }]
";
    let server = Server::start(Path::new(&folder.write("policy.yaml", policy)));
    let address = format!("http://{}", server.address("http"));
    let ask = || tollgate(&["check", "--server", &address, "worker=7"]);
    let held = ask();
    assert_eq!(held.code, Some(0), "{}", held.stderr);
    let lease = held.stdout.lines().find_map(|line| line.strip_prefix("  lease: "));
    let lease = lease.unwrap_or_else(|| panic!("no lease in {:?}", held.stdout));
    let denied = ask();
    assert_eq!(denied.code, Some(3), "{}", denied.stderr);
    assert!(!denied.stdout.contains("lease"), "{}", denied.stdout);
    let body = format!(r#"{{"lease": "{lease}"}}"#);
    assert_eq!(server.post("http", "/v1/release", &body).status, 200);
    assert_eq!(ask().code, Some(0));
}

#[test]
fn a_wait_is_told_as_people_say_it_and_to_programs_exactly() {
    let folder = Folder::new();
    let policy = "
listen: { http: 127.0.0.1:0 }
limits: [{ name: api, rate: 1/hour, algorithm: token_bucket }]
";
    let server = Server::start(Path::new(&folder.write("policy.yaml", policy)));
    let address = format!("http://{}", server.address("http"));
    let ask = |more: &[&str]| tollgate(&[&["check", "--server", &address], more].concat());
    assert_eq!(ask(&[]).code, Some(0));
    let denied = ask(&[]).stdout;
    let first = denied.lines().next().unwrap_or_default();
    let waits = ["denied; it would be allowed in 1h", "denied; it would be allowed in 5"];
    assert!(waits.iter().any(|wait| first.starts_with(wait)), "{denied}");
    let json = ask(&["--output", "json"]).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert!(json["retry_after_ms"].as_u64().is_some_and(|wait| wait > 3_000_000), "{json}");
}

#[test]
fn an_attribute_that_is_given_twice_is_a_mistake() {
    let run = tollgate(&["check", "--server", "http://127.0.0.1:1", "user=1", "user=2"]);
    assert_eq!(run.code, Some(2));
    assert!(run.stderr.contains("\"user\" is given twice"), "{}", run.stderr);
}
