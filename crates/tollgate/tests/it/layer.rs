//! The layer from the outside: around services of our own, and in axum, hyper and tonic.

mod held;
#[cfg(feature = "redis")]
mod redis;
mod refusals;
mod servers;
mod settled;
mod slots;
mod streams;

use std::convert::Infallible;
use std::future::{Ready, poll_fn, ready};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::request::Builder;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use tollgate::http::layer::RequestBody;
use tollgate::http::{Peer, TollgateLayer};
use tollgate::{Clock, Cost, Limiter, MemoryStore, Request as Asked};
use tower_layer::Layer;
use tower_service::Service;

use crate::{MIDNIGHT, parse, time};

/// A layer under test, and the clock that its limiter goes by.
struct Door {
    limiter: Arc<Limiter>,
    clock: Clock,
    layer: TollgateLayer,
}

impl Door {
    fn new(policy: &str) -> Self {
        Self::of_size(policy, 1 << 20)
    }

    fn of_size(policy: &str, max_bytes: usize) -> Self {
        let clock = Clock::manual(MIDNIGHT);
        let store = MemoryStore::with_max_bytes(clock.clone(), max_bytes).expect("a megabyte");
        let limiter = Limiter::new(parse(policy), store).expect("a handful of limits");
        let limiter = Arc::new(limiter);
        let layer = TollgateLayer::new(Arc::clone(&limiter));
        Self { limiter, clock, layer }
    }

    /// Moves both clocks, that of the limiter and that of timers.
    async fn advance(&self, by: &str) {
        self.clock.advance(time(by));
        tokio::time::advance(Duration::from_micros(time(by).as_micros())).await;
    }

    /// The answer of a service that always says yes.
    async fn get(&self, path: &str) -> Answer {
        self.ask(get(path)).await
    }

    async fn ask(&self, request: Request<Full<Bytes>>) -> Answer {
        send(&mut self.layer.layer(Yes), request).await
    }
}

/// A response that has arrived.
#[derive(Debug)]
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    text: String,
}

impl Answer {
    fn field(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("ASCII"))
    }

    fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.text).expect("JSON")
    }
}

/// A service that answers `yes`.
#[derive(Clone, Copy, Debug)]
struct Yes;

impl<B> Service<Request<B>> for Yes {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        ready(Ok(Response::new(Full::from("yes"))))
    }
}

/// A service that is a function.
#[derive(Clone, Copy)]
struct Does<F>(F);

impl<F, B, R, E, A> Service<Request<B>> for Does<F>
where
    F: Fn(Request<B>) -> A,
    A: Future<Output = Result<Response<R>, E>>,
{
    type Response = Response<R>;
    type Error = E;
    type Future = A;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), E>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> A {
        (self.0)(request)
    }
}

/// A request as a service gets it.
type Received = Request<RequestBody<Full<Bytes>>>;

/// A request from the address that all requests come from unless they say another.
fn from(path: &str) -> Builder {
    let peer = "203.0.113.7:4711".parse().expect("an address");
    Request::get(path).header(HOST, "example.com").extension(Peer(peer))
}

fn get(path: &str) -> Request<Full<Bytes>> {
    from(path).body(Full::default()).expect("a request")
}

/// Sends a request when the service is ready.
async fn call<S, B>(service: &mut S, request: Request<B>) -> S::Future
where
    S: Service<Request<B>>,
{
    assert!(poll_fn(|context| service.poll_ready(context)).await.is_ok());
    service.call(request)
}

/// Sends a request and reads the whole response.
async fn send<S, B, R>(service: &mut S, request: Request<B>) -> Answer
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body<Data = Bytes>,
{
    let Ok(response) = call(service, request).await.await else { panic!("an error came back") };
    let (parts, body) = response.into_parts();
    let Ok(body) = body.collect().await else { panic!("the body broke") };
    let text = String::from_utf8(body.to_bytes().to_vec()).expect("text");
    Answer { status: parts.status, headers: parts.headers, text }
}

/// What is left of each limit, without taking any of it.
fn left(limiter: &Limiter) -> Vec<u32> {
    crate::left(&limiter.check(&Asked { cost: Cost::PEEK, ..Asked::new(&[]) }))
}

/// Waits until so much is left of each limit.
async fn until_left(limiter: &Limiter, expected: &[u32]) {
    let waiting = async {
        while left(limiter) != expected {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(10), waiting).await;
    assert!(waited.is_ok(), "{:?} are left, not {expected:?}", left(limiter));
}

/// Polls once, with nobody to wake.
fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

const ONE_A_MINUTE: &str = "limits: [{name: api, per: [client_ip], rate: 1/minute}]";

#[tokio::test]
async fn a_request_that_is_allowed_reaches_the_service_as_it_was_sent() {
    let door = Door::new(
        "limits: [{name: api, when: {path: /login}, rate: 1/minute, algorithm: token_bucket}]",
    );
    let echo = Does(async |request: Received| {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.expect("a body that is whole").to_bytes();
        let text = format!("{} {} {body:?}", parts.method, parts.uri);
        assert!(parts.extensions.get::<Peer>().is_some());
        assert_eq!(parts.headers["x-more"], "1");
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(text))))
    });
    let mut service = door.layer.layer(echo);
    let path = "/x/..//%6cogin;a=1/?q=%20";
    let request = || from(path).method("POST").header("x-more", "1").body(Full::from("body"));
    let answer = send(&mut service, request().unwrap()).await;
    assert_eq!(answer.text, "POST /x/..//%6cogin;a=1/?q=%20 b\"body\"");
    assert_eq!(answer.field("ratelimit"), "\"api\";r=0;t=60", "and was judged as /login");
}

