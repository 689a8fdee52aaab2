//! The examples everyone knows.

use tollgate_core::{Algorithm, Align, Cost, Limit, Micros, Outcome, Quota, Timestamp};

use crate::support::{START, Subject};

const MINUTE: u64 = 60_000_000;

/// The start of a minute, and of an hour.
const ONE_O_CLOCK: u64 = START - START % (60 * MINUTE);

fn at(hour_minute_second: &str) -> Timestamp {
    let mut parts =
        hour_minute_second.split(':').map(|part| part.parse::<u64>().expect("a number"));
    let mut part = || parts.next().expect("h:mm:ss");
    let seconds = (part() - 1) * 3_600 + part() * 60 + part();
    Timestamp::from_micros(ONE_O_CLOCK).plus(Micros::from_secs(seconds))
}

/// How many of `requests` at once are allowed.
fn admitted(subject: &mut Subject, now: Timestamp, requests: usize) -> usize {
    (0..requests).filter(|_| subject.decide(now, Cost::ONE).is_allowed()).count()
}

fn ten_a_minute(algorithm: Algorithm) -> Limit {
    let quota = Quota::per_minute(10);
    let limit = match algorithm {
        Algorithm::SlidingWindow => Ok(Limit::sliding_window(quota)),
        Algorithm::TokenBucket => Limit::token_bucket(quota, 10),
        Algorithm::LeakyBucket => Limit::leaky_bucket(quota, 10, None),
        Algorithm::FixedWindow => Ok(Limit::fixed_window(quota, Align::Clock)),
        Algorithm::SlidingLog => Limit::sliding_log(quota),
        Algorithm::Concurrency => Limit::concurrency(10, Micros::from_secs(60)),
    };
    limit.expect("ten a minute")
}

/// Ten requests in the last second of a minute, and ten in the first of the next.
fn boundary_burst(algorithm: Algorithm) -> (usize, usize) {
    let mut subject = Subject::new(ten_a_minute(algorithm));
    let first = admitted(&mut subject, at("1:00:59"), 10);
    (first, admitted(&mut subject, at("1:01:00"), 10))
}

#[test]
fn the_boundary_burst_passes_a_fixed_window() {
    assert_eq!(boundary_burst(Algorithm::FixedWindow), (10, 10));
}

#[test]
fn the_boundary_burst_is_stopped_by_all_others() {
    for algorithm in Algorithm::ALL {
        if algorithm != Algorithm::FixedWindow {
            assert_eq!(boundary_burst(algorithm), (10, 0), "{algorithm}");
        }
    }
}

#[test]
fn the_boundary_burst_is_stopped_by_windows_that_begin_with_their_key() {
    let limit = Limit::fixed_window(Quota::per_minute(10), Align::Key);
    let mut subject = Subject::new(limit);
    assert_eq!(admitted(&mut subject, at("1:00:59"), 10), 10);
    assert_eq!(admitted(&mut subject, at("1:01:00"), 10), 0);
    assert_eq!(admitted(&mut subject, at("1:01:58"), 10), 0);
    assert_eq!(admitted(&mut subject, at("1:01:59"), 10), 10);
}

#[test]
fn the_sliding_log_walkthrough() {
    let limit = Limit::sliding_log(Quota::per_minute(2)).expect("a short log");
    let mut subject = Subject::new(limit);
    let mut answers = Vec::new();
    for moment in ["1:00:01", "1:00:30", "1:00:50", "1:01:40"] {
        answers.push(subject.decide(at(moment), Cost::ONE).is_allowed());
    }
    assert_eq!(answers, [true, true, false, true]);
}

#[test]
fn the_sliding_window_at_thirty_percent_with_five_before_and_three_now_allows_seven() {
    let mut subject = Subject::new(Limit::sliding_window(Quota::per_minute(7)));
    assert_eq!(admitted(&mut subject, at("1:00:30"), 5), 5);
    // Three more early in the next minute; then 30 % of it, 18 seconds, have passed.
    assert_eq!(
        subject.decide(at("1:01:17"), Cost::new(3)).outcome,
        Outcome::Allowed { delay: Micros::ZERO }
    );
    let decision = subject.decide(at("1:01:18"), Cost::ONE);
    assert!(decision.is_allowed(), "5 × 0.7 + 3 = 6.5, which is below 7");
    assert_eq!(decision.remaining, 0);
    assert!(!subject.decide(at("1:01:18"), Cost::ONE).is_allowed());
}

