//! A slot is held from admission to the end of the response's body, and comes back once, whatever
//! ends the request.

use std::convert::Infallible;
use std::future::{pending, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use tollgate::Request as Asked;
use tower_layer::Layer;
use tower_service::Service;

use super::{Does, Door, Received, call, get, left, poll_once};

const ONE_AT_A_TIME: &str = "limits: [{name: jobs, concurrency: 1}]";

/// How many slots are free, without taking one.
fn free(door: &Door) -> u32 {
    *left(&door.limiter).first().expect("a limit that applies")
}

/// What the next frames of a body are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Next {
    Data,
    Error,
    Panic,
    Never,
}

/// A body that goes on with the same kind of frame for ever.
pub(super) struct Streams(pub(super) Next);

impl Body for Streams {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        match self.0 {
            Next::Data => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"data"))))),
            Next::Error => Poll::Ready(Some(Err("broken"))),
            Next::Panic => panic!("the body panics"),
            Next::Never => Poll::Pending,
        }
    }
}

type Reply = Response<Streams>;

fn streams(
    next: Next,
) -> impl Service<
    Received,
    Response = Reply,
    Error = Infallible,
    Future: Future<Output = Result<Reply, Infallible>> + Unpin,
> + Clone {
    Does(move |_: Received| ready(Ok(Response::new(Streams(next)))))
}

