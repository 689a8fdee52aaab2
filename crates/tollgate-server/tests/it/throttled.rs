//! Keys under limits that callers of `CL.THROTTLE` bring along, at the admin door.

use std::io::{BufRead, BufReader, Write};

use serde_json::{Value, json};
use tollgate_harness::{Flavour, Proxy, Server};
use tollgate_server::Door;

use crate::server::{Answer, Running, eventually};

const DOORS: &[&str] = &["http", "resp", "admin"];

const LIMITS: &str = "limits: [{ name: api, per: [user], rate: 10/day, on_store_failure: deny }]";

/// Asks with these words, and says whether it was limited.
fn throttle(running: &Running, words: &str) -> bool {
    let mut stream = running.connect(Door::Resp);
    write!(stream, "CL.THROTTLE {words}\r\n").expect("it listens");
    let mut lines = BufReader::new(stream).lines().map(|line| line.expect("it answers"));
    let told: Vec<String> = lines.by_ref().take(6).collect();
    assert_eq!(told[0], "*5", "{told:?}");
    told[1] == ":1"
}

/// A request about one of these keys.
fn ask(running: &Running, method: &str, folder: &str, whose: &str, body: &str) -> Answer {
    let path = format!("/v1/{folder}/%2528CL.THROTTLE%2529:{whose}");
    running.ask(Door::Admin, &format!("{method} {path}"), body)
}

fn look(running: &Running, whose: &str) -> Answer {
    ask(running, "GET", "keys", whose, "")
}

fn detail(answer: &Answer) -> String {
    answer.json()["detail"].as_str().expect("a sentence").to_owned()
}

#[test]
fn a_key_that_is_listed_is_told_and_begins_anew_when_it_is_reset() {
    let running = Running::start(DOORS, LIMITS);
    let ask_again = || throttle(&running, "otto 1 1 86400");
    assert_eq!([ask_again(), ask_again(), ask_again()], [false, false, true]);
    let listed = running.ask(Door::Admin, "GET /v1/keys?denied=1", "").json();
    assert_eq!(listed["keys"][0]["key"], "%28CL.THROTTLE%29:otto");
    let answer = look(&running, "otto");
    assert_eq!(answer.status, 200, "{}", answer.body);
    let mut told = answer.json();
    let limit = &mut told["limits"][0];
    for wait in ["reset_after_ms", "next_after_ms"] {
        assert!(limit[wait].take().as_u64().is_some_and(|wait| wait > 0), "{}", answer.body);
    }
    let expected = json!({
        "name": "(CL.THROTTLE)", "key": "%28CL.THROTTLE%29:otto", "allowed": true, "limit": 2,
        "remaining": 0, "retry_after_ms": null, "reset_after_ms": null, "next_after_ms": null,
        "algorithm": "token_bucket", "rate": "1/day", "shadow": false,
    });
    assert_eq!((&told["limits"], &told["override"]), (&json!([expected]), &Value::Null));
    assert_eq!(told["key"], "%28CL.THROTTLE%29:otto");
    assert_eq!(told["recent"][0]["allowed"], false, "{}", answer.body);
    let names = |told: &Value| -> Vec<String> {
        let limit = told["limits"][0].as_object().expect("a limit");
        told.as_object().expect("a key").keys().chain(limit.keys()).cloned().collect()
    };
    let other = running.ask(Door::Admin, "GET /v1/keys/api:anna", "").json();
    assert_eq!(names(&told), names(&other), "as of any key");
    for was_known in [true, false] {
        let reset = ask(&running, "DELETE", "keys", "otto", "");
        assert_eq!(reset.json(), json!({"key": "%28CL.THROTTLE%29:otto", "was_known": was_known}));
    }
    assert!(!ask_again());
}

