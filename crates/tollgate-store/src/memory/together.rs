//! Several charges of one request, of which all are taken or none.

use smallvec::SmallVec;
use tollgate_core::{Cost, Decision, Limit, Step, Timestamp};

use super::{INLINE, MemoryStore, Place, without_state};
use crate::account::{self, Account};
use crate::charge::{Charge, Counted, Mode, Receipt, Taken};
use crate::enrolled::Enrolled;
use crate::fingerprint::Fingerprint;
use crate::table::{Home, Locked, Record};

/// What a request has to get before it can be decided.
enum Lacks {
    /// Slots for its unknown keys.
    Slots,
    /// Room for a log to grow.
    Room,
}

impl MemoryStore {
    /// The usual case, told apart from all others for its speed: counters of keys that are near their homes
    /// and in nobody's hands, whose states were written under the same limits, and, if one denies, none in
    /// shadow and none that counts what is denied. In any other case nothing is done, and false.
    pub(super) fn take_all_known(
        &self,
        keys: &[(Fingerprint, Home<'_>)],
        charges: &[Charge<'_>],
        now: Timestamp,
        answer: &mut impl FnMut(Taken),
    ) -> bool {
        let mut slots: SmallVec<[Locked<'_>; INLINE]> = SmallVec::new();
        let mut answers: SmallVec<[Counted; INLINE]> = SmallVec::new();
        let (mut is_denied, mut is_plain) = (false, true);
        for ((key, home), charge) in keys.iter().zip(charges) {
            let Limit::Counter(counter) = charge.limit.limit else { return false };
            // Whoever waited here, with others locked, might wait for somebody who waits for those.
            let Some(slot) = home.lock(*key) else { return false };
            let Some(word) = slot.word_under(charge.limit.stamp) else { return false };
            let step = counter.step(word, now, charge.cost);
            is_denied |= !step.is_allowed;
            is_plain &= charge.mode == Mode::Enforce && !charge.count_denied;
            slots.push(slot);
            let (key, number, cost) = (*key, charge.limit.number, charge.cost);
            answers.push(Counted { key, number, counter, step, now, cost });
        }
        if is_denied && !is_plain {
            return false;
        }
        for (slot, answer) in slots.iter_mut().zip(&mut answers) {
            let Record { limit, word } = slot.record();
            if !is_denied {
                slot.write(Record { limit, word: answer.step.word });
                continue;
            }
            // Nothing is taken, but time does its work; and who would have allowed the request says
            // what it would to somebody who only looks.
            let peek = answer.counter.step(word, now, Cost::PEEK);
            slot.write(Record { limit, word: peek.word });
            if answer.step.is_allowed {
                let delay = answer.step.delay;
                answer.step = Step { is_allowed: true, delay, ..peek };
                answer.cost = Cost::PEEK;
            }
        }
        drop(slots);
        // One by one: the list is large, and to take it apart would move it.
        answers.iter().for_each(|counted| answer(Taken::Counted(*counted)));
        true
    }

    #[inline(never)]
    pub(super) fn take_together(
        &self,
        keys: &[Fingerprint],
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> SmallVec<[Taken; INLINE]> {
        // A request that a known key denies must not push anybody out for its unknown ones.
        let mut makes_room = keys.iter().all(|key| self.table.find(*key).is_none());
        let (mut may_forget, mut forgotten) = (true, 0);
        loop {
            let places: SmallVec<[Place; INLINE]> = keys
                .iter()
                .zip(charges)
                .map(|(key, charge)| match self.table.find(*key) {
                    Some(index) => Place::At(index),
                    None => {
                        // A limit that counts denied requests needs its state in any case, and what
                        // a key named twice says the second time only a state can tell.
                        let is_twice = keys.iter().filter(|other| *other == key).nth(1).is_some();
                        let makes_room = makes_room || charge.count_denied || is_twice;
                        self.place(*key, charge, now, keys, makes_room)
                    }
                })
                .collect();
            if let Some(mut accounts) = self.lock_all(keys, &places) {
                match self.take_from_all(&mut accounts, keys, &places, charges, now, may_forget) {
                    Ok(answers) => return answers,
                    Err(Lacks::Slots) => makes_room = true,
                    Err(Lacks::Room) => {
                        drop(accounts);
                        may_forget = self.forget_another_log(&mut forgotten, now, keys);
                    }
                }
            }
        }
    }

    /// Locks every slot once, in ascending order, so that two calls never wait for each other;
    /// nothing if one has moved since.
    fn lock_all(&self, keys: &[Fingerprint], places: &[Place]) -> Option<Accounts<'_>> {
        let mut wanted: SmallVec<[(usize, Fingerprint); INLINE]> = places
            .iter()
            .zip(keys)
            .filter_map(|(place, key)| match place {
                Place::At(index) => Some((*index, *key)),
                Place::NotNeeded | Place::Unknown | Place::Full => None,
            })
            .collect();
        wanted.sort_unstable_by_key(|(index, _)| *index);
        wanted.dedup();
        if wanted.windows(2).any(|two| two[0].0 == two[1].0) {
            // Two keys were seen in one slot, so one of them is there no longer.
            return None;
        }
        let accounts: Option<_> = wanted
            .into_iter()
            .map(|(index, key)| Some((index, self.account_at(index, key)?)))
            .collect();
        accounts.map(Accounts)
    }

    /// Takes all charges or none. Nothing is done yet if no limit denies and there are unknown keys,
    /// or if a log has no room to grow and it `may_forget` another.
    fn take_from_all(
        &self,
        accounts: &mut Accounts<'_>,
        keys: &[Fingerprint],
        places: &[Place],
        charges: &[Charge<'_>],
        now: Timestamp,
        may_forget: bool,
    ) -> Result<SmallVec<[Taken; INLINE]>, Lacks> {
        let mut before: SmallVec<[Record; INLINE]> = SmallVec::new();
        let mut answers: SmallVec<[Taken; INLINE]> = SmallVec::new();
        for ((key, place), charge) in keys.iter().zip(places).zip(charges) {
            let (record, answer) = match accounts.at(*place) {
                Some(account) => (account.record(), self.charge(account, *key, charge, now)),
                None => (Record::VACANT, without_state(*place, *key, charge, now)),
            };
            before.push(record);
            answers.push(answer);
        }
        let denies =
            |index: usize| charges[index].mode == Mode::Enforce && !answers[index].is_allowed();
        let may_gain_room = |index: usize| {
            may_forget
                && matches!(
                    (places[index], answers[index]),
                    (Place::At(_), Taken::Uncounted { .. })
                )
        };
        let is_denied = (0..charges.len()).any(denies);
        let is_settled = (0..charges.len()).any(|index| denies(index) && !may_gain_room(index));
        let lacks = if is_settled {
            None
        } else if places.iter().any(|place| matches!(place, Place::Unknown)) {
            Some(Lacks::Slots)
        } else {
            (0..charges.len()).any(may_gain_room).then_some(Lacks::Room)
        };
        if is_denied || lacks.is_some() {
            for index in (0..charges.len()).rev() {
                if let Some(account) = accounts.at(places[index]) {
                    take_back(account, &charges[index], &answers[index], before[index], now);
                }
            }
        }
        if let Some(lacks) = lacks {
            return Err(lacks);
        }
        for index in 0..charges.len() {
            let (charge, answer) = (&charges[index], &mut answers[index]);
            match accounts.at(places[index]) {
                // A limit in shadow may have denied what goes on.
                Some(account) if is_denied || !answer.is_allowed() => {
                    *answer = self.after_denial(account, keys[index], charge, *answer, now);
                }
                None if matches!(places[index], Place::Unknown) => {
                    *answer = untouched(keys[index], charge, now);
                }
                _ => {}
            }
        }
        Ok(answers)
    }

    /// What is said of a limit after it, or another, denied the request: nothing was taken of it,
    /// unless it counts denied requests.
    fn after_denial(
        &self,
        account: &mut Account<'_>,
        key: Fingerprint,
        charge: &Charge<'_>,
        answer: Taken,
        now: Timestamp,
    ) -> Taken {
        if !answer.is_allowed() {
            return if charge.count_denied {
                self.punished(account, key, charge, answer, now)
            } else {
                answer
            };
        }
        let counts = charge.count_denied && matches!(charge.limit.limit, Limit::Counter(_));
        let cost = if counts { charge.cost } else { Cost::PEEK };
        let mut told = self.charge(account, key, &Charge { cost, ..*charge }, now);
        match (&mut told, answer) {
            (Taken::Counted(told), Taken::Counted(answer)) => {
                told.step.is_allowed = answer.step.is_allowed;
                told.step.delay = answer.step.delay;
            }
            (Taken::Decided { decision: told, .. }, Taken::Decided { decision: answer, .. }) => {
                told.outcome = answer.outcome;
            }
            _ => {}
        }
        // What a denied request was charged is not given back.
        told.take_receipt();
        told
    }
}

/// The accounts of one call, each with the slot it is in.
struct Accounts<'s>(SmallVec<[(usize, Account<'s>); INLINE]>);

impl<'s> Accounts<'s> {
    fn at(&mut self, place: Place) -> Option<&mut Account<'s>> {
        let Place::At(wanted) = place else { return None };
        self.0.iter_mut().find(|(index, _)| *index == wanted).map(|(_, account)| account)
    }
}

/// What is said of an unknown key after another denied the request: it would have been allowed, and
/// nothing was taken.
fn untouched(key: Fingerprint, charge: &Charge<'_>, now: Timestamp) -> Taken {
    let Enrolled { limit, number, .. } = charge.limit;
    let outcome = account::decide_unknown(limit, now, charge.cost).outcome;
    let decision = Decision { outcome, ..account::decide_unknown(limit, now, Cost::PEEK) };
    Taken::Decided { decision, receipt: Receipt::of_nothing(key, *number) }
}

/// Undoes a charge that was taken before another was denied.
fn take_back(
    account: &mut Account<'_>,
    charge: &Charge<'_>,
    answer: &Taken,
    before: Record,
    now: Timestamp,
) {
    match (answer.receipt(), charge.limit.limit) {
        (Some(_), Limit::Counter(_)) => account.restore(before),
        (Some(receipt), Limit::Logged(_)) => {
            account.refund(&receipt, now);
        }
        (None, _) => {}
    }
}
