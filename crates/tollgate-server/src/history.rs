//! The last quarter of an hour, for people who look at a server while it runs.
//!
//! Once a second it is told what has been counted since the start, and keeps what is new: of all
//! requests by the second, of the first [`HISTORY_LIMITS`] limits by steps of [`STEP_SECONDS`]. So what
//! it remembers is as large as it will ever be from the start, and whoever asks costs a server what it
//! takes to write the answer, however much it decides.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::time::{MissedTickBehavior, interval};
use tollgate::metrics::{Histogram, LimitCount, Metrics};
use tollgate::observe::Advice;
use tollgate::{Layer, Limiter, Ruling};

use crate::bounds::{ADVICE_SECONDS, HISTORY_LIMITS, HISTORY_SECONDS, HISTORY_STEPS, STEP_SECONDS};
use crate::gate::Gate;

/// A history that is added to while others read it.
#[derive(Debug)]
pub(crate) struct Kept {
    history: Mutex<History>,
    /// What was said to whom minds the limits, and when.
    advice: Mutex<Option<(u64, Vec<Advice>)>>,
}

/// What was counted when.
#[derive(Debug)]
pub(crate) struct History {
    /// The last whole second, counted from the start.
    second: u64,
    /// Up to it; the oldest first.
    seconds: VecDeque<Second>,
    limits: Vec<Track>,
    /// What had been counted at its end.
    totals: Arc<Metrics>,
}

/// What became of the requests of one second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Second {
    /// Those that went on.
    pub(crate) allowed: u64,
    /// Those that a limit denied.
    pub(crate) denied: u64,
    /// Those that were refused for another reason.
    pub(crate) other: u64,
    /// How long half of the decisions took at most, in microseconds; none if none was timed.
    pub(crate) p50_us: Option<f64>,
    /// And how long 99 of 100.
    pub(crate) p99_us: Option<f64>,
}

/// What one limit said to one tier.
#[derive(Debug)]
pub(crate) struct Track {
    limit: Arc<str>,
    tier: String,
    before: Counts,
    /// Allowed and denied; the oldest step first, the present one last.
    pub(crate) steps: VecDeque<[u64; 2]>,
    used: Option<Used>,
}

/// What is followed of a limit, as counted since the start.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    allowed: u64,
    denied: u64,
    looked_at: u64,
    used: f64,
}

/// Which share of a limit was in use in one step.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    sum: f64,
    count: u64,
    /// How many steps ago that was.
    age: u64,
}

