//! What all doors share.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arc_swap::ArcSwapOption;
use rustls::ClientConfig;
use tokio::sync::{mpsc, oneshot};
use tollgate::http::TollgateLayer;
use tollgate::redis::RedisStore;
use tollgate::{Limiter, MemoryStore, Slots, Timestamp};

use crate::audit::Audit;
use crate::door::Door;
use crate::gateway::{Arrivals, Targets};
use crate::history;
use crate::http1::Bodies;
use crate::leases::Leases;
use crate::metrics::{DoorCounts, Open};
use crate::otlp::{Exports, Traces};
use crate::reload;
use crate::reservations::Reservations;
use crate::resp::Throttles;
use crate::stage::Stages;

/// What every door asks.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) limiter: Arc<Limiter>,
    /// What the gateway puts around every request: one, so that all share what is held.
    pub(crate) layer: TollgateLayer,
    pub(crate) arrivals: Arrivals,
    /// What connections and WebSockets hold as long as they last.
    pub(crate) slots: Arc<Slots>,
    pub(crate) targets: Targets,
    /// Who is trusted to vouch for the servers behind the gateway, if any are spoken to over TLS.
    pub(crate) upstream_tls: ArcSwapOption<ClientConfig>,
    pub(crate) leases: Leases,
    pub(crate) reservations: Reservations,
    pub(crate) stages: Stages,
    pub(crate) throttles: Throttles,
    pub(crate) policy_status: PolicyStatus,
    pub(crate) bodies: Bodies,
    pub(crate) started_at: Timestamp,
    /// Those that are open.
    pub(crate) open: OnceLock<Vec<Door>>,
    pub(crate) doors: DoorCounts,
    pub(crate) websockets: Open,
    pub(crate) history: history::Kept,
    pub(crate) traces: Traces,
    pub(crate) exports: Exports,
    pub(crate) audit: Arc<Audit>,
    reloads: mpsc::Sender<reload::Request>,
    /// Spreads waits: no two clients are told the same one.
    spread: RandomState,
    numbers: AtomicU64,
}

impl Gate {
    /// A gate, and where requests to load its policy anew come out.
    pub(crate) fn new(limiter: Limiter) -> (Self, mpsc::Receiver<reload::Request>) {
        let (reloads, requests) = mpsc::channel(1);
        let audit: Arc<Audit> = Arc::default();
        limiter.set_denial_sink(Arc::clone(&audit) as _);
        let limiter = Arc::new(limiter);
        let slots = Arc::new(Slots::new(Arc::clone(&limiter)));
        let max_held = limiter.with_policy(|policy| policy.settings().gateway.max_held);
        let started_at = limiter.now();
        let gate = Self {
            layer: TollgateLayer::new(Arc::clone(&limiter)).max_held(max_held as usize),
            arrivals: Arrivals::new(Arc::clone(&limiter), Arc::clone(&slots)),
            slots,
            targets: Targets::default(),
            upstream_tls: ArcSwapOption::empty(),
            history: history::Kept::new(&limiter),
            limiter,
            leases: Leases::new(),
            reservations: Reservations::new(),
            stages: Stages::new(),
            throttles: Throttles::default(),
            policy_status: PolicyStatus::new(started_at),
            bodies: Bodies::default(),
            started_at,
            open: OnceLock::new(),
            doors: DoorCounts::default(),
            websockets: Open::default(),
            traces: Traces::default(),
            exports: Exports::default(),
            audit,
            reloads,
            spread: RandomState::new(),
            numbers: AtomicU64::new(0),
        };
        (gate, requests)
    }

    /// A number that belongs to `client` as long as this process lives.
    pub(crate) fn spread(&self, client: impl Hash) -> u64 {
        self.spread.hash_one(client)
    }

    /// A number that nobody else has, in this process or, most probably, in another.
    pub(crate) fn number(&self) -> u64 {
        self.spread.hash_one(self.numbers.fetch_add(1, Ordering::Relaxed))
    }

    /// The store in this process's memory: the only one, or what counts while Redis does not answer.
    pub(crate) fn memory(&self) -> Option<&MemoryStore> {
        let store = self.limiter.store();
        let memory = store.memory().map(|memory| &**memory);
        memory.or_else(|| store.redis().map(RedisStore::local))
    }

    /// Has the policy loaded anew, and waits for what comes of it.
    pub(crate) async fn reload(&self) -> reload::Outcome {
        let (request, outcome) = oneshot::channel();
        let stopping = "the server is stopping";
        if self.reloads.send(request).await.is_err() {
            return Err(stopping.to_owned());
        }
        outcome.await.unwrap_or_else(|_| Err(stopping.to_owned()))
    }
}

/// What became of the policy's files since the start.
#[derive(Debug)]
pub(crate) struct PolicyStatus(Mutex<Loads>);

/// How often the policy was loaded anew.
#[derive(Clone, Debug)]
pub(crate) struct Loads {
    /// When what is in force was loaded.
    pub(crate) loaded_at: Timestamp,
    pub(crate) succeeded: u64,
    pub(crate) failed: u64,
    /// What is wrong with the files as they are, if they are not what is in force.
    pub(crate) error: Option<String>,
}

impl PolicyStatus {
    fn new(loaded_at: Timestamp) -> Self {
        Self(Mutex::new(Loads { loaded_at, succeeded: 0, failed: 0, error: None }))
    }

    pub(crate) fn note(&self, outcome: &reload::Outcome, now: Timestamp) {
        let mut loads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            Ok(_) => {
                loads.succeeded += 1;
                loads.loaded_at = now;
            }
            Err(_) => loads.failed += 1,
        }
        loads.error = outcome.clone().err();
    }

    pub(crate) fn loads(&self) -> Loads {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
