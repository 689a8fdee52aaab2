//! Which keys came up most often, told from a bounded memory.
//!
//! Space saving: there are [`SUMMARY_KEYS`] counters, and a key that has none takes over the smallest,
//! with what that has counted as its possible error. So of a weight of N in all, a key of more than
//! N ÷ [`SUMMARY_KEYS`] has a counter, none is told too little, and none more than that too much.
//!
//! That stays true when summaries are put together ([`Summary::merged`]). What a key may have had that a
//! summary does not tell is at most its `floor`; call what a counter is above that its excess. In every
//! summary, [`SUMMARY_KEYS`] floors and all excesses are together at most N. Where two are put together
//! their floors and their excesses add up, and if more keys remain than there is room for, the largest
//! that is left out raises the floor to itself: by as much as it takes from the excess of each key that
//! stays. So the floor, which is the largest error, is never above N ÷ [`SUMMARY_KEYS`].

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use tollgate_core::Timestamp;

use crate::bounds::{KEY_TEXT_BYTES_MAX, SUMMARY_KEYS};

/// What is remembered of one key.
#[derive(Clone, Debug)]
pub(super) struct Counter {
    pub(super) key: u64,
    pub(super) text: Arc<str>,
    /// How much there was of what the summary counts, at most.
    pub(super) weight: u64,
    /// By how much that may be too much.
    pub(super) error: u64,
    /// Of a busy key its denials, of a denied one its requests.
    pub(super) other: u64,
    /// Denials that came before the wait was over that had been told.
    pub(super) early: u64,
    /// Whether it came back after such a wait.
    pub(super) has_waited: bool,
    /// Shares of its limit in use, in millionths, by their weight.
    pub(super) used: u64,
    /// How often that was looked at.
    pub(super) looks: u32,
    pub(super) first_seen: Timestamp,
}

/// What was counted in some time.
#[derive(Clone, Debug, Default)]
pub(super) struct Summary {
    /// All that was counted.
    pub(super) total: u64,
    /// What a key may have had that is not told, at most.
    floor: u64,
    pub(super) counters: Vec<Counter>,
}

impl Counter {
    fn with_text(&self, text: &str) -> Self {
        Self { text: text.into(), ..*self }
    }
}

impl Summary {
    /// One summary of the times of several.
    pub(super) fn merged<'s>(parts: impl Iterator<Item = &'s Self> + Clone) -> Self {
        let floors: u64 = parts.clone().map(|part| part.floor).sum();
        let total = parts.clone().map(|part| part.total).sum();
        let mut all: Vec<(&Counter, u64)> = parts
            .flat_map(|part| part.counters.iter().map(|counter| (counter, part.floor)))
            .collect();
        all.sort_unstable_by_key(|(counter, _)| counter.key);
        let together = all.chunk_by(|(one, _), (other, _)| one.key == other.key);
        let mut counters: Vec<Counter> = together.map(|same| together_with(same, floors)).collect();
        let mut floor = floors;
        if counters.len() > SUMMARY_KEYS {
            let by_weight = |one: &Counter, other: &Counter| other.weight.cmp(&one.weight);
            let (_, largest_out, _) = counters.select_nth_unstable_by(SUMMARY_KEYS, by_weight);
            floor = floor.max(largest_out.weight);
            counters.truncate(SUMMARY_KEYS);
            counters.shrink_to_fit();
        }
        Self { total, floor, counters }
    }
}

/// The counters of one key from several summaries, each with the floor of its own. In those that have
/// none it may have had their floor.
fn together_with(same: &[(&Counter, u64)], floors: u64) -> Counter {
    let elsewhere = floors - same.iter().map(|(_, floor)| floor).sum::<u64>();
    let (first, _) = same[0];
    let mut sum = first.clone();
    for (counter, _) in &same[1..] {
        sum.weight += counter.weight;
        sum.error += counter.error;
        sum.other += counter.other;
        sum.early += counter.early;
        sum.has_waited |= counter.has_waited;
        sum.used += counter.used;
        sum.looks = sum.looks.saturating_add(counter.looks);
        sum.first_seen = sum.first_seen.min(counter.first_seen);
    }
    Counter { weight: sum.weight + elsewhere, error: sum.error + elsewhere, ..sum }
}

