//! A request on its way: what is asked of whom, and what becomes of the answers.

use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use smallvec::SmallVec;
use tokio::time::Instant;
use tollgate_core::lua::{self, ANSWER_FIELDS, Answer};
use tollgate_core::{ChargeId, Cost, Decision, Leasable, Limit, Timestamp, Value};

use super::returns::Underway;
use super::{Inner, RedisStore, SETTLED, TAKE, held, is_concurrency, local_key};
use crate::account::decide_unknown;
use crate::asked::{Asked, Waiting};
use crate::charge::{Charge, Kept, Mode, OnFailure, Receipt, Taken};
use crate::enrolled::Enrolled;
use crate::fingerprint::Fingerprint;
use crate::redis::call::{Call, Failure, Late, Pending, Reply};
use crate::redis::denials::Denial;
use crate::redis::leased::{Paid, Payment};
use crate::redis::names::Names;
use crate::redis::words::Words;
use crate::store::{Answers, Claim, INLINE, Origin};

/// What is known of one charge of a request until it is settled, and as long as it can be given back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(super) limit: Enrolled,
    pub(super) cost: Cost,
    pub(super) mode: lua::Mode,
    pub(super) count_denied: bool,
    pub(super) on_failure: OnFailure,
    /// As what its units are taken in advance, if they are.
    pub(super) leasable: Option<Leasable>,
    pub(super) id: ChargeId,
    pub(super) key: Fingerprint,
    /// Whether its name is of this node alone, which does not know yet what secrets are hashed with:
    /// in Redis no other node would find it, so it is counted as if Redis did not answer.
    pub(super) is_private: bool,
}

/// The charges of a request, with their names in Redis.
#[derive(Debug, Default)]
pub(crate) struct Items {
    pub(super) names: Names,
    pub(super) list: SmallVec<[Item; 4]>,
}

/// Some charges of a request that are decided together.
pub(super) enum Part {
    /// By one call.
    Called { places: Places, pending: Pending, deadline: Instant },
    /// By units that this node gets for the purpose.
    Leased { place: usize, waiting: Waiting<Result<Paid, Failure>> },
}

/// A request that waits for its parts.
///
/// Its caller may go away before all of them have answered. Then what one part took must still come
/// back if another denies, and so it is brought to its end on the I/O thread.
pub(super) struct Gathering {
    pub(super) inner: Arc<Inner>,
    pub(super) origin: Arc<Origin>,
    pub(super) parts: SmallVec<[Part; 2]>,
    pub(super) told: Told,
    pub(super) asked_at: Timestamp,
    /// Whether it has to be brought to its end. A single call sees to itself: see [`Inner::late`].
    pub(super) must_end: bool,
}

/// What was said to each charge, as far as it is known.
pub(super) type Told = SmallVec<[Option<Taken>; INLINE]>;

pub(super) type Places = SmallVec<[usize; INLINE]>;

