//! What a limiter counts of its own decisions.
//!
//! It is counted once, where a verdict is made, so that every door and everybody who embeds a limiter has
//! it. What is counted by is the policy's: names of limits and tiers, never anything that a caller sends.
//! So how much there is to tell is known when a policy is put in force, whatever comes.
//!
//! Nobody waits to count: a thread adds to [counters](lines) of its own, or nearly so. What takes a clock or a
//! division is done for few requests only when many come, down to one in [`SAMPLED_ONE_IN`], which then
//! counts for all of them.

mod histogram;
mod lines;
mod series;
mod tenants;
mod turn;

use std::sync::Arc;

use tollgate_core::{Key, Timestamp};
use tollgate_policy::{Layer, Mode};
use tollgate_store::{Clock, Started, Store, Taken};

use crate::limiter::{InForce, Limiter};
use crate::observe::{Looked, Observer, Said};
use crate::verdict::Ruling;

pub use histogram::Histogram;
pub(crate) use histogram::Live;
use lines::Lines;
#[cfg(test)]
pub(crate) use lines::Shard;
pub(crate) use series::{Series, Table};
pub use tenants::TenantCount;
pub(crate) use turn::Turn;

/// What a limiter has counted, as [`Limiter::metrics`] tells it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Metrics {
    /// What became of requests, and of what else is asked about: of all there is, whether it came or
    /// not.
    pub requests: Vec<RequestCount>,
    /// What each limit said, by tier, in the order of the policy; then, by domain, what the limits of
    /// descriptors said; at last those that callers bring along, and those that are not told apart.
    pub limits: Vec<LimitCount>,
    /// How much of limits that count by tenant each tenant uses, if the policy wants it told: of the
    /// first that come, and at last of those that are not told apart.
    pub tenants: Vec<TenantCount>,
    /// How long it took to decide, with the answer of the store; those that were timed count for all.
    pub check_duration: Histogram,
}

/// How many requests there were, or connections, or whatever is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestCount {
    /// What they were.
    pub layer: Layer,
    /// What became of them.
    pub ruling: Ruling,
    /// How many.
    pub count: u64,
}

/// What one limit has said to one tier. A limit that does not go by tier has one, whose name is empty.
#[derive(Clone, Debug)]
pub struct LimitCount {
    /// Its name, as in answers; `envoy:` and the domain for limits of descriptors; [`CALLERS_LIMITS`] and
    /// [`OTHER_LIMITS`].
    pub limit: Arc<str>,
    /// The tier; [`OTHER_TIERS`] for those that the limit does not name.
    pub tier: String,
    /// How often it allowed a request, also one that another limit denied.
    pub allowed: u64,
    /// How often it denied one.
    pub denied: u64,
    /// How often it would have, in shadow.
    pub shadow_denied: u64,
    /// How often nobody could count.
    pub store_failed: u64,
    /// How often it denied one that came before the wait was over that its key had been told, about.
    pub early: u64,
    /// Which share of the limit was used, from 0 to 1, after a request that it allowed; those that were
    /// looked at count for all.
    pub used: Histogram,
}

/// Requests that a layer holds until their moment has come.
#[cfg(feature = "tower")]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HeldCount {
    /// How many are held now.
    pub now: usize,
    /// How many were turned away, since too many were held.
    pub shed: u64,
    /// How long those were held that then went on, in seconds.
    pub waited: Histogram,
}

/// Limits beyond the [bound](crate::bounds::METRICS_SERIES_MAX) on what is told apart.
pub const OTHER_LIMITS: &str = "#others";

/// Limits that callers bring along with their questions.
pub const CALLERS_LIMITS: &str = "#callers";

/// Tiers that a limit has no amount of their own for. A tier whose name begins with `#` is told with one
/// more, so none is taken for it.
pub const OTHER_TIERS: &str = "#other";

/// Of how many requests one is looked at closely, on average, when as many come as a core can decide.
pub const SAMPLED_ONE_IN: u32 = 256;

/// Built with `--cfg uncounted` a limiter counts nothing: `cargo xtask bench observe` has both beside each
/// other.
const COUNTS: bool = cfg!(not(uncounted));

const _: () = assert!(Ruling::ALL.len() <= lines::LINE);

/// What is counted whatever policy is in force.
#[derive(Debug)]
pub(crate) struct Counted {
    /// By layer.
    requests: [Lines; Layer::ALL.len()],
    check_duration: Live,
    /// What limits are counted in that callers bring along.
    callers: Series,
    /// What limits are counted in that are not told apart.
    pub(crate) others: Series,
}

impl Counted {
    pub(crate) fn new() -> Self {
        Self {
            requests: std::array::from_fn(|_| Lines::new()),
            check_duration: Live::of_durations(),
            callers: Series::new(false),
            others: Series::new(false),
        }
    }