/// A summary that is being counted.
#[derive(Debug)]
pub(super) struct Counters {
    total: u64,
    /// Their texts are not in them yet.
    counters: Vec<Counter>,
    /// By place, the text of its key. Written over by the next key there, so that keys that come and go take no
    /// memory anew.
    texts: Vec<String>,
    /// What is in a counter meanwhile.
    no_text: Arc<str>,
    /// By key, the place of its counter.
    places: HashMap<u64, u16, BuildHasherDefault<AlreadyHashed>>,
    /// The places of all counters as a heap, the smallest weight first.
    heap: Vec<u16>,
    /// By place, where in the heap it is.
    in_heap: Vec<u16>,
}

const _: () = assert!(SUMMARY_KEYS < u16::MAX as usize);

impl Counters {
    pub(super) fn new() -> Self {
        Self {
            total: 0,
            counters: Vec::with_capacity(SUMMARY_KEYS),
            texts: Vec::with_capacity(SUMMARY_KEYS),
            no_text: Arc::default(),
            // Twice the room, so that keys that come and go never make it grow.
            places: HashMap::with_capacity_and_hasher(2 * SUMMARY_KEYS, Default::default()),
            heap: Vec::with_capacity(SUMMARY_KEYS),
            in_heap: Vec::with_capacity(SUMMARY_KEYS),
        }
    }

    /// Counts a key, which is `write`'s to write if it is new.
    pub(super) fn count(
        &mut self,
        key: u64,
        weight: u64,
        now: Timestamp,
        write: impl FnOnce(&mut String),
    ) -> &mut Counter {
        self.total += weight;
        let place = match self.places.get(&key) {
            Some(place) => usize::from(*place),
            None => self.place_for(key, now, write),
        };
        self.counters[place].weight += weight;
        self.sink(self.in_heap[place].into());
        &mut self.counters[place]
    }

    /// What is counted of a key, if it has a counter.
    pub(super) fn get_mut(&mut self, key: u64) -> Option<&mut Counter> {
        let place = *self.places.get(&key)?;
        Some(&mut self.counters[usize::from(place)])
    }

    /// What was counted so far.
    pub(super) fn summary(&self) -> Summary {
        let counters = self.counters.iter().zip(&self.texts);
        let counters = counters.map(|(counter, text)| counter.with_text(text)).collect();
        Summary { total: self.total, floor: self.floor(), counters }
    }

    /// The same, and begins anew.
    pub(super) fn end(&mut self) -> Summary {
        let summary = self.summary();
        self.total = 0;
        self.counters.clear();
        self.places.clear();
        self.heap.clear();
        self.in_heap.clear();
        summary
    }

    /// What a key may have had that has no counter.
    fn floor(&self) -> u64 {
        let least = self.heap.first().filter(|_| self.is_full());
        least.map_or(0, |least| self.weight(*least))
    }

    /// How many entries there is room for, in all its lists.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        // What a map can take depends on what left it; it grows to at least twice as much.
        assert!(self.places.capacity() < 4 * SUMMARY_KEYS, "it has grown");
        let longest = KEY_TEXT_BYTES_MAX + '…'.len_utf8();
        assert!(
            self.texts.iter().all(|text| text.capacity() <= longest),
            "no more than the longest"
        );
        let lists = [&self.heap, &self.in_heap].map(Vec::capacity).iter().sum::<usize>();
        self.counters.capacity() + self.texts.capacity() + lists
    }

    fn is_full(&self) -> bool {
        self.counters.len() == SUMMARY_KEYS
    }

    /// Finds a place for a new key: that of the smallest, if there is no other.
    fn place_for(&mut self, key: u64, now: Timestamp, write: impl FnOnce(&mut String)) -> usize {
        let mut counter = Counter {
            key,
            text: Arc::clone(&self.no_text),
            weight: 0,
            error: 0,
            other: 0,
            early: 0,
            has_waited: false,
            used: 0,
            looks: 0,
            first_seen: now,
        };
        let place = if self.is_full() {
            let place = self.heap[0];
            let before = &mut self.counters[usize::from(place)];
            self.places.remove(&before.key);
            (counter.weight, counter.error) = (before.weight, before.weight);
            *before = counter;
            place
        } else {
            let place = self.counters.len() as u16;
            self.counters.push(counter);
            self.in_heap.push(place);
            self.heap.push(place);
            self.rise(place.into());
            place
        };
        self.places.insert(key, place);
        let place = usize::from(place);
        match self.texts.get_mut(place) {
            Some(text) => text.clear(),
            None => self.texts.push(String::new()),
        }
        write(&mut self.texts[place]);
        place
    }

    fn weight(&self, place: u16) -> u64 {
        self.counters[usize::from(place)].weight
    }

    /// Moves what is `at` a place of the heap down to where it belongs.
    fn sink(&mut self, mut at: usize) {
        loop {
            let lesser = |one: usize, other: usize| {
                let is_lesser = other < self.heap.len()
                    && self.weight(self.heap[other]) < self.weight(self.heap[one]);
                if is_lesser { other } else { one }
            };
            let least = lesser(lesser(at, 2 * at + 1), 2 * at + 2);
            if least == at {
                return;
            }
            self.swap(at, least);
            at = least;
        }
    }

    /// The same, up.
    fn rise(&mut self, mut at: usize) {
        while at > 0 {
            let above = (at - 1) / 2;
            if self.weight(self.heap[above]) <= self.weight(self.heap[at]) {
                return;
            }
            self.swap(at, above);
            at = above;
        }
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.heap.swap(one, other);
        for at in [one, other] {
            self.in_heap[usize::from(self.heap[at])] = at as u16;
        }
    }
}

