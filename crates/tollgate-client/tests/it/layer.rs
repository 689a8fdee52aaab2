//! The rules around a tower service, on a clock that is moved by hand.

use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use tokio::time::{advance, timeout};
use tollgate_client::{
    Breaker, ClientLayer, ClientService, Repeatable, Retry, Rules, SendError, Throttle,
};
use tollgate_core::{Limit, Micros};
use tower_layer::Layer;

use crate::support::server::{Answer, Lost, Server, answer, call};
use crate::support::{SECOND, now};

pub(crate) type Client = ClientService<Server, String>;

/// A server that gives these answers and then 200, and a client of it.
pub(crate) fn client(rules: Rules, answers: Vec<Answer>) -> (Client, Server) {
    let server = Server::new(Duration::ZERO, move |number, _| {
        answers.get(number).cloned().unwrap_or_else(|| answer(200, ""))
    });
    (ClientLayer::new(rules).layer(server.clone()), server)
}

pub(crate) fn request(method: Method) -> Request<String> {
    let mut request = Request::new("a body".to_owned());
    *request.method_mut() = method;
    *request.uri_mut() = "http://api.example.com/things".parse().expect("a URI");
    request
}

pub(crate) type Answered = Result<Response<()>, SendError<Lost>>;

pub(crate) async fn send(client: &mut Client, request: Request<String>) -> Answered {
    call(client, request).await
}

pub(crate) fn status(answered: &Answered) -> u16 {
    answered.as_ref().expect("there is an answer").status().as_u16()
}

/// Sends a request and tells how often it arrived, and how the last one ended.
async fn check(request: Request<String>, answers: Vec<Answer>, arrivals: usize, last: Option<u16>) {
    let told = format!("{request:?} {answers:?}");
    let (mut client, server) = client(Rules::new(), answers);
    let answered = send(&mut client, request).await;
    assert_eq!(answered.as_ref().ok().map(|answer| answer.status().as_u16()), last, "{told}");
    assert_eq!(server.arrivals().len(), arrivals, "{told}");
    assert!(server.arrivals().iter().all(|arrival| arrival.body == "a body"), "{told}");
}

