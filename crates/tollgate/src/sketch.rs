//! Which keys something happens to most often, told from a bounded memory.
//!
//! Space saving: there are [`SKETCH_KEYS`] counters, and a key that has none takes over the smallest,
//! with what that has counted as its possible error. So of N times, a key that came up more than
//! N ÷ [`SKETCH_KEYS`] times is among them, none is told too few, and none more than that too many.
//!
//! What is told is of late: of the present period and the one before it.
//!
//! Nobody ever waits here. Who finds the sketch in use by somebody else leaves it to the next one to
//! count for both: the sum stays right, and of keys that come up together the more frequent ones are
//! the more likely to be counted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollgate_core::{Micros, Timestamp};

use crate::bounds::{SKETCH_KEY_BYTES_MAX, SKETCH_KEYS, SKETCH_PERIOD};

/// Counts keys as they come up.
#[derive(Debug, Default)]
pub(crate) struct Sketch {
    periods: Mutex<Periods>,
    /// How many times somebody found the sketch in use.
    uncounted: AtomicU64,
}

/// What a sketch remembers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frequent {
    /// For how long it has counted.
    pub since: Micros,
    /// How often anything came up.
    pub total: u64,
    /// The keys, the most frequent one first.
    pub keys: Vec<FrequentKey>,
}

/// A key, and how often it came up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrequentKey {
    /// As text, cut if it is very long.
    pub key: String,
    /// How often at most.
    pub count: u64,
    /// By how much that may be too many.
    pub error: u64,
}

