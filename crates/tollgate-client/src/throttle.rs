//! Slowing down before the wall.
//!
//! All requests of a process under one key, usually a host and who asks it, go down one lane. The lane knows what
//! responses say is left, and spreads it over the time until there is more; it closes when somebody was
//! refused, for all; and it holds a limit of our own, if there is one. Requests that must wait do so in
//! the order in which they came, the first of them watching for both the time and for news.
//!
//! Waiting changes nothing: whoever is dropped while it waits was never there.

mod pace;

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::HeaderMap;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use tollgate_core::{ChargeId, Cost, Limit};

use self::pace::{News, Pace};
use crate::bounds::{FOREVER, WAITING_MAX};
use crate::budget::Budget;
use crate::clock;
use crate::events;
use crate::keyed::{Key, Keyed};
use crate::local::{Local, When};
use crate::whose::Whose;

/// Lanes by key, all under the same rules.
///
/// ```
/// use tollgate_client::Throttle;
/// use tollgate_core::{Limit, Quota};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?.block_on(async {
/// let throttle = Throttle::new().limit(Limit::token_bucket(Quota::per_second(10), 1)?);
/// let lane = throttle.lane("api.example.com");
/// for _ in 0..3 {
///     let pass = lane.pass().await?; // a tenth of a second after the one before
///     drop(pass); // the request has ended
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Throttle {
    limit: Option<Limit>,
    wait_max: Duration,
    is_by_endpoint: bool,
    lanes: Arc<Keyed<Shared>>,
}

impl Throttle {
    /// Goes by what responses say, and lets nobody wait for more than two minutes.
    pub fn new() -> Self {
        Self {
            limit: None,
            wait_max: Duration::from_secs(120),
            is_by_endpoint: false,
            lanes: Arc::new(Keyed::new()),
        }
    }

    /// A limit of our own for every lane, whatever responses say.
    #[must_use]
    pub fn limit(self, limit: Limit) -> Self {
        Self { limit: Some(limit), lanes: Arc::new(Keyed::new()), ..self }
    }

    /// How long a request may wait. One that would wait longer fails, at once if that is known.
    #[must_use]
    pub fn wait_max(self, wait_max: Duration) -> Self {
        Self { wait_max: wait_max.min(FOREVER), lanes: Arc::new(Keyed::new()), ..self }
    }

    /// Every key tells apart what has a budget of its own at a server that has one for each endpoint, as X does. Then
    /// a lane goes by such budgets as well; unless said, one endpoint that is used up holds up no other.
    #[must_use]
    pub fn by_endpoint(self) -> Self {
        Self { is_by_endpoint: true, lanes: Arc::new(Keyed::new()), ..self }
    }

    /// The lane of a key. Lanes of more than [`KEYS_MAX`](crate::bounds::KEYS_MAX) keys that know
    /// something are not told apart from new ones.
    pub fn lane(&self, key: &str) -> Lane {
        let shared = self.lanes.get(key, |_| self.new_lane(), is_fresh);
        Lane { shared, is_of_endpoint: self.is_by_endpoint }
    }

    /// The lane of requests to a host (its name in lower case, and its port if that is not the scheme's own) by whoever
    /// shows these fields: `Authorization`, or another in which keys are shown. It is that of `Rules`, unless they are
    /// told otherwise. Without a key it is the lane of the host. Beyond
    /// [`KEYS_OF_SOMEBODY_MAX`](crate::bounds::KEYS_OF_SOMEBODY_MAX) keys newcomers share that one.
    pub fn lane_of(&self, host: &str, fields: &HeaderMap) -> Lane {
        self.lane_of_whom(host, Whose::of(fields))
    }

    /// All endpoints of a host share a lane.
    pub(crate) fn lane_of_whom(&self, host: &str, whose: Whose) -> Lane {
        let key = Key { name: host, whose };
        match self.lanes.get_kept(key, || self.new_lane(), is_fresh) {
            Some(shared) => Lane { shared, is_of_endpoint: false },
            None => Lane { is_of_endpoint: false, ..self.lane(host) },
        }
    }

