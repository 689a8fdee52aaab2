//! Reservations and settlements over the HTTP door, asked over real sockets.

use std::thread;

use serde_json::{Value, json};
use tollgate_harness::{Flavour, Server};
use tollgate_server::Door;

use crate::server::{Answer, Running, eventually};

const LIMITS: &str = "
limits:
  - { name: tokens, per: [user], rate: 1000/day, algorithm: fixed_window }
  - { name: calls, per: [user], rate: 10/day, algorithm: token_bucket, cost: 1 }
  - { name: seen, per: [user], rate: 100/day, mode: shadow, algorithm: sliding_window }
  - { name: jobs, per: [worker], concurrency: 1, cost: 1 }
";

fn in_memory() -> Running {
    Running::start(&["http"], LIMITS)
}

fn in_redis(redis: &Server) -> Running {
    // The deadline is for machines that are busy with other tests.
    let url = redis.url();
    let policy = format!("store: {{ redis: {{ url: '{url}', timeout: 10s }} }}\n{LIMITS}");
    let policy = policy.replace("algorithm: ", "on_store_failure: deny, algorithm: ");
    let running = Running::start(&["http"], &policy);
    eventually("Redis is reached", || left(&running)[0] == json!(1000));
    running
}

/// A server for each place where states can be.
fn everywhere(check: impl Fn(&Running)) {
    check(&in_memory());
    check(&in_redis(&Server::start(Flavour::Redis)));
}

fn reserve(running: &Running, body: &Value) -> Answer {
    running.ask(Door::Http, "POST /v1/reserve", &body.to_string())
}

/// The name of a reservation of user 42's.
fn reserved(running: &Running, cost: u32) -> String {
    let answer = reserve(running, &json!({"attributes": {"user": "42"}, "cost": cost}));
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()["reservation"].as_str().expect("it is named").to_owned()
}

fn settle(running: &Running, reservation: &str, cost: u32) -> Answer {
    let body = json!({"reservation": reservation, "cost": cost});
    running.ask(Door::Http, "POST /v1/settle", &body.to_string())
}

/// What user 42 has left of each limit.
fn left(running: &Running) -> Vec<Value> {
    remaining(&running.ask(Door::Http, "GET /v1/check?user=42&cost=0", ""))
}

fn remaining(answer: &Answer) -> Vec<Value> {
    let answer = answer.json();
    let limits = answer["limits"].as_array().expect("limits are told");
    limits.iter().map(|limit| limit["remaining"].clone()).collect()
}

#[test]
fn a_reservation_is_a_check_that_can_be_settled() {
    everywhere(|running| {
        let answer = reserve(running, &json!({"attributes": {"user": "42"}, "cost": 60}));
        assert_eq!(answer.status, 200);
        assert_eq!(answer.field("x-ratelimit-remaining"), Some("9"), "of calls");
        assert_eq!(remaining(&answer), [json!(940), json!(9), json!(40)]);
        let name = answer.json()["reservation"].as_str().unwrap().to_owned();
        assert_eq!(name.len(), 32);

        let settled = settle(running, &name, 20);
        assert_eq!((settled.status, &settled.json()["settled"]), (200, &json!(true)));
        assert_eq!(remaining(&settled), [json!(980), json!(9), json!(80)], "calls cost their own");
        assert_eq!(settled.json()["limits"][0]["key"], "tokens:42");
        assert_eq!(left(running), remaining(&settled));
    });
}

#[test]
fn more_than_was_reserved_is_charged_past_the_end() {
    everywhere(|running| {
        let name = reserved(running, 50);
        let settled = settle(running, &name, 1500);
        assert_eq!(settled.status, 200);
        let tokens = &settled.json()["limits"][0];
        assert_eq!((&tokens["allowed"], &tokens["remaining"]), (&json!(false), &json!(0)));
        assert!(tokens["retry_after_ms"].is_u64());
        let answer = running.ask(Door::Http, "GET /v1/check?user=42", "");
        assert_eq!(answer.status, 429, "until tomorrow");
    });
}

#[test]
fn what_costs_nothing_at_first_is_charged_in_the_end_and_what_failed_is_settled_at_nothing() {
    everywhere(|running| {
        let name = reserved(running, 0);
        assert_eq!(left(running), [json!(1000), json!(10), json!(100)]);
        assert_eq!(remaining(&settle(running, &name, 70))[0], json!(930));
        let name = reserved(running, 400);
        assert_eq!(remaining(&settle(running, &name, 0))[0], json!(930));
    });
}

#[test]
fn repeated_settlements_are_answered_alike_whatever_they_say() {
    everywhere(|running| {
        let name = reserved(running, 100);
        let first = settle(running, &name, 30);
        running.ask(Door::Http, "GET /v1/check?user=42&cost=5", "");
        for cost in [30, 30, 999] {
            let again = settle(running, &name, cost);
            assert_eq!((again.status, &again.body), (200, &first.body));
        }
        assert_eq!(left(running)[0], json!(965));
    });
}

