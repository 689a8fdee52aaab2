//! What a store should answer: the pure functions of the core over a map of states, one request at
//! a time.

use std::collections::HashMap;

use tollgate_core::{
    ChargeId, Cost, Counter, Decision, Limit, Log, Logged, Outcome, Timestamp, Word,
};
use tollgate_store::Mode;

use crate::support::Order;

/// A store that is slow, unbounded and obviously right.
#[derive(Default)]
pub(crate) struct Model {
    states: HashMap<u64, State>,
    charges: u64,
}

/// What is kept of a key, and the limit it was written under.
#[derive(Clone, Debug)]
enum State {
    Counter(Counter, Word),
    Log(Logged, Log),
}

/// What a request is told by one of its limits, and the charge if one was made that can be given
/// back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) decision: Decision,
    pub(crate) charged: Option<Charged>,
}

/// Names a charge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charged {
    key: u64,
    limit: Limit,
    what: What,
}

impl Charged {
    /// Whether it is of a log, which knows it by name.
    pub(crate) fn is_logged(&self) -> bool {
        matches!(self.what, What::Logged(..))
    }
}

#[derive(Clone, Copy, Debug)]
enum What {
    Counter(tollgate_core::Receipt),
    Logged(ChargeId, Cost),
}

impl Model {
    /// Takes all of `orders`, or none if one that is enforced is denied.
    pub(crate) fn take(&mut self, orders: &[Order], now: Timestamp) -> Vec<Answer> {
        let before = orders.iter().map(|order| (order.key, self.states.get(&order.key).cloned()));
        let before: Vec<(u64, Option<State>)> = before.collect();
        let mut answers: Vec<Answer> =
            orders.iter().map(|order| self.charge(order, order.cost, now)).collect();
        let denies = |(order, answer): (&Order, &Answer)| {
            order.mode == Mode::Enforce && !answer.decision.is_allowed()
        };
        let is_denied = orders.iter().zip(&answers).any(denies);
        if is_denied {
            before.into_iter().for_each(|(key, state)| self.put_back(key, state));
        }
        for (order, answer) in orders.iter().zip(&mut answers) {
            let counter = match order.limit.limit() {
                Limit::Counter(counter) if order.count_denied => Some(counter),
                _ => None,
            };
            match (counter, answer.decision.outcome) {
                (Some(counter), Outcome::Denied { .. }) if order.cost != Cost::PEEK => {
                    answer.decision = self.punish(order, counter, now);
                }
                _ if !is_denied => {}
                (counter, Outcome::Allowed { .. }) => {
                    let cost = if counter.is_some() { order.cost } else { Cost::PEEK };
                    let outcome = answer.decision.outcome;
                    let figures = self.charge(order, cost, now).decision;
                    *answer = Answer { decision: Decision { outcome, ..figures }, charged: None };
                }
                // Time alone still does its work: what has ended is dropped, and a time too far
                // ahead is brought back.
                _ => drop(self.charge(order, Cost::PEEK, now)),
            }
        }
        answers
    }

    /// Gives a charge back; false if nothing was left of it.
    pub(crate) fn refund(&mut self, charged: &Charged, now: Timestamp) -> bool {
        let Charged { key, limit, what } = *charged;
        match (what, self.states.get_mut(&key)) {
            (What::Counter(mut receipt), Some(State::Counter(old, word)))
                if Limit::Counter(*old).algorithm() == limit.algorithm() =>
            {
                if Limit::Counter(*old) != limit {
                    receipt.debt_before = 0;
                }
                let before = std::mem::replace(word, old.refund(*word, now, &receipt));
                *word != before
            }
            (What::Logged(id, cost), Some(State::Log(old, log)))
                if Limit::Logged(*old).algorithm() == limit.algorithm() =>
            {
                old.give_back(log, now, id, cost.units()) > 0
            }
            _ => false,
        }
    }

    /// Starts a hold anew; false if it has ended.
    pub(crate) fn renew(&mut self, charged: &Charged, now: Timestamp) -> bool {
        let Charged { key, limit, what } = *charged;
        match (what, self.states.get_mut(&key)) {
            (What::Logged(id, _), Some(State::Log(old, log)))
                if Limit::Logged(*old).algorithm() == limit.algorithm() =>
            {
                old.renew(log, now, id)
            }
            _ => false,
        }
    }

    /// Forgets a key; false if it is as good as never seen.
    pub(crate) fn reset(&mut self, key: u64, now: Timestamp) -> bool {
        let vacant_at = match self.states.remove(&key) {
            None => return false,
            Some(State::Counter(counter, word)) => counter.vacant_at(word),
            Some(State::Log(logged, log)) => logged.vacant_at(&log),
        };
        // The end of time stands for every moment that is later than can be told.
        vacant_at > now || vacant_at == Timestamp::END
    }

    fn put_back(&mut self, key: u64, state: Option<State>) {
        match state {
            Some(state) => self.states.insert(key, state),
            None => self.states.remove(&key),
        };
    }

    fn charge(&mut self, order: &Order, cost: Cost, now: Timestamp) -> Answer {
        let (key, limit) = (order.key, *order.limit.limit());
        match limit {
            Limit::Counter(counter) => {
                let word = self.word(key, &counter, now);
                let transition = counter.decide(word, now, cost);
                let is_charged = transition.receipt.cost != Cost::PEEK;
                // What was carried over is written only with a charge.
                let is_carried = matches!(
                    self.states.get(&key),
                    Some(State::Counter(old, _)) if *old != counter
                );
                if is_charged || !is_carried {
                    self.states.insert(key, State::Counter(counter, transition.word));
                }
                let what = What::Counter(transition.receipt);
                let charged = is_charged.then_some(Charged { key, limit, what });
                Answer { decision: transition.decision, charged }
            }
            Limit::Logged(logged) => {
                self.charges += 1;
                let id = ChargeId(self.charges);
                let mut log = self.log(key, &logged, now);
                let transition = logged.decide(&log, now, cost, id);
                log.apply(transition.change);
                self.states.insert(key, State::Log(logged, log));
                let is_charged = transition.decision.is_allowed() && cost != Cost::PEEK;
                let what = What::Logged(id, cost);
                let charged = is_charged.then_some(Charged { key, limit, what });
                Answer { decision: transition.decision, charged }
            }
        }
    }

    fn punish(&mut self, order: &Order, counter: &Counter, now: Timestamp) -> Decision {
        let word = self.word(order.key, counter, now);
        let word = counter.punish(word, now, order.cost);
        self.states.insert(order.key, State::Counter(*counter, word));
        counter.decide(word, now, order.cost).decision
    }

    fn word(&self, key: u64, counter: &Counter, now: Timestamp) -> Word {
        match self.states.get(&key) {
            Some(State::Counter(old, word)) if old == counter => *word,
            Some(State::Counter(old, word)) => counter.carry_over(old, *word, now),
            Some(State::Log(..)) | None => Word::VACANT,
        }
    }

    fn log(&self, key: u64, logged: &Logged, now: Timestamp) -> Log {
        match self.states.get(&key) {
            Some(State::Log(old, log)) => {
                let mut log = log.clone();
                logged.carry_over(old, &mut log, now);
                log
            }
            Some(State::Counter(..)) | None => Log::default(),
        }
    }
}
