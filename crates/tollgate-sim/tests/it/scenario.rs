//! The same traffic through all six algorithms.

use std::collections::BTreeSet;

use tollgate_core::{Algorithm, Limit, Micros, Quota, Timestamp};
use tollgate_sim::{Arrival, Comparison, Event, Lane, Scenario, Traffic, Trial, Verdict};

const QUOTA: Quota = Quota::per_minute(10);

fn compare(quota: Quota, traffic: Traffic) -> Comparison {
    Scenario::new(quota, traffic).compare().expect("the scenario can be played")
}

/// Every lane of this algorithm, over all traffic and a few seeds.
fn lanes_of(algorithm: Algorithm) -> impl Iterator<Item = Lane> {
    let seeds =
        Traffic::ALL.into_iter().flat_map(|traffic| (1..=5).map(move |seed| (traffic, seed)));
    seeds.map(move |(traffic, seed)| {
        let scenario = Scenario { seed, ..Scenario::new(QUOTA, traffic) };
        scenario.compare().expect("the scenario can be played").lane(algorithm).clone()
    })
}

fn releases(lane: &Lane) -> Vec<Timestamp> {
    let mut releases: Vec<_> = lane.events.iter().filter_map(Event::released_at).collect();
    releases.sort_unstable();
    releases
}

#[test]
fn boundary_traffic_gets_twenty_through_a_fixed_window_of_ten_in_two_seconds() {
    let comparison = compare(QUOTA, Traffic::Boundary);
    let released = releases(comparison.lane(Algorithm::FixedWindow));
    assert_eq!(released.len(), 20);
    assert!(released[19].since(released[0]) < Micros::from_secs(2));
}

#[test]
fn boundary_traffic_gets_no_more_than_ten_through_a_sliding_log_of_ten() {
    let comparison = compare(QUOTA, Traffic::Boundary);
    let lane = comparison.lane(Algorithm::SlidingLog);
    assert_eq!((lane.admitted, lane.most_in_any_window), (10, 10));
}

#[test]
fn boundary_traffic_gets_one_more_than_ten_through_the_estimate() {
    let comparison = compare(QUOTA, Traffic::Boundary);
    assert_eq!(comparison.lane(Algorithm::SlidingWindow).most_in_any_window, 11);
}

#[test]
fn the_same_seed_makes_the_same_lanes_and_another_seed_others() {
    for traffic in Traffic::ALL {
        let scenario = Scenario::new(QUOTA, traffic);
        let first = scenario.compare().unwrap();
        assert_eq!(first, scenario.compare().unwrap(), "{traffic}");
        let other = Scenario { seed: 2, ..scenario }.compare().unwrap();
        // Steady traffic has nothing random about it.
        assert_eq!(first.lanes == other.lanes, traffic == Traffic::Steady, "{traffic}");
    }
}

#[test]
fn arrivals_of_a_seed_never_change() {
    let arrivals = Traffic::Poisson.arrivals(QUOTA, 1);
    let offsets: Vec<u64> = arrivals
        .iter()
        .take(4)
        .map(|arrival| arrival.at.since(Traffic::origin(QUOTA)).as_micros())
        .collect();
    // Pictures and figures in the documentation name a seed, so it must go on meaning the same.
    assert_eq!(offsets, [2_266_246, 6_150_257, 9_659_652, 11_276_220]);
}

#[test]
fn every_arrival_is_answered_once_in_every_lane() {
    for traffic in Traffic::ALL {
        let comparison = compare(QUOTA, traffic);
        let arrivals = traffic.arrivals(QUOTA, 1);
        assert!(arrivals.is_sorted_by_key(|arrival| arrival.at), "{traffic}");
        for lane in comparison.lanes {
            assert_eq!(lane.events.len() as u32, lane.admitted + lane.denied, "{traffic}");
            assert!(lane.events.is_sorted_by_key(|event| event.at), "{traffic}");
            if traffic != Traffic::RetryStorm {
                assert_eq!(lane.events.len(), arrivals.len(), "{traffic}");
            }
        }
    }
}

#[test]
fn no_stretch_holds_more_than_the_algorithm_promises() {
    let check = |algorithm, most| {
        for lane in lanes_of(algorithm) {
            assert!(lane.most_in_any_window <= most, "{algorithm}: {}", lane.most_in_any_window);
        }
    };
    check(Algorithm::SlidingLog, 10);
    check(Algorithm::LeakyBucket, 10);
    check(Algorithm::SlidingWindow, 20);
    check(Algorithm::FixedWindow, 20);
    // A full bucket, and what it refills in a period.
    check(Algorithm::TokenBucket, 20);
}

#[test]
fn a_leaky_bucket_never_releases_faster_than_its_rate() {
    for lane in lanes_of(Algorithm::LeakyBucket) {
        for pair in releases(&lane).windows(2) {
            assert!(pair[1].since(pair[0]) >= Micros::from_secs(6));
        }
    }
}