#[test]
fn of_settlements_at_once_one_has_an_effect_and_all_the_same_answer() {
    everywhere(|running| {
        for round in 1..=4 {
            let name = &reserved(running, 100);
            let answers: Vec<Answer> = thread::scope(|scope| {
                let threads = [(); 6].map(|()| scope.spawn(|| settle(running, name, 10)));
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            for answer in &answers {
                assert_eq!((answer.status, &answer.body), (200, &answers[0].body));
            }
            assert_eq!(left(running)[0], json!(1000 - 10 * round));
        }
    });
}

#[test]
fn a_denied_request_has_nothing_to_settle() {
    let running = in_memory();
    let answer = reserve(&running, &json!({"attributes": {"user": "42"}, "cost": 1001}));
    assert_eq!(answer.status, 429);
    assert_eq!(answer.json().get("reservation"), None);
    assert_eq!(left(&running)[0], json!(1000));
    let other = reserve(&running, &json!({})).json();
    assert!(other["reservation"].is_string(), "what is under no limit can be settled too");
    assert_eq!(settle(&running, other["reservation"].as_str().unwrap(), 5).status, 200);
}

#[test]
fn slots_are_released_by_their_lease_and_not_by_settling() {
    everywhere(|running| {
        let body = json!({"attributes": {"user": "42", "worker": "7"}, "cost": 10});
        let answer = reserve(running, &body).json();
        let name = answer["reservation"].as_str().unwrap();
        assert_eq!(remaining(&settle(running, name, 5))[3], json!(0), "the slot is still held");
        let release = json!({"lease": answer["lease"]}).to_string();
        assert_eq!(running.ask(Door::Http, "POST /v1/release", &release).status, 200);
        let jobs = running.ask(Door::Http, "GET /v1/check?worker=7&cost=0", "");
        assert_eq!(remaining(&jobs), [json!(1)]);
    });
}

#[test]
fn what_is_no_reservation_and_no_settlement_is_refused_and_changes_nothing() {
    let running = in_memory();
    for body in [
        r#"{"attributes": {"user": "42"}, "ttl_ms": 0}"#,
        r#"{"attributes": {"user": "42"}, "ttl_ms": 3600001}"#,
        r#"{"attributes": {"user": "42"}, "ttl_ms": "60"}"#,
        r#"{"attributes": {"user": "42"}, "ttl_ms": -1}"#,
        r#"{"attributes": {"user": "42"}, "ttl": 5}"#,
        r#"{"attributes": {"user": "42"}, "cost": -1}"#,
        "[]",
        "",
    ] {
        assert_eq!(running.ask(Door::Http, "POST /v1/reserve", body).status, 400, "{body}");
    }
    assert_eq!(left(&running)[0], json!(1000));
    let longest = json!({"attributes": {"user": "42"}, "cost": 10, "ttl_ms": 3_600_000});
    let name = reserve(&running, &longest).json()["reservation"].as_str().unwrap().to_owned();
    for cost in ["-1", "1.5", "1e400", "\"1\"", "NaN", "0x10", "18446744073709551615", "null"] {
        let body = format!(r#"{{"reservation": "{name}", "cost": {cost}}}"#);
        assert_eq!(running.ask(Door::Http, "POST /v1/settle", &body).status, 400, "{cost}");
    }
    let body = json!({"reservation": name}).to_string();
    assert_eq!(running.ask(Door::Http, "POST /v1/settle", &body).status, 400, "a cost is needed");
    assert_eq!(left(&running)[0], json!(990));
    for unknown in ["", "x", &"0".repeat(32), &"+".repeat(32), &"f".repeat(33)] {
        assert_eq!(settle(&running, unknown, 1).status, 404, "{unknown:?}");
    }
    for path in ["/v1/reserve", "/v1/settle"] {
        let answer = running.ask(Door::Http, &format!("GET {path}"), "");
        assert_eq!((answer.status, answer.field("allow")), (405, Some("POST")));
    }
    assert_eq!(settle(&running, &name, 4).status, 200);
    assert_eq!(left(&running)[0], json!(996));
}

#[test]
fn a_reservation_is_known_to_the_server_that_gave_it_and_what_it_settles_to_all() {
    let redis = Server::start(Flavour::Redis);
    let servers = [in_redis(&redis), in_redis(&redis)];
    let name = reserved(&servers[0], 100);
    assert_eq!(settle(&servers[1], &name, 10).status, 404);
    assert_eq!(settle(&servers[0], &name, 10).status, 200);
    assert_eq!(left(&servers[1])[0], json!(990));
}
