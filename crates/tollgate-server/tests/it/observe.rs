//! What a view of a running server asks for.

use serde_json::{Value, json};
use tollgate_server::Door;

use crate::http::{Example, examples, is_as_shown};
use crate::server::{Answer, Running, eventually, with_doors};

const DOORS: &[&str] = &["http", "admin"];

const LIMITS: &str = "
limits:
  - { name: api, per: [user], rate: 10/day, algorithm: fixed_window }
  - { name: trial, per: [trial], rate: 1/day, algorithm: fixed_window, mode: shadow }
";

fn spend(running: &Running, query: &str, times: usize) {
    for _ in 0..times {
        running.ask(Door::Http, &format!("GET /v1/check?{query}"), "");
    }
}

fn admin(running: &Running, head: &str, body: &str) -> Answer {
    running.ask(Door::Admin, head, body)
}

fn live(running: &Running, query: &str) -> Value {
    let answer = admin(running, &format!("GET /v1/live{query}"), "");
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

/// The sentence of an answer that refuses.
fn detail(answer: &Answer) -> String {
    assert_eq!(answer.field("content-type"), Some("application/problem+json"));
    answer.json()["detail"].as_str().expect("a sentence").to_owned()
}

fn names(of: &Value) -> Vec<&str> {
    of.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn a_live_view_is_told_everything_at_once() {
    let running = Running::start(DOORS, LIMITS);
    spend(&running, "user=anna", 12);
    spend(&running, "trial=t", 3);
    eventually("the second is over", || live(&running, "")["limits"][0]["denied"] == 2);
    let told = live(&running, "");
    let mut expected = vec![
        "now_ms",
        "started_ms",
        "version",
        "second",
        "seconds",
        "limits",
        "storm",
        "advice",
        "memory",
        "redis",
        "doors",
        "held",
        "policy",
    ];
    expected.sort_unstable();
    assert_eq!(names(&told), expected);
    let (now, started) = (told["now_ms"].as_u64().unwrap(), told["started_ms"].as_u64().unwrap());
    assert!(now >= started && started > 1_700_000_000_000, "{told}");
    let sum = |name: &str| -> u64 {
        told["seconds"].as_array().unwrap().iter().map(|it| it[name].as_u64().unwrap()).sum()
    };
    assert_eq!((sum("allowed"), sum("denied"), sum("other")), (13, 2, 0));
    assert_eq!(names(&told["seconds"][0]), ["allowed", "denied", "other", "p50_us", "p99_us"]);
    let mut limit = told["limits"][0].clone();
    let spark = limit["spark"].take();
    assert_eq!(spark.as_array().unwrap().len(), 60);
    assert!(limit["used"].take().as_f64().is_some_and(|used| (0.0..=1.0).contains(&used)));
    let expected = json!({
        "limit": "api", "tier": "", "mode": "enforce", "allowed": 10, "denied": 2,
        "shadow_denied": 0, "store_failed": 0, "used": null, "spark": null,
    });
    assert_eq!(limit, expected);
    let shadow = &told["limits"][1];
    assert_eq!((&shadow["mode"], &shadow["shadow_denied"]), (&json!("shadow"), &json!(2)));
    assert_eq!(shadow["spark"][59].as_array().map(Vec::len), Some(2));
    assert_eq!(names(&told["storm"]), ["denied", "early", "is_storm", "keys"]);
    assert!(told["advice"].is_array());
    assert_eq!(names(&told["memory"]), ["bytes", "evictions", "keys", "max_bytes"]);
    assert_eq!(told["redis"], Value::Null);
    let doors = told["doors"].as_array().unwrap();
    let doors: Vec<_> = doors.iter().map(|it| (it["door"].as_str(), it["open"].as_u64())).collect();
    assert!(matches!(doors[..], [(Some("http"), Some(_)), (Some("admin"), Some(1..))]), "{told}");
    assert_eq!(told["held"], json!({"now": 0, "shed": 0}));
    let policy = &told["policy"];
    assert_eq!(policy["reloads"], json!({"succeeded": 0, "failed": 0}));
    assert_eq!((&policy["error"], &policy["warnings"]), (&Value::Null, &json!([])));
    assert!(policy["loaded_ms"].as_u64().unwrap() >= started);
}

#[test]
fn who_knows_some_seconds_is_told_those_after_them() {
    let running = Running::start(DOORS, LIMITS);
    eventually("two seconds are over", || live(&running, "")["second"].as_u64() >= Some(2));
    let all = live(&running, "");
    let second = all["second"].as_u64().unwrap();
    assert_eq!(all["seconds"].as_array().unwrap().len() as u64, second);
    let after = live(&running, &format!("?after={}", second - 1));
    let since = after["second"].as_u64().unwrap() - (second - 1);
    assert_eq!(after["seconds"].as_array().unwrap().len() as u64, since);
    // A number of a server that ran before this one.
    let other = live(&running, "?after=99999");
    assert_eq!(
        other["seconds"].as_array().unwrap().len() as u64,
        other["second"].as_u64().unwrap()
    );
    for (query, expected) in [
        ("?after=x", "after=x is not a whole number"),
        ("?after=-1", "after=-1 is not a whole number"),
        ("?after=1&after=2", "after is there more than once"),
        ("?before=1", "there is no parameter \"before\" here; there are after"),
    ] {
        let refused = admin(&running, &format!("GET /v1/live{query}"), "");
        assert_eq!((refused.status, detail(&refused)), (400, expected.to_owned()), "{query}");
    }
}

#[test]
fn a_reload_and_a_mistake_are_seen() {
    let running = Running::start(DOORS, LIMITS);
    let loaded = live(&running, "")["policy"]["loaded_ms"].as_u64().unwrap();
    running.folder.write("policy.yaml", &with_doors(DOORS, &LIMITS.replace("10/day", "11/day")));
    assert_eq!(admin(&running, "POST /v1/reload", "").status, 200);
    let policy = live(&running, "")["policy"].take();
    assert!(policy["loaded_ms"].as_u64().unwrap() >= loaded);
    running.folder.write("policy.yaml", "limits: [");
    assert_eq!(admin(&running, "POST /v1/reload", "").status, 422);
    let wrong = live(&running, "")["policy"].take();
    assert_eq!(wrong["loaded_ms"], policy["loaded_ms"], "what is in force is still that");
    assert!(wrong["error"].as_str().unwrap().contains("policy.yaml:1"), "{wrong}");
    assert_eq!(admin(&running, "GET /v1/policy", "").json()["loaded_ms"], policy["loaded_ms"]);
}

/// What an answer says, which is 200.
fn told(running: &Running, head: &str, body: &str) -> Value {
    let answer = admin(running, head, body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

#[test]
fn a_request_is_explained_as_the_server_stands_and_not_charged() {
    let running = Running::start(DOORS, LIMITS);
    spend(&running, "user=a%3Ab", 4);
    let ask =
        r#"{"attributes": {"user": "a:b", "path": "/x?q=1", "Header:X-Id": 5}, "door": "http"}"#;
    let explained = told(&running, "POST /v1/explain", ask);
    let limit = &explained["limits"][0];
    assert_eq!(
        (&explained["allowed"], &explained["ruling"], &explained["retry_after_ms"]),
        (&json!(true), &json!("allowed"), &Value::Null)
    );
    assert_eq!((&limit["name"], &limit["applies"]), (&json!("api"), &json!(true)));
    assert_eq!((&limit["key"], &limit["remaining"]), (&json!("api:a%3Ab"), &json!(6)));
    assert_eq!(explained["limits"][1]["applies"], true, "at doors that face clients");
    let explained = told(&running, "POST /v1/explain", r#"{"attributes": {"user": "a:b"}}"#);
    assert_eq!(explained["limits"][0]["remaining"], 6, "to ask costs nothing");
    assert_eq!(explained["limits"][1]["applies"], false);
    assert!(explained["limits"][1]["why"].as_str().unwrap().contains("trial"), "{explained}");
    spend(&running, "user=a%3Ab", 6);
    let explained = told(&running, "POST /v1/explain", r#"{"attributes": {"user": "a:b"}}"#);
    assert_eq!((&explained["allowed"], &explained["ruling"]), (&json!(false), &json!("denied")));
    assert!(explained["retry_after_ms"].as_u64().is_some());
    // Nobody is counted as denied for a question of the operator's.
    assert_eq!(admin(&running, "GET /v1/keys?denied=1", "").json()["keys"], json!([]));
}

#[test]
fn a_limit_is_played_on_a_clean_slate() {
    let running = Running::start(DOORS, LIMITS);
    let ask = r#"{"limit": {"rate": "10/second", "algorithm": "token_bucket", "burst": 2},
                  "sent": [{"at_ms": 0}, {"at_ms": 0, "cost": 1}, {"at_ms": 50}, {"at_ms": 100}],
                  "now_ms": 150}"#;
    let played = told(&running, "POST /v1/play", ask);
    let answer = |allowed: bool, remaining: u32, retry: Option<u32>| json!({"allowed": allowed, "remaining": remaining, "retry_after_ms": retry, "delay_ms": 0});
    let expected = json!({
        "answers": [answer(true, 1, None), answer(true, 0, None), answer(false, 0, Some(50)),
                    answer(true, 0, None)],
        "now": {"limit": 2, "remaining": 0, "reset_after_ms": 150, "next_after_ms": 50},
    });
    assert_eq!(played, expected);
    assert_eq!(told(&running, "POST /v1/play", ask), expected, "nothing of it is kept");
    for (limit, limit_now, delays) in [
        (r#"{"rate": "2/minute"}"#, 2, [0, 0, 0]),
        (r#"{"rate": "2/minute", "algorithm": "fixed_window"}"#, 2, [0, 0, 0]),
        (r#"{"rate": "2/minute", "algorithm": "sliding_log"}"#, 2, [0, 0, 0]),
        (r#"{"rate": "2/second", "algorithm": "leaky_bucket", "queue": 2}"#, 2, [0, 500, 0]),
        (r#"{"concurrency": 2, "lease": "1m"}"#, 2, [0, 0, 0]),
    ] {
        let sent = r#"[{"at_ms": 0}, {"at_ms": 0}, {"at_ms": 1}]"#;
        let ask = format!(r#"{{"limit": {limit}, "sent": {sent}, "now_ms": 1}}"#);
        let played = told(&running, "POST /v1/play", &ask);
        let answers = played["answers"].as_array().unwrap();
        let allowed: Vec<_> = answers.iter().map(|it| it["allowed"] == true).collect();
        assert_eq!(allowed, [true, true, false], "{limit}");
        let told: Vec<_> = answers.iter().map(|it| it["delay_ms"].as_u64().unwrap()).collect();
        assert_eq!(
            (told, &played["now"]["limit"]),
            (delays.to_vec(), &json!(limit_now)),
            "{limit}"
        );
    }
}

#[test]
fn what_is_no_question_is_refused_with_what_would_be_right() {
    let running = Running::start(DOORS, LIMITS);
    let many = format!(
        r#"{{"limit": {{"rate": "1/day"}}, "sent": [{}], "now_ms": 9}}"#,
        vec![r#"{"at_ms": 0}"#; 501].join(",")
    );
    let deep =
        format!(r#"{{"limit": {}{}, "sent": [], "now_ms": 9}}"#, "[".repeat(500), "]".repeat(500));
    let play = |limit: &str, sent: &str, now: &str| {
        format!(r#"{{"limit": {limit}, "sent": {sent}, "now_ms": {now}}}"#)
    };
    let wide: Vec<String> = (0..1_000).map(|number| format!("\"{number}\": 0")).collect();
    let wide = format!("{{{}}}", wide.join(", "));
    for (path, body, expected) in [
        ("/v1/explain", String::new(), "send for example"),
        ("/v1/explain", "{}".to_owned(), "missing field `attributes`"),
        ("/v1/explain", r#"{"attributes": [1]}"#.to_owned(), "a map of names and values"),
        (
            "/v1/explain",
            r#"{"attributes": {}, "door": "back"}"#.to_owned(),
            "unknown variant `back`",
        ),
        ("/v1/explain", r#"{"attributes": {}, "dor": "http"}"#.to_owned(), "unknown field `dor`"),
        ("/v1/play", String::new(), "send for example"),
        ("/v1/play", play(r#"{"rate": "1/dya"}"#, "[]", "0"), "rate \"1/dya\" is not a rate"),
        ("/v1/play", play(r#"{"rat": "1/day"}"#, "[]", "0"), "\"rat\" is not a field"),
        ("/v1/play", play("{}", "[]", "0"), "rate"),
        ("/v1/play", play(r#"{"rate": ["1/day", "2/week"]}"#, "[]", "0"), "it has several rates"),
        (
            "/v1/play",
            play(
                r#"{"rate": {"by": "tier", "values": {"free": "1/day"}, "default": "2/day"}}"#,
                "[]",
                "0",
            ),
            "say one amount",
        ),
        (
            "/v1/play",
            play(r#"{"rate": "1/day"}"#, r#"[{"at_ms": 5}, {"at_ms": 4}]"#, "9"),
            "as late",
        ),
        ("/v1/play", play(r#"{"rate": "1/day"}"#, r#"[{"at_ms": 5}]"#, "4"), "now_ms is last"),
        ("/v1/play", play(r#"{"rate": "1/day"}"#, "[]", "99999999999999"), "is the most"),
        ("/v1/play", play(r#"{"rate": "1/day"}"#, "[]", "-1"), "invalid value"),
        (
            "/v1/play",
            play(r#"{"rate": "1/day"}"#, r#"[{"at_ms": 0, "cost": 1.5}]"#, "1"),
            "a whole number from 0",
        ),
        ("/v1/play", many, "there are 501 sent; 500 may be"),
        ("/v1/play", deep, ""),
        ("/v1/play", play(&wide, "[]", "0"), "more than 4096 bytes"),
    ] {
        let refused = admin(&running, &format!("POST {path}"), &body);
        assert_eq!(refused.status, 400, "{path} {body}: {}", refused.body);
        assert!(detail(&refused).contains(expected), "{path} {body}: {}", refused.body);
    }
    let large = format!(r#"{{"attributes": {{"a": "{}"}}}}"#, "a".repeat(1 << 20));
    for path in ["/v1/explain", "/v1/play"] {
        assert_eq!(admin(&running, &format!("POST {path}"), &large).status, 413, "{path}");
        assert_eq!(admin(&running, &format!("GET {path}"), "").status, 405, "{path}");
    }
    let long = play(r#"{"rate": "1/day"}"#, "[]", &format!("0{}", " ".repeat(1 << 16)));
    assert_eq!(admin(&running, "POST /v1/play", &long).status, 413);
    assert_eq!(admin(&running, "POST /v1/live", "").status, 405);
}

#[test]
fn what_is_seen_of_a_server_is_the_operators_alone() {
    let policy = "
listen: { admin: { address: 127.0.0.1:0, token_file: token.txt } }
limits: [{ name: api, per: [user], rate: 1/day }]
";
    let running = Running::with_files(policy, &[("token.txt", "s3cret")]);
    let open = Running::start(DOORS, LIMITS);
    for (head, body) in [
        ("GET /v1/live", ""),
        ("GET /v1/policy", ""),
        ("POST /v1/explain", r#"{"attributes": {}}"#),
        ("POST /v1/play", r#"{"limit": {"rate": "1/day"}, "sent": [], "now_ms": 0}"#),
    ] {
        assert_eq!(admin(&running, head, body).status, 401, "{head}");
        let with = |fields: &str| admin(&running, &format!("{head}\n{fields}"), body).status;
        assert_eq!(with("authorization: Bearer other"), 401, "{head}");
        let token = "authorization: Bearer s3cret";
        assert_eq!(with(&format!("{token}\norigin: http://evil.example")), 403, "{head}");
        assert_eq!(with(&format!("{token}\nsec-fetch-site: cross-site")), 403, "{head}");
        assert_eq!(with(token), 200, "{head}");
        let named = admin(&open, &format!("{head}\nhost: evil.example"), body);
        assert_eq!(named.status, 403, "without a token only localhost: {head}");
    }
}

#[test]
fn the_page_of_the_admin_door_shows_what_is_answered() {
    let (policy, examples) = examples(include_str!("../../../../docs/admin.md"));
    let running = Running::start(DOORS, policy);
    spend(&running, "user=acme", 4);
    eventually("the second is over", || live(&running, "")["limits"][0]["denied"] == 1);
    assert!(examples.len() >= 12, "only {} examples were found", examples.len());
    for Example { line, body, status, answer: expected } in examples {
        let answer = admin(&running, line, body);
        assert_eq!(answer.status.to_string(), status, "{line} {body}");
        assert!(is_as_shown(&answer.json(), &expected), "{line} {body}: {}", answer.body);
    }
}

#[test]
fn the_limits_in_force_are_told_with_where_they_are_written() {
    let running = Running::start(DOORS, LIMITS);
    let told = told(&running, "GET /v1/policy", "");
    let lines: Vec<_> = told["limits"].as_array().unwrap().iter().map(|it| &it["line"]).collect();
    let text = with_doors(DOORS, LIMITS);
    let of = |name: &str| text.lines().position(|line| line.contains(name)).unwrap() + 1;
    assert_eq!(lines, [&json!(of("name: api")), &json!(of("name: trial"))]);
    assert_eq!(told["limits"][0]["tiers"], json!([]));
}
