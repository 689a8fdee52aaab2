//! What a view of a running server asks for.

use serde_json::{Value, json};
use tollgate_server::Door;

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
