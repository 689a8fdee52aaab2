//! Trying again, as seldom as it takes.
//!
//! A retry waits as long as the other side asked, or backs off; it does not begin after the deadline;
//! and it takes from a [`Share`] that only other requests refill, so that when everything fails, what
//! is sent grows by a fifth and not sixfold.

mod share;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

pub(crate) use self::share::Share;
use crate::backoff::{Backoff, part_of};
use crate::bounds::FOREVER;
use crate::clock;
use crate::events;
use crate::random::Random;

/// Tries again what failed.
///
/// ```
/// use tollgate_client::Retry;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?.block_on(async {
/// let mut tries = 0;
/// let answer: Result<&str, &str> = Retry::new()
///     .run(|| {
///         tries += 1;
///         let result = if tries < 3 { Err("connection refused") } else { Ok("hello") };
///         async move { result.into() }
///     })
///     .await;
/// assert_eq!(answer, Ok("hello"));
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// Clones share what may be retried: for [`run`](Self::run), make one for each service that is called. Under `Rules`
/// each host has a share of its own.
#[derive(Clone, Debug)]
pub struct Retry {
    backoff: Backoff,
    retries_max: u32,
    deadline: Duration,
    percent: u32,
    /// What `run` takes from.
    share: Arc<Share>,
    random: Arc<Random>,
}

/// What came of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attempt<T> {
    /// It is done; a failure that no retry would mend is done, too.
    Done(T),
    /// The other side refused it and said when to come back. It has planned for that, so it does not
    /// count as a retry that nobody asked for.
    Refused {
        /// What is returned if there is no retry.
        last: T,
        /// When to come back.
        wait: Duration,
    },
    /// It failed, and may be tried again.
    Failed {
        /// What is returned if there is no retry.
        last: T,
        /// When to come back, if that was said.
        wait: Option<Duration>,
    },
}

/// One request from its first attempt to its last.
#[derive(Debug)]
pub(crate) struct Series {
    deadline: Instant,
    retries: u32,
}

/// Why something is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Refused(Duration),
    Failed(Option<Duration>),
}

/// Why something is not tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GaveUp {
    /// It was tried often enough.
    Retries,
    /// The wait would end after the deadline.
    Deadline,
    /// Whom it asks does not work of late, and will still be left alone by then.
    Circuit,
    /// Too many others are retries already.
    Share,
}

impl Series {
    /// When the last attempt may begin.
    #[cfg(any(feature = "reqwest", feature = "tower"))]
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether the next attempt is no retry.
    #[cfg(any(feature = "reqwest", feature = "tower"))]
    pub(crate) fn is_new(&self) -> bool {
        self.retries == 0
    }
}

impl Retry {
    /// Up to 5 retries within two minutes, after waits of up to 1 second doubling to 32; at most a
    /// fifth of all requests are retries.
    pub fn new() -> Self {
        Self {
            backoff: Backoff::default(),
            retries_max: 5,
            deadline: Duration::from_secs(120),
            percent: 20,
            share: Arc::new(Share::new(clock::now())),
            random: Arc::new(Random::new()),
        }
    }

    /// How long to wait if the other side does not say.
    #[must_use]
    pub fn backoff(self, backoff: Backoff) -> Self {
        Self { backoff, ..self }
    }

    /// How many retries a request has at most.
    #[must_use]
    pub fn retries(self, retries_max: u32) -> Self {
        Self { retries_max, ..self }
    }

    /// How long after its beginning a request may still be tried, for its budget it waits no longer. A wait
    /// that would end later is not begun, and an attempt that is under way is not cut off: how long that may take is for
    /// whoever makes it to say.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline: deadline.min(FOREVER), ..self }
    }

    /// How many retries there may be for a hundred requests. One a second is allowed besides, and ten
    /// of these are saved, so that who sends little may retry as well. Those whom the other side told when to come
    /// back are not counted.
    #[must_use]
    pub fn share(self, percent: u32) -> Self {
        Self { percent, share: Arc::new(Share::new(clock::now())), ..self }
    }

    /// The chance in its waits, the same every time: for simulations, and for tests.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self { random: Arc::new(Random::from_seed(seed)), ..self }
    }

    /// Attempts until it is done, or until another attempt would do harm; returns what the last one
    /// brought. It may be dropped at any moment.
    pub async fn run<T, A, F>(&self, mut attempt: A) -> T
    where
        A: FnMut() -> F,
        F: Future<Output = Attempt<T>>,
    {
        let now = clock::now();
        let mut series = self.begin(now);
        self.earn(&self.share);
        loop {
            let (last, cause) = match attempt().await {
                Attempt::Done(value) => return value,
                Attempt::Refused { last, wait } => (last, Cause::Refused(wait)),
                Attempt::Failed { last, wait } => (last, Cause::Failed(wait)),
            };
            let next = self.next(&mut series, &self.share, cause, clock::now(), None, |_| true);
            let Some(next) = next else { return last };
            clock::wait_until(next).await;
        }
    }

    pub(crate) fn begin(&self, now: Instant) -> Series {
        Series { deadline: now + self.deadline, retries: 0 }
    }

    /// The first attempt of a series is made.
    pub(crate) fn earn(&self, share: &Share) {
        share.earn(self.percent);
    }

    /// When to try again, if at all: only at a moment at which that can be.
    pub(crate) fn next(
        &self,
        series: &mut Series,
        share: &Share,
        cause: Cause,
        now: Instant,
        whom: Option<&str>,
        can_be: impl FnOnce(Instant) -> bool,
    ) -> Option<Instant> {
        let wait = self.wait(series, cause, now).and_then(|wait| {
            if !can_be(now + wait) {
                return Err(GaveUp::Circuit);
            }
            let is_asked_for = matches!(cause, Cause::Refused(wait) if !wait.is_zero());
            if is_asked_for || share.spend(now) { Ok(wait) } else { Err(GaveUp::Share) }
        });
        match wait {
            Ok(wait) => {
                series.retries += 1;
                events::retry(whom, series.retries, wait, cause);
                Some(now + wait)
            }
            Err(why) => {
                events::gave_up(whom, series.retries, why);
                None
            }
        }
    }

    fn wait(&self, series: &Series, cause: Cause, now: Instant) -> Result<Duration, GaveUp> {
        if series.retries >= self.retries_max {
            return Err(GaveUp::Retries);
        }
        let told = match cause {
            Cause::Refused(wait) | Cause::Failed(Some(wait)) if !wait.is_zero() => {
                Some(wait.min(FOREVER))
            }
            _ => None,
        };
        let random = self.random.next();
        let wait = match told {
            // Never earlier than told. All who were told the same would come back together, so each
            // adds a part of what it would have waited by itself; once that did not help, there are
            // many of them, and a short wait is too short to spread them.
            Some(told) => {
                let ceiling = self.backoff.ceiling(series.retries);
                let is_first = series.retries == 0;
                told + part_of(if is_first { told.min(ceiling) } else { ceiling }, random)
            }
            None => self.backoff.wait(series.retries, random),
        };
        if now + wait > series.deadline { Err(GaveUp::Deadline) } else { Ok(wait) }
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, E> From<Result<T, E>> for Attempt<Result<T, E>> {
    /// An error may be tried again.
    fn from(result: Result<T, E>) -> Self {
        match result {
            Ok(_) => Self::Done(result),
            Err(_) => Self::Failed { last: result, wait: None },
        }
    }
}
