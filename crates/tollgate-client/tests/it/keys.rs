//! A budget is of a host and of whoever asks it: who shows another key has another.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, Method, Request};
use tokio::runtime::Builder;
use tokio::time::advance;
use tollgate_client::bounds::KEYS_MAX;
use tollgate_client::{
    Breaker, Change, ClientLayer, Reason, Retry, Rules, SendError, State, Throttle,
};
use tower_layer::Layer;

use crate::layer::{Answered, Client, request, send, status};
use crate::support::server::{Server, answer};
use crate::support::{SECOND, fields, now};
use crate::throttle::budget;
use crate::told::Lines;

const HOST: &str = "api.example.com";

/// A request that shows these fields; what it asks for is told by its body.
fn of(lines: &str, body: &str) -> Request<String> {
    let mut request = request(Method::GET);
    *request.headers_mut() = fields(lines);
    body.clone_into(request.body_mut());
    request
}

/// A server that refuses what asks for `refuse`, fails at `fail`, says that nothing is left for a minute to `last`, and lets the
/// others go.
fn server() -> Server {
    Server::new(Duration::ZERO, |_, arrival| match arrival.body.as_str() {
        "refuse" => answer(429, ""),
        "fail" => answer(500, ""),
        "last" => answer(200, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 60"),
        _ => answer(200, ""),
    })
}

fn client(rules: Rules) -> Client {
    ClientLayer::new(rules).layer(server())
}

/// Whoever shows `first` is told that nothing is left; how long does one who shows `second` wait?
async fn waits(first: &str, second: &str) -> Duration {
    let rules = Rules::new();
    // Two clients of one process.
    let [mut one, mut other] = [client(rules.clone()), client(rules)];
    assert_eq!(status(&send(&mut one, of(first, "last")).await), 200);
    let start = now();
    assert_eq!(status(&send(&mut other, of(second, "more")).await), 200);
    now() - start
}

#[track_caller]
fn check(waited: Duration, is_held_up: bool, told: &str) {
    assert_eq!(waited >= 60 * SECOND, is_held_up, "{told}: {waited:?}");
    assert!(is_held_up || waited.is_zero(), "{told}: {waited:?}");
}

#[tokio::test(start_paused = true)]
async fn two_keys_to_one_host_do_not_hold_each_other_up_and_one_key_of_two_clients_does() {
    for name in ["Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "Private-Token"] {
        let [anna, ben] = ["anna", "ben"].map(|key| format!("{name}: {key}"));
        check(waits(&anna, &anna).await, true, &anna);
        check(waits(&anna, &ben).await, false, &anna);
        check(waits(&anna, "").await, false, &anna);
        check(waits("", &anna).await, false, &anna);
    }
    check(waits("", "").await, true, "without a key");
    check(waits("Proxy-Authorization: anna", "Proxy-Authorization: ben").await, true, "a proxy's");
}

/// Each of these requests is signed by itself.
#[tokio::test(start_paused = true)]
async fn who_signs_each_request_has_one_budget() {
    let signed = |key: &str, signature: &str| {
        format!(
            "Authorization: AWS4-HMAC-SHA256 Credential={key}/20261116/eu-west-1/s3/aws4_request, \
             SignedHeaders=host, Signature={signature}"
        )
    };
    let one = signed("AKID1", "aaaa");
    check(waits(&one, &signed("AKID1", "bbbb")).await, true, "the same key");
    check(waits(&one, &signed("AKID2", "aaaa")).await, false, "another key");
}

#[tokio::test(start_paused = true)]
async fn the_lane_of_a_key_can_be_reopened() {
    let throttle = Throttle::new();
    let mut client = client(Rules::new().throttle(throttle.clone()));
    let anna = "Authorization: Bearer anna";
    send(&mut client, of(anna, "last")).await.unwrap();
    throttle.lane(HOST).reopen();
    throttle.lane_of(HOST, &HeaderMap::new()).reopen();
    throttle.lane_of(HOST, &fields(anna)).reopen();
    let start = now();
    send(&mut client, of(anna, "more")).await.unwrap();
    assert_eq!(now(), start);
}

fn told_breaker(breaker: Breaker) -> (Breaker, Arc<Mutex<Vec<Change>>>) {
    let changes: Arc<Mutex<Vec<Change>>> = Arc::default();
    let told = Arc::clone(&changes);
    let listener = move |change: &Change| {
        told.lock().expect("nobody panics with it").push(change.clone());
    };
    (breaker.on_change(listener), changes)
}

/// For more than a minute whoever shows these fields is refused.
async fn storm(client: &mut Client, lines: &str) -> Answered {
    for _ in 0..13 {
        send(client, of(lines, "refuse")).await.expect("it is answered");
        advance(5 * SECOND).await;
    }
    send(client, of(lines, "refuse")).await
}

fn without_retries() -> Rules {
    Rules::new().retry(Retry::new().retries(0))
}

#[tokio::test(start_paused = true)]
async fn refusals_for_too_long_open_the_circuit_for_the_key_that_is_refused_alone() {
    let keys = ["Authorization: Bearer swordfish", "X-Api-Key: ben", ""];
    for refused in keys {
        let (breaker, changes) = told_breaker(Breaker::new());
        let mut client = client(without_retries().breaker(breaker.clone()));
        let answered = storm(&mut client, refused).await;
        let Err(SendError::Open(open)) = answered else { panic!("{answered:?}") };
        assert_eq!(&*open.key, HOST);
        for other in keys.into_iter().filter(|other| *other != refused) {
            assert_eq!(status(&send(&mut client, of(other, "more")).await), 200, "{refused}");
        }
        assert_eq!(breaker.circuit(HOST).state(), State::Closed);
        let told = changes.lock().unwrap().clone();
        assert_eq!(told.len(), 1);
        assert_eq!((&*told[0].key, told[0].reason), (HOST, Reason::Refusals));
        assert!(!format!("{told:?} {open:?} {open}").contains("swordfish"));
        // It has rested, and is let go again.
        advance(30 * SECOND).await;
        for _ in 0..3 {
            assert_eq!(status(&send(&mut client, of(refused, "more")).await), 200);
        }
        let told: Vec<State> = changes.lock().unwrap().iter().map(|change| change.to).collect();
        assert_eq!(told, [State::Open, State::HalfOpen, State::Closed]);
    }
}

/// That others are let go does not keep a key that is refused from being left alone.
#[tokio::test(start_paused = true)]
async fn what_goes_well_for_another_key_does_not_hide_refusals() {
    let mut client = client(without_retries());
    for _ in 0..13 {
        send(&mut client, of("X-Api-Key: anna", "refuse")).await.unwrap();
        send(&mut client, of("X-Api-Key: ben", "more")).await.unwrap();
        advance(5 * SECOND).await;
    }
    let answered = send(&mut client, of("X-Api-Key: anna", "refuse")).await;
    assert!(matches!(answered, Err(SendError::Open(_))), "{answered:?}");
    assert_eq!(status(&send(&mut client, of("X-Api-Key: ben", "more")).await), 200);
}

/// A request that began before all others is refused after all of them. By then others are to see how it is.
#[tokio::test(start_paused = true)]
async fn a_refusal_that_comes_late_opens_nothing() {
    let rules = without_retries();
    let late = Server::new(95 * SECOND, |_, _| answer(429, ""));
    let mut late = ClientLayer::new(rules.clone()).layer(late);
    let under_way = tokio::spawn(async move { send(&mut late, of("X-Api-Key: anna", "")).await });
    tokio::task::yield_now().await;
    let mut client = client(rules);
    let answered = storm(&mut client, "X-Api-Key: anna").await;
    assert!(matches!(answered, Err(SendError::Open(_))), "{answered:?}");
    assert_eq!(status(&under_way.await.unwrap()), 429);
    assert_eq!(status(&send(&mut client, of("X-Api-Key: anna", "more")).await), 200);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_fails_one_key_is_left_alone_by_all() {
    let mut client = client(without_retries());
    for key in 0..5 {
        let answered = send(&mut client, of(&format!("X-Api-Key: {key}"), "fail")).await;
        assert_eq!(status(&answered), 500);
    }
    let answered = send(&mut client, of("X-Api-Key: another", "more")).await;
    assert!(matches!(answered, Err(SendError::Open(_))), "{answered:?}");
}

/// Failures in a row are those of a host, also if some of its callers are refused meanwhile: whoever refuses works.
#[tokio::test(start_paused = true)]
async fn a_refusal_is_a_sign_of_life() {
    let mut client = client(without_retries());
    for body in ["fail", "fail", "fail", "fail", "refuse", "fail", "fail", "fail", "fail"] {
        send(&mut client, of("X-Api-Key: anna", body)).await.unwrap();
    }
    assert_eq!(status(&send(&mut client, of("X-Api-Key: anna", "more")).await), 200);
}

#[tokio::test(start_paused = true)]
async fn who_shares_a_budget_by_a_rule_of_its_own_is_refused_together() {
    let rules = without_retries().throttle_by(|call| format!("{:?}", call.fields.get("x-user")));
    let mut client = client(rules);
    let answered = storm(&mut client, "X-User: anna\nX-Api-Key: 1").await;
    assert!(matches!(answered, Err(SendError::Open(_))), "{answered:?}");
    let again = send(&mut client, of("X-User: anna\nX-Api-Key: 2", "more")).await;
    assert!(matches!(again, Err(SendError::Open(_))), "{again:?}");
    assert_eq!(status(&send(&mut client, of("X-User: ben\nX-Api-Key: 1", "more")).await), 200);
}

#[tokio::test(start_paused = true)]
async fn one_circuit_is_for_everything_if_that_is_said() {
    let mut client = client(without_retries().break_by(|call| call.host.to_owned()));
    let answered = storm(&mut client, "X-Api-Key: anna").await;
    assert!(matches!(answered, Err(SendError::Open(_))), "{answered:?}");
    let other = send(&mut client, of("X-Api-Key: ben", "more")).await;
    assert!(matches!(other, Err(SendError::Open(_))), "{other:?}");
}

/// Somebody makes up keys. Whoever waits under another goes on waiting, newcomers share a lane, and other hosts have theirs.
#[tokio::test(start_paused = true)]
async fn keys_that_somebody_makes_up_take_no_lane_from_others() {
    let throttle = Throttle::new();
    let mut client = client(Rules::new().throttle(throttle.clone()));
    send(&mut client, of("X-Api-Key: anna", "last")).await.unwrap();
    let start = now();
    let waiting = tokio::spawn({
        let mut client = client.clone();
        async move { status(&send(&mut client, of("X-Api-Key: anna", "more")).await) }
    });
    tokio::task::yield_now().await;
    for key in 0..2 * KEYS_MAX {
        let lane = throttle.lane_of(HOST, &fields(&format!("X-Api-Key: {key}")));
        let pass = lane.pass().await;
        // Once there is no room all who come are told the same: nothing is left.
        let Ok(pass) = pass else { break };
        pass.answered(&budget("X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 300"));
        assert!(key < KEYS_MAX, "newcomers share a lane");
    }
    assert!(!waiting.is_finished());
    assert_eq!(waiting.await.unwrap(), 200);
    assert!(now() - start >= 60 * SECOND);
    // There is room for another host, whose lane remembers.
    let other = || throttle.lane_of("other.example.com", &fields("X-Api-Key: new"));
    let used_up = budget("X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 60");
    other().pass().await.unwrap().answered(&used_up);
    let start = now();
    other().pass().await.unwrap();
    assert!(now() - start >= 59 * SECOND);
}

/// Waits, is refused, is tried again, and in the end not made.
async fn doings() -> Rules {
    let retry = Retry::new().retries(1).deadline(100 * SECOND);
    let rules = Rules::new().retry(retry).throttle(Throttle::new().wait_max(90 * SECOND));
    let mut client = client(rules.clone());
    let shown = "Authorization: Bearer swordfish";
    for body in ["last", "refuse"] {
        send(&mut client, of(shown, body)).await.expect("it is answered");
    }
    let mut other = ClientLayer::new(rules.clone())
        .layer(Server::new(Duration::ZERO, |_, _| answer(429, "Retry-After: 1000")));
    send(&mut other, of(shown, "")).await.expect("it is answered");
    send(&mut other, of(shown, "")).await.expect_err("it would wait for too long");
    rules
}

#[test]
fn whom_it_asks_is_told_and_its_key_is_shown_nowhere() {
    let lines = Lines::default();
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let shown = tracing::subscriber::with_default(lines.clone(), || {
        // Who first tells of something, on whatever thread, decides whether anybody listens to it.
        runtime.block_on(doings());
        tracing::callsite::rebuild_interest_cache();
        lines.0.lock().unwrap().clear();
        format!("{:?}", runtime.block_on(doings()))
    });
    let lines = lines.0.lock().unwrap();
    for told in ["waited for its budget", "tries again", "does not try again", "was not made"] {
        let said = format!("DEBUG {told} key=\"{HOST}\"");
        assert!(lines.iter().any(|line| line.starts_with(&said)), "{told}: {lines:?}");
    }
    assert!(!format!("{lines:?} {shown}").contains("swordfish"), "{lines:?} {shown}");
}
