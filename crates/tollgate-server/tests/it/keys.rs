//! Single keys at the admin door.

use serde_json::{Value, json};
use tollgate_server::Door;

use crate::server::{Answer, Running, with_doors};

const DOORS: &[&str] = &["http", "admin"];

const LIMITS: &str = "
limits:
  - { name: api, per: [user], rate: 10/day, algorithm: fixed_window }
  - { name: key, per: [header:x-api-key], rate: 5/day, algorithm: fixed_window }
  - { name: bucket, per: [bucket], rate: 60/hour, algorithm: token_bucket, burst: 10 }
";

fn spend(running: &Running, query: &str, times: usize) -> Vec<u16> {
    let ask = |_| running.ask(Door::Http, &format!("GET /v1/check?{query}"), "").status;
    (0..times).map(ask).collect()
}

fn admin(running: &Running, head: &str, body: &str) -> Answer {
    running.ask(Door::Admin, head, body)
}

/// The sentence of an answer that refuses.
fn detail(answer: &Answer) -> String {
    assert_eq!(answer.field("content-type"), Some("application/problem+json"));
    answer.json()["detail"].as_str().expect("a sentence").to_owned()
}

fn left(running: &Running, key: &str) -> Value {
    admin(running, &format!("GET /v1/keys/{key}"), "").json()["limits"][0]["remaining"].clone()
}

#[test]
fn a_key_is_told_as_a_check_tells_it() {
    let running = Running::start(DOORS, LIMITS);
    spend(&running, "user=anna", 3);
    let check = running.ask(Door::Http, "GET /v1/check?user=anna&cost=0", "").json();
    let told = admin(&running, "GET /v1/keys/api:anna", "");
    assert_eq!(told.status, 200);
    let told = told.json();
    assert_eq!((&told["key"], &told["override"]), (&json!("api:anna"), &Value::Null));
    for figure in ["name", "key", "allowed", "limit", "remaining", "algorithm", "rate", "shadow"] {
        assert_eq!(told["limits"][0][figure], check["limits"][0][figure], "{figure}");
    }
    assert_eq!(left(&running, "api:anna"), 7);
    assert_eq!(admin(&running, "HEAD /v1/keys/api:anna", "").status, 200);
}

#[test]
fn a_reset_key_begins_anew() {
    let running = Running::start(DOORS, LIMITS);
    spend(&running, "user=anna", 10);
    assert_eq!(spend(&running, "user=anna", 1), [429]);
    let answer = admin(&running, "DELETE /v1/keys/api:anna", "").json();
    assert_eq!(answer, json!({"key": "api:anna", "was_known": true}));
    let answer = admin(&running, "DELETE /v1/keys/api:anna", "").json();
    assert_eq!(answer, json!({"key": "api:anna", "was_known": false}));
    assert_eq!(spend(&running, "user=anna", 1), [200]);
}

#[test]
fn a_secret_value_is_found_by_what_is_shown_of_it_and_never_shown() {
    let running = Running::start(DOORS, LIMITS);
    let check = r#"{"attributes": {"header:x-api-key": "s3cret"}}"#;
    let shown = running.ask(Door::Http, "POST /v1/check", check).json();
    let shown = shown["limits"][0]["key"].as_str().unwrap().to_owned();
    assert!(shown.starts_with("key:%h") && !shown.contains("s3cret"), "{shown}");
    assert_eq!(left(&running, &shown), 4, "as it is shown");
    assert_eq!(left(&running, &shown.replace('%', "%25")), 4, "as a path is written");
    let refused = admin(&running, "GET /v1/keys/key:s3cret", "");
    assert_eq!(refused.status, 404);
    assert!(detail(&refused).contains("keeps header:x-api-key secret"));
    assert!(!refused.body.contains("s3cret"), "{}", refused.body);
}

