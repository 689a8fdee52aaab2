//! A client of a real server over gRPC, over a network that fails when it is told to.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use tollgate_client::{Descriptors, Fallback, GrpcClient, ServerError, Source, Verdict};
use tollgate_core::{Limit, Quota};

use crate::support::now;
use crate::support::running::{LONG, Running};

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
async fn what_was_taken_is_brought_to_what_was_used() {
    let running = Running::start();
    let client = running.grpc_client().start_grpc();
    let guess = of("user", "a", 2);
    assert!(client.check(&guess).await.is_allowed);
    assert_eq!(client.settle(&guess, 2).await, Ok(true));
    assert_eq!(remaining(&client, "user", "a").await, Some(1));
    assert_eq!(client.settle(&guess, 0).await, Ok(true));
    assert_eq!(remaining(&client, "user", "a").await, Some(3));
    assert!(client.check(&guess).await.is_allowed);
    assert_eq!(client.settle(&guess, 3).await, Ok(true));
    assert_eq!(remaining(&client, "user", "a").await, Some(0));
    assert_eq!(client.settle(&guess, 3).await, Ok(false), "there is no more");
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
    let settled = client.settle(&of("user", "a", 2), 1).await;
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

/// Its door for HTTP speaks no gRPC.
#[tokio::test]
async fn who_speaks_another_protocol_is_away() {
    let running = Running::start();
    let client = running.client().fallback(Fallback::Deny).start_grpc();
    let verdict = client.check(&of("user", "a", 1)).await;
    assert_eq!((verdict.is_allowed, verdict.source), (false, Source::Fallback));
}
