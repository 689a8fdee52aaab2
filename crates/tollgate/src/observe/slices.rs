//! What was counted of late, in slices of time.
//!
//! What happens is counted into the slice of now only, of ten seconds. When it ends it is added to that
//! of five minutes, and this one, when it ends, to that of an hour. So a minute is told from six slices,
//! an hour from twelve and a day from twenty-four, and what has begun of the next.
//!
//! Adding full slices takes a third of a millisecond, and it is done by whoever sends the next request. So
//! each of the next few does a part of it; whoever wants to be told does the rest first.

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
    /// Those of them that were told a wait, and those that did not keep to one.
    pub(super) told: u64,
    pub(super) early: u64,
    pub(super) busiest: Summary,
    pub(super) most_denied: Summary,
}

impl Slice {
    pub(super) fn merged(parts: &[Arc<Self>]) -> Self {
        Self::merged_with(parts, Self::busiest_of(parts))
    }

    /// One half of the work.
    fn busiest_of(parts: &[Arc<Self>]) -> Summary {
        Summary::merged(parts.iter().map(|part| &part.busiest))
    }

    /// The other half.
    fn merged_with(parts: &[Arc<Self>], busiest: Summary) -> Self {
        let sum = |of: fn(&Self) -> u64| parts.iter().map(|part| of(part)).sum();
        Self {
            requests: sum(|part| part.requests),
            denied: sum(|part| part.denied),
            told: sum(|part| part.told),
            early: sum(|part| part.early),
            busiest,
            most_denied: Summary::merged(parts.iter().map(|part| &part.most_denied)),
        }
    }
}

/// A slice that is being counted.
#[derive(Debug)]
pub(super) struct Present {
    pub(super) requests: u64,
    pub(super) denied: u64,
    pub(super) told: u64,
    pub(super) early: u64,
    pub(super) busiest: Counters,
    pub(super) most_denied: Counters,
}

impl Present {
    fn new() -> Self {
        let (busiest, most_denied) = (Counters::new(), Counters::new());
        Self { requests: 0, denied: 0, told: 0, early: 0, busiest, most_denied }
    }

    fn slice(&self) -> Slice {
        let &Self { requests, denied, told, early, .. } = self;
        let (busiest, most_denied) = (self.busiest.summary(), self.most_denied.summary());
        Slice { requests, denied, told, early, busiest, most_denied }
    }

