//! Responses that are not as they should be, and what is read from them.

use std::time::Duration;

use http::HeaderValue;
use tollgate_client::{Budget, bounds};

use crate::budget::{DATE, now, told};
use crate::support::fields;

#[track_caller]
fn check(lines: &str, expected: &[&str], wait: Option<u64>) {
    let budget = Budget::read(&fields(lines), now());
    assert_eq!(told(&budget), expected, "{lines}");
    assert_eq!(budget.wait(), wait.map(Duration::from_secs), "{lines}");
}

#[test]
fn a_malformed_field_is_ignored_and_nothing_else_is() {
    check("RateLimit: \"api\";r=50;t=30,\nX-RateLimit-Remaining: 3", &["3"], None);
    check("RateLimit: \"api\";t=30\nX-RateLimit-Remaining: 3", &["3"], None);
    check("RateLimit: \"api\";r=-1, \"b\";r=2", &["b 2"], None);
    check("RateLimit: \"api\";r=5;t=soon\nRateLimit-Policy: \"api\";q=x\"", &["api 5"], None);
    check("RateLimit: \"api\";r=5\nRateLimit-Policy: \"api\";q=9;w=0", &["api 5/9"], None);
    check(
        "X-RateLimit-Limit: many\nX-RateLimit-Remaining: 3\nX-RateLimit-Reset: soon",
        &["3"],
        None,
    );
    check("X-RateLimit-Remaining: lots", &[], None);
    check("Retry-After: soon", &[], None);
    check("Retry-After: -5", &[], None);
    check("Retry-After-Ms: x\nRetry-After: 3", &[], Some(3));
    check("X-Shopify-Shop-Api-Call-Limit: 40", &[], None);
    check("X-Shopify-Shop-Api-Call-Limit: 0/0", &["0/0 of 20s"], None);
}

/// A proxy and a server both say when to come back, on lines of their own or on one.
#[test]
fn of_a_wait_that_was_told_several_times_the_longest_counts() {
    check("Retry-After: 5\nRetry-After: 5", &[], Some(5));
    check("Retry-After: 5\nRetry-After: 60", &[], Some(60));
    check("Retry-After: 60, 5", &[], Some(60));
    check("Retry-After: soon\nRetry-After: 5", &[], Some(5));
    check(
        &format!("Date: {DATE}\nRetry-After: 5\nRetry-After: Mon, 16 Nov 2026 06:34:19 GMT"),
        &[],
        Some(60),
    );
    check("Retry-After-Ms: 2000\nRetry-After-Ms: 3000", &[], Some(3));
    check(
        "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 9\nX-RateLimit-Reset: 7",
        &["0 in 9s"],
        Some(9),
    );
}

#[test]
fn a_window_that_would_have_ended_is_not_the_one_that_was_told() {
    let told = |reset: u32| {
        format!(
            "RateLimit: limit=10, remaining=3, reset={reset}\nRateLimit-Policy: 10;w=60, 10;w=1"
        )
    };
    check(&told(1), &["3/10 in 1s of 1s"], None);
    check(&told(2), &["3/10 in 2s of 60s"], None);
    check(&told(61), &["3/10 in 61s"], None);
}

/// Go writes a Greek letter, which is not ASCII.
#[test]
fn microseconds_are_read_as_go_writes_them() {
    let mut fields = fields("x-ratelimit-remaining-requests: 0");
    let micros = HeaderValue::from_bytes("250µs".as_bytes()).unwrap();
    fields.insert("x-ratelimit-reset-requests", micros);
    assert_eq!(Budget::read(&fields, now()).wait(), Some(Duration::from_micros(250)));
}

#[test]
fn an_absurd_wait_is_capped() {
    let most = bounds::WAIT_MAX.as_secs();
    check("Retry-After: 99999999", &[], Some(most));
    check("Retry-After: Fri, 31 Dec 9999 23:59:59 GMT", &[], Some(most));
    check("RateLimit: \"a\";r=0;t=999999999999999", &["a 0 in 86400s"], Some(most));
}

#[test]
fn a_field_that_is_too_long_is_not_read() {
    let long = format!("X-RateLimit-Remaining: 1{}", ", 1".repeat(bounds::FIELD_BYTES_MAX));
    check(&long, &[], None);
    check(&"RateLimit: \"a\";r=1\n".repeat(bounds::FIELD_BYTES_MAX), &[], None);
    let many = format!("RateLimit: \"a\";r=1{}", ", \"a\";r=1".repeat(100));
    assert_eq!(Budget::read(&fields(&many), now()).allowances().len(), bounds::ALLOWANCES_MAX);
}

#[test]
fn what_a_cache_tells_is_not_our_budget() {
    check("Age: 30\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 30", &[], None);
    check("Age: 0\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 30", &["0 in 30s"], Some(30));
}

#[test]
fn a_server_may_say_whether_another_try_makes_sense() {
    for (lines, expected) in [
        ("stripe-should-retry: false", Some(false)),
        ("x-should-retry: true", Some(true)),
        ("x-should-retry: perhaps", None),
        ("retry-after: 1", None),
    ] {
        assert_eq!(Budget::read(&fields(lines), now()).should_retry(), expected, "{lines}");
    }
}