impl Inner {
    pub(super) fn items(&self, charges: &[Charge<'_>]) -> Items {
        let mut items = Items::default();
        let mut shown = String::new();
        let first = self.last_id.fetch_add(charges.len() as u64, Ordering::Relaxed);
        for (charge, id) in charges.iter().zip(first..) {
            shown.clear();
            let is_shared = self.house.write_key_text(&charge.key, &self.local, &mut shown);
            items.names.push(&self.prefix, &shown);
            items.list.push(Item {
                limit: *charge.limit,
                cost: charge.cost,
                mode: match charge.mode {
                    Mode::Enforce => lua::Mode::Enforce,
                    Mode::Shadow => lua::Mode::Shadow,
                },
                count_denied: charge.count_denied,
                on_failure: charge.on_failure,
                leasable: charge.is_leased.then(|| Leasable::of(&charge.limit.limit)).flatten(),
                id: ChargeId(id),
                key: self.known_by(items.names.get(items.list.len())),
                is_private: !is_shared,
            });
        }
        items
    }

    /// The answer to a request that this node denies by itself, if it does.
    pub(super) fn denied_before(
        &self,
        items: &Items,
        now: Timestamp,
    ) -> Option<SmallVec<[Taken; INLINE]>> {
        if items.count_denied() || self.is_virtual {
            return None;
        }
        let denial = |item: &Item| {
            let is_asked = item.mode == lua::Mode::Enforce && item.cost != Cost::PEEK;
            is_asked
                .then(|| self.denials.get(item.key, item.limit.number, item.cost, now))
                .flatten()
        };
        let denials: SmallVec<[_; 4]> = items.list.iter().map(denial).collect();
        let any = denials.iter().flatten().next()?;
        let told = |(item, own): (&Item, &Option<Denial>)| {
            let decision = match own {
                Some(denial) => denial.decision(now),
                None => any
                    .decision_of(item.key, now)
                    .unwrap_or_else(|| decide_unknown(&item.limit.limit, now, Cost::PEEK)),
            };
            Taken::Decided { decision, receipt: Receipt::of_nothing(item.key, item.limit.number) }
        };
        Some(items.list.iter().zip(&denials).map(told).collect())
    }

    /// Asks for all charges of a request: by one call, or one for each slot of a Cluster; and each
    /// that is leased by itself, and told at once if this node holds enough.
    pub(super) fn send_all(
        self: &Arc<Self>,
        origin: &Arc<Origin>,
        told: &mut [Option<Taken>],
    ) -> SmallVec<[Part; 2]> {
        let Items { names, list } = &origin.items;
        let mut parts = SmallVec::new();
        let mut slots: SmallVec<[(u16, Places); 2]> = SmallVec::new();
        for (place, item) in list.iter().enumerate() {
            if item.is_private {
                continue;
            }
            let name = names.get(place);
            if let Some(limit) = &item.leasable {
                match self.leased.take(item.key, name, limit, item.cost) {
                    Asked::Ready(answer) => {
                        told[place] = self.read_leased(&origin.items, place, answer);
                    }
                    Asked::Waiting(waiting) => parts.push(Part::Leased { place, waiting }),
                }
                continue;
            }
            let slot = if self.fleet.is_cluster() { self.fleet.slot(name.as_bytes()) } else { 0 };
            match slots.iter_mut().find(|(other, _)| *other == slot) {
                Some((_, places)) => places.push(place),
                None => slots.push((slot, SmallVec::from_slice(&[place]))),
            }
        }
        let deadline = self.fleet.deadline();
        let send = |(slot, places)| self.send(origin, slot, places, deadline);
        parts.extend(slots.into_iter().map(send));
        parts
    }

    /// Sends one call that takes the charges at `places`, or none of them.
    pub(super) fn send(
        self: &Arc<Self>,
        origin: &Arc<Origin>,
        slot: u16,
        places: Places,
        deadline: Instant,
    ) -> Part {
        let Items { names, list } = &origin.items;
        let mut words = Words::with_capacity(64 + 192 * places.len());
        words.push_number(places.len() as u64);
        places.iter().for_each(|place| words.push(names.get(*place).as_bytes()));
        self.push_now(&mut words);
        for &place in &places {
            let Item { limit, cost, mode, count_denied, id, .. } = &list[place];
            let (limit, cost, mode, count_denied) = (&limit.limit, *cost, *mode, *count_denied);
            let id = match limit {
                // A counter knows no names, and what is said alike every time costs Redis less.
                Limit::Counter(_) => ChargeId(0),
                Limit::Logged(_) => *id,
            };
            let charge = lua::Charge { limit, cost, mode, count_denied, id };
            words.push(&charge.argument());
        }
        let late = self.late(origin, &places);
        let pending = self.fleet.send_by(Call { script: Some(&TAKE), words, slot, late }, deadline);
        Part::Called { places, pending, deadline }
    }

    /// What is done when a call was answered too late, or to nobody: slots are released, since nobody
    /// knows that they are held. Other charges stand: whoever goes away before the answer has asked.
    fn late(self: &Arc<Self>, origin: &Arc<Origin>, places: &Places) -> Option<Late> {
        let is_slot = |place: &usize| is_concurrency(&origin.items.list[*place].limit.limit);
        if !places.iter().any(is_slot) {
            return None;
        }
        let (inner, origin, places) = (Arc::downgrade(self), Arc::clone(origin), places.clone());
        Some(Box::new(move |reply| {
            let Some(inner) = Weak::upgrade(&inner) else { return };
            let answers = read(&origin.items, &places, &reply).into_iter().flatten();
            for (place, taken) in places.iter().zip(answers) {
                if is_concurrency(&origin.items.list[*place].limit.limit)
                    && let Some(receipt) = taken.receipt()
                {
                    drop(inner.give_back(&origin.items, *place, &receipt));
                }
            }
        }))
    }

    /// What a limit said whose units are leased; nothing if it could not.
    pub(super) fn read_leased(
        &self,
        items: &Items,
        place: usize,
        answer: Result<Paid, Failure>,
    ) -> Option<Taken> {
        let slot = || self.fleet.slot(items.names.get(place).as_bytes());
        let tell = |failure: &Failure| self.fleet.tell(slot(), failure, SETTLED);
        let Paid { decision, payment } = answer.inspect_err(tell).ok()?;
        let Item { key, limit, .. } = items.list[place];
        let nothing = Receipt { kept: Kept::Lease, ..Receipt::of_nothing(key, limit.number) };
        let receipt = match payment {
            Payment::Nothing => nothing,
            Payment::Held { mark, units } => Receipt { cost: Cost::new(units), mark, ..nothing },
            Payment::Charged(tollgate_core::Receipt { at, cost, debt_before: mark }) => {
                Receipt { key, limit: limit.number, cost, at, mark, kept: Kept::Redis }
            }
        };
        Some(Taken::Decided { decision, receipt })
    }

    /// Makes one answer of what was said to a request's charges.
    pub(super) fn settle(
        self: &Arc<Self>,
        origin: Arc<Origin>,
        mut told: Told,
        asked_at: Timestamp,
    ) -> Answers {
        let items = &origin.items;
        let failed: Places = (0..told.len()).filter(|place| told[*place].is_none()).collect();
        if !failed.is_empty() {
            self.settled.fetch_add(1, Ordering::Relaxed);
            self.take_locally(items, &failed, &mut told);
        }
        let mut taken: SmallVec<[Taken; INLINE]> = told.into_iter().flatten().collect();
        let denies =
            |(item, taken): (&Item, &Taken)| item.mode == lua::Mode::Enforce && !taken.is_allowed();
        if items.list.iter().zip(&taken).any(denies) {
            self.withhold(items, &mut taken);
            self.note_denials(items, &taken, &failed, asked_at);
        }
        Answers { taken, origin: Some(origin) }
    }

    /// Takes charges that Redis could not, as their limits say.
    fn take_locally(&self, items: &Items, places: &Places, told: &mut [Option<Taken>]) {
        let nodes = self.house.nodes();
        let values: SmallVec<[[Value<'_>; 1]; INLINE]> =
            places.iter().map(|place| [Value::new(items.names.get(*place).as_bytes())]).collect();
        let mut shares: SmallVec<[(usize, Enrolled); INLINE]> = SmallVec::new();
        for (number, place) in places.iter().enumerate() {
            let Item { limit, on_failure, .. } = &items.list[*place];
            let is_local = *on_failure == OnFailure::Local;
            let share = is_local.then(|| self.shares.of(limit, nodes, &self.local)).flatten();
            match share {
                Some(share) => shares.push((number, share)),
                None => told[*place] = Some(on_failure.uncounted()),
            }
        }
        let charge = |(number, share)| {
            let (number, share): (usize, &Enrolled) = (number, share);
            let Item { cost, mode, count_denied, on_failure, .. } = items.list[places[number]];
            let key = local_key(&values[number]);
            let mode = match mode {
                lua::Mode::Shadow => Mode::Shadow,
                _ => Mode::Enforce,
            };
            Charge { cost, mode, count_denied, on_failure, ..Charge::new(key, share) }
        };
        let charges: SmallVec<[Charge<'_>; INLINE]> =
            shares.iter().map(|(number, share)| charge((*number, share))).collect();
        for ((number, _), taken) in shares.iter().zip(self.local.take(&charges)) {
            told[places[*number]] = Some(taken);
        }
    }

    /// Gives back what some limits took before another denied the request. Their answers are told as
    /// if nothing had been taken.
    fn withhold(self: &Arc<Self>, items: &Items, taken: &mut [Taken]) {
        for (place, taken) in taken.iter_mut().enumerate() {
            let Some(receipt) = taken.take_receipt() else { continue };
            // A log never counts what was denied.
            let Item { limit, count_denied, .. } = &items.list[place];
            if *count_denied && matches!(limit.limit, Limit::Counter(_)) {
                continue;
            }
            match receipt.kept {
                Kept::Redis => drop(self.give_back(items, place, &receipt)),
                Kept::Lease => _ = self.leased.give_back(receipt.key, held(&receipt)),
                Kept::Memory => _ = self.local.refund(&receipt),
            }
            if let Some(decision) = taken.decision() {
                let decision = untaken(decision, receipt.cost, &limit.limit, self.clock.now());
                let receipt = Receipt::of_nothing(receipt.key, receipt.limit);
                *taken = Taken::Decided { decision, receipt };
            }
        }
    }

    /// Remembers whom Redis denied.
    fn note_denials(&self, items: &Items, taken: &[Taken], failed: &Places, asked_at: Timestamp) {
        if items.count_denied() {
            return;
        }
        let told_at = self.clock.now();
        let decisions = || {
            let all = items.list.iter().zip(taken).enumerate();
            all.filter_map(|(place, (item, taken))| Some((place, item, taken.decision()?)))
        };
        for (place, item, decision) in decisions() {
            // What this node counted by itself is at hand anyway, and Redis may be back any moment.
            // Of a key that comes twice only the request as a whole was denied.
            let comes_once = items.list.iter().filter(|other| other.key == item.key).count() == 1;
            let is_denied = item.mode == lua::Mode::Enforce && !decision.is_allowed();
            if is_denied && comes_once && !failed.contains(&place) {
                let others = decisions().filter(|(other, ..)| *other != place);
                let others = others.map(|(_, item, decision)| (item.key, decision)).collect();
                self.denials.note(
                    item.key,
                    item.limit.number,
                    item.cost,
                    decision,
                    asked_at..told_at,
                    others,
                );
            }
        }
    }
}

impl Gathering {
    /// Waits for everything that was asked, and makes one answer of it.
    pub(super) async fn end(mut self) -> Answers {
        self.gather().await;
        self.must_end = false;
        let (origin, told) = (Arc::clone(&self.origin), mem::take(&mut self.told));
        self.inner.settle(origin, told, self.asked_at)
    }

    /// Waits for everything that was asked. A part stays until it has answered, so that nothing is
    /// lost if this is dropped.
    pub(super) async fn gather(&mut self) {
        let (inner, items) = (&self.inner, &self.origin.items);
        while let Some(part) = self.parts.last_mut() {
            let (places, deadline, result) = match part {
                Part::Leased { place, waiting } => {
                    let answer = waiting.await;
                    self.told[*place] = inner.read_leased(items, *place, answer);
                    self.parts.pop();
                    continue;
                }
                Part::Called { places, pending, deadline } => {
                    let result = pending.await;
                    (mem::take(places), *deadline, result)
                }
            };
            self.parts.pop();
            match result {
                Ok(reply) => {
                    let answers = read(items, &places, &reply).into_iter().flatten();
                    for (place, taken) in places.iter().zip(answers) {
                        self.told[*place] = Some(taken);
                    }
                }
                // A slot on the move: each of its keys is somewhere, but they are not together.
                Err(Failure::TryAgain) if places.len() > 1 => {
                    let slot = inner.fleet.slot(items.names.get(places[0]).as_bytes());
                    let alone = |place: &usize| SmallVec::from_slice(&[*place]);
                    // The request has no more time than it had.
                    let send = |place| inner.send(&self.origin, slot, alone(place), deadline);
                    self.parts.extend(places.iter().map(send));
                    self.must_end = true;
                }
                Err(failure) => {
                    if matches!(failure, Failure::Timeout | Failure::Lost) {
                        inner.release_unheard(items, &places);
                    }
                    let slot = inner.fleet.slot(items.names.get(places[0]).as_bytes());
                    inner.fleet.tell(slot, &failure, SETTLED);
                }
            }
        }
    }

    /// Brings it to its end for nobody: slots are released, since nobody knows that they are held.
    async fn end_for_nobody(self) {
        let (inner, origin) = (Arc::clone(&self.inner), Arc::clone(&self.origin));
        let _underway = Underway::new(&inner.underway);
        let answers = self.end().await;
        for (place, taken) in answers.taken.iter().enumerate() {
            if is_concurrency(&origin.items.list[place].limit.limit)
                && let Some(receipt) = taken.receipt()
            {
                let claim = Claim::new(receipt, Some(&origin), place);
                drop(RedisStore(Arc::clone(&inner)).refund(&claim));
            }
        }
    }
}

impl Drop for Gathering {
    fn drop(&mut self) {
        if mem::take(&mut self.must_end) {
            let rest = Self {
                inner: Arc::clone(&self.inner),
                origin: Arc::clone(&self.origin),
                parts: mem::take(&mut self.parts),
                told: mem::take(&mut self.told),
                asked_at: self.asked_at,
                must_end: false,
            };
            // It holds the store for as long as its calls may take, and no longer.
            self.inner.fleet.spawn(rest.end_for_nobody());
        }
    }
}

impl Items {
    fn count_denied(&self) -> bool {
        self.list.iter().any(|item| item.count_denied)
    }
}

/// What the script said to the charges at `places`; nothing if that is no answer of ours.
pub(super) fn read(
    items: &Items,
    places: &Places,
    reply: &Reply,
) -> Option<SmallVec<[Taken; INLINE]>> {
    let Reply::List(fields) = reply else { return None };
    let (answers, rest) = fields.as_chunks::<ANSWER_FIELDS>();
    if answers.len() != places.len() || !rest.is_empty() {
        return None;
    }
    let taken = |(place, fields): (&usize, &[Reply; ANSWER_FIELDS])| {
        let mut numbers = [0; ANSWER_FIELDS];
        for (number, field) in numbers.iter_mut().zip(fields) {
            let Reply::Integer(integer) = field else { return None };
            *number = *integer;
        }
        let Answer { decision, receipt } = Answer::from_fields(numbers)?;
        let Item { limit, id, key, .. } = items.list[*place];
        let mark = match limit.limit {
            Limit::Counter(_) => receipt.debt_before,
            Limit::Logged(_) => id.0,
        };
        let (limit, cost, at, kept) = (limit.number, receipt.cost, receipt.at, Kept::Redis);
        let receipt = Receipt { key, limit, cost, at, mark, kept };
        Some(Taken::Decided { decision, receipt })
    };
    places.iter().zip(answers).map(taken).collect()
}

/// What a limit is told to have said when what it took is given back. While something else is in use
/// its waits are those of before, and so rather too long than too short.
fn untaken(decision: Decision, cost: Cost, limit: &Limit, now: Timestamp) -> Decision {
    let remaining = decision.remaining.saturating_add(cost.units()).min(decision.limit);
    if remaining < decision.limit {
        return Decision { remaining, ..decision };
    }
    let Decision { reset_after, next_after, .. } = decide_unknown(limit, now, Cost::PEEK);
    Decision { remaining, reset_after, next_after, ..decision }
}
