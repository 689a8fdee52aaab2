//! Leaving alone what does not work.
//!
//! A circuit is closed as long as calls go well. When they do not it opens, and calls fail at once
//! without being made. After a while it is half open: a few calls are let through to see, and they
//! decide. A call that is let through holds its place until it ends, however it ends: one that is
//! dropped gives its place back.

mod machine;
mod window;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

pub(crate) use self::machine::Outcome;
use self::machine::{Machine, Ticket};
use crate::bounds::FOREVER;
use crate::clock;
use crate::events;
use crate::keyed::Keyed;

/// Circuits by key, usually one a host, all under the same rules.
///
/// ```
/// use tollgate_client::{Breaker, CallError};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?.block_on(async {
/// let database = Breaker::new().circuit("database");
/// for _ in 0..5 {
///     let answer: Result<(), _> = database.call(async || Err("connection refused")).await;
///     assert_eq!(answer, Err(CallError::Failed("connection refused")));
/// }
/// let answer = database.call(async || Ok::<_, &str>("never asked")).await;
/// assert!(matches!(answer, Err(CallError::Open(_))));
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct Breaker {
    settings: Settings,
    listener: Option<Listener>,
    circuits: Arc<Keyed<Shared>>,
}

type Listener = Arc<dyn Fn(&Change) + Send + Sync>;

/// When a circuit opens and closes.
#[derive(Clone, Copy, Debug)]
struct Settings {
    failures: u32,
    open_for: Duration,
    successes: u32,
    window: Duration,
    failure_percent: u32,
    slow: Option<(Duration, u32)>,
    calls_min: u32,
    refused_for: Duration,
}

/// How a circuit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Calls are made.
    Closed,
    /// No call is made.
    Open,
    /// A few calls are made, to see.
    HalfOpen,
    /// No call is made until somebody says otherwise.
    ForcedOpen,
}

/// Why a circuit changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// So many calls in a row failed, or one that was to see.
    Failures,
    /// Too large a part of the calls failed.
    FailureRate,
    /// Too large a part of the calls was slow.
    SlowCalls,
    /// Everything was refused for too long.
    Refusals,
    /// It was open long enough.
    Rested,
    /// The calls that were to see went well.
    Recovered,
    /// The calls that were to see did not end.
    Stuck,
    /// Somebody said so.
    Forced,
}

/// A circuit changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Whose circuit.
    pub key: Arc<str>,
    /// How it was.
    pub from: State,
    /// How it is.
    pub to: State,
    /// Why.
    pub reason: Reason,
}

impl Breaker {
    /// 5 failures in a row open a circuit, or half of at least 20 calls within a minute, or a minute
    /// of nothing but refusals; for 30 seconds; then 3 successes close it.
    pub fn new() -> Self {
        let settings = Settings {
            failures: 5,
            open_for: Duration::from_secs(30),
            successes: 3,
            window: Duration::from_secs(60),
            failure_percent: 50,
            slow: None,
            calls_min: 20,
            refused_for: Duration::from_secs(60),
        };
        Self { settings, listener: None, circuits: Arc::new(Keyed::new()) }
    }

    /// How many failures in a row open a circuit.
    #[must_use]
    pub fn failures(self, failures: u32) -> Self {
        self.with(|settings| settings.failures = failures.max(1))
    }

    /// How long it stays open.
    #[must_use]
    pub fn open_for(self, open_for: Duration) -> Self {
        self.with(|settings| settings.open_for = open_for.min(FOREVER))
    }

    /// How many successes close it; no more calls than that are made to see.
    #[must_use]
    pub fn successes(self, successes: u32) -> Self {
        self.with(|settings| settings.successes = successes.max(1))
    }

    /// Over how long calls are counted, and how many there must be before a part of them means
    /// anything.
    #[must_use]
    pub fn window(self, window: Duration, calls_min: u32) -> Self {
        self.with(|settings| {
            settings.window = window.min(FOREVER);
            settings.calls_min = calls_min.max(1);
        })
    }

    /// How many of a hundred calls must fail to open it.
    #[must_use]
    pub fn failure_rate(self, percent: u32) -> Self {
        self.with(|settings| settings.failure_percent = percent)
    }

    /// A call that takes longer is slow, and so many of a hundred open it. Unless this is said, no
    /// call is too slow.
    #[must_use]
    pub fn slow_calls(self, longer_than: Duration, percent: u32) -> Self {
        self.with(|settings| settings.slow = Some((longer_than, percent)))
    }

    /// How long everything must be refused (429) to open it.
    #[must_use]
    pub fn refused_for(self, refused_for: Duration) -> Self {
        self.with(|settings| settings.refused_for = refused_for.min(FOREVER))
    }

    /// Whom to tell of every change of a circuit.
    #[must_use]
    pub fn on_change(self, listener: impl Fn(&Change) + Send + Sync + 'static) -> Self {
        Self { listener: Some(Arc::new(listener)), ..self }
    }

