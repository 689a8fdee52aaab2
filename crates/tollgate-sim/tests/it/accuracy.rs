//! How right `sliding_window` is, and that the documentation says so.

use tollgate_core::{Algorithm, Quota};
use tollgate_sim::{Judgement, Pattern, Trial, accuracy};

const QUOTA: Quota = Quota::per_minute(100);

fn judge(algorithm: Algorithm, pattern: Pattern, seed: u64) -> Judgement {
    let trial = Trial::of(algorithm, QUOTA, QUOTA.count()).expect("a quota that a log holds");
    Judgement::of(&trial.replay(&pattern.arrivals(QUOTA, seed)), QUOTA)
}

#[test]
fn the_exact_log_is_never_wrong() {
    for pattern in Pattern::all() {
        let judgement = judge(Algorithm::SlidingLog, pattern, 1);
        let wrong = (judgement.wrongly_allowed, judgement.wrongly_denied, judgement.worst_excess);
        assert_eq!(wrong, (0, 0, 0), "{pattern}");
        assert!(judgement.decisions > 0);
    }
}

/// Bounds in tenths of a per cent of the decisions, and in requests over the limit of 100.
fn check(pattern: Pattern, most_wrong: u64, most_excess: u32) {
    for seed in 1..=3 {
        let judgement = judge(Algorithm::SlidingWindow, pattern, seed);
        let wrong = judgement.wrongly_allowed + judgement.wrongly_denied;
        assert!(wrong * 1_000 <= most_wrong * judgement.decisions, "{pattern}: {judgement:?}");
        assert!(judgement.worst_excess <= most_excess, "{pattern}: {judgement:?}");
    }
}

#[test]
fn the_estimate_is_right_on_steady_traffic_whatever_its_rate() {
    check(Pattern::Steady { percent: 50 }, 0, 0);
    check(Pattern::Steady { percent: 120 }, 1, 0);
    check(Pattern::Steady { percent: 200 }, 1, 0);
}

#[test]
fn the_estimate_is_right_on_poisson_traffic_that_fits_and_near_when_it_does_not() {
    check(Pattern::Poisson { percent: 50 }, 0, 0);
    check(Pattern::Poisson { percent: 120 }, 300, 25);
    check(Pattern::Poisson { percent: 200 }, 300, 25);
}

#[test]
fn bursts_can_take_the_estimate_almost_to_twice_the_limit() {
    check(Pattern::Bursty { percent: 120 }, 350, 99);
}

#[test]
fn an_adversary_gets_twice_the_limit_past_the_estimate_and_never_more() {
    let judgement = judge(Algorithm::SlidingWindow, Pattern::Adversarial, 1);
    assert_eq!(judgement.worst_excess, 100);
    for percent in [90, 200] {
        check(Pattern::Bursty { percent }, 1_000, 100);
    }
}

#[test]
fn the_table_in_the_documentation_is_what_the_example_prints() {
    let page = include_str!("../../../../docs/algorithms.md");
    let table = accuracy(100, 1).unwrap().to_string();
    assert!(
        page.contains(&table),
        "paste what `cargo run -p tollgate-sim --example accuracy` prints into docs/algorithms.md"
    );
}
