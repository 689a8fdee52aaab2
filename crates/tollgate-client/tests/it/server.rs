//! A client of a real server, over a network that fails when it is told to.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use tollgate_client::{Check, CheckError, Client, Fallback, ServerError, Source, Verdict, bounds};
use tollgate_core::{Limit, Quota};

use crate::support::now;
use crate::support::running::{LONG, Running};

fn check(name: &str, value: &str, cost: u32) -> Check {
    Check::new(&[(name, value)], cost).expect("a check")
}

fn remaining(verdict: &Verdict) -> Option<u64> {
    verdict.limits.first().and_then(|limit| limit.remaining)
}

#[tokio::test]
async fn a_check_is_decided_by_the_server() {
    let running = Running::start();
    let client = running.client().start();
    let first = client.check(&check("user", "42", 2)).await;
    assert!(first.is_allowed && first.source == Source::Server, "{first:?}");
    assert_eq!((&*first.limits[0].name, &*first.limits[0].key), ("api", "api:42"));
    assert_eq!((first.limits[0].limit, remaining(&first)), (Some(3), Some(1)));
    let second = client.check(&check("user", "42", 2)).await;
    assert!(!second.is_allowed && second.source == Source::Server, "{second:?}");
    assert!(second.retry_after.is_some_and(|wait| wait > Duration::from_secs(1_000)), "{second:?}");
    let other = client.check(&check("user", "43", 1)).await;
    assert_eq!(remaining(&other), Some(2));
    assert!(running.proxy.dials() <= 2, "{} connections were made", running.proxy.dials());
}

#[tokio::test]
async fn what_was_reserved_is_settled_once() {
    let running = Running::start();
    let client = running.client().start();
    let reserved = client.reserve(&check("user", "a", 3), LONG).await;
    assert!(reserved.is_allowed, "{reserved:?}");
    let reservation = reserved.reservation.unwrap();
    assert_eq!(client.settle(&reservation, 1).await, Ok(true));
    assert_eq!(client.settle(&reservation, 1).await, Ok(true));
    assert_eq!(remaining(&client.check(&check("user", "a", 0)).await), Some(2));
    assert_eq!(client.settle(&"0".repeat(32), 1).await, Ok(false));
    let nonsense = client.settle("", 1).await;
    assert!(matches!(nonsense, Ok(false) | Err(ServerError::Refused { .. })), "{nonsense:?}");
}

#[tokio::test]
async fn a_reservation_lasts_as_long_as_the_server_lets_it() {
    let running = Running::start();
    let client = running.client().start();
    for ttl in [Duration::ZERO, Duration::MAX] {
        let reserved = client.reserve(&check("user", "a", 1), ttl).await;
        assert!(reserved.reservation.is_some(), "{ttl:?}: {reserved:?}");
    }
}

#[tokio::test]
async fn a_slot_is_held_renewed_and_released() {
    let running = Running::start();
    let client = running.client().start();
    let held = client.check(&check("worker", "7", 1)).await;
    let lease = held.lease.unwrap();
    assert!(!client.check(&check("worker", "7", 1)).await.is_allowed);
    assert_eq!(client.renew(&lease).await, Ok(true));
    assert_eq!(client.release(&lease).await, Ok(true));
    assert_eq!(client.release(&lease).await, Ok(false));
    assert!(client.check(&check("worker", "7", 1)).await.is_allowed);
}

#[tokio::test]
async fn checks_that_are_made_together_travel_together() {
    let running = Running::start();
    let client = running.client().start();
    let mut checks = JoinSet::new();
    for number in 0..4_000 {
        let client = client.clone();
        checks.spawn(async move { client.check(&check("many", "x", 1 + number % 2)).await });
    }
    let verdicts = checks.join_all().await;
    assert!(verdicts.iter().all(|verdict| verdict.source == Source::Server));
    // Each was decided on its own: ones and twos, 5,000 of them and no more.
    let allowed = verdicts.iter().filter(|verdict| verdict.is_allowed).count();
    assert!((3_000..4_000).contains(&allowed), "{allowed} were allowed");
    assert_eq!(remaining(&client.check(&check("many", "x", 0)).await), Some(0));
    assert!(running.proxy.dials() <= 2);
}

