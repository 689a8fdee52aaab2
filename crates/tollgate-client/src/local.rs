//! A limit of our own, in this process alone.

use std::time::SystemTime;

use tokio::time::Instant;
use tollgate_core::{
    ChargeId, Cost, Counter, Limit, Log, Logged, Micros, Outcome, Timestamp, Word,
};

/// When something may be possible that is not possible now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Now,
    /// Not before then, unless there is news.
    Then(Instant),
    /// When one of those under way has ended.
    Later,
    Never,
}

#[derive(Debug)]
pub(crate) struct Local {
    state: State,
    /// When it began, by both clocks: windows are counted from midnight, but a date may jump.
    began: Instant,
    began_at: Timestamp,
}

#[derive(Debug)]
enum State {
    Counter(Counter, Word),
    Logged { limit: Logged, log: Log, next: u64 },
}

impl Local {
    pub(crate) fn new(limit: Limit, began: Instant, date: SystemTime) -> Self {
        let since_1970 = date.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let state = match limit {
            Limit::Counter(counter) => State::Counter(counter, Word::VACANT),
            Limit::Logged(limit) => State::Logged { limit, log: Log::default(), next: 0 },
        };
        let began_at = Timestamp::from_micros(Micros::from(since_1970).as_micros());
        Self { state, began, began_at }
    }

    /// Takes so much, or tells when that may be possible. What counts those under way gives out a slot.
    pub(crate) fn take(&mut self, cost: Cost, now: Instant) -> Result<Option<ChargeId>, When> {
        let at = self.at(now);
        let (decision, slot) = match &mut self.state {
            State::Counter(counter, word) => {
                let next = counter.decide(*word, at, cost);
                // Who is to leave later has not left: it asks again then.
                if next.decision.is_allowed() && next.decision.delay().is_zero() {
                    *word = next.word;
                }
                (next.decision, None)
            }
            State::Logged { limit, log, next } => {
                let id = ChargeId(*next);
                let transition = limit.decide(log, at, cost, id);
                log.apply(transition.change);
                *next += 1;
                let is_slot = matches!(limit, Logged::Concurrency(_));
                (transition.decision, is_slot.then_some(id))
            }
        };
        let then = |wait: Micros| When::Then(now + wait.into());
        match decision.outcome {
            Outcome::Allowed { delay } if delay.is_zero() => Ok(slot),
            Outcome::Allowed { delay } => Err(then(delay)),
            Outcome::Denied { retry_after } => {
                Err(then(retry_after.unwrap_or(decision.reset_after)))
            }
            Outcome::TooCostly => Err(When::Never),
        }
    }

    pub(crate) fn counts_those_under_way(&self) -> bool {
        matches!(self.state, State::Logged { limit: Logged::Concurrency(_), .. })
    }

    pub(crate) fn give_back(&mut self, slot: ChargeId, now: Instant) {
        let at = self.at(now);
        if let State::Logged { limit, log, .. } = &mut self.state {
            limit.give_back(log, at, slot, 1);
        }
    }

    /// Whether it behaves as a new one would.
    pub(crate) fn is_vacant(&self, now: Instant) -> bool {
        let vacant_at = match &self.state {
            State::Counter(counter, word) => counter.vacant_at(*word),
            State::Logged { limit, log, .. } => limit.vacant_at(log),
        };
        vacant_at <= self.at(now)
    }

    fn at(&self, now: Instant) -> Timestamp {
        self.began_at.plus(now.saturating_duration_since(self.began).into())
    }
}
