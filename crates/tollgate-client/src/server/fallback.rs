//! Who decides when the server does not.

mod counted;

use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;
use tollgate_core::{Cost, Limit, Outcome};

use self::counted::{Counted, Slot};
use super::ServerError;
use super::wire::Verdict;
use crate::bounds::UNWILLING_TOLD_EVERY;
use crate::clock;
use crate::events;

/// Who decides when the server does not answer.
#[derive(Clone, Debug)]
pub enum Fallback {
    /// Everything is allowed.
    Allow,
    /// Nothing is allowed.
    Deny,
    /// A limit of this process. With so many processes as there are, so much more is admitted: make it
    /// that much smaller.
    ///
    /// It counts 65,536 keys at a time. When there is no room for another, one is forgotten that has something
    /// left; where nobody has, who comes new is denied. Slots of a concurrency limit are released as
    /// those of the server are; over gRPC, where nothing is released, they end with their lease.
    Limit {
        /// How much.
        limit: Limit,
        /// For each value of these attributes; none, and it is one for all.
        per: Vec<String>,
    },
}

/// A fallback and what it remembers.
#[derive(Debug)]
pub(super) struct Local {
    decides: Decides,
    /// When it was last said aloud that the server does not decide.
    told_at: Mutex<Option<Instant>>,
}

#[derive(Debug)]
enum Decides {
    Always(bool),
    Limit { counted: Box<Mutex<Counted>>, per: Vec<String> },
}

impl Local {
    pub(super) fn new(fallback: Fallback) -> Self {
        let decides = match fallback {
            Fallback::Allow => Decides::Always(true),
            Fallback::Deny => Decides::Always(false),
            Fallback::Limit { limit, per } => {
                let counted = Counted::new(limit, clock::now(), clock::date());
                Decides::Limit { counted: Box::new(Mutex::new(counted)), per }
            }
        };
        Self { decides, told_at: Mutex::new(None) }
    }

    /// Decides about a request of which `value_of` tells the attributes, since the server did not.
    pub(super) fn decide<'a>(
        &self,
        error: &ServerError,
        value_of: impl Fn(&str) -> Option<&'a str>,
        cost: u32,
        now: Instant,
    ) -> Verdict {
        let why = error.to_string();
        events::server_away(&why, self.is_to_be_told(now));
        match &self.decides {
            Decides::Always(is_allowed) => Verdict::of_fallback(*is_allowed, why),
            Decides::Limit { counted, per } => {
                let mut counted = locked(counted);
                let values = per.iter().map(|name| value_of(name));
                let (outcome, slot) = counted.decide(values, Cost::new(cost), now);
                let verdict = Verdict::of_fallback(outcome.is_allowed(), why);
                let lease = slot.map(|slot| slot.to_string());
                match outcome {
                    Outcome::Allowed { delay } => Verdict { delay: delay.into(), lease, ..verdict },
                    Outcome::Denied { retry_after } => {
                        Verdict { retry_after: retry_after.map(Into::into), ..verdict }
                    }
                    Outcome::TooCostly => verdict,
                }
            }
        }
    }

    /// Gives the slots of a lease back, if it is one of the fallback's; false if they are not held any more.
    pub(super) fn release(&self, lease: &str, now: Instant) -> Option<bool> {
        self.counted_with(lease, |counted, slot| counted.release(slot, now))
    }

    /// Starts a lease anew, if it is one of the fallback's; false if it has ended.
    pub(super) fn renew(&self, lease: &str, now: Instant) -> Option<bool> {
        self.counted_with(lease, |counted, slot| counted.renew(slot, now))
    }

    fn counted_with(
        &self,
        lease: &str,
        act: impl FnOnce(&mut Counted, Slot) -> bool,
    ) -> Option<bool> {
        let slot = lease.parse().ok()?;
        match &self.decides {
            Decides::Always(_) => Some(false),
            Decides::Limit { counted, .. } => Some(act(&mut locked(counted), slot)),
        }
    }

    fn is_to_be_told(&self, now: Instant) -> bool {
        let mut told_at = locked(&self.told_at);
        let is_due = told_at.is_none_or(|told_at| told_at + UNWILLING_TOLD_EVERY <= now);
        if is_due {
            *told_at = Some(now);
        }
        is_due
    }
}

fn locked<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
