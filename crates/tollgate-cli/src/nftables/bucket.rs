//! A limit of nftables: a bucket that holds so many connections and refills at a rate.
//!
//! It must let through whatever the policy's own limit would. Of a token bucket it is the same. A
//! log allows `n` in any period: no more than a bucket of `n` that fills in that period. Windows
//! allow `n` at the end of one and `n` at the start of the next, so the bucket holds twice as many.

use std::fmt::{self, Display};

use tollgate_core::{Algorithm, Limit, Quota};

use crate::bounds::NFTABLES_IDLE_SECONDS_MAX;

/// So many at once, and so many every unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bucket {
    count: u64,
    unit: Unit,
    burst: u32,
}

/// The units of time that nftables knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
}

impl Unit {
    /// All of them, the shortest first.
    const ALL: [Self; 5] = [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week];

    const fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
        }
    }

    const fn seconds(self) -> u64 {
        match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 604_800,
        }
    }
}

/// In what a bucket is not the limit it stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Exactness {
    /// It holds what fits into two windows.
    is_doubled: bool,
    /// It allows in bursts what a log would not.
    is_log: bool,
    /// It refills a little too quickly, since nftables has no such rate.
    is_rounded: bool,
}

impl Bucket {
    /// The smallest bucket that lets through whatever `limit` does when each connection costs `cost`,
    /// which the limit can hold; none if nftables cannot count that far.
    pub(super) fn covering(limit: &Limit, rate: Quota, cost: u32) -> Option<(Self, Exactness)> {
        let algorithm = limit.algorithm();
        let is_doubled = matches!(algorithm, Algorithm::SlidingWindow | Algorithm::FixedWindow);
        let is_log = algorithm == Algorithm::SlidingLog;
        let held = limit.capacity().div_ceil(cost);
        let burst = if is_doubled { held.checked_mul(2)? } else { held };
        let divisor = u128::from(rate.period().as_micros()) * u128::from(cost);
        let every = |unit: Unit| u128::from(rate.count()) * u128::from(unit.seconds()) * 1_000_000;
        let exact = Unit::ALL.into_iter().find(|unit| every(*unit).is_multiple_of(divisor));
        let unit = exact.unwrap_or(Unit::Week);
        // A rate of nothing is none that nftables knows.
        let count = u64::try_from(every(unit).div_ceil(divisor)).ok()?.max(1);
        let is_rounded = exact.is_none() || !limit.capacity().is_multiple_of(cost);
        Some((Self { count, unit, burst }, Exactness { is_doubled, is_log, is_rounded }))
    }

    /// A bucket that lets through whatever one of the two does.
    pub(super) fn joined(self, other: Self) -> Self {
        let quicker = if self.weekly() < other.weekly() { other } else { self };
        Self { burst: self.burst.max(other.burst), ..quicker }
    }

    /// How many a week.
    pub(super) fn weekly(self) -> u128 {
        u128::from(self.count) * u128::from(Unit::Week.seconds() / self.unit.seconds())
    }

    /// After how many seconds without a connection an address may be forgotten.
    pub(super) fn idle_seconds(self) -> u64 {
        self.filled_after().min(NFTABLES_IDLE_SECONDS_MAX)
    }

    /// How many seconds it takes to fill, rounded up.
    fn filled_after(self) -> u64 {
        // Before dividing: 2^32 weeks are far below 2^64 seconds.
        (u64::from(self.burst) * self.unit.seconds()).div_ceil(self.count)
    }
}

impl Display for Bucket {
    /// As nftables reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} burst {} packets", self.count, self.unit.name(), self.burst)
    }
}

