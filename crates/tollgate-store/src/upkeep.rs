//! Forgetting keys nobody uses.
//!
//! A state may be dropped exactly when it is vacant: from then on a new key behaves the same.
//! Dropping earlier hands out a fresh quota, so when memory is full and nothing is vacant, the
//! state that loses least goes, and that of a key at its limit never.

use tollgate_core::{ChargeId, Cost, Limit, Timestamp};

use crate::enrolled::Register;
use crate::fingerprint::Fingerprint;
use crate::logs::{LogNumber, Logs};
use crate::table::Record;

/// What can be told of many states at one moment.
pub(crate) struct Upkeep<'s> {
    pub(crate) limits: &'s Register,
    pub(crate) logs: &'s Logs,
    pub(crate) now: Timestamp,
    /// Keys of the request in hand: they have slots before they have states, and must not push each
    /// other out of them.
    pub(crate) together: &'s [Fingerprint],
}

impl Upkeep<'_> {
    /// Whether a key may be forgotten, if its state allows it.
    pub(crate) fn may_forget(&self, key: Fingerprint) -> bool {
        !self.together.contains(&key)
    }

    /// Whether a state behaves as that of a key never seen.
    pub(crate) fn is_vacant(&self, record: Record) -> bool {
        let vacant_at = match self.limits.get(record.limit) {
            None => return true,
            Some(Limit::Counter(counter)) => counter.vacant_at(record.word),
            Some(Limit::Logged(_)) => LogNumber::vacant_at(record.word),
        };
        // The end of time stands for every moment that is later than can be told.
        vacant_at <= self.now && vacant_at < Timestamp::END
    }

    /// How much is lost by forgetting a state: the share of its limit in use, then the time until
    /// it would be vacant by itself. Nothing can pay for a key at its limit.
    pub(crate) fn loss(&self, record: Record) -> Option<(u64, Timestamp)> {
        let (decision, vacant_at) = match self.limits.get(record.limit) {
            None => return Some((0, Timestamp::EPOCH)),
            Some(Limit::Counter(counter)) => {
                let peek = counter.decide(record.word, self.now, Cost::PEEK);
                (peek.decision, counter.vacant_at(record.word))
            }
            Some(Limit::Logged(logged)) => self.logs.look(LogNumber::of(record.word), |log| {
                let peek = logged.decide(log, self.now, Cost::PEEK, ChargeId(0));
                (peek.decision, logged.vacant_at(log))
            }),
        };
        let (limit, remaining) = (u64::from(decision.limit), u64::from(decision.remaining));
        (remaining > 0).then(|| (((limit - remaining) << 32) / limit, vacant_at))
    }

    /// The same of a log; nothing of any other state.
    pub(crate) fn loss_of_log(&self, record: Record) -> Option<(u64, Timestamp)> {
        match (self.limits.get(record.limit), LogNumber::of(record.word)) {
            (Some(Limit::Logged(_)), Some(_)) => self.loss(record),
            _ => None,
        }
    }

    /// Lets go of what a state that was dropped had beside its word.
    pub(crate) fn let_go(&self, record: Record) {
        if let Some(Limit::Logged(_)) = self.limits.get(record.limit)
            && let Some(number) = LogNumber::of(record.word)
        {
            self.logs.take_down(number);
        }
    }
}
