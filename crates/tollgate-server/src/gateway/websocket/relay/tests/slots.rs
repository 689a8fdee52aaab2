//! How many sockets are open at a time.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;

use super::*;

const ONE: &str = "  - {name: sockets, when: {layer: websocket}, per: [client_ip], concurrency: 1}";

/// Somebody else may open a socket within so much time after one has ended.
const SOON: Duration = Duration::from_secs(1);

impl House {
    async fn is_full(&self) -> bool {
        self.open(&[]).await.is_err()
    }

    async fn has_room_soon(&self) {
        let began = moment();
        while self.is_full().await {
            assert!(began.elapsed() <= SOON + TICK, "the slot is not back");
            sleep(TICK).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_socket_too_many_is_answered_as_any_request() {
    let house = House::new(ONE);
    let _talk = house.talk(None).await;
    let answer = house.open(&[]).await.err().expect("it is one too many");
    assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
    let field = |headers: &HeaderMap, name: &str| headers[name].to_str().unwrap().to_owned();
    assert_eq!(field(answer.headers(), CONTENT_TYPE.as_str()), "application/problem+json");
    assert_eq!(field(answer.headers(), "retry-after"), "1");
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["violated-policies"][0], "sockets");
    assert_eq!(body["status"], 429);
}

#[tokio::test(start_paused = true)]
async fn who_is_blocked_opens_no_socket() {
    let house = House::new("  []");
    let blocked = format!("deny: [{{client_ip: {PEER}}}]");
    let blocked = Policy::parse("policy", &blocked, &mut |_: &str| Err(String::new())).unwrap();
    house.gate.limiter.replace_policy(blocked).unwrap();
    let answer = house.open(&[]).await.err().expect("it is blocked");
    assert_eq!(answer.status(), StatusCode::FORBIDDEN);
}

#[tokio::test(start_paused = true)]
async fn a_socket_that_never_came_to_be_holds_nothing() {
    let house = House::new(ONE);
    drop(house.open(&[]).await);
    assert!(!house.is_full().await);
}

#[tokio::test(start_paused = true)]
async fn each_key_has_its_own_sockets() {
    let house = House::new(
        "  - {name: sockets, when: {layer: websocket}, per: ['header:x-user'], concurrency: 1}",
    );
    let ann = house.open(&[("x-user", "ann")]).await.ok().expect("room");
    assert!(house.open(&[("x-user", "ann")]).await.is_err());
    assert!(house.open(&[("x-user", "bob")]).await.is_ok());
    drop(ann);
    assert!(house.open(&[("x-user", "ann")]).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_socket_is_held_for_as_long_as_it_is_open() {
    let house = House::new(ONE);
    let mut talk = house.talk(None).await;
    for _ in 0..20 {
        sleep(Duration::from_secs(30)).await;
        assert!(house.is_full().await, "its lease is renewed");
    }
    talk.client.shutdown().await.unwrap();
    house.has_room_soon().await;
}

#[tokio::test(start_paused = true)]
async fn whatever_ends_a_socket_its_slot_comes_back_soon_and_not_before() {
    let limits = format!(
        "{ONE}
  - {{name: talk, when: {{layer: websocket, header:x-how: absent}}, rate: 1/hour}}
  - {{name: slow, when: {{layer: websocket, header:x-how: delay}}, rate: 1/hour, on_denied: delay}}"
    );
    let check = async |how: &str, end: &dyn Fn(&mut Talk) -> Option<Vec<Vec<u8>>>| {
        let house = House::new(&limits);
        let headers: &[_] = if how.contains("wait") { &[("x-how", "delay")] } else { &[] };
        let mut talk = house.talk_as(headers, Some(Duration::from_secs(600))).await;
        talk.client_sends(&[text("one")]).await;
        talk.server_gets(&[text("one")]).await;
        sleep(SOON * 9).await;
        assert!(house.is_full().await, "{how}: not before");
        if let Some(sent) = end(&mut talk) {
            talk.client_sends(&sent).await;
        }
        if how.contains("leaves") {
            sleep(SOON).await;
            talk.client = duplex(1).0;
        }
        if how.contains("idle") {
            sleep(Duration::from_secs(600)).await;
        }
        house.has_room_soon().await;
    };
    check("the client disconnects", &|talk| {
        talk.client = duplex(1).0;
        None
    })
    .await;
    check("the server disconnects", &|talk| {
        talk.server = duplex(1).0;
        None
    })
    .await;
    check("a limit", &|_| Some(vec![text("two")])).await;
    check("a fault", &|_| Some(vec![vec![TEXT, 1, b'x']])).await;
    check("the task ends, as when it panics", &|talk| {
        talk.relaying.abort();
        None
    })
    .await;
    check("idle", &|_| None).await;
    check("the client leaves while its message waits", &|_| Some(vec![text("two")])).await;
}
