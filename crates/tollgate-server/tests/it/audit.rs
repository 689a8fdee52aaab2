//! The audit log.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use bytes::Bytes;
use http::Request;
use http_body_util::Empty;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tollgate_server::{Door, Server, Source};

use crate::grpc::client::{client as grpc_client, request, stop};
use crate::server::{Folder, Running, eventually, with_doors};

const DOORS: &[&str] = &["http", "admin"];

const LIMITS: &str = "
limits:
  - { name: api, per: [user], rate: 1/day, algorithm: fixed_window }
  - { name: key, per: [header:x-api-key], rate: 1/day, algorithm: fixed_window }
";

fn start(observe: &str) -> Running {
    Running::start(DOORS, &format!("observe: {observe}\n{LIMITS}"))
}

fn log(running: &Running) -> PathBuf {
    running.folder.path("audit.jsonl")
}

/// The lines that are there now.
fn lines(running: &Running) -> Vec<Value> {
    let text = fs::read_to_string(log(running)).expect("there is a log");
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

/// The lines of a kind, when there are so many.
fn wait_for(running: &Running, count: usize, kind: &str) -> Vec<Value> {
    let of_kind = || lines(running).into_iter().filter(|line| line["kind"] == kind);
    eventually(&format!("{count} lines of {kind}"), || {
        running.ask(Door::Admin, "GET /healthz", "");
        of_kind().count() >= count
    });
    of_kind().collect()
}

fn check(running: &Running, query: &str) -> u16 {
    running.ask(Door::Http, &format!("GET /v1/check?{query}"), "").status
}

fn metric(running: &Running, name: &str) -> u64 {
    let text = running.ask(Door::Admin, "GET /metrics", "").body;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.expect("it is told").trim().parse().expect("a number")
}

#[test]
fn a_denial_is_a_line_with_its_key_and_its_wait() {
    let running = start("{ audit: audit.jsonl }");
    assert_eq!([check(&running, "user=anna"), check(&running, "user=anna")], [200, 429]);
    let line = wait_for(&running, 1, "denied").remove(0);
    let at = line["at"].as_str().expect("a moment");
    assert_eq!((at.len(), &at[10..11], &at[19..20], &at[23..]), (24, "T", ".", "Z"), "{at}");
    let limit = &line["limits"][0];
    assert_eq!((&limit["key"], &line["sampled"]), (&json!("api:anna"), &json!(1)));
    let wait = limit["retry_after_ms"].as_u64().expect("a wait");
    assert!((1..=86_400_000).contains(&wait), "{wait}");
    assert_eq!(line["door"], "http");
    assert_eq!(line.as_object().expect("an object").len(), 5, "{line}");
    eventually("it is counted", || {
        metric(&running, "tollgate_audit_lines_total{kind=\"denied\"}") == 1
    });
    assert_eq!(metric(&running, "tollgate_audit_dropped_total"), 0);
}

#[tokio::test]
async fn a_denial_tells_by_which_door_it_came() {
    let policy = "
observe: { audit: audit.jsonl }
upstream: http://127.0.0.1:9
descriptors: envoy
limits: [{ name: none, rate: 0/day }]
";
    let policy = with_doors(&["http", "admin", "resp", "grpc", "gateway"], policy);
    let file = "domain: shop\ndescriptors: [{ key: user, rate_limit: { unit: day, \
                requests_per_unit: 0 } }]";
    let running = Running::with_files(&policy, &[("envoy/shop.yaml", file)]);
    let told = |count: usize| {
        let lines = wait_for(&running, count, "denied");
        lines[count - 1]["door"].as_str().expect("a door").to_owned()
    };
    assert_eq!(check(&running, "user=anna"), 429);
    assert_eq!(told(1), "http");
    running.connect(Door::Resp).write_all(b"TG.CHECK user anna\r\n").expect("it reads");
    assert_eq!(told(2), "resp");
    let call =
        json!({"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "a"}]}]});
    grpc_client(&running).await.should_rate_limit(request(&call)).await;
    assert_eq!(told(3), "grpc");
    assert_eq!(running.ask(Door::Gateway, "GET /", "").status, 429);
    assert_eq!(told(4), "gateway");
    // Each stream of a connection is a task of its own.
    let stream = TcpStream::connect(running.address(Door::Gateway)).await.expect("connected");
    let (mut client, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("spoken to");
    tokio::spawn(connection);
    let get = Request::get("http://a/").body(Empty::<Bytes>::new()).expect("a request");
    assert_eq!(client.send_request(get).await.expect("an answer").status(), 429);
    assert_eq!(told(5), "gateway");
    running.ask(Door::Admin, "POST /v1/reload", "");
    assert_eq!(wait_for(&running, 1, "admin")[0]["door"], "admin");
    stop(running).await;
}

#[test]
fn the_log_is_for_its_owner_alone() {
    let running = start("{ audit: audit.jsonl }");
    let mode = fs::metadata(log(&running)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn those_who_are_blocked_or_have_no_known_key_are_written_down_too() {
    let policy = "
observe: { audit: audit.jsonl }
deny: [{ user: mallory }]
tenants: { from: header:x-api-key, file: tenants.yaml }
limits: [{ name: api, per: [tenant], rate: 1/day }]
";
    let tenants = "keys: { sesame: { tenant: acme, tier: pro } }";
    let policy = with_doors(DOORS, policy);
    let running = Running::with_files(&policy, &[("tenants.yaml", tenants)]);
    let address = "client_ip=203.0.113.7";
    assert_eq!(check(&running, &format!("user=mallory&header:x-api-key=sesame&{address}")), 403);
    assert_eq!(check(&running, &format!("header:x-api-key=guess-4711&{address}")), 401);
    assert_eq!(check(&running, "header:x-api-key=sesame"), 200);
    let blocked = wait_for(&running, 1, "blocked");
    assert_eq!(blocked[0]["sender"], json!({"user": "mallory", "client_ip": "203.0.113.7"}));
    let unknown = &wait_for(&running, 1, "unknown_key")[0]["sender"];
    let hash = unknown["header:x-api-key"].as_str().expect("a hash");
    assert!(hash.starts_with("%h") && hash.len() == 34, "{hash}");
    assert_eq!(unknown["client_ip"], "203.0.113.7");
    let text = fs::read_to_string(log(&running)).unwrap();
    assert!(!text.contains("guess-4711") && !text.contains("sesame"), "{text}");
}

#[test]
fn who_is_blocked_is_told_by_hashes_alone_if_the_policy_says_so() {
    let policy = "
observe: { audit: audit.jsonl, keys: hashed }
deny: [{ user: mallory }, { header:x-bot: present }]
";
    let running = Running::start(DOORS, policy);
    assert_eq!(check(&running, "user=mallory&client_ip=203.0.113.7"), 403);
    assert_eq!(check(&running, "header:x-bot=secret&other=value"), 403);
    let blocked = wait_for(&running, 2, "blocked");
    for (line, names) in blocked.iter().zip([&["client_ip", "user"][..], &["header:x-bot"]]) {
        let sender = line["sender"].as_object().expect("somebody");
        assert_eq!(sender.keys().collect::<Vec<_>>(), names);
        assert!(sender.values().all(|it| it.as_str().expect("a hash").starts_with("%h")), "{line}");
    }
}

#[test]
fn denials_of_descriptors_and_of_limits_that_callers_bring_along_are_written_down() {
    for (observe, is_plain) in [("", true), (", keys: hashed", false)] {
        check_denials_of_others(observe, is_plain);
    }
}

fn check_denials_of_others(observe: &str, is_plain: bool) {
    let policy =
        format!("observe: {{ audit: audit.jsonl{observe} }}\ndescriptors: envoy\nlimits: []");
    let policy = with_doors(&["http", "admin", "resp"], &policy);
    let file = "domain: shop\ndescriptors: [{ key: user, rate_limit: { unit: day, \
                requests_per_unit: 1 } }]";
    let running = Running::with_files(&policy, &[("envoy/shop.yaml", file)]);
    let call =
        r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "anna"}]}]}"#;
    let ask = |_| running.ask(Door::Http, "POST /json", call).status;
    assert_eq!([0, 1].map(ask), [200, 429]);
    let line = wait_for(&running, 1, "denied").remove(0);
    let has = |line: &Value, value: &str| {
        line["limits"][0]["key"].as_str().expect("a key").contains(value)
    };
    assert_eq!((has(&line, "anna"), has(&line, "%h")), (is_plain, !is_plain), "{line}");
    let mut redis = running.connect(Door::Resp);
    redis
        .write_all(b"CL.THROTTLE otto 0 1 86400\r\nCL.THROTTLE otto 0 1 86400\r\n")
        .expect("it reads");
    let line = wait_for(&running, 2, "denied").remove(1);
    assert_eq!((has(&line, "otto"), has(&line, "%h")), (is_plain, !is_plain), "{line}");
}

#[test]
fn whatever_is_in_a_key_a_line_stays_one_line_of_plain_letters() {
    let running = start("{ audit: { file: audit.jsonl, rate: 1000/second } }");
    let long = "x".repeat(60_000);
    let hostile = [
        "a\nb",
        "\u{1b}[31mred",
        "<script>alert(1)</script>",
        "\u{202e}dlrow",
        "\u{0}",
        "\r\n{}",
        "\u{7f}\u{85}",
        "\"}\\",
        long.as_str(),
    ];
    for value in hostile {
        let body = json!({"attributes": {"user": value}}).to_string();
        for _ in 0..2 {
            running.ask(Door::Http, "POST /v1/check", &body);
        }
    }
    let told = wait_for(&running, hostile.len(), "denied");
    assert_eq!(told.len(), hostile.len());
    let text = fs::read_to_string(log(&running)).unwrap();
    assert_eq!(text.lines().count(), hostile.len());
    assert!(text.bytes().all(|byte| byte == b'\n' || matches!(byte, b' '..=b'~')));
    assert!(text.lines().all(|line| line.len() < 2_048), "keys are cut");
    let cut = told.iter().filter(|line| line["limits"][0]["key"].as_str().unwrap().ends_with('…'));
    assert_eq!(cut.count(), 1);
}

#[test]
fn no_secret_is_written_down_and_with_hashed_keys_no_value_at_all() {
    for (observe, is_plain) in [("", true), (", keys: hashed", false)] {
        let running = start(&format!("{{ audit: audit.jsonl{observe} }}"));
        for _ in 0..2 {
            check(&running, "header:x-api-key=hunter2&user=anna");
        }
        // Who takes the secret for the key is not given away by it either.
        let admin = |head: &str| running.ask(Door::Admin, head, "").status;
        assert_eq!(admin("DELETE /v1/keys/api:anna"), 200);
        assert_eq!(admin("DELETE /v1/keys/key:hunter2"), 404);
        assert_eq!(admin("DELETE /v1/keys/hunter2"), 404);
        let denied = wait_for(&running, 1, "denied").remove(0);
        let admin = wait_for(&running, 3, "admin");
        let text = fs::read_to_string(log(&running)).unwrap();
        assert!(!text.contains("hunter2"), "{text}");
        assert_eq!(text.contains("anna"), is_plain, "{text}");
        let hash = denied["limits"][1]["key"].as_str().expect("a key");
        assert!(hash.starts_with("key:%h"), "{hash}");
        assert_eq!(admin[0]["key"], denied["limits"][0]["key"]);
        assert_eq!(admin[1]["key"], hash, "the same hash as in the denial");
        assert_eq!(admin[2].get("key"), None);
    }
}

#[test]
fn what_operators_do_is_written_down_with_who_did_it_and_what_came_of_it() {
    let running = Running::with_files(
        &format!(
            "observe: {{ audit: {{ file: audit.jsonl, sample: 0% }} }}\nlisten: {{ http: 127.0.0.1:0, \
             admin: {{ address: 127.0.0.1:0, token_file: token }} }}\n{LIMITS}"
        ),
        &[("token", "open-sesame")],
    );
    let admin = |head: &str, token: &str, body: &str| {
        running.ask(Door::Admin, &format!("{head}\nauthorization: Bearer {token}"), body).status
    };
    for head in ["DELETE /v1/keys/api:anna", "POST /v1/reload", "GET /v1/policy"] {
        assert_eq!(admin(head, "guess", ""), 401);
    }
    let open = "open-sesame";
    assert_eq!(admin("DELETE /v1/keys/api:anna", open, ""), 200);
    assert_eq!(admin("PUT /v1/overrides/api:anna", open, r#"{"rate": "5/day"}"#), 200);
    assert_eq!(admin("PUT /v1/overrides/api:anna", open, r#"{"rate": "5/dya"}"#), 400);
    assert_eq!(admin("DELETE /v1/overrides/api:anna", open, ""), 200);
    assert_eq!(admin("PUT /v1/overrides/api:anna", open, r#"{"ban": true}"#), 200);
    assert_eq!(admin("PUT /v1/overrides/api:anna", open, r#"{"ban": true, "ttl_ms": 0}"#), 400);
    assert_eq!(admin("PUT /v1/overrides/api:anna", open, r#"{"ban": "yes"}"#), 400);
    assert_eq!(admin("PUT /v1/overrides/none:anna", open, r#"{"ban": true}"#), 404);
    assert_eq!(admin("DELETE /v1/overrides/api:anna", open, ""), 200);
    assert_eq!(admin("DELETE /v1/overrides/api:anna", open, ""), 404);
    assert_eq!(admin("POST /v1/reload", open, ""), 200);
    assert_eq!(admin("GET /v1/policy", open, ""), 200);
    let told = wait_for(&running, 14, "admin");
    assert_eq!(told[4]["override"], json!({"rate": "5/day"}));
    assert_eq!(told[7]["override"], json!({"ban": true}));
    let told: Vec<(Value, Value, Value)> = told
        .into_iter()
        .map(|line| {
            assert!(line["peer"].as_str().expect("an address").starts_with("127.0.0.1:"));
            (line["action"].clone(), line["outcome"].clone(), line["status"].clone())
        })
        .collect();
    let expected = [
        ("access", "refused", 401),
        ("access", "refused", 401),
        ("access", "refused", 401),
        ("reset", "done", 200),
        ("override", "done", 200),
        ("override", "failed", 400),
        ("remove_override", "done", 200),
        ("ban", "done", 200),
        ("ban", "failed", 400),
        ("ban", "failed", 400),
        ("ban", "failed", 404),
        ("unban", "done", 200),
        ("remove_override", "failed", 404),
        ("reload", "done", 200),
    ];
    let expected =
        expected.map(|(action, outcome, status)| (json!(action), json!(outcome), json!(status)));
    assert_eq!(told, expected);
    let text = fs::read_to_string(log(&running)).unwrap();
    assert!(!text.contains("sesame") && !text.contains("guess"), "{text}");
}

#[test]
fn a_flood_of_denials_writes_no_more_than_the_rate_and_hides_no_operator() {
    let running = start("{ audit: { file: audit.jsonl, rate: 20/hour } }");
    let batch: Vec<Value> = vec![json!({"attributes": {"user": "flood"}}); 1_000];
    let batch = Value::from(batch).to_string();
    for number in 0..100 {
        assert_eq!(running.ask(Door::Http, "POST /v1/check/batch", &batch).status, 200);
        if number == 50 {
            assert_eq!(running.ask(Door::Admin, "DELETE /v1/keys/api:other", "").status, 200);
        }
    }
    assert_eq!(wait_for(&running, 1, "admin")[0]["key"], "api:other");
    let denied = wait_for(&running, 20, "denied");
    assert_eq!(denied.len(), 20, "a bucket of twenty, and an hour until it is full again");
    assert!(metric(&running, "tollgate_audit_dropped_total") > 1_000);
}

#[test]
fn strangers_at_the_admin_door_do_not_fill_the_log_nor_hide_operators() {
    let policy = format!(
        "observe: {{ audit: audit.jsonl }}\nlisten: {{ admin: {{ address: 127.0.0.1:0, token_file: \
         token }} }}\n{LIMITS}"
    );
    let running = Running::with_files(&policy, &[("token", "open-sesame")]);
    for _ in 0..200 {
        assert_eq!(running.ask(Door::Admin, "GET /v1/policy", "").status, 401);
    }
    let head = "POST /v1/reload\nauthorization: Bearer open-sesame";
    assert_eq!(running.ask(Door::Admin, head, "").status, 200);
    let is_reload = |line: &Value| line["action"] == "reload";
    eventually("the reload is there", || lines(&running).iter().any(is_reload));
    let refused = lines(&running).iter().filter(|line| line["action"] == "access").count();
    assert!((10..200).contains(&refused), "{refused}");
}

#[test]
fn a_share_of_denials_stands_for_all() {
    let running = start("{ audit: { file: audit.jsonl, sample: 10%, rate: 100000/second } }");
    let batch = Value::from(vec![json!({"attributes": {"user": "flood"}}); 91]).to_string();
    running.ask(Door::Http, "POST /v1/check/batch", &batch);
    // Whoever is next is behind all of these.
    running.ask(Door::Admin, "DELETE /v1/keys/api:other", "");
    wait_for(&running, 1, "admin");
    let denied = wait_for(&running, 1, "denied");
    let stands_for: f64 = denied.iter().map(|line| line["sampled"].as_f64().unwrap()).sum();
    assert_eq!(denied[0]["sampled"], 10);
    assert!((80.0..=100.0).contains(&stands_for), "{stands_for}, of 90");
}

#[test]
fn a_log_that_was_moved_or_removed_is_begun_anew() {
    let running = start("{ audit: audit.jsonl }");
    let reset = |name: &str| {
        running.ask(Door::Admin, &format!("DELETE /v1/keys/api:{name}"), "");
        wait_for(&running, 1, "admin")
    };
    assert_eq!(reset("first")[0]["key"], "api:first");
    let moved = running.folder.path("audit.jsonl.1");
    fs::rename(log(&running), &moved).unwrap();
    fs::write(log(&running), "").unwrap();
    assert_eq!(reset("second")[0]["key"], "api:second");
    fs::remove_file(log(&running)).unwrap();
    fs::write(log(&running), "").unwrap();
    assert_eq!(reset("third")[0]["key"], "api:third");
    assert_eq!(fs::read_to_string(&moved).unwrap().lines().count(), 1);
    // Cut to nothing where it is, as logrotate does if it is told to.
    fs::OpenOptions::new().write(true).open(log(&running)).unwrap().set_len(0).unwrap();
    assert_eq!(reset("fourth")[0]["key"], "api:fourth");
    let text = fs::read(log(&running)).unwrap();
    assert_eq!(text.first(), Some(&b'{'), "it is appended to, wherever it ends");
}

#[test]
fn a_reload_changes_what_is_written_where_and_makes_a_log_that_is_gone() {
    let running = start("{ audit: audit.jsonl }");
    fs::remove_file(log(&running)).unwrap();
    let reload = || running.ask(Door::Admin, "POST /v1/reload", "").status;
    assert_eq!(reload(), 200);
    eventually("it is there again", || log(&running).exists());
    let policy = |observe: &str| with_doors(DOORS, &format!("observe: {observe}\n{LIMITS}"));
    let other = running.folder.path("other.jsonl");
    running.folder.write("policy.yaml", &policy("{ audit: { file: other.jsonl, sample: 0% } }"));
    assert_eq!(reload(), 200);
    for _ in 0..3 {
        check(&running, "user=anna");
    }
    running.ask(Door::Admin, "DELETE /v1/keys/api:anna", "");
    let text = || fs::read_to_string(&other).unwrap();
    eventually("the reset is there", || text().contains("reset"));
    assert!(!text().contains("denied"), "none of them is drawn");
    // What cannot be written to is a mistake like any other: everything stays as it was.
    running.folder.write("policy.yaml", &policy("{ audit: nowhere/audit.jsonl }"));
    let answer = running.ask(Door::Admin, "POST /v1/reload", "");
    assert_eq!(answer.status, 422);
    assert!(answer.body.contains("nowhere/audit.jsonl cannot be written"), "{}", answer.body);
    running.folder.write("policy.yaml", &policy("{}"));
    assert_eq!(reload(), 200);
    let before = text();
    running.ask(Door::Admin, "DELETE /v1/keys/api:anna", "");
    assert_eq!(text(), before, "nothing is written any more");
}

#[test]
fn a_log_that_cannot_be_written_is_a_reason_not_to_start() {
    let folder = Folder::new();
    let policy = format!("observe: {{ audit: nowhere/audit.jsonl }}\n{LIMITS}");
    folder.write("policy.yaml", &with_doors(DOORS, &policy));
    let error = Server::bind(Source::File(folder.path("policy.yaml"))).unwrap_err().to_string();
    let file = folder.path("nowhere/audit.jsonl");
    let sentence = format!("the audit log {} cannot be written: No such file", file.display());
    assert!(error.starts_with(&sentence), "{error}");
}

#[test]
fn a_pipe_is_refused_rather_than_waited_for() {
    let running = start("{ audit: audit.jsonl }");
    check(&running, "user=anna");
    let file = log(&running);
    fs::remove_file(&file).unwrap();
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    assert_eq!(check(&running, "user=anna"), 429);
    running.ask(Door::Admin, "DELETE /v1/keys/api:anna", "");
    // What is written meanwhile goes to the file that was there; and a server does not start so.
    let policy = format!("observe: {{ audit: {} }}\n{LIMITS}", file.display());
    let folder = Folder::new();
    folder.write("policy.yaml", &with_doors(DOORS, &policy));
    let error = Server::bind(Source::File(folder.path("policy.yaml"))).unwrap_err().to_string();
    assert!(error.contains("it is a pipe, not a file"), "{error}");
    fs::remove_file(&file).unwrap();
    check(&running, "user=ben");
    check(&running, "user=ben");
    eventually("it is written again", || {
        fs::read_to_string(&file).is_ok_and(|text| text.contains("api:ben"))
    });
}

#[test]
fn a_full_disk_costs_lines_and_nothing_else() {
    let policy = format!("observe: {{ audit: /dev/full }}\n{LIMITS}");
    let running = Running::start(DOORS, &policy);
    assert_eq!([check(&running, "user=anna"), check(&running, "user=anna")], [200, 429]);
    running.ask(Door::Admin, "DELETE /v1/keys/api:anna", "");
    eventually("they are counted", || metric(&running, "tollgate_audit_dropped_total") == 2);
    assert_eq!(metric(&running, "tollgate_audit_lines_total{kind=\"admin\"}"), 0);
    assert_eq!(check(&running, "user=anna"), 200);
}

#[test]
fn what_was_asked_before_the_end_is_written_before_the_end() {
    let mut running = start("{ audit: { file: audit.jsonl, rate: 1000/second } }");
    for _ in 0..101 {
        check(&running, "user=anna");
    }
    running.begin_to_stop();
    eventually("all is written", || lines(&running).len() == 100);
}

const PAGE: &str = include_str!("../../../../docs/audit.md");

/// The lines that the page shows.
fn shown() -> Vec<Value> {
    let (_, block) = PAGE.split_once("```json\n").expect("the page shows lines");
    let (block, _) = block.split_once("```").expect("they end");
    block.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

#[test]
fn the_lines_of_the_page_are_like_those_that_are_written() {
    let policy =
        format!("observe: {{ audit: audit.jsonl }}\ndeny: [{{ user: mallory }}]\n{LIMITS}");
    let running = Running::start(DOORS, &policy);
    for _ in 0..2 {
        check(&running, "user=anna");
    }
    check(&running, "user=mallory&client_ip=203.0.113.7");
    running.ask(Door::Admin, "DELETE /v1/keys/api:anna", "");
    let written = ["denied", "blocked", "admin"].map(|kind| wait_for(&running, 1, kind)).concat();
    let names = |line: &Value| -> Vec<String> {
        line.as_object().expect("an object").keys().cloned().collect()
    };
    let shown = shown();
    assert_eq!(
        shown.iter().map(names).collect::<Vec<_>>(),
        written.iter().map(names).collect::<Vec<_>>()
    );
    for (shown, written) in shown.iter().zip(&written) {
        for field in ["kind", "limits", "sender", "action", "key", "outcome", "status", "sampled"] {
            let without_wait = |line: &Value| {
                let mut field = line[field].clone();
                if let Some(limit) = field.get_mut(0) {
                    limit["retry_after_ms"] = Value::Null;
                }
                field
            };
            assert_eq!(without_wait(shown), without_wait(written), "{field}");
        }
    }
}
