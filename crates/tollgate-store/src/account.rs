//! One key's state, locked, as it is charged.

use tollgate_core::Word;
use tollgate_core::{ChargeId, Cost, Counter, Decision, Limit, Log, Logged, Step, Timestamp};

use crate::charge::Receipt;
use crate::enrolled::Register;
use crate::logs::{LogNumber, Logs};
use crate::memory::Reserved;
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
    /// Decides one request under a counter, and charges it if it is allowed.
    #[inline(always)]
    pub(crate) fn charge_counter(
        &mut self,
        counter: &Counter,
        number: u32,
        now: Timestamp,
        cost: Cost,
    ) -> Step {
        let word = self.counted_under(counter, number, now);
        let step = counter.step(word, now, cost);
        // Carrying over rounds up, so a state is written under another quota only with a charge: a
        // key that is merely looked at under two quotas by turns must not lose by it.
        if self.slot.record().limit == number || step.receipt.cost != Cost::PEEK {
            self.slot.write(Record { limit: number, word: step.word });
        }
        step
    }

    /// Charges a request that was denied, as a penalty, and says what its limit says then.
    pub(crate) fn punish(
        &mut self,
        counter: &Counter,
        number: u32,
        now: Timestamp,
        cost: Cost,
    ) -> Decision {
        let word = self.counted_under(counter, number, now);
        let word = counter.punish(word, now, cost);
        self.slot.write(Record { limit: number, word });
        counter.decide(word, now, cost).decision
    }

    /// Decides one request under a logged limit, and enters it as `id` if it is allowed. Bytes that
    /// its log grows by are had from `reserve`.
    pub(crate) fn charge_log<'r>(
        &mut self,
        logged: &Logged,
        number: u32,
        now: Timestamp,
        cost: Cost,
        id: ChargeId,
        reserve: impl FnOnce(usize) -> Option<Reserved<'r>>,
    ) -> Result<Decision, NoRoom> {
        let log_number = self.log_under(logged, number, now);
        let (decided, growth) = self.logs.look(log_number, |log| {
            let decided = logged.decide(log, now, cost, id);
            let enters = decided.decision.is_allowed() && cost != Cost::PEEK;
            let grows = enters && decided.change.kept(log) == log.capacity();
            (decided, if grows { self.logs.growth(log_number, log.growth()) } else { 0 })
        });
        let _reserved = match growth {
            0 => None,
            _ => Some(reserve(growth).ok_or(NoRoom)?),
        };
        // A log is not put up only to be told that nothing is in it.
        let enters = decided.decision.is_allowed() && cost != Cost::PEEK;
        if log_number.is_some() || enters {
            self.change_log(logged, number, |log| log.apply(decided.change));
        }
        Ok(decided.decision)
    }

    /// Gives a charge back; false if there is nothing left of it.
    pub(crate) fn refund(&mut self, receipt: &Receipt, now: Timestamp) -> bool {
        let record = self.slot.record();
        match self.limit_since(receipt) {
            Some(Limit::Counter(counter)) => {
                // What a bucket owed before, in ticks of another quota, says nothing here.
                let debt_before = if record.limit == receipt.limit { receipt.mark } else { 0 };
                let charged =
                    tollgate_core::Receipt { at: receipt.at, cost: receipt.cost, debt_before };
                let word = counter.refund(record.word, now, &charged);
                self.slot.write(Record { word, ..record });
                word != record.word
            }
            Some(Limit::Logged(logged)) => {
                let (id, units) = (ChargeId(receipt.mark), receipt.cost.units());
                self.change_log(&logged, record.limit, |log| logged.give_back(log, now, id, units))
                    > 0
            }
            None => false,
        }
    }

    /// Brings a charge under `own` to what was really used, and tells what that limit says then;
    /// nothing if the state is another algorithm's. What is more is entered into a log as `id`, and the
    /// bytes that it grows by are had from `reserve`.
    pub(crate) fn settle<'r>(
        &mut self,
        own: &Limit,
        receipt: &Receipt,
        cost: Cost,
        id: ChargeId,
        now: Timestamp,
        reserve: impl FnOnce(usize) -> Option<Reserved<'r>>,
    ) -> Result<Option<Decision>, NoRoom> {
        let mut record = self.slot.record();
        if record.word == Word::VACANT {
            record.limit = receipt.limit;
        }
        let less = receipt.cost.units().saturating_sub(cost.units());
        let more = Cost::new(cost.units().saturating_sub(receipt.cost.units()));
        match (own, self.register.get(record.limit)) {
            (Limit::Counter(own), Some(Limit::Counter(under)))
                if Limit::Counter(under).algorithm() == Limit::Counter(*own).algorithm() =>
            {
                record.word = if less > 0 {
                    let Receipt { at, cost: charged, mark: debt_before, .. } = *receipt;
                    let charged = tollgate_core::Receipt { at, cost: charged, debt_before };
                    let mut rest = own.rest(&charged, cost);
                    // What a bucket owed before, in ticks of another quota, says nothing here.
                    if record.limit != receipt.limit {
                        rest.debt_before = 0;
                    }
                    under.refund(record.word, now, &rest)
                } else {
                    under.force(record.word, now, more).word
                };
                self.slot.write(record);
                let word = own.carry_over(&under, record.word, now);
                Ok(Some(own.decide(word, now, Cost::PEEK).decision))
            }
            (Limit::Logged(own), Some(Limit::Logged(under)))
                if Limit::Logged(under).algorithm() == Limit::Logged(*own).algorithm() =>
            {
                let charged = ChargeId(receipt.mark);
                if less > 0 && LogNumber::of(record.word).is_some() {
                    let give_back = |log: &mut Log| under.give_back(log, now, charged, less);
                    self.change_log(&under, record.limit, give_back);
                }
                if more != Cost::PEEK {
                    self.force_log(&under, record.limit, now, more, id, reserve)?;
                }
                let number = LogNumber::of(self.slot.record().word);
                Ok(Some(self.logs.look(number, |log| own.look(&under, log, now))))
            }
            _ => Ok(None),
        }
    }

    /// Enters a charge whatever is left.
    fn force_log<'r>(
        &mut self,
        logged: &Logged,
        number: u32,
        now: Timestamp,
        cost: Cost,
        id: ChargeId,
        reserve: impl FnOnce(usize) -> Option<Reserved<'r>>,
    ) -> Result<(), NoRoom> {
        let log_number = LogNumber::of(self.slot.record().word);
        let (change, growth) = self.logs.look(log_number, |log| {
            let change = logged.force(log, now, cost, id).change;
            let grows = change.kept(log) == log.capacity();
            (change, if grows { self.logs.growth(log_number, log.growth()) } else { 0 })
        });
        let _reserved = match growth {
            0 => None,
            _ => Some(reserve(growth).ok_or(NoRoom)?),
        };
        self.change_log(logged, number, |log| log.apply(change));
        Ok(())
    }

    /// Gives units back whose charge nobody can name, and decides a peek.
    pub(crate) fn credit_counter(
        &mut self,
        counter: &Counter,
        number: u32,
        now: Timestamp,
        cost: Cost,
    ) -> Step {
        let word = self.counted_under(counter, number, now);
        let word = counter.credit(word, now, cost);
        self.slot.write(Record { limit: number, word });
        counter.step(word, now, Cost::PEEK)
    }

    /// The same of a logged limit, whose latest charges are given back first.
    pub(crate) fn credit_log(
        &mut self,
        logged: &Logged,
        number: u32,
        now: Timestamp,
        cost: Cost,
    ) -> Decision {
        if self.log_under(logged, number, now).is_none() {
            return decide_unknown(&Limit::Logged(*logged), now, Cost::PEEK);
        }
        self.change_log(logged, number, |log| {
            logged.credit(log, now, cost);
            logged.decide(log, now, Cost::PEEK, ChargeId(0)).decision
        })
    }

    /// Starts the hold of a logged charge anew; false if it has ended.
    pub(crate) fn renew(&mut self, receipt: &Receipt, now: Timestamp) -> bool {
        let record = self.slot.record();
        match self.limit_since(receipt) {
            Some(Limit::Logged(logged)) => {
                let id = ChargeId(receipt.mark);
                self.change_log(&logged, record.limit, |log| logged.renew(log, now, id))
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

    /// Puts back the state that a counter had before a charge. A log that was there before went
    /// when the counter started afresh.
    pub(crate) fn restore(&mut self, record: Record) {
        let was_counter = matches!(self.register.get(record.limit), Some(Limit::Counter(_)));
        self.slot.write(if was_counter { record } else { Record::VACANT });
    }

    /// The limit the state was written under, unless the algorithm changed since a charge was made,
    /// and with it the state started afresh.
    fn limit_since(&self, receipt: &Receipt) -> Option<Limit> {
        let algorithm = self.register.get(receipt.limit)?.algorithm();
        self.register.get(self.slot.record().limit).filter(|limit| limit.algorithm() == algorithm)
    }

    /// The state as `counter` counts: what was consumed under another limit is carried over.
    #[inline]
    fn counted_under(&mut self, counter: &Counter, number: u32, now: Timestamp) -> Word {
        let Record { limit, word } = self.slot.record();
        if limit == number || word == Word::VACANT {
            return word;
        }
        self.carried_over(counter, now)
    }

    #[cold]
    fn carried_over(&mut self, counter: &Counter, now: Timestamp) -> Word {
        let Record { limit, word } = self.slot.record();
        match self.register.get(limit) {
            Some(Limit::Counter(written_under)) => counter.carry_over(&written_under, word, now),
            _ => {
                self.reset();
                Word::VACANT
            }
        }
    }

    fn change_log<T>(
        &mut self,
        logged: &Logged,
        limit: u32,
        change: impl FnOnce(&mut Log) -> T,
    ) -> T {
        let number = LogNumber::of(self.slot.record().word);
        let number = number.unwrap_or_else(|| self.logs.put_up(self.slot.key()));
        let (number, (result, vacant_at)) = self.logs.change(number, |log| {
            let result = change(log);
            (result, logged.vacant_at(log))
        });
        self.slot.write(Record { limit, word: LogNumber::word(number, vacant_at) });
        result
    }

    /// The number of this key's log, brought under `logged` if it was written under another limit.
    fn log_under(&mut self, logged: &Logged, number: u32, now: Timestamp) -> Option<LogNumber> {
        let Record { limit, word } = self.slot.record();
        if limit != number && word != Word::VACANT {
            match self.register.get(limit) {
                Some(Limit::Logged(written_under)) => self.change_log(logged, number, |log| {
                    logged.carry_over(&written_under, log, now);
                }),
                _ => self.slot.write(Record::VACANT),
            }
        }
        LogNumber::of(self.slot.record().word)
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
