//! Leaving alone what does not work.
//!
//! A circuit is closed as long as calls go well. When they do not it opens, and calls fail at once
//! without being made. After a while it is half open: a few calls are let through to see, and they
//! decide. A call that is let through holds its place until it ends, however it ends: one that is
//! dropped gives its place back.

#[cfg(any(feature = "reqwest", feature = "tower"))]
mod both;
mod circuit;
mod machine;
mod window;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

#[cfg(any(feature = "reqwest", feature = "tower"))]
pub(crate) use self::both::{Both, Permits};
use self::circuit::Shared;
pub use self::circuit::{CallError, Circuit, Open, Permit};
#[cfg(any(feature = "reqwest", feature = "tower"))]
pub(crate) use self::machine::Outcome;
use crate::bounds::FOREVER;
use crate::clock;
#[cfg(any(feature = "reqwest", feature = "tower"))]
use crate::keyed::Key;
use crate::keyed::Keyed;
use crate::retry::Share;
#[cfg(any(feature = "reqwest", feature = "tower"))]
use crate::whose::Whose;

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
    circuits: Arc<Circuits>,
    /// Of all whose circuits there is no room to keep.
    share_of_others: Arc<Share>,
}

struct Circuits {
    by_key: Keyed<Shared>,
    /// Of callers that a host has refused.
    #[cfg(any(feature = "reqwest", feature = "tower"))]
    of_refused: Keyed<Shared>,
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
    /// Too large a part of the calls was slow, or of those that were to see.
    SlowCalls,
    /// Everything was refused for too long, or one that was to see whether it still is.
    Refusals,
    /// It was open long enough.
    Rested,
    /// The calls that were to see went well.
    Recovered,
    /// Somebody said so.
    Forced,
}

/// A circuit changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Whose circuit. Of a caller that was refused for too long it is the host that refused it, and nothing of the caller.
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
        let share_of_others = Arc::new(Share::new(clock::now()));
        Self { settings, listener: None, circuits: Circuits::new(), share_of_others }
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

    /// How many successes close it; no more calls than that are made to see at a time, and one that takes longer than
    /// half a minute makes room for another.
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

    /// A call that takes longer is slow, and so many of a hundred open it; so many of those that are to see open
    /// it again. One that is dropped after that time was slow as well. Unless this is said, no call is too slow.
    #[must_use]
    pub fn slow_calls(self, longer_than: Duration, percent: u32) -> Self {
        self.with(|settings| settings.slow = Some((longer_than, percent)))
    }

    /// How long everything must be refused (429) to open it, ten times at least. Under `Rules` this is counted for
    /// each caller of a host, and opens the circuit for that caller alone.
    #[must_use]
    pub fn refused_for(self, refused_for: Duration) -> Self {
        self.with(|settings| settings.refused_for = refused_for.min(FOREVER))
    }

    /// Whom to tell of every change of a circuit, one after the other.
    #[must_use]
    pub fn on_change(self, listener: impl Fn(&Change) + Send + Sync + 'static) -> Self {
        let circuits = Circuits::new();
        Self { listener: Some(Arc::new(listener)), circuits, ..self }
    }

    /// The circuit of a key. Circuits of more than [`KEYS_MAX`](crate::bounds::KEYS_MAX) keys that
    /// remember something are not told apart from new ones.
    pub fn circuit(&self, key: &str) -> Circuit {
        let make = |is_kept| {
            let now = clock::now();
            let others = || Arc::clone(&self.share_of_others);
            let share = if is_kept { Arc::new(Share::new(now)) } else { others() };
            Shared::new(key, self.listener.clone(), share, self.settings, now)
        };
        Circuit::of(self.circuits.by_key.get(key, make, is_idle))
    }

    /// The circuit of whoever was refused by a host, if it was.
    #[cfg(any(feature = "reqwest", feature = "tower"))]
    fn refusals(&self, host: &str, whose: Whose) -> Option<Circuit> {
        self.circuits.of_refused.find(Key { name: host, whose }).map(Circuit::of)
    }

    /// The circuit of whoever is refused by a host, if there is room for one. Only refusals open it, and what is told of it is
    /// the host alone.
    #[cfg(any(feature = "reqwest", feature = "tower"))]
    fn refusals_from_now_on(&self, host: &str, whose: Whose) -> Option<Circuit> {
        let make = || {
            let settings = Settings { slow: None, ..self.settings };
            let now = clock::now();
            Shared::new(host, self.listener.clone(), Arc::new(Share::new(now)), settings, now)
        };
        let key = Key { name: host, whose };
        self.circuits.of_refused.get_kept(key, make, is_idle).map(Circuit::of)
    }

    /// Circuits made under other rules stay with whoever has them.
    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.settings);
        Self { circuits: Circuits::new(), ..self }
    }
}

fn is_idle(circuit: &Shared) -> bool {
    circuit.is_fresh(clock::now())
}

impl Circuits {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            by_key: Keyed::new(),
            #[cfg(any(feature = "reqwest", feature = "tower"))]
            of_refused: Keyed::new(),
        })
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
