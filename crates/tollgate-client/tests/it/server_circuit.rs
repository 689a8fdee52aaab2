//! Which answers of a server mean that it is there, and what follows from the others.

use std::pin::Pin;
use std::task::Poll;

use serde_json::json;
use tokio::task::yield_now;
use tokio::time::timeout;
use tollgate_client::{Check, Client, Descriptors, Fallback, ServerError, Source, Verdict};

use crate::support::running::{LONG, Running};
use crate::support::scripted::{Scripted, allowed};
use crate::told::Lines;

fn user() -> Check {
    Check::new(&[("user", "a")], 0).expect("a check")
}

fn anna() -> Descriptors {
    Descriptors::new("shop", &[&[("user", "anna")]], 0).expect("a descriptor")
}

/// To the server this is one attribute twice.
fn nonsense() -> Check {
    Check::new(&[("header:x", "1"), ("header:X", "2")], 1).expect("a check")
}

#[tokio::test]
async fn a_wrong_question_is_no_failure_of_the_server() {
    let running = Running::start();
    let client = running.client().fallback(Fallback::Deny).start();
    for _ in 0..20 {
        let verdict = client.check(&nonsense()).await;
        assert_eq!(verdict.source, Source::Fallback);
        let why = verdict.why_fallback.unwrap();
        assert!(why.starts_with("the server answered 400: "), "{why}");
    }
    let verdict = client.check(&user()).await;
    assert_eq!((verdict.source, verdict.why_fallback), (Source::Server, None));
}

/// Five are asked, and then nobody for a second.
async fn check_left_alone(status: u16, mut ask: impl AsyncFnMut(&Client)) {
    let scripted = Scripted::start(move |_| (status, json!({}))).await;
    let client = scripted.client().start();
    for _ in 0..20 {
        ask(&client).await;
    }
    let calls = scripted.calls().len();
    assert!((5..20).contains(&calls), "{calls} calls were answered with {status}");
}

#[tokio::test]
async fn a_server_that_fails_is_left_alone_whatever_it_was_asked() {
    for status in [500, 503] {
        check_left_alone(status, async |client| {
            assert_eq!(client.check(&user()).await.source, Source::Fallback);
        })
        .await;
        check_left_alone(status, async |client| {
            assert_eq!(client.reserve(&user(), LONG).await.source, Source::Fallback);
        })
        .await;
        check_left_alone(status, async |client| {
            let released = client.release("a").await;
            assert!(matches!(released, Err(ServerError::Away { .. })), "{released:?}");
        })
        .await;
    }
}

/// A limit that could not count answers 503 to a reservation, and that is a verdict.
#[tokio::test]
async fn a_verdict_is_one_whatever_its_status() {
    let denied = || json!({"allowed": false, "limits": [], "reason": "uncounted"});
    let scripted = Scripted::start(move |_| (503, denied())).await;
    let client = scripted.client().start();
    for _ in 0..20 {
        let Verdict { source, reason, .. } = client.reserve(&user(), LONG).await;
        assert_eq!((source, reason.as_deref()), (Source::Server, Some("uncounted")));
    }
}

/// Checks that have been asked for, all at once.
async fn asked(client: &Client, count: usize) -> Vec<Pin<Box<impl Future<Output = Verdict>>>> {
    let check = |_| {
        let client = client.clone();
        Box::pin(async move { client.check(&user()).await })
    };
    let mut checks: Vec<_> = (0..count).map(check).collect();
    std::future::poll_fn(|context| {
        let are_waiting = checks.iter_mut().all(|check| check.as_mut().poll(context).is_pending());
        assert!(are_waiting, "nobody has answered yet");
        Poll::Ready(())
    })
    .await;
    checks
}

#[tokio::test]
async fn those_who_may_not_ask_are_told_so_by_one_answer() {
    let scripted = Scripted::start(|_| (401, json!({"detail": "show a token"}))).await;
    let client = scripted.client().start();
    for check in asked(&client, 200).await {
        let why = check.await.why_fallback.unwrap();
        assert!(why.starts_with("the server answered 401"), "{why}");
        assert!(why.ends_with("show a token"), "all are told the reason: {why}");
    }
    assert_eq!(scripted.calls().len(), 1);
}

/// At another door of a server, or at a stranger's, nothing is found. That is no news of a reservation.
#[tokio::test]
async fn only_tollgate_knows_that_a_reservation_or_a_lease_has_ended() {
    let stranger = json!({"error": "not found"});
    let other_door = json!({"status": 404, "detail": "there is no /v1/settle here"});
    for body in [json!(null), stranger, other_door, json!({"detail": "no such route"})] {
        let told = body.to_string();
        let scripted = Scripted::start(move |_| (404, body.clone())).await;
        let client = scripted.client().start();
        for answered in
            [client.settle("a", 1).await, client.release("a").await, client.renew("a").await]
        {
            let is_said = matches!(answered, Err(ServerError::Unwilling { status: 404, .. }));
            assert!(is_said, "{told}: {answered:?}");
        }
    }
    for body in [json!(null), json!({"ok": true}), json!({"settled": false, "allowed": true})] {
        let told = body.to_string();
        let scripted = Scripted::start(move |_| (200, body.clone())).await;
        let client = scripted.client().start();
        for answered in
            [client.settle("a", 1).await, client.release("a").await, client.renew("a").await]
        {
            let error = answered.expect_err(&told);
            assert!(
                matches!(error, ServerError::Unwilling { status: 200, .. }),
                "{told}: {error:?}"
            );
            assert!(error.to_string().contains("no answer of tollgate"), "{error}");
        }
    }
    let running = Running::start();
    let client = running.client().start();
    assert_eq!(client.settle(&"0".repeat(32), 1).await, Ok(false));
    assert_eq!(client.release("0").await, Ok(false));
    assert_eq!(client.renew("0").await, Ok(false));
}

