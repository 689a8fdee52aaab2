//! The HTTP door, asked over real sockets.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};
use tollgate_server::{Door, ReadAs, read_checks};

use crate::gateway::client::Client;
use crate::server::{Answer, Running, eventually};

const POLICY: &str = "
limits:
  - { name: api, per: [user], rate: 3/day, algorithm: fixed_window }
  - { name: jobs, per: [worker], concurrency: 1 }
exempt: [{ user: monitor }]
deny: [{ user: mallory }]
";

fn start(policy: &str) -> Running {
    Running::start(&["http"], policy)
}

fn check(running: &Running, body: &Value) -> Answer {
    running.ask(Door::Http, "POST /v1/check", &body.to_string())
}

#[test]
fn a_user_is_told_what_is_left_and_then_when_to_come_back() {
    let running = start(POLICY);
    for left in [2, 1, 0] {
        let answer = running.ask(Door::Http, "GET /v1/check?user=42", "");
        assert_eq!(answer.status, 200);
        assert_eq!(answer.field("x-ratelimit-remaining"), Some(left.to_string().as_str()));
        assert_eq!(answer.field("content-type"), Some("application/json"));
        let verdict = answer.json();
        assert_eq!((&verdict["allowed"], &verdict["retry_after_ms"]), (&json!(true), &Value::Null));
        assert_eq!(verdict["limits"][0]["remaining"], left);
        assert_eq!(verdict["limits"][0]["key"], "api:42");
    }
    let answer = check(&running, &json!({"attributes": {"user": "42"}, "cost": 1}));
    assert_eq!(answer.status, 429);
    let verdict = answer.json();
    let wait = verdict["retry_after_ms"].as_u64().expect("a wait is told");
    let told: u64 = answer.field("retry-after").unwrap().parse().unwrap();
    assert!(wait <= told * 1000 && told * 1000 <= wait * 13 / 10 + 2000, "{told} s for {wait} ms");
    assert_eq!(verdict["limits"][0]["rate"], "3/day");
    // Another user has a budget of its own.
    assert_eq!(check(&running, &json!({"attributes": {"user": 43}})).status, 200);
}

#[test]
fn every_ruling_has_a_status_and_a_reason() {
    let running = start(POLICY);
    let exempt = check(&running, &json!({"attributes": {"user": "monitor"}}));
    assert_eq!((exempt.status, &exempt.json()["limits"]), (200, &json!([])));
    let blocked = check(&running, &json!({"attributes": {"user": "mallory"}}));
    assert_eq!((blocked.status, &blocked.json()["reason"]), (403, &json!("blocked")));
    let costly = check(&running, &json!({"attributes": {"user": "1"}, "cost": 4}));
    assert_eq!((costly.status, &costly.json()["retry_after_ms"]), (429, &Value::Null));
    assert_eq!(costly.field("retry-after"), None, "no wait helps");
    let nobody = check(&running, &json!({}));
    assert_eq!((nobody.status, &nobody.json()["allowed"]), (200, &json!(true)));
}

