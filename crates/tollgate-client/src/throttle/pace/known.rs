//! What is known of an allowance.

use std::time::Duration;

use tokio::time::Instant;

use super::News;
use crate::bounds::{CLOSED_MAX, SPREAD_MAX};
use crate::budget::{Allowance, Scope, Unit};

/// Whole seconds tell no shorter time: what is told to be in a second may be at once.
const ROUNDED: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Known {
    pub(super) name: Option<String>,
    /// Whether the server counts only some requests in it.
    pub(super) is_of_some: bool,
    limit: Option<u64>,
    period: Option<Duration>,
    /// The time from one request to the next at the rate of the limit.
    pub(super) rate: Option<Duration>,
    pub(super) left: u64,
    pub(super) resets_at: Instant,
    /// Whether it comes back bit by bit until then, and when the first bit does.
    more_at: Option<Instant>,
    /// Whether there may be more much sooner than in the second that was told.
    is_soon: bool,
    /// The last request that was sent when this was heard.
    heard_before: u64,
}

impl Known {
    /// What was told when `others` were under way, and `sent` were sent.
    pub(super) fn of(told: &Allowance, others: u64, sent: u64, news: News<'_>) -> Self {
        let reset = told.reset_after.unwrap_or_default().min(CLOSED_MAX);
        // A rate of bytes is none of requests.
        let rate = if told.unit == Unit::Requests { told.interval() } else { None };
        // Some is back soon, and nobody knows whether that is enough: whoever asks will hear.
        let reset = if told.is_gradual && rate.is_none() { reset.min(SPREAD_MAX) } else { reset };
        let wait = if told.remaining == 0 { rate.unwrap_or_default() } else { Duration::ZERO };
        Self {
            name: told.name.clone(),
            is_of_some: told.scope != Scope::All,
            limit: told.limit,
            period: told.period,
            rate,
            left: told.remaining.saturating_sub(others),
            resets_at: news.now + reset,
            more_at: told.is_gradual.then_some(news.now + wait),
            is_soon: told.is_gradual || reset <= ROUNDED,
            heard_before: sent,
        }
    }

    /// Whether to believe this rather than what was known. Answers overtake each other: one to a request that was under
    /// way when the other arrived may be the older one. Within a window there is ever less, so the one that
    /// tells less is believed, until one comes that is newer for certain.
    pub(super) fn is_newer_than(&self, known: &Self, news: News<'_>) -> bool {
        // When a window ends is told no earlier than the request was sent.
        let under_way = news.now.saturating_duration_since(news.went_at);
        let is_of_next_window =
            news.now >= known.resets_at || self.resets_at > known.resets_at + under_way + ROUNDED;
        news.number > known.heard_before || self.left <= known.left || is_of_next_window
    }

    /// When the next request may go, if the last one went at `since`.
    pub(super) fn ready_at(&self, since: Instant, now: Instant) -> Instant {
        let at_the_rate = since + self.rate.unwrap_or_default();
        if now >= self.resets_at {
            return at_the_rate;
        }
        if self.left == 0 {
            let more_at = self.more_at.filter(|_| self.rate.is_some());
            return more_at.map_or(self.resets_at, |more_at| more_at.max(at_the_rate));
        }
        if self.limit.is_some_and(|limit| self.left > limit / 2) {
            return now;
        }
        let parts = u32::try_from(self.left + 1).unwrap_or(u32::MAX);
        let part = self.resets_at.saturating_duration_since(since) / parts;
        // A bucket has the next unit sooner than in a second; its rate tells how soon.
        let rate = self.rate.filter(|_| self.is_soon).unwrap_or(SPREAD_MAX);
        since + part.min(rate).min(SPREAD_MAX)
    }

    /// When it is whole again, if nobody takes anything.
    pub(super) fn whole_at(&self) -> Instant {
        self.resets_at + self.period.unwrap_or_default()
    }
}