    /// The circuit of a key. Circuits of more than [`KEYS_MAX`](crate::bounds::KEYS_MAX) keys that
    /// remember something are not told apart from new ones.
    pub fn circuit(&self, key: &str) -> Circuit {
        let make = || Shared {
            key: key.into(),
            listener: self.listener.clone(),
            machine: Mutex::new(Machine::new(self.settings, clock::now())),
        };
        let is_idle = |shared: &Shared| shared.machine().is_fresh(clock::now());
        Circuit { shared: self.circuits.get(key, make, is_idle) }
    }

    /// Circuits made under other rules stay with whoever has them.
    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.settings);
        Self { circuits: Arc::new(Keyed::new()), ..self }
    }
}

impl Default for Breaker {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Breaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Breaker").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// The circuit of one key. Clones are the same circuit.
#[derive(Clone, Debug)]
pub struct Circuit {
    shared: Arc<Shared>,
}

struct Shared {
    key: Arc<str>,
    listener: Option<Listener>,
    machine: Mutex<Machine>,
}

impl Circuit {
    /// Makes a call if the circuit lets it through. An error is a failure.
    pub async fn call<T, E>(
        &self,
        call: impl AsyncFnOnce() -> Result<T, E>,
    ) -> Result<T, CallError<E>> {
        let permit = self.enter().map_err(CallError::Open)?;
        match call().await {
            Ok(value) => {
                permit.succeeded();
                Ok(value)
            }
            Err(error) => {
                permit.failed();
                Err(CallError::Failed(error))
            }
        }
    }

    /// Lets a call through, or not. Whoever has the permit says how the call ended; one that is
    /// dropped has not ended.
    pub fn enter(&self) -> Result<Permit, Open> {
        self.enter_at(clock::now())
    }

    pub(crate) fn enter_at(&self, now: Instant) -> Result<Permit, Open> {
        let ticket = self.shared.change(|machine| machine.enter(now));
        let ticket =
            ticket.map_err(|retry_after| Open { key: self.shared.key.clone(), retry_after })?;
        Ok(Permit { circuit: self.clone(), ticket: Some(ticket), began: now })
    }

    /// Whether a call would be let through, as far as can be told without making it.
    pub fn check(&self) -> Result<(), Open> {
        self.check_at(clock::now())
    }

    pub(crate) fn check_at(&self, now: Instant) -> Result<(), Open> {
        let refusal = self.shared.machine().refusal(now);
        refusal
            .map_or(Ok(()), |retry_after| Err(Open { key: self.shared.key.clone(), retry_after }))
    }

    /// How it is.
    pub fn state(&self) -> State {
        self.shared.machine().state(clock::now())
    }

    /// Opens it until somebody takes that back; then calls are made to see.
    pub fn force_open(&self, is_forced: bool) {
        let now = clock::now();
        self.shared.change(|machine| ((), machine.force(is_forced, now)));
    }
}

impl Shared {
    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something to the machine, and tells of what changed when its lock is free again.
    fn change<T>(&self, act: impl FnOnce(&mut Machine) -> (T, Option<machine::Turn>)) -> T {
        let (answer, turn) = act(&mut self.machine());
        if let Some(machine::Turn { from, to, reason }) = turn {
            let change = Change { key: self.key.clone(), from, to, reason };
            events::circuit(&change);
            if let Some(listener) = &self.listener {
                listener(&change);
            }
        }
        answer
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let machine = self.machine();
        f.debug_struct("Shared").field("key", &self.key).field("machine", &*machine).finish()
    }
}

/// A call that was let through.
#[derive(Debug)]
pub struct Permit {
    circuit: Circuit,
    /// Gone when the end of the call was told.
    ticket: Option<Ticket>,
    began: Instant,
}

impl Permit {
    /// The call went well.
    pub fn succeeded(self) {
        self.end(Outcome::Success, clock::now());
    }

    /// The call failed.
    pub fn failed(self) {
        self.end(Outcome::Failure, clock::now());
    }

    /// The call was refused: the other side works, and wants less.
    pub fn refused(self) {
        self.end(Outcome::Refusal, clock::now());
    }

    pub(crate) fn end(mut self, outcome: Outcome, now: Instant) {
        if let Some(ticket) = self.ticket.take() {
            let took = now.saturating_duration_since(self.began);
            let shared = &self.circuit.shared;
            shared.change(|machine| ((), machine.leave(ticket, outcome, took, now)));
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.circuit.shared.machine().abandon(ticket);
        }
    }
}

/// A circuit is open: the call was not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// Whose circuit.
    pub key: Arc<str>,
    /// How long until a call may be let through, if that is known.
    pub retry_after: Option<Duration>,
}

impl fmt::Display for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} does not work of late and was not called", self.key)?;
        match self.retry_after {
            Some(wait) => write!(f, "; try again in {} ms", wait.as_millis()),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Open {}

/// Why a call brought nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError<E> {
    /// It was not made.
    Open(Open),
    /// It was made, and failed.
    Failed(E),
}

impl<E: fmt::Display> fmt::Display for CallError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(open) => open.fmt(f),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for CallError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Open(_) => None,
            Self::Failed(error) => error.source(),
        }
    }
}