    #[inline]
    fn request(&self, layer: Layer, ruling: Ruling) {
        if COUNTS {
            self.requests[layer as usize].add(ruling as usize, 1);
        }
    }

    fn requests(&self) -> Vec<RequestCount> {
        let of = |layer: Layer| {
            let lines = &self.requests[layer as usize];
            let count = |ruling| RequestCount { layer, ruling, count: lines.sum(ruling as usize) };
            Ruling::ALL.map(count)
        };
        Layer::ALL.into_iter().flat_map(of).collect()
    }
}

/// A request that is counted when it is decided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counting {
    pub(crate) turn: Turn,
    /// When it came, if it is measured.
    started: Option<Started>,
    layer: Layer,
}

impl Counting {
    #[inline]
    pub(crate) fn start(clock: &Clock, layer: Layer) -> Self {
        let (turn, started) = if COUNTS { Turn::next(clock) } else { (Turn::default(), None) };
        Self { turn, started, layer }
    }

    /// How closely it is looked at, if it is. Whoever knows when it was decided says so.
    #[inline(always)]
    pub(crate) fn looked(
        self,
        clock: &Clock,
        ruling: Ruling,
        decided_at: Option<Timestamp>,
    ) -> Option<Looked> {
        let requests = self.turn.weight().into();
        let is_denied = ruling == Ruling::Denied;
        if !COUNTS || (requests == 0 && !is_denied) {
            return None;
        }
        let now = decided_at.unwrap_or_else(|| self.came_at(clock));
        let denials = if is_denied { Turn::weight_of_denial(now).into() } else { 0 };
        (requests + denials > 0).then_some(Looked { now, requests, denials })
    }

    #[cold]
    fn came_at(self, clock: &Clock) -> Timestamp {
        self.started.map_or_else(|| clock.now(), |started| clock.at(started))
    }

    #[inline]
    pub(crate) fn end(self, counted: &Counted, clock: &Clock, ruling: Ruling) {
        counted.request(self.layer, ruling);
        if let Some(started) = self.started {
            counted.check_duration.add(clock.nanos_since(started), self.turn.weight().into());
        }
    }
}

/// Counts what a store says to whoever asks it without a policy.
#[derive(Clone, Debug)]
pub struct Tally {
    began: Started,
    counted: Arc<Counted>,
    observer: Arc<Observer>,
    policy: Arc<InForce>,
    store: Store,
}

impl Tally {
    /// Counts a request under a limit that its caller brought along.
    pub fn count(&self, key: &Key<'_>, taken: &Taken) {
        let clock = self.store.clock();
        let mut counting = Counting::start(clock, Layer::Request);
        counting.started = counting.started.and(Some(self.began));
        let series = &self.counted.callers;
        series.count(Mode::Enforce, taken);
        let ruling = if taken.is_allowed() { Ruling::Allowed } else { Ruling::Denied };
        counting.end(&self.counted, clock, ruling);
        if let Some(looked) = counting.looked(clock, ruling, taken.counted_at()) {
            let said = Said { place: 0, series, mode: Mode::Enforce, taken };
            let write = |_, text: &mut String| self.policy.write_shown_key(&self.store, key, text);
            self.observer.look(looked, std::iter::once(said), write);
        }
    }
}

impl Limiter {
    /// What it has counted of its decisions since it was made. Of limits it tells those of the policy in
    /// force; what one of the same name and tier counted before is still counted.
    ///
    /// ```
    /// use tollgate::{Limiter, Request};
    ///
    /// let limiter = Limiter::from_yaml("limits: [{name: login, rate: 1/minute}]")?;
    /// limiter.check(&Request::new(&[]));
    /// limiter.check(&Request::new(&[]));
    /// let login = &limiter.metrics().limits[0];
    /// assert_eq!((&*login.limit, login.allowed, login.denied), ("login", 1, 1));
    /// # Ok::<(), tollgate::LimiterError>(())
    /// ```
    pub fn metrics(&self) -> Metrics {
        let in_force = self.in_force();
        let mut limits = in_force.series.tell(&in_force.policy);
        limits.extend(self.envoy().tell());
        limits.push(self.counted.callers.tell(CALLERS_LIMITS.into(), String::new()));
        limits.push(self.counted.others.tell(OTHER_LIMITS.into(), String::new()));
        Metrics {
            requests: self.counted.requests(),
            limits,
            tenants: in_force.series.tell_tenants(&in_force.policy),
            check_duration: self.counted.check_duration.tell(),
        }
    }

    /// Counts what its store says to whoever asks it directly, from now on: how long the answers take
    /// is measured from here.
    pub fn tally(&self) -> Tally {
        Tally {
            began: self.store().clock().start(),
            counted: Arc::clone(&self.counted),
            observer: Arc::clone(&self.observer),
            policy: self.in_force(),
            store: self.store().clone(),
        }
    }
}
