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
use crate::bounds::{ALLOWANCES_MAX, CARE_PATIENCE, CLOSED_MAX, NAMES_LAST};
use crate::budget::{Allowance, Budget, Scope, Unit};
use crate::local::When;

#[derive(Debug, Default)]
pub(super) struct Pace {
    closed_until: Option<Instant>,
    /// The same, by a refusal of some requests under the only name that was heard.
    closed_for_some_until: Option<Instant>,
    known: Vec<Known>,
    names: Names,
    under_way: u32,
    /// Requests that were ever sent.
    sent: u64,
    care: Option<Care>,
    last_sent: Option<Instant>,
}

/// What the scopes are called of which responses tell.
#[derive(Debug, Default)]
struct Names {
    last: Option<String>,
    /// Until then it is remembered that there was another before the last.
    several_until: Option<Instant>,
}

/// A response, and which request it answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct News<'a> {
    pub(super) budget: &'a Budget,
    /// The number of the request, and when it went.
    pub(super) number: u64,
    pub(super) went_at: Instant,
    /// Whether all requests of the lane are to one endpoint.
    pub(super) is_of_endpoint: bool,
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
            self.care = self.care.map(|care| care.after_patience(now));
        }
        if self.care.is_some_and(|care| care.under_way >= care.most) {
            return When::Later;
        }
        let since = self.last_sent.unwrap_or(now);
        let told = self.known.iter().map(|known| known.ready_at(since, now));
        let ready = told.chain(self.care.map(|care| since + care.gap())).max();
        ready.filter(|moment| *moment > now).map_or(When::Now, When::Then)
    }

    /// When one more may be under way though none has ended, if too many are now.
    pub(super) fn looks_again_at(&self) -> Option<Instant> {
        let care = self.care.filter(|care| care.under_way >= care.most)?;
        Some(self.last_sent.map_or(care.heard_at, |sent| sent.max(care.heard_at)) + CARE_PATIENCE)
    }

    /// Until when nobody may go; `now` if somebody may.
    pub(super) fn closed_until(&self, now: Instant) -> Instant {
        let until = self.closed_until.max(self.closed_for_some_until);
        until.map_or(now, |until| until.max(now))
    }

    /// The number of the request that goes.
    pub(super) fn sent(&mut self, now: Instant) -> u64 {
        self.under_way += 1;
        self.sent += 1;
        self.last_sent = Some(now);
        if let Some(care) = &mut self.care {
            care.under_way += 1;
        }
        for known in &mut self.known {
            known.left = known.left.saturating_sub(1);
        }
        self.sent
    }

    /// The request of that number has ended.
    pub(super) fn ended(&mut self, number: u64) {
        self.under_way -= 1;
        if let Some(care) = self.care.as_mut().filter(|care| number > care.sent_before) {
            care.under_way -= 1;
        }
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
        let used_up = || budget.allowances().iter().filter(|allowance| allowance.remaining == 0);
        // What only some requests have used up is no matter of the others.
        if used_up().any(|allowance| !self.is_for_all(allowance, news)) {
            return;
        }
        let is_of_some = used_up().any(|allowance| matches!(allowance.scope, Scope::Named(_)));
        let wait = budget.wait().unwrap_or_default().min(CLOSED_MAX);
        let mut care = match self.care {
            // Those who went together and are refused together were one mistake.
            Some(care) if self.closed_until(now) > now => care,
            Some(care) => care.after_refusal(now).with_gap(wait),
            None => Care::new(is_of_some, self.sent, now).with_gap(wait),
        };
        care.is_of_some &= is_of_some;
        self.care = Some(care);
        let closed_until =
            if is_of_some { &mut self.closed_for_some_until } else { &mut self.closed_until };
        *closed_until = (*closed_until).max(Some(now + wait));
    }

    /// Forgets what responses said.
    pub(super) fn reopen(&mut self) {
        let &mut Self { under_way, sent, last_sent, .. } = self;
        *self = Self { under_way, sent, last_sent, ..Self::default() };
    }

    /// Whether it behaves as a new one would.
    pub(super) fn is_fresh(&mut self, now: Instant) -> bool {
        self.forget(now);
        self.closed_until(now) <= now
            && self.known.is_empty()
            && self.under_way == 0
            && self.care.is_none_or(|care| care.is_over(now))
    }

    fn learn(&mut self, news: News<'_>) {
        for allowance in news.budget.allowances() {
            self.hear_name(&allowance.scope, news.now);
            if !self.is_for_all(allowance, news) {
                continue;
            }
            // Nobody knows beforehand how much of another unit a request takes; only that nothing
            // is left means something.
            match allowance.unit {
                Unit::Requests => self.learn_one(allowance, news),
                Unit::Amount if allowance.remaining == 0 => self.learn_one(allowance, news),
                Unit::Amount => self.unlearn(allowance, news),
                Unit::Concurrent => {}
            }
        }
    }

    /// Where there are several scopes nobody knows beforehand which of them a request is of.
    fn hear_name(&mut self, scope: &Scope, now: Instant) {
        let Scope::Named(name) = scope else { return };
        if !self.names.hear(name, now) {
            return;
        }
        // What was taken for a matter of all is one of some.
        self.known.retain(|known| !known.is_of_some);
        self.closed_for_some_until = None;
        self.care = self.care.filter(|care| !care.is_of_some);
    }

    /// Whether an allowance is that of all requests of this lane.
    fn is_for_all(&self, allowance: &Allowance, news: News<'_>) -> bool {
        match allowance.scope {
            Scope::All => true,
            Scope::Named(_) => !self.names.are_several(news.now),
            Scope::Endpoint => news.is_of_endpoint,
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

    /// There is some of what was used up.
    fn unlearn(&mut self, allowance: &Allowance, news: News<'_>) {
        let told = Known::of(allowance, 0, self.sent, news);
        self.known.retain(|known| known.name != allowance.name || !told.is_newer_than(known, news));
    }

    /// What has come back is no longer known; if nothing had been left, that calls for care.
    fn forget(&mut self, now: Instant) {
        // Of some requests alone, or of all.
        let mut wall: Option<bool> = None;
        self.known.retain(|known| {
            if now < known.resets_at {
                return true;
            }
            let was_used_up = known.left == 0;
            if was_used_up && known.rate().is_none() {
                wall = Some(wall.unwrap_or(true) && known.is_of_some);
            }
            // At the rate that was told it can go on until there is news, or until all is back.
            was_used_up && known.rate().is_some() && now < known.whole_at()
        });
        self.care = self.care.or(wall.map(|is_of_some| Care::new(is_of_some, self.sent, now)));
    }
}

impl Names {
    /// Whether it is another than the last.
    fn hear(&mut self, name: &str, now: Instant) -> bool {
        let is_another = self.last.as_deref().is_some_and(|last| last != name);
        if is_another {
            self.several_until = Some(now + NAMES_LAST);
        }
        if is_another || self.last.is_none() {
            name.clone_into(self.last.get_or_insert_default());
        }
        is_another
    }

    fn are_several(&self, now: Instant) -> bool {
        self.several_until.is_some_and(|until| now < until)
    }
}