#[test]
fn a_concurrency_limit_never_has_more_at_work_than_slots() {
    for lane in lanes_of(Algorithm::Concurrency) {
        assert_eq!((lane.capacity, lane.work), (5, Micros::from_secs(30)));
        let started = releases(&lane);
        for &now in &started {
            let is_at_work = |&&start: &&Timestamp| start <= now && now < start.plus(lane.work);
            assert!(started.iter().filter(is_at_work).count() <= 5);
        }
    }
}

#[test]
fn only_logs_grow_with_what_they_let_through() {
    let comparison = compare(QUOTA, Traffic::Boundary);
    let bytes = |algorithm| comparison.lane(algorithm).bytes_per_key;
    assert_eq!(bytes(Algorithm::SlidingWindow), 32);
    assert_eq!(bytes(Algorithm::TokenBucket), 32);
    assert_eq!(bytes(Algorithm::LeakyBucket), 32);
    assert_eq!(bytes(Algorithm::FixedWindow), 32);
    assert_eq!(bytes(Algorithm::SlidingLog), 32 + 10 * 24);
    assert_eq!(bytes(Algorithm::Concurrency), 32 + 5 * 24);
}

#[test]
fn a_retry_storm_ends_when_everybody_was_served_once() {
    for lane in compare(QUOTA, Traffic::RetryStorm).lanes {
        let served: Vec<u32> = lane
            .events
            .iter()
            .filter(|event| event.released_at().is_some())
            .map(|event| event.client)
            .collect();
        let clients: BTreeSet<u32> = served.iter().copied().collect();
        assert_eq!(clients.len(), 20, "{}", lane.algorithm);
        assert_eq!(served.len(), 20, "{}: a client served came back", lane.algorithm);
        assert!(lane.denied > 0, "{}", lane.algorithm);
    }
}

#[test]
fn clients_of_a_retry_storm_that_wait_as_told_come_back_together() {
    let comparison = compare(QUOTA, Traffic::RetryStorm);
    let lane = comparison.lane(Algorithm::FixedWindow);
    let reset = comparison.origin.plus(Micros::from_secs(60));
    let patient = lane.events.iter().filter(|event| event.client.is_multiple_of(2));
    let (before, after): (Vec<&Event>, Vec<&Event>) = patient.partition(|event| event.at < reset);
    let is_denied = |event: &&&Event| matches!(event.verdict, Verdict::Denied { .. });
    let denied = before.iter().filter(is_denied).count();
    assert_eq!(denied, after.len(), "each comes back once, after the reset");
    assert!(after.iter().all(|event| event.at.since(reset) < Micros::from_secs(3)));
}

#[test]
fn the_smallest_and_the_largest_quotas_are_played_too() {
    let shortest = Micros::from_millis(1);
    let year = Micros::from_secs(365 * 86_400);
    for (count, period) in [(0, year), (1, shortest), (1, year), (1_000, shortest), (1_000, year)] {
        let quota = Quota::new(count, period).unwrap();
        for traffic in [Traffic::Boundary, Traffic::Burst, Traffic::Steady, Traffic::Poisson] {
            let comparison = compare(quota, traffic);
            let log = comparison.lane(Algorithm::SlidingLog);
            assert!(log.most_in_any_window <= count, "{quota} {traffic}");
            assert!(!log.events.is_empty(), "{quota} {traffic}");
        }
    }
}

#[test]
fn what_cannot_be_played_is_refused_with_a_sentence() {
    let check = |scenario: Scenario, sentence: &str| {
        assert_eq!(scenario.compare().unwrap_err().to_string(), sentence);
    };
    check(
        Scenario::new(Quota::per_second(10_001), Traffic::Steady),
        "10001/second is too much to show request by request; compare a smaller count, up to \
         10000: the shape is the same",
    );
    check(
        Scenario { burst: 1_000_000_000, ..Scenario::new(QUOTA, Traffic::Steady) },
        "a bucket of 1000000000 would take more than 100 years to refill at 10/minute; lower the \
         burst or raise the rate",
    );
}

#[test]
fn a_limit_of_ones_own_is_replayed_on_arrivals_of_ones_own() {
    // The walkthrough everybody knows: two a minute, at 1:00:01, 1:00:30, 1:00:50 and 1:01:40.
    let quota = Quota::per_minute(2);
    let trial = Trial::new(Limit::sliding_log(quota).unwrap(), quota.period());
    let at = |second: u64| Timestamp::EPOCH.plus(Micros::from_secs(3_600 + second));
    let arrivals = [1, 30, 50, 100].map(|second| Arrival { at: at(second), client: 0 });
    let verdicts: Vec<Verdict> =
        trial.replay(&arrivals).events.iter().map(|event| event.verdict).collect();
    let wait = Some(Micros::from_secs(11));
    let expected = [
        Verdict::Allowed,
        Verdict::Allowed,
        Verdict::Denied { retry_after: wait },
        Verdict::Allowed,
    ];
    assert_eq!(verdicts, expected);
}

#[test]
fn names_of_traffic_read_back_as_written() {
    for traffic in Traffic::ALL {
        assert_eq!(traffic.name().parse(), Ok(traffic));
    }
    assert_eq!(
        "bursts".parse::<Traffic>().unwrap_err().to_string(),
        "\"bursts\" is no kind of traffic; write one of boundary, burst, steady, poisson, \
         retry-storm"
    );
}