    fn new_lane(&self) -> Shared {
        Shared {
            wait_max: self.wait_max,
            turn: tokio::sync::Mutex::new(()),
            news: Notify::new(),
            waiting: AtomicUsize::new(0),
            known: Mutex::new(Known {
                pace: Pace::default(),
                local: self.limit.map(|limit| Local::new(limit, clock::now(), clock::date())),
            }),
        }
    }
}

fn is_fresh(lane: &Shared) -> bool {
    lane.known().is_fresh(clock::now())
}

impl Default for Throttle {
    fn default() -> Self {
        Self::new()
    }
}

/// The lane of one key. Clones are the same lane.
#[derive(Clone, Debug)]
pub struct Lane {
    shared: Arc<Shared>,
    is_of_endpoint: bool,
}

#[derive(Debug)]
struct Shared {
    wait_max: Duration,
    /// Held by the first of those who wait; the others are behind it in their order.
    turn: tokio::sync::Mutex<()>,
    /// Something may be possible that was not. Only the first listens.
    news: Notify,
    waiting: AtomicUsize,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    pace: Pace,
    local: Option<Local>,
}

impl Lane {
    /// Waits until a request may be made. The pass is held until it is answered.
    pub async fn pass(&self) -> Result<Pass, Throttled> {
        let now = clock::now();
        self.pass_until(now, now + FOREVER, None).await
    }

    /// Forgets what responses said, for when that was a mistake: who waits in the lane goes. A limit of our own stays, and
    /// a request that was refused and waits to be tried again waits on.
    pub fn reopen(&self) {
        self.shared.known().pace.reopen();
        self.shared.news.notify_one();
    }

    #[cfg(feature = "tower")]
    pub(crate) fn is_closed_at(&self, now: Instant) -> bool {
        self.shared.known().pace.closed_until(now) > now
    }

    /// The same from `began` on, and not after `latest`; if it waits, whom it asks is told.
    pub(crate) async fn pass_until(
        &self,
        began: Instant,
        latest: Instant,
        whom: Option<&str>,
    ) -> Result<Pass, Throttled> {
        // Who comes while others wait goes behind them.
        if self.shared.waiting.load(Ordering::Relaxed) == 0
            && let Ok(pass) = self.take(began)
        {
            return Ok(pass);
        }
        // Timers are large, and most requests need none: only those who wait have room for them.
        let latest = (began + self.shared.wait_max).min(latest);
        let passed = Box::pin(self.wait_in_turn(latest)).await;
        let waited = clock::now() - began;
        if !waited.is_zero() {
            events::throttled(whom, waited, passed.is_ok());
        }
        if passed.is_err() {
            events::not_made(whom, "throttled");
        }
        passed
    }

    async fn wait_in_turn(&self, deadline: Instant) -> Result<Pass, Throttled> {
        let waiting = Waiting::of(&self.shared);
        if waiting.number > WAITING_MAX {
            return Err(Throttled { retry_after: None });
        }
        let passed = timeout_at(deadline, self.wait(deadline)).await;
        passed.unwrap_or(Err(Throttled { retry_after: None }))
    }

    async fn wait(&self, deadline: Instant) -> Result<Pass, Throttled> {
        let never_before = |moment: Instant, now: Instant| {
            let retry_after = Some(moment.saturating_duration_since(now));
            if moment > deadline { Err(Throttled { retry_after }) } else { Ok(()) }
        };
        // Whoever would wait in vain need not wait for its turn.
        let now = clock::now();
        never_before(self.shared.known().pace.closed_until(now), now)?;
        let _turn = self.shared.turn.lock().await;
        loop {
            let now = clock::now();
            match self.take(now) {
                Ok(pass) => return Ok(pass),
                Err(When::Then(moment)) => {
                    never_before(moment, now)?;
                    tokio::select! {
                        () = clock::wait_until(moment) => {}
                        () = self.shared.news.notified() => {}
                    }
                }
                Err(When::Never) => return Err(Throttled { retry_after: None }),
                Err(When::Now | When::Later) => {
                    let again = self.shared.known().pace.looks_again_at();
                    tokio::select! {
                        () = clock::wait_until(again.unwrap_or(deadline)) => {}
                        () = self.shared.news.notified() => {}
                    }
                }
            }
        }
    }

