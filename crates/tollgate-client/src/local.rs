//! A limit of our own, in this process alone.

use std::time::SystemTime;

use tokio::time::Instant;
use tollgate_core::{
    ChargeId, Cost, Counter, Decision, Limit, Log, Logged, Micros, Outcome, Timestamp, Word,
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
    /// Names the next charge that [`take`](Self::take) makes.
    next: u64,
    /// When it began, by both clocks: windows are counted from midnight, but a date may jump.
    began: Instant,
    began_at: Timestamp,
}

#[derive(Debug)]
enum State {
    Counter(Counter, Word),
    Logged(Logged, Log),
}

impl Local {
    pub(crate) fn new(limit: Limit, began: Instant, date: SystemTime) -> Self {
        let since_1970 = date.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let state = match limit {
            Limit::Counter(counter) => State::Counter(counter, Word::VACANT),
            Limit::Logged(limit) => State::Logged(limit, Log::default()),
        };
        let began_at = Timestamp::from_micros(Micros::from(since_1970).as_micros());
        Self { state, next: 0, began, began_at }
    }

    /// Takes so much, or tells when that may be possible. What counts those under way gives out a slot.
    pub(crate) fn take(&mut self, cost: Cost, now: Instant) -> Result<Option<ChargeId>, When> {
        let id = ChargeId(self.next);
        self.next += 1;
        let before = match self.state {
            State::Counter(_, word) => word,
            State::Logged(..) => Word::VACANT,
        };
        let decision = self.decide(cost, id, now);
        let then = |wait: Micros| When::Then(now + wait.into());
        match decision.outcome {
            Outcome::Allowed { delay } if delay.is_zero() => {
                Ok(self.counts_those_under_way().then_some(id))
            }
            Outcome::Allowed { delay } => {
                // Who is to leave later has not left: it asks again then.
                if let State::Counter(_, word) = &mut self.state {
                    *word = before;
                }
                Err(then(delay))
            }
            Outcome::Denied { retry_after } => {
                Err(then(retry_after.unwrap_or(decision.reset_after)))
            }
            Outcome::TooCostly => Err(When::Never),
        }
    }

    /// Takes so much if it is there; `id` names the charge.
    pub(crate) fn decide(&mut self, cost: Cost, id: ChargeId, now: Instant) -> Decision {
        let at = self.at(now);
        match &mut self.state {
            State::Counter(counter, word) => {
                let next = counter.decide(*word, at, cost);
                *word = next.word;
                next.decision
            }
            State::Logged(limit, log) => {
                let next = limit.decide(log, at, cost, id);
                log.apply(next.change);
                next.decision
            }
        }
    }

    pub(crate) fn counts_those_under_way(&self) -> bool {
        matches!(self.state, State::Logged(Logged::Concurrency(_), _))
    }

    /// Gives all of a slot back; false if it was not held.
    pub(crate) fn give_back(&mut self, slot: ChargeId, now: Instant) -> bool {
        let at = self.at(now);
        match &mut self.state {
            State::Counter(..) => false,
            State::Logged(limit, log) => limit.give_back(log, at, slot, u32::MAX) > 0,
        }
    }

    /// Whether it behaves as a new one would.
    pub(crate) fn is_vacant(&self, now: Instant) -> bool {
        self.vacant_at() <= self.at(now)
    }

    /// From when on it does.
    pub(crate) fn vacant_at(&self) -> Timestamp {
        match &self.state {
            State::Counter(counter, word) => counter.vacant_at(*word),
            State::Logged(limit, log) => limit.vacant_at(log),
        }
    }

    fn at(&self, now: Instant) -> Timestamp {
        self.began_at.plus(now.saturating_duration_since(self.began).into())
    }
}

/// What only the fallback of a server's client asks for.
#[cfg(feature = "server")]
impl Local {
    /// Starts the lease of a slot anew; false if it was not held.
    pub(crate) fn renew(&mut self, slot: ChargeId, now: Instant) -> bool {
        let at = self.at(now);
        match &mut self.state {
            State::Counter(..) => false,
            State::Logged(limit, log) => limit.renew(log, at, slot),
        }
    }

    /// What it would say to one unit more.
    pub(crate) fn peek(&self, now: Instant) -> Decision {
        let at = self.at(now);
        match &self.state {
            State::Counter(counter, word) => counter.decide(*word, at, Cost::ONE).decision,
            State::Logged(limit, log) => limit.decide(log, at, Cost::ONE, ChargeId(0)).decision,
        }
    }
}