#[tokio::test]
async fn one_that_the_server_does_not_understand_spoils_no_other() {
    let running = Running::start();
    let client = running.client().fallback(Fallback::Deny).start();
    let mut checks = JoinSet::new();
    for number in 0..50 {
        let client = client.clone();
        // To the server these are one attribute twice.
        let attributes: &[(&str, &str)] =
            if number == 25 { &[("header:x", "1"), ("header:X", "2")] } else { &[("many", "y")] };
        let check = Check::new(attributes, 1).expect("a check");
        checks.spawn(async move { client.check(&check).await });
    }
    let verdicts = checks.join_all().await;
    let decided = verdicts.iter().filter(|verdict| verdict.source == Source::Server).count();
    assert_eq!(decided, 49);
}

#[tokio::test]
async fn when_the_server_is_away_the_fallback_decides() {
    let running = Running::start();
    running.proxy.refuse();
    let limit = Limit::token_bucket(Quota::per_hour(2), 2).unwrap();
    let per = vec!["user".to_owned()];
    for (fallback, expected) in [
        (Fallback::Allow, [true, true, true, true]),
        (Fallback::Deny, [false, false, false, false]),
        (Fallback::Limit { limit, per }, [true, true, false, true]),
        (Fallback::Limit { limit, per: Vec::new() }, [true, true, false, false]),
    ] {
        let client = running.client().fallback(fallback.clone()).start();
        let mut answers = Vec::new();
        for user in ["a", "a", "a", "b"] {
            let verdict = client.check(&check("user", user, 1)).await;
            assert_eq!(verdict.source, Source::Fallback);
            answers.push(verdict.is_allowed);
        }
        assert_eq!(answers, expected, "{fallback:?}");
        assert!(client.reserve(&check("user", "c", 0), LONG).await.reservation.is_none());
        assert!(matches!(client.release("x").await, Err(ServerError::Away { .. })));
    }
}

#[tokio::test]
async fn a_server_that_hangs_costs_the_deadline_and_then_nothing() {
    let running = Running::start();
    running.proxy.hang();
    let deadline = Duration::from_millis(50);
    let client = running.client().deadline(deadline).start();
    let mut took = Vec::new();
    for _ in 0..50 {
        let start = now();
        assert_eq!(client.check(&check("user", "a", 1)).await.source, Source::Fallback);
        took.push(now() - start);
    }
    // Five are waited for; then the circuit is open, and only one a second is.
    let waited = took.iter().filter(|took| **took >= deadline).count();
    assert!((5..=25).contains(&waited), "{took:?}");
}

#[tokio::test]
async fn a_server_that_comes_back_decides_again() {
    let running = Running::start();
    let client = running.client().start();
    assert_eq!(client.check(&check("user", "a", 1)).await.source, Source::Server);
    running.proxy.refuse();
    running.proxy.cut();
    let is_away = async || client.check(&check("user", "b", 0)).await.source == Source::Fallback;
    while !is_away().await {}
    running.proxy.heal();
    let comes_back = async {
        while is_away().await {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, comes_back).await.unwrap();
}

#[tokio::test]
async fn a_connection_that_was_closed_meanwhile_is_made_anew() {
    let running = Running::start();
    let client = running.client().start();
    for _ in 0..5 {
        assert_eq!(client.check(&check("many", "z", 1)).await.source, Source::Server);
        running.proxy.cut();
        while running.proxy.open() > 0 {
            tokio::task::yield_now().await;
        }
        running.proxy.heal();
        // Its end may not have been seen yet: then it is not known whether it was charged, and it is
        // not sent twice.
        let again = client.check(&check("many", "z", 0)).await;
        if again.source == Source::Fallback {
            assert_eq!(client.check(&check("many", "z", 0)).await.source, Source::Server);
        }
    }
}

#[tokio::test]
async fn a_lost_answer_is_not_asked_for_again() {
    let running = Running::start();
    let patient = running.client().start();
    let client = running.client().deadline(Duration::from_millis(500)).start();
    assert_eq!(remaining(&patient.check(&check("user", "a", 1)).await), Some(2));
    running.proxy.drop_replies();
    assert_eq!(client.check(&check("user", "a", 1)).await.source, Source::Fallback);
    running.proxy.heal();
    // Over a connection of its own: answers over the others may still get lost.
    let other = running.client().start();
    assert_eq!(remaining(&other.check(&check("user", "a", 0)).await), Some(1));
}

#[test]
fn what_cannot_be_asked_is_said_at_once() {
    let many: Vec<String> = (0..=bounds::CHECK_ATTRIBUTES_MAX).map(|n| n.to_string()).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|name| (&**name, "x")).collect();
    assert_eq!(Check::new(&many, 1), Err(CheckError::TooMany { count: 129 }));
    let long = "x".repeat(bounds::CHECK_BYTES_MAX + 1);
    assert_eq!(Check::new(&[("a", &long)], 1), Err(CheckError::TooLong { bytes: long.len() }));
    let twice = Check::new(&[("a", "1"), ("b", "2"), ("a", "3")], 1).unwrap_err();
    assert_eq!(twice.to_string(), "the attribute \"a\" is there twice");
}