    fn take(&self, now: Instant) -> Result<Pass, When> {
        let (slot, number) = self.shared.known().take(now)?;
        Ok(Pass { lane: self.clone(), slot, number, went_at: now })
    }
}

impl Shared {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Takes a place under way, and of a limit that counts those under way its slot; tells the number of the request.
    fn take(&mut self, now: Instant) -> Result<(Option<ChargeId>, u64), When> {
        match self.pace.when(now) {
            When::Now => {}
            when => return Err(when),
        }
        let slot = match &mut self.local {
            None => None,
            Some(local) => local.take(Cost::ONE, now).map_err(|when| match when {
                // Its slots are given back when a request ends, long before their leases do.
                When::Then(_) if local.counts_those_under_way() => When::Later,
                when => when,
            })?,
        };
        Ok((slot, self.pace.sent(now)))
    }

    fn is_fresh(&mut self, now: Instant) -> bool {
        self.pace.is_fresh(now) && self.local.as_ref().is_none_or(|local| local.is_vacant(now))
    }
}

/// A request under way.
#[derive(Debug)]
pub struct Pass {
    lane: Lane,
    slot: Option<ChargeId>,
    number: u64,
    went_at: Instant,
}

impl Pass {
    /// The request was answered, and this is what the response says.
    pub fn answered(self, budget: &Budget) {
        self.answered_at(budget, clock::now());
    }

    /// When it was let go.
    pub fn went_at(&self) -> Instant {
        self.went_at
    }

    pub(crate) fn answered_at(self, budget: &Budget, now: Instant) {
        let shared = &self.lane.shared;
        let others_wait = shared.waiting.load(Ordering::Relaxed) > 0;
        shared.known().pace.answered(self.news(budget, now), others_wait);
    }

    /// The request failed (500 and above): what the response says is believed, but that there was one is no sign that
    /// more may go.
    pub fn failed(self, budget: &Budget) {
        self.failed_at(budget, clock::now());
    }

    pub(crate) fn failed_at(self, budget: &Budget, now: Instant) {
        self.lane.shared.known().pace.failed(self.news(budget, now));
    }

    /// The request was refused (429, or 503): everybody stays away as long as the response says, and
    /// then goes on one by one.
    pub fn refused(self, budget: &Budget) {
        self.refused_at(budget, clock::now());
    }

    pub(crate) fn refused_at(self, budget: &Budget, now: Instant) {
        self.lane.shared.known().pace.refused(self.news(budget, now));
    }

    fn news<'a>(&self, budget: &'a Budget, now: Instant) -> News<'a> {
        let &Self { number, went_at, .. } = self;
        News { budget, number, went_at, is_of_endpoint: self.lane.is_of_endpoint, now }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut known = self.lane.shared.known();
        known.pace.ended(self.number);
        if let (Some(slot), Some(local)) = (self.slot, &mut known.local) {
            local.give_back(slot, clock::now());
        }
        drop(known);
        self.lane.shared.news.notify_one();
    }
}

/// One of those who wait, as long as it does.
struct Waiting<'a> {
    waiting: &'a AtomicUsize,
    /// How many there are with this one.
    number: usize,
}

impl<'a> Waiting<'a> {
    fn of(shared: &'a Shared) -> Self {
        let waiting = &shared.waiting;
        Self { waiting, number: waiting.fetch_add(1, Ordering::Relaxed) + 1 }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request was not made, since it would have waited too long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Throttled {
    /// How long until it would make sense, if that is known.
    pub retry_after: Option<Duration>,
}

impl fmt::Display for Throttled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request would have waited too long for its budget and was not made")?;
        match self.retry_after {
            Some(wait) => write!(f, "; try again in {} ms", wait.as_millis()),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Throttled {}
