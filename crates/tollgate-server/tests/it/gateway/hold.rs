//! Requests that wait for their turn.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, yield_now};
use tollgate_server::Door;

use super::ends::soon;
use super::upstream::{Exchange, Upstream};
use crate::grpc::client::stop;
use crate::server::Running;

/// A server, a gateway in front of it, and a connection over which requests come in order.
struct Queue {
    upstream: Upstream,
    gateway: Running,
    requests: SendRequest<Empty<Bytes>>,
}

impl Queue {
    async fn start(policy: &str) -> Self {
        let upstream = Upstream::start(Exchange::ok);
        let policy = format!("upstream: http://{}\n{policy}", upstream.address);
        let gateway = Running::start(&["gateway", "http"], &policy);
        let stream = TcpStream::connect(gateway.address(Door::Gateway)).await.expect("it listens");
        let shaken = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (requests, connection) = shaken.expect("it speaks HTTP/2");
        tokio::spawn(connection);
        Self { upstream, gateway, requests }
    }

    /// Sends a request now; it is taken back if it is dropped.
    fn ask(&mut self, path: &str) -> Asked {
        let request = Request::get(format!("http://a{path}")).body(Empty::new());
        Asked(tokio::spawn(self.requests.send_request(request.expect("a request"))))
    }

    /// How many more the queue would take.
    fn room(&self) -> Value {
        let peek = self.gateway.ask(Door::Http, "GET /v1/check?cost=0", "");
        peek.json()["limits"][0]["remaining"].clone()
    }

    /// Waits until the queue would take so many. The connection over which somebody leaves goes on in
    /// the meantime.
    async fn until_room(&self, room: u32) {
        for _ in 0..10_000 {
            if self.room() == room {
                return;
            }
            yield_now().await;
        }
        panic!("the queue has no room for {room}, but for {}", self.room());
    }

    /// What got to the server.
    fn passed(&self) -> Vec<String> {
        self.upstream.requests().into_iter().map(|it| it.target).collect()
    }
}

struct Asked(JoinHandle<hyper::Result<Response<Incoming>>>);

impl Asked {
    async fn answer(mut self) -> Response<Incoming> {
        soon(&mut self.0).await.expect("no panic").expect("an answer")
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[tokio::test]
async fn requests_that_wait_go_on_one_by_one_in_the_order_in_which_they_came() {
    let limit = "limits: [{name: line, rate: 10/second, algorithm: leaky_bucket, queue: 4}]";
    let mut queue = Queue::start(limit).await;
    let asked: Vec<_> = ["/1", "/2", "/3", "/4", "/5"].map(|path| queue.ask(path)).into();
    let mut statuses = Vec::new();
    for asked in asked {
        statuses.push(asked.answer().await.status().as_u16());
    }
    assert_eq!(statuses, [200, 200, 200, 200, 429]);
    assert_eq!(queue.passed(), ["/1", "/2", "/3", "/4"]);
    stop(queue.gateway).await;
}

#[tokio::test]
async fn who_leaves_the_queue_leaves_its_place_to_others() {
    let limit = "limits: [{name: line, rate: 1/minute, algorithm: leaky_bucket, queue: 3}]";
    let mut queue = Queue::start(limit).await;
    assert_eq!(queue.ask("/1").answer().await.status(), 200);
    let (second, third) = (queue.ask("/2"), queue.ask("/3"));
    assert_eq!(queue.ask("/4").answer().await.status(), 429);
    assert_eq!(queue.room(), 0);
    drop(second);
    queue.until_room(1).await;
    drop(third);
    queue.until_room(2).await;
    assert_eq!(queue.passed(), ["/1"]);
    stop(queue.gateway).await;
}

#[tokio::test]
async fn so_many_are_held_at_a_time_and_others_are_told_that_we_are_unwell() {
    let policy = "gateway: { max_held: 1 }\n\
                  limits: [{name: line, rate: 1/minute, algorithm: leaky_bucket, queue: 9}]";
    let mut queue = Queue::start(policy).await;
    assert_eq!(queue.ask("/1").answer().await.status(), 200);
    let held = queue.ask("/2");
    let refused = queue.ask("/3").answer().await;
    assert_eq!(refused.status(), 503);
    assert_eq!(refused.headers()["content-type"], "application/problem+json");
    let body = refused.into_body().collect().await.unwrap().to_bytes();
    let problem: Value = serde_json::from_slice(&body).unwrap();
    let kind = problem["type"].as_str().expect("a problem has a type");
    assert!(kind.ends_with("#temporary-reduced-capacity"), "{problem}");
    assert_eq!(queue.room(), 7, "who was refused is not in the queue");
    drop(held);
    queue.until_room(8).await;
    stop(queue.gateway).await;
}
