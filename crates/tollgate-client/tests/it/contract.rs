//! The rules around services that are not always ready, as tower's own are.

use std::time::Duration;

use http::{Request, Response};
use tokio::task::JoinSet;
use tollgate_client::{Breaker, ClientLayer, Rules, SendError, State};
use tower::buffer::Buffer;
use tower::limit::ConcurrencyLimit;
use tower_layer::Layer;
use tower_service::Service;

use crate::support::server::{Server, answer};
use crate::support::{SECOND, now};

fn request(host: &str) -> Request<String> {
    let mut request = Request::new(String::new());
    *request.uri_mut() = format!("http://{host}/").parse().expect("a URI");
    request
}

/// So many requests at once; how many went well.
async fn send_all<S, E>(client: &S, host: &str, count: usize) -> usize
where
    S: Service<Request<String>, Response = Response<()>, Error = SendError<E>>,
    S: Clone + Send + 'static,
    S::Future: Send,
    E: Send + 'static,
{
    let mut tasks = JoinSet::new();
    for _ in 0..count {
        let (mut client, request) = (client.clone(), request(host));
        tasks.spawn(async move {
            let answered = client.call(request).await;
            answered.is_ok_and(|answer| answer.status() == 200)
        });
    }
    tasks.join_all().await.into_iter().filter(|is_well| *is_well).count()
}

/// Some are refused and tried again: for every attempt of its own it is made ready.
#[tokio::test(start_paused = true)]
async fn a_client_is_made_ready_for_every_attempt() {
    let server = || {
        Server::new(SECOND / 100, |number, _| {
            if number % 3 == 0 { answer(429, "Retry-After: 1") } else { answer(200, "") }
        })
    };
    let limited = server();
    let layer = ClientLayer::new(Rules::new());
    let client = layer.layer(ConcurrencyLimit::new(limited.clone(), 2));
    assert_eq!(send_all(&client, "api.example.com", 20).await, 20);
    assert!(limited.arrivals().len() > 20);

    let layer = ClientLayer::new(Rules::new());
    let client = layer.layer(Buffer::new(server(), 1));
    assert_eq!(send_all(&client, "api.example.com", 20).await, 20);
}

/// Ten wait for the budget of one host, and nobody else can tell.
#[tokio::test(start_paused = true)]
async fn who_waits_for_its_budget_takes_no_place_of_others() {
    let server = Server::new(Duration::ZERO, |_, arrival| match &*arrival.host {
        "a.example.com" => answer(200, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 60"),
        _ => answer(200, ""),
    });
    let client = ClientLayer::new(Rules::new()).layer(ConcurrencyLimit::new(server, 10));
    assert_eq!(send_all(&client, "a.example.com", 1).await, 1);
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { send_all(&client, "a.example.com", 10).await }
    });
    tokio::time::sleep_until(now() + SECOND).await;
    let start = now();
    assert_eq!(send_all(&client, "b.example.com", 10).await, 10);
    assert!(now() - start < SECOND);
    waiting.abort();
}

/// How long a request waits for a place on this side is not how long the other side takes.
#[tokio::test(start_paused = true)]
async fn waiting_for_a_client_is_not_taken_for_a_slow_call() {
    let server = Server::new(SECOND, |_, _| answer(200, ""));
    let breaker = Breaker::new().slow_calls(2 * SECOND, 50).window(600 * SECOND, 5);
    let rules = Rules::new().breaker(breaker.clone());
    let client = ClientLayer::new(rules).layer(ConcurrencyLimit::new(server, 1));
    assert_eq!(send_all(&client, "api.example.com", 20).await, 20);
    assert_eq!(breaker.circuit("api.example.com").state(), State::Closed);
}

/// A worker that has gone takes no requests any more: that is told, and blamed on nobody.
#[tokio::test(start_paused = true)]
async fn a_client_that_cannot_be_made_ready_is_an_error() {
    let server = Server::new(Duration::ZERO, |_, _| answer(200, ""));
    let (buffer, worker) = Buffer::pair(server, 1);
    drop(worker);
    let breaker = Breaker::new();
    let mut client = ClientLayer::new(Rules::new().breaker(breaker.clone())).layer(buffer);
    for _ in 0..10 {
        let answered = client.call(request("api.example.com")).await;
        assert!(matches!(answered, Err(SendError::Failed(_))), "{answered:?}");
    }
    assert_eq!(breaker.circuit("api.example.com").state(), State::Closed);
}
