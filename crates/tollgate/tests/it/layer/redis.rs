//! The layer over a store in Redis: it waits for the verdict, and nothing is lost while it does.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http_body_util::BodyExt;
use tollgate::http::TollgateLayer;
use tollgate::redis::{RedisSettings, RedisStore, Servers};
use tollgate::{Clock, Limiter};
use tollgate_harness::{Flavour, Server, eventually};
use tower_layer::Layer;

use super::settled::{NO_MORE, Parts, answered, kilobytes, ok, passed};
use super::{Door, Yes, call, get, left, send, until_left};
use crate::{MIDNIGHT, parse};

/// A layer over a Redis that has been reached.
fn door(server: &Server, policy: &str) -> Door {
    let clock = Clock::manual(MIDNIGHT);
    let settings = RedisSettings {
        servers: Servers::Single(server.url()),
        // For machines that are busy with other tests.
        timeout: Duration::from_secs(10),
        prefix: "layer".to_owned(),
        nodes: None,
    };
    let store = RedisStore::open_at(settings, clock.clone()).expect("a URL of the harness");
    let limiter = Arc::new(Limiter::new(parse(policy), store.clone()).expect("a few limits"));
    // Until then every limit is settled without it.
    eventually("Redis is reached", || {
        let before = store.settled();
        left(&limiter);
        (store.settled() == before).then_some(())
    });
    let layer = TollgateLayer::new(Arc::clone(&limiter));
    Door { limiter, clock, layer }
}

#[tokio::test]
async fn a_verdict_that_is_on_its_way_is_waited_for() {
    let server = Server::start(Flavour::Redis);
    let door = door(&server, "limits: [{name: api, rate: 2/minute, algorithm: fixed_window}]");
    for (status, left) in [(200, "1"), (200, "0"), (429, "0")] {
        let answer = door.get("/").await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.field("x-ratelimit-remaining"), left);
    }
}

#[tokio::test]
async fn a_slot_in_redis_is_held_until_the_end_of_the_body() {
    let server = Server::start(Flavour::Redis);
    let door = door(&server, "limits: [{name: jobs, concurrency: 1}]");
    let response = call(&mut door.layer.layer(Yes), get("/")).await.await.unwrap();
    assert_eq!(left(&door.limiter), [0]);
    drop(response);
    until_left(&door.limiter, &[1]).await;
}

#[tokio::test]
async fn a_client_that_goes_away_while_redis_is_asked_leaves_no_slot_behind_and_is_charged() {
    let server = Server::start(Flavour::Redis);
    let policy = "limits: [{name: jobs, concurrency: 1}, \
                  {name: api, rate: 9/minute, algorithm: fixed_window}]";
    let door = door(&server, policy);
    let future = call(&mut door.layer.layer(Yes), get("/")).await;
    drop(future);
    // The first look is asked behind the request, and so there is no other slot to see.
    until_left(&door.limiter, &[1, 8]).await;
}

/// A request, when it is held. Others are sent after that: answers of Redis may be told in another order than they
/// come in.
async fn held<F: Future>(door: &Door, request: F) -> Pin<Box<F>> {
    let mut request = Box::pin(request);
    let is_held = async {
        while door.layer.held().now == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        _ = &mut request => panic!("it has to wait for hours"),
        waited = tokio::time::timeout(Duration::from_secs(10), is_held) => waited.expect("it is held"),
    }
    request
}

#[tokio::test]
async fn a_place_that_is_given_up_stays_empty_since_others_may_stand_behind_it() {
    let server = Server::start(Flavour::Redis);
    let policy = "limits: [{name: api, rate: 99/hour, algorithm: fixed_window}, \
                  {name: slow, rate: 1/hour, algorithm: leaky_bucket, queue: 9}]";
    let mut door = door(&server, policy);
    door.layer = door.layer.max_held(1);
    let mut service = door.layer.layer(Yes);
    assert_eq!(send(&mut service, get("/")).await.status, StatusCode::OK);
    let first = held(&door, call(&mut service, get("/")).await).await;
    let refused = send(&mut service, get("/")).await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    // It pays nothing but its place.
    until_left(&door.limiter, &[97, 6]).await;
    drop(first);
    let _next = held(&door, call(&mut service, get("/")).await).await;
    let refused = send(&mut service, get("/")).await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE, "the next is held");
    until_left(&door.limiter, &[96, 4]).await;
}

#[tokio::test]
async fn a_cost_is_settled_in_redis_though_nobody_waits_for_it() {
    let server = Server::start(Flavour::Redis);
    let policy = "limits: [{name: tokens, rate: 10000/hour, algorithm: fixed_window, \
                  cost: {reserve: 1000, settle: {json: used}}}, {name: api, rate: 9/hour, \
                  algorithm: fixed_window}]";
    let door = door(&server, policy);
    for (text, used) in [("{\"used\": 42}", 42), ("{\"used\": 3000}", 3_042), ("{}", 4_042)] {
        let response = answered(&door, ok().body(Parts::of(&[text])).unwrap()).await;
        let before = left(&door.limiter)[1];
        assert!(response.into_body().collect().await.is_ok());
        until_left(&door.limiter, &[10_000 - used, before]).await;
    }
}

#[tokio::test]
async fn a_stream_that_outgrows_a_limit_in_redis_is_cut_and_pays_what_has_passed() {
    let server = Server::start(Flavour::Redis);
    let policy = "limits: [{name: tokens, rate: 10000/hour, algorithm: fixed_window, \
                  cost: {reserve: 1000, settle: {body: bytes}}, on_exhausted: cut}]";
    let door = door(&server, policy);
    let first = answered(&door, ok().body(kilobytes(4)).unwrap()).await;
    assert_eq!(passed(first.into_body()).await, (4, None));
    until_left(&door.limiter, &[6_000]).await;
    let second = answered(&door, ok().body(kilobytes(9)).unwrap()).await;
    assert_eq!(passed(second.into_body()).await, (7, Some(NO_MORE.to_owned())));
}

#[tokio::test]
async fn a_message_of_a_stream_waits_for_the_answer_of_redis() {
    let server = Server::start(Flavour::Redis);
    let policy = "limits: [{name: events, when: {layer: stream}, per: [stream], rate: 2/hour, \
                  algorithm: fixed_window}]";
    let door = door(&server, policy);
    for _ in 0..2 {
        let head = ok().header("content-type", "text/event-stream");
        let parts = Parts::of(&["data: 1\n\ndata: 2\n", "\ndata: 3\n\n"]);
        let response = answered(&door, head.body(parts).unwrap()).await;
        let text = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(text, "data: 1\n\ndata: 2\n\ndata: 3\n");
    }
}