impl Sketch {
    /// Counts a key, which is `write`'s to write.
    pub(crate) fn count(&self, now: Timestamp, write: impl FnOnce(&mut String)) {
        let Ok(mut periods) = self.periods.try_lock() else {
            self.uncounted.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let times = 1 + self.uncounted.swap(0, Ordering::Relaxed);
        periods.count(now, times, write);
    }

    /// What came up most often.
    pub(crate) fn tell(&self, now: Timestamp) -> Frequent {
        let mut periods = self.lock();
        periods.advance(now);
        periods.tell(now)
    }

    fn lock(&self) -> MutexGuard<'_, Periods> {
        self.periods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct Periods {
    began: Option<Timestamp>,
    present: Counters,
    past: Counters,
    /// Where keys are written.
    text: String,
}

impl Periods {
    fn count(&mut self, now: Timestamp, times: u64, write: impl FnOnce(&mut String)) {
        self.advance(now);
        self.text.clear();
        write(&mut self.text);
        cut(&mut self.text);
        self.present.count(&self.text, times);
    }

    /// Goes on to the period of `now`.
    fn advance(&mut self, now: Timestamp) {
        let began = *self.began.get_or_insert(now);
        if now < began.plus(SKETCH_PERIOD) {
            return;
        }
        let is_next = now < began.plus(SKETCH_PERIOD).plus(SKETCH_PERIOD);
        let present = std::mem::take(&mut self.present);
        self.past = if is_next { present } else { Counters::default() };
        self.began = Some(if is_next { began.plus(SKETCH_PERIOD) } else { now });
    }

    fn tell(&self, now: Timestamp) -> Frequent {
        let Self { present, past, .. } = self;
        let began = self.began.unwrap_or(now);
        let before = if past.total > 0 { SKETCH_PERIOD } else { Micros::ZERO };
        let since = Micros::new(now.since(began).as_micros() + before.as_micros());
        let only_past = past.keys.iter().filter(|key| !present.places.contains_key(*key));
        let mut keys: Vec<FrequentKey> = present
            .keys
            .iter()
            .chain(only_past)
            .map(|key| {
                let (now, before) = (present.get(key), past.get(key));
                let (count, error) = (now.count + before.count, now.error + before.error);
                FrequentKey { key: key.to_string(), count, error }
            })
            .collect();
        keys.sort_by(|one, other| (other.count, &one.key).cmp(&(one.count, &other.key)));
        keys.truncate(SKETCH_KEYS);
        Frequent { since, total: present.total + past.total, keys }
    }
}

/// The counters of one period.
#[derive(Debug, Default)]
struct Counters {
    places: HashMap<Arc<str>, usize>,
    keys: Vec<Arc<str>>,
    counters: Vec<Counter>,
    total: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    count: u64,
    error: u64,
}

impl Counters {
    fn count(&mut self, key: &str, times: u64) {
        self.total += times;
        if let Some(place) = self.places.get(key) {
            self.counters[*place].count += times;
            return;
        }
        let key: Arc<str> = key.into();
        let place = self.keys.len();
        if place < SKETCH_KEYS {
            self.keys.push(Arc::clone(&key));
            self.counters.push(Counter { count: times, error: 0 });
            self.places.insert(key, place);
            return;
        }
        let least = self.counters.iter().enumerate().min_by_key(|(_, counter)| counter.count);
        let (place, Counter { count, .. }) = least.map(|(place, it)| (place, *it)).expect("some");
        self.places.remove(&self.keys[place]);
        self.keys[place] = Arc::clone(&key);
        self.counters[place] = Counter { count: count + times, error: count };
        self.places.insert(key, place);
    }

    /// How often a key came up; one that has no counter may have had the smallest.
    fn get(&self, key: &str) -> Counter {
        match self.places.get(key) {
            Some(place) => self.counters[*place],
            None if self.keys.len() < SKETCH_KEYS => Counter::default(),
            None => {
                let least = self.counters.iter().map(|counter| counter.count).min();
                let least = least.unwrap_or_default();
                Counter { count: least, error: least }
            }
        }
    }
}

/// Cuts a text that is too long to be kept; all that begin alike are then one.
fn cut(text: &mut String) {
    if text.len() > SKETCH_KEY_BYTES_MAX {
        text.truncate(text.floor_char_boundary(SKETCH_KEY_BYTES_MAX));
        text.push('…');
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const START: Timestamp = Timestamp::from_micros(1_760_000_000_000_000);

    fn count(sketch: &Sketch, now: Timestamp, key: &str) {
        sketch.count(now, |text| text.push_str(key));
    }

    /// Keys by their rank, the nth 1 ÷ n as often as the first: as traffic is.
    struct Zipf {
        sums: Vec<f64>,
        random: u64,
    }

    impl Zipf {
        fn new(keys: u32) -> Self {
            let sums = (1..=keys).scan(0.0, |sum, rank| {
                *sum += f64::from(rank).recip();
                Some(*sum)
            });
            Self { sums: sums.collect(), random: 1 }
        }

        fn next(&mut self) -> usize {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let share = (self.random >> 11) as f64 / (1_u64 << 53) as f64;
            let wanted = share * self.sums.last().expect("some keys");
            self.sums.partition_point(|sum| *sum < wanted)
        }
    }

    #[test]
    fn on_zipf_traffic_counts_are_never_too_small_and_too_large_by_no_more_than_stated() {
        const TIMES: u64 = 60_000;
        let (mut zipf, sketch) = (Zipf::new(10_000), Sketch::default());
        let mut exact = vec![0_u64; 10_000];
        for _ in 0..TIMES {
            let key = zipf.next();
            exact[key] += 1;
            count(&sketch, START, &format!("api:{key}"));
        }
        let told = sketch.tell(START);
        assert_eq!((told.total, told.keys.len()), (TIMES, SKETCH_KEYS));
        let most = TIMES / SKETCH_KEYS as u64;
        let of = |key: &FrequentKey| exact[key.key[4..].parse::<usize>().unwrap()];
        for key in &told.keys {
            assert!((of(key)..=of(key) + most).contains(&key.count), "{key:?}: {}", of(key));
            assert!(key.count - key.error <= of(key) && key.error <= most, "{key:?}");
        }
        let frequent = exact.iter().enumerate().filter(|(_, times)| **times > most);
        for (key, _) in frequent {
            assert!(told.keys.iter().any(|told| told.key == format!("api:{key}")), "{key}");
        }
        let first: Vec<&str> = told.keys[..5].iter().map(|key| &*key.key).collect();
        assert_eq!(first, ["api:0", "api:1", "api:2", "api:3", "api:4"]);
    }

    #[test]
    fn what_is_told_is_of_late() {
        let sketch = Sketch::default();
        let after = |periods: u64| START.plus(Micros::new(SKETCH_PERIOD.as_micros() * periods));
        let keys = |now| -> Vec<(String, u64)> {
            sketch.tell(now).keys.into_iter().map(|told| (told.key, told.count)).collect()
        };
        count(&sketch, START, "a");
        count(&sketch, after(1), "a");
        count(&sketch, after(1), "b");
        assert_eq!(keys(after(1)), [("a".to_owned(), 2), ("b".to_owned(), 1)]);
        assert_eq!(sketch.tell(after(1)).since, SKETCH_PERIOD);
        assert_eq!(keys(after(2)), [("a".to_owned(), 1), ("b".to_owned(), 1)]);
        assert_eq!(keys(after(3)), []);
        count(&sketch, after(3), "c");
        assert_eq!(keys(START), [("c".to_owned(), 1)], "a clock that stepped back");
        assert_eq!(keys(after(9)), []);
    }

    #[test]
    fn a_key_that_fell_out_of_one_period_is_not_told_too_few() {
        let sketch = Sketch::default();
        for key in 0..2 * SKETCH_KEYS {
            count(&sketch, START, &key.to_string());
        }
        let later = START.plus(SKETCH_PERIOD);
        count(&sketch, later, "0");
        let told = sketch.tell(later);
        let first = told.keys.iter().find(|told| told.key == "0").unwrap();
        assert!(first.count >= 2 && first.count - first.error <= 2, "{first:?}");
        assert_eq!(told.keys.len(), SKETCH_KEYS);
    }

    #[test]
    fn memory_is_bounded_by_keys_and_by_bytes() {
        let sketch = Sketch::default();
        for key in 0..2_000 {
            count(&sketch, START, &format!("{key}{}", "ü".repeat(SKETCH_KEY_BYTES_MAX)));
        }
        let told = sketch.tell(START);
        assert_eq!(told.keys.len(), SKETCH_KEYS);
        assert!(told.keys.iter().all(|told| told.key.len() <= SKETCH_KEY_BYTES_MAX + 3));
        assert!(told.keys.iter().all(|told| told.key.ends_with("ü…")));
    }

    #[test]
    fn threads_that_meet_lose_nothing_of_the_sum() {
        let sketch = Sketch::default();
        thread::scope(|scope| {
            for thread in 0..4 {
                let sketch = &sketch;
                scope.spawn(move || {
                    (0..20_000).for_each(|_| count(sketch, START, &thread.to_string()));
                });
            }
        });
        // Whoever comes next counts for those who found nobody after them.
        count(&sketch, START, "last");
        let told = sketch.tell(START);
        assert_eq!(told.total, 80_001);
        assert_eq!(told.keys.iter().map(|told| told.count).sum::<u64>(), 80_001);
    }
}
