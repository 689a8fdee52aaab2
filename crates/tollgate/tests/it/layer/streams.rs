//! Events and messages of gRPC are counted as they pass, however their bytes are split.

use std::convert::Infallible;
use std::error::Error;
use std::future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tollgate::http::layer::{Exhausted, RequestBody, ResponseBody};
use tower_layer::Layer;

use super::settled::{Parts, answered, ok};
use super::{Does, Door, Yes, call, from, get, left, poll_once};
use crate::parse;

const EVENTS: &str = "text/event-stream";
const GRPC: &str = "application/grpc+proto";

/// A door where two messages of a stream may pass in a minute.
fn door(more: &str) -> Door {
    Door::new(&format!(
        "limits: [{{name: messages, when: {{layer: stream}}, per: [stream], rate: 2/minute, \
         algorithm: fixed_window, {more}}}]"
    ))
}

/// A message of gRPC.
fn message(payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short message");
    [&[0], &length.to_be_bytes()[..], payload].concat()
}

fn messages(payloads: &[&str]) -> Vec<u8> {
    payloads.iter().flat_map(|payload| message(payload.as_bytes())).collect()
}

/// A body of these bytes, split at these places.
fn split(bytes: &[u8], places: &[usize]) -> Parts {
    let ends = places.iter().copied().chain([bytes.len()]);
    let starts = [0].into_iter().chain(places.iter().copied());
    let pieces = starts.zip(ends).map(|(start, end)| Bytes::copy_from_slice(&bytes[start..end]));
    Parts(pieces.map(|piece| Ok(Frame::data(piece))).collect())
}

/// Every way to split so many bytes in two or in three, and into single ones.
fn splits(length: usize) -> Vec<Vec<usize>> {
    let two = (0..=length).map(|place| vec![place]);
    let three = (0..length).map(|place| vec![place, place + 1]);
    two.chain(three).chain([(1..length).collect()]).collect()
}

/// Everything that comes of a body, its trailers, and why it broke if it did.
async fn received<B: Body<Data = Bytes>>(
    body: B,
) -> (Vec<u8>, Option<HeaderMap>, Option<B::Error>) {
    let (mut body, mut bytes, mut trailers) = (Box::pin(body), Vec::new(), None);
    while let Some(frame) = body.frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => bytes.extend_from_slice(&data),
            Ok(Err(frame)) => trailers = frame.into_trailers().ok(),
            Err(error) => return (bytes, trailers, Some(error)),
        }
    }
    assert!(body.is_end_stream() || trailers.is_none());
    (bytes, trailers, None)
}

async fn stream(door: &Door, kind: &str, parts: Parts) -> ResponseBody<Parts> {
    let response = ok().header("content-type", kind).body(parts).expect("a response");
    answered(door, response).await.into_body()
}

/// Says how much of a stream passes, however it is split.
async fn check(kind: &str, bytes: &[u8], passing: &[u8], is_closed: bool) {
    for places in splits(bytes.len()) {
        let body = stream(&door("on_denied: close"), kind, split(bytes, &places)).await;
        let (passed, trailers, error) = received(body).await;
        let shown = String::from_utf8_lossy(bytes);
        assert_eq!(passed, passing, "{shown:?} split at {places:?}");
        assert!(error.is_none());
        let status = trailers.map(|trailers| trailers["grpc-status"].clone());
        let expected = (is_closed && kind == GRPC).then(|| HeaderValue::from_static("8"));
        assert_eq!(status, expected, "{shown:?} split at {places:?}");
    }
}

#[tokio::test]
async fn events_end_after_the_last_that_is_allowed() {
    let cases = [
        // The third is never whole: no client acts on it.
        ("data: 1\n\ndata: 2\n\ndata: 3\n\nid: 4\n\n", 9 + 9 + 8),
        ("data: 1\r\rdata: 2\r\rdata: 3\r\r", 9 + 9 + 8),
        ("data: 1\r\n\r\ndata: 2\r\n\r\ndata: 3\r\n\r\n", 11 + 11 + 9),
        ("\u{feff}data: 1\n\ndata: 2\n\ndata: 3\n\n", 3 + 9 + 9 + 8),
        // A line without a colon is a field too, and several lines are one event.
        ("data\n\nevent: x\ndata: 2\ndata: 2\n\ndata:3\n\n", 6 + 26 + 7),
    ];
    for (text, passing) in cases {
        check(EVENTS, text.as_bytes(), &text.as_bytes()[..passing], true).await;
    }
}