impl Exactness {
    /// Of a bucket that stands for several limits.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            is_doubled: self.is_doubled || other.is_doubled,
            is_log: self.is_log || other.is_log,
            is_rounded: self.is_rounded || other.is_rounded,
        }
    }

    /// What is to be said of it, one thing a line.
    pub(super) fn notes(self, bucket: &Bucket) -> Vec<String> {
        let forgets = bucket.filled_after() > NFTABLES_IDLE_SECONDS_MAX;
        let looser = |is_so: bool, how: &str| is_so.then(|| format!("looser here: {how}"));
        let doubled = looser(
            self.is_doubled,
            "as many as two windows allow may come at once, as they may around the end of one",
        );
        let log =
            looser(self.is_log, "a bucket that refills, so up to twice as many in one period");
        let rounded = looser(self.is_rounded, "rounded up to a rate that nftables knows");
        let forgotten = looser(forgets, "an address that was idle for an hour starts afresh");
        [doubled, log, rounded, forgotten].into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use tollgate_core::{Cost, Counter, Timestamp, Word};
    use tollgate_sim::{Event, Pattern, Traffic, Trial};

    use super::*;

    const ALGORITHMS: [Algorithm; 4] = [
        Algorithm::SlidingWindow,
        Algorithm::TokenBucket,
        Algorithm::FixedWindow,
        Algorithm::SlidingLog,
    ];

    fn limit(algorithm: Algorithm, rate: Quota, burst: u32) -> Limit {
        match algorithm {
            Algorithm::SlidingWindow => Limit::sliding_window(rate),
            Algorithm::TokenBucket => Limit::token_bucket(rate, burst).unwrap(),
            Algorithm::FixedWindow => Limit::fixed_window(rate, tollgate_core::Align::Clock),
            Algorithm::SlidingLog => Limit::sliding_log(rate).unwrap(),
            Algorithm::LeakyBucket | Algorithm::Concurrency => panic!("not a rate of connections"),
        }
    }

    fn check(algorithm: Algorithm, rate: &str, burst: u32, cost: u32, expected: &str, idle: u64) {
        let rate = rate.parse().unwrap();
        let (bucket, _) = Bucket::covering(&limit(algorithm, rate, burst), rate, cost).unwrap();
        assert_eq!(bucket.to_string(), expected);
        assert_eq!(bucket.idle_seconds(), idle, "{expected}");
    }

    #[test]
    fn a_bucket_is_written_in_the_shortest_unit_that_is_exact() {
        use Algorithm::{FixedWindow, SlidingLog, SlidingWindow, TokenBucket};
        check(TokenBucket, "5/second", 8, 1, "5/second burst 8 packets", 2);
        check(TokenBucket, "5/minute", 5, 1, "5/minute burst 5 packets", 60);
        check(TokenBucket, "120/minute", 5, 1, "2/second burst 5 packets", 3);
        check(TokenBucket, "1/1ms", 1, 1, "1000/second burst 1 packets", 1);
        check(TokenBucket, "2/90s", 2, 1, "80/hour burst 2 packets", 90);
        check(SlidingLog, "5/minute", 0, 1, "5/minute burst 5 packets", 60);
        check(SlidingWindow, "5/minute", 0, 1, "5/minute burst 10 packets", 120);
        check(FixedWindow, "7/day", 0, 1, "7/day burst 14 packets", 3_600);
        // Rounded for the client.
        check(TokenBucket, "7/13s", 7, 1, "325662/week burst 7 packets", 13);
        check(TokenBucket, "1/month", 1, 1, "1/week burst 1 packets", 3_600);
        check(TokenBucket, "9/minute", 9, 2, "270/hour burst 5 packets", 67);
    }

    #[test]
    fn a_bucket_of_two_lets_through_what_either_does() {
        let bucket = |rate: &str, burst| {
            let rate = rate.parse().unwrap();
            let limit = limit(Algorithm::TokenBucket, rate, burst);
            Bucket::covering(&limit, rate, 1).unwrap().0
        };
        let (quick, large) = (bucket("5/second", 5), bucket("7/minute", 70));
        for joined in [quick.joined(large), large.joined(quick)] {
            assert_eq!(joined.to_string(), "5/second burst 70 packets");
        }
    }

    #[test]
    fn what_nftables_cannot_count_has_no_bucket() {
        let rate = Quota::per_second(u32::MAX);
        assert_eq!(Bucket::covering(&Limit::sliding_window(rate), rate, 1), None);
    }

    /// The bucket as the kernel keeps it: in nanoseconds.
    struct Kernel {
        price: u64,
        most: u64,
        tokens: u64,
        last: u64,
    }

    impl Kernel {
        fn new(bucket: Bucket, now: Timestamp) -> Self {
            let price = bucket.unit.seconds() * 1_000_000_000 / bucket.count;
            let most = price * u64::from(bucket.burst);
            Self { price, most, tokens: most, last: now.as_micros() * 1_000 }
        }

        fn is_over(&mut self, now: Timestamp) -> bool {
            let now = now.as_micros() * 1_000;
            self.tokens = self.most.min(self.tokens + now - self.last);
            self.last = now;
            let left = self.tokens.checked_sub(self.price);
            self.tokens = left.unwrap_or(self.tokens);
            left.is_none()
        }
    }

    fn check_lets_through(bucket: Bucket, admitted: &[Timestamp], what: &str) {
        let mut kernel = Kernel::new(bucket, admitted[0]);
        for (number, at) in admitted.iter().enumerate() {
            assert!(!kernel.is_over(*at), "{what}: {bucket}: connection {number} is refused");
        }
    }

    #[test]
    fn whatever_a_limit_lets_through_its_bucket_does() {
        let rates = ["1/second", "5/minute", "7/13s"];
        for rate in rates.map(|rate| rate.parse::<Quota>().unwrap()) {
            let patterns = Pattern::all().map(|pattern| pattern.arrivals(rate, 7));
            let traffic = Traffic::ALL.map(|traffic| traffic.arrivals(rate, 7));
            for arrivals in patterns.chain(traffic) {
                for algorithm in ALGORITHMS {
                    let limit = limit(algorithm, rate, 3);
                    let lane = Trial::new(limit, rate.period()).replay(&arrivals);
                    let admitted: Vec<Timestamp> =
                        lane.events.iter().filter_map(Event::released_at).collect();
                    let (bucket, _) = Bucket::covering(&limit, rate, 1).unwrap();
                    check_lets_through(bucket, &admitted, &format!("{algorithm} {rate}"));
                }
            }
        }
    }

    #[test]
    fn whatever_a_limit_lets_through_at_a_cost_its_bucket_does() {
        for (algorithm, cost) in ALGORITHMS[..3].iter().flat_map(|it| [2, 3, 7].map(|c| (*it, c))) {
            let rate = Quota::per_minute(10);
            let limit = limit(algorithm, rate, 8);
            let Limit::Counter(counter) = limit else { panic!("a log is none of these") };
            let (bucket, _) = Bucket::covering(&limit, rate, cost).unwrap();
            let arrivals = Traffic::Burst.arrivals(rate, 1).into_iter().map(|arrival| arrival.at);
            let admitted = admitted(counter, Cost::new(cost), arrivals);
            check_lets_through(bucket, &admitted, &format!("{algorithm} at {cost}"));
        }
    }

    fn admitted(
        counter: Counter,
        cost: Cost,
        arrivals: impl Iterator<Item = Timestamp>,
    ) -> Vec<Timestamp> {
        let mut word = Word::VACANT;
        let mut admitted = Vec::new();
        for at in arrivals {
            let step = counter.step(word, at, cost);
            word = step.word;
            admitted.extend(step.is_allowed.then_some(at));
        }
        admitted
    }
}
