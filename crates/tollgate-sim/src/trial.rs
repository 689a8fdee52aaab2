//! One limit, one key, and the arrivals it has to answer.
//!
//! The clock is the arrivals' own: it stands at the arrival being decided and goes on with the
//! next. Denied clients may come back, so arrivals wait in a queue ordered by time, and those of
//! one moment keep the order in which they were sent.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use tollgate_core::{
    Algorithm, Align, ChargeId, Cost, Counter, Decision, Limit, Log, Logged, Micros, Outcome,
    Quota, QuotaError, Timestamp, Word,
};

use crate::traffic::Arrival;

/// What the memory store keeps of a key: 16 bytes that tell it from others, 16 of state. A logged
/// limit has the same, pointing to its log.
const SLOT_BYTES: u64 = 32;

/// One entry of a log: when, which charge, how many units.
const ENTRY_BYTES: u64 = 24;

/// A limit, and what must be known besides it to tell what it let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    limit: Limit,
    window: Micros,
    work: Micros,
}

/// What one limit answered, and what that comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// How the limit counts.
    pub algorithm: Algorithm,
    /// Units an idle caller could take at once; of a concurrency limit, its slots.
    pub capacity: u32,
    /// How long each request works, and so holds its slot of a concurrency limit.
    pub work: Micros,
    /// Every request with its answer, in the order of arrival.
    pub events: Vec<Event>,
    /// Requests let through, at once or later.
    pub admitted: u32,
    /// Requests turned away.
    pub denied: u32,
    /// Requests let through later; they are admitted too.
    pub delayed: u32,
    /// The most that was let through in any stretch as long as the window, by the time of release.
    pub most_in_any_window: u32,
    /// When the first of those stretches begins.
    pub busiest_from: Timestamp,
    /// What the memory store holds for this key at the busiest moment.
    pub bytes_per_key: u64,
}

/// One request and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When it came.
    pub at: Timestamp,
    /// Who sent it.
    pub client: u32,
    /// The answer.
    pub verdict: Verdict,
}

/// What becomes of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on at once.
    Allowed,
    /// It goes on later.
    Delayed {
        /// How much later.
        delay: Micros,
    },
    /// It is turned away.
    Denied {
        /// The shortest wait that works; `None` when none is known.
        retry_after: Option<Micros>,
    },
}

impl Event {
    /// When the request goes on, if it does.
    pub fn released_at(&self) -> Option<Timestamp> {
        match self.verdict {
            Verdict::Allowed => Some(self.at),
            Verdict::Delayed { delay } => Some(self.at.plus(delay)),
            Verdict::Denied { .. } => None,
        }
    }
}

impl From<Decision> for Verdict {
    fn from(decision: Decision) -> Self {
        match decision.outcome {
            Outcome::Allowed { delay } if delay.is_zero() => Self::Allowed,
            Outcome::Allowed { delay } => Self::Delayed { delay },
            Outcome::Denied { retry_after } => Self::Denied { retry_after },
            Outcome::TooCostly => Self::Denied { retry_after: None },
        }
    }
}

impl Trial {
    /// A limit whose admissions are counted over stretches of `window`.
    pub const fn new(limit: Limit, window: Micros) -> Self {
        Self { limit, window, work: Micros::ZERO }
    }

    /// The same, where each request works for so long: that is how long it holds its slot of a
    /// concurrency limit.
    pub const fn with_work(self, work: Micros) -> Self {
        Self { work, ..self }
    }

    /// The limit by which an algorithm enforces a quota. `burst` is what a token bucket holds and
    /// how many a leaky bucket queues.
    ///
    /// A concurrency limit knows no rate. It gets half as many slots as the quota has units,
    /// rounded up, and requests that work for so long that full slots carry just the quota's rate:
    /// for 10 a minute, 5 slots and half a minute.
    pub fn of(algorithm: Algorithm, quota: Quota, burst: u32) -> Result<Self, QuotaError> {
        let (count, period) = (quota.count(), quota.period());
        let slots = count.div_ceil(2);
        let limit = match algorithm {
            Algorithm::SlidingWindow => Limit::sliding_window(quota),
            Algorithm::TokenBucket => Limit::token_bucket(quota, burst)?,
            Algorithm::LeakyBucket => Limit::leaky_bucket(quota, burst, None)?,
            Algorithm::FixedWindow => Limit::fixed_window(quota, Align::Clock),
            Algorithm::SlidingLog => Limit::sliding_log(quota)?,
            // No work takes longer than a period, so no lease ends before its work does.
            Algorithm::Concurrency => Limit::concurrency(slots, period)?,
        };
        let work = u64::from(slots) * period.as_micros() / u64::from(count.max(1));
        Ok(Self::new(limit, period).with_work(Micros::new(work)))
    }

    /// Answers these arrivals; nobody comes back.
    pub fn replay(&self, arrivals: &[Arrival]) -> Lane {
        self.play(arrivals, |_| None)
    }