/// Five that travel in one call are one failure, and not five in a row.
#[tokio::test]
async fn a_call_that_fails_is_one_failure_however_many_travel_in_it() {
    let scripted = Scripted::start(|_| (500, json!({}))).await;
    let client = scripted.client().start();
    for calls in 1..=5 {
        for check in asked(&client, 20).await {
            assert_eq!(check.await.source, Source::Fallback);
        }
        assert_eq!(scripted.calls().len(), calls);
    }
    let why = client.check(&user()).await.why_fallback.unwrap();
    assert!(why.contains("does not work of late"), "{why}");
}

/// Waits until so many calls have arrived.
async fn arrived(scripted: &Scripted, count: usize) {
    let arrive = async {
        while scripted.calls().len() < count {
            yield_now().await;
        }
    };
    timeout(LONG, arrive).await.expect("they arrive");
}

/// Both connections are busy, and then what has waited is asked: the check first, since the others are a call each.
#[tokio::test]
async fn checks_do_not_wait_for_calls() {
    let scripted = Scripted::start(|call| match call.as_array() {
        Some(checks) => (200, vec![allowed(); checks.len()].into()),
        None => (200, json!({"released": true})),
    })
    .await;
    let client = scripted.client().start();
    scripted.hold(true);
    let _first = asked(&client, 1).await;
    arrived(&scripted, 1).await;
    let _second = asked(&client, 1).await;
    arrived(&scripted, 2).await;
    let mut release = Box::pin(client.release("a"));
    let begun = std::future::poll_fn(|context| Poll::Ready(release.as_mut().poll(context))).await;
    assert!(begun.is_pending(), "nobody has answered yet");
    let check = asked(&client, 1).await;
    scripted.hold(false);
    assert_eq!(release.await, Ok(true));
    for check in check {
        assert_eq!(check.await.source, Source::Server);
    }
    let is_check: Vec<bool> = scripted.calls().iter().map(serde_json::Value::is_array).collect();
    assert_eq!(is_check, [true, true, true, false]);
}

#[tokio::test]
async fn nobody_asks_in_halves_for_those_who_have_gone() {
    let scripted = Scripted::start(|call| match call.as_array().map(Vec::len) {
        Some(1) => (200, json!([allowed()])),
        _ => (400, json!({})),
    })
    .await;
    let client = scripted.client().start();
    scripted.hold(true);
    let checks = asked(&client, 64).await;
    arrived(&scripted, 1).await;
    drop(checks);
    scripted.hold(false);
    for _ in 0..20 {
        assert_eq!(client.check(&user()).await.source, Source::Server);
    }
    let checks: Vec<usize> =
        scripted.calls().iter().map(|call| call.as_array().unwrap().len()).collect();
    assert_eq!(checks, [&[64][..], &[1; 20]].concat());
}

#[tokio::test]
async fn the_right_token_opens_both_doors() {
    let running = Running::with_token();
    // As it is in a file.
    let client = running.client().token("sesame\n").unwrap().start();
    assert_eq!(client.check(&user()).await.source, Source::Server);
    let grpc = running.grpc_client().token("sesame").unwrap().start_grpc();
    assert_eq!(grpc.check(&anna()).await.source, Source::Server);
}

/// Asks with the wrong token at both doors, and tells the reasons of the fallback.
async fn shut_out(running: &Running) -> [String; 2] {
    let client = running.client().token("simsalabim").expect("a token").start();
    let grpc = running.grpc_client().token("simsalabim").expect("a token").start_grpc();
    let mut whys = [String::new(), String::new()];
    for _ in 0..3 {
        let verdicts = [client.check(&user()).await, grpc.check(&anna()).await];
        whys = verdicts.map(|verdict| verdict.why_fallback.expect("it may not ask"));
    }
    assert!(matches!(client.release("a").await, Err(ServerError::Unwilling { status: 401, .. })));
    whys
}

/// Everything is allowed then, unless said otherwise: that must not go unnoticed, nor fill the log.
#[test]
fn a_wrong_token_is_a_warning_once_a_minute() {
    let running = Running::with_token();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let lines = Lines::default();
    let whys = tracing::subscriber::with_default(lines.clone(), || {
        // Who first tells of something, on whatever thread, decides whether anybody listens to it.
        runtime.block_on(shut_out(&running));
        tracing::callsite::rebuild_interest_cache();
        lines.0.lock().unwrap().clear();
        runtime.block_on(shut_out(&running))
    });
    assert!(whys[0].starts_with("the server answered 401: "), "{whys:?}");
    assert!(whys[1].starts_with("the server answered 16: "), "{whys:?}");
    assert!(whys.iter().all(|why| !why.contains("missing")), "it is there, and wrong: {whys:?}");
    let lines = lines.0.lock().unwrap();
    let warnings = lines.iter().filter(|line| line.starts_with("WARN the server did not decide"));
    assert_eq!(warnings.count(), 2, "{lines:?}");
}