/// A key's number is a keyed hash already, and nobody can choose it.
#[derive(Default)]
struct AlreadyHashed(u64);

impl Hasher for AlreadyHashed {
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are numbers");
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Cuts a key's text if it is too long to be kept.
pub(super) fn cut(text: &mut String) {
    if text.len() > KEY_TEXT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(KEY_TEXT_BYTES_MAX));
        text.push('…');
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_micros(1_760_000_000_000_000);

    /// Keys by their rank, the nth 1 ÷ n as often as the first: as traffic is.
    pub(in crate::observe) struct Zipf {
        sums: Vec<f64>,
        random: u64,
    }

    impl Zipf {
        pub(in crate::observe) fn new(keys: u32) -> Self {
            let sums = (1..=keys).scan(0.0, |sum, rank| {
                *sum += f64::from(rank).recip();
                Some(*sum)
            });
            Self { sums: sums.collect(), random: 1 }
        }

        pub(in crate::observe) fn next(&mut self) -> u64 {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let share = (self.random >> 11) as f64 / (1_u64 << 53) as f64;
            let wanted = share * self.sums.last().expect("some keys");
            self.sums.partition_point(|sum| *sum < wanted) as u64
        }
    }

    /// A number for a key as a store makes one: scattered over all numbers.
    pub(in crate::observe) fn number(key: u64) -> u64 {
        let mixed = (key ^ key >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    fn count(counters: &mut Counters, key: u64, weight: u64) {
        counters.count(number(key), weight, START, |text| *text = key.to_string());
    }

    /// Says that a summary is right of keys that came up so often: no figure too small, none too large by
    /// more than is stated, and every key told that came up more often than that.
    pub(in crate::observe) fn check(summary: &Summary, exact: &[u64]) {
        let total: u64 = exact.iter().sum();
        let most = total / SUMMARY_KEYS as u64;
        assert_eq!(summary.total, total);
        assert!(summary.floor <= most && summary.counters.len() <= SUMMARY_KEYS);
        let key = |counter: &Counter| counter.text.parse::<usize>().expect("a number");
        for counter in &summary.counters {
            let exact = exact[key(counter)];
            assert!((exact..=exact + most).contains(&counter.weight), "{exact}: {counter:?}");
            assert!(counter.weight - counter.error <= exact, "{exact}: {counter:?}");
            assert!(counter.error <= summary.floor, "{counter:?}");
        }
        for (key, times) in exact.iter().enumerate().filter(|(_, times)| **times > most) {
            let told = summary.counters.iter().any(|counter| counter.key == number(key as u64));
            assert!(told, "key {key} came up {times} times");
        }
    }

    #[test]
    fn on_zipf_traffic_no_count_is_too_small_and_none_too_large_by_more_than_stated() {
        for weight in [1, 64] {
            let (mut zipf, mut counters) = (Zipf::new(20_000), Counters::new());
            let mut exact = vec![0; 20_000];
            for _ in 0..100_000 {
                let key = zipf.next();
                exact[key as usize] += weight;
                count(&mut counters, key, weight);
            }
            check(&counters.summary(), &exact);
        }
    }

    #[test]
    fn so_it_is_of_many_summaries_put_together_one_after_the_other_or_at_once() {
        let (mut zipf, mut exact) = (Zipf::new(20_000), vec![0; 20_000]);
        let mut parts = Vec::new();
        let mut in_turn = Summary::default();
        for part in 0..24_u64 {
            let mut counters = Counters::new();
            for turn in 0..4_000 {
                // Traffic changes: who was busy is not for ever. And weights differ.
                let (key, weight) = ((zipf.next() + part * 300) % 20_000, 1 + turn % 3);
                exact[key as usize] += weight;
                count(&mut counters, key, weight);
            }
            parts.push(counters.summary());
            in_turn = Summary::merged([&in_turn, &parts[parts.len() - 1]].into_iter());
            check(&in_turn, &exact);
        }
        check(&Summary::merged(parts.iter()), &exact);
    }

    #[test]
    fn keys_that_all_come_up_alike_are_told_with_their_error() {
        let (mut counters, mut exact) = (Counters::new(), vec![0; 5_000]);
        for key in (0..5_000).chain(0..5_000) {
            exact[key] += 1;
            count(&mut counters, key as u64, 1);
        }
        let summary = counters.summary();
        check(&summary, &exact);
        check(&Summary::merged([&summary, &Summary::default()].into_iter()), &exact);
    }

    #[test]
    fn what_else_is_known_of_a_key_is_added_up_and_it_was_first_seen_when_it_first_was() {
        let summary = |at: u64, waited| {
            let mut counters = Counters::new();
            let now = START.plus(tollgate_core::Micros::from_secs(at));
            let counter = counters.count(7, 2, now, |text| text.push_str("api:a"));
            (counter.other, counter.early, counter.used, counter.looks) = (3, 4, 5, 6);
            counter.has_waited = waited;
            counters.summary()
        };
        let parts = [summary(60, false), summary(0, true)];
        let merged = Summary::merged(parts.iter());
        let [counter] = &merged.counters[..] else { panic!("one key: {merged:?}") };
        let Counter { weight, error, other, early, used, looks, has_waited, first_seen, .. } =
            counter;
        assert_eq!((*weight, *error, *other, *early, *used, *looks), (4, 0, 6, 8, 10, 12));
        assert_eq!((*has_waited, *first_seen), (true, START));
    }

    #[test]
    fn a_key_that_takes_the_place_of_another_is_written_where_that_was() {
        let mut counters = Counters::new();
        let mut come = |keys: std::ops::Range<usize>| {
            for key in keys {
                counters.count(number(key as u64), 1, START, |text| {
                    text.push_str(&format!("{key:08}"));
                });
            }
            counters.texts.iter().map(|text| text.as_ptr()).collect::<Vec<_>>()
        };
        let first = come(0..SUMMARY_KEYS);
        assert_eq!(come(SUMMARY_KEYS..9 * SUMMARY_KEYS), first);
        let ended = counters.end();
        let told = ended.counters.iter().map(|counter| counter.text.parse().expect("a number"));
        assert!(
            told.clone().all(|key: usize| key >= 8 * SUMMARY_KEYS) && told.count() == SUMMARY_KEYS
        );
        assert!(counters.summary().counters.is_empty(), "what ended is not told again");
    }

    #[test]
    fn texts_are_cut_where_a_letter_begins() {
        let text = |text: &str| {
            let mut text = text.to_owned();
            cut(&mut text);
            text
        };
        let longest = "a".repeat(KEY_TEXT_BYTES_MAX);
        assert_eq!(text(&longest), longest);
        assert_eq!(text(&format!("{longest}b")), format!("{longest}…"));
        let cut = text(&"ü".repeat(KEY_TEXT_BYTES_MAX));
        assert_eq!(cut, format!("{}…", "ü".repeat(KEY_TEXT_BYTES_MAX / 2)));
        assert_eq!(text(&format!("a{}", "ü".repeat(KEY_TEXT_BYTES_MAX))).len(), 255 + 3);
    }
}
