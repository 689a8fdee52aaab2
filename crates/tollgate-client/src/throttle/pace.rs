//! How fast requests may go, as far as responses tell.
//!
//! As long as more than half of an allowance is left nobody waits for it. From then on what is left is
//! spread over the time until there is more, so that the last request goes out when the first would be
//! free again; and when nothing is left, nobody goes until then.
//!
//! After a wall nobody knows how much there is. Then, and after every refusal, requests go one by one, and
//! by more the more go well, so that those who waited do not all run into the same wall again: [`Care`].

use std::time::Duration;

use tokio::time::Instant;

use crate::bounds::{ALLOWANCES_MAX, CARE_FAST_MAX, CARE_LASTS, GAP_MAX, GAP_ROUND, SPREAD_MAX};
use crate::budget::{Allowance, Budget, Unit};
use crate::local::When;

#[derive(Debug, Default)]
pub(super) struct Pace {
    closed_until: Option<Instant>,
    known: Vec<Known>,
    under_way: u32,
    care: Option<Care>,
    last_sent: Option<Instant>,
}

/// How many may be under way, as TCP finds out how much a network takes: each that goes well lets one
/// more go, up to where it went wrong before; from there on it takes a whole round of them. A refusal
/// halves it. It ends a while after the last refusal, when nobody waits for more.
#[derive(Clone, Copy, Debug)]
struct Care {
    since: Instant,
    most: u32,
    went_wrong_at: u32,
    went_well: u32,
    gap: Gap,
}

/// The time from one request to the next. A wait of a fraction of a second is that for a bucket's next
/// unit, and nobody who is answered in less is slowed down by how many are under way. So one request
/// goes in that time; after a few that went well in half of it; after a refusal in twice.
#[derive(Clone, Copy, Debug, Default)]
struct Gap {
    length: Duration,
    went_well: u32,
}

/// What is known of an allowance.
#[derive(Debug)]
struct Known {
    name: Option<String>,
    limit: Option<u64>,
    period: Option<Duration>,
    left: u64,
    resets_at: Instant,
    /// Whether it was told to be in a second: whole seconds tell no shorter time, so it may be any.
    is_soon: bool,
}

impl Pace {
    pub(super) fn when(&mut self, now: Instant) -> When {
        self.forget(now);
        let closed_until = self.closed_until(now);
        if closed_until > now {
            return When::Then(closed_until);
        }
        if self.care.is_some_and(|care| self.under_way >= care.most) {
            return When::Later;
        }
        let since = self.last_sent.unwrap_or(now);
        let told = self.known.iter().map(|known| known.ready_at(since, now));
        let ready = told.chain(self.care.map(|care| since + care.gap.length)).max();
        ready.filter(|moment| *moment > now).map_or(When::Now, When::Then)
    }

    /// Until when nobody may go; `now` if somebody may.
    pub(super) fn closed_until(&self, now: Instant) -> Instant {
        self.closed_until.map_or(now, |until| until.max(now))
    }

    pub(super) fn sent(&mut self, now: Instant) {
        self.under_way += 1;
        self.last_sent = Some(now);
        for known in &mut self.known {
            known.left = known.left.saturating_sub(1);
        }
    }

    pub(super) fn ended(&mut self) {
        self.under_way -= 1;
    }

    /// A request was answered while others wait, or nobody does.
    pub(super) fn answered(&mut self, budget: &Budget, others_wait: bool, now: Instant) {
        self.learn(budget, now);
        self.care = self.care.filter(|care| others_wait || !care.is_over(now));
        self.care = self.care.map(Care::after_success);
    }

    pub(super) fn refused(&mut self, budget: &Budget, now: Instant) {
        self.learn(budget, now);
        let wait = budget.wait().unwrap_or_default();
        // Those who went together and are refused together were one mistake.
        if self.closed_until.is_none_or(|until| until <= now) {
            let mut care = self.care.map_or(Care::new(now), |care| care.after_refusal(now));
            care.gap = care.gap.after_refusal(wait);
            self.care = Some(care);
        }
        let until = now + wait;
        self.closed_until = self.closed_until.max(Some(until));
    }