#[test]
fn what_each_limit_says_is_told_that_callers_asked_for_and_looking_changes_nothing() {
    let running = Running::start(DOORS, LIMITS);
    assert!(!throttle(&running, "anna 9 5 60 4"));
    assert!(!throttle(&running, "otto 1 1 86400"));
    let figures = || {
        let told = look(&running, "anna").json();
        let limits = told["limits"].as_array().expect("a list").clone();
        limits
            .iter()
            .map(|it| [&it["rate"], &it["limit"], &it["remaining"]].map(Value::clone))
            .collect()
    };
    let seen: Vec<[Value; 3]> = figures();
    assert_eq!(seen[0], [json!("1/day"), json!(2), json!(0)], "four are more than it would hold");
    assert_eq!(seen[1], [json!("5/minute"), json!(10), json!(6)]);
    assert_eq!(seen, figures());
    for count in 0..30 {
        throttle(&running, &format!("otto {count} 7 3600 0"));
    }
    let newest = figures();
    assert_eq!(newest.len(), 16);
    assert_eq!((&newest[0][1], &newest[15][1]), (&json!(30), &json!(15)), "the newest first");
}

#[test]
fn an_override_or_a_ban_is_refused_and_why_is_said() {
    let running = Running::start(DOORS, LIMITS);
    throttle(&running, "otto 1 1 86400");
    for body in [r#"{"ban": true}"#, r#"{"rate": "9/day"}"#] {
        let refused = ask(&running, "PUT", "overrides", "otto", body);
        assert_eq!(refused.status, 422, "{}", refused.body);
        assert!(detail(&refused).contains("callers of CL.THROTTLE bring their limit along"));
    }
    assert_eq!(ask(&running, "DELETE", "overrides", "otto", "").status, 404);
    assert_eq!(running.ask(Door::Admin, "GET /v1/overrides", "").json(), json!({"overrides": []}));
}

#[test]
fn a_key_of_which_nobody_can_tell_is_not_found_and_why_is_said() {
    let running = Running::start(DOORS, LIMITS);
    let refused = look(&running, "otto");
    assert_eq!(refused.status, 404);
    assert!(detail(&refused).contains("nobody has asked this server"), "{}", refused.body);
    throttle(&running, "otto 1 1 86400");
    let hash = format!("%25h{}", "0".repeat(32));
    for (whose, why) in [
        ("otto:anna", "has one value"),
        ("%25", "has one value"),
        ("%25s1", "has one value"),
        (hash.as_str(), "write the value in its place"),
    ] {
        for method in ["GET", "DELETE"] {
            let refused = ask(&running, method, "keys", whose, "");
            assert_eq!(refused.status, 404, "{whose}");
            assert!(detail(&refused).contains(why), "{whose}: {}", refused.body);
        }
    }
}

#[test]
fn keys_in_redis_are_told_by_who_was_asked_and_reset_by_whom_you_like() {
    let redis = Server::start(Flavour::Redis);
    let proxy = Proxy::start(redis.address());
    let policy =
        format!("store: {{ redis: {{ url: '{}', timeout: 10s }} }}\n{LIMITS}", proxy.url());
    let servers = [Running::start(DOORS, &policy), Running::start(DOORS, &policy)];
    for server in &servers {
        eventually("Redis is reached", || {
            server.ask(Door::Http, "GET /v1/check?user=nobody&cost=0", "").status == 200
        });
    }
    let asked = || throttle(&servers[0], "otto 1 1 86400");
    assert_eq!([asked(), asked(), asked()], [false, false, true]);
    assert_eq!(look(&servers[0], "otto").json()["limits"][0]["remaining"], 0);
    let reset = ask(&servers[1], "DELETE", "keys", "otto", "");
    assert_eq!(reset.json()["was_known"], true);
    // Who was told that it is refused believes that for a second.
    eventually("it begins anew", || !asked());
    assert_eq!(look(&servers[0], "otto").json()["limits"][0]["remaining"], 1);
    assert_eq!(ask(&servers[0], "DELETE", "keys", "otto", "").json()["was_known"], true);
    assert!(!asked());
    drop(redis);
    eventually("nobody can tell", || look(&servers[0], "otto").status == 503);
    assert_eq!(ask(&servers[0], "DELETE", "keys", "otto", "").status, 503);
}
