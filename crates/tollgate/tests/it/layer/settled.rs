//! A cost that the response tells is settled once, whatever ends the response; and a response that
//! outgrows its limit ends, if the policy says so.

use std::cell::Cell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{pending, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::ACCEPT_ENCODING;
use http::response::Builder;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use tollgate::Cost;
use tollgate::http::Spent;
use tollgate::http::layer::{Exhausted, ResponseBody};
use tower_layer::Layer;

use super::{Does, Door, Received, call, get, left, send};

/// A body of these parts, which may break.
#[derive(Default)]
pub(super) struct Parts(pub(super) VecDeque<Result<Frame<Bytes>, &'static str>>);

impl Parts {
    pub(super) fn of(texts: &[&'static str]) -> Self {
        Self(
            texts.iter().map(|text| Ok(Frame::data(Bytes::from_static(text.as_bytes())))).collect(),
        )
    }

    fn then(mut self, next: Result<Frame<Bytes>, &'static str>) -> Self {
        self.0.push_back(next);
        self
    }
}

impl Body for Parts {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        Poll::Ready(self.0.pop_front())
    }
}

fn trailer(name: &'static str, value: &'static str) -> Result<Frame<Bytes>, &'static str> {
    let pair = (name.parse().expect("a name"), HeaderValue::from_static(value));
    Ok(Frame::trailers(HeaderMap::from_iter([pair])))
}

/// A door with 10,000 units an hour, of which a request reserves 1,000.
fn door(settle: &str) -> Door {
    door_with(settle, "mode: enforce")
}

fn door_with(settle: &str, more: &str) -> Door {
    Door::new(&format!(
        "limits: [{{name: tokens, rate: 10000/hour, algorithm: fixed_window, \
         cost: {{reserve: 1000, settle: {settle}}}, {more}}}]"
    ))
}

/// The response of a service, as it comes to the client.
pub(super) async fn answered(
    door: &Door,
    response: Response<Parts>,
) -> Response<ResponseBody<Parts>> {
    let response = Cell::new(Some(response));
    let service = Does(|_: Received| ready(Ok::<_, Infallible>(response.take().expect("once"))));
    call(&mut door.layer.layer(service), get("/")).await.await.expect("it has not failed")
}

fn used(door: &Door) -> u32 {
    10_000 - left(&door.limiter)[0]
}

/// Says how much a response that is read to its end has cost.
async fn check(settle: &str, head: Builder, parts: Parts, expected: u32) {
    let door = door(settle);
    let response = answered(&door, head.body(parts).expect("a response")).await;
    let status = response.status();
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        assert!(frame.is_ok());
        assert_eq!(used(&door), 1_000, "{settle} is settled at the end");
    }
    assert_eq!(used(&door), expected, "{settle} {status}");
    drop(body);
    assert_eq!(used(&door), expected, "{settle} {status}, once");
}

pub(super) fn ok() -> Builder {
    Response::builder()
}

fn status(status: u16) -> Builder {
    Response::builder().status(status)
}

const TOKENS: &str = "{json: usage.total_tokens}";

#[tokio::test]
async fn json_tells_what_a_request_cost_however_it_is_split() {
    check(TOKENS, ok(), Parts::of(&["{\"usage\": {\"total_tokens\": 42}}"]), 42).await;
    let split = ["{\"text\": \"}\", \"usa", "ge\": {\"total_", "", "tokens\": 4", "2}", "}"];
    check(TOKENS, ok(), Parts::of(&split), 42).await;
    check(TOKENS, ok(), Parts::of(&["{\"usage\": {\"total_tokens\": 2500}}"]), 2_500).await;
    check(TOKENS, ok(), Parts::of(&["{\"usage\": {\"total_tokens\": 0}}"]), 0).await;
}

#[tokio::test]
async fn the_last_event_that_has_it_tells_what_a_stream_cost() {
    let events = [
        "data: {\"usage\": null}\n\n",
        "data: {\"usage\": {\"total_tokens\": 7}}\n\nda",
        "ta: {\"usage\": {\"total_tokens\": 1200}}\n\n",
        "data: [DONE]\n\n",
    ];
    let head = || ok().header("content-type", "text/event-stream; charset=utf-8");
    check(TOKENS, head(), Parts::of(&events), 1_200).await;
    check(TOKENS, ok(), Parts::of(&events), 1_000).await;
}