#[tokio::test]
async fn every_response_carries_the_fields_whoever_made_it() {
    let door = Door::new("limits: [{name: api, rate: 2/minute, algorithm: fixed_window}]");
    let fails = Does(async |_: Received| {
        // What a service says of our fields is replaced.
        let response = Response::builder().status(500).header("ratelimit", "\"mine\";r=99");
        Ok::<_, Infallible>(response.body(Full::<Bytes>::from("oh")).unwrap())
    });
    let mut service = door.layer.layer(fails);
    let answers = [
        send(&mut service, get("/")).await,
        door.get("/").await,
        send(&mut service, get("/")).await,
    ];
    for (answer, (status, left)) in answers.iter().zip([(500, 1), (200, 0), (429, 0)]) {
        assert_eq!(answer.status, status);
        assert_eq!(answer.field("ratelimit-policy"), "\"api\";q=2;w=60");
        assert_eq!(answer.field("ratelimit"), format!("\"api\";r={left};t=60"), "{status}");
        assert_eq!(answer.field("x-ratelimit-remaining"), left.to_string());
        assert_eq!(answer.headers.contains_key("retry-after"), status == 429);
    }
}

#[tokio::test]
async fn figures_are_of_the_moment_of_the_decision_however_long_the_response_takes() {
    let door = Door::new("limits: [{name: api, rate: 1/minute, algorithm: fixed_window}]");
    let clock = door.clock.clone();
    let slow = Does(move |_: Received| {
        clock.advance(time("1h"));
        ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())))
    });
    let answer = send(&mut door.layer.layer(slow), get("/")).await;
    let reset = MIDNIGHT.plus(time("1m")).as_micros() / 1_000_000;
    assert_eq!(answer.field("x-ratelimit-reset"), reset.to_string());
}

#[tokio::test]
async fn an_error_of_the_service_stays_the_error_it_is() {
    #[derive(Debug, PartialEq)]
    struct Mine;
    let door = Door::new(ONE_A_MINUTE);
    let fails = Does(|_: Received| ready(Err::<Response<Full<Bytes>>, _>(Mine)));
    let mut service = door.layer.layer(fails);
    assert_eq!(call(&mut service, get("/")).await.await.unwrap_err(), Mine);
}

#[tokio::test]
async fn a_service_is_called_only_after_it_was_ready() {
    /// Ready is who was asked; a clone has to be asked itself.
    #[derive(Debug, Default)]
    struct Careful(bool);
    impl Clone for Careful {
        fn clone(&self) -> Self {
            Self(false)
        }
    }
    impl Service<Received> for Careful {
        type Response = Response<Full<Bytes>>;
        type Error = Infallible;
        type Future = Ready<Result<Self::Response, Infallible>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            self.0 = true;
            Poll::Ready(Ok(()))
        }
        fn call(&mut self, _: Received) -> Self::Future {
            assert!(std::mem::take(&mut self.0), "called without having been ready");
            ready(Ok(Response::new(Full::default())))
        }
    }
    tokio::time::pause();
    let policy = "limits: [{name: slow, rate: 10/second, algorithm: leaky_bucket, queue: 5}]";
    let mut service = Door::new(policy).layer.layer(Careful::default());
    let at_once = call(&mut service, get("/")).await;
    let held = call(&mut service, get("/")).await;
    assert!(held.await.is_ok() && at_once.await.is_ok());
}

#[tokio::test]
async fn a_body_is_passed_on_frame_by_frame() {
    /// Two frames of data and one of trailers, and says how much is left.
    struct Frames(usize);
    impl Body for Frames {
        type Data = Bytes;
        type Error = Infallible;
        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            self.0 += 1;
            Poll::Ready(match self.0 {
                1 | 2 => Some(Ok(Frame::data(Bytes::from_static(b"data")))),
                3 => {
                    let trailer = ("x-sum".parse().expect("a name"), HeaderValue::from(8));
                    Some(Ok(Frame::trailers(HeaderMap::from_iter([trailer]))))
                }
                _ => None,
            })
        }
        fn is_end_stream(&self) -> bool {
            self.0 == 3
        }
        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact(8_usize.saturating_sub(4 * self.0) as u64)
        }
    }
    let door = Door::new("limits: [{name: api, concurrency: 1}]");
    let streams = Does(|_: Received| ready(Ok::<_, Infallible>(Response::new(Frames(0)))));
    let mut service = door.layer.layer(streams);
    let mut body = call(&mut service, get("/")).await.await.unwrap().into_body();
    for left in [8, 4] {
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(left), false));
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "data");
    }
    assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(0), false));
    let trailers = body.frame().await.unwrap().unwrap().into_trailers().unwrap();
    assert_eq!(trailers["x-sum"], "8");
    assert!(body.is_end_stream() && body.frame().await.is_none());
}

#[tokio::test]
async fn the_body_of_a_request_that_is_refused_is_dropped_unread() {
    /// Counts how often it was polled and dropped.
    struct Watched(Arc<AtomicUsize>);
    impl Drop for Watched {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let door = Door::new("limits: [{name: api, rate: 0/minute}]");
    let dropped = Arc::new(AtomicUsize::new(0));
    let request = from("/").body(Watched(Arc::clone(&dropped))).unwrap();
    let future = call(&mut door.layer.layer(Yes), request).await;
    assert_eq!(dropped.load(Ordering::Relaxed), 1, "and before anybody waits for the answer");
    assert_eq!(pin!(future).await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
}