#[test]
fn with_hashed_keys_a_plain_value_is_not_found_by_its_hash_and_that_is_told() {
    let policy = "observe: { keys: hashed }\nlimits: [{ name: api, per: [user], rate: 1/day }]";
    let running = Running::start(&["http", "admin"], policy);
    spend(&running, "user=anna", 2);
    let listed: Value =
        serde_json::from_str(&admin(&running, "GET /v1/keys?denied=1", "").body).expect("JSON");
    let hash = listed["keys"][0]["key"].as_str().expect("a key");
    assert!(hash.starts_with("api:%h"), "{hash}");
    let path = format!("/v1/keys/{}", hash.replace('%', "%25"));
    for method in ["GET", "DELETE"] {
        let answer = admin(&running, &format!("{method} {path}"), "");
        assert_eq!(answer.status, 404);
        assert!(detail(&answer).contains("write the value in its place"), "{}", answer.body);
    }
    assert_eq!(left(&running, "api:anna"), 0);
}

#[test]
fn with_hashed_keys_overrides_are_listed_by_hashes_and_found_by_them() {
    let policy = format!("observe: {{ keys: hashed }}\n{LIMITS}");
    let running = Running::start(DOORS, &policy);
    spend(&running, "user=anna", 3);
    let put = admin(&running, "PUT /v1/overrides/api:anna", r#"{"rate": "12/day"}"#);
    assert_eq!(put.json()["key"], "api:anna", "as it was named");
    let listed = admin(&running, "GET /v1/overrides", "");
    assert!(!listed.body.contains("anna"), "{}", listed.body);
    let hash = listed.json()["overrides"][0]["key"].as_str().expect("a key").to_owned();
    let path = hash.replace('%', "%25");
    let told = admin(&running, &format!("GET /v1/keys/{path}"), "");
    assert_eq!(
        (&told.json()["key"], &told.json()["override"]),
        (&json!(hash), &json!({"rate": "12/day"}))
    );
    assert_eq!(told.json()["limits"][0]["remaining"], 9);
    assert!(!told.body.contains("anna"), "{}", told.body);
    let put = admin(&running, &format!("PUT /v1/overrides/{path}"), r#"{"ban": true}"#);
    assert_eq!((put.status, put.body.contains("anna")), (200, false), "{}", put.body);
    assert_eq!(spend(&running, "user=anna", 1), [429]);
    let removed = admin(&running, &format!("DELETE /v1/overrides/{path}"), "");
    assert_eq!(removed.json(), json!({"key": hash, "removed": true}));
    assert_eq!(spend(&running, "user=anna", 1), [200]);
    let again = admin(&running, &format!("DELETE /v1/overrides/{path}"), "");
    assert_eq!((again.status, detail(&again)), (404, format!("{hash} has no override")));
}

#[test]
fn a_value_of_any_bytes_is_named_in_a_path() {
    let running = Running::start(DOORS, LIMITS);
    spend(&running, "user=a%3Ab%2Fc%25%0A", 2);
    assert_eq!(left(&running, "api:a%253Ab%252Fc%2525%250A"), 8);
}

#[test]
fn the_keys_that_are_denied_most_and_those_that_send_most_are_listed() {
    let running = Running::start(DOORS, LIMITS);
    spend(&running, "user=anna", 12);
    spend(&running, "user=%3Cscript%3E", 15);
    spend(&running, "user=carl", 10);
    let list = |query: &str| admin(&running, &format!("GET /v1/keys?{query}"), "").json();
    let told = list("denied=1");
    let figures = |told: &Value, names: &[&str]| -> Vec<Value> {
        let keys = told["keys"].as_array().expect("keys").iter();
        keys.map(|key| names.iter().map(|name| key[*name].clone()).collect()).collect()
    };
    let names = ["key", "denied", "error", "limits"];
    let keys = [json!(["api:%3Cscript%3E", 5, 0, ["api"]]), json!(["api:anna", 2, 0, ["api"]])];
    assert_eq!((figures(&told, &names), &told["denied"]), (keys.to_vec(), &json!(7)));
    assert_eq!(list("denied=1&over=minute")["denied"], 7);
    assert_eq!(list("over=day&denied=1")["denied"], 7);
    // Requests are a sample, each of which stands for as many as were not looked at.
    let busy = list("busy=1&over=minute");
    assert!(figures(&busy, &["key"]).contains(&json!(["api:carl"])), "{busy}");
    let fields: Vec<&str> =
        busy["keys"][0].as_object().unwrap().keys().map(String::as_str).collect();
    let mut expected = [
        "key",
        "requests",
        "denied",
        "error",
        "rate",
        "denied_rate",
        "first_seen_ms",
        "limits",
        "early",
        "obeys",
    ];
    expected.sort_unstable();
    assert_eq!(fields, expected);
    assert!(busy["period_ms"].is_u64() && busy["requests"].is_u64(), "{busy}");
    let seen = busy["keys"][0]["first_seen_ms"].as_u64();
    assert!(seen.is_some_and(|seen| seen > 1_700_000_000_000), "{busy}");
    for (query, expected) in [
        ("", "/v1/keys?denied=1"),
        ("?denied=0", "/v1/keys?denied=1"),
        ("?denied=1&busy=1", "/v1/keys?busy=1"),
        ("?over=day", "/v1/keys?denied=1"),
        ("?all=1", "there are denied, busy, over"),
        ("?denied=1&denied=1", "denied is there more than once"),
        ("?busy=1&over=week", "over=week is not minute, hour or day"),
    ] {
        let refused = admin(&running, &format!("GET /v1/keys{query}"), "");
        assert_eq!(refused.status, 400, "{query}");
        assert!(detail(&refused).contains(expected), "{query}: {}", refused.body);
    }
}

#[test]
fn what_a_key_was_told_last_is_told_with_it() {
    let running = Running::start(DOORS, LIMITS);
    assert_eq!(admin(&running, "GET /v1/keys/api:anna", "").json()["recent"], json!([]));
    spend(&running, "user=anna", 12);
    let told = admin(&running, "GET /v1/keys/api:anna", "").json();
    let recent = told["recent"].as_array().expect("a list");
    assert_eq!((&recent[0]["allowed"], &recent[0]["remaining"]), (&json!(false), &json!(0)));
    let at: Vec<u64> = recent.iter().map(|it| it["at_ms"].as_u64().unwrap()).collect();
    assert!(at.is_sorted_by(|one, other| one >= other) && at[0] > 1_700_000_000_000, "{told}");
    assert!(recent.len() <= 8, "{told}");
}

#[test]
fn an_override_is_in_force_until_it_is_removed() {
    let running = Running::start(DOORS, LIMITS);
    spend(&running, "user=anna", 10);
    let put = admin(&running, "PUT /v1/overrides/api:anna", r#"{"rate": "12/day"}"#);
    assert_eq!(put.status, 200, "{}", put.body);
    let told = put.json();
    assert_eq!(told["override"], json!({"rate": "12/day"}));
    assert_eq!(told["limits"][0]["remaining"], 2, "what was consumed stays consumed");
    assert_eq!(told["limits"][0]["rate"], "12/day");
    assert_eq!(spend(&running, "user=anna", 3), [200, 200, 429]);
    assert_eq!(spend(&running, "user=ben", 11)[10], 429);
    let check = running.ask(Door::Http, "GET /v1/check?user=anna", "");
    assert_eq!(check.field("x-ratelimit-limit"), Some("12"));
    let list = admin(&running, "GET /v1/overrides", "").json();
    assert_eq!(list, json!({"overrides": [{"key": "api:anna", "rate": "12/day"}]}));
    let removed = admin(&running, "DELETE /v1/overrides/api:anna", "");
    assert_eq!((removed.status, removed.json()["removed"].clone()), (200, json!(true)));
    let again = admin(&running, "DELETE /v1/overrides/api:anna", "");
    assert_eq!((again.status, detail(&again)), (404, "api:anna has no override".to_owned()));
    let check = running.ask(Door::Http, "GET /v1/check?user=anna", "").json();
    assert_eq!(check["limits"][0]["limit"], 10);
}

#[test]
fn an_override_outlives_a_reload_and_may_have_an_end() {
    let running = Running::start(DOORS, LIMITS);
    let body = r#"{"burst": 20, "ttl_ms": 3600000}"#;
    let put = admin(&running, "PUT /v1/overrides/bucket:b", body).json();
    assert_eq!(put["limits"][0]["limit"], 20);
    assert!(put["override"]["until_ms"].as_u64().is_some_and(|until| until > 1_700_000_000_000));
    running.folder.write("policy.yaml", &with_doors(DOORS, &LIMITS.replace("60/hour", "90/hour")));
    assert_eq!(admin(&running, "POST /v1/reload", "").status, 200);
    let told = admin(&running, "GET /v1/keys/bucket:b", "").json();
    assert_eq!(
        (&told["limits"][0]["limit"], &told["limits"][0]["rate"]),
        (&json!(20), &json!("90/hour"))
    );
}

#[test]
fn a_banned_key_is_told_how_long_it_is() {
    let running = Running::start(DOORS, LIMITS);
    let put = admin(&running, "PUT /v1/overrides/api:anna", r#"{"ban": true, "ttl_ms": 3600000}"#);
    assert_eq!(put.status, 200, "{}", put.body);
    let told = put.json();
    assert_eq!(told["override"]["ban"], true);
    assert!(told["override"]["until_ms"].is_u64(), "{told}");
    let denied = running.ask(Door::Http, "GET /v1/check?user=anna", "");
    let wait = denied.json()["retry_after_ms"].as_u64().unwrap();
    assert_eq!(denied.status, 429);
    assert!((3_000_000..=3_600_000).contains(&wait), "{}", denied.body);
    assert!(denied.field("retry-after").is_some());
    assert_eq!(spend(&running, "user=ben", 1), [200]);
    let asked = r#"{"attributes": {"user": "anna"}}"#;
    let explained = admin(&running, "POST /v1/explain", asked).json();
    assert_eq!(explained["ruling"], "denied");
    assert_eq!(explained["limits"][0]["override"], told["override"], "until when, too");
    let listed = admin(&running, "GET /v1/overrides", "").json();
    assert_eq!(listed["overrides"][0]["until_ms"], told["override"]["until_ms"]);
    assert_eq!(admin(&running, "DELETE /v1/overrides/api:anna", "").status, 200);
    assert_eq!(left(&running, "api:anna"), 10, "it was charged nothing");
    assert_eq!(spend(&running, "user=anna", 1), [200]);
    for (body, expected) in [
        (r#"{"ban": false}"#, "ban is true and goes alone"),
        (r#"{"ban": true, "rate": "1/day"}"#, "ban is true and goes alone"),
        (r#"{"ban": 1}"#, "ban"),
        (r#"{"ban": true, "ttl_ms": 0}"#, "ttl_ms is 0"),
    ] {
        let refused = admin(&running, "PUT /v1/overrides/api:anna", body);
        assert_eq!(refused.status, 400, "{body}: {}", refused.body);
        assert!(detail(&refused).contains(expected), "{body}: {}", refused.body);
    }
}

#[test]
fn what_cannot_be_is_refused_with_a_sentence() {
    let running = Running::start(DOORS, LIMITS);
    for (head, body, status, expected) in [
        ("GET /v1/keys/none:a", "", 404, "the policy has no limit \"none\""),
        ("DELETE /v1/keys/none:a", "", 404, "the policy has no limit \"none\""),
        ("GET /v1/keys/api", "", 404, "counts by user, and the key has 0 values"),
        ("GET /v1/keys/api:a%3Ab", "", 404, "counts by user, and the key has 2 values"),
        ("GET /v1/keys/", "", 404, "the policy has no limit \"\""),
        (
            "GET /v1/keys/api:a%20b",
            "",
            400,
            "write api:a%20b; in a path, each % of a key is written %25",
        ),
        ("GET /v1/keys/api:%25zz", "", 400, "is no part of a key"),
        (
            "DELETE /v1/keys/api:%FF",
            "",
            400,
            "write api:%FF; in a path, each % of a key is written %25",
        ),
        ("GET /v1/keys/api:%25FF%20%C3", "", 400, "write api:%FF%20%C3; in a path"),
        ("DELETE /v1/keys/%FF", "", 400, "the limit's name is not UTF-8 text"),
        ("PUT /v1/overrides/none:a", r#"{"rate": "1/day"}"#, 404, "the policy has no limit"),
        ("PUT /v1/overrides/api:a", "", 400, ""),
        ("PUT /v1/overrides/api:a", "{}", 400, "it changes nothing; write for example"),
        ("PUT /v1/overrides/api:a", r#"{"rate": "1/dya"}"#, 400, "rate \"1/dya\" is not a rate"),
        ("PUT /v1/overrides/api:a", r#"{"rat": "1/day"}"#, 400, "rate"),
        ("PUT /v1/overrides/api:a", r#"{"rate": "1/day", "ttl_ms": 0}"#, 400, "ttl_ms is 0"),
        (
            "PUT /v1/overrides/api:a",
            r#"{"rate": "1/day", "ttl_ms": 1.5}"#,
            400,
            "ttl_ms is not a whole",
        ),
        ("PUT /v1/overrides/api:a", r#"{"burst": 5}"#, 422, "burst means nothing to it"),
        ("DELETE /v1/overrides/api:a", "", 404, "api:a has no override"),
        ("POST /v1/keys/api:a", "", 405, "use GET, HEAD, DELETE here"),
        ("PUT /v1/keys/api:a", "", 405, "use GET, HEAD, DELETE here"),
        ("DELETE /v1/keys?denied=1", "", 405, "use GET, HEAD here"),
        ("GET /v1/overrides/api:a", "", 405, "use PUT, DELETE here"),
        ("POST /v1/overrides", "", 405, "use GET, HEAD here"),
        ("GET /v1/keysmith", "", 404, "the admin API has no /v1/keysmith"),
    ] {
        let answer = admin(&running, head, body);
        assert_eq!(answer.status, status, "{head} {body}: {}", answer.body);
        assert!(detail(&answer).contains(expected), "{head} {body}: {}", answer.body);
    }
    assert_eq!(left(&running, "api:%25FF"), 10, "as it is told to be written");
    let long = format!("{{\"rate\": \"1/day\"{}}}", " ".repeat(5_000));
    assert_eq!(admin(&running, "PUT /v1/overrides/api:a", &long).status, 400);
    assert_eq!(admin(&running, "GET /v1/overrides", "").json(), json!({"overrides": []}));
}

#[test]
fn keys_are_the_operators_alone() {
    let policy = "
listen: { admin: { address: 127.0.0.1:0, token_file: token.txt } }
limits: [{ name: api, per: [user], rate: 1/day }]
";
    let running = Running::with_files(policy, &[("token.txt", "s3cret")]);
    for head in [
        "GET /v1/keys/api:a",
        "DELETE /v1/keys/api:a",
        "GET /v1/keys?denied=1",
        "GET /v1/overrides",
        "PUT /v1/overrides/api:a",
        "DELETE /v1/overrides/api:a",
    ] {
        let body = if head.starts_with("PUT") { r#"{"rate": "9/day"}"# } else { "" };
        assert_eq!(admin(&running, head, body).status, 401, "{head}");
        let wrong = format!("{head}\nauthorization: Bearer other");
        assert_eq!(admin(&running, &wrong, body).status, 401, "{head}");
        let foreign = format!("{head}\nauthorization: Bearer s3cret\norigin: http://evil.example");
        assert_eq!(admin(&running, &foreign, body).status, 403, "{head}");
        let right = format!("{head}\nauthorization: Bearer s3cret");
        assert_eq!(admin(&running, &right, body).status, 200, "{head}");
    }
}
