//! Lanes, on a clock that is moved by hand.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::task::JoinSet;
use tokio::time::{Instant, advance, timeout};
use tollgate_client::{Budget, Lane, Throttle, bounds};
use tollgate_core::{Limit, Micros, Quota};

use crate::support::{SECOND, fields, now};

const MILLI: Duration = Duration::from_millis(1);

pub(crate) fn lane() -> Lane {
    Throttle::new().lane("test")
}

pub(crate) fn budget(lines: &str) -> Budget {
    Budget::read(&fields(lines), SystemTime::UNIX_EPOCH)
}

/// A request that is answered at once.
pub(crate) async fn ask(lane: &Lane, lines: &str) {
    lane.pass().await.expect("it need not wait for long").answered(&budget(lines));
}

/// When each of `count` requests, all made now, may go; each is under way for `takes`.
pub(crate) async fn moments(lane: &Lane, count: usize, takes: Duration) -> Vec<Duration> {
    let start = now();
    let moments: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let mut tasks = JoinSet::new();
    for _ in 0..count {
        let (lane, moments) = (lane.clone(), Arc::clone(&moments));
        tasks.spawn(async move {
            let pass = lane.pass().await.expect("it need not wait for long");
            moments.lock().expect("nobody panics with it").push(now() - start);
            until(now() + takes).await;
            pass.answered(&Budget::default());
        });
    }
    tasks.join_all().await;
    let mut moments = moments.lock().expect("nobody panics with it");
    std::mem::take(&mut *moments)
}

async fn until(moment: Instant) {
    tokio::time::sleep_until(moment).await;
}

