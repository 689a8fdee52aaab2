//! Who sends most, who is denied most and does not wait, and what to do about it.
//!
//! All of it is told from a memory that is bounded whatever traffic comes. Some requests are looked at
//! closely, each for as many as it stands for ([`Turn`](crate::metrics)), and so are denials: their keys
//! are counted here, where whoever finds somebody else at work leaves it to the next to count for both.
//! So nobody ever waits to be counted, and the sum stays right.

mod advice;
mod day;
mod recent;
mod shown;
mod slices;
mod summary;
mod users;
mod waits;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use tollgate_core::{Decision, Key, KeyBuf, Micros, Timestamp};
use tollgate_policy::Mode;
use tollgate_store::Taken;

use crate::bounds::STORM_KEYS_MAX;
use crate::denial::Record;
use crate::limiter::Limiter;
use crate::metrics::Series;
use crate::verdict::Ruling;
use slices::{Slice, Slices};
use summary::{Counter, Summary, cut};
use waits::{Came, Waits};

pub use advice::Advice;
pub(crate) use day::Day;
pub use recent::Recent;

/// How far back is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Span {
    /// The last minute.
    Minute,
    /// The last hour.
    Hour,
    /// The last day.
    Day,
}

/// The keys that something happened to most often.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frequent {
    /// In which time; less than was asked for if the limiter has not been there for so long.
    pub period: Micros,
    /// How many requests there were, about.
    pub requests: u64,
    /// How many of them were denied, about.
    pub denied: u64,
    /// The keys, the most frequent one first.
    pub keys: Vec<FrequentKey>,
}

/// A key, and how often it came up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrequentKey {
    /// As it may be shown, cut if it is very long.
    pub key: String,
    /// How many requests it sent. Of a key that is among the most denied and sends too little to be among
    /// the busiest, those since it was first denied.
    pub requests: u64,
    /// How many of them were denied.
    pub denied: u64,
    /// By how much the figure that the list goes by may be too large: that of requests among the busiest,
    /// that of denials among the most denied.
    pub error: u64,
    /// When it was first seen in that time.
    pub first_seen: Timestamp,
    /// Which limits tell of the same values, its own included.
    pub limits: Vec<String>,
    /// How many of its denials came before the wait was over that it had been told, and may have heard of.
    pub early: u64,
    /// Whether it waits as it is told: not if more than a tenth of its denials were early, and more than
    /// two. Nothing if it was not told to wait, or has not come back.
    pub obeys: Option<bool>,
}

/// Whether clients come back too early.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Storm {
    /// Whether many do: a hundred at least, and half of all who were denied.
    pub is_storm: bool,
    /// Requests of the last minute that were denied and told a wait.
    pub denied: u64,
    /// Those of them that came before the wait was over that their key had been told, and may have heard of.
    pub early: u64,
    /// The keys that did so most often, the worst one first.
    pub keys: Vec<String>,
}

/// So many early returns in a minute are no storm.
const STORM_EARLY_MIN: u64 = 100;

/// Early returns that may have been a misunderstanding.
const EARLY_FORGIVEN: u64 = 2;

/// What was seen of requests.
#[derive(Debug)]
pub(crate) struct Observer {
    kept: Mutex<Kept>,
    waits: Waits,
    pub(crate) record: Record,
    /// What those stood for who found somebody else at work.
    missed_requests: AtomicU64,
    missed_denials: AtomicU64,
}

#[derive(Debug)]
struct Kept {
    slices: Slices,
    recent: recent::LastDecisions,
    /// Where keys are written.
    text: String,
}

/// How closely a request is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Looked {
    pub(crate) now: Timestamp,
    /// How many requests it stands for; none if only its denial is looked at.
    pub(crate) requests: u64,
    /// How many denied requests it stands for.
    pub(crate) denials: u64,
}

/// What one limit said to a request.
#[derive(Clone, Copy)]
pub(crate) struct Said<'a> {
    /// Which of the request's keys it was asked about.
    pub(crate) place: usize,
    pub(crate) series: &'a Series,
    pub(crate) mode: Mode,
    pub(crate) taken: &'a Taken,
}

/// The same, of one key.
struct Seen {
    key: u64,
    now: Timestamp,
    decision: Decision,
    requests: u64,
    denials: u64,
    early: u64,
    came: Came,
    /// The share of its limit that is in use, in millionths.
    used: u32,
}

impl Observer {
    pub(crate) fn new(now: Timestamp) -> Self {
        let (recent, text) = (recent::LastDecisions::new(), String::new());
        Self {
            kept: Mutex::new(Kept { slices: Slices::new(now), recent, text }),
            waits: Waits::new(now),
            record: Record::default(),
            missed_requests: AtomicU64::new(0),
            missed_denials: AtomicU64::new(0),
        }
    }

