//! What decides while the server is away: a limit of this process.

use tollgate_client::{Check, Client, Fallback, Source, Verdict};
use tollgate_core::{Limit, Micros, Quota};

use crate::support::running::{LONG, Running};
use crate::support::{SECOND, pass};

/// A client whose server is away.
fn alone(limit: Limit) -> (Running, Client) {
    let running = Running::start();
    running.proxy.refuse();
    let fallback = Fallback::Limit { limit, per: vec!["user".to_owned()] };
    let client = running.client().fallback(fallback).start();
    (running, client)
}

async fn check(client: &Client, user: &str) -> Verdict {
    let verdict = client.check(&Check::new(&[("user", user)], 1).expect("a check")).await;
    assert_eq!(verdict.source, Source::Fallback);
    verdict
}

#[tokio::test]
async fn every_user_has_a_limit_of_its_own_however_many_they_are() {
    let (_running, client) = alone(Limit::token_bucket(Quota::per_hour(1), 1).unwrap());
    for round in 0..2 {
        for user in 0..3_000 {
            let is_allowed = check(&client, &user.to_string()).await.is_allowed;
            assert_eq!(is_allowed, round == 0, "user {user}, the time {round}");
        }
    }
}

#[tokio::test]
async fn a_slot_of_the_fallback_is_held_renewed_and_released() {
    let (_running, client) = alone(Limit::concurrency(1, Micros::from_secs(11)).unwrap());
    let lease = check(&client, "a").await.lease.unwrap();
    let other = check(&client, "a").await;
    assert_eq!((other.is_allowed, other.lease, other.retry_after), (false, None, None));
    assert!(check(&client, "b").await.is_allowed);
    pass(6 * SECOND).await;
    assert_eq!(client.renew(&lease).await, Ok(true));
    pass(6 * SECOND).await;
    assert!(!check(&client, "a").await.is_allowed, "its lease was renewed");
    assert_eq!(client.release(&lease).await, Ok(true));
    assert_eq!(client.release(&lease).await, Ok(false));
    assert_eq!(client.renew(&lease).await, Ok(false));
    assert!(check(&client, "a").await.is_allowed);
}

#[tokio::test]
async fn a_lease_of_the_fallback_means_nothing_to_another() {
    let (running, client) = alone(Limit::concurrency(1, Micros::from_secs(3_600)).unwrap());
    let lease = check(&client, "a").await.lease.unwrap();
    assert_eq!(running.client().start().release(&lease).await, Ok(false));
    assert!(!check(&client, "a").await.is_allowed);
}

#[tokio::test]
async fn a_leaky_bucket_of_the_fallback_says_how_long_to_hold() {
    let (_running, client) = alone(Limit::leaky_bucket(Quota::per_hour(1), 2, None).unwrap());
    let first = check(&client, "a").await;
    assert!(first.is_allowed && first.delay.is_zero(), "{first:?}");
    let second = check(&client, "a").await;
    assert!(second.is_allowed, "{second:?}");
    assert!(second.delay > LONG && second.retry_after.is_none(), "{second:?}");
    let mut last = second;
    while last.is_allowed {
        last = check(&client, "a").await;
    }
    assert!(last.delay.is_zero() && last.retry_after.is_some(), "{last:?}");
}