pub(crate) fn check_about(moments: &[Duration], expected: &[f64]) {
    assert_eq!(moments.len(), expected.len(), "{moments:?}");
    for (moment, expected) in moments.iter().zip(expected) {
        let difference = moment.abs_diff(Duration::from_secs_f64(*expected));
        assert!(difference <= 5 * MILLI, "{moments:?} are not {expected:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_as_long_as_nothing_is_known() {
    check_about(&moments(&lane(), 3, SECOND).await, &[0.0; 3]);
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_as_long_as_more_than_half_is_left() {
    let lane = lane();
    ask(&lane, "X-RateLimit-Limit: 20\nX-RateLimit-Remaining: 15\nX-RateLimit-Reset: 60").await;
    check_about(&moments(&lane, 4, SECOND).await, &[0.0; 4]);
}

#[tokio::test(start_paused = true)]
async fn what_is_left_is_spread_over_the_time_until_there_is_more() {
    let lane = lane();
    ask(&lane, "X-RateLimit-Limit: 20\nX-RateLimit-Remaining: 4\nX-RateLimit-Reset: 5").await;
    let moments = moments(&lane, 6, Duration::ZERO).await;
    // Then a wall; behind it the two that are left go one by one, and here each goes at once.
    check_about(&moments, &[1.0, 2.0, 3.0, 4.0, 5.0, 5.0]);
}

#[tokio::test(start_paused = true)]
async fn a_bucket_that_refills_in_fractions_of_a_second_is_asked_at_its_rate() {
    let lane = lane();
    ask(&lane, "RateLimit-Policy: \"a\";q=50;w=1\nRateLimit: \"a\";r=4;t=1").await;
    check_about(&moments(&lane, 3, Duration::ZERO).await, &[0.02, 0.04, 0.06]);
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_long_for_what_is_to_last_a_day() {
    let lane = lane();
    ask(&lane, "X-RateLimit-Limit: 1000\nX-RateLimit-Remaining: 400\nX-RateLimit-Reset: 40000")
        .await;
    check_about(&moments(&lane, 3, Duration::ZERO).await, &[1.0, 2.0, 3.0]);
}

#[tokio::test(start_paused = true)]
async fn behind_a_wall_requests_go_one_by_one_and_then_by_ever_more() {
    let lane = lane();
    ask(&lane, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 10").await;
    let moments = moments(&lane, 10, SECOND).await;
    check_about(&moments, &[10.0, 11.0, 11.0, 12.0, 12.0, 12.0, 12.0, 13.0, 13.0, 13.0]);
}

#[tokio::test(start_paused = true)]
async fn at_a_rate_that_was_told_requests_go_on_at_that_rate() {
    let lane = lane();
    ask(&lane, "RateLimit-Policy: \"a\";q=4;w=2\nRateLimit: \"a\";r=0;t=3").await;
    check_about(&moments(&lane, 4, Duration::ZERO).await, &[3.0, 3.5, 4.0, 4.5]);
}

#[tokio::test(start_paused = true)]
async fn of_several_allowances_the_tightest_counts() {
    let lane = lane();
    ask(&lane, "RateLimit: \"a\";r=1000;t=1, \"b\";r=0;t=7, \"c\";r=0;t=4").await;
    check_about(&moments(&lane, 1, SECOND).await, &[7.0]);
}

#[tokio::test(start_paused = true)]
async fn of_other_units_only_their_end_counts() {
    let lane = lane();
    let bytes = |left: u32| {
        let policy = "RateLimit-Policy: \"b\";q=9000;qu=\"content-bytes\";w=60";
        format!("{policy}\nRateLimit: \"b\";r={left};t=8")
    };
    ask(&lane, &bytes(1)).await;
    check_about(&moments(&lane, 3, Duration::ZERO).await, &[0.0; 3]);
    ask(&lane, &bytes(0)).await;
    check_about(&moments(&lane, 1, Duration::ZERO).await, &[8.0]);
}

#[tokio::test(start_paused = true)]
async fn those_under_way_are_taken_off_what_is_left() {
    let lane = lane();
    let under_way = [lane.pass().await.unwrap(), lane.pass().await.unwrap()];
    ask(&lane, "X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 2\nX-RateLimit-Reset: 10").await;
    timeout(9 * SECOND, lane.pass()).await.unwrap_err();
    // What the later answers say is news for whoever waits.
    let start = now();
    let waits = lane.pass();
    let (passed, ()) = tokio::join!(waits, async {
        let [first, second] = under_way;
        first.answered(&Budget::default());
        let next = "X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 2\nX-RateLimit-Reset: 15";
        second.answered(&budget(next));
    });
    passed.unwrap();
    assert_eq!(now(), start);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_closes_the_lane_for_all() {
    let lane = lane();
    lane.pass().await.unwrap().refused(&budget("Retry-After: 5"));
    check_about(&moments(&lane, 4, SECOND).await, &[5.0, 6.0, 6.0, 7.0]);
}

#[tokio::test(start_paused = true)]
async fn those_who_are_refused_together_are_one_refusal() {
    let lane = lane();
    lane.pass().await.unwrap().refused(&budget("Retry-After: 1"));
    check_about(&moments(&lane, 15, SECOND).await[14..], &[4.0]);
    // Sixteen may be under way now. All are refused: half as many go next.
    let mut passes = Vec::new();
    for _ in 0..16 {
        passes.push(lane.pass().await.unwrap());
    }
    passes.into_iter().for_each(|pass| pass.refused(&budget("Retry-After: 1")));
    let moments = moments(&lane, 10, SECOND).await;
    check_about(&moments[6..], &[1.0, 1.0, 2.0, 2.0]);
}

#[tokio::test(start_paused = true)]
async fn a_lane_is_of_one_key_alone() {
    let throttle = Throttle::new();
    throttle.lane("a").pass().await.unwrap().refused(&budget("Retry-After: 5"));
    check_about(&moments(&throttle.lane("b"), 1, SECOND).await, &[0.0]);
    check_about(&moments(&throttle.clone().lane("a"), 1, SECOND).await, &[4.0]);
}

#[tokio::test(start_paused = true)]
async fn every_algorithm_is_a_limit_of_our_own() {
    let quota = Quota::per_second(2);
    let log = Limit::sliding_log(quota).unwrap();
    for (limit, expected) in [
        (Limit::token_bucket(quota, 2).unwrap(), [0.0, 0.0, 0.5, 1.0, 1.5]),
        (Limit::token_bucket(quota, 1).unwrap(), [0.0, 0.5, 1.0, 1.5, 2.0]),
        (Limit::leaky_bucket(quota, 2, None).unwrap(), [0.0, 0.5, 1.0, 1.5, 2.0]),
        (log, [0.0, 0.0, 1.0, 1.0, 2.0]),
        (Limit::concurrency(2, Micros::from_secs(60)).unwrap(), [0.0, 0.0, 1.0, 1.0, 2.0]),
    ] {
        let lane = Throttle::new().limit(limit).lane("test");
        check_about(&moments(&lane, 5, SECOND).await, &expected);
    }
    // Where windows begin is a matter of the clock; but two seconds have at most three windows.
    for limit in [Limit::fixed_window(quota, Default::default()), Limit::sliding_window(quota)] {
        let lane = Throttle::new().limit(limit).lane("test");
        let moments = moments(&lane, 7, SECOND).await;
        let last = moments[6].as_secs_f64();
        assert!((2.0..=4.0).contains(&last), "{limit:?}: {moments:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_allows_nothing_fails_at_once() {
    let lane = Throttle::new().limit(Limit::sliding_window(Quota::per_second(0))).lane("test");
    let start = now();
    assert_eq!(lane.pass().await.unwrap_err().retry_after, None);
    assert_eq!(now(), start);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_would_be_too_long_is_not_begun() {
    let lane = lane();
    ask(&lane, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 600").await;
    let start = now();
    let throttled = lane.pass().await.unwrap_err();
    assert_eq!(now(), start);
    assert_eq!(throttled.retry_after, Some(600 * SECOND));
    let sentence = "the request would have waited too long for its budget and was not made; \
                    try again in 600000 ms";
    assert_eq!(throttled.to_string(), sentence);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_turns_out_too_long_ends() {
    let limit = Limit::concurrency(1, Micros::from_secs(3_600)).unwrap();
    let lane = Throttle::new().limit(limit).wait_max(7 * SECOND).lane("test");
    let _held = lane.pass().await.unwrap();
    let start = now();
    // Both the first of those who wait and those behind it.
    let (first, second) = tokio::join!(lane.pass(), lane.pass());
    assert!(first.is_err() && second.is_err());
    assert!(now() - start <= 8 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn no_more_wait_than_there_is_room_for() {
    let lane = lane();
    lane.pass().await.unwrap().refused(&budget("Retry-After: 60"));
    let mut waiting = JoinSet::new();
    for _ in 0..bounds::WAITING_MAX {
        let lane = lane.clone();
        waiting.spawn(async move { lane.pass().await.map(drop) });
    }
    until(now() + SECOND).await;
    assert!(lane.pass().await.is_err());
    waiting.abort_all();
    while waiting.join_next().await.is_some() {}
    check_about(&moments(&lane, 1, SECOND).await, &[59.0]);
}

/// However long its lease is: whoever holds it gives it back.
#[tokio::test(start_paused = true)]
async fn whoever_waits_for_a_slot_gets_it_when_it_is_given_back() {
    let limit = Limit::concurrency(1, Micros::from_secs(3_600)).unwrap();
    let lane = Throttle::new().limit(limit).lane("test");
    check_about(&moments(&lane, 3, 5 * SECOND).await, &[0.0, 5.0, 10.0]);
}

/// Whoever waits is dropped, the first and those behind it, at every moment: the others go when they
/// would have gone without it, and in their order.
#[tokio::test(start_paused = true)]
async fn whoever_is_dropped_while_it_waits_was_never_there() {
    for dropped_after in 0..12 {
        let quota = Quota::per_second(1);
        let lane = Throttle::new().limit(Limit::token_bucket(quota, 1).unwrap()).lane("test");
        ask(&lane, "").await;
        let start = now();
        let order: Arc<Mutex<Vec<(usize, Duration)>>> = Arc::default();
        let mut tasks = JoinSet::new();
        for number in 0..10 {
            let (lane, order) = (lane.clone(), Arc::clone(&order));
            tasks.spawn(async move {
                let patience =
                    if number % 3 == 0 { dropped_after * SECOND / 4 } else { 60 * SECOND };
                if let Ok(passed) = timeout(patience, lane.pass()).await {
                    passed.unwrap();
                    order.lock().unwrap().push((number, now() - start));
                }
            });
        }
        tasks.join_all().await;
        let order = order.lock().unwrap();
        let numbers: Vec<usize> = order.iter().map(|(number, _)| *number).collect();
        assert!(numbers.is_sorted() && numbers.len() >= 6, "{order:?}");
        for ((_, moment), expected) in order.iter().zip(1..) {
            assert!(moment.abs_diff(expected * SECOND) < 5 * MILLI, "{order:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_pass_that_is_dropped_frees_its_place() {
    let lane =
        Throttle::new().limit(Limit::concurrency(1, Micros::from_secs(60)).unwrap()).lane("x");
    for _ in 0..100 {
        drop(lane.pass().await.unwrap());
    }
    lane.pass().await.unwrap().refused(&Budget::default());
    for _ in 0..100 {
        // One at a time, and no answer: it stays at one.
        drop(lane.pass().await.unwrap());
    }
    advance(SECOND).await;
}
