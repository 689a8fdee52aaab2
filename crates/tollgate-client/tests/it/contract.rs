//! The rules around services that are not always ready, as tower's own are.

use std::future::{Ready, ready};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::{Method, Request, Response};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tollgate_client::{Breaker, ClientLayer, Retry, Rules, SendError, State};
use tower::buffer::Buffer;
use tower::limit::ConcurrencyLimit;
use tower_layer::Layer;
use tower_service::Service;

use crate::support::server::{Server, answer, call};
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
            let answered = call(&mut client, request).await;
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

/// A worker that has gone takes no requests any more: that is told, and is a failure unless it is said to be of this side.
#[tokio::test(start_paused = true)]
async fn a_client_that_cannot_be_made_ready_is_an_error() {
    for (is_ours, state) in [(false, State::Open), (true, State::Closed)] {
        let server = Server::new(Duration::ZERO, |_, _| answer(200, ""));
        let (buffer, worker) = Buffer::pair(server, 1);
        drop(worker);
        let breaker = Breaker::new();
        let rules = Rules::new().breaker(breaker.clone());
        let rules = rules.ours(move |_: &tower::BoxError| is_ours);
        let mut client = ClientLayer::new(rules).layer(buffer);
        for _ in 0..5 {
            let answered = call(&mut client, request("api.example.com")).await;
            assert!(matches!(answered, Err(SendError::Failed(_))), "{answered:?}");
        }
        assert_eq!(breaker.circuit("api.example.com").state(), state);
    }
}

/// The only place is taken for long: a request waits for it as long as it may be tried, and no longer.
#[tokio::test(start_paused = true)]
async fn nobody_waits_for_its_client_after_the_deadline() {
    let server = Server::new(600 * SECOND, |_, _| answer(200, ""));
    let rules = Rules::new().retry(Retry::new().deadline(10 * SECOND));
    let client = ClientLayer::new(rules).layer(ConcurrencyLimit::new(server.clone(), 1));
    let mut first = client.clone();
    let first = tokio::spawn(async move { call(&mut first, request("a.example.com")).await });
    tokio::time::sleep_until(now() + SECOND).await;
    let start = now();
    let answered = call(&mut client.clone(), request("a.example.com")).await;
    assert!(matches!(answered, Err(SendError::Throttled(_))), "{answered:?}");
    assert!((10 * SECOND..11 * SECOND).contains(&(now() - start)));
    assert_eq!(server.arrivals().len(), 1);
    first.abort();
}

/// While one waits for its client another is refused: then it waits as the others do, and takes no place meanwhile.
#[tokio::test(start_paused = true)]
async fn a_refusal_holds_back_those_who_wait_for_their_client() {
    let server = Server::new(5 * SECOND, |number, _| match number {
        0 => answer(429, "Retry-After: 60"),
        _ => answer(200, ""),
    });
    let client = ClientLayer::new(Rules::new()).layer(ConcurrencyLimit::new(server.clone(), 1));
    let send = |host: &'static str| {
        let mut client = client.clone();
        let mut request = request(host);
        *request.method_mut() = Method::POST;
        async move { call(&mut client, request).await.expect("there is an answer").status() }
    };
    let first = tokio::spawn(send("a.example.com"));
    tokio::time::sleep_until(now() + SECOND).await;
    let second = tokio::spawn(send("a.example.com"));
    tokio::time::sleep_until(now() + 10 * SECOND).await;
    assert_eq!(send("b.example.com").await, 200);
    assert_eq!(
        (first.await.unwrap(), second.await.unwrap()),
        (429.try_into().unwrap(), 200.try_into().unwrap())
    );
    let after: Vec<u64> = server.arrivals().iter().map(|arrival| arrival.after.as_secs()).collect();
    assert_eq!(after, [0, 11, 65]);
}

/// A client with one place, which is free when the body of its answer is gone. The first answer is a refusal.
#[derive(Clone, Default)]
struct OnePlace {
    place: Arc<Mutex<Place>>,
}

#[derive(Default)]
struct Place {
    is_taken: bool,
    answers: u32,
    waiting: Option<Waker>,
}

struct Body(Arc<Mutex<Place>>);

impl Drop for Body {
    fn drop(&mut self) {
        let mut place = self.0.lock().expect("nobody panics with it");
        place.is_taken = false;
        if let Some(waiting) = place.waiting.take() {
            waiting.wake();
        }
    }
}

impl Service<Request<String>> for OnePlace {
    type Response = Response<Body>;
    type Error = std::convert::Infallible;
    type Future = Ready<Result<Response<Body>, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let mut place = self.place.lock().expect("nobody panics with it");
        if place.is_taken {
            place.waiting = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<String>) -> Self::Future {
        let mut response = Response::new(Body(Arc::clone(&self.place)));
        let mut place = self.place.lock().expect("nobody panics with it");
        place.is_taken = true;
        place.answers += 1;
        if place.answers == 1 {
            *response.status_mut() = http::StatusCode::TOO_MANY_REQUESTS;
        }
        ready(Ok(response))
    }
}

/// What the attempt before brought holds what the next one needs.
#[tokio::test(start_paused = true)]
async fn a_retry_does_not_wait_for_its_own_answer() {
    let mut client = ClientLayer::new(Rules::new()).layer(OnePlace::default());
    let answered = timeout(60 * SECOND, call(&mut client, request("api.example.com"))).await;
    let answered = answered.expect("it does not wait for itself");
    assert_eq!(answered.unwrap().status(), 200);
}