    /// Whether it behaves as a new one would.
    pub(super) fn is_fresh(&mut self, now: Instant) -> bool {
        self.forget(now);
        let is_open = self.closed_until.is_none_or(|until| until <= now);
        is_open
            && self.known.is_empty()
            && self.under_way == 0
            && self.care.is_none_or(|care| care.is_over(now))
    }

    fn learn(&mut self, budget: &Budget, now: Instant) {
        for allowance in budget.allowances() {
            // Nobody knows beforehand how much of another unit a request takes; only that nothing
            // is left means something.
            if allowance.unit == Unit::Requests
                || allowance.unit == Unit::Amount && allowance.remaining == 0
            {
                self.learn_one(allowance, now);
            }
        }
    }

    fn learn_one(&mut self, told: &Allowance, now: Instant) {
        self.known.retain(|known| known.name != told.name);
        // Others that are under way may not be counted in what is told; this one is.
        let others = u64::from(self.under_way.saturating_sub(1));
        let known = Known {
            name: told.name.clone(),
            limit: told.limit,
            period: told.period,
            left: told.remaining.saturating_sub(others),
            resets_at: now + told.reset_after.unwrap_or_default(),
            is_soon: told.reset_after.is_none_or(|wait| wait <= Duration::from_secs(1)),
        };
        if self.known.len() < ALLOWANCES_MAX {
            self.known.push(known);
        }
    }

    /// What has come back is no longer known; if nothing had been left, that calls for care.
    fn forget(&mut self, now: Instant) {
        let mut hit_the_wall = false;
        self.known.retain_mut(|known| {
            if now < known.resets_at {
                return true;
            }
            let was_used_up = known.left == 0;
            hit_the_wall |= was_used_up && known.rate().is_none();
            // At the rate that was told it can go on until there is news, or until all is back.
            was_used_up && known.rate().is_some() && now < known.whole_at()
        });
        if hit_the_wall {
            self.care = self.care.or(Some(Care::new(now)));
        }
    }
}

impl Care {
    fn new(now: Instant) -> Self {
        Self {
            since: now,
            most: 1,
            went_wrong_at: CARE_FAST_MAX,
            went_well: 0,
            gap: Gap::default(),
        }
    }

    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= CARE_LASTS
    }

    fn after_success(self) -> Self {
        let (went_well, gap) = (self.went_well + 1, self.gap.after_success());
        if self.most < self.went_wrong_at || went_well >= self.most {
            Self { most: self.most.saturating_add(1), went_well: 0, gap, ..self }
        } else {
            Self { went_well, gap, ..self }
        }
    }

    fn after_refusal(self, now: Instant) -> Self {
        let half = (self.most / 2).max(1);
        Self { since: now, most: half, went_wrong_at: half, went_well: 0, ..self }
    }
}

impl Gap {
    fn after_success(self) -> Self {
        if self.went_well + 1 < GAP_ROUND {
            Self { went_well: self.went_well + 1, ..self }
        } else {
            Self { length: self.length / 2, went_well: 0 }
        }
    }

    fn after_refusal(self, wait: Duration) -> Self {
        let told = if wait <= GAP_MAX { wait } else { Duration::ZERO };
        Self { length: (self.length * 2).max(told).min(GAP_MAX), went_well: 0 }
    }
}

impl Known {
    /// When the next request may go, if the last one went at `since`.
    fn ready_at(&self, since: Instant, now: Instant) -> Instant {
        if now >= self.resets_at {
            return since + self.rate().unwrap_or_default();
        }
        if self.left == 0 {
            return self.resets_at;
        }
        if self.limit.is_some_and(|limit| self.left > limit / 2) {
            return now;
        }
        let parts = u32::try_from(self.left + 1).unwrap_or(u32::MAX);
        let part = self.resets_at.saturating_duration_since(since) / parts;
        // A bucket has the next unit sooner than in a second; its rate tells how soon.
        let rate = self.rate().filter(|_| self.is_soon).unwrap_or(SPREAD_MAX);
        since + part.min(rate).min(SPREAD_MAX)
    }

    /// When it is whole again, if nobody takes anything.
    fn whole_at(&self) -> Instant {
        self.resets_at + self.period.unwrap_or_default()
    }

    /// The time from one request to the next at the rate of the limit.
    fn rate(&self) -> Option<Duration> {
        let limit = u32::try_from(self.limit?).ok().filter(|limit| *limit > 0)?;
        Some(self.period? / limit)
    }
}