    /// Looks at a request and what its limits said. Their keys are `write`'s to write, by their place.
    pub(crate) fn look<'a>(
        &self,
        looked: Looked,
        said: impl Iterator<Item = Said<'a>> + Clone,
        write: impl Fn(usize, &mut String),
    ) {
        self.record.tell_of(looked.now, looked.denials as u32, Ruling::Denied, &said, &write);
        let (mut kept, requests, denials) = self.weigh(looked);
        let (mut told, mut early) = (0, 0);
        for Said { place, series, mode, taken } in said {
            let (Some((key, _)), Some(decision)) = (taken.counted(), taken.decision()) else {
                continue;
            };
            let is_denied = mode == Mode::Enforce && !decision.is_allowed();
            if looked.requests == 0 && !is_denied {
                continue;
            }
            let now = looked.now;
            let wait = decision.retry_after().filter(|_| is_denied);
            let came = self.waits.see(key, now, wait);
            let used = used(&decision);
            if looked.requests > 0 {
                series.look(now, looked.requests, &decision, used);
            }
            let is_early = is_denied && came == Came::Early;
            if is_early {
                series.count_early(looked.denials);
            }
            let denials = if is_denied { denials } else { 0 };
            let its_early = if is_early { denials } else { 0 };
            early = early.max(its_early);
            told = told.max(if wait.is_some() { denials } else { 0 });
            if let Some(kept) = &mut kept {
                let seen =
                    Seen { key, now, decision, requests, denials, early: its_early, came, used };
                kept.see(&seen, |text| write(place, text));
            }
        }
        if let Some(kept) = &mut kept {
            kept.slices.present.told += told;
            kept.slices.present.early += early;
        }
    }

    /// What a request counts for, with those that were missed; or lets the next one count for it.
    fn weigh(&self, looked: Looked) -> (Option<MutexGuard<'_, Kept>>, u64, u64) {
        let Looked { now, mut requests, mut denials, .. } = looked;
        let order = Ordering::Relaxed;
        let mut kept = match self.kept.try_lock() {
            Ok(kept) => kept,
            Err(TryLockError::Poisoned(kept)) => kept.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.missed_requests.fetch_add(requests, order);
                self.missed_denials.fetch_add(denials, order);
                return (None, requests, denials);
            }
        };
        if requests > 0 {
            requests += self.missed_requests.swap(0, order);
        }
        if denials > 0 {
            denials += self.missed_denials.swap(0, order);
        }
        kept.slices.go_on(now);
        kept.slices.present.requests += requests;
        kept.slices.present.denied += denials;
        (Some(kept), requests, denials)
    }

    /// What was counted in a span of time, and how long that is so far.
    fn tell(&self, span: Span, now: Timestamp) -> (Slice, Micros) {
        let (slices, period) = self.slices(span, now);
        // Not with the lock held: it takes a while.
        (Slice::merged(&slices), period)
    }

    /// The same in parts.
    fn slices(&self, span: Span, now: Timestamp) -> (Vec<Arc<Slice>>, Micros) {
        let mut kept = self.kept();
        kept.slices.advance(now);
        kept.slices.tell(span)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn see(&mut self, seen: &Seen, write: impl FnOnce(&mut String)) {
        let &Seen { key, now, requests, denials, early, used, .. } = seen;
        let present = &mut self.slices.present;
        let (mut write, text) = (Some(write), &mut self.text);
        let mut shown = |to: &mut String| {
            if let Some(write) = write.take() {
                text.clear();
                write(text);
                cut(text);
            }
            // No more room than the longest takes.
            to.reserve_exact(text.len());
            to.push_str(text);
        };
        if requests > 0 {
            let counter = present.busiest.count(key, requests, now, &mut shown);
            counter.used += u64::from(used) * requests;
            counter.looks = counter.looks.saturating_add(1);
        }
        if let Some(counter) = present.busiest.get_mut(key) {
            counter.other += denials;
            counter.came(seen.came, early);
        }
        if denials > 0 {
            present.most_denied.count(key, denials, now, &mut shown);
        }
        if let Some(counter) = present.most_denied.get_mut(key) {
            counter.other += requests;
            counter.came(seen.came, early);
        }
        self.recent.add(key, now, &seen.decision);
    }
}

impl Counter {
    fn came(&mut self, came: Came, early: u64) {
        self.early += early;
        self.has_waited |= came == Came::InTime;
    }

    fn obeys(&self, denied: u64) -> Option<bool> {
        let is_early = self.early > EARLY_FORGIVEN && self.early * 10 > denied;
        (self.early > 0 || self.has_waited).then_some(!is_early)
    }
}

/// The share of a limit that is in use after a decision, in millionths.
pub(crate) fn used(decision: &Decision) -> u32 {
    if !decision.is_allowed() || decision.limit == 0 {
        return 1_000_000;
    }
    let left = u64::from(decision.remaining.min(decision.limit));
    (1_000_000 - left * 1_000_000 / u64::from(decision.limit)) as u32
}

/// The name of a key's limit, and its values.
fn parts(text: &str) -> (&str, Option<&str>) {
    text.split_once(':').map_or((text, None), |(limit, values)| (limit, Some(values)))
}