#[test]
fn what_is_no_cost_is_refused_and_changes_nothing() {
    let running = start(POLICY);
    for cost in ["-1", "1.5", "1e400", "\"1\"", "NaN", "0x10", "18446744073709551615", "null"] {
        let body = format!(r#"{{"attributes": {{"user": "7"}}, "cost": {cost}}}"#);
        let answer = running.ask(Door::Http, "POST /v1/check", &body);
        assert_eq!(answer.status, 400, "{cost}: {}", answer.body);
        assert_eq!(answer.field("content-type"), Some("application/problem+json"));
    }
    for cost in ["-1", "1.5", "", "NaN", "0x10", "18446744073709551615", "1&cost=1"] {
        let answer = running.ask(Door::Http, &format!("GET /v1/check?user=7&cost={cost}"), "");
        assert_eq!(answer.status, 400, "{cost}: {}", answer.body);
    }
    let peek = check(&running, &json!({"attributes": {"user": "7"}, "cost": 0})).json();
    assert_eq!(peek["limits"][0]["remaining"], 3);
}

#[test]
fn what_is_no_check_is_refused_with_what_would_be_right() {
    let running = start(POLICY);
    for (body, told) in [
        ("", "EOF while parsing"),
        ("[]", "expected an object"),
        (r#"[{"user": "1"}, 1]"#, "expected an object"),
        (r#"{"attribute": {}}"#, "unknown field `attribute`"),
        (r#"{"attributes": {"user": ["42"]}}"#, "a text, a whole number, true or false"),
        (r#"{"attributes": {"user": "1", "user": "2"}}"#, "\"user\" is sent twice"),
        (r#"{"attributes": {"header:x": "1", "header:X": "2"}}"#, "\"header:X\" is sent twice"),
        (r#"{"attributes": {}} trailing"#, "trailing characters"),
    ] {
        let answer = running.ask(Door::Http, "POST /v1/check", body);
        assert_eq!(answer.status, 400, "{body}");
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(told), "{detail}");
    }
    let answer = running.ask(Door::Http, "GET /v1/check?user=1&user=2", "");
    assert_eq!(answer.status, 400);
    let many: serde_json::Map<String, Value> =
        (0..200).map(|n| (format!("a{n}"), json!("x"))).collect();
    assert_eq!(check(&running, &json!({"attributes": many})).status, 400);
    let long = "x".repeat((64 << 10) + 1);
    assert_eq!(check(&running, &json!({"attributes": {"user": long}})).status, 400);
}

#[test]
fn the_checks_of_a_batch_are_each_on_their_own_and_in_order() {
    let running = start(POLICY);
    let one = |user: &str, cost: u32| json!({"attributes": {"user": user}, "cost": cost});
    let batch = json!([one("a", 2), one("b", 1), one("a", 2), one("a", 1)]);
    let answer = running.ask(Door::Http, "POST /v1/check/batch", &batch.to_string());
    assert_eq!(answer.status, 200);
    let verdicts = answer.json();
    let allowed: Vec<bool> =
        verdicts.as_array().unwrap().iter().map(|it| it["allowed"] == true).collect();
    assert_eq!(allowed, [true, true, false, true]);
    let many: Vec<Value> = (0..1001).map(|_| json!({})).collect();
    let answer = running.ask(Door::Http, "POST /v1/check/batch", &json!(many).to_string());
    assert_eq!(answer.status, 413);
}

#[test]
fn a_batch_whose_answer_would_be_too_long_is_refused_before_it_is_charged() {
    let limits: String = (0..500).map(|n| format!("  - {{ name: l{n}, rate: 9/day }}\n")).collect();
    let running = start(&format!("limits:\n{limits}"));
    let batch = |checks: usize| {
        let checks = vec![json!({}); checks];
        running.ask(Door::Http, "POST /v1/check/batch", &json!(checks).to_string())
    };
    let refused = batch(1_000);
    assert_eq!(refused.status, 413);
    let told = refused.json()["detail"].as_str().expect("a sentence").to_owned();
    assert!(told.contains("nothing was decided"), "{told}");
    let answered = batch(2);
    assert_eq!(answered.status, 200);
    assert_eq!(answered.json()[0]["limits"][0]["remaining"], 8, "nothing was charged before");
}

#[test]
fn a_wait_belongs_to_whom_the_check_is_about() {
    let running = start("limits: [{ name: all, rate: 1/year, algorithm: token_bucket }]");
    let wait = |user: &str| {
        let answer = running.ask(Door::Http, &format!("GET /v1/check?user={user}"), "");
        answer.field("retry-after-ms").map(|wait| wait.parse::<u64>().expect("milliseconds"))
    };
    assert_eq!(wait("a"), None, "the first is let through");
    check_spread(["a", "b", "c"].map(|user| wait(user).expect("a wait")));
    // The same on one connection that stays open.
    let mut client = Client::new(running.connect(Door::Http));
    check_spread(["a", "b", "c"].map(|user| {
        client.send(format!("GET /v1/check?user={user} HTTP/1.1\r\nhost: localhost\r\n\r\n"));
        let answer = client.answer();
        answer.field("retry-after-ms").and_then(|wait| wait.parse().ok()).expect("a wait")
    }));
}

/// Says that waits of about a year differ, and by more than the time between the answers.
pub(crate) fn check_spread(mut waits: [u64; 3]) {
    // Of a year the spread is more than a hundred days.
    const MINUTE_MILLIS: u64 = 60 * 1_000;
    waits.sort_unstable();
    let [first, second, third] = waits;
    assert!(first < second && second < third && third - first > MINUTE_MILLIS, "{waits:?}");
}

#[test]
fn a_slot_is_given_back_by_its_lease_once() {
    let running = start(POLICY);
    let work = json!({"attributes": {"worker": "w"}});
    let held = check(&running, &work);
    let lease = held.json()["lease"].as_str().expect("a lease").to_owned();
    let denied = check(&running, &work);
    assert_eq!((denied.status, denied.field("retry-after")), (429, Some("1")));
    assert_eq!(denied.json()["retry_after_ms"], Value::Null, "when a slot is free nobody knows");
    let act = |verb: &str, lease: &str| {
        let body = json!({"lease": lease}).to_string();
        running.ask(Door::Http, &format!("POST /v1/{verb}"), &body).status
    };
    assert_eq!(act("renew", &lease), 200);
    assert_eq!(act("release", &lease), 200);
    assert_eq!(act("release", &lease), 404, "once");
    assert_eq!(act("renew", &lease), 404);
    for unknown in ["", "x", "0", &"f".repeat(32), &"é".repeat(16), &format!("+{}", "1".repeat(31))]
    {
        assert_eq!(act("release", unknown), 404, "{unknown:?}");
    }
    assert_eq!(check(&running, &work).status, 200);
}

#[test]
fn a_slot_that_nobody_gives_back_comes_back_by_itself() {
    let running = start("limits: [{ name: jobs, concurrency: 1, lease: 50ms }]");
    let lease = check(&running, &json!({})).json()["lease"].as_str().unwrap().to_owned();
    eventually("the slot comes back", || check(&running, &json!({})).status == 200);
    let body = json!({"lease": lease}).to_string();
    assert_eq!(running.ask(Door::Http, "POST /v1/release", &body).status, 404);
}

#[test]
fn a_path_or_method_that_is_not_there_is_told_what_is() {
    let running = start(POLICY);
    let answer = running.ask(Door::Http, "GET /v1/chek", "");
    assert_eq!(answer.status, 404);
    assert!(answer.body.contains("/openapi.json"));
    for (head, allow) in [
        ("DELETE /v1/check", "GET, HEAD, POST"),
        ("GET /v1/check/batch", "POST"),
        ("GET /v1/release", "POST"),
        ("POST /openapi.json", "GET, HEAD"),
    ] {
        let answer = running.ask(Door::Http, head, "");
        assert_eq!((answer.status, answer.field("allow")), (405, Some(allow)), "{head}");
    }
    let described = running.ask(Door::Http, "GET /openapi.json", "").json();
    assert_eq!(described["openapi"], "3.1.0");
}

#[test]
fn the_document_knows_every_member_of_an_answer() {
    let running = start(POLICY);
    let document = running.ask(Door::Http, "GET /openapi.json", "").json();
    let is_known = |schema: &str, member: &String| {
        document["components"]["schemas"][schema]["properties"].get(member).is_some()
    };
    for (attributes, members) in [
        (json!({"user": "42"}), 4),
        (json!({"user": "mallory"}), 5),
        (json!({"user": "42", "worker": "7"}), 5),
    ] {
        let verdict = check(&running, &json!({"attributes": attributes})).json();
        let verdict = verdict.as_object().expect("an object");
        assert_eq!(verdict.len(), members, "{verdict:?}");
        assert!(verdict.keys().all(|member| is_known("Verdict", member)), "{verdict:?}");
        for limit in verdict["limits"].as_array().expect("limits") {
            let mut members = limit.as_object().expect("an object").keys();
            assert!(members.all(|member| is_known("Limit", member)), "{limit}");
        }
    }
}

#[test]
fn a_body_that_is_too_large_is_refused_and_the_connection_closed() {
    let running = start(POLICY);
    let answer = running.ask(Door::Http, "POST /v1/check", &" ".repeat((1 << 20) + 1));
    assert_eq!(answer.status, 413);
    // The same without saying how long it is.
    let mut stream = running.connect(Door::Http);
    stream
        .write_all(b"POST /v1/check HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
        .unwrap();
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
    // It may close before all of it is sent.
    for _ in 0..17 {
        if stream.write_all(chunk.as_bytes()).is_err() {
            break;
        }
    }
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).unwrap();
    assert!(line.starts_with("HTTP/1.1 413"), "{line}");
}

#[test]
fn a_token_is_asked_for_at_a_door_that_has_one() {
    let policy = "
listen: { http: { address: 127.0.0.1:0, token_file: token.txt } }
limits: []
";
    let running = Running::with_files(policy, &[("token.txt", "s3cret\n")]);
    let ask = |field: &str| running.ask(Door::Http, &format!("GET /v1/check{field}"), "");
    for field in [
        "",
        "\nauthorization: Bearer wrong",
        "\nauthorization: s3cret",
        "\nauthorization: Basic s3cret",
    ] {
        let answer = ask(field);
        assert_eq!((answer.status, answer.field("www-authenticate")), (401, Some("Bearer")));
    }
    assert_eq!(ask("\nauthorization: Bearer s3cret").status, 200);
    assert_eq!(ask("\nauthorization: bearer  s3cret").status, 200, "the scheme has no case");
}

#[test]
fn requests_sent_together_are_answered_in_order_over_one_connection() {
    let running = start(POLICY);
    let mut stream = running.connect(Door::Http);
    let one = "GET /v1/check?user=p HTTP/1.1\r\nhost: a\r\n\r\n";
    let last = "GET /v1/check?user=p HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    stream.write_all(format!("{one}{one}{one}{last}").as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let statuses: Vec<&str> = text.split("HTTP/1.1 ").skip(1).map(|it| &it[..3]).collect();
    assert_eq!(statuses, ["200", "200", "200", "429"]);
}

/// Whether an answer is as it is shown, where "…" stands for anything.
pub(crate) fn is_as_shown(answer: &Value, shown: &Value) -> bool {
    match (answer, shown) {
        (_, Value::String(dots)) if dots == "…" => true,
        (Value::Object(answer), Value::Object(shown)) => {
            let alike = |(name, shown)| answer.get(name).is_some_and(|it| is_as_shown(it, shown));
            answer.len() == shown.len() && shown.iter().all(alike)
        }
        (Value::Array(answer), Value::Array(shown)) => {
            answer.len() == shown.len()
                && answer.iter().zip(shown).all(|(answer, shown)| is_as_shown(answer, shown))
        }
        (answer, shown) => answer == shown,
    }
}

/// A request that a page shows, and the answer to it.
pub(crate) struct Example<'p> {
    pub(crate) line: &'p str,
    pub(crate) body: &'p str,
    pub(crate) status: &'p str,
    pub(crate) answer: Value,
}

/// The policy that a page begins with, and its examples in their order.
pub(crate) fn examples(page: &str) -> (&str, Vec<Example<'_>>) {
    let fences: Vec<&str> = page.split("```").skip(1).step_by(2).collect();
    let policy = fences[0].strip_prefix("yaml").expect("the policy comes first");
    let mut examples = Vec::new();
    for two in fences.windows(2) {
        let (Some(asked), Some(answered)) =
            (two[0].strip_prefix("http\n"), two[1].strip_prefix("json "))
        else {
            continue;
        };
        let (line, body) = asked.split_once('\n').expect("a line");
        let (status, answer) = answered.split_once('\n').expect("a line");
        let answer = serde_json::from_str(answer).expect("the page shows JSON");
        examples.push(Example { line, body: body.trim(), status, answer });
    }
    (policy, examples)
}

#[test]
fn the_page_of_the_api_shows_what_is_answered() {
    let (policy, examples) = examples(include_str!("../../../../docs/http-api.md"));
    let running = start(policy);
    let mut reservation = String::new();
    assert!(examples.len() >= 6, "only {} examples were found", examples.len());
    for Example { line, body, status, answer: expected } in examples {
        // What is settled is what was reserved last.
        let last = format!(r#""reservation": "{reservation}""#);
        let body = body.replace(r#""reservation": "…""#, &last);
        let answer = running.ask(Door::Http, line, &body);
        assert_eq!(answer.status.to_string(), status, "{line} {body}");
        assert!(is_as_shown(&answer.json(), &expected), "{line} {body}: {}", answer.body);
        if let Some(name) = answer.json()["reservation"].as_str() {
            name.clone_into(&mut reservation);
        }
    }
}

#[test]
fn bodies_that_were_tampered_with_are_checks_or_refused() {
    let whole = br#"[{"attributes": {"user": "42", "n": -7, "b": true}, "cost": 3}, {"cost": 0}]"#;
    let right = ReadAs { is_body: false, batch: 2, is_query: true };
    assert_eq!(read_checks(whole), right, "a batch of two, and a query of one name");
    let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = move |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    let mut read = 0;
    for _ in 0..20_000 {
        let mut bytes = whole.to_vec();
        for _ in 0..=random(4) {
            let at = random(bytes.len());
            match random(3) {
                0 => bytes[at] = random(256) as u8,
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, b"{}[],:\"\\%&=-e."[random(14)]),
            }
        }
        read += read_checks(&bytes).batch;
    }
    assert!(read > 0, "some of them are still checks");
}

#[test]
fn a_client_that_has_said_everything_is_still_answered() {
    let running = start(POLICY);
    let mut stream = running.connect(Door::Http);
    stream.write_all(b"GET /v1/check?user=h HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(Answer::read(&mut stream).status, 200);
}

#[test]
fn a_client_hears_that_we_stop_before_its_connection_is_closed() {
    let mut running = Running::start(&["http", "admin"], POLICY);
    let stream = running.connect(Door::Http);
    let mut reader = BufReader::new(stream.try_clone().expect("one more handle"));
    let head = asked_once_more(&stream, &mut reader).expect("an answer");
    assert!(!head.contains("connection: close"), "{head}");
    running.begin_to_stop();
    eventually("it says that it stops", || is_stopping(&running));
    // Between the word and the end is half a second. If this test was stopped for longer, the
    // connection is closed by now.
    if let Some(head) = asked_once_more(&stream, &mut reader) {
        assert!(head.contains("connection: close"), "{head}");
        assert_eq!(reader.read(&mut [0; 1]).expect("the end"), 0);
    }
}

/// The head of the answer to one more request; none if the connection was closed before it.
fn asked_once_more(mut stream: &TcpStream, reader: &mut BufReader<TcpStream>) -> Option<String> {
    stream.write_all(b"GET /v1/check HTTP/1.1\r\nhost: a\r\n\r\n").ok()?;
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            assert_eq!(head, "", "closed in the middle of an answer");
            return None;
        }
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.expect("a length").parse().expect("a number")];
    reader.read_exact(&mut body).expect("a whole answer");
    Some(head)
}

/// Whether `/readyz` says so, or can no longer be asked.
fn is_stopping(running: &Running) -> bool {
    let Ok(mut stream) = TcpStream::connect(running.address(Door::Admin)) else { return true };
    let asked = stream.write_all(b"GET /readyz HTTP/1.0\r\nhost: localhost\r\n\r\n");
    let mut answer = String::new();
    let read = asked.and_then(|()| stream.read_to_string(&mut answer));
    read.is_err() || !answer.starts_with("HTTP/1.0 200") && !answer.starts_with("HTTP/1.1 200")
}