#[test]
fn an_idle_bucket_bursts_to_what_it_holds_and_no_more() {
    let limit = Limit::token_bucket(Quota::per_second(10), 25).expect("a bucket");
    let mut subject = Subject::new(limit);
    assert_eq!(admitted(&mut subject, at("1:00:00"), 100), 25);
    // However long it idles.
    assert_eq!(admitted(&mut subject, at("3:00:00"), 100), 25);
    assert_eq!(admitted(&mut subject, at("3:00:01"), 100), 10);
}

#[test]
fn a_leaky_buckets_output_never_exceeds_its_rate_however_spiky_its_input() {
    let limit = Limit::leaky_bucket(Quota::per_second(10), 20, None).expect("a queue");
    let mut subject = Subject::new(limit);
    let mut released = Vec::new();
    for moment in ["1:00:00", "1:00:00", "1:00:01", "1:00:05", "1:00:05", "1:00:06"] {
        for _ in 0..50 {
            let decision = subject.decide(at(moment), Cost::ONE);
            if decision.is_allowed() {
                released.push(at(moment).plus(decision.delay()));
            }
        }
    }
    assert_eq!(released.len(), 20 + 10 + 20 + 10);
    let tenth = Micros::from_millis(100);
    assert!(released.windows(2).all(|pair| pair[1].since(pair[0]) >= tenth));
}

#[test]
fn nobody_waits_in_a_leaky_bucket_longer_than_they_may() {
    let longest = Some(Micros::from_millis(250));
    let limit = Limit::leaky_bucket(Quota::per_second(10), 20, longest).expect("a queue");
    let mut subject = Subject::new(limit);
    let mut delays = Vec::new();
    let denial = loop {
        let decision = subject.decide(at("1:00:00"), Cost::ONE);
        if !decision.is_allowed() {
            break decision;
        }
        delays.push(decision.delay());
    };
    assert_eq!(delays, [0, 100, 200].map(Micros::from_millis));
    assert_eq!(denial.retry_after(), Some(Micros::from_millis(50)));
}

#[test]
fn three_hundred_thousand_a_second_are_three_hundred_thousand() {
    // Counted in whole microseconds between requests, four, it would be 250,000.
    let limit = Limit::token_bucket(Quota::per_second(300_000), 10).expect("a bucket");
    let mut subject = Subject::new(limit);
    let tries = (0..1_000_000).map(|micro| Timestamp::from_micros(ONE_O_CLOCK + micro));
    let allowed = tries.filter(|&now| subject.decide(now, Cost::ONE).is_allowed()).count();
    assert_eq!(allowed, 300_000 + 9);
}

#[test]
fn a_forced_charge_goes_past_the_end_and_every_figure_stays_right() {
    for algorithm in Algorithm::ALL {
        let mut subject = Subject::new(ten_a_minute(algorithm));
        let now = at("1:00:00");
        let (forced, _) = subject.force(now, Cost::new(15));
        assert!(forced.is_allowed());
        assert_eq!(forced.remaining, 0, "{algorithm}");
        let denial = subject.decide(now, Cost::ONE);
        // A bucket is owed five units and the one asked for; windows and logs wait for their end,
        // the sliding window until less than ten of fifteen are left: more than a third of the next
        // minute. Of slots, nobody knows.
        let expected = match algorithm {
            Algorithm::SlidingWindow => Some(60_000_000 + 20_000_001),
            Algorithm::TokenBucket | Algorithm::LeakyBucket => Some(36_000_000),
            Algorithm::FixedWindow | Algorithm::SlidingLog => Some(60_000_000),
            Algorithm::Concurrency => None,
        };
        let expected = Outcome::Denied { retry_after: expected.map(Micros::new) };
        assert_eq!(denial.outcome, expected, "{algorithm}");
        assert!(!subject.peek(now).is_allowed(), "{algorithm} is exceeded");
    }
}

#[test]
fn a_slot_is_free_when_it_is_released_or_its_lease_has_ended() {
    let limit = Limit::concurrency(2, Micros::from_secs(30)).expect("two slots");
    let mut subject = Subject::new(limit);
    let (_, first) = subject.charge(at("1:00:00"), Cost::ONE);
    assert!(subject.decide(at("1:00:10"), Cost::ONE).is_allowed());
    assert!(!subject.decide(at("1:00:11"), Cost::ONE).is_allowed());
    subject.refund(at("1:00:12"), &first);
    assert!(subject.decide(at("1:00:12"), Cost::ONE).is_allowed());
    assert!(!subject.decide(at("1:00:39"), Cost::ONE).is_allowed());
    assert!(subject.decide(at("1:00:40"), Cost::ONE).is_allowed());
}