#[tokio::test]
async fn what_is_no_event_is_not_counted() {
    let texts = [
        ": alive\n\n: alive\n\n\n\n\ndata: 1\n\n: alive\n\n: alive\n\ndata: 2\n\n: alive\n\n",
        "event: x\n\nid: 1\n\nretry: 5\n\ndatas: 1\n\ndat: 1\n\n data: 1\n\n",
        "data: 1\n\ndata: 2\n\ndata: 3\n",
        "data: 1\n\ndata: 2\n\n",
        "",
    ];
    for text in texts {
        check(EVENTS, text.as_bytes(), text.as_bytes(), false).await;
    }
}

/// Where in a text each event would be whole: before the byte that ends the empty line behind it. Told
/// by going through the lines one by one, with all of the text at hand.
fn events_due(text: &str) -> Vec<usize> {
    let mut start = text.strip_prefix('\u{feff}').map_or(0, |rest| text.len() - rest.len());
    let (mut due, mut has_data) = (Vec::new(), false);
    while let Some(length) = text[start..].find(['\r', '\n']) {
        let (line, end) = (&text[start..start + length], start + length);
        if line.is_empty() && std::mem::take(&mut has_data) {
            due.push(end);
        }
        has_data |= line == "data" || line.starts_with("data:");
        start = end + if text[end..].starts_with("\r\n") { 2 } else { 1 };
    }
    due
}

#[tokio::test]
async fn events_are_found_in_any_text_split_anywhere() {
    const WORDS: [&str; 12] =
        ["data", "data:", "d", "ata: x", ":", " ", "\n", "\n\n", "\r", "\r\n", "\u{feff}", "\n"];
    let mut state = 1_u64;
    let mut below = move |most: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % most
    };
    let (door, mut closed) = (door(""), 0);
    for _ in 0..2_000 {
        let text: String = (0..below(100)).map(|_| WORDS[below(WORDS.len())]).collect();
        let mut places: Vec<usize> = (0..below(6)).map(|_| below(text.len() + 1)).collect();
        places.sort_unstable();
        let body = stream(&door, EVENTS, split(text.as_bytes(), &places)).await;
        let end = events_due(&text).get(2).copied();
        let expected = &text[..end.unwrap_or(text.len())];
        let passed = received(body).await.0;
        assert_eq!(String::from_utf8_lossy(&passed), expected, "{text:?} split at {places:?}");
        closed += usize::from(end.is_some());
    }
    assert!(closed > 500, "only {closed} texts had a third event");
}

#[tokio::test]
async fn a_message_that_claims_to_be_huge_is_counted_by_what_it_claims() {
    let head = [1, 255, 255, 255, 255, 7];
    let by_length = "limits: [{name: bytes, when: {layer: stream}, rate: 4000000000/second, \
                     algorithm: fixed_window, cost: {attribute: bytes}, on_denied: delay}]";
    let body = stream(&Door::new(by_length), GRPC, split(&head, &[2])).await;
    let (passed, trailers, _) = received(body).await;
    assert_eq!((passed.len(), &trailers.unwrap()["grpc-status"]), (0, &"8".parse().unwrap()));
    // What is counted by number costs one, however long it is, and is passed on as it comes.
    let body = stream(&door(""), GRPC, split(&head, &[2])).await;
    assert_eq!(received(body).await.0, head);
}

#[tokio::test]
async fn messages_of_grpc_end_with_a_status_after_the_last_that_is_allowed() {
    let two = messages(&["one", ""]);
    check(GRPC, &two, &two, false).await;
    check(GRPC, &messages(&["one", "", "three"]), &two, true).await;
    check(GRPC, &messages(&["one", "", "", "four"]), &two, true).await;
}