#[tokio::test]
async fn a_header_or_a_trailer_tells_it() {
    let settle = "{header: X-Tokens}";
    check(settle, ok().header("x-tokens", "17"), Parts::of(&["hello"]), 17).await;
    let trailing = || Parts::of(&["hello"]).then(trailer("x-tokens", "18"));
    check(settle, ok(), trailing(), 18).await;
    check(settle, ok().header("x-tokens", "17"), trailing(), 17).await;
    check(settle, ok(), Parts::of(&["hello"]), 1_000).await;
    for value in ["", "-1", "1.5", "1e3", "many", "99999999999"] {
        check(settle, ok().header("x-tokens", value), Parts::default(), 1_000).await;
    }
    let twice = ok().header("x-tokens", "1").header("x-tokens", "2");
    check(settle, twice, Parts::default(), 1_000).await;
}

#[tokio::test]
async fn the_length_of_the_body_tells_it() {
    check("{body: bytes}", ok(), Parts::of(&["hello", "", " you"]), 9).await;
    check("{body: bytes}", ok(), Parts::default(), 0).await;
    let packed = ok().header("content-encoding", "gzip");
    check("{body: bytes}", packed, Parts::of(&["12345"]), 5).await;
    check("{body: bytes}", status(500), Parts::of(&["12345"]), 5).await;
}

#[tokio::test]
async fn a_service_can_tell_it_whatever_the_response_says() {
    for settle in [TOKENS, "{header: x-tokens}", "{body: bytes}"] {
        let head = ok().header("x-tokens", "5").extension(Spent(Cost::new(321)));
        check(settle, head, Parts::of(&["{\"usage\": {\"total_tokens\": 42}}"]), 321).await;
    }
}

#[tokio::test]
async fn what_is_not_told_cost_what_was_reserved_unless_the_service_failed() {
    for text in ["", "{}", "hello", "{\"usage\": {\"total_tokens\": 4"] {
        check(TOKENS, ok(), Parts::of(&[text]), 1_000).await;
        check(TOKENS, status(404), Parts::of(&[text]), 1_000).await;
        check(TOKENS, status(503), Parts::of(&[text]), 0).await;
    }
    let told = "{\"usage\": {\"total_tokens\": 42}}";
    check(TOKENS, status(500), Parts::of(&[told]), 42).await;
    check(TOKENS, ok().header("content-encoding", "gzip"), Parts::of(&[told]), 1_000).await;
    check(TOKENS, ok().header("content-encoding", "identity"), Parts::of(&[told]), 42).await;
    check("{header: x-tokens}", status(500), Parts::default(), 0).await;
}

#[tokio::test]
async fn where_limits_read_the_response_nobody_can_ask_for_it_packed() {
    let stream = "limits: [{name: s, when: {layer: stream}, per: [stream], rate: 9/minute}]";
    for (door, expected) in [
        (door(TOKENS), "identity"),
        (Door::new(stream), "identity"),
        (door("{body: bytes}"), "gzip"),
        (door("{header: x-tokens}"), "gzip"),
    ] {
        let mut request = get("/");
        request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        let asked = Cell::new(None);
        let service = Does(|request: Received| {
            asked.set(request.headers().get(ACCEPT_ENCODING).cloned());
            ready(Ok::<_, Infallible>(Response::new(Parts::default())))
        });
        drop(call(&mut door.layer.layer(service), request).await.await);
        assert_eq!(asked.take().unwrap(), expected);
    }
}

#[tokio::test]
async fn a_service_that_has_no_response_costs_nothing() {
    let door = door(TOKENS);
    let fails = Does(|_: Received| ready(Err::<Response<Full<Bytes>>, _>("broken")));
    let future = call(&mut door.layer.layer(fails), get("/")).await;
    assert_eq!(used(&door), 1_000);
    assert_eq!(future.await.unwrap_err(), "broken");
    assert_eq!(used(&door), 0);
}

