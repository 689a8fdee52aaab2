//! What was counted of late, in slices of time.
//!
//! What happens is counted into the slice of now only, of ten seconds. When it ends it is added to that
//! of five minutes, and this one, when it ends, to that of an hour. So a minute is told from six slices,
//! an hour from twelve and a day from twenty-four, and what has begun of the next.

use std::collections::VecDeque;
use std::sync::Arc;

use tollgate_core::{Micros, Timestamp};

use super::Span;
use super::summary::{Counters, Summary};

/// What was counted in one slice of time, or several.
#[derive(Clone, Debug, Default)]
pub(super) struct Slice {
    pub(super) requests: u64,
    pub(super) denied: u64,
    pub(super) early: u64,
    pub(super) busiest: Summary,
    pub(super) most_denied: Summary,
}

impl Slice {
    pub(super) fn merged(parts: &[Arc<Self>]) -> Self {
        let sum = |of: fn(&Self) -> u64| parts.iter().map(|part| of(part)).sum();
        Self {
            requests: sum(|part| part.requests),
            denied: sum(|part| part.denied),
            early: sum(|part| part.early),
            busiest: Summary::merged(parts.iter().map(|part| &part.busiest)),
            most_denied: Summary::merged(parts.iter().map(|part| &part.most_denied)),
        }
    }
}

/// A slice that is being counted.
#[derive(Debug)]
pub(super) struct Present {
    pub(super) requests: u64,
    pub(super) denied: u64,
    pub(super) early: u64,
    pub(super) busiest: Counters,
    pub(super) most_denied: Counters,
}

impl Present {
    fn new() -> Self {
        let (busiest, most_denied) = (Counters::new(), Counters::new());
        Self { requests: 0, denied: 0, early: 0, busiest, most_denied }
    }

    fn slice(&self) -> Slice {
        let &Self { requests, denied, early, .. } = self;
        let (busiest, most_denied) = (self.busiest.summary(), self.most_denied.summary());
        Slice { requests, denied, early, busiest, most_denied }
    }

    fn clear(&mut self) {
        (self.requests, self.denied, self.early) = (0, 0, 0);
        self.busiest.clear();
        self.most_denied.clear();
    }
}

/// Slices of one length.
#[derive(Debug)]
struct Row {
    length: u64,
    keeps: u64,
    /// Those that have ended, each with its number since the epoch.
    ended: VecDeque<(u64, Arc<Slice>)>,
    /// What of the present one came from shorter slices that have ended.
    begun: Option<Arc<Slice>>,
}

impl Row {
    fn new(length: Micros, keeps: u64) -> Self {
        Self { length: length.as_micros(), keeps, ended: VecDeque::new(), begun: None }
    }

    fn number(&self, now: Timestamp) -> u64 {
        now.as_micros() / self.length
    }

    /// Adds a shorter slice that has ended.
    fn add(&mut self, shorter: Arc<Slice>) {
        self.begun = Some(match self.begun.take() {
            Some(begun) => Arc::new(Slice::merged(&[begun, shorter])),
            None => shorter,
        });
    }

    /// Goes on from one moment to another; what has ended by that, if anything has.
    fn advance(&mut self, from: Timestamp, to: Timestamp) -> Option<Arc<Slice>> {
        let (before, number) = (self.number(from), self.number(to));
        if number == before {
            return None;
        }
        let ended = self.begun.take();
        self.ended.extend(ended.clone().map(|slice| (before, slice)));
        let first = (number + 1).saturating_sub(self.keeps);
        self.ended.retain(|(number, _)| *number >= first);
        ended
    }

    /// When the oldest slice that is told began.
    fn since(&self, now: Timestamp) -> Timestamp {
        let first = (self.number(now) + 1).saturating_sub(self.keeps);
        Timestamp::from_micros(first * self.length)
    }
}

/// All that is remembered of the last day.
#[derive(Debug)]
pub(super) struct Slices {
    started: Timestamp,
    /// The latest moment there was.
    now: Timestamp,
    pub(super) present: Present,
    rows: [Row; 3],
}

/// How long what happens is counted into one slice.
const SHORTEST: Micros = Micros::from_secs(10);

impl Slices {
    pub(super) fn new(now: Timestamp) -> Self {
        let rows = [
            Row::new(SHORTEST, 6),
            Row::new(Micros::from_secs(300), 12),
            Row::new(Micros::from_secs(3_600), 24),
        ];
        Self { started: now, now, present: Present::new(), rows }
    }

    /// Goes on to the slice of `now`. A clock that stepped back counts into the slice where it was.
    pub(super) fn advance(&mut self, now: Timestamp) {
        if now <= self.now {
            return;
        }
        let before = std::mem::replace(&mut self.now, now);
        if self.rows[0].number(before) == self.rows[0].number(now) {
            return;
        }
        let mut ended = Some(Arc::new(self.present.slice()));
        self.present.clear();
        for row in &mut self.rows {
            if let Some(ended) = ended.take() {
                row.add(ended);
            }
            ended = row.advance(before, now);
        }
    }

    /// The slices of a span, and how long that is so far.
    pub(super) fn tell(&self, span: Span) -> (Vec<Arc<Slice>>, Micros) {
        let row = &self.rows[span as usize];
        let begun = self.rows[..=span as usize].iter().filter_map(|row| row.begun.clone());
        let ended = row.ended.iter().map(|(_, slice)| Arc::clone(slice));
        let present = Arc::new(self.present.slice());
        let slices = ended.chain(begun).chain([present]).collect();
        (slices, self.now.since(row.since(self.now).max(self.started)))
    }
}