#[tokio::test]
async fn a_stream_that_breaks_off_is_broken() {
    let mut bytes = messages(&["one"]);
    bytes.extend_from_slice(&[0, 0, 0]);
    let (passed, _, error) = received(stream(&door(""), GRPC, split(&bytes, &[2])).await).await;
    assert_eq!(passed, messages(&["one"]));
    assert_eq!(error.unwrap().to_string(), "the stream ends in the head of a message");
    // In the middle of a message that is for the receiver to see.
    bytes.truncate(6);
    let (passed, _, error) = received(stream(&door(""), GRPC, split(&bytes, &[])).await).await;
    assert_eq!((passed, error.is_none()), (bytes, true));
}

#[tokio::test]
async fn bodies_that_are_no_streams_pass_as_they_are() {
    let text = "data: 1\n\n".repeat(9);
    let door = door("");
    for (kind, coding) in
        [("text/plain", "identity"), ("application/grpc-web", "identity"), (EVENTS, "gzip")]
    {
        let response = ok().header("content-type", kind).header("content-encoding", coding);
        let response = response.body(split(text.as_bytes(), &[7])).unwrap();
        let (passed, ..) = received(answered(&door, response).await.into_body()).await;
        assert_eq!(passed, text.as_bytes(), "{kind} {coding}");
    }
}

#[tokio::test]
async fn trailers_pass() {
    let mut parts = split(&messages(&["one"]), &[]);
    let trailers = [("grpc-status".parse().unwrap(), HeaderValue::from_static("0"))];
    parts.0.push_back(Ok(Frame::trailers(HeaderMap::from_iter(trailers))));
    let (passed, trailers, _) = received(stream(&door(""), GRPC, parts).await).await;
    assert_eq!(
        (passed, trailers.unwrap()["grpc-status"].as_bytes()),
        (messages(&["one"]), &b"0"[..])
    );
}