/// What is told of a summary, of which `of` says how many requests and denials a counter means.
fn frequent(
    (slice, period): &(Slice, Micros),
    summary: &Summary,
    of: impl Fn(&Counter) -> (u64, u64),
) -> Frequent {
    let mut limits: HashMap<&str, Vec<&str>> = HashMap::new();
    for counter in slice.busiest.counters.iter().chain(&slice.most_denied.counters) {
        if let (limit, Some(values)) = parts(&counter.text) {
            let limits = limits.entry(values).or_default();
            if !limits.contains(&limit) {
                limits.push(limit);
            }
        }
    }
    let told = |counter: &Counter| {
        let (requests, denied) = of(counter);
        let (limit, values) = parts(&counter.text);
        let mut limits = values.and_then(|values| limits.get(values)).map_or_else(
            || vec![limit.to_owned()],
            |list| list.iter().map(|it| (*it).to_owned()).collect(),
        );
        limits.sort_unstable();
        FrequentKey {
            key: counter.text.to_string(),
            requests,
            denied,
            error: counter.error,
            first_seen: counter.first_seen,
            limits,
            early: counter.early.min(denied),
            obeys: counter.obeys(denied),
        }
    };
    let mut counters: Vec<&Counter> = summary.counters.iter().collect();
    counters.sort_by(|one, other| (other.weight, &one.text).cmp(&(one.weight, &other.text)));
    let keys = counters.into_iter().map(told).collect();
    Frequent { period: *period, requests: slice.requests, denied: slice.denied, keys }
}

impl Limiter {
    /// The keys that sent most requests, of each limit that they were under. What is told is of a sample,
    /// each request of which stands for as many as were not looked at.
    ///
    /// ```
    /// use tollgate::{Limiter, Request, observe::Span};
    ///
    /// let limiter = Limiter::from_yaml("limits: [{name: api, per: [user], rate: 1/minute}]")?;
    /// limiter.check(&Request::new(&[("user", b"anna")]));
    /// limiter.check(&Request::new(&[("user", b"anna")]));
    /// assert_eq!(limiter.busiest(Span::Minute).keys[0].key, "api:anna");
    /// assert_eq!(limiter.most_denied(Span::Minute).keys[0].denied, 1);
    /// # Ok::<(), tollgate::LimiterError>(())
    /// ```
    pub fn busiest(&self, span: Span) -> Frequent {
        let told = self.told(span);
        let of = |counter: &Counter| (counter.weight, counter.other.min(counter.weight));
        frequent(&told, &told.0.busiest, of)
    }

    /// The keys that were denied most often.
    pub fn most_denied(&self, span: Span) -> Frequent {
        let told = self.told(span);
        // The counter of a denied key knows nothing of what the key sent before.
        let sent = told.0.busiest.counters.iter().map(|counter| (counter.key, counter.weight));
        let sent: HashMap<u64, u64> = sent.collect();
        let of = |counter: &Counter| {
            let requests = sent.get(&counter.key).copied().unwrap_or(counter.other);
            (requests.max(counter.weight), counter.weight)
        };
        frequent(&told, &told.0.most_denied, of)
    }

    /// What was counted in a span of time, with keys as they may be shown now.
    fn told(&self, span: Span) -> (Slice, Micros) {
        let (mut slice, period) = self.observer.tell(span, self.now());
        let Slice { busiest, most_denied, .. } = &mut slice;
        shown::rewrite(self, busiest.counters.iter_mut().chain(&mut most_denied.counters));
        (slice, period)
    }

    /// Whether clients come back before the wait is over that they were told.
    pub fn storm(&self) -> Storm {
        let (slices, _) = self.observer.slices(Span::Minute, self.now());
        // Who was told nothing cannot come too early, and must not hide those who do.
        let denied: u64 = slices.iter().map(|slice| slice.told).sum();
        let early: u64 = slices.iter().map(|slice| slice.early).sum();
        // Of the lists only this one: whoever collects metrics asks often.
        let most_denied = Summary::merged(slices.iter().map(|slice| &slice.most_denied));
        let mut keys = most_denied.counters;
        keys.retain(|counter| counter.early > 0);
        keys.sort_by(|one, other| (other.early, &one.text).cmp(&(one.early, &other.text)));
        keys.truncate(STORM_KEYS_MAX);
        shown::rewrite(self, keys.iter_mut());
        Storm {
            is_storm: early >= STORM_EARLY_MIN && early * 2 >= denied,
            denied,
            early,
            keys: keys.into_iter().map(|counter| counter.text.to_string()).collect(),
        }
    }

    /// What somebody who minds the limits should know.
    pub fn advice(&self) -> Vec<Advice> {
        let now = self.now();
        let [minute, hour] = [Span::Minute, Span::Hour].map(|span| self.told(span));
        let mut advice = Advice::of_spike(&minute, &hour);
        advice.extend(Advice::of_riders(&hour));
        advice.extend(Advice::of_limits(&self.in_force(), now));
        advice
    }

    /// The last decisions of a key that were looked at, the last one first. Of a key that has not come
    /// up for long there are none.
    pub fn recent(&self, key: &KeyBuf) -> Vec<Recent> {
        let key = Key { limit: key.limit(), values: &key.values() };
        let number = self.store().key_number(&key);
        self.observer.kept().recent.tell(number)
    }
}

#[cfg(test)]
mod tests;
