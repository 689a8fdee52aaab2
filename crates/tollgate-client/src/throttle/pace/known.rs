//! What is known of an allowance.

use std::time::Duration;

use tokio::time::Instant;

use super::News;
use crate::bounds::{CLOSED_MAX, SPREAD_MAX};
use crate::budget::{Allowance, Scope, Unit, interval};

/// Whole seconds tell no shorter time: what is told to be in a second may be at once.
const ROUNDED: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Known {
    pub(super) name: Option<String>,
    /// Whether the server counts only some requests in it, and has a name for them.
    pub(super) is_of_some: bool,
    /// Of requests; how many bytes there are does not tell how many requests may go.
    limit: Option<u64>,
    period: Option<Duration>,
    pub(super) left: u64,
    /// No later than then; what was told was told some time between the request and its answer.
    pub(super) resets_at: Instant,
    /// No earlier than then.
    resets_from: Instant,
    /// Whether it comes back bit by bit until then, and when the first bit does.
    more_at: Option<Instant>,
    /// Whether there may be more much sooner than in the second that was told.
    is_soon: bool,
    /// The last request that was sent when this was heard.
    heard_before: u64,
}

impl Known {
    /// What was told when `others` were under way, and `sent` were sent; still without its name.
    pub(super) fn of(told: &Allowance, others: u64, sent: u64, news: News<'_>) -> Self {
        let mut reset = told.reset_after.unwrap_or_default().min(CLOSED_MAX);
        let (limit, period) = match told.unit {
            Unit::Requests => (told.limit, told.period),
            Unit::Concurrent | Unit::Amount => (None, None),
        };
        let mut more_at = None;
        if told.is_gradual {
            let rate = interval(limit, period);
            // Some is back soon, and nobody knows whether that is enough: whoever asks will hear.
            reset = if rate.is_none() { reset.min(SPREAD_MAX) } else { reset };
            let is_used_up = told.remaining == 0;
            more_at = Some(news.now + rate.filter(|_| is_used_up).unwrap_or_default());
        }
        Self {
            name: None,
            is_of_some: matches!(told.scope, Scope::Named(_)),
            limit,
            period,
            left: told.remaining.saturating_sub(others),
            resets_at: news.now + reset,
            resets_from: news.went_at + reset,
            more_at,
            is_soon: told.is_gradual || reset <= ROUNDED,
            heard_before: sent,
        }
    }

    pub(super) fn called(self, name: Option<String>) -> Self {
        Self { name, ..self }
    }

    /// Whether to believe this rather than what was known. Answers overtake each other: one to a request that was under
    /// way when the other arrived may be the older one. Within a window there is ever less, so the one that
    /// tells less is believed, until one comes that is newer for certain; but not if its window is the one before.
    pub(super) fn is_newer_than(&self, known: &Self, news: News<'_>) -> bool {
        let is_of_next_window =
            || news.now >= known.resets_at || self.resets_from > known.resets_at + ROUNDED;
        let is_of_last_window = || known.resets_from > self.resets_at + ROUNDED;
        news.number > known.heard_before
            || is_of_next_window()
            || self.left <= known.left && !is_of_last_window()
    }

    /// When the next request may go, if the last one went at `since`.
    pub(super) fn ready_at(&self, since: Instant, now: Instant) -> Instant {
        let at_the_rate = || since + self.rate().unwrap_or_default();
        if now >= self.resets_at {
            return at_the_rate();
        }
        if self.left == 0 {
            let more_at = self.more_at.filter(|_| self.rate().is_some());
            return more_at.map_or(self.resets_at, |more_at| more_at.max(at_the_rate()));
        }
        if self.limit.is_some_and(|limit| self.left > limit / 2) {
            return now;
        }
        let parts = u32::try_from(self.left + 1).unwrap_or(u32::MAX);
        let part = self.resets_at.saturating_duration_since(since) / parts;
        // A bucket has the next unit sooner than in a second; its rate tells how soon.
        let rate = if self.is_soon { self.rate() } else { None };
        since + part.min(rate.unwrap_or(SPREAD_MAX)).min(SPREAD_MAX)
    }

    /// The time from one request to the next at the rate of the limit.
    pub(super) fn rate(&self) -> Option<Duration> {
        interval(self.limit, self.period)
    }

    /// When it is whole again, if nobody takes anything.
    pub(super) fn whole_at(&self) -> Instant {
        self.resets_at + self.period.unwrap_or_default()
    }
}
