//! A client of a real server over gRPC, over a network that fails when it is told to.

use std::time::Duration;

use tokio::task::{JoinSet, yield_now};
use tokio::time::{advance, pause, resume, timeout};
use tollgate_client::{Descriptors, Fallback, GrpcClient, ServerError, Source, Verdict};
use tollgate_core::{Limit, Quota};

use crate::support::running::{LONG, Running};
use crate::support::{SECOND, now};

fn of(key: &str, value: &str, hits: u32) -> Descriptors {
    Descriptors::new("shop", &[&[(key, value)]], hits).expect("a descriptor")
}

async fn remaining(client: &GrpcClient, key: &str, value: &str) -> Option<u64> {
    let verdict = client.check(&of(key, value, 0)).await;
    assert_eq!(verdict.source, Source::Server);
    verdict.limits[0].remaining
}

fn told(verdict: &Verdict) -> Vec<(bool, Option<u64>)> {
    verdict.limits.iter().map(|limit| (limit.is_allowed, limit.remaining)).collect()
}

#[tokio::test]
async fn a_check_is_decided_by_the_server() {
    let running = Running::start();
    let client = running.grpc_client().start_grpc();
    let first = client.check(&of("user", "anna", 2)).await;
    assert!(first.is_allowed && first.source == Source::Server, "{first:?}");
    let limit = &first.limits[0];
    assert_eq!((&*limit.name, &*limit.key), ("calm", "shop: user=anna"));
    assert_eq!((limit.limit, limit.remaining), (Some(3), Some(1)));
    let second = client.check(&of("user", "anna", 2)).await;
    assert!(!second.is_allowed && second.source == Source::Server, "{second:?}");
    assert!(second.retry_after.is_some_and(|wait| wait > Duration::from_secs(1_000)), "{second:?}");
    assert_eq!(remaining(&client, "user", "ben").await, Some(3));
    assert_eq!(running.grpc.dials(), 1);
}

#[tokio::test]
async fn every_descriptor_of_a_check_is_answered() {
    let running = Running::start();
    let client = running.grpc_client().start_grpc();
    let entries: [&[(&str, &str)]; 3] = [&[("user", "a")], &[("user", "b")], &[("nobody", "c")]];
    client.check(&of("user", "b", 3)).await;
    let verdict = client.check(&Descriptors::new("shop", &entries, 1).unwrap()).await;
    assert!(!verdict.is_allowed);
    assert_eq!(told(&verdict), [(true, Some(2)), (false, Some(0)), (true, None)]);
}

/// The protocol has no reservations; what was taken can be given back, and more can be taken.
#[tokio::test]
async fn what_was_reserved_is_brought_to_what_was_used() {
    let running = Running::start();
    let client = running.grpc_client().start_grpc();
    let guess = of("user", "a", 2);
    let (verdict, reserved) = client.reserve(&guess).await;
    assert!(verdict.is_allowed);
    assert_eq!(remaining(&client, "user", "a").await, Some(1));
    assert_eq!(client.settle(reserved.unwrap(), 0).await, Ok(true));
    assert_eq!(remaining(&client, "user", "a").await, Some(3));
    let (_, reserved) = client.reserve(&guess).await;
    assert_eq!(client.settle(reserved.unwrap(), 2).await, Ok(true));
    assert_eq!(remaining(&client, "user", "a").await, Some(1));
    let (_, reserved) = client.reserve(&of("user", "a", 0)).await;
    assert_eq!(client.settle(reserved.unwrap(), 2).await, Ok(false), "there is no more");
    assert_eq!(remaining(&client, "user", "a").await, Some(1));
}

#[tokio::test]
async fn what_the_server_did_not_charge_is_not_given_back() {
    let running = Running::start();
    let client = running.grpc_client().start_grpc();
    let (denied, nothing) = client.reserve(&of("user", "a", 4)).await;
    assert!(!denied.is_allowed && nothing.is_none());
    running.grpc.refuse();
    let away = running.grpc_client().start_grpc();
    let (allowed, nothing) = away.reserve(&of("user", "a", 1)).await;
    assert!(allowed.is_allowed && allowed.source == Source::Fallback && nothing.is_none());
}

#[tokio::test]
async fn checks_that_are_made_together_share_a_connection_and_nothing_else() {
    let running = Running::start();
    let client = running.grpc_client().start_grpc();
    let mut checks = JoinSet::new();
    for _ in 0..1_500 {
        let client = client.clone();
        checks.spawn(async move { client.check(&of("many", "x", 1)).await });
    }
    let verdicts = checks.join_all().await;
    assert!(verdicts.iter().all(|verdict| verdict.source == Source::Server));
    assert_eq!(verdicts.iter().filter(|verdict| verdict.is_allowed).count(), 1_000);
    assert_eq!(running.grpc.dials(), 1);
}