#[tokio::test(start_paused = true)]
async fn what_is_safe_is_tried_again_and_nothing_else() {
    let idempotent = [Method::GET, Method::HEAD, Method::PUT, Method::DELETE, Method::OPTIONS];
    for method in idempotent {
        check(request(method.clone()), vec![answer(429, "")], 2, Some(200)).await;
        check(request(method.clone()), vec![answer(503, ""), None], 3, Some(200)).await;
        check(request(method), vec![None], 2, Some(200)).await;
    }
    for method in [Method::POST, Method::PATCH] {
        check(request(method.clone()), vec![answer(429, "Retry-After: 1")], 1, Some(429)).await;
        check(request(method.clone()), vec![answer(503, "")], 1, Some(503)).await;
        check(request(method), vec![None], 1, None).await;
    }
    for status in [200, 204, 301, 400, 401, 403, 404, 409, 500, 501, 502, 504] {
        check(request(Method::GET), vec![answer(status, "")], 1, Some(status)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_says_it_may_is_tried_again() {
    let mut keyed = request(Method::POST);
    keyed.headers_mut().insert("idempotency-key", "42".parse().unwrap());
    check(keyed, vec![answer(429, ""), None], 3, Some(200)).await;
    let mut marked = request(Method::POST);
    marked.extensions_mut().insert(Repeatable);
    check(marked, vec![answer(503, ""), None], 3, Some(200)).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_says_whether_to_try_again_is_believed() {
    let get = || request(Method::GET);
    check(get(), vec![answer(429, "X-Should-Retry: false")], 1, Some(429)).await;
    check(get(), vec![answer(409, "Stripe-Should-Retry: true")], 2, Some(200)).await;
    check(request(Method::POST), vec![answer(409, "Stripe-Should-Retry: true")], 1, Some(409))
        .await;
    check(get(), vec![answer(200, "Stripe-Should-Retry: true")], 1, Some(200)).await;
}

#[tokio::test(start_paused = true)]
async fn a_body_that_cannot_be_had_again_is_sent_once() {
    let server = Server::new(Duration::ZERO, |_, _| answer(429, "Retry-After: 1"));
    let mut client = ClientLayer::with_replay(Rules::new(), |_| None).layer(server.clone());
    assert_eq!(status(&call(&mut client, request(Method::PUT)).await), 429);
    assert_eq!(server.arrivals().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_was_told_is_kept() {
    for (told, wait) in [
        ("Retry-After: 3", 3.0),
        ("Retry-After: 2.5", 2.5),
        ("Retry-After-Ms: 700", 0.7),
        ("X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 9", 9.0),
    ] {
        let wait = Duration::from_secs_f64(wait);
        let (mut client, server) = client(Rules::new(), vec![answer(429, told)]);
        assert_eq!(status(&send(&mut client, request(Method::GET)).await), 200);
        let after = server.arrivals()[1].after;
        assert!(
            (wait..=wait + SECOND + Duration::from_millis(2)).contains(&after),
            "{told}: {after:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_403_that_means_too_many_is_a_refusal() {
    let get = || request(Method::GET);
    check(get(), vec![answer(403, "Retry-After: 60")], 2, Some(200)).await;
    let used_up = "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 60";
    check(get(), vec![answer(403, used_up)], 2, Some(200)).await;
    check(get(), vec![answer(403, "X-RateLimit-Remaining: 10")], 1, Some(403)).await;
}

#[tokio::test(start_paused = true)]
async fn five_retries_are_all() {
    let (mut client, server) = client(Rules::new(), vec![answer(429, "Retry-After: 1"); 20]);
    assert_eq!(status(&send(&mut client, request(Method::GET)).await), 429);
    assert_eq!(server.arrivals().len(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_fails_is_left_alone_and_another_is_not() {
    let server = Server::new(Duration::ZERO, |_, arrival| {
        if arrival.host == "api.example.com" { answer(500, "") } else { answer(200, "") }
    });
    let mut client = ClientLayer::new(Rules::new()).layer(server.clone());
    for _ in 0..5 {
        assert_eq!(status(&send(&mut client, request(Method::GET)).await), 500);
    }
    let answered = send(&mut client.clone(), request(Method::GET)).await;
    let Err(SendError::Open(open)) = answered else { panic!("{answered:?}") };
    assert_eq!((&*open.key, open.retry_after), ("api.example.com", Some(30 * SECOND)));
    let mut other = request(Method::GET);
    *other.uri_mut() = "http://other.example.com/".parse().unwrap();
    assert_eq!(status(&send(&mut client, other).await), 200);
    assert_eq!(server.arrivals().len(), 6);
}

#[tokio::test(start_paused = true)]
async fn refusals_are_no_failures() {
    let rules = Rules::new().retry(Retry::new().retries(0));
    let (mut client, _) = client(rules, vec![answer(429, ""); 30]);
    for _ in 0..30 {
        assert_eq!(status(&send(&mut client, request(Method::GET)).await), 429);
    }
    assert_eq!(status(&send(&mut client, request(Method::GET)).await), 200);
}

#[tokio::test(start_paused = true)]
async fn what_one_request_learns_holds_for_all_of_its_key() {
    let used_up = answer(200, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 10");
    let rules = Rules::new()
        .throttle_by(|call| format!("{} {:?}", call.host, call.fields.get("authorization")));
    let (mut client, server) = client(rules, vec![used_up]);
    let of = |key: &str| {
        let mut request = request(Method::GET);
        request.headers_mut().insert("authorization", key.parse().expect("a value"));
        request
    };
    for key in ["anna", "ben", "anna"] {
        assert_eq!(status(&send(&mut client.clone(), of(key)).await), 200);
    }
    send(&mut client, of("ben")).await.unwrap();
    let after: Vec<u64> = server.arrivals().iter().map(|arrival| arrival.after.as_secs()).collect();
    assert_eq!(after, [0, 0, 10, 10]);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_would_wait_too_long_is_not_sent() {
    let used_up = answer(200, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 1000");
    let (mut client, server) = client(Rules::new(), vec![used_up]);
    send(&mut client, request(Method::GET)).await.unwrap();
    let answered = send(&mut client, request(Method::POST)).await;
    assert!(matches!(answered, Err(SendError::Throttled(_))), "{answered:?}");
    assert_eq!(server.arrivals().len(), 1);
}

/// Whoever waits to be tried again, and then for its turn, does not wait for longer than the deadline in all.
#[tokio::test(start_paused = true)]
async fn no_attempt_begins_after_the_deadline() {
    let limit = Limit::concurrency(1, Micros::from_secs(3_600)).unwrap();
    let throttle = Throttle::new().limit(limit);
    let retry = Retry::new().deadline(10 * SECOND);
    let rules = Rules::new().retry(retry).throttle(throttle.clone());
    let (mut client, server) = client(rules, vec![answer(429, "Retry-After: 3")]);
    let start = now();
    let holds_the_place = async {
        tokio::time::sleep_until(start + SECOND).await;
        let lane = throttle.lane("api.example.com");
        let pass = lane.pass().await.expect("it need not wait for long");
        tokio::time::sleep_until(start + 60 * SECOND).await;
        drop(pass);
    };
    let sends = async {
        // What it was told is what is returned.
        assert_eq!(status(&send(&mut client, request(Method::GET)).await), 429);
        assert!(now() - start <= 10 * SECOND + Duration::from_millis(2));
    };
    tokio::join!(holds_the_place, sends);
    assert_eq!(server.arrivals().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_told_as_it_was() {
    let rules = Rules::new().retry(Retry::new().retries(0));
    let (mut client, _) = client(rules, vec![None]);
    let failed = send(&mut client, request(Method::GET)).await.unwrap_err();
    assert_eq!(failed.to_string(), "the connection was lost");
}

/// Requests are dropped at every moment of their course: while they wait for their turn, while they are
/// under way, while they wait to be tried again. Nobody after them finds a place taken.
#[tokio::test(start_paused = true)]
async fn a_request_may_be_dropped_at_any_moment() {
    let limit = Limit::concurrency(1, Micros::from_secs(3_600)).unwrap();
    let rules = Rules::new()
        .throttle(Throttle::new().limit(limit))
        .breaker(Breaker::new().failures(1).successes(1).open_for(3 * SECOND));
    let answers =
        [answer(503, "Retry-After: 2"), answer(429, "Retry-After: 1"), None, answer(200, "")];
    let server = Server::new(SECOND, move |number, _| answers[number % 4].clone());
    let client = ClientLayer::new(rules).layer(server.clone());
    for tenths in 0..200 {
        let moment = tenths * SECOND / 10;
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..3 {
            let mut client = client.clone();
            tasks.spawn(async move {
                let _dropped = timeout(moment, send(&mut client, request(Method::GET))).await;
            });
        }
        tasks.join_all().await;
        // Whatever was learned has had its time.
        advance(10 * SECOND).await;
        let start = now();
        let _answered = send(&mut client.clone(), request(Method::POST)).await;
        assert_eq!(now() - start, SECOND, "after {moment:?} a place was taken");
        advance(10 * SECOND).await;
    }
    assert!(server.arrivals().len() > 300);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_needs_nothing_gets_what_it_asked_for() {
    let (mut client, server) = client(Rules::new(), vec![answer(200, "ETag: \"x\"")]);
    let answered = send(&mut client, request(Method::GET)).await.unwrap();
    assert_eq!(
        (answered.status(), &answered.headers()["etag"]),
        (StatusCode::OK, &"\"x\"".parse().unwrap())
    );
    assert_eq!(server.arrivals().len(), 1);
}
