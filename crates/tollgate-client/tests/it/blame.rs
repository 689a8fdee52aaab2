//! Who is to blame, and who pays: hosts are told apart, and what failed here is not blamed on them.

use std::time::Duration;

use http::{Method, Request};
use tollgate_client::{
    Backoff, Breaker, ClientLayer, Retry, Rules, SendError, State, Throttle, bounds,
};
use tower_layer::Layer;

use crate::layer::{client, request, send, status};
use crate::support::server::{Lost, Server, answer, call};
use crate::support::{SECOND, now};

fn to(uri: &str) -> Request<String> {
    let mut request = request(Method::GET);
    *request.uri_mut() = uri.parse().expect("a URI");
    request
}

/// The fifth failure opens the circuit. Whoever had it gets it, at once, and not that a sixth would not be made.
#[tokio::test(start_paused = true)]
async fn an_answer_is_not_lost_because_the_next_attempt_is_not_made() {
    let (mut client, server) = client(Rules::new(), vec![answer(503, "X-Number: 1"); 20]);
    assert_eq!(status(&send(&mut client, request(Method::GET)).await), 503);
    assert_eq!(server.arrivals().len(), 5);
    let last = server.arrivals()[4].after;
    assert_eq!(now() - server.started(), last, "it does not wait in vain");
    let answered = send(&mut client, request(Method::GET)).await;
    assert!(matches!(answered, Err(SendError::Open(_))), "{answered:?}");
}

/// While one waits to be tried again, others open the circuit.
#[tokio::test(start_paused = true)]
async fn an_answer_is_not_lost_because_others_have_failed_meanwhile() {
    let breaker = Breaker::new();
    let answers = vec![answer(503, "Retry-After: 10"); 2];
    let (client, server) = client(Rules::new().breaker(breaker.clone()), answers);
    let circuit = breaker.circuit("api.example.com");
    let (answered, ()) =
        tokio::join!(async { send(&mut client.clone(), request(Method::GET)).await }, async {
            tokio::time::sleep_until(now() + SECOND).await;
            circuit.force_open(true);
        });
    assert_eq!(status(&answered), 503);
    assert_eq!(server.arrivals().len(), 1);
}

/// However its name is spelled and whatever secret stands before it, a host is one host; and the secret is told nobody.
#[tokio::test(start_paused = true)]
async fn a_host_is_its_name_alone() {
    let (mut client, server) = client(Rules::new(), vec![answer(500, ""); 9]);
    for uri in [
        "http://user:secret@API.example.com/",
        "http://user:other@api.example.com:80/",
        "http://api.example.com/",
        "https://api.example.com:443/",
        "https://api.example.com/",
    ] {
        assert_eq!(status(&send(&mut client, to(uri)).await), 500);
    }
    // Another port is another host.
    for uri in ["http://api.example.com:443/", "https://api.example.com:80/"] {
        assert_eq!(status(&send(&mut client, to(uri)).await), 500);
    }
    let answered = send(&mut client, to("http://User:Secret@api.EXAMPLE.com/")).await;
    let Err(SendError::Open(open)) = answered else { panic!("{answered:?}") };
    assert_eq!(&*open.key, "api.example.com");
    assert_eq!(server.arrivals().len(), 7);

    let mut by_field = request(Method::GET);
    *by_field.uri_mut() = "/things".parse().unwrap();
    by_field.headers_mut().insert("host", "secret@Api.example.com".parse().unwrap());
    let answered = send(&mut client, by_field).await;
    assert!(matches!(answered, Err(SendError::Open(_))), "{answered:?}");
}

