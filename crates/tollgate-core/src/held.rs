//! Units that are held for a while: what a sliding log and a concurrency limit share.
//!
//! Every charge is an entry with the moment it was made; its units count until `hold` has passed
//! since then. In a sliding log that is the window, under a concurrency limit it is the lease, cut
//! short by a release. Denied requests are never entered, so a log holds at most `most` entries.
//!
//! The Redis twin of this file is `lua/held.lua`; there the log is a sorted set.

use std::collections::VecDeque;

use crate::bounds::{LOG_ENTRIES_MAX, LOG_WALK_MAX};
use crate::{Cost, Decision, Micros, Outcome, Timestamp};

/// Names one charge of a log, so that it can be given back: a lease, or a refund.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChargeId(pub u64);

/// One charge: when it was made, which it is, how many units it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When the units were taken, or the lease last renewed.
    pub at: Timestamp,
    /// Which charge this is.
    pub id: ChargeId,
    /// How many units it holds; at least one.
    pub units: u32,
}

/// The charges of one key, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    entries: VecDeque<Entry>,
    units: u64,
}

/// What a decision does to a log. Applying it to a log other than the one decided on is a mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogChange {
    /// Entries from the front whose time has passed.
    expired: usize,
    /// No entry is later than this: a clock that stepped back locks nobody out for longer.
    latest: Timestamp,
    /// The units taken.
    taken: Option<Entry>,
}

/// The charge that was decided, and what it does to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogTransition {
    /// What to do to the log, also when the request was denied.
    pub change: LogChange,
    /// The answer.
    pub decision: Decision,
}

/// At most `most` units at a time, each held for `hold`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Holding {
    pub(crate) most: u32,
    pub(crate) hold: Micros,
    /// Whether an entry's end is when it will be given back: true of a log, while a lease is
    /// usually released long before it ends.
    pub(crate) end_is_known: bool,
}

/// A log as it stands at the moment of a request.
struct Standing<'a> {
    log: &'a Log,
    now: Timestamp,
    latest: Timestamp,
    expired: usize,
    /// The oldest entry that still holds.
    first: Option<Entry>,
    /// Units of the entries that still hold.
    used: u64,
}

impl LogChange {
    /// How many entries of the log it was decided on stay, before one is entered.
    pub fn kept(&self, log: &Log) -> usize {
        log.len() - self.expired
    }
}

impl Log {
    /// How many entries it holds.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Entries there is room for without another allocation.
    pub fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    /// Entries that room is made for at once when there is none left. A long log grows by an eighth:
    /// what it takes at once, others may have to give at once.
    pub fn growth(&self) -> usize {
        match self.capacity() {
            capacity @ ..64 => capacity.max(4),
            capacity => capacity / 8,
        }
    }

    /// The entries, oldest first.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = Entry> {
        self.entries.iter().copied()
    }

    /// Does what was decided.
    pub fn apply(&mut self, change: LogChange) {
        // One by one: there is rarely more than one, and a `drain` costs more than several of these.
        for _ in 0..change.expired {
            let expired = self.entries.pop_front().expect("it was there when this was decided");
            self.units -= u64::from(expired.units);
        }
        for entry in self.entries.iter_mut().rev().take_while(|entry| entry.at > change.latest) {
            entry.at = change.latest;
        }
        if let Some(entry) = change.taken {
            self.push(entry);
        }
        if self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(self.entries.len() * 2);
        }
    }

    /// Gives `units` of the latest charges back, all of them if there are no more.
    pub(crate) fn give_back_latest(&mut self, mut units: u32) {
        while let Some(entry) = self.entries.back_mut().filter(|_| units > 0) {
            let back = units.min(entry.units);
            entry.units -= back;
            self.units -= u64::from(back);
            units -= back;
            if entry.units == 0 {
                self.entries.pop_back();
            }
        }
    }

    /// Gives `units` of a charge back, all of them if it has no more; tells how many that were.
    pub(crate) fn give_back(&mut self, id: ChargeId, units: u32) -> u32 {
        let Some(place) = self.entries.iter().rposition(|entry| entry.id == id) else { return 0 };
        let entry = &mut self.entries[place];
        let back = units.min(entry.units);
        entry.units -= back;
        if entry.units == 0 {
            self.entries.remove(place);
        }
        self.units -= u64::from(back);
        back
    }

    /// Starts the hold of a charge anew at `now`; false if it has ended or was given back.
    pub(crate) fn renew(&mut self, id: ChargeId, now: Timestamp) -> bool {
        let Some(place) = self.entries.iter().position(|entry| entry.id == id) else {
            return false;
        };
        let Some(entry) = self.entries.remove(place) else { return false };
        self.units -= u64::from(entry.units);
        let at = self.entries.back().map_or(now, |last| last.at.max(now));
        self.push(Entry { at, ..entry });
        true
    }

    #[cold]
    fn grow(&mut self) {
        self.entries.reserve_exact(self.growth());
    }

    /// An entry that is not earlier than any other.
    fn push(&mut self, entry: Entry) {
        if self.entries.len() < LOG_ENTRIES_MAX as usize {
            if self.entries.len() == self.entries.capacity() {
                self.grow();
            }
            self.units += u64::from(entry.units);
            self.entries.push_back(entry);
            return;
        }
        // Only forced charges come here; they still count, but no longer one by one. What they join
        // is held as long as they are, since the caller must not gain by it.
        let last = self.entries.back_mut().expect("a full log has a last entry");
        let units = entry.units.min(u32::MAX - last.units);
        last.at = entry.at;
        last.units += units;
        self.units += u64::from(units);
    }
}