    /// Answers these arrivals, and those of clients that come back because of an answer.
    pub(crate) fn play(
        &self,
        arrivals: &[Arrival],
        comes_back: impl Fn(&Event) -> Option<Timestamp>,
    ) -> Lane {
        let mut waiting: BinaryHeap<Reverse<(Timestamp, usize, u32)>> = BinaryHeap::new();
        waiting.extend(
            arrivals.iter().enumerate().map(|(turn, sent)| Reverse((sent.at, turn, sent.client))),
        );
        let mut turns = arrivals.len();
        let mut key = KeyState::new(self);
        let mut events = Vec::with_capacity(arrivals.len());
        while let Some(Reverse((at, _, client))) = waiting.pop() {
            let event = Event { at, client, verdict: key.decide(at).into() };
            if let Some(back) = comes_back(&event) {
                waiting.push(Reverse((back, turns, client)));
                turns += 1;
            }
            events.push(event);
        }
        self.lane(events, key.most_bytes)
    }

    fn lane(&self, events: Vec<Event>, bytes_per_key: u64) -> Lane {
        let count = |wanted: fn(&Verdict) -> bool| {
            events.iter().filter(|event| wanted(&event.verdict)).count() as u32
        };
        let denied = count(|verdict| matches!(verdict, Verdict::Denied { .. }));
        let delayed = count(|verdict| matches!(verdict, Verdict::Delayed { .. }));
        let mut releases: Vec<Timestamp> = events.iter().filter_map(Event::released_at).collect();
        releases.sort_unstable();
        let (busiest_from, most_in_any_window) = busiest(&releases, self.window);
        Lane {
            algorithm: self.limit.algorithm(),
            capacity: self.limit.capacity(),
            work: self.work,
            admitted: releases.len() as u32,
            denied,
            delayed,
            most_in_any_window,
            busiest_from,
            bytes_per_key,
            events,
        }
    }
}

/// Where the fullest stretch as long as `window` begins, and how many moments it holds. A moment
/// exactly one window after another is no longer in the same stretch.
fn busiest(moments: &[Timestamp], window: Micros) -> (Timestamp, u32) {
    let mut fullest = (Timestamp::EPOCH, 0);
    let mut first = 0;
    for (last, &moment) in moments.iter().enumerate() {
        while moments[first].plus(window) <= moment {
            first += 1;
        }
        let held = (last + 1 - first) as u32;
        if held > fullest.1 {
            fullest = (moments[first], held);
        }
    }
    fullest
}

/// What is remembered of the one key, and of the work it let through.
struct KeyState<'a> {
    trial: &'a Trial,
    state: State,
    /// Work under way, in the order in which it ends: all of it takes equally long.
    in_work: VecDeque<(Timestamp, ChargeId)>,
    charges: u64,
    most_bytes: u64,
}

enum State {
    Word(Counter, Word),
    Log(Logged, Log),
}

impl<'a> KeyState<'a> {
    fn new(trial: &'a Trial) -> Self {
        let state = match trial.limit {
            Limit::Counter(counter) => State::Word(counter, Word::VACANT),
            Limit::Logged(logged) => State::Log(logged, Log::default()),
        };
        Self { trial, state, in_work: VecDeque::new(), charges: 0, most_bytes: SLOT_BYTES }
    }

    fn decide(&mut self, now: Timestamp) -> Decision {
        self.release(now);
        match &mut self.state {
            State::Word(counter, word) => {
                let transition = counter.decide(*word, now, Cost::ONE);
                *word = transition.word;
                transition.decision
            }
            State::Log(logged, log) => {
                let id = ChargeId(self.charges);
                let transition = logged.decide(log, now, Cost::ONE, id);
                log.apply(transition.change);
                self.charges += 1;
                if matches!(logged, Logged::Concurrency(_)) && transition.decision.is_allowed() {
                    self.in_work.push_back((now.plus(self.trial.work), id));
                }
                self.most_bytes = self.most_bytes.max(SLOT_BYTES + ENTRY_BYTES * log.len() as u64);
                transition.decision
            }
        }
    }

    /// Gives back the slots of work that has ended.
    fn release(&mut self, now: Timestamp) {
        let State::Log(logged, log) = &mut self.state else { return };
        while let Some((_, id)) = self.in_work.pop_front_if(|(end, _)| *end <= now) {
            logged.give_back(log, now, id, Cost::ONE.units());
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate_core::{Micros, Timestamp};

    use super::busiest;

    fn check(seconds: &[u64], window_secs: u64, expected: (u64, u32)) {
        let at = |second: &u64| Timestamp::EPOCH.plus(Micros::from_secs(*second));
        let moments: Vec<Timestamp> = seconds.iter().map(at).collect();
        let (from, most) = busiest(&moments, Micros::from_secs(window_secs));
        assert_eq!((from, most), (at(&expected.0), expected.1), "of {seconds:?}");
    }

    #[test]
    fn the_busiest_stretch_excludes_what_is_exactly_one_window_later() {
        check(&[], 60, (0, 0));
        check(&[5], 60, (5, 1));
        check(&[0, 60], 60, (0, 1));
        check(&[0, 59], 60, (0, 2));
        check(&[0, 50, 61, 62, 120], 60, (50, 3));
    }
}
