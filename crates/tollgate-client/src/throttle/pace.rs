//! How fast requests may go, as far as responses tell.
//!
//! As long as more than half of an allowance is left nobody waits for it. From then on what is left is
//! spread over the time until there is more, so that the last request goes out when the first would be
//! free again; and when nothing is left, nobody goes until then.
//!
//! After a wall nobody knows how much there is. Then, and after every refusal, requests go one by one, and
//! by more the more go well, so that those who waited do not all run into the same wall again: [`Care`].

mod care;
mod known;

use tokio::time::Instant;

use self::care::Care;
use self::known::Known;
use crate::bounds::{ALLOWANCES_MAX, CARE_PATIENCE, CLOSED_MAX};
use crate::budget::{Allowance, Budget, Scope, Unit};
use crate::local::When;

#[derive(Debug, Default)]
pub(super) struct Pace {
    closed_until: Option<Instant>,
    known: Vec<Known>,
    names: Names,
    under_way: u32,
    /// Requests that were ever sent.
    sent: u64,
    care: Option<Care>,
    last_sent: Option<Instant>,
}

/// What the scopes are called of which responses tell.
#[derive(Debug, Default, PartialEq, Eq)]
enum Names {
    #[default]
    None,
    One(String),
    Several,
}

/// A response, and which request it answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct News<'a> {
    pub(super) budget: &'a Budget,
    /// The number of the request, and when it went.
    pub(super) number: u64,
    pub(super) went_at: Instant,
    /// Whether requests to all endpoints of a host share the lane.
    pub(super) is_of_host: bool,
    pub(super) now: Instant,
}

impl Pace {
    pub(super) fn when(&mut self, now: Instant) -> When {
        self.forget(now);
        let closed_until = self.closed_until(now);
        if closed_until > now {
            return When::Then(closed_until);
        }
        if self.looks_again_at().is_some_and(|moment| moment <= now) {
            self.care = self.care.map(|care| care.after_patience(self.under_way, now));
        }
        if self.care.is_some_and(|care| self.under_way >= care.most) {
            return When::Later;
        }
        let since = self.last_sent.unwrap_or(now);
        let told = self.known.iter().map(|known| known.ready_at(since, now));
        let ready = told.chain(self.care.map(|care| since + care.gap())).max();
        ready.filter(|moment| *moment > now).map_or(When::Now, When::Then)
    }

    /// When one more may be under way though none has ended, if too many are now.
    pub(super) fn looks_again_at(&self) -> Option<Instant> {
        let care = self.care.filter(|care| self.under_way >= care.most)?;
        Some(self.last_sent.map_or(care.heard_at, |sent| sent.max(care.heard_at)) + CARE_PATIENCE)
    }

    /// Until when nobody may go; `now` if somebody may.
    pub(super) fn closed_until(&self, now: Instant) -> Instant {
        self.closed_until.map_or(now, |until| until.max(now))
    }

    /// The number of the request that goes.
    pub(super) fn sent(&mut self, now: Instant) -> u64 {
        self.under_way += 1;
        self.sent += 1;
        self.last_sent = Some(now);
        for known in &mut self.known {
            known.left = known.left.saturating_sub(1);
        }
        self.sent
    }

    pub(super) fn ended(&mut self) {
        self.under_way -= 1;
    }

    /// A request was answered while others wait, or nobody does.
    pub(super) fn answered(&mut self, news: News<'_>, others_wait: bool) {
        self.learn(news);
        self.care = self.care.filter(|care| others_wait || !care.is_over(news.now));
        self.care = self.care.map(|care| care.after_success(news.now));
    }

    /// A request failed: that is no sign that more may go.
    pub(super) fn failed(&mut self, news: News<'_>) {
        self.learn(news);
        self.care = self.care.map(|care| care.after_failure(news.now));
    }

    pub(super) fn refused(&mut self, news: News<'_>) {
        self.learn(news);
        let News { budget, now, .. } = news;
        let used_up = budget.allowances().iter().filter(|allowance| allowance.remaining == 0);
        // What only some requests have used up is no matter of the others.
        if { used_up }.any(|allowance| !self.is_for_all(allowance, news)) {
            return;
        }
        let wait = budget.wait().unwrap_or_default().min(CLOSED_MAX);
        // Those who went together and are refused together were one mistake.
        if self.closed_until.is_none_or(|until| until <= now) {
            let care = self.care.map_or(Care::new(now), |care| care.after_refusal(now));
            self.care = Some(care.with_gap(wait));
        }
        let until = now + wait;
        self.closed_until = self.closed_until.max(Some(until));
    }

    /// Forgets what responses said.
    pub(super) fn reopen(&mut self) {
        let &mut Self { under_way, sent, last_sent, .. } = self;
        *self = Self { under_way, sent, last_sent, ..Self::default() };
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

    fn learn(&mut self, news: News<'_>) {
        for allowance in news.budget.allowances() {
            self.hear_name(&allowance.scope);
            if !self.is_for_all(allowance, news) {
                continue;
            }
            // Nobody knows beforehand how much of another unit a request takes; only that nothing
            // is left means something.
            match allowance.unit {
                Unit::Requests => self.learn_one(allowance, news),
                Unit::Amount if allowance.remaining == 0 => self.learn_one(allowance, news),
                Unit::Amount => self.known.retain(|known| known.name != allowance.name),
                Unit::Concurrent => {}
            }
        }
    }

    /// Where there are several scopes nobody knows beforehand which of them a request is of.
    fn hear_name(&mut self, scope: &Scope) {
        let Scope::Named(name) = scope else { return };
        match &self.names {
            Names::None => self.names = Names::One(name.clone()),
            Names::One(only) if only != name => {
                self.names = Names::Several;
                self.known.retain(|known| !known.is_of_some);
            }
            Names::One(_) | Names::Several => {}
        }
    }

    /// Whether an allowance is that of all requests of this lane.
    fn is_for_all(&self, allowance: &Allowance, news: News<'_>) -> bool {
        match allowance.scope {
            Scope::All => true,
            Scope::Named(_) => self.names != Names::Several,
            Scope::Endpoint => !news.is_of_host,
        }
    }

    fn learn_one(&mut self, allowance: &Allowance, news: News<'_>) {
        // Others that are under way may not be counted in what is told; this one is.
        let others = u64::from(self.under_way.saturating_sub(1));
        let told = Known::of(allowance, others, self.sent, news);
        let has_room = self.known.len() < ALLOWANCES_MAX;
        match self.known.iter_mut().find(|known| known.name == allowance.name) {
            Some(known) if told.is_newer_than(known, news) => {
                *known = told.called(known.name.take());
            }
            None if has_room => self.known.push(told.called(allowance.name.clone())),
            Some(_) | None => {}
        }
    }

    /// What has come back is no longer known; if nothing had been left, that calls for care.
    fn forget(&mut self, now: Instant) {
        let mut hit_the_wall = false;
        self.known.retain(|known| {
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