#[test]
fn an_address_is_http_host_and_port() {
    for good in ["http://127.0.0.1:8080", "http://localhost/", "http://[::1]:8080", "http://[::1]"]
    {
        Client::connect(good).unwrap();
    }
    for bad in [
        "",
        "127.0.0.1:8080",
        "http://",
        "http://a/b",
        "http://u@h",
        "http://u@h:80",
        "http://a b",
        "http://a?b",
        "http://a:",
        "http://a:0",
        "http://a:99999",
        "http://a:b",
        "http://:8080",
        "http://::1",
    ] {
        let told = Client::connect(bad).unwrap_err().to_string();
        assert!(told.ends_with("is not http://HOST:PORT, such as http://127.0.0.1:8080"), "{told}");
    }
    let error = Client::connect("https://user:s@cret@host:8443").unwrap_err();
    assert_eq!(
        error.to_string(),
        "\"https://***@host:8443\" is asked over TLS, which this client does not speak; give \
         http://HOST:PORT, of the server or of a proxy beside this process that speaks it"
    );
    let error = Client::connect("http://user:s@cret@host:8080").unwrap_err();
    assert!(error.to_string().starts_with("\"http://***@host:8080\" is not"), "{error}");
    assert!(!format!("{error:?}").contains("cret"), "{error:?}");
}

#[test]
fn what_cannot_be_a_token_is_said_at_once_and_not_shown() {
    let connect = || Client::connect("http://localhost").expect("an address");
    for bad in ["", " ", "\n", "open\nsesame", "sesame\0"] {
        let told = connect().token(bad).unwrap_err().to_string();
        assert_eq!(told, "a token is one line of text, and this is none");
    }
    let shown = format!("{:?}", connect().token("sesame").unwrap());
    assert!(!shown.contains("sesame"), "{shown}");
}

/// The fields that the server sends are those that the rules go by: forty at once, of which five may
/// pass, all get through, and none is refused again and again.
#[cfg(feature = "reqwest")]
#[tokio::test]
async fn the_rules_understand_the_server() {
    use std::sync::atomic::Ordering;

    use reqwest_middleware::ClientBuilder;
    use tollgate_client::{ClientMiddleware, Rules};

    let running = Running::start();
    let counted = crate::reqwest::Counted::default();
    let client = ClientBuilder::new(reqwest::Client::new())
        .with(ClientMiddleware::new(Rules::new()))
        .with(counted.clone())
        .build();
    let mut tasks = JoinSet::new();
    for _ in 0..40 {
        let request = client.get(format!("http://{}/v1/check?quick=x", running.proxy.address()));
        tasks.spawn(async move { request.send().await.map(|answer| answer.status().as_u16()) });
    }
    let answers = tasks.join_all().await;
    assert!(answers.iter().all(|status| matches!(status, Ok(200))), "{answers:?}");
    let sent = counted.0.load(Ordering::Relaxed);
    assert!(sent <= 100, "{sent} were sent for 40");
}
