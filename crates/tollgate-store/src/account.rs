//! One key's state, locked, as it is charged.

use tollgate_core::{ChargeId, Cost, Counter, Decision, Limit, Log, Logged, Outcome};
use tollgate_core::{Timestamp, Word};

use crate::charge::Charged;
use crate::enrolled::{Enrolled, Register};
use crate::logs::{LogNumber, Logs};
use crate::table::{Locked, Record};

/// One key's state. Nobody else sees it until it is dropped.
pub(crate) struct Account<'s> {
    pub(crate) slot: Locked<'s>,
    pub(crate) logs: &'s Logs,
    pub(crate) register: &'s Register,
}

/// A log may not grow: memory is full.
#[derive(Debug)]
pub(crate) struct NoRoom;

impl Account<'_> {
    /// Decides one request, and charges it if it is allowed. `id` names the charge in a log, and
    /// `room` is how many bytes logs may still grow by.
    #[inline]
    pub(crate) fn charge(
        &mut self,
        limit: &Enrolled,
        now: Timestamp,
        cost: Cost,
        id: impl FnOnce() -> ChargeId,
        room: impl FnOnce() -> usize,
    ) -> Result<(Decision, Option<Charged>), NoRoom> {
        match &limit.limit {
            Limit::Counter(counter) => {
                let word = self.counted_under(counter, limit.number, now);
                let transition = counter.decide(word, now, cost);
                self.slot.write(Record { limit: limit.number, word: transition.word });
                let charged = transition.receipt.cost != Cost::PEEK;
                let charged = charged.then_some(Charged::Counter(transition.receipt));
                Ok((transition.decision, charged))
            }
            Limit::Logged(logged) => self.charge_log(limit, logged, now, cost, id(), room()),
        }
    }

    /// Charges a request that was denied, as a penalty, and says what its limit says then.
    pub(crate) fn punish(&mut self, limit: &Enrolled, now: Timestamp, cost: Cost) -> Decision {
        let Limit::Counter(counter) = &limit.limit else {
            unreachable!("only counters count denied requests")
        };
        let word = self.counted_under(counter, limit.number, now);
        let word = counter.punish(word, now, cost);
        self.slot.write(Record { limit: limit.number, word });
        counter.decide(word, now, cost).decision
    }

    /// Gives a charge back; false if there is nothing left of it.
    pub(crate) fn refund(&mut self, limit: u32, now: Timestamp, charged: Charged) -> bool {
        let record = self.slot.record();
        match (charged, self.register.get(record.limit)) {
            (Charged::Counter(mut receipt), Some(Limit::Counter(written_under))) => {
                if record.limit != limit {
                    // What a bucket owed before, in ticks of another quota, says nothing here.
                    receipt.debt_before = 0;
                }
                let word = written_under.refund(record.word, now, &receipt);
                self.slot.write(Record { word, ..record });
                word != record.word
            }
            (Charged::Logged { id, cost }, Some(Limit::Logged(logged))) => {
                self.change_log(&logged, record.limit, |log| log.give_back(id, cost.units())) > 0
            }
            // The limit's algorithm changed since, and with it the state started afresh.
            _ => false,
        }
    }

    /// Starts the hold of a logged charge anew; false if it has ended.
    pub(crate) fn renew(&mut self, now: Timestamp, charged: Charged) -> bool {
        let record = self.slot.record();
        match (charged, self.register.get(record.limit)) {
            (Charged::Logged { id, .. }, Some(Limit::Logged(logged))) => {
                self.change_log(&logged, record.limit, |log| {
                    let ended = logged.decide(log, now, Cost::PEEK, id);
                    log.apply(ended.change);
                    log.renew(id, now)
                })
            }
            _ => false,
        }
    }

    /// Forgets what was consumed.
    pub(crate) fn reset(&mut self) {
        self.forget_log();
        self.slot.write(Record::VACANT);
    }

    /// What is kept of the key now.
    pub(crate) fn record(&self) -> Record {
        self.slot.record()
    }

    /// Puts back the state that a counter had before a charge.
    pub(crate) fn restore(&mut self, record: Record) {
        self.slot.write(record);
    }

    /// The state as `counter` counts: what was consumed under another limit is carried over.
    #[inline]
    fn counted_under(&mut self, counter: &Counter, number: u32, now: Timestamp) -> Word {
        let Record { limit, word } = self.slot.record();
        if limit == number || word == Word::VACANT {
            return word;
        }
        match self.register.get(limit) {
            Some(Limit::Counter(written_under)) => counter.carry_over(&written_under, word, now),
            _ => {
                self.forget_log();
                Word::VACANT
            }
        }
    }

    fn charge_log(
        &mut self,
        limit: &Enrolled,
        logged: &Logged,
        now: Timestamp,
        cost: Cost,
        id: ChargeId,
        room: usize,
    ) -> Result<(Decision, Option<Charged>), NoRoom> {
        let number = self.log_of(logged);
        let decided = self.logs.look(number, |log| {
            let decided = logged.decide(log, now, cost, id);
            let grows = log.len() == log.capacity() && cost != Cost::PEEK;
            let grows = grows && decided.decision.is_allowed();
            if grows && Logs::growth(log) > room { Err(NoRoom) } else { Ok(decided) }
        })?;
        let charged = decided.decision.is_allowed() && cost != Cost::PEEK;
        // An empty log is not put up to be told that nothing is in it.
        if number.is_some() || charged {
            self.change_log(logged, limit.number, |log| log.apply(decided.change));
        }
        Ok((decided.decision, charged.then_some(Charged::Logged { id, cost })))
    }

    fn change_log<T>(
        &mut self,
        logged: &Logged,
        limit: u32,
        change: impl FnOnce(&mut Log) -> T,
    ) -> T {
        let number = self.log_of(logged);
        let (number, (result, vacant_at)) = self.logs.change(number, |log| {
            let result = change(log);
            (result, logged.vacant_at(log))
        });
        self.slot.write(Record { limit, word: LogNumber::word(number, vacant_at) });
        result
    }

    /// The number of this key's log under `logged`; what another algorithm left is forgotten.
    fn log_of(&mut self, logged: &Logged) -> Option<LogNumber> {
        let Record { limit, word } = self.slot.record();
        if word == Word::VACANT {
            return None;
        }
        match self.register.get(limit) {
            Some(written_under)
                if written_under.algorithm() == Limit::Logged(*logged).algorithm() =>
            {
                LogNumber::of(word)
            }
            _ => {
                self.forget_log();
                self.slot.write(Record::VACANT);
                None
            }
        }
    }

    fn forget_log(&self) {
        let record = self.slot.record();
        if let Some(Limit::Logged(_)) = self.register.get(record.limit)
            && let Some(number) = LogNumber::of(record.word)
        {
            self.logs.take_down(number);
        }
    }
}

/// The answer to a request that nothing needs to be remembered of, because its key is unknown and
/// it takes nothing.
pub(crate) fn decide_unknown(limit: &Limit, now: Timestamp, cost: Cost) -> Decision {
    match limit {
        Limit::Counter(counter) => counter.decide(Word::VACANT, now, cost).decision,
        Limit::Logged(logged) => logged.decide(&Log::default(), now, cost, ChargeId(0)).decision,
    }
}

/// Whether a request can take anything at all from a key never seen.
pub(crate) fn takes_nothing(limit: &Limit, cost: Cost) -> bool {
    cost == Cost::PEEK || cost.units() > limit.capacity()
}

/// The figures of `now` with the outcome of `then`: what an allowed charge that was taken back
/// again has to say.
pub(crate) fn with_outcome(now: Decision, outcome: Outcome) -> Decision {
    Decision { outcome, ..now }
}
