//! The rules around reqwest, with a middleware in the place of the network.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Extensions;
use reqwest::{Body, Client, Request, Response};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next, Result};
use tollgate_client::{Breaker, ClientMiddleware, Open, Repeatable, Rules, State};

use crate::support::{fields, now};

/// Answers with these, and then with 200; writes down every body.
#[derive(Clone)]
struct Network {
    answers: Arc<Mutex<Vec<(u16, &'static str)>>>,
    bodies: Arc<Mutex<Vec<Option<Vec<u8>>>>>,
}

impl Network {
    fn bodies(&self) -> Vec<Option<Vec<u8>>> {
        self.bodies.lock().expect("nobody panics with it").clone()
    }

    fn answer(&self, request: &Request) -> Response {
        let body = request.body().and_then(Body::as_bytes).map(<[u8]>::to_vec);
        self.bodies.lock().expect("nobody panics with it").push(body);
        let answer = self.answers.lock().expect("nobody panics with it").pop();
        let (status, lines) = answer.unwrap_or((200, ""));
        let mut response = http::Response::new("");
        *response.status_mut() = status.try_into().expect("a status");
        *response.headers_mut() = fields(lines);
        response.into()
    }
}

impl Middleware for Network {
    fn handle<'a, 'b, 'c, 'f>(
        &'a self,
        request: Request,
        _: &'b mut Extensions,
        _: Next<'c>,
    ) -> Pin<Box<dyn Future<Output = Result<Response>> + Send + 'f>>
    where
        'a: 'f,
        'b: 'f,
        'c: 'f,
        Self: 'f,
    {
        Box::pin(async move { Ok(self.answer(&request)) })
    }
}

/// Counts what goes out.
#[derive(Clone, Default)]
pub(crate) struct Counted(pub(crate) Arc<AtomicUsize>);

impl Middleware for Counted {
    fn handle<'a, 'b, 'c, 'f>(
        &'a self,
        request: Request,
        extensions: &'b mut Extensions,
        next: Next<'c>,
    ) -> Pin<Box<dyn Future<Output = Result<Response>> + Send + 'f>>
    where
        'a: 'f,
        'b: 'f,
        'c: 'f,
        Self: 'f,
    {
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(next.run(request, extensions))
    }
}

fn client(answers: &[(u16, &'static str)]) -> (ClientWithMiddleware, Network) {
    let answers = answers.iter().rev().copied().collect();
    let network = Network { answers: Arc::new(Mutex::new(answers)), bodies: Arc::default() };
    let client = ClientBuilder::new(Client::new())
        .with(ClientMiddleware::new(Rules::new()))
        .with(network.clone())
        .build();
    (client, network)
}

const URL: &str = "http://user:secret@api.example.com:8080/things";

#[tokio::test(start_paused = true)]
async fn a_refused_request_is_made_again_when_it_was_told_to() {
    let (client, network) = client(&[(429, "Retry-After: 7"), (503, "")]);
    let start = now();
    let response = client.put(URL).body("a body").send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(network.bodies(), vec![Some(b"a body".to_vec()); 3]);
    assert!(now() - start >= Duration::from_secs(7));
}

#[tokio::test(start_paused = true)]
async fn two_keys_to_one_host_do_not_hold_each_other_up() {
    let (client, _) = client(&[(200, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 60")]);
    let ask = async |token: &str| {
        let start = now();
        client.get("http://api.example.com/").bearer_auth(token).send().await.unwrap();
        (now() - start).as_secs()
    };
    assert_eq!(ask("anna").await, 0);
    assert_eq!(ask("ben").await, 0);
    assert_eq!(ask("anna").await, 60);
    // Who is named in the URL shows that in a field.
    let (client, _) = self::client(&[(200, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 60")]);
    client.get(URL).send().await.unwrap();
    let start = now();
    client.get("http://ben:secret@api.example.com:8080/").send().await.unwrap();
    assert_eq!(now(), start);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_safe_is_not_made_again() {
    let (client, network) = client(&[(429, "Retry-After: 7"), (429, "Retry-After: 7")]);
    assert_eq!(client.post(URL).body("x").send().await.unwrap().status(), 429);
    assert_eq!(network.bodies().len(), 1);
    let again = client.post(URL).body("x").with_extension(Repeatable).send().await;
    assert_eq!(again.unwrap().status(), 200);
    assert_eq!(network.bodies().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_fails_is_left_alone_and_its_secrets_are_not_told() {
    let (client, network) = client(&[(500, ""); 9]);
    for _ in 0..5 {
        assert_eq!(client.get(URL).send().await.unwrap().status(), 500);
    }
    let reqwest_middleware::Error::Middleware(error) = client.get(URL).send().await.unwrap_err()
    else {
        panic!("the circuit is open");
    };
    assert_eq!(&*error.downcast::<Open>().unwrap().key, "api.example.com:8080");
    assert_eq!(network.bodies().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_cannot_be_sent_is_not_tried_again() {
    let client =
        ClientBuilder::new(Client::new()).with(ClientMiddleware::new(Rules::new())).build();
    let start = now();
    client.get("ftp://api.example.com/").send().await.unwrap_err();
    assert_eq!(now(), start);
}

/// A middleware that finds no token, in the place of one that does.
struct NoToken;

impl Middleware for NoToken {
    fn handle<'a, 'b, 'c, 'f>(
        &'a self,
        _: Request,
        _: &'b mut Extensions,
        _: Next<'c>,
    ) -> Pin<Box<dyn Future<Output = Result<Response>> + Send + 'f>>
    where
        'a: 'f,
        'b: 'f,
        'c: 'f,
        Self: 'f,
    {
        let error = std::io::Error::other("there is no token");
        Box::pin(async { Err(reqwest_middleware::Error::middleware(error)) })
    }
}

#[tokio::test(start_paused = true)]
async fn what_another_middleware_does_not_send_is_not_blamed_on_the_host() {
    let breaker = Breaker::new();
    let rules = Rules::new().breaker(breaker.clone());
    let client =
        ClientBuilder::new(Client::new()).with(ClientMiddleware::new(rules)).with(NoToken).build();
    for _ in 0..10 {
        let error = client.get(URL).send().await.unwrap_err();
        assert_eq!(error.to_string(), "there is no token");
    }
    assert_eq!(breaker.circuit("api.example.com:8080").state(), State::Closed);
}

/// To tell whose errors those of other middleware are is for whoever knows it.
#[tokio::test(start_paused = true)]
async fn what_another_middleware_could_not_send_is_of_the_host_if_that_is_said() {
    let breaker = Breaker::new().failures(1);
    let rules = Rules::new().breaker(breaker.clone());
    let rules = rules.ours(|_: &reqwest_middleware::Error| false);
    let client =
        ClientBuilder::new(Client::new()).with(ClientMiddleware::new(rules)).with(NoToken).build();
    client.get(URL).send().await.unwrap_err();
    assert_eq!(breaker.circuit("api.example.com:8080").state(), State::Open);
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_not_lost_because_the_next_attempt_is_not_made() {
    let (client, network) = client(&[(503, ""); 9]);
    assert_eq!(client.get(URL).send().await.unwrap().status(), 503);
    assert_eq!(network.bodies().len(), 5);
}