#[tokio::test]
async fn a_slot_is_held_until_the_last_of_the_body_was_read() {
    let door = Door::new(ONE_AT_A_TIME);
    let mut response = call(&mut door.layer.layer(super::Yes), get("/")).await.await.unwrap();
    assert_eq!(free(&door), 0);
    assert_eq!(door.get("/").await.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(response.body_mut().frame().await.unwrap().is_ok());
    assert_eq!(free(&door), 0, "more could come");
    assert!(response.body_mut().frame().await.is_none());
    assert_eq!(free(&door), 1, "though the body is still there");
}

#[tokio::test]
async fn a_slot_that_came_back_is_not_given_back_again() {
    let door = Door::new(ONE_AT_A_TIME);
    let mut service = door.layer.layer(super::Yes);
    let mut first = call(&mut service, get("/")).await.await.unwrap().into_body();
    while first.frame().await.is_some() {}
    let second = call(&mut service, get("/")).await.await.unwrap();
    assert_eq!((second.status(), free(&door)), (StatusCode::OK, 0));
    assert!(first.frame().await.is_none());
    drop(first);
    assert_eq!(free(&door), 0, "it is the second's now");
    drop(second);
    assert_eq!(free(&door), 1);
}

#[tokio::test]
async fn a_client_that_goes_away_in_the_middle_of_a_body_gives_its_slot_back() {
    let door = Door::new(ONE_AT_A_TIME);
    let response = call(&mut door.layer.layer(streams(Next::Data)), get("/")).await.await;
    let mut body = response.unwrap().into_body();
    assert!(body.frame().await.unwrap().is_ok());
    assert_eq!(free(&door), 0);
    drop(body);
    assert_eq!(free(&door), 1);
}

#[tokio::test]
async fn a_body_that_breaks_gives_its_slot_back() {
    let door = Door::new(ONE_AT_A_TIME);
    let response = call(&mut door.layer.layer(streams(Next::Error)), get("/")).await.await;
    let mut body = response.unwrap().into_body();
    assert_eq!(body.frame().await.unwrap().unwrap_err().to_string(), "broken");
    assert_eq!(free(&door), 1);
}

#[tokio::test]
async fn a_body_that_panics_gives_its_slot_back() {
    let door = Door::new(ONE_AT_A_TIME);
    let response = call(&mut door.layer.layer(streams(Next::Panic)), get("/")).await.await;
    let mut body = response.unwrap().into_body();
    assert_eq!(free(&door), 0);
    let polled = catch_unwind(AssertUnwindSafe(move || drop(poll_once(&mut body.frame()))));
    assert!(polled.is_err());
    assert_eq!(free(&door), 1);
}

#[tokio::test]
async fn a_service_that_fails_gives_the_slot_back() {
    let door = Door::new(ONE_AT_A_TIME);
    let fails = Does(|_: Received| ready(Err::<Reply, _>("failed")));
    let mut future = Box::pin(call(&mut door.layer.layer(fails), get("/")).await);
    assert_eq!(free(&door), 0);
    assert_eq!((&mut future).await.unwrap_err(), "failed");
    assert_eq!(free(&door), 1, "though the future is still there");
}

#[tokio::test]
async fn a_service_that_panics_when_it_is_called_gives_the_slot_back() {
    let door = Door::new(ONE_AT_A_TIME);
    let panics = Does(|_: Received| -> std::future::Ready<Result<Reply, Infallible>> {
        panic!("the service panics")
    });
    let mut service = door.layer.layer(panics);
    let called = catch_unwind(AssertUnwindSafe(|| drop(service.call(get("/")))));
    assert!(called.is_err());
    assert_eq!(free(&door), 1);
}

#[tokio::test]
async fn a_service_that_panics_on_its_way_gives_the_slot_back() {
    let door = Door::new(ONE_AT_A_TIME);
    let panics =
        Does(async |_: Received| -> Result<Reply, Infallible> { panic!("the service panics") });
    let mut service = door.layer.layer(panics);
    let future = Box::pin(call(&mut service, get("/")).await);
    assert_eq!(free(&door), 0);
    let polled = catch_unwind(AssertUnwindSafe(move || drop(poll_once(&mut { future }))));
    assert!(polled.is_err());
    assert_eq!(free(&door), 1);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_around_the_layer_gives_the_slot_back() {
    let door = Door::new(ONE_AT_A_TIME);
    let hangs = Does(|_: Received| pending::<Result<Reply, Infallible>>());
    let future = call(&mut door.layer.layer(hangs), get("/")).await;
    assert_eq!(free(&door), 0);
    assert!(tokio::time::timeout(Duration::from_secs(1), future).await.is_err());
    assert_eq!(free(&door), 1);
}

#[tokio::test(start_paused = true)]
async fn a_slot_taken_by_a_request_that_is_held_comes_back_if_it_goes_away() {
    let door = Door::new(
        "limits: [{name: jobs, concurrency: 5}, \
         {name: slow, rate: 1/second, algorithm: leaky_bucket, queue: 5}]",
    );
    let mut service = door.layer.layer(super::Yes);
    let first = call(&mut service, get("/")).await;
    let held = call(&mut service, get("/")).await;
    assert_eq!(free(&door), 3);
    drop(held);
    assert_eq!(free(&door), 4);
    drop(first);
    assert_eq!(free(&door), 5);
}

#[tokio::test]
async fn a_request_that_is_refused_holds_nothing() {
    let door = Door::new(
        "limits: [{name: jobs, concurrency: 1}, {name: api, when: {path: /no}, rate: 0/minute}]",
    );
    let refused = call(&mut door.layer.layer(super::Yes), get("/no")).await.await.unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(free(&door), 1);
}

#[tokio::test(start_paused = true)]
async fn a_response_that_takes_longer_than_its_lease_keeps_its_slot_though_nobody_reads_it() {
    let door = Door::new(
        "limits: [{name: jobs, concurrency: 1, lease: 60s}, \
         {name: short, concurrency: 5, lease: 9s}]",
    );
    let response = call(&mut door.layer.layer(streams(Next::Never)), get("/")).await.await;
    for _ in 0..200 {
        door.advance("1s").await;
        // Whoever was woken has its turn.
        tokio::task::yield_now().await;
        assert_eq!(free(&door), 0);
    }
    drop(response);
    assert_eq!(free(&door), 1);
    // From then on nobody renews anything: a slot that is lost comes back with its lease.
    door.advance("60s").await;
    std::mem::forget(door.limiter.check(&Asked::new(&[])));
    assert_eq!(free(&door), 0);
    door.advance("60s").await;
    assert_eq!(free(&door), 1);
}

#[tokio::test]
async fn slots_that_many_hold_at_once_all_come_back() {
    let door = Door::new("limits: [{name: jobs, concurrency: 100}]");
    let mut service = door.layer.layer(streams(Next::Never));
    let mut held = Vec::new();
    for number in 0..300 {
        let response = call(&mut service, get("/")).await.await.unwrap();
        let is_allowed = response.status() == StatusCode::OK;
        assert_eq!(is_allowed, held.len() < 100, "request {number}");
        if is_allowed {
            held.push(response);
        }
        if number % 7 == 0 {
            held.swap_remove(number % held.len());
        }
    }
    drop(held);
    assert_eq!(free(&door), 100);
}