    /// Ends it, and begins anew.
    fn end(&mut self) -> Slice {
        let &mut Self { requests, denied, told, early, .. } = self;
        (self.requests, self.denied, self.told, self.early) = (0, 0, 0, 0);
        let (busiest, most_denied) = (self.busiest.end(), self.most_denied.end());
        Slice { requests, denied, told, early, busiest, most_denied }
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

/// A row that is still to go on from one moment to another, and so are those of longer slices.
#[derive(Debug)]
struct Due {
    row: usize,
    /// What has ended in the row of shorter slices, if anything has.
    ended: Option<Arc<Slice>>,
    /// The busiest keys of that and of what the row has begun, when they are put together.
    busiest: Option<Summary>,
    from: Timestamp,
    to: Timestamp,
}

/// All that is remembered of the last day.
#[derive(Debug)]
pub(super) struct Slices {
    started: Timestamp,
    /// The latest moment there was.
    now: Timestamp,
    pub(super) present: Present,
    rows: [Row; 3],
    due: Option<Due>,
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
        Self { started: now, now, present: Present::new(), rows, due: None }
    }

    /// Goes on to the slice of `now`, and does a part of what is due. A clock that stepped back counts
    /// into the slice where it was.
    pub(super) fn go_on(&mut self, now: Timestamp) {
        let (from, to) = (self.now, self.now.max(now));
        self.now = to;
        if self.rows[0].number(from) == self.rows[0].number(to) {
            return self.do_part();
        }
        // So few came in the last ten seconds that they have not done it all.
        self.do_all();
        let ended = Some(Arc::new(self.present.end()));
        self.due = Some(Due { row: 0, ended, busiest: None, from, to });
        self.do_part();
    }

    /// The same, and all of what is due.
    pub(super) fn advance(&mut self, now: Timestamp) {
        self.go_on(now);
        self.do_all();
    }

    fn do_all(&mut self) {
        while self.due.is_some() {
            self.do_part();
        }
    }

    /// Puts two lists of keys together, at most.
    fn do_part(&mut self) {
        let Some(Due { row: number, ended, busiest, from, to }) = self.due.take() else { return };
        let row = &mut self.rows[number];
        match (ended, row.begun.take()) {
            (Some(ended), Some(begun)) => {
                let parts = [begun, ended];
                let Some(busiest) = busiest else {
                    let busiest = Some(Slice::busiest_of(&parts));
                    let [begun, ended] = parts;
                    row.begun = Some(begun);
                    self.due = Some(Due { row: number, ended: Some(ended), busiest, from, to });
                    return;
                };
                row.begun = Some(Arc::new(Slice::merged_with(&parts, busiest)));
            }
            (ended, begun) => row.begun = ended.or(begun),
        }
        let ended = row.advance(from, to);
        let is_last = number + 1 == self.rows.len();
        self.due = (!is_last).then_some(Due { row: number + 1, ended, busiest: None, from, to });
    }

    /// How many counters there is room for in slices that have ended, and how much in the present one.
    #[cfg(test)]
    pub(super) fn room(&self) -> (usize, usize) {
        let rows = self.rows.iter();
        let kept = rows.flat_map(|row| row.ended.iter().map(|(_, slice)| slice).chain(&row.begun));
        let kept = kept
            .map(|slice| slice.busiest.counters.capacity() + slice.most_denied.counters.capacity());
        let due = self.due.iter().filter_map(|due| due.busiest.as_ref());
        let due = due.map(|busiest| busiest.counters.capacity());
        (kept.chain(due).sum(), self.present.busiest.room() + self.present.most_denied.room())
    }

    /// How many bytes the longest key has that is counted now.
    #[cfg(test)]
    pub(super) fn longest_text(&self) -> Option<usize> {
        let Summary { counters, .. } = self.present.busiest.summary();
        counters.iter().map(|counter| counter.text.len()).max()
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

#[cfg(test)]
mod tests {
    use super::super::summary::tests::{Zipf, check, number};
    use super::*;
    use crate::bounds::SUMMARY_KEYS;

    /// A midnight, where slices of every length begin.
    const START: Timestamp = Timestamp::from_micros(1_760_054_400_000_000);

    fn after(secs: u64) -> Timestamp {
        START.plus(Micros::from_secs(secs))
    }

    fn count(slices: &mut Slices, secs: u64, key: u64) {
        slices.advance(after(secs));
        let (key, text, now) = (number(key), key.to_string(), after(secs));
        slices.present.requests += 1;
        slices.present.busiest.count(key, 1, now, |to| to.push_str(&text));
        slices.present.most_denied.count(key, 1, now, |to| to.push_str(&text));
    }

    fn told(slices: &mut Slices, secs: u64, span: Span) -> (Slice, Micros) {
        slices.advance(after(secs));
        let (parts, period) = slices.tell(span);
        (Slice::merged(&parts), period)
    }

    #[test]
    fn on_zipf_traffic_every_span_is_right_within_its_error() {
        const KEYS: usize = 3_000;
        let (mut zipf, mut slices) = (Zipf::new(KEYS as u32), Slices::new(START));
        // Every second of 26 hours would be many: bursts of 40 in every other minute.
        let seen: Vec<(u64, u64)> = (0..26 * 30)
            .flat_map(|burst| (0..40).map(move |second| burst * 120 + second))
            .map(|second| (second, (zipf.next() + second / 7_200) % KEYS as u64))
            .collect();
        for (second, key) in &seen {
            count(&mut slices, *second, *key);
        }
        let end = seen[seen.len() - 1].0;
        for (span, length, keeps) in
            [(Span::Minute, 10, 6), (Span::Hour, 300, 12), (Span::Day, 3_600, 24)]
        {
            let since = (end / length + 1 - keeps) * length;
            let mut exact = vec![0; KEYS];
            for (_, key) in seen.iter().filter(|(second, _)| *second >= since) {
                exact[*key as usize] += 1;
            }
            let (slice, period) = told(&mut slices, end, span);
            check(&slice.busiest, &exact);
            check(&slice.most_denied, &exact);
            assert_eq!(slice.requests, exact.iter().sum::<u64>());
            assert_eq!(period, Micros::from_secs(end - since), "{span:?}");
        }
    }

    #[test]
    fn each_span_forgets_what_is_older() {
        let mut slices = Slices::new(START);
        count(&mut slices, 0, 1);
        for (secs, expected) in [
            (0, [1, 1, 1]),
            (59, [1, 1, 1]),
            (60, [0, 1, 1]),
            (3_599, [0, 1, 1]),
            (3_600, [0, 0, 1]),
            (86_399, [0, 0, 1]),
            (86_400, [0, 0, 0]),
        ] {
            let spans = [Span::Minute, Span::Hour, Span::Day];
            let told = spans.map(|span| told(&mut slices, secs, span).0.requests);
            assert_eq!(told, expected, "after {secs} seconds");
        }
    }

    #[test]
    fn what_has_ended_is_put_together_a_list_with_each_request_and_comes_to_the_same() {
        let (mut at_once, mut in_parts) = (Slices::new(START), Slices::new(START));
        let mut zipf = Zipf::new(3_000);
        let mut most = 0;
        // Two hours, the ends of which end slices of every length.
        for second in (0..7_200).step_by(10) {
            at_once.advance(after(second));
            let mut parts = 0;
            while parts == 0 || in_parts.due.is_some() {
                let lists = |slices: &Slices| -> Vec<usize> {
                    let begun = slices.rows.iter().map(|row| &row.begun);
                    begun.map(|it| it.as_ref().map_or(0, |it| Arc::as_ptr(it) as usize)).collect()
                };
                let before = lists(&in_parts);
                in_parts.go_on(after(second));
                let changed = lists(&in_parts).iter().zip(&before).filter(|(a, b)| a != b).count();
                assert!(changed <= 1, "one row with each request");
                parts += 1;
            }
            most = most.max(parts);
            for _ in 0..200 {
                let key = zipf.next();
                count(&mut at_once, second, key);
                count(&mut in_parts, second, key);
            }
        }
        assert_eq!(most, 5, "the present slice, and two lists of each longer one");
        for span in [Span::Minute, Span::Hour, Span::Day] {
            let [one, other] = [&mut at_once, &mut in_parts].map(|slices| {
                let (slice, period) = told(slices, 7_199, span);
                let mut keys: Vec<_> =
                    slice.busiest.counters.iter().map(|it| (it.key, it.weight, it.error)).collect();
                keys.sort_unstable();
                (keys, slice.requests, slice.most_denied.total, period)
            });
            assert_eq!(one, other, "{span:?}");
        }
    }

    #[test]
    fn a_long_silence_ends_every_slice_at_once() {
        let mut slices = Slices::new(START);
        count(&mut slices, 5, 1);
        count(&mut slices, 1_000_000, 2);
        assert_eq!(told(&mut slices, 1_000_000, Span::Day).0.requests, 1);
        let kept = |row: &Row| row.ended.len();
        assert_eq!(slices.rows.iter().map(kept).sum::<usize>(), 0);
    }

    #[test]
    fn a_clock_that_steps_back_counts_into_the_slice_where_it_was() {
        let mut slices = Slices::new(START);
        count(&mut slices, 3_600, 1);
        count(&mut slices, 0, 2);
        let (slice, period) = told(&mut slices, 10, Span::Minute);
        assert_eq!((slice.requests, slice.busiest.counters.len()), (2, 2));
        assert_eq!(period, Micros::from_secs(50));
    }

    #[test]
    fn full_slices_take_no_more_room_whatever_comes() {
        let mut slices = Slices::new(START);
        let mut key = 0;
        let mut fill = |slices: &mut Slices, secs: u64, keys: u64| {
            for _ in 0..keys {
                key += 1;
                count(slices, secs, key);
            }
        };
        // One in every five minutes, and all of the last one.
        for slice in (0..24 * 360).filter(|slice| slice % 30 == 0 || *slice > 24 * 360 - 6) {
            fill(&mut slices, slice * 10, SUMMARY_KEYS as u64 + 1);
        }
        let before = slices.room();
        let most = 2 * SUMMARY_KEYS * (6 + 12 + 24 + 2);
        assert!(before.0 <= most, "{} counters of {most}", before.0);
        fill(&mut slices, 24 * 3_600 - 1, 20_000);
        assert_eq!(slices.room(), before);
    }
}