impl Kept {
    pub(crate) fn new(limiter: &Limiter) -> Self {
        Self { history: Mutex::new(History::new(limiter.metrics())), advice: Mutex::default() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What to know about the limits. That looks at every one of them, and changes over hours, so it is
    /// told again for a while.
    pub(crate) fn advice(&self, limiter: &Limiter) -> Vec<Advice> {
        let now = self.lock().second();
        let mut advice = self.advice.lock().unwrap_or_else(PoisonError::into_inner);
        match &*advice {
            Some((at, known)) if now < at + ADVICE_SECONDS => known.clone(),
            _ => advice.insert((now, limiter.advice())).1.clone(),
        }
    }
}

/// Adds to the history of a server, once a second for as long as it runs.
pub(crate) async fn keep(gate: Arc<Gate>) {
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let start = ticks.tick().await;
    loop {
        let second = (ticks.tick().await - start).as_secs();
        let metrics = gate.limiter.metrics();
        gate.history.lock().record(second, metrics);
    }
}

impl History {
    fn new(totals: Metrics) -> Self {
        let totals = Arc::new(totals);
        Self { second: 0, seconds: VecDeque::new(), limits: Vec::new(), totals }
    }

    /// Takes in what has been counted up to the end of a second.
    fn record(&mut self, second: u64, metrics: Metrics) {
        if second <= self.second {
            return;
        }
        // A second that nobody noted had its share of what came since.
        let count = (second - self.second).min(HISTORY_SECONDS as u64);
        for number in 0..count {
            if self.seconds.len() == HISTORY_SECONDS {
                self.seconds.pop_front();
            }
            self.seconds.push_back(since(&self.totals, &metrics, number, count));
        }
        self.follow(&metrics.limits);
        let steps = second / STEP_SECONDS - self.second / STEP_SECONDS;
        for (track, count) in self.limits.iter_mut().zip(&metrics.limits) {
            track.advance(steps);
            track.add(count);
        }
        (self.second, self.totals) = (second, Arc::new(metrics));
    }

    /// Goes on with the limits that there are now. What was known of one stays known; one that was there
    /// before, but not among the first, goes on from what it had counted.
    fn follow(&mut self, limits: &[LimitCount]) {
        let limits = &limits[..limits.len().min(HISTORY_LIMITS)];
        let is_of = |(track, count): (&Track, &LimitCount)| track.is_of(count);
        if self.limits.len() == limits.len() && self.limits.iter().zip(limits).all(is_of) {
            return;
        }
        let known = mem::take(&mut self.limits).into_iter();
        let mut known: HashMap<(Arc<str>, String), Track> =
            known.map(|track| ((Arc::clone(&track.limit), track.tier.clone()), track)).collect();
        let before: HashMap<(&str, &str), &LimitCount> =
            self.totals.limits.iter().map(|it| ((&*it.limit, &*it.tier), it)).collect();
        let track = |count: &LimitCount| {
            let known = known.remove(&(Arc::clone(&count.limit), count.tier.clone()));
            let before = before.get(&(&*count.limit, &*count.tier));
            let before = before.map_or_else(Counts::default, |before| Counts::of(before));
            known.unwrap_or_else(|| Track::new(count, before))
        };
        self.limits = limits.iter().map(track).collect();
    }

    /// The last whole second.
    pub(crate) fn second(&self) -> u64 {
        self.second
    }

    /// What was counted up to its end.
    pub(crate) fn totals(&self) -> Arc<Metrics> {
        Arc::clone(&self.totals)
    }

    /// The seconds after one, the oldest first. One that is still to come was another server's.
    pub(crate) fn seconds_after(&self, after: u64) -> Vec<Second> {
        let count = self.second.checked_sub(after).unwrap_or(self.second);
        let skipped =
            self.seconds.len().saturating_sub(usize::try_from(count).unwrap_or(usize::MAX));
        self.seconds.iter().skip(skipped).copied().collect()
    }

    /// What is known of the first limits, in the order of the totals.
    pub(crate) fn limits(&self) -> &[Track] {
        &self.limits
    }
}

impl Track {
    fn new(count: &LimitCount, before: Counts) -> Self {
        Self {
            limit: Arc::clone(&count.limit),
            tier: count.tier.clone(),
            before,
            steps: VecDeque::from([[0; 2]; HISTORY_STEPS]),
            used: None,
        }
    }

    fn is_of(&self, count: &LimitCount) -> bool {
        self.limit == count.limit && self.tier == count.tier
    }

    fn advance(&mut self, steps: u64) {
        for _ in 0..steps.min(HISTORY_STEPS as u64) {
            self.steps.rotate_left(1);
            self.steps[HISTORY_STEPS - 1] = [0; 2];
        }
        self.used = self.used.and_then(|used| {
            let age = used.age + steps;
            (age < HISTORY_STEPS as u64).then_some(Used { age, ..used })
        });
    }

    fn add(&mut self, count: &LimitCount) {
        let now = Counts::of(count);
        // A limit that was gone and came back counts from the start.
        let before = if now.is_after(&self.before) { self.before } else { Counts::default() };
        let step = &mut self.steps[HISTORY_STEPS - 1];
        step[0] += now.allowed - before.allowed;
        step[1] += now.denied - before.denied;
        let looked_at = now.looked_at - before.looked_at;
        if looked_at > 0 {
            let present = self.used.filter(|used| used.age == 0).unwrap_or_default();
            let (sum, count) = (present.sum + now.used - before.used, present.count + looked_at);
            self.used = Some(Used { sum, count, age: 0 });
        }
        self.before = now;
    }

    /// The mean share of the limit that was in use in the last step that had any request, as far back
    /// as the steps go.
    pub(crate) fn used(&self) -> Option<f64> {
        self.used.map(|used| (used.sum / used.count as f64).clamp(0.0, 1.0))
    }
}

impl Counts {
    fn of(count: &LimitCount) -> Self {
        Self {
            allowed: count.allowed,
            denied: count.denied + count.shadow_denied,
            looked_at: count.used.count,
            used: count.used.sum,
        }
    }

    fn is_after(&self, before: &Self) -> bool {
        self.allowed >= before.allowed
            && self.denied >= before.denied
            && self.looked_at >= before.looked_at
    }
}

/// What the `number`th of `count` equal seconds had of what came between two moments.
fn since(before: &Metrics, now: &Metrics, number: u64, count: u64) -> Second {
    let part = |all: u64| all * (number + 1) / count - all * number / count;
    let (mut allowed, mut denied, mut other) = (0, 0, 0);
    // Both tell of all there is, in the same order. Whoever connects, or sends messages, has not asked for more by that.
    let both = before.requests.iter().zip(&now.requests);
    for (before, now) in both.filter(|(_, now)| now.layer == Layer::Request) {
        let came = now.count.saturating_sub(before.count);
        match now.ruling {
            Ruling::Allowed | Ruling::Exempt => allowed += came,
            Ruling::Denied => denied += came,
            Ruling::Uncounted | Ruling::Blocked | Ruling::UnknownKey | Ruling::BadCost => {
                other += came;
            }
        }
    }
    let timed = |share| quantile(&before.check_duration, &now.check_duration, share);
    Second {
        allowed: part(allowed),
        denied: part(denied),
        other: part(other),
        p50_us: timed(0.5),
        p99_us: timed(0.99),
    }
}

/// Up to how many microseconds a share of what was timed between two moments took, as if those of one
/// bucket lay evenly in it. What is larger than all buckets is told as the largest.
fn quantile(before: &Histogram, now: &Histogram, share: f64) -> Option<f64> {
    let all = now.count.saturating_sub(before.count);
    if all == 0 {
        return None;
    }
    let wanted = share * all as f64;
    let (mut lower, mut below) = (0.0, 0.0);
    for ((bound, now), (_, before)) in now.buckets.iter().zip(&before.buckets) {
        let up_to = now.saturating_sub(*before) as f64;
        if up_to >= wanted {
            let share = (wanted - below) / (up_to - below);
            return Some(in_hundredths((lower + (bound - lower) * share) * 1e6));
        }
        (lower, below) = (*bound, up_to);
    }
    Some(in_hundredths(lower * 1e6))
}

fn in_hundredths(figure: f64) -> f64 {
    (figure * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use tollgate::Request;

    use super::*;

    const POLICY: &str = "
limits:
  - { name: api, per: [user], rate: 10/day, algorithm: fixed_window }
  - { name: trial, per: [trial], rate: 1/day, algorithm: fixed_window, mode: shadow }
";

    /// A limiter and its history, a second at a time.
    struct Told {
        limiter: Limiter,
        history: History,
    }

    impl Told {
        fn new(policy: &str) -> Self {
            let limiter = Limiter::from_yaml(policy).expect("a policy");
            let history = History::new(limiter.metrics());
            Self { limiter, history }
        }

        fn send(&self, attribute: &str, times: usize) {
            for _ in 0..times {
                self.limiter.check(&Request::new(&[(attribute, b"a")]));
            }
        }

        fn end_of(&mut self, second: u64) {
            self.history.record(second, self.limiter.metrics());
        }

        /// What became of requests, after a second.
        fn seconds(&self, after: u64) -> Vec<[u64; 3]> {
            let told = self.history.seconds_after(after).into_iter();
            told.map(|second| [second.allowed, second.denied, second.other]).collect()
        }

        fn steps(&self, limit: usize) -> Vec<[u64; 2]> {
            self.history.limits()[limit].steps.iter().copied().collect()
        }
    }

    #[test]
    fn each_second_has_what_came_in_it() {
        let mut told = Told::new(POLICY);
        told.send("user", 4);
        told.end_of(1);
        told.send("user", 8);
        told.end_of(2);
        told.end_of(3);
        assert_eq!(told.seconds(0), [[4, 0, 0], [6, 2, 0], [0, 0, 0]]);
        assert_eq!(told.seconds(2), [[0, 0, 0]]);
        assert!(told.seconds(3).is_empty());
        let first = told.history.seconds_after(0)[0];
        assert!(first.p50_us.is_some() && first.p50_us <= first.p99_us, "{first:?}");
        let last = told.history.seconds_after(2)[0];
        assert_eq!((last.p50_us, last.p99_us), (None, None), "nothing was timed in it");
    }

    #[test]
    fn who_connects_has_not_sent_a_request() {
        let mut told = Told::new(POLICY);
        let connection = Request { layer: Layer::Connection, ..Request::new(&[]) };
        told.limiter.check(&connection);
        told.send("user", 1);
        told.end_of(1);
        assert_eq!(told.seconds(0), [[1, 0, 0]]);
    }

    #[test]
    fn what_came_while_nobody_looked_is_spread_over_that_time() {
        let mut told = Told::new(POLICY);
        told.end_of(1);
        told.send("user", 10);
        told.end_of(4);
        assert_eq!(told.seconds(0), [[0, 0, 0], [3, 0, 0], [3, 0, 0], [4, 0, 0]]);
        // A moment that has passed adds nothing.
        told.end_of(4);
        told.end_of(2);
        assert_eq!((told.history.second(), told.seconds(0).len()), (4, 4));
    }

    #[test]
    fn a_quarter_of_an_hour_is_remembered_and_no_more() {
        let mut told = Told::new(POLICY);
        for second in 1..=1_000 {
            told.send("user", usize::from(second == 101));
            told.end_of(second);
        }
        let seconds = told.seconds(0);
        assert_eq!((seconds.len(), seconds[0]), (HISTORY_SECONDS, [1, 0, 0]));
        assert_eq!(told.seconds(998).len(), 2);
        assert_eq!(told.seconds(5_000).len(), HISTORY_SECONDS, "it was another server's number");
        told.end_of(1_000_000_000);
        assert_eq!(told.seconds(0).len(), HISTORY_SECONDS);
        assert!(told.seconds(0).iter().all(|second| *second == [0; 3]));
    }

    #[test]
    fn limits_are_followed_in_steps_and_what_is_in_use_is_told() {
        let mut told = Told::new(POLICY);
        told.send("user", 11);
        told.send("trial", 3);
        told.end_of(14);
        told.end_of(15);
        told.send("user", 1);
        told.end_of(30);
        let mut expected = vec![[0; 2]; HISTORY_STEPS];
        expected[HISTORY_STEPS - 3..].copy_from_slice(&[[10, 1], [0, 0], [0, 1]]);
        assert_eq!(told.steps(0), expected);
        expected[HISTORY_STEPS - 3..].copy_from_slice(&[[1, 2], [0, 0], [0, 0]]);
        assert_eq!(told.steps(1), expected, "what a shadow would have denied is told with it");
        let used = |told: &Told| told.history.limits()[0].used();
        assert!(used(&told).is_some_and(|used| used > 0.0 && used <= 1.0), "{:?}", used(&told));
        told.end_of(15 * (HISTORY_STEPS as u64 + 3));
        assert_eq!((told.steps(0), used(&told)), (vec![[0; 2]; HISTORY_STEPS], None));
    }

    #[test]
    fn a_limit_that_is_in_the_next_policy_too_goes_on_and_others_begin_anew() {
        let mut told = Told::new(POLICY);
        told.send("user", 3);
        told.end_of(1);
        let policy = "limits: [{ name: new, per: [new], rate: 5/day },
                               { name: api, per: [user], rate: 20/day, algorithm: fixed_window }]";
        let policy = tollgate::Policy::parse("policy", policy, &mut |_: &str| Err(String::new()));
        told.limiter.replace_policy(policy.expect("a policy")).expect("room");
        told.send("user", 2);
        told.send("new", 6);
        told.end_of(2);
        assert_eq!(told.steps(0)[HISTORY_STEPS - 1], [5, 1]);
        assert_eq!(told.steps(1)[HISTORY_STEPS - 1], [5, 0]);
    }

    #[test]
    fn more_limits_than_there_is_room_for_are_not_followed() {
        let limits: Vec<String> =
            (0..HISTORY_LIMITS + 10).map(|it| format!("{{name: l{it}, rate: 1/day}}")).collect();
        let mut told = Told::new(&format!("limits: [{}]", limits.join(",")));
        told.end_of(1);
        assert_eq!(told.history.limits().len(), HISTORY_LIMITS);
        assert!(told.history.totals().limits.len() > HISTORY_LIMITS);
    }

    #[test]
    fn a_limit_that_comes_among_the_first_goes_on_from_what_it_had_counted() {
        let others: Vec<String> = (0..HISTORY_LIMITS)
            .map(|it| format!("{{name: l{it}, per: [no], rate: 1/day}}"))
            .collect();
        let last = "{ name: last, per: [user], rate: 20/day, algorithm: fixed_window }";
        let mut told = Told::new(&format!("limits: [{}, {last}]", others.join(",")));
        told.send("user", 7);
        told.end_of(1);
        let policy = format!("limits: [{last}]");
        let policy = tollgate::Policy::parse("policy", &policy, &mut |_: &str| Err(String::new()));
        told.limiter.replace_policy(policy.expect("a policy")).expect("room");
        told.send("user", 2);
        told.end_of(2);
        assert_eq!(told.steps(0)[HISTORY_STEPS - 1], [2, 0]);
    }

    #[test]
    fn how_long_decisions_took_is_read_off_between_the_bounds_of_a_bucket() {
        let histogram = |counts: [u64; 3], count| Histogram {
            buckets: [1e-6, 2e-6, 4e-6].into_iter().zip(counts).collect(),
            count,
            sum: 0.0,
        };
        let before = histogram([5, 5, 5], 5);
        let check = |now: &Histogram, share, expected| {
            assert_eq!(quantile(&before, now, share), expected, "{now:?} {share}");
        };
        check(&before, 0.5, None);
        // Ten below 1 µs, ten from 1 to 2, none from 2 to 4, ten above.
        let now = histogram([15, 25, 25], 35);
        check(&now, 0.25, Some(0.75));
        check(&now, 0.5, Some(1.5));
        check(&now, 2.0 / 3.0, Some(2.0));
        check(&now, 0.99, Some(4.0));
    }
}
