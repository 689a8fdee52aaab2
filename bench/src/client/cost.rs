//! What the rules cost a request that needs nothing: no wait, no retry, no open circuit.
//!
//! The client under them answers at once, so that nothing else is measured. Each kind of request is sent with the layer and
//! without, in short turns, by the time that this thread is on a core, and the best turn of each counts: noise only ever adds.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::hint::black_box;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{HeaderMap, HeaderValue, Request, Response, Uri};
use tokio::runtime::{Builder, Runtime};
use tollgate_bench::measure::{instructions, on_core_nanos};
use tollgate_client::{ClientLayer, Rules};
use tower_layer::Layer;
use tower_service::Service;

/// Requests in a turn: a few milliseconds, so that some of many turns are left in peace.
const REQUESTS: u32 = 2_000;

/// Requests that are counted under callgrind, where they take fifty times as long.
const COUNTED: u32 = 5_000;

/// What the answer to a request says.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Nothing of a budget.
    Silent,
    /// That there is plenty left, in the fields of tollgate's own server.
    Told,
}

/// What a request takes more with the layer than without.
pub struct Cost {
    pub nanos: f64,
    pub instructions: f64,
}

impl Kind {
    pub const ALL: [Self; 2] = [Self::Silent, Self::Told];

    fn name(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Told => "told",
        }
    }

    fn fields(self) -> HeaderMap {
        let lines: &[(&'static str, &'static str)] = match self {
            Self::Silent => &[("content-type", "application/json"), ("date", DATE)],
            Self::Told => &[
                ("content-type", "application/json"),
                ("date", DATE),
                ("ratelimit-policy", "\"api\";q=6000;w=60"),
                ("ratelimit", "\"api\";r=5990;t=1"),
                ("x-ratelimit-limit", "6000"),
                ("x-ratelimit-remaining", "5990"),
                ("x-ratelimit-reset", "1794810859"),
            ],
        };
        lines
            .iter()
            .map(|(name, value)| (name.parse().expect("a name"), HeaderValue::from_static(value)))
            .collect()
    }
}

const DATE: &str = "Mon, 16 Nov 2026 06:33:19 GMT";

/// Measures one kind, with the layer and without.
pub fn measure(kind: Kind, rounds: u32) -> Cost {
    let runtime = runtime();
    let mut best = [f64::INFINITY; 2];
    for _ in 0..rounds {
        for (best, with_layer) in best.iter_mut().zip([false, true]) {
            let start = on_core_nanos();
            send(&runtime, kind, with_layer, REQUESTS);
            *best = best.min((on_core_nanos() - start) / f64::from(REQUESTS));
        }
    }
    let program = std::env::current_exe().expect("we are a program");
    let counted = [false, true].map(|with_layer| {
        instructions(&program, &["--send", kind.name(), &with_layer.to_string()], COUNTED)
    });
    Cost { nanos: best[1] - best[0], instructions: counted[1] - counted[0] }
}

/// Sends so many and measures nothing: for whoever counts from outside.
pub fn send_only(kind: &str, with_layer: bool, requests: u32) {
    let kind = Kind::ALL.into_iter().find(|known| known.name() == kind).expect("a kind of request");
    send(&runtime(), kind, with_layer, requests);
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().build().expect("a runtime")
}

fn send(runtime: &Runtime, kind: Kind, with_layer: bool, requests: u32) {
    let answers = Answers { fields: Arc::new(kind.fields()) };
    let uri = Uri::from_static("https://api.example.com/things/42");
    if with_layer {
        let client = ClientLayer::new(runtime.block_on(async { Rules::new() })).layer(answers);
        runtime.block_on(send_all(client, &uri, requests));
    } else {
        runtime.block_on(send_all(answers, &uri, requests));
    }
}

async fn send_all<S>(mut client: S, uri: &Uri, requests: u32)
where
    S: Service<Request<()>, Response = Response<()>>,
{
    for _ in 0..requests {
        let mut request = Request::new(());
        *request.uri_mut() = uri.clone();
        let fields = request.headers_mut();
        fields.insert("accept", HeaderValue::from_static("application/json"));
        fields.insert("authorization", HeaderValue::from_static("Bearer 0123456789abcdef"));
        fields.insert("user-agent", HeaderValue::from_static("bench"));
        let answer = client.call(request).await;
        black_box(answer.is_ok());
    }
}

/// A client that has the answer already.
#[derive(Clone)]
struct Answers {
    fields: Arc<HeaderMap>,
}

impl Service<Request<()>> for Answers {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Ready<Result<Response<()>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        black_box(request);
        let mut answer = Response::new(());
        *answer.headers_mut() = HeaderMap::clone(&self.fields);
        ready(Ok(answer))
    }
}