/// One host fails for ever, and another works: what the second has earned does not pay for retries to the first.
#[tokio::test(start_paused = true)]
async fn every_host_pays_for_its_own_retries() {
    let server = Server::new(Duration::ZERO, |_, arrival| match &*arrival.host {
        "bad.example.com" => answer(503, ""),
        _ => answer(200, ""),
    });
    let mut client = ClientLayer::new(tried_at_once()).layer(server.clone());
    for _ in 0..1_000 {
        assert_eq!(status(&send(&mut client, to("http://good.example.com/")).await), 200);
    }
    for _ in 0..100 {
        assert_eq!(status(&send(&mut client, to("http://bad.example.com/")).await), 503);
    }
    // A fifth of its hundred, and the ten that time has saved.
    let sent = server.arrivals().iter().filter(|it| it.host == "bad.example.com").count();
    assert!((120..=135).contains(&sent), "{sent} were sent for 100");
}

/// Rules under which everything is tried again at once, as long as there is a share for it.
fn tried_at_once() -> Rules {
    let backoff = Backoff::new(Duration::ZERO, Duration::ZERO);
    Rules::new()
        .retry(Retry::new().backoff(backoff))
        .breaker(Breaker::new().failures(u32::MAX).failure_rate(101))
}

/// Budgets are told apart finely, and what fails is the host: its retries are counted together.
#[tokio::test(start_paused = true)]
async fn lanes_of_one_host_pay_for_its_retries_together() {
    let server = Server::new(Duration::ZERO, |_, _| answer(503, ""));
    let rules = tried_at_once().throttle_by(|call| format!("{}{}", call.host, call.path));
    let mut client = ClientLayer::new(rules).layer(server.clone());
    for number in 0..100 {
        let uri = format!("http://api.example.com/{number}");
        assert_eq!(status(&send(&mut client, to(&uri)).await), 503);
    }
    let sent = server.arrivals().len();
    assert!((120..=135).contains(&sent), "{sent} were sent for 100");
}

