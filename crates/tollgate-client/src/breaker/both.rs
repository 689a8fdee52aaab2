//! The two circuits of a request: of whom it asks, and of who asks.
//!
//! A host that fails does so for everybody. One that refuses works, and refuses a caller: whoever has another key, or
//! another budget, is not held up by that. So refusals are counted caller by caller, from a caller's first one on.

use tokio::time::Instant;

use super::circuit::{Circuit, Open, Permit};
use super::{Breaker, Outcome};
use crate::retry::Share;
use crate::whose::Whose;

#[derive(Debug)]
pub(crate) struct Both<'a> {
    breaker: &'a Breaker,
    circuit: Circuit,
    /// Who asks, unless one circuit is for both.
    whose: Option<Whose>,
}

/// A call that was let through by both.
#[derive(Debug)]
pub(crate) struct Permits {
    permit: Permit,
    refusals: Option<Permit>,
}

impl<'a> Both<'a> {
    /// Of a host, and of who asks it.
    pub(crate) fn of(breaker: &'a Breaker, host: &str, whose: Whose) -> Self {
        Self { breaker, circuit: breaker.circuit(host), whose: Some(whose) }
    }

    /// One, under that key, for whatever happens.
    pub(crate) fn one(breaker: &'a Breaker, key: &str) -> Self {
        Self { breaker, circuit: breaker.circuit(key), whose: None }
    }

    pub(crate) fn check_at(&self, now: Instant) -> Result<(), Open> {
        self.circuit.check_at(now)?;
        self.refusals().map_or(Ok(()), |refusals| refusals.check_at(now))
    }

    pub(crate) fn enter_at(&self, now: Instant) -> Result<Permits, Open> {
        let refusals = self.refusals().map(|refusals| refusals.enter_at(now)).transpose()?;
        Ok(Permits { permit: self.circuit.enter_at(now)?, refusals })
    }

    pub(crate) fn leave(&self, permits: Permits, outcome: Outcome, now: Instant) {
        let Permits { permit, refusals } = permits;
        let Some(whose) = self.whose else { return permit.end(outcome, now) };
        let is_refused = outcome == Outcome::Refusal;
        permit.end(if is_refused { Outcome::RefusedCaller } else { outcome }, now);
        match refusals {
            // That a host fails tells nothing of whether it would refuse.
            Some(permit) if outcome == Outcome::Failure => permit.end(Outcome::NotMade, now),
            Some(permit) => permit.end(outcome, now),
            None if is_refused => {
                let refusals = self.breaker.refusals_from_now_on(self.circuit.key(), whose);
                refusals.iter().for_each(|refusals| refusals.was_refused_at(now));
            }
            None => {}
        }
    }

    /// That of the caller, if it was ever refused: perhaps while this request waited, so it is looked for anew.
    fn refusals(&self) -> Option<Circuit> {
        self.breaker.refusals(self.circuit.key(), self.whose?)
    }

    /// Whom it asks: a host, or what circuits go by.
    pub(crate) fn key(&self) -> &str {
        self.circuit.key()
    }

    /// Of the requests to a host, how many may be retries.
    pub(crate) fn share(&self) -> &Share {
        self.circuit.share()
    }
}
