//! What lanes make of what responses tell: in which order, for which requests, and for how long.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{advance, timeout};
use tollgate_client::{Budget, Lane, Pass, Throttle, bounds};

use crate::support::{SECOND, now};
use crate::throttle::{ask, budget, check_about, lane, moments};

async fn passes(lane: &Lane, count: usize) -> Vec<Pass> {
    let mut passes = Vec::new();
    for _ in 0..count {
        passes.push(lane.pass().await.expect("it need not wait for long"));
    }
    passes
}

fn of_window(left: usize) -> Budget {
    budget(&format!("X-RateLimit-Limit: 100\nX-RateLimit-Remaining: {left}\nX-RateLimit-Reset: 60"))
}

/// A hundred are under way and use up a window of a hundred. In whatever order their answers arrive, nothing is left.
#[tokio::test(start_paused = true)]
async fn answers_that_overtake_each_other_do_not_bring_back_what_was_used() {
    for is_backwards in [false, true] {
        let lane = lane();
        let passes = passes(&lane, 100).await;
        advance(SECOND / 10).await;
        let mut left: Vec<usize> = (0..100).rev().collect();
        if is_backwards {
            left.reverse();
        }
        for (pass, left) in passes.into_iter().zip(left) {
            pass.answered(&of_window(left));
            advance(Duration::from_millis(1)).await;
        }
        timeout(59 * SECOND, lane.pass()).await.unwrap_err();
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_to_a_later_request_is_believed_whatever_it_says() {
    let lane = lane();
    for (pass, left) in passes(&lane, 2).await.into_iter().zip([50, 80]) {
        pass.answered(&of_window(left));
    }
    // The second may have been counted before the first, so less than half is left, and is spread.
    check_about(&moments(&lane, 1, Duration::ZERO).await, &[1.0]);
    lane.pass().await.unwrap().answered(&of_window(90));
    check_about(&moments(&lane, 20, SECOND).await, &[0.0; 20]);
}

/// The last answer of a window arrives after the first of the next one.
#[tokio::test(start_paused = true)]
async fn a_late_answer_of_the_window_before_is_not_believed() {
    let lane = lane();
    let [late, early] = <[Pass; 2]>::try_from(passes(&lane, 2).await).unwrap();
    early.answered(&of_window(80));
    late.answered(&budget(
        "X-RateLimit-Limit: 100\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 1",
    ));
    check_about(&moments(&lane, 20, SECOND).await, &[0.0; 20]);
}

fn tokens(left: u32, reset: &str) -> String {
    format!(
        "x-ratelimit-remaining-tokens: {left}\nx-ratelimit-limit-tokens: 160000\nx-ratelimit-reset-tokens: {reset}"
    )
}

#[tokio::test(start_paused = true)]
async fn what_is_back_is_not_waited_for() {
    let lane = lane();
    let bytes = |left: u32, reset: u32| {
        budget(&format!(
            "RateLimit-Policy: \"b\";q=9000;qu=\"content-bytes\";w=60\nRateLimit: \"b\";r={left};t={reset}"
        ))
    };
    let [first, second, third] = <[Pass; 3]>::try_from(passes(&lane, 3).await).unwrap();
    first.answered(&bytes(0, 60));
    // This one may have been counted before it.
    second.answered(&bytes(5_000, 60));
    timeout(5 * SECOND, lane.pass()).await.unwrap_err();
    // This one is of the next window.
    third.answered(&bytes(5_000, 90));
    check_about(&moments(&lane, 1, Duration::ZERO).await, &[0.0]);
}

/// The reset of a bucket is when all of it is back; a unit is much sooner.
#[tokio::test(start_paused = true)]
async fn a_bucket_that_is_used_up_is_asked_at_the_rate_at_which_it_fills() {
    for (told, expected) in [
        ("X-Shopify-Shop-Api-Call-Limit: 40/40", [0.5, 1.0, 1.5]),
        (
            "x-ratelimit-limit-requests: 60\nx-ratelimit-remaining-requests: 0\nx-ratelimit-reset-requests: 60s",
            [1.0, 2.0, 3.0],
        ),
        (
            "x-ratelimit-limit-requests: 10\nx-ratelimit-remaining-requests: 0\nx-ratelimit-reset-requests: 60s",
            [6.0, 12.0, 18.0],
        ),
        // Little is left: it is spread before it is used up.
        ("X-Shopify-Shop-Api-Call-Limit: 39/40", [0.5, 1.0, 1.5]),
    ] {
        let lane = lane();
        ask(&lane, told).await;
        check_about(&moments(&lane, 3, Duration::ZERO).await, &expected);
    }
}

/// Nobody knows how many tokens a request takes: one looks after a second, and others follow it.
#[tokio::test(start_paused = true)]
async fn a_bucket_of_tokens_that_is_used_up_is_asked_after_a_second_one_by_one() {
    let lane = lane();
    ask(&lane, &tokens(0, "60s")).await;
    check_about(&moments(&lane, 3, SECOND).await, &[1.0, 2.0, 2.0]);
    ask(&lane, &tokens(0, "60s")).await;
    ask(&lane, &tokens(50_000, "40s")).await;
    check_about(&moments(&lane, 1, Duration::ZERO).await, &[0.0]);
    // Whoever was refused waits for all of it.
    lane.pass().await.unwrap().refused(&budget(&tokens(0, "60s")));
    check_about(&moments(&lane, 1, Duration::ZERO).await, &[60.0]);
}

fn resource(name: &str, left: u32) -> String {
    format!("X-RateLimit-Remaining: {left}\nX-RateLimit-Reset: 60\nX-RateLimit-Resource: {name}")
}

#[tokio::test(start_paused = true)]
async fn what_one_scope_has_used_up_does_not_hold_up_another() {
    let lane = lane();
    ask(&lane, &resource("core", 4_000)).await;
    ask(&lane, &resource("search", 0)).await;
    check_about(&moments(&lane, 3, SECOND).await, &[0.0; 3]);
    lane.pass().await.unwrap().refused(&budget(&resource("search", 0)));
    check_about(&moments(&lane, 3, SECOND).await, &[0.0; 3]);
    // What does not say that a scope is used up is for all.
    let secondary = format!("Retry-After: 5\n{}", resource("core", 3_000));
    lane.pass().await.unwrap().refused(&budget(&secondary));
    check_about(&moments(&lane, 1, SECOND).await, &[5.0]);
}

#[tokio::test(start_paused = true)]
async fn the_only_scope_there_is_is_waited_for() {
    let lane = lane();
    ask(&lane, &resource("search", 1)).await;
    ask(&lane, &resource("search", 0)).await;
    check_about(&moments(&lane, 1, SECOND).await, &[60.0]);
    lane.pass().await.unwrap().refused(&budget(&resource("search", 0)));
    check_about(&moments(&lane, 1, SECOND).await, &[60.0]);
}

/// The only name there is was refused; then it turns out that there are others.
#[tokio::test(start_paused = true)]
async fn who_was_refused_under_a_name_holds_nobody_up_once_there_is_another() {
    let lane = lane();
    let [core, search] = <[Pass; 2]>::try_from(passes(&lane, 2).await).unwrap();
    core.refused(&budget(&resource("core", 0)));
    timeout(5 * SECOND, lane.pass()).await.unwrap_err();
    search.answered(&budget(&resource("search", 9)));
    check_about(&moments(&lane, 3, SECOND).await, &[0.0; 3]);
}

#[tokio::test(start_paused = true)]
async fn who_was_refused_for_all_holds_up_all_whatever_names_there_are() {
    let lane = lane();
    let [all, core, search] = <[Pass; 3]>::try_from(passes(&lane, 3).await).unwrap();
    core.refused(&budget(&resource("core", 0)));
    all.refused(&budget("Retry-After: 30"));
    search.answered(&budget(&resource("search", 9)));
    check_about(&moments(&lane, 1, SECOND).await, &[30.0]);
}

/// A server calls what it counts by another name from now on.
#[tokio::test(start_paused = true)]
async fn a_name_that_is_heard_no_more_is_forgotten_after_an_hour() {
    let lane = lane();
    ask(&lane, &resource("old", 40)).await;
    ask(&lane, &resource("new", 0)).await;
    advance(3_599 * SECOND).await;
    ask(&lane, &resource("new", 0)).await;
    advance(SECOND).await;
    ask(&lane, &resource("new", 0)).await;
    check_about(&moments(&lane, 1, SECOND).await, &[60.0]);
}

/// Whoever has a key for each user of a host does not tell its endpoints apart.
#[tokio::test(start_paused = true)]
async fn what_an_endpoint_has_used_up_holds_up_others_only_if_keys_tell_endpoints_apart() {
    let used_up = "X-Rate-Limit-Limit: 15\nX-Rate-Limit-Remaining: 0\nX-Rate-Limit-Reset: 60";
    for (throttle, expected) in [(Throttle::new(), 0.0), (Throttle::new().by_endpoint(), 60.0)] {
        let lane = throttle.lane("api.x.com anna");
        ask(&lane, used_up).await;
        check_about(&moments(&lane, 1, SECOND).await, &[expected]);
    }
}

/// Somebody took milliseconds for seconds.
#[tokio::test(start_paused = true)]
async fn no_lane_is_closed_for_longer_than_an_hour() {
    for told in ["Retry-After: 30000", "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 80000"] {
        let lane = lane();
        lane.pass().await.unwrap().refused(&budget(told));
        assert_eq!(lane.pass().await.unwrap_err().retry_after, Some(bounds::CLOSED_MAX));
        advance(bounds::CLOSED_MAX).await;
        // One looks; when it goes well the others follow.
        check_about(&moments(&lane, 3, SECOND).await, &[0.0, 1.0, 1.0]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lane_can_be_opened_by_hand() {
    let lane = Throttle::new().lane("test");
    lane.pass().await.unwrap().refused(&budget("Retry-After: 100"));
    let waits = tokio::spawn({
        let lane = lane.clone();
        async move { lane.pass().await.map(drop) }
    });
    tokio::task::yield_now().await;
    let start = now();
    lane.reopen();
    waits.await.unwrap().unwrap();
    assert_eq!(now(), start);
    check_about(&moments(&lane, 3, SECOND).await, &[0.0; 3]);
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_no_sign_that_more_may_go() {
    let lane = lane();
    lane.pass().await.unwrap().refused(&Budget::default());
    for _ in 0..20 {
        lane.pass().await.unwrap().failed(&Budget::default());
    }
    check_about(&moments(&lane, 3, SECOND).await, &[0.0, 1.0, 1.0]);
}

/// A hundred hang when one is refused. They neither keep the others back nor tell that more may go.
#[tokio::test(start_paused = true)]
async fn what_was_sent_before_a_refusal_tells_nothing_by_hanging() {
    let lane = lane();
    let mut hanging = passes(&lane, 101).await;
    hanging.pop().unwrap().refused(&budget("Retry-After: 1"));
    check_about(&moments(&lane, 4, 10 * SECOND).await, &[1.0, 3.0, 5.0, 5.0]);
    drop(hanging);
}

/// A hundred are refused, and what they ask takes its time: who waits behind the first of them does not wait for its
/// end, since whoever refuses does so at once.
#[tokio::test(start_paused = true)]
async fn what_takes_long_does_not_keep_the_others_back() {
    let lane = lane();
    for pass in passes(&lane, 100).await {
        pass.refused(&budget("Retry-After: 1"));
    }
    let mut tasks = JoinSet::new();
    for _ in 0..100 {
        let lane = lane.clone();
        tasks.spawn(async move {
            let pass = lane.pass().await?;
            tokio::time::sleep_until(now() + 45 * SECOND).await;
            pass.answered(&Budget::default());
            Ok::<_, tollgate_client::Throttled>(())
        });
    }
    let failed = tasks.join_all().await.into_iter().filter(Result::is_err).count();
    assert_eq!(failed, 0, "of 100");
}
