//! What they ask: a limit of tollgate's own, on the clock of the simulation, that tells what the server tells.

use std::convert::Infallible;
use std::error::Error;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use tokio::time::Instant;
use tollgate::http::{fields, status};
use tollgate::{Clock, Limiter, MemoryStore, Micros, Policy, Timestamp};
use tower_service::Service;

use crate::clock;

/// From a question to its answer.
const WAY: Duration = Duration::from_millis(50);

const START: Timestamp = Timestamp::from_micros(1_760_000_000_000_000);

/// A server, as one of its clients sees it.
#[derive(Clone)]
pub(crate) struct Api {
    shared: Arc<Shared>,
    /// Who asks, as the server tells clients apart when it tells them when to come back.
    client: u64,
}

struct Shared {
    limiter: Limiter,
    clock: Clock,
    began: Instant,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    arrivals: Vec<Duration>,
    last_success: Duration,
}

impl Api {
    /// So much may be asked in a second, and of this one nothing is left.
    pub(crate) fn that_is_used_up(limit: usize) -> Result<Self, Box<dyn Error>> {
        let text =
            format!("limits: [{{name: api, rate: {limit}/second, algorithm: token_bucket}}]");
        let policy = Policy::parse("policy", &text, &mut |_| Err("there are no files".to_owned()))?;
        let clock = Clock::manual(START);
        let limiter = Limiter::new(policy, MemoryStore::with_max_bytes(clock.clone(), 1 << 20)?)?;
        for _ in 0..limit {
            assert!(limiter.check(&tollgate::Request::new(&[])).is_allowed());
        }
        let shared = Shared { limiter, clock, began: clock::now(), seen: Mutex::default() };
        Ok(Self { shared: Arc::new(shared), client: 0 })
    }

    /// The same server, for another client.
    pub(crate) fn of(&self, client: u64) -> Self {
        Self { client, ..self.clone() }
    }

    pub(crate) async fn ask(&self) -> Response<()> {
        let response = self.decide();
        clock::wait(WAY).await;
        response
    }

    fn decide(&self) -> Response<()> {
        let Shared { limiter, clock: server_clock, began, seen } = &*self.shared;
        let after = clock::now() - *began;
        server_clock.set(START.plus(Micros::from(after)));
        let verdict = limiter.check(&tollgate::Request::new(&[]));
        let mut seen = seen.lock().expect("nobody panics with it");
        seen.arrivals.push(after);
        if verdict.is_allowed() {
            seen.last_success = after;
        }
        let mut response = Response::new(());
        *response.status_mut() = status(&verdict);
        fields::insert(response.headers_mut(), &verdict, limiter.now(), self.client);
        response
    }

    /// When requests arrived, one after the other.
    pub(crate) fn arrivals(&self) -> Vec<Duration> {
        self.shared.seen.lock().expect("nobody panics with it").arrivals.clone()
    }

    /// When the last was allowed.
    pub(crate) fn last_success(&self) -> Duration {
        self.shared.seen.lock().expect("nobody panics with it").last_success
    }
}

impl Service<Request<()>> for Api {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<()>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let api = self.clone();
        Box::pin(async move { Ok(api.ask().await) })
    }
}