impl FromIterator<Entry> for Log {
    /// A log of these entries, which come oldest first.
    fn from_iter<I: IntoIterator<Item = Entry>>(entries: I) -> Self {
        let mut log = Self::default();
        entries.into_iter().for_each(|entry| log.push(entry));
        log
    }
}

impl Holding {
    pub(crate) fn decide(
        &self,
        log: &Log,
        now: Timestamp,
        cost: Cost,
        id: ChargeId,
    ) -> LogTransition {
        let standing = self.standing(log, now);
        if standing.used + cost.get() <= u64::from(self.most) {
            return self.charged(&standing, cost, id);
        }
        let outcome = if cost.units() > self.most {
            Outcome::TooCostly
        } else {
            let room = u64::from(self.most) - cost.get();
            Outcome::Denied { retry_after: self.falls_to(room, &standing, None) }
        };
        let change = LogChange { expired: standing.expired, latest: standing.latest, taken: None };
        LogTransition { change, decision: self.decision(outcome, &standing, None) }
    }

    pub(crate) fn force(
        &self,
        log: &Log,
        now: Timestamp,
        cost: Cost,
        id: ChargeId,
    ) -> LogTransition {
        self.charged(&self.standing(log, now), cost, id)
    }

    /// What time alone does to `log`.
    pub(crate) fn due(&self, log: &Log, now: Timestamp) -> LogChange {
        let standing = self.standing(log, now);
        LogChange { expired: standing.expired, latest: standing.latest, taken: None }
    }

    pub(crate) fn vacant_at(&self, log: &Log) -> Timestamp {
        log.entries.back().map_or(Timestamp::EPOCH, |last| last.at.plus(self.hold))
    }

    #[inline(always)]
    fn standing<'a>(&self, log: &'a Log, now: Timestamp) -> Standing<'a> {
        let (mut expired, mut used) = (0, log.units);
        let first = loop {
            match log.entries.get(expired) {
                Some(entry) if now.since(entry.at) >= self.hold => {
                    expired += 1;
                    used -= u64::from(entry.units);
                }
                first => break first.copied(),
            }
        };
        Standing { log, now, latest: now.plus(self.hold), expired, first, used }
    }

    #[inline(always)]
    fn charged(&self, standing: &Standing<'_>, cost: Cost, id: ChargeId) -> LogTransition {
        let newest = standing.log.entries.back().map_or(Timestamp::EPOCH, |last| last.at);
        let at = newest.min(standing.latest).max(standing.now);
        let taken = (cost != Cost::PEEK).then_some(Entry { at, id, units: cost.units() });
        let change = LogChange { expired: standing.expired, latest: standing.latest, taken };
        LogTransition { change, decision: self.decision(Outcome::ALLOWED, standing, taken) }
    }

    #[inline(always)]
    fn decision(
        &self,
        outcome: Outcome,
        standing: &Standing<'_>,
        taken: Option<Entry>,
    ) -> Decision {
        let used = standing.used + taken.map_or(0, |entry| u64::from(entry.units));
        let most = u64::from(self.most);
        let remaining = most.saturating_sub(used);
        let next_after = if used == 0 {
            Some(Micros::ZERO)
        } else {
            self.falls_to(most.saturating_sub(remaining + 1), standing, taken)
        };
        let last = taken.or(standing.log.entries.back().copied());
        let reset_after = match last {
            Some(last) if used > 0 => self.ends_in(last, standing),
            _ => Micros::ZERO,
        };
        Decision { outcome, limit: self.most, remaining: remaining as u32, reset_after, next_after }
    }

    /// How long until at most `room` units are held, `taken` included.
    #[inline]
    fn falls_to(&self, room: u64, standing: &Standing<'_>, taken: Option<Entry>) -> Option<Micros> {
        if !self.end_is_known {
            return None;
        }
        let used = standing.used + taken.map_or(0, |entry| u64::from(entry.units));
        let excess = used - room;
        match standing.first.or(taken) {
            // The usual case, told apart for its speed: the first to end is enough.
            Some(first) if u64::from(first.units) >= excess => Some(self.ends_in(first, standing)),
            _ => self.falls_by(excess, standing, taken),
        }
    }

    /// How long until `excess` units fewer are held.
    ///
    /// The entries are added up from the oldest on, [`LOG_WALK_MAX`] of them at most. Those behind are
    /// taken for a unit each, which is the least: so the wait always works, and is the shortest unless
    /// more entries than that must end and some behind them hold several units.
    #[inline(never)]
    fn falls_by(
        &self,
        mut excess: u64,
        standing: &Standing<'_>,
        taken: Option<Entry>,
    ) -> Option<Micros> {
        let held = || standing.log.entries.range(standing.expired..).copied().chain(taken);
        let ends_in = |entry| self.ends_in(entry, standing);
        let mut ended = 0;
        // Entries of one moment have no order that both twins know, so they are added up all or none.
        let stop = held().nth(excess.min(u64::from(LOG_WALK_MAX)) as usize).map(ends_in);
        for entry in held().take_while(|&entry| stop.is_none_or(|stop| ends_in(entry) < stop)) {
            (excess, ended) = (excess.saturating_sub(u64::from(entry.units)), ended + 1);
            if excess == 0 {
                return Some(ends_in(entry));
            }
        }
        let last = held().nth(ended + excess as usize - 1).or_else(|| held().next_back());
        last.map(ends_in)
    }

    fn ends_in(&self, entry: Entry, standing: &Standing<'_>) -> Micros {
        standing.now.until_passed(self.hold, entry.at.min(standing.latest))
    }
}