#[tokio::test]
async fn when_the_server_is_away_the_fallback_decides() {
    let running = Running::start();
    running.grpc.refuse();
    let limit = Limit::token_bucket(Quota::per_hour(2), 2).unwrap();
    let fallback = Fallback::Limit { limit, per: vec!["user".to_owned()] };
    let client = running.grpc_client().fallback(fallback).start_grpc();
    let mut answers = Vec::new();
    for user in ["a", "a", "a", "b"] {
        let verdict = client.check(&of("user", user, 1)).await;
        assert_eq!(verdict.source, Source::Fallback);
        answers.push(verdict.is_allowed);
    }
    assert_eq!(answers, [true, true, false, true]);
}

#[tokio::test]
async fn a_settlement_that_does_not_arrive_is_said() {
    let running = Running::start();
    let client = running.grpc_client().start_grpc();
    let (_, reserved) = client.reserve(&of("user", "a", 2)).await;
    running.grpc.refuse();
    running.grpc.cut();
    let settled = client.settle(reserved.unwrap(), 1).await;
    assert!(matches!(settled, Err(ServerError::Away { .. })), "{settled:?}");
}

#[tokio::test]
async fn a_server_that_hangs_costs_the_deadline_and_then_nothing() {
    let running = Running::start();
    running.grpc.hang();
    let deadline = Duration::from_millis(50);
    let client = running.grpc_client().deadline(deadline).start_grpc();
    let mut took = Vec::new();
    for _ in 0..50 {
        let start = now();
        assert_eq!(client.check(&of("user", "a", 1)).await.source, Source::Fallback);
        took.push(now() - start);
    }
    let waited = took.iter().filter(|took| **took >= deadline).count();
    assert!((5..=25).contains(&waited), "{took:?}");
}

#[tokio::test]
async fn a_server_that_comes_back_decides_again() {
    let running = Running::start();
    let client = running.grpc_client().start_grpc();
    assert_eq!(remaining(&client, "user", "a").await, Some(3));
    running.grpc.refuse();
    running.grpc.cut();
    let is_away = async || client.check(&of("user", "b", 0)).await.source == Source::Fallback;
    while !is_away().await {}
    running.grpc.heal();
    let comes_back = async {
        while is_away().await {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, comes_back).await.unwrap();
}

#[tokio::test]
async fn a_lost_answer_is_not_asked_for_again() {
    let running = Running::start();
    let client = running.grpc_client().deadline(Duration::from_millis(500)).start_grpc();
    assert!(client.check(&of("user", "a", 1)).await.is_allowed);
    running.grpc.drop_replies();
    assert_eq!(client.check(&of("user", "a", 1)).await.source, Source::Fallback);
    running.grpc.heal();
    let other = running.grpc_client().start_grpc();
    assert_eq!(remaining(&other, "user", "a").await, Some(1));
}

/// Two calls wait over a connection that is dead. The first to give up leaves it; the second leaves nothing that was
/// made meanwhile.
#[tokio::test]
async fn a_call_that_is_late_leaves_its_own_connection_and_no_other() {
    let running = Running::start();
    let client = running.grpc_client().deadline(10 * SECOND).start_grpc();
    assert_eq!(remaining(&client, "user", "a").await, Some(3));
    running.grpc.half_open();
    let ask = || {
        let client = client.clone();
        tokio::spawn(async move { client.check(&of("user", "b", 0)).await.source })
    };
    pause();
    let first = ask();
    yield_now().await;
    advance(5 * SECOND).await;
    let second = ask();
    yield_now().await;
    advance(5 * SECOND + SECOND / 1_000).await;
    assert_eq!(first.await.unwrap(), Source::Fallback);
    resume();
    assert_eq!(remaining(&client, "user", "a").await, Some(3));
    pause();
    advance(5 * SECOND).await;
    assert_eq!(second.await.unwrap(), Source::Fallback);
    resume();
    assert_eq!(remaining(&client, "user", "a").await, Some(3));
    assert_eq!(running.grpc.dials(), 2);
}

/// Its door for HTTP speaks no gRPC.
#[tokio::test]
async fn who_speaks_another_protocol_is_away() {
    let running = Running::start();
    let client = running.client().fallback(Fallback::Deny).start_grpc();
    let verdict = client.check(&of("user", "a", 1)).await;
    assert_eq!((verdict.is_allowed, verdict.source), (false, Source::Fallback));
}
