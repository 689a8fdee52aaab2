//! Requests that are dropped, after every single time they were looked at: nobody after them finds a place taken.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use http::{Extensions, Method, Request};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next};
use tokio::task::yield_now;
use tokio::time::{advance, timeout};
use tollgate_client::{
    Breaker, Check, Client, ClientLayer, ClientMiddleware, ClientService, Descriptors, Rules,
    Source, Throttle, Verdict,
};
use tollgate_core::{Limit, Micros};
use tollgate_harness::Proxy;
use tower_layer::Layer;

use crate::support::running::{LONG, Running};
use crate::support::server::{Answer, Server, answer, call};
use crate::support::{SECOND, fields, now, pass};

/// Looks at a future so many times and drops it; what it brought, if it was done by then.
async fn dropped_after<T>(looks: u32, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut looked = 0;
    poll_fn(|context| {
        if looked == looks {
            return Poll::Ready(None);
        }
        looked += 1;
        match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            // The last look is followed by no other, whenever that would be.
            Poll::Pending if looked == looks => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// One place under way, and one to see whether it works again.
fn rules() -> Rules {
    let limit = Limit::concurrency(1, Micros::from_secs(3_600)).expect("a limit");
    Rules::new()
        .throttle(Throttle::new().limit(limit))
        .breaker(Breaker::new().failures(1).successes(1).open_for(SECOND))
}

/// What is answered after a second: the first `DELETE` fails, the first `GET` is refused, all else goes well.
#[derive(Clone, Default)]
struct Script(Arc<Mutex<Vec<Method>>>);

impl Script {
    fn answer(&self, method: &Method) -> Answer {
        let mut seen = self.0.lock().expect("nobody panics with it");
        let is_first = !seen.contains(method);
        seen.push(method.clone());
        match *method {
            Method::DELETE if is_first => answer(500, ""),
            Method::GET if is_first => answer(429, "Retry-After: 2"),
            _ => answer(200, ""),
        }
    }
}

trait Sends: Clone + 'static {
    /// Whether it went well.
    fn send(&self, method: Method) -> impl Future<Output = bool> + Send;
}

impl Sends for ClientService<Server, String> {
    async fn send(&self, method: Method) -> bool {
        let mut request = Request::new(String::new());
        *request.method_mut() = method;
        *request.uri_mut() = "http://api.example.com/".parse().expect("a URI");
        call(&mut self.clone(), request).await.is_ok_and(|answer| answer.status() == 200)
    }
}

impl Sends for ClientWithMiddleware {
    async fn send(&self, method: Method) -> bool {
        let sent = self.request(method, "http://api.example.com/").send().await;
        sent.is_ok_and(|answer| answer.status() == 200)
    }
}

/// In the place of the network.
#[derive(Clone)]
struct Network(Script);

impl Middleware for Network {
    fn handle<'a, 'b, 'c, 'f>(
        &'a self,
        request: reqwest::Request,
        _: &'b mut Extensions,
        _: Next<'c>,
    ) -> Pin<Box<dyn Future<Output = reqwest_middleware::Result<reqwest::Response>> + Send + 'f>>
    where
        'a: 'f,
        'b: 'f,
        'c: 'f,
        Self: 'f,
    {
        Box::pin(async move {
            let answer = self.0.answer(request.method());
            tokio::time::sleep_until(now() + SECOND).await;
            let (status, lines) = answer.expect("it always answers");
            let mut response = http::Response::new("");
            *response.status_mut() = status.try_into().expect("a status");
            *response.headers_mut() = fields(&lines);
            Ok(response.into())
        })
    }
}

/// A request waits for the one before it or is the one that sees whether it works again, is refused, waits, and goes
/// well. It is dropped after one look, after two, and so on, until it was looked at to its end.
async fn check<C: Sends>(make: impl Fn() -> C) {
    for is_to_see in [false, true] {
        for looks in 0.. {
            let client = make();
            if is_to_see {
                assert!(!client.send(Method::DELETE).await, "it fails, and opens the circuit");
                advance(SECOND).await;
            }
            let before = async {
                if !is_to_see {
                    assert!(client.send(Method::PUT).await, "it holds the only place");
                }
            };
            let ((), sent) = tokio::join!(before, dropped_after(looks, client.send(Method::GET)));
            // Whatever was learned has had its time.
            advance(10 * SECOND).await;
            for _ in 0..2 {
                let start = now();
                assert!(client.send(Method::POST).await, "after {looks} looks");
                let took = now() - start;
                assert!(took < SECOND + SECOND / 10, "after {looks} looks it waited: {took:?}");
            }
            if let Some(is_well) = sent {
                assert!(is_well, "whoever is not dropped gets through");
                assert!(looks >= 3, "it was done after {looks} looks");
                break;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_under_the_layer_may_be_dropped_after_every_look() {
    check(|| {
        let script = Script::default();
        let server = Server::new(SECOND, move |_, arrival| script.answer(&arrival.method));
        ClientLayer::new(rules()).layer(server)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_request_of_reqwest_may_be_dropped_after_every_look() {
    check(|| {
        let network = Network(Script::default());
        let client = ClientBuilder::new(reqwest::Client::new());
        client.with(ClientMiddleware::new(rules())).with(network).build()
    })
    .await;
}

fn worker(name: &str) -> Check {
    Check::new(&[("worker", name)], 1).expect("a check")
}

/// Asks until there is a slot, and gives it back.
async fn check_slot_is_free(client: &Client, name: &str) {
    let comes_back = async {
        loop {
            let verdict = client.check(&worker(name)).await;
            assert_eq!(verdict.source, Source::Server);
            match verdict.lease {
                Some(lease) => break client.release(&lease).await,
                None => yield_now().await,
            }
        }
    };
    assert_eq!(timeout(LONG, comes_back).await.expect("the slot comes back"), Ok(true));
}

/// Begins to ask, and drops that when something has come true.
async fn dropped_when<T>(future: impl Future<Output = T>, is_time: impl AsyncFn() -> bool) {
    let mut future = pin!(future);
    let begun = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
    assert!(begun.is_pending(), "it waits for an answer");
    let comes = async {
        while !is_time().await {
            yield_now().await;
        }
    };
    timeout(LONG, comes).await.expect("its time comes");
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Begins to ask, and drops that when its answer is there but has not been looked at.
async fn dropped_when_answered<T>(future: impl Future<Output = T>) {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut future = pin!(future);
    let begun = future.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(begun.is_pending(), "it waits for an answer");
    let comes = async {
        while !woken.0.load(Ordering::SeqCst) {
            yield_now().await;
        }
    };
    timeout(LONG, comes).await.expect("the answer comes");
}

/// One that waits in the queue, and is never asked.
#[tokio::test]
async fn a_check_may_be_dropped_before_it_is_sent() {
    let running = Running::start();
    let client = running.client().start();
    for looks in [0, 1] {
        assert_eq!(dropped_after(looks, client.check(&worker("1"))).await, None);
        check_slot_is_free(&client, "1").await;
    }
}

#[tokio::test]
async fn a_check_may_be_dropped_while_it_is_answered() {
    let running = Running::start();
    let (client, other) = (running.client().start(), running.direct_client().start());
    for _ in 0..3 {
        running.proxy.delay_replies(SECOND / 2);
        let look = Check::new(&[("worker", "1")], 0).unwrap();
        let is_taken = async || other.check(&look).await.limits[0].remaining == Some(0);
        dropped_when(client.check(&worker("1")), is_taken).await;
        running.proxy.heal();
        check_slot_is_free(&other, "1").await;
    }
}

#[tokio::test]
async fn a_check_may_be_dropped_with_its_answer() {
    let running = Running::start();
    let client = running.client().start();
    for _ in 0..3 {
        dropped_when_answered(client.check(&worker("1"))).await;
        check_slot_is_free(&client, "1").await;
    }
}

#[tokio::test]
async fn a_reservation_may_be_dropped_with_its_answer() {
    let running = Running::start();
    let client = running.client().start();
    let all = Check::new(&[("user", "a")], 3).unwrap();
    for _ in 0..3 {
        dropped_when_answered(client.reserve(&all, LONG)).await;
        let reserved = async {
            loop {
                if let Some(it) = client.reserve(&all, LONG).await.reservation {
                    break it;
                }
                yield_now().await;
            }
        };
        let reservation = timeout(LONG, reserved).await.expect("it comes back");
        assert_eq!(client.settle(&reservation, 0).await, Ok(true));
    }
}

/// Fails until the circuit is open, and lets the time pass until one call may see how the server is.
async fn rested(network: &Proxy, check: impl AsyncFn() -> Verdict) {
    network.refuse();
    let is_open = async || {
        let why = check().await.why_fallback.expect("there is no server");
        why.contains("does not work of late")
    };
    let opens = async { while !is_open().await {} };
    timeout(LONG, opens).await.expect("the circuit opens");
    network.heal();
    pass(SECOND).await;
}

/// The one call that sees whether the server is back is dropped: the next one sees it, at once.
#[tokio::test]
async fn the_check_that_is_to_see_may_be_dropped() {
    let running = Running::start();
    let client = running.client().start();
    let user = Check::new(&[("user", "a")], 0).unwrap();
    rested(&running.proxy, async || client.check(&user).await).await;
    running.proxy.hang();
    let is_sent = async || running.proxy.open() > 0;
    dropped_when(client.check(&user), is_sent).await;
    running.proxy.heal();
    let next = client.check(&user).await;
    assert_eq!(next.source, Source::Server, "{next:?}");
}

#[tokio::test]
async fn the_call_over_grpc_that_is_to_see_may_be_dropped_after_every_look() {
    let running = Running::start();
    let user = Descriptors::new("shop", &[&[("user", "a")]], 0).unwrap();
    for looks in 0.. {
        let client = running.grpc_client().start_grpc();
        rested(&running.grpc, async || client.check(&user).await).await;
        let dropped = dropped_after(looks, client.check(&user)).await;
        let next = client.check(&user).await;
        assert_eq!(next.source, Source::Server, "after {looks} looks: {next:?}");
        if dropped.is_some() {
            assert!(looks > 2, "it dials, asks and is answered");
            break;
        }
    }
    let client = running.grpc_client().start_grpc();
    rested(&running.grpc, async || client.check(&user).await).await;
    let before = running.grpc.open();
    running.grpc.hang();
    let is_sent = async || running.grpc.open() > before;
    dropped_when(client.check(&user), is_sent).await;
    running.grpc.heal();
    let next = client.check(&user).await;
    assert_eq!(next.source, Source::Server, "{next:?}");
}

/// The same over gRPC, where there are no slots: the connection goes on, and others are decided.
#[tokio::test]
async fn a_call_over_grpc_may_be_dropped_after_every_look() {
    let running = Running::start();
    let client = running.grpc_client().start_grpc();
    let user = |name| Descriptors::new("shop", &[&[("user", name)]], 1).expect("a descriptor");
    for looks in 0.. {
        let dropped = dropped_after(looks, client.check(&user("a"))).await;
        let other = client.check(&user("b")).await;
        assert_eq!(other.source, Source::Server, "after {looks} looks");
        if dropped.is_some() {
            break;
        }
    }
    assert!(running.grpc.dials() <= 3, "{} connections were made", running.grpc.dials());
}