#[tokio::test]
async fn a_client_that_goes_away_before_the_response_pays_what_was_reserved() {
    let door = door(TOKENS);
    let hangs = Does(|_: Received| pending::<Result<Response<Full<Bytes>>, Infallible>>());
    drop(call(&mut door.layer.layer(hangs), get("/")).await);
    assert_eq!(used(&door), 1_000);
}

#[tokio::test]
async fn a_client_that_goes_away_in_the_middle_pays_what_is_known_by_then() {
    let event = "data: {\"usage\": {\"total_tokens\": 7}}\n\n";
    let head = || ok().header("content-type", "text/event-stream");
    let cases = [
        ("{body: bytes}", 1, event.len() as u32),
        ("{body: bytes}", 0, 0),
        (TOKENS, 1, 7),
        (TOKENS, 0, 1_000),
    ];
    for (settle, frames, expected) in cases {
        let door = door(settle);
        let response = head().body(Parts::of(&[event, event])).unwrap();
        let mut body = answered(&door, response).await.into_body();
        for _ in 0..frames {
            assert!(body.frame().await.unwrap().is_ok());
        }
        drop(body);
        assert_eq!(used(&door), expected, "{settle} after {frames} frames");
    }
}

#[tokio::test]
async fn a_body_that_breaks_costs_what_is_known_by_then() {
    for (settle, expected) in [("{body: bytes}", 5), (TOKENS, 1_000)] {
        let door = door(settle);
        let response = ok().body(Parts::of(&["hello"]).then(Err("broken"))).unwrap();
        let mut body = answered(&door, response).await.into_body();
        assert!(body.frame().await.unwrap().is_ok());
        assert_eq!(body.frame().await.unwrap().unwrap_err().to_string(), "broken");
        assert_eq!(used(&door), expected, "{settle}, though the body is still there");
        assert!(body.frame().await.is_none());
    }
}

#[tokio::test]
async fn each_limit_is_settled_as_it_says_and_the_others_are_left_alone() {
    let door = Door::new(
        "limits: [\
         {name: tokens, rate: [10000/hour, 20000/day], algorithm: fixed_window, \
          cost: {reserve: 1000, settle: {json: usage.total_tokens}}}, \
         {name: requests, rate: 100/hour, algorithm: fixed_window}, \
         {name: traffic, rate: 5000/hour, algorithm: token_bucket, mode: shadow, \
          cost: {reserve: 100, settle: {body: bytes}}}, \
         {name: full, rate: 50/hour, mode: shadow, cost: {reserve: 100, settle: {body: bytes}}}, \
         {name: jobs, concurrency: 3}]",
    );
    let text = "{\"usage\": {\"total_tokens\": 42}}";
    let body = answered(&door, ok().body(Parts::of(&[text])).unwrap()).await;
    assert_eq!(left(&door.limiter), [9_000, 19_000, 99, 4_900, 50, 2]);
    drop(body.into_body().collect().await.unwrap());
    let traffic = 5_000 - text.len() as u32;
    assert_eq!(left(&door.limiter), [9_958, 19_958, 99, traffic, 50, 3]);
}

#[tokio::test]
async fn a_response_may_take_a_limit_past_its_end_and_the_next_request_waits() {
    let door = door(TOKENS);
    let told = "{\"usage\": {\"total_tokens\": 12000}}";
    let body = answered(&door, ok().body(Parts::of(&[told])).unwrap()).await.into_body();
    assert!(body.collect().await.is_ok());
    assert_eq!(left(&door.limiter), [0]);
    assert_eq!(door.get("/").await.status, StatusCode::TOO_MANY_REQUESTS);
}

/// A body of so many times a thousand bytes.
pub(super) fn kilobytes(count: usize) -> Parts {
    let kilobyte = || Ok(Frame::data(Bytes::from_static(&[b'x'; 1_000])));
    Parts((0..count).map(|_| kilobyte()).collect())
}