#[tokio::test]
async fn every_stream_is_counted_by_itself_and_by_who_sends_it() {
    let policy = "limits: [\
         {name: each, when: {layer: stream}, per: [stream], rate: 2/minute}, \
         {name: all, when: {layer: stream, path: /a}, per: [client_ip], rate: 5/minute}]";
    let door = Door::new(policy);
    let three = messages(&["1", "2", "3"]);
    let mut passed = Vec::new();
    for path in ["/a", "/a", "/a", "/a", "/b"] {
        let parts = Mutex::new(Some(split(&three, &[])));
        let service = Does(|_: super::Received| {
            let parts = parts.lock().expect("nobody panics").take().expect("once");
            let response = ok().header("content-type", GRPC).body(parts).expect("a response");
            future::ready(Ok::<_, Infallible>(response))
        });
        let response = call(&mut door.layer.layer(service), get(path)).await.await.unwrap();
        passed.push(received(response.into_body()).await.0.len() / message(b"1").len());
    }
    assert_eq!(passed, [2, 2, 1, 0, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_too_fast_is_delayed_and_loses_nothing() {
    let policy = "limits: [{name: slow, when: {layer: stream, direction: down}, rate: 1/second, \
                  algorithm: token_bucket, on_denied: delay}]";
    for (kind, bytes) in [
        (EVENTS, b"data: 1\n\ndata: 2\n\ndata: 3\n\n".to_vec()),
        (GRPC, messages(&["1234", "5678", "9012"])),
    ] {
        for places in [vec![], vec![3], (1..bytes.len()).collect()] {
            let door = Door::new(policy);
            let mut body = stream(&door, kind, split(&bytes, &places)).await;
            let mut passed = Vec::new();
            for second in 0..3 {
                loop {
                    match poll_once(&mut body.frame()) {
                        Poll::Ready(Some(frame)) => {
                            passed.extend_from_slice(&frame.unwrap().into_data().unwrap());
                        }
                        Poll::Ready(None) => break,
                        Poll::Pending => break,
                    }
                }
                let (whole, held_back) = (9 * (second + 1), passed.len() - 9 * (second + 1));
                assert_eq!(passed, bytes[..whole + held_back]);
                // Of the next event all but its end may have passed.
                let most = if kind == EVENTS && second < 2 { 8 } else { 0 };
                assert_eq!(held_back, most, "{kind} {places:?}");
                door.advance("999ms").await;
                if second < 2 {
                    assert!(poll_once(&mut body.frame()).is_pending());
                }
                door.advance("1ms").await;
            }
            assert!(body.frame().await.is_none());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_no_wait_helps_ends_the_stream_either_way() {
    let policy = "limits: [{name: bytes, when: {layer: stream}, per: [stream], rate: 20/second, \
                  algorithm: token_bucket, cost: {attribute: bytes}, on_denied: delay}]";
    let door = Door::new(policy);
    // Nine bytes, eleven, and one more than is ever there.
    let payloads = ["1234", "123456", "1234567890123456"];
    let bytes = messages(&payloads);
    let (passed, trailers, _) = received(stream(&door, GRPC, split(&bytes, &[])).await).await;
    assert_eq!(passed, messages(&payloads[..2]));
    let trailers = trailers.unwrap();
    assert_eq!(trailers["grpc-status"], "8");
    assert_eq!(trailers["grpc-message"], "limit \"bytes\" has no more for the rest of this");
}

#[tokio::test]
async fn a_limit_in_shadow_ends_nothing() {
    let text = "data: 1\n\n".repeat(9);
    let body = stream(&door("mode: shadow"), EVENTS, split(text.as_bytes(), &[])).await;
    assert_eq!(received(body).await.0, text.as_bytes());
}

/// What a service receives of a request's body, and why that broke.
async fn uploaded(door: &Door, kind: &str, bytes: &[u8]) -> (usize, Option<String>) {
    let told = Arc::new(Mutex::new(None));
    let teller = Arc::clone(&told);
    let service = Does(move |request: Request<RequestBody<Parts>>| {
        let teller = Arc::clone(&teller);
        async move {
            let (passed, _, error) = received(request.into_body()).await;
            let error = error.map(|error| match error.downcast::<Exhausted>() {
                Ok(exhausted) => exhausted.limit().expect("a limit").to_owned(),
                Err(other) => other.to_string(),
            });
            *teller.lock().expect("nobody panics") = Some((passed.len(), error));
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        }
    });
    let request = from("/").method("POST").header("content-type", kind);
    let request = request.body(split(bytes, &[1, 3])).expect("a request");
    call(&mut door.layer.layer(service), request).await.await.expect("it answers");
    let told = told.lock().expect("nobody panics").take();
    told.expect("the service was called")
}

#[tokio::test]
async fn messages_that_a_client_sends_over_grpc_break_off_after_the_last_that_is_allowed() {
    let three = messages(&["1", "2", "3"]);
    let limited = (12, Some("messages".to_owned()));
    assert_eq!(uploaded(&door(""), GRPC, &three).await, limited);
    assert_eq!(uploaded(&door(""), GRPC, &three[..12]).await, (12, None));
    assert_eq!(uploaded(&door(""), "text/plain", &three).await, (18, None));
    let down = Door::new(
        "limits: [{name: messages, when: {layer: stream, direction: down}, rate: 2/minute}]",
    );
    assert_eq!(uploaded(&down, GRPC, &three).await, (18, None));
}

#[tokio::test]
async fn a_client_that_sends_too_much_is_told_so_whatever_the_service_makes_of_it() {
    let trailer = || {
        let trailers = [("grpc-status".parse().expect("a name"), HeaderValue::from_static("2"))];
        Ok(Frame::trailers(HeaderMap::from_iter(trailers)))
    };
    for (sent, told) in [(&["1", "2", "3"][..], "8"), (&["1", "2"], "2")] {
        // Answers when the request has ended, or has begun to answer before.
        for is_early in [false, true] {
            let service = Does(move |request: Request<RequestBody<Parts>>| async move {
                let mut parts = split(&messages(&["hello"]), &[]);
                parts.0.push_back(trailer());
                let mut request = Some(request.into_body());
                if let Some(request) = request.take_if(|_| !is_early) {
                    received(request).await;
                }
                let head = ok().header("content-type", GRPC);
                let response = head.body(Answering { request, parts }).expect("a response");
                Ok::<_, Infallible>(response)
            });
            let request = from("/").method("POST").header("content-type", GRPC);
            let request = request.body(split(&messages(sent), &[4])).unwrap();
            let up = Door::new(
                "limits: [{name: messages, rate: 2/hour, \
                                when: {layer: stream, direction: up}}]",
            );
            let response = call(&mut up.layer.layer(service), request).await.await.unwrap();
            let head = response.headers().get("grpc-status").cloned();
            let (_, trailers, error) = received(response.into_body()).await;
            assert!(error.is_none());
            let status = trailers.map(|trailers| trailers["grpc-status"].clone()).or(head);
            assert_eq!(status.unwrap(), told, "early: {is_early}");
        }
    }
}

/// A response that reads its request to the end, if it is still there, before it sends anything.
struct Answering {
    request: Option<RequestBody<Parts>>,
    parts: Parts,
}

impl Body for Answering {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        while let Some(request) = &mut self.request {
            if !matches!(ready!(Pin::new(request).poll_frame(context)), Some(Ok(_))) {
                self.request = None;
            }
        }
        Pin::new(&mut self.parts).poll_frame(context)
    }
}

#[tokio::test]
async fn a_stream_that_is_closed_gives_back_what_its_request_holds() {
    let door = Door::new(
        "limits: [{name: jobs, concurrency: 3}, \
         {name: traffic, rate: 1000/hour, algorithm: fixed_window, \
          cost: {reserve: 100, settle: {body: bytes}}}, \
         {name: events, when: {layer: stream}, rate: 2/hour}]",
    );
    let text = "data: 1\n\n".repeat(9);
    let body = stream(&door, EVENTS, split(text.as_bytes(), &[])).await;
    assert_eq!(left(&door.limiter), [2, 900]);
    let (passed, ..) = received(body).await;
    assert_eq!(passed.len(), 26);
    assert_eq!(left(&door.limiter), [3, 974]);
}

#[tokio::test]
async fn a_stream_meets_the_policy_that_is_in_force() {
    let door = Door::new("limits: [{name: events, when: {layer: stream}, rate: 9/hour}]");
    let text = "data: 1\n\n".repeat(9);
    let mut body = stream(&door, EVENTS, split(text.as_bytes(), &[9])).await;
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "data: 1\n\n");
    let policy = "deny: [{stream: present}]\nlimits: []";
    door.limiter.replace_policy(parse(policy)).unwrap();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "data: 1\n");
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn only_what_is_counted_hides_its_length() {
    let hint = async |door: &Door, kind: &str| {
        let (head, body) = (ok().header("content-type", kind), Full::from("data: 1\n\n"));
        let response = Mutex::new(Some(head.body(body).expect("a response")));
        let service = Does(|_: super::Received| {
            let response = response.lock().expect("nobody panics").take().expect("once");
            future::ready(Ok::<Response<Full<Bytes>>, Infallible>(response))
        });
        let response = call(&mut door.layer.layer(service), get("/")).await.await;
        response.expect("it has not failed").body().size_hint().exact()
    };
    assert_eq!(hint(&door(""), EVENTS).await, None);
    assert_eq!(hint(&door(""), "text/plain").await, Some(9));
    assert_eq!(hint(&Door::new(super::ONE_A_MINUTE), EVENTS).await, Some(9));
    let response = call(&mut door("").layer.layer(Yes), get("/")).await.await.unwrap();
    assert_eq!(response.body().size_hint().exact(), Some(3));
}

#[test]
fn bodies_of_requests_can_be_sent_on_by_hyper() {
    fn check<B>()
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + Unpin + 'static,
    {
    }
    check::<RequestBody<Incoming>>();
    check::<ResponseBody<Incoming>>();
}