/// Five hundred would have waited too long, and are not sent: nobody may try again in their place.
#[tokio::test(start_paused = true)]
async fn requests_that_are_not_made_pay_for_no_retries() {
    let throttle = Throttle::new();
    let used_up = answer(200, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 1000");
    let server =
        Server::new(
            Duration::ZERO,
            move |number, _| {
                if number == 0 { used_up.clone() } else { answer(503, "") }
            },
        );
    let rules = tried_at_once().throttle(throttle.clone());
    let mut client = ClientLayer::new(rules).layer(server.clone());
    send(&mut client, request(Method::GET)).await.unwrap();
    for _ in 0..500 {
        let answered = send(&mut client, request(Method::GET)).await;
        assert!(matches!(answered, Err(SendError::Throttled(_))), "{answered:?}");
    }
    throttle.lane("api.example.com").reopen();
    for _ in 0..10 {
        assert_eq!(status(&send(&mut client, request(Method::GET)).await), 503);
    }
    // Those ten, a fifth of them, and the ten that time has saved.
    let sent = server.arrivals().len() - 1;
    assert!((20..=25).contains(&sent), "{sent} were sent for 10");
}

/// There are more hosts than can be told apart: those for whom there is no room have one share.
#[tokio::test(start_paused = true)]
async fn hosts_without_room_have_one_share_of_retries() {
    let room = bounds::KEYS_MAX;
    let server = Server::new(Duration::ZERO, move |number, _| {
        answer(if number < room { 500 } else { 503 }, "")
    });
    let mut client = ClientLayer::new(tried_at_once()).layer(server.clone());
    for number in 0..room + 100 {
        let uri = format!("http://{number}.example.com/");
        let answered = status(&send(&mut client, to(&uri)).await);
        assert_eq!(answered, if number < room { 500 } else { 503 });
    }
    let sent = server.arrivals().len() - room;
    assert!((120..=135).contains(&sent), "{sent} were sent for 100");
}

/// A middleware that looks for a token for ten seconds and finds none tells nothing of how fast a host is.
#[tokio::test(start_paused = true)]
async fn what_failed_slowly_on_this_side_is_blamed_on_nobody() {
    let breaker = Breaker::new().slow_calls(SECOND, 50).window(600 * SECOND, 5);
    let rules = Rules::new().breaker(breaker.clone()).ours(|_: &Lost| true);
    let server = Server::new(10 * SECOND, |_, _| None);
    let mut client = ClientLayer::new(rules).layer(server);
    for _ in 0..10 {
        let answered = send(&mut client, request(Method::GET)).await;
        assert!(matches!(answered, Err(SendError::Failed(Lost))), "{answered:?}");
    }
    assert_eq!(breaker.circuit("api.example.com").state(), State::Closed);
}

/// What failed before it was sent is not tried again, and says nothing about whom it asks.
#[tokio::test(start_paused = true)]
async fn what_failed_on_this_side_is_blamed_on_nobody() {
    let breaker = Breaker::new();
    let rules = Rules::new().breaker(breaker.clone()).ours(|_: &Lost| true);
    let (mut client, server) = client(rules, vec![None; 10]);
    for _ in 0..10 {
        let answered = send(&mut client, request(Method::GET)).await;
        assert!(matches!(answered, Err(SendError::Failed(Lost))), "{answered:?}");
    }
    assert_eq!(server.arrivals().len(), 10);
    assert_eq!(breaker.circuit("api.example.com").state(), State::Closed);
}

/// OpenAI has a budget for each model, X one for each endpoint.
#[tokio::test(start_paused = true)]
async fn lanes_are_by_whatever_is_known_of_a_request() {
    #[derive(Clone)]
    struct Model(&'static str);
    let used_up = answer(200, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 60");
    let rules = Rules::new().throttle_by(|call| {
        let model = call.extensions.get().map_or("", |Model(name)| name);
        format!("{} {} {} {model}", call.host, call.method, call.path)
    });
    let (mut client, server) = client(rules, vec![used_up]);
    let of = |method, uri: &str, model| {
        let mut request = to(uri);
        *request.method_mut() = method;
        request.extensions_mut().insert(Model(model));
        request
    };
    for (method, uri, model) in [
        (Method::GET, "http://api.example.com/a", "large"),
        (Method::GET, "http://api.example.com/a", "small"),
        (Method::PUT, "http://api.example.com/a", "large"),
        (Method::GET, "http://api.example.com/b", "large"),
        (Method::GET, "http://api.example.com/a", "large"),
    ] {
        assert_eq!(status(&send(&mut client, of(method, uri, model)).await), 200);
    }
    let after: Vec<u64> = server.arrivals().iter().map(|arrival| arrival.after.as_secs()).collect();
    assert_eq!(after, [0, 0, 0, 0, 60]);
}

/// One endpoint of X is used up, and the others of the host are not; unless lanes are by endpoint.
#[tokio::test(start_paused = true)]
async fn an_endpoint_that_is_used_up_does_not_close_its_host() {
    let used_up = "X-Rate-Limit-Limit: 15\nX-Rate-Limit-Remaining: 0\nX-Rate-Limit-Reset: 900";
    let rules = || Rules::new().retry(Retry::new().retries(0));
    let by_host = rules();
    let by_endpoint = rules()
        .throttle(Throttle::new().by_endpoint())
        .throttle_by(|call| format!("{}{}", call.host, call.path));
    for (rules, is_held) in [(by_host, false), (by_endpoint, true)] {
        let server = Server::new(Duration::ZERO, |number, _| match number {
            0 => answer(200, used_up),
            1 => answer(429, used_up),
            _ => answer(200, ""),
        });
        let mut client = ClientLayer::new(rules).layer(server.clone());
        assert_eq!(status(&call(&mut client, to("http://api.x.com/a")).await), 200);
        let again = call(&mut client, to("http://api.x.com/a")).await;
        assert_eq!(matches!(again, Err(SendError::Throttled(_))), is_held, "{again:?}");
        call(&mut client, to("http://api.x.com/b")).await.unwrap();
        call(&mut client, to("http://api.x.com/c")).await.unwrap();
    }
}