/// How many frames of a body pass, and why it ends.
pub(super) async fn passed(mut body: ResponseBody<Parts>) -> (usize, Option<String>) {
    let mut frames = 0;
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) if frame.is_data() => frames += 1,
            Ok(frame) => {
                let trailers = frame.into_trailers().expect("they are");
                assert_eq!(trailers["grpc-status"], "8");
                let message = trailers["grpc-message"].to_str().expect("text").to_owned();
                assert!(body.is_end_stream() && body.frame().await.is_none());
                return (frames, Some(message));
            }
            Err(error) => {
                let exhausted = error.downcast::<Exhausted>().expect("nothing else breaks");
                assert!(body.is_end_stream() && body.frame().await.is_none());
                return (frames, Some(exhausted.to_string()));
            }
        }
    }
    (frames, None)
}

pub(super) const NO_MORE: &str = "limit \"tokens\" has no more for the rest of this";

#[tokio::test]
async fn a_response_that_outgrows_its_limit_ends_there_if_the_policy_says_so() {
    let cases = [
        ("on_exhausted: finish", 20, 20, None),
        ("on_exhausted: cut", 20, 11, Some(NO_MORE.to_owned())),
        // What ends of itself is not cut.
        ("on_exhausted: cut", 11, 11, None),
        ("on_exhausted: cut, mode: shadow", 20, 20, None),
    ];
    for (more, frames, expected, why) in cases {
        for kind in ["text/plain", "application/grpc"] {
            let door = door_with("{body: bytes}", more);
            let response = ok().header("content-type", kind);
            let response = response.body(kilobytes(frames)).unwrap();
            let body = answered(&door, response).await.into_body();
            assert_eq!(passed(body).await, (expected, why.clone()), "{more} {kind}");
        }
    }
}

#[tokio::test]
async fn streams_that_share_a_limit_end_when_it_has_nothing_left_for_them_together() {
    let door = door_with("{body: bytes}", "on_exhausted: cut");
    let response = || ok().body(kilobytes(20)).unwrap();
    let mut first = answered(&door, response()).await.into_body();
    let second = answered(&door, response()).await.into_body();
    for frame in 1..=5 {
        assert!(first.frame().await.unwrap().is_ok());
        assert_eq!(used(&door), 1_000 + frame * 1_000, "it is charged as it passes");
    }
    assert_eq!(passed(second).await, (6, Some(NO_MORE.to_owned())));
    assert_eq!(passed(first).await, (1, Some(NO_MORE.to_owned())), "it is told when it pays");
}

#[tokio::test]
async fn what_a_stream_says_it_cost_so_far_cuts_it() {
    let head = ok().header("content-type", "text/event-stream");
    let parts = Parts::of(&[
        "data: {\"usage\": {\"total_tokens\": 9000}}\n\n",
        "data: {\"usage\": {\"total_tokens\": 10001}}\n\n",
        "data: [DONE]\n\n",
    ]);
    let door = door_with(TOKENS, "on_exhausted: cut");
    let body = answered(&door, head.body(parts).unwrap()).await.into_body();
    assert_eq!(passed(body).await, (2, Some(NO_MORE.to_owned())));
}

#[tokio::test]
async fn a_stream_goes_on_while_time_makes_up_for_what_it_costs() {
    let policy = "limits: [{name: tokens, rate: 2000/second, algorithm: token_bucket, \
                  cost: {reserve: 1000, settle: {body: bytes}}, on_exhausted: cut}]";
    let door = Door::new(policy);
    let response = ok().body(kilobytes(20)).unwrap();
    let mut body = answered(&door, response).await.into_body();
    for _ in 0..15 {
        assert!(body.frame().await.unwrap().is_ok());
        door.clock.advance(crate::time("500ms"));
    }
    assert_eq!(passed(body).await, (3, Some(NO_MORE.to_owned())));
}

#[tokio::test]
async fn the_fields_tell_what_is_left_besides_the_reserve() {
    let door = door(TOKENS);
    let answer = send(&mut door.layer.layer(super::Yes), get("/")).await;
    assert_eq!(answer.field("ratelimit"), "\"tokens\";r=9000;t=3600");
}
