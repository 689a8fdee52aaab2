//! A hundred tasks call an API that allows fifty requests a second. None is refused: the first answer tells the
//! rate, and from then on all of them together keep to it.
//!
//! Run it with `cargo run -p tollgate-client --features tower --example many_tasks`.

use std::convert::Infallible;
use std::error::Error;
use std::future::{Ready, poll_fn, ready};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::SystemTime;

use http::{HeaderValue, Request, Response, StatusCode};
use tokio::task::JoinSet;
use tollgate_client::{ClientLayer, Rules};
use tollgate_core::{Cost, Counter, Limit, Micros, Quota, Timestamp, Word};
use tower_layer::Layer;
use tower_service::Service;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let api = Api::new()?;
    // One for all tasks: what one of them learns, the others know.
    let client = ClientLayer::new(Rules::new()).layer(api.clone());

    let mut tasks = JoinSet::new();
    for _ in 0..100 {
        let mut client = client.clone();
        tasks.spawn(async move {
            let request = Request::get("http://api.example.com/things").body(String::new());
            poll_fn(|context| client.poll_ready(context)).await?;
            client.call(request.expect("a request")).await.map(|answer| answer.status())
        });
    }
    let mut succeeded = 0;
    while let Some(answer) = tasks.join_next().await {
        succeeded += u32::from(answer?? == StatusCode::OK);
    }
    println!("{succeeded} of 100 got through, with {} requests", api.asked.load(Ordering::Relaxed));
    assert_eq!(succeeded, 100);
    Ok(())
}

/// An API in the same process, so that the example needs no network. In its place is whatever client
/// you have: hyper's, or a gRPC channel.
#[derive(Clone)]
struct Api {
    limit: Counter,
    used: Arc<Mutex<Word>>,
    asked: Arc<AtomicU32>,
}

impl Api {
    fn new() -> Result<Self, Box<dyn Error>> {
        let Limit::Counter(limit) = Limit::token_bucket(Quota::per_second(50), 10)? else {
            return Err("a bucket is counted".into());
        };
        Ok(Self { limit, used: Arc::default(), asked: Arc::default() })
    }
}

impl Service<Request<String>> for Api {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Ready<Result<Response<()>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<String>) -> Self::Future {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let mut used = self.used.lock().expect("nobody panics with it");
        let decided = self.limit.decide(*used, since_1970(), Cost::ONE);
        *used = decided.word;
        let mut answer = Response::new(());
        let fields = answer.headers_mut();
        let left = format!("\"things\";r={};t=1", decided.decision.remaining);
        fields.insert("ratelimit", HeaderValue::try_from(left).expect("it is text"));
        fields.insert("ratelimit-policy", HeaderValue::from_static("\"things\";q=50;w=1"));
        if !decided.decision.is_allowed() {
            *answer.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        }
        ready(Ok(answer))
    }
}

fn since_1970() -> Timestamp {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    Timestamp::from_micros(Micros::from(now).as_micros())
}
