//! What a verdict says, and what asking for one changes.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use tollgate::{Change, Cost, End, Limiter, LimiterError, Micros, Missing, Outcome, Override};
use tollgate::{Request, Ruling, Verdict};

use crate::{Gate, check_ruled_out, deniers, left, parse, parse_with, time};

/// One limit of each algorithm that holds `count`, under the name of its algorithm.
fn one_of_each(count: u32) -> [String; 6] {
    named(|algorithm| algorithm, count)
}

/// The same under names of the test's own.
fn named(name: impl Fn(&'static str) -> &'static str, count: u32) -> [String; 6] {
    let of_rate = |algorithm| {
        let name = name(algorithm);
        let queue =
            if algorithm == "leaky_bucket" { format!(", queue: {count}") } else { String::new() };
        format!("{{name: {name}, rate: {count}/minute, algorithm: {algorithm}{queue}}}")
    };
    [
        of_rate("sliding_window"),
        of_rate("token_bucket"),
        of_rate("leaky_bucket"),
        of_rate("fixed_window"),
        of_rate("sliding_log"),
        format!("{{name: {}, concurrency: {count}}}", name("concurrency")),
    ]
}

fn is_send_and_sync<T: Send + Sync>() {}

// Several limits.

#[test]
fn a_request_refused_by_one_limit_is_not_charged_to_another() {
    for bystander in one_of_each(5) {
        let gate_keeper = "{name: gate-keeper, rate: 1/hour}";
        for limits in [[&bystander[..], gate_keeper], [gate_keeper, &bystander]] {
            let gate = Gate::new(&format!("limits: [{}]", limits.join(", ")));
            let first = gate.check(&[]);
            let lefts = left(&first);
            let refused = gate.check(&[]);
            assert_eq!(refused.ruling(), Ruling::Denied);
            assert_eq!(deniers(&refused), ["gate-keeper"], "{bystander}");
            assert_eq!((left(&refused), gate.left(&[])), (lefts.clone(), lefts), "{bystander}");
        }
    }
}

#[test]
fn a_request_that_two_limits_refuse_is_told_of_both() {
    let gate = Gate::new("limits: [{name: a, rate: 1/hour}, {name: b, rate: 1/minute}]");
    assert!(gate.allows(&[]));
    assert_eq!(deniers(&gate.check(&[])), ["a", "b"]);
}

#[test]
fn more_limits_than_a_verdict_keeps_at_hand_are_still_paid_all_or_none() {
    let limit = |number| format!("  - {{name: n{number}, rate: 5/minute}}\n");
    let limits: String = (0..20).map(limit).collect();
    let gate = Gate::new(&format!("limits:\n{limits}  - {{name: last, rate: 2/minute}}\n"));
    assert_eq!(gate.admitted(4, &[]), 2);
    let verdict = gate.check(&[]);
    assert_eq!(deniers(&verdict), ["last"]);
    assert_eq!(left(&verdict), [[3; 20].as_slice(), &[0]].concat());
}

#[test]
fn answers_come_in_the_order_of_the_policy() {
    let gate = Gate::new(
        "limits: [{name: z, rate: 5/minute}, {name: b, when: {user: present}, rate: [1/second, \
         9/minute]}, {name: a, rate: 7/minute}]",
    );
    let verdict = gate.check(&[("user", "1")]);
    let names: Vec<&str> = verdict.answers().map(|answer| &**answer.rule().name()).collect();
    assert_eq!(names, ["z", "b", "b#2", "a"]);
    assert_eq!(left(&verdict), [4, 0, 8, 6]);
}

#[test]
fn a_peek_answers_and_changes_nothing() {
    for limit in one_of_each(2) {
        let gate = Gate::new(&format!("limits: [{limit}]"));
        let peek = || gate.check_costing(0, &[]);
        assert_eq!((peek().ruling(), gate.left(&[])), (Ruling::Allowed, vec![2]), "{limit}");
        assert_eq!(gate.store.keys(), 0, "a look at a stranger is not remembered");
        assert_eq!(gate.admitted(5, &[]), 2, "{limit}");
        assert_eq!(gate.left(&[]), [0], "{limit}");
    }
}

#[test]
fn without_limits_everything_is_allowed() {
    let verdict = Gate::new("limits: []").check(&[("user", "1")]);
    assert_eq!((verdict.ruling(), verdict.answers().len()), (Ruling::Allowed, 0));
    assert!(verdict.tightest().is_none());
}

// Shadow.

#[test]
fn a_limit_in_shadow_reports_what_it_would_have_said_and_denies_nothing() {
    let gate = Gate::new(
        "limits: [{name: strict, rate: 2/minute, mode: shadow}, {name: lax, rate: 3/minute}]",
    );
    let told: Vec<(Ruling, Vec<String>)> = (0..4)
        .map(|_| gate.check(&[]))
        .map(|verdict| (verdict.ruling(), deniers(&verdict)))
        .collect();
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<String>>();
    assert_eq!(
        told,
        [
            (Ruling::Allowed, names(&[])),
            (Ruling::Allowed, names(&[])),
            (Ruling::Allowed, names(&["strict"])),
            (Ruling::Denied, names(&["strict", "lax"])),
        ]
    );
}

#[test]
fn a_limit_in_shadow_is_charged_when_the_request_is_allowed_and_not_when_it_is_denied() {
    for shadow in one_of_each(5) {
        let shadow = shadow.replace('}', ", mode: shadow}");
        let gate = Gate::new(&format!("limits: [{shadow}, {{name: gate, rate: 1/hour}}]"));
        assert!(gate.allows(&[]));
        assert_eq!(gate.left(&[]), [4, 0], "{shadow}");
        assert_eq!(gate.admitted(3, &[]), 0);
        assert_eq!(gate.left(&[]), [4, 0], "{shadow}");
    }
}

#[test]
fn a_limit_in_shadow_neither_delays_nor_sets_the_wait_nor_is_the_tightest() {
    let gate = Gate::new(
        "limits: [{name: slow, rate: 1/hour, mode: shadow}, {name: shape, rate: 1/minute, \
         algorithm: leaky_bucket, queue: 9, mode: shadow}, {name: real, rate: 2/second, algorithm: sliding_log}]",
    );
    assert!(gate.allows(&[]));
    let second = gate.check(&[]);
    assert_eq!((second.ruling(), second.delay()), (Ruling::Allowed, Micros::ZERO));
    assert_eq!(second.tightest().map(|answer| answer.rule().name().to_string()).unwrap(), "real");
    let third = gate.check(&[]);
    assert_eq!(third.ruling(), Ruling::Denied);
    assert_eq!(third.retry_after(), Some(time("1s")));
}

// Requests that are denied and count all the same.

#[test]
fn with_count_denied_a_denied_request_takes_what_is_left_too() {
    let gate = Gate::new(
        "limits: [{name: penalty, per: [user], rate: 10/hour, algorithm: fixed_window, \
         count_denied: true}, {name: gate, per: [user], rate: 1/minute, algorithm: token_bucket}]",
    );
    let user = [("user", "1")];
    assert!(gate.allows(&user));
    assert_eq!(gate.admitted(4, &user), 0);
    assert_eq!(gate.left(&user), [5, 0]);
    assert_eq!(gate.admitted(20, &user), 0);
    gate.advance("1m");
    assert_eq!(deniers(&gate.check(&user)), ["penalty"]);
    assert_eq!(gate.left(&[("user", "2")]), [10, 1], "nobody else is punished");
}

#[test]
fn the_wait_that_is_told_works_also_beside_a_limit_that_counted_the_denial() {
    let gate = Gate::new(
        "limits: [{name: pace, rate: 1/second, algorithm: sliding_log}, {name: strict, \
         rate: 2/minute, algorithm: fixed_window, align: key, count_denied: true}]",
    );
    assert!(gate.allows(&[]));
    gate.advance("100ms");
    let denied = gate.check(&[]);
    assert_eq!(deniers(&denied), ["pace"]);
    let wait = denied.retry_after().unwrap();
    assert_eq!(wait, time("59900ms"), "the denial used up what was left of strict");
    gate.clock.advance(wait);
    assert!(gate.allows(&[]));
}

#[test]
fn whoever_hammers_a_bucket_that_counts_denied_requests_waits_longer_but_not_for_ever() {
    let gate = Gate::new(
        "limits: [{name: api, rate: 1/second, burst: 5, algorithm: token_bucket, count_denied: \
         true}]",
    );
    assert_eq!(gate.admitted(5, &[]), 5);
    let first = gate.check(&[]).retry_after().unwrap();
    let second = gate.check(&[]).retry_after().unwrap();
    assert!(first < second, "{first} and then {second}");
    gate.admitted(10_000, &[]);
    let last = gate.check(&[]).retry_after().unwrap();
    assert!(last <= time("6s"), "a penalty ends two refills after the hammering: {last}");
    gate.clock.advance(last);
    assert!(gate.allows(&[]));
}

#[test]
fn what_a_denied_request_was_charged_is_not_refunded() {
    let gate = Gate::new(
        "limits: [{name: penalty, rate: 5/hour, algorithm: fixed_window, count_denied: true}, \
         {name: gate, rate: 1/hour}]",
    );
    assert!(gate.allows(&[]));
    gate.limiter.refund(gate.check(&[]));
    assert_eq!(gate.left(&[]), [3, 0]);
}

// Requests that no limit is asked about.

const LISTS: &str = "\
exempt:
  - {client_ip: {cidr: [10.0.0.0/8]}}
  - {user: admin}
deny:
  - {user: mallory}
  - {client_ip: {cidr: [10.6.6.0/24]}}
limits:
  - {name: everyone, rate: 1/hour}
";

#[test]
fn an_exempt_request_passes_and_is_not_counted() {
    let gate = Gate::new(LISTS);
    for _ in 0..3 {
        let verdict = gate.check(&[("client_ip", "10.1.2.3")]);
        check_ruled_out(&verdict, Ruling::Exempt);
        assert!(verdict.is_allowed());
    }
    check_ruled_out(&gate.check(&[("user", "admin")]), Ruling::Exempt);
    assert_eq!(gate.admitted(3, &[]), 1);
    assert!(gate.allows(&[("user", "admin")]), "also when the limit is used up");
}

#[test]
fn a_request_on_the_deny_list_is_refused_and_not_counted() {
    let gate = Gate::new(LISTS);
    let verdict = gate.check(&[("user", "mallory")]);
    check_ruled_out(&verdict, Ruling::Blocked);
    assert!(!verdict.is_allowed());
    assert_eq!(gate.admitted(3, &[]), 1);
}

#[test]
fn who_is_on_both_lists_is_refused() {
    let gate = Gate::new(LISTS);
    check_ruled_out(&gate.check(&[("client_ip", "10.6.6.6")]), Ruling::Blocked);
    let both = [("user", "mallory"), ("client_ip", "10.1.2.3")];
    check_ruled_out(&gate.check(&both), Ruling::Blocked);
}

const TENANTS: &str = "\
tenants: {from: header:x-api-key, file: tenants.yaml, unknown: refuse}
limits:
  - {name: api, per: [tenant], rate: {free: 10/minute, pro: 100/minute}, algorithm: token_bucket}
";

#[test]
fn a_request_without_a_known_key_is_refused_where_the_policy_says_so() {
    let policy = parse_with(TENANTS, "keys: {key-of-acme: {tenant: acme, tier: free}}");
    let gate = Gate::under(policy);
    for attributes in [&[][..], &[("header:x-api-key", "guess")], &[("header:x-api-key", "")]] {
        let verdict = gate.check(attributes);
        check_ruled_out(&verdict, Ruling::UnknownKey);
        assert!(!verdict.is_allowed());
    }
    let claimed = [("tenant", "acme"), ("tier", "pro")];
    check_ruled_out(&gate.check(&claimed), Ruling::UnknownKey);
    let known = [("header:x-api-key", "key-of-acme"), ("tier", "pro"), ("tenant", "globex")];
    assert_eq!(left(&gate.check(&known)), [9], "what a caller claims to be is not believed");
}

#[test]
fn a_cost_that_is_none_is_refused_and_no_limit_is_charged() {
    let gate = Gate::new(
        "limits: [{name: requests, rate: 5/minute}, {name: tokens, rate: 100/minute, cost: \
         {attribute: tokens}}]",
    );
    for cost in ["-1", "NaN", "1.5", "1e400", "0x10", "18446744073709551616", "", " 1", "+1"] {
        let verdict = gate.check(&[("tokens", cost)]);
        check_ruled_out(&verdict, Ruling::BadCost);
        assert!(!verdict.is_allowed(), "{cost:?}");
    }
    assert_eq!(gate.left(&[]), [5, 100]);
}

#[test]
fn a_cost_above_the_limit_is_denied_and_not_charged_and_no_wait_is_told() {
    for limit in one_of_each(5) {
        let gate = Gate::new(&format!("limits: [{limit}, {{name: other, rate: 9/minute}}]"));
        for cost in [6, u32::MAX] {
            let verdict = gate.check_costing(cost, &[]);
            assert_eq!((verdict.ruling(), verdict.retry_after()), (Ruling::Denied, None));
            let answer = verdict.answers().next().unwrap();
            assert_eq!(answer.decision().unwrap().outcome, Outcome::TooCostly, "{limit}");
        }
        assert_eq!(gate.left(&[]), [5, 9], "{limit}");
    }
}

// Waits.

#[test]
fn the_wait_of_a_verdict_is_the_longest_of_the_limits_that_deny() {
    let gate = Gate::new(
        "limits: [{name: second, rate: 2/second, algorithm: sliding_log}, {name: minute, rate: \
         2/minute, algorithm: sliding_log}, {name: hour, rate: 9/hour, algorithm: sliding_log}]",
    );
    assert_eq!(gate.admitted(2, &[]), 2);
    gate.advance("400ms");
    let verdict = gate.check(&[]);
    assert_eq!(deniers(&verdict), ["second", "minute"]);
    assert_eq!(verdict.retry_after(), Some(Micros::from_millis(59_600)));
}

#[test]
fn a_request_that_waits_as_told_is_allowed_and_one_that_comes_a_microsecond_earlier_is_not() {
    let limits = "{name: a, rate: 3/second}, {name: b, rate: 7/90s, algorithm: token_bucket, burst: \
                  2}, {name: c, rate: 4/minute, algorithm: sliding_log}, {name: d, rate: 10/hour, \
                  algorithm: fixed_window}";
    let gate = Gate::new(&format!("limits: [{limits}]"));
    let mut denials = 0;
    for step in 0..200_u64 {
        gate.clock.advance(Micros::new(step * 7_919));
        let Some(wait) = gate.check(&[]).retry_after() else { continue };
        gate.clock.advance(Micros::new(wait.as_micros() - 1));
        assert!(!gate.allows(&[]), "too long a wait was told: {wait}");
        gate.clock.advance(Micros::new(1));
        assert!(gate.allows(&[]), "too short a wait was told: {wait}");
        denials += 1;
    }
    assert!(denials > 50, "{denials}");
}

#[test]
fn of_a_concurrency_limit_no_wait_is_known() {
    let gate = Gate::new(
        "limits: [{name: slots, concurrency: 1}, {name: rate, rate: 1/minute, algorithm: \
         token_bucket}]",
    );
    assert!(gate.allows(&[]));
    let verdict = gate.check(&[]);
    assert_eq!(deniers(&verdict), ["slots", "rate"]);
    assert_eq!(verdict.retry_after(), None, "the longest of two waits, one of which is unknown");
}

#[test]
fn an_allowed_request_is_told_no_wait() {
    let gate = Gate::new("limits: [{name: api, rate: 1/minute}]");
    assert_eq!(gate.check(&[]).retry_after(), None);
}

#[test]
fn the_delay_of_a_verdict_is_the_longest_of_its_limits() {
    let bucket = |name: &str, rate: &str| {
        format!("{{name: {name}, rate: {rate}, algorithm: leaky_bucket, queue: 5}}")
    };
    let limits = [bucket("fast", "2/second"), bucket("slow", "1/second")].join(", ");
    let gate = Gate::new(&format!("limits: [{limits}]"));
    let delays: Vec<Micros> = (0..3).map(|_| gate.check(&[]).delay()).collect();
    assert_eq!(delays, [Micros::ZERO, time("1s"), time("2s")]);
    gate.check(&[]);
    gate.check(&[]);
    let denied = gate.check(&[]);
    assert_eq!((denied.ruling(), denied.delay()), (Ruling::Denied, Micros::ZERO));
}

#[test]
fn the_tightest_limit_is_the_one_with_the_smallest_share_left() {
    let gate = Gate::new(
        "limits: [{name: large, rate: 1000/hour}, {name: small, rate: 4/second}, {name: slots, \
         concurrency: 2}, {name: shadow, rate: 2/second, mode: shadow}]",
    );
    let tightest = |verdict: &Verdict| verdict.tightest().unwrap().rule().name().to_string();
    assert_eq!(tightest(&gate.check(&[])), "small", "3 of 4 are less than 999 of 1000");
    gate.advance("10s");
    assert_eq!(tightest(&gate.check_costing(0, &[])), "large", "999 of 1000 are less than 4 of 4");
}

#[test]
fn of_concurrency_limits_alone_none_is_the_tightest() {
    let gate = Gate::new("limits: [{name: slots, concurrency: 2}]");
    assert!(gate.check(&[]).tightest().is_none());
}

// Leases.

const SLOTS: &str =
    "limits: [{name: slots, concurrency: 2, lease: 30s}, {name: api, rate: 9/minute}]";

#[test]
fn a_slot_is_free_again_when_its_lease_is_released() {
    let gate = Gate::new(SLOTS);
    let lease = gate.check(&[]).take_lease().expect("it holds a slot");
    assert!(gate.allows(&[]));
    assert!(!gate.allows(&[]));
    assert!(gate.limiter.release(lease).wait() == Some(true));
    assert!(gate.allows(&[]));
    assert!(!gate.allows(&[]));
}

#[test]
fn a_slot_is_free_again_when_its_lease_ends_and_not_a_microsecond_earlier() {
    let gate = Gate::new(SLOTS);
    let lease = gate.check(&[]).take_lease().unwrap();
    gate.clock.advance(Micros::new(29_999_999));
    assert!(gate.allows(&[]));
    assert!(!gate.allows(&[]));
    gate.clock.advance(Micros::new(1));
    assert!(gate.allows(&[]));
    assert!(gate.limiter.renew(&lease).wait() == Some(false), "it has ended");
    assert!(gate.limiter.release(lease).wait() == Some(false), "it came back by itself");
    assert!(!gate.allows(&[]), "a lease that has ended frees nobody else's slot");
}

#[test]
fn a_lease_that_is_renewed_starts_anew() {
    let gate = Gate::new(SLOTS);
    let lease = gate.check(&[]).take_lease().unwrap();
    for _ in 0..5 {
        gate.advance("29s");
        assert!(gate.limiter.renew(&lease).wait() == Some(true));
    }
    assert_eq!(gate.left(&[])[0], 1);
    gate.advance("30s");
    assert!(gate.limiter.renew(&lease).wait() == Some(false));
    assert_eq!(gate.left(&[])[0], 2);
}

#[test]
fn a_slot_taken_as_a_lease_is_not_given_back_by_a_refund_as_well() {
    let gate = Gate::new(SLOTS);
    let mut verdict = gate.check(&[]);
    let lease = verdict.take_lease().unwrap();
    assert!(verdict.take_lease().is_none(), "there is one lease");
    gate.limiter.refund(verdict);
    assert_eq!(gate.left(&[]), [1, 9], "the rate is given back, the slot still held");
    assert!(gate.limiter.release(lease).wait() == Some(true));
    assert_eq!(gate.left(&[]), [2, 9]);
}

#[test]
fn a_refund_frees_a_slot_that_nobody_took_as_a_lease() {
    let gate = Gate::new(SLOTS);
    gate.limiter.refund(gate.check(&[]));
    assert_eq!(gate.left(&[]), [2, 9]);
}

#[test]
fn a_lease_holds_a_slot_of_every_concurrency_limit_that_applied() {
    let gate = Gate::new(
        "limits: [{name: each, per: [user], concurrency: 1, lease: 10s}, {name: all, concurrency: \
         5, lease: 60s}]",
    );
    let user = [("user", "1")];
    let lease = gate.check(&user).take_lease().unwrap();
    assert_eq!(gate.left(&user), [0, 4]);
    gate.advance("10s");
    assert_eq!(gate.left(&user), [1, 4]);
    assert!(
        gate.limiter.renew(&lease).wait() == Some(false),
        "one of its slots has come back by itself"
    );
    assert!(gate.limiter.release(lease).wait() == Some(true), "the other had not");
    assert_eq!(gate.left(&user), [1, 5]);
}

#[test]
fn a_request_that_holds_no_slot_has_no_lease() {
    let gate = Gate::new(SLOTS);
    assert!(gate.check_costing(0, &[]).take_lease().is_none(), "a peek holds none");
    assert_eq!(gate.admitted(2, &[]), 2);
    assert!(gate.check(&[]).take_lease().is_none(), "a denied request holds none");
    let gate = Gate::new("limits: [{name: api, rate: 9/minute}]");
    assert!(gate.check(&[]).take_lease().is_none());
}

#[test]
fn a_lease_outlives_the_policy_it_was_taken_under() {
    let gate = Gate::new(SLOTS);
    let lease = gate.check(&[]).take_lease().unwrap();
    gate.limiter.replace_policy(parse(&SLOTS.replace("concurrency: 2", "concurrency: 3"))).unwrap();
    assert_eq!(gate.left(&[])[0], 2);
    assert!(gate.limiter.renew(&lease).wait() == Some(true));
    assert!(gate.limiter.release(lease).wait() == Some(true));
    assert_eq!(gate.left(&[])[0], 3);
}

#[test]
fn a_limit_of_slots_in_shadow_counts_what_is_at_work() {
    let gate = Gate::new("limits: [{name: slots, concurrency: 1, mode: shadow}]");
    let lease = gate.check(&[]).take_lease().expect("it would hold a slot");
    let second = gate.check(&[]);
    assert_eq!((second.ruling(), deniers(&second)), (Ruling::Allowed, vec!["slots".to_owned()]));
    assert!(gate.limiter.release(lease).wait() == Some(true));
    assert_eq!(deniers(&gate.check(&[])), [""; 0]);
}

// Refunds.

#[test]
fn a_refund_gives_back_what_every_limit_was_charged() {
    let gate = Gate::new(&format!("limits: [{}]", one_of_each(9).join(", ")));
    let first = gate.check_costing(2, &[]);
    let second = gate.check_costing(3, &[]);
    assert_eq!(gate.left(&[]), [4; 6]);
    gate.limiter.refund(first);
    assert_eq!(gate.left(&[]), [6; 6]);
    gate.limiter.refund(second);
    assert_eq!(gate.left(&[]), [9; 6]);
}

#[test]
fn a_refund_gives_back_no_more_than_time_has_left() {
    let gate = Gate::new(&format!("limits: [{}]", one_of_each(9).join(", ")));
    let old = gate.check_costing(5, &[]);
    gate.advance("10m");
    let new = gate.check_costing(4, &[]);
    gate.limiter.refund(old);
    assert_eq!(gate.left(&[]), [5; 6], "what was charged ten minutes ago has long come back");
    gate.limiter.refund(new);
    assert_eq!(gate.left(&[]), [9; 6]);
}

#[test]
fn a_refund_of_a_denied_request_gives_nothing() {
    let gate = Gate::new(&format!("limits: [{}]", one_of_each(3).join(", ")));
    assert!(gate.check_costing(3, &[]).is_allowed());
    gate.limiter.refund(gate.check(&[]));
    assert_eq!(gate.left(&[]), [0; 6]);
}

#[test]
fn a_refund_after_the_limit_was_changed_gives_back_the_same_units() {
    for (before, after) in one_of_each(60).iter().zip(one_of_each(70)) {
        let gate = Gate::new(&format!("limits: [{before}]"));
        assert!(gate.check_costing(50, &[]).is_allowed());
        let last = gate.check_costing(10, &[]);
        gate.limiter.replace_policy(parse(&format!("limits: [{after}]"))).unwrap();
        gate.limiter.refund(last);
        assert_eq!(gate.left(&[]), [20], "{after}");
    }
}

// Memory that is full.

/// A gate whose memory is full of keys at their limits, and how many those are.
fn full_gate(on_store_failure: &str) -> (Gate, u32) {
    let policy = format!(
        "limits: [{{name: api, per: [user], rate: 1/day, algorithm: fixed_window, \
         on_store_failure: {on_store_failure}}}]"
    );
    let gate = Gate::of_size(parse(&policy), 64 << 10);
    let uncounted = |user: &u32| {
        let verdict = gate.check(&[("user", &user.to_string())]);
        verdict.answers().any(|answer| answer.decision().is_none())
    };
    let users = (0..).find(uncounted).expect("memory has a bound");
    (gate, users)
}

#[test]
fn when_memory_is_full_a_newcomer_is_refused_under_a_limit_that_says_deny() {
    let (gate, users) = full_gate("deny");
    let verdict = gate.check(&[("user", "a newcomer")]);
    assert_eq!((verdict.ruling(), verdict.is_allowed()), (Ruling::Uncounted, false));
    assert_eq!(verdict.retry_after(), None, "we are unwell; the caller did nothing wrong");
    assert!(users > 1_000, "{users}");
}

#[test]
fn when_memory_is_full_a_newcomer_passes_uncounted_under_a_limit_that_says_allow_or_local() {
    for on_store_failure in ["allow", "local"] {
        let (gate, _) = full_gate(on_store_failure);
        for _ in 0..3 {
            let verdict = gate.check(&[("user", "a newcomer")]);
            assert_eq!(verdict.ruling(), Ruling::Allowed);
            let answer = verdict.answers().next().expect("the limit applied");
            assert!(answer.is_allowed() && answer.decision().is_none());
            assert!(verdict.tightest().is_none(), "nothing is known of it");
        }
    }
}

#[test]
fn when_memory_is_full_whoever_is_at_its_limit_stays_limited() {
    for on_store_failure in ["allow", "deny"] {
        let (gate, users) = full_gate(on_store_failure);
        for newcomer in 0..10_000 {
            gate.check(&[("user", &format!("newcomer {newcomer}"))]);
        }
        for user in 0..users {
            let verdict = gate.check(&[("user", &user.to_string())]);
            assert_eq!(verdict.ruling(), Ruling::Denied, "user {user} of {users}");
        }
    }
}

#[test]
fn a_caller_who_sends_too_much_is_told_so_also_when_another_limit_cannot_count() {
    let policy = "limits: [{name: api, per: [user], rate: 1/day, algorithm: fixed_window, \
                  on_store_failure: deny}, {name: all, when: {all: present}, rate: 1/day}]";
    let gate = Gate::of_size(parse(policy), 64 << 10);
    assert!(gate.allows(&[("all", "")]));
    let full =
        |user: &u32| gate.check(&[("user", &user.to_string())]).ruling() == Ruling::Uncounted;
    assert!((0..).any(|user| full(&user)));
    assert_eq!(gate.check(&[("user", "newcomer"), ("all", "")]).ruling(), Ruling::Denied);
}

#[test]
fn a_request_that_one_limit_cannot_count_is_not_charged_to_another() {
    let policy = "limits: [{name: api, per: [user], rate: 1/day, algorithm: fixed_window, \
                  on_store_failure: deny}, {name: address, per: [client_ip], rate: 9/day}]";
    let gate = Gate::of_size(parse(policy), 64 << 10);
    assert!(gate.allows(&[("client_ip", "192.0.2.1")]));
    assert!((0..).any(|user: u32| {
        gate.check(&[("user", &user.to_string())]).ruling() == Ruling::Uncounted
    }));
    // The address may have been forgotten meanwhile: it is not at its limit.
    let before = gate.left(&[("client_ip", "192.0.2.1")]);
    let both = [("client_ip", "192.0.2.1"), ("user", "newcomer")];
    assert_eq!(gate.check(&both).ruling(), Ruling::Uncounted);
    assert_eq!(gate.left(&[("client_ip", "192.0.2.1")]), before);
}

// Another policy.

#[test]
fn sixty_a_minute_used_up_and_raised_to_seventy_leaves_ten() {
    for (before, after) in one_of_each(60).iter().zip(one_of_each(70)) {
        let gate = Gate::new(&format!("limits: [{before}]"));
        assert!(gate.check_costing(60, &[]).is_allowed());
        gate.limiter.replace_policy(parse(&format!("limits: [{after}]"))).unwrap();
        assert_eq!(gate.left(&[]), [10], "{after}");
        assert_eq!(gate.admitted(20, &[]), 10, "{after}");
    }
}

#[test]
fn a_limit_that_is_lowered_below_what_was_used_denies_until_time_has_made_up_for_it() {
    for (before, after) in one_of_each(60).iter().zip(one_of_each(30)) {
        let gate = Gate::new(&format!("limits: [{before}]"));
        assert!(gate.check_costing(50, &[]).is_allowed());
        gate.limiter.replace_policy(parse(&format!("limits: [{after}]"))).unwrap();
        assert!(!gate.allows(&[]), "{after}");
        assert_eq!(gate.left(&[]), [0], "{after}");
        gate.advance("10m");
        assert_eq!(gate.left(&[]), [30], "{after}");
    }
}

#[test]
fn a_limit_that_counts_in_another_way_starts_afresh() {
    let limits = named(|_| "api", 5);
    for (before, after) in limits.iter().zip(limits.iter().cycle().skip(1)) {
        let gate = Gate::new(&format!("limits: [{before}]"));
        assert!(gate.check_costing(5, &[]).is_allowed());
        gate.limiter.replace_policy(parse(&format!("limits: [{after}]"))).unwrap();
        assert_eq!(gate.left(&[]), [5], "{before} to {after}");
    }
}

#[test]
fn who_changes_tier_keeps_what_was_consumed() {
    let of_tier = |tier: &str| {
        let tenants = format!("keys: {{key-of-acme: {{tenant: acme, tier: {tier}}}}}");
        parse_with(TENANTS, &tenants)
    };
    let gate = Gate::under(of_tier("free"));
    let key = [("header:x-api-key", "key-of-acme")];
    assert_eq!(gate.admitted(12, &key), 10);
    gate.limiter.replace_policy(of_tier("pro")).unwrap();
    assert_eq!(gate.left(&key), [90]);
    assert_eq!(gate.admitted(100, &key), 90);
    gate.limiter.replace_policy(of_tier("free")).unwrap();
    assert!(!gate.allows(&key));
}

#[test]
fn an_override_keeps_what_was_consumed() {
    let tenants = |more: &str| {
        parse_with(TENANTS, &format!("keys: {{k: {{tenant: acme, tier: free{more}}}}}"))
    };
    let gate = Gate::under(tenants(""));
    let key = [("header:x-api-key", "k")];
    assert_eq!(gate.admitted(12, &key), 10);
    gate.limiter.replace_policy(tenants(", overrides: {api: {rate: 25/minute}}")).unwrap();
    assert_eq!(gate.left(&key), [15]);
}

#[test]
fn a_verdict_stays_what_it_was_when_the_policy_is_replaced() {
    let gate = Gate::new("limits: [{name: old, rate: 5/minute}]");
    let verdict = gate.check(&[]);
    gate.limiter.replace_policy(parse("limits: []")).unwrap();
    let answer = verdict.answers().next().unwrap();
    assert_eq!((&**answer.rule().name(), answer.limit().capacity()), ("old", 5));
    gate.limiter.refund(verdict);
    gate.limiter.replace_policy(parse("limits: [{name: old, rate: 5/minute}]")).unwrap();
    assert_eq!(gate.left(&[]), [5], "and can still be refunded");
}

#[test]
fn every_request_is_judged_by_the_old_policy_or_the_new_one_and_never_by_both() {
    const POLICIES: [&str; 2] = [
        "deny: [{user: eve}]\n\
         limits: [{name: a, per: [user], rate: 1000000/hour}, {name: b, rate: 2000000/hour}]",
        "deny: [{user: adam}]\n\
         limits: [{name: b, rate: 4000000/hour}, {name: c, concurrency: 50000}, {name: a, per: \
         [user], rate: 3000000/hour}]",
    ];
    let told = |verdict: &Verdict| -> (Ruling, Vec<(String, u32)>) {
        let name = |answer: tollgate::Answer<'_>| answer.rule().name().to_string();
        let answers = verdict.answers().map(|answer| (name(answer), answer.limit().capacity()));
        (verdict.ruling(), answers.collect())
    };
    // What each policy on its own says to each of them.
    let users = ["adam", "eve", "somebody"];
    let expected =
        users.map(|user| POLICIES.map(|policy| told(&Gate::new(policy).check(&[("user", user)]))));
    let gate = Gate::new(POLICIES[0]);
    let judged = AtomicU32::new(0);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for round in 0..5_000 {
                    let user = round % users.len();
                    let verdict = told(&gate.check(&[("user", users[user])]));
                    assert!(
                        expected[user].contains(&verdict),
                        "{} is told {verdict:?}",
                        users[user]
                    );
                    judged.fetch_add(1, Ordering::Relaxed);
                }
                is_over.store(true, Ordering::Relaxed);
            });
        }
        let mut next = 1;
        while !is_over.load(Ordering::Relaxed) {
            gate.limiter.replace_policy(parse(POLICIES[next])).unwrap();
            next = 1 - next;
        }
    });
    assert_eq!(judged.into_inner(), 10_000);
}

#[test]
fn threads_that_race_while_the_limit_goes_up_and_down_never_get_more_than_its_most() {
    for algorithm in ["sliding_window", "token_bucket", "fixed_window", "sliding_log"] {
        let of = |count: u32| {
            parse(&format!("limits: [{{name: api, rate: {count}/day, algorithm: {algorithm}}}]"))
        };
        let gate = Gate::under(of(600));
        let admitted = AtomicU32::new(0);
        let at_work = AtomicU32::new(2);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    admitted.fetch_add(gate.admitted(1_000, &[]), Ordering::Relaxed);
                    at_work.fetch_sub(1, Ordering::Relaxed);
                });
            }
            while at_work.load(Ordering::Relaxed) > 0 {
                gate.limiter.replace_policy(of(700)).unwrap();
                gate.limiter.replace_policy(of(600)).unwrap();
            }
        });
        gate.limiter.replace_policy(of(700)).unwrap();
        let admitted = admitted.into_inner() + gate.admitted(1_000, &[]);
        assert_eq!(admitted, 700, "{algorithm}");
    }
}

#[test]
fn threads_that_race_for_units_of_several_limits_get_exactly_those() {
    let gate = Gate::new(
        "limits: [{name: user, per: [user], rate: 300/day}, {name: all, rate: 500/day, algorithm: \
         token_bucket}, {name: log, rate: 450/day, algorithm: sliding_log}]",
    );
    let gate = &gate;
    let admitted: u32 = thread::scope(|scope| {
        let racers =
            ["1", "2"].map(|user| scope.spawn(move || gate.admitted(1_000, &[("user", user)])));
        racers.into_iter().map(|racer| racer.join().unwrap()).sum()
    });
    assert_eq!(admitted, 450);
    let of_both: u32 = ["1", "2"].iter().map(|user| 300 - gate.left(&[("user", user)])[0]).sum();
    assert_eq!((of_both, gate.left(&[])), (450, vec![50, 0]));
}

// What a request lacks.

#[test]
fn who_leaves_out_what_a_limit_counts_by_shares_one_count_at_a_door_that_faces_clients() {
    let gate = Gate::new("limits: [{name: api, per: [header:x-api-key], rate: 3/minute}]");
    let asked = [&[][..], &[("user", "1")], &[("user", "2")], &[("client_ip", "192.0.2.1")]];
    let allowed = asked.map(|attributes| gate.check_at_door(attributes).is_allowed());
    assert_eq!(allowed, [true, true, true, false]);
    assert!(gate.check_at_door(&[("header:x-api-key", "")]).is_allowed(), "empty is not missing");
}

#[test]
fn over_the_api_a_limit_counted_by_what_was_not_sent_does_not_apply() {
    let gate = Gate::new(
        "limits: [{name: api, per: [user], rate: 1/minute}, {name: both, per: [user, path], rate: \
         1/minute}]",
    );
    for _ in 0..3 {
        let verdict = gate.check(&[("path", "/")]);
        assert_eq!((verdict.ruling(), verdict.answers().len()), (Ruling::Allowed, 0));
    }
    assert_eq!(gate.check(&[("user", "1")]).answers().len(), 1);
}

#[test]
fn a_fallback_is_counted_apart_from_what_it_stands_in_for() {
    let gate = Gate::new(
        "limits: [{name: api, per: [{first: [header:x-api-key, client_ip]}], rate: 1/minute}]",
    );
    assert!(gate.allows(&[("client_ip", "192.0.2.1")]));
    assert!(!gate.allows(&[("client_ip", "192.0.2.1")]));
    assert!(gate.allows(&[("header:x-api-key", "192.0.2.1")]), "a key that looks like the address");
    assert!(gate.allows(&[("header:x-api-key", "k"), ("client_ip", "192.0.2.1")]));
}

#[test]
fn strangers_share_the_count_of_their_tier_whatever_door_they_come_through() {
    let policy = parse_with(
        "tenants: {from: header:x-api-key, file: tenants.yaml, unknown: {tier: free}}\n\
         limits: [{name: api, per: [tenant], rate: {free: 2/minute}}]",
        "keys: {}",
    );
    let gate = Gate::under(policy);
    assert!(gate.allows(&[("header:x-api-key", "a")]));
    assert!(gate.check_at_door(&[]).is_allowed());
    assert!(!gate.allows(&[("header:x-api-key", "b")]));
}

// Keys and values.

#[test]
fn values_that_could_be_confused_are_counted_apart() {
    let gate = Gate::new("limits: [{name: api, per: [a, b], rate: 1/minute}]");
    let pairs = [
        ("a:b", "c"),
        ("a", "b:c"),
        ("a%3Ab", "c"),
        ("", "abc"),
        ("abc", ""),
        ("a\0", "c"),
        ("a", "\0c"),
        ("A:B", "c"),
        ("{a}", "c"),
        ("a\r\nFLUSHALL", "c"),
        ("a_b", "c"),
    ];
    for (a, b) in pairs {
        assert!(gate.allows(&[("a", a), ("b", b)]), "{a:?} and {b:?}");
        assert!(!gate.allows(&[("a", a), ("b", b)]), "{a:?} and {b:?}");
    }
}

#[test]
fn addresses_that_are_one_client_are_one_count() {
    let gate = Gate::new("limits: [{name: api, per: [client_ip], rate: 1/minute}]");
    let check = |one: &str, other: &str, is_one: bool| {
        assert!(gate.allows(&[("client_ip", one)]), "{one}");
        assert_eq!(!gate.allows(&[("client_ip", other)]), is_one, "{one} and {other}");
        gate.advance("10m");
    };
    check("192.0.2.1", "::ffff:192.0.2.1", true);
    check("::ffff:c000:201", "192.0.2.1", true);
    check("::ffff:192.0.2.1", "::ffff:192.0.2.2", false);
    check("2001:db8::1", "2001:db8:0:ff::2", true);
    check("2001:db8::1", "2001:db8:0:100::1", false);
}

#[test]
fn whatever_is_sent_there_is_a_verdict() {
    let gate = Gate::new(
        "limits: [{name: api, when: {path: /**, host: '*.example.com'}, per: [client_ip, user], rate: \
         5/minute}, {name: any, per: [user], rate: 5/minute}]",
    );
    let long = vec![b'x'; 1 << 20];
    let values: [&[u8]; 7] =
        [b"", b"\0", b"\xff\xfe", b"/../..//%2e", b"[::1", &long, b"a.example.com:99999"];
    for value in values {
        let names = ["path", "host", "client_ip", "user", "user", "", "no such attribute"];
        let attributes = names.map(|name| (name, value));
        for missing in [Missing::Skip, Missing::Shared] {
            let request = Request { attributes: &attributes, missing, ..Request::new(&[]) };
            let verdicts = [(); 6].map(|()| gate.limiter.check(&request).ruling());
            assert!(verdicts.contains(&Ruling::Allowed) || verdicts.contains(&Ruling::Denied));
        }
    }
}

#[test]
fn keys_are_shown_without_the_values_of_headers() {
    let gate = Gate::new(
        "limits: [{name: address, per: [client_ip], rate: 5/minute}, {name: key, per: \
         [header:x-api-key], rate: [5/minute, 9/hour]}]",
    );
    let attributes: [(&str, &[u8]); 2] =
        [("client_ip", b"192.0.2.1"), ("header:x-api-key", b"s3cret")];
    let keys = gate.limiter.keys(&Request::new(&attributes));
    assert_eq!((keys.len(), &*keys[0]), (3, "address:192.0.2.1"));
    assert!(keys[1].starts_with("key:%h") && !keys.concat().contains("s3cret"), "{keys:?}");
    assert_eq!(gate.limiter.keys(&Request::new(&attributes)), keys, "they stay the same");
    let elsewhere = Gate::under(gate.limiter.with_policy(Clone::clone));
    assert_ne!(elsewhere.limiter.keys(&Request::new(&attributes))[1], keys[1]);
}

// Making one.

#[test]
fn a_policy_with_mistakes_makes_no_limiter() {
    let error = Limiter::from_yaml("limits: [{name: a, rate: 5}, {name: b, rate: x}]").unwrap_err();
    let LimiterError::Policy(mistakes) = &error else { panic!("{error}") };
    assert_eq!(mistakes.iter().count(), 2);
    assert!(error.to_string().starts_with("policy:1:26: limit \"a\""), "{error}");
}

#[test]
fn a_policy_that_names_another_file_is_for_the_caller_to_read() {
    let error = Limiter::from_yaml(TENANTS).unwrap_err();
    assert!(
        error.to_string().contains("from_yaml reads no files; read them for Policy::parse"),
        "{error}"
    );
}

#[test]
fn a_policy_that_asks_for_redis_is_not_silently_counted_in_memory() {
    let policy = "store: redis://127.0.0.1:6379\nlimits: [{name: a, rate: 1/s}]";
    let error = Limiter::from_yaml(policy).unwrap_err();
    assert!(error.to_string().contains("asks for a Redis store"), "{error}");
}

#[test]
fn a_limiter_made_of_yaml_uses_as_much_memory_as_the_policy_says() {
    let check = |store: &str, max_bytes: usize| {
        let limiter = Limiter::from_yaml(&format!("{store}limits: [{{name: a, rate: 1/s}}]"));
        let store = format!("{:?}", limiter.unwrap().store());
        assert!(store.contains(&format!("max_bytes: {max_bytes}")), "{store}");
    };
    check("store: {memory: {max_bytes: 2MiB}}\n", 2 << 20);
    check("", 256 << 20);
}

#[test]
fn memory_that_nobody_has_is_an_error_and_not_a_crash() {
    let policy = "store: {memory: {max_bytes: 4000000GiB}}\nlimits: [{name: a, rate: 1/s}]";
    let error = Limiter::from_yaml(policy).unwrap_err();
    assert!(matches!(error, LimiterError::Memory(_)), "{error}");
}

#[test]
fn limiters_and_verdicts_go_from_thread_to_thread() {
    is_send_and_sync::<Limiter>();
    is_send_and_sync::<Verdict>();
    is_send_and_sync::<tollgate::Lease>();
}

/// Says that requests are decided together as they are one by one, and counted alike.
fn check_together(policy: &str, banned: Option<&str>) {
    const USERS: [&str; 5] = ["anna", "bert", "mallory", "monitor", "2001:db8::1"];
    let gate = || {
        let gate = Gate::new(policy);
        if let Some(key) = banned {
            let change =
                Change::parse("{ban: true}", "ttl_ms").unwrap_or_else(|it| panic!("{it}")).0;
            let one = Override { key: key.parse().expect("a key"), change, until: None };
            gate.limiter.put_override(one).expect("it means something");
        }
        gate
    };
    let (together, alone) = (gate(), gate());
    let attributes = |number: usize| {
        let user = USERS[number * 7 % 11 % 5].as_bytes();
        let size: &[u8] = if number % 7 == 3 { b"x" } else { b"2" };
        [("user", user), ("client_ip", user), ("size", size)]
    };
    let attributes: Vec<[(&str, &[u8]); 3]> = (0..60).map(attributes).collect();
    let request = |number: usize| {
        let cost = Cost::new(number as u32 % 3);
        Request { cost, end: End::Unknown, ..Request::new(&attributes[number]) }
    };
    for range in [0..0, 0..1, 1..9, 9..20, 20..60] {
        let requests: Vec<Request<'_>> = range.map(request).collect();
        let mut shown = Vec::new();
        let show = |verdict: &Verdict| shown.push(format!("{verdict:?}"));
        assert!(together.limiter.check_each(&requests, show));
        let check = |request| format!("{:?}", alone.limiter.check(request));
        assert_eq!(shown, requests.iter().map(check).collect::<Vec<_>>(), "{policy}");
    }
    let counted = [together, alone].map(|gate| {
        let metrics = gate.limiter.metrics();
        let counts = metrics.limits.into_iter().map(|limit| {
            (limit.limit, limit.allowed, limit.denied, limit.shadow_denied, limit.store_failed)
        });
        (metrics.requests, counts.collect::<Vec<_>>())
    });
    assert_eq!(counted[0], counted[1], "{policy}");
}

#[test]
fn requests_are_decided_together_as_they_are_one_by_one() {
    let one = "limits: [{name: api, per: [user], rate: 3/minute}]";
    let lists = "exempt: [{user: monitor}]\ndeny: [{user: mallory}]";
    for limits in [
        "limits: []".to_owned(),
        one.to_owned(),
        format!("{one}\n{lists}"),
        "limits: [{name: api, per: [client_ip], rate: 3/minute}]".to_owned(),
        "limits: [{name: api, per: [user], rate: 9/minute, cost: {attribute: size}}]".to_owned(),
        "limits: [{name: api, per: [user], rate: 3/minute, mode: shadow}]".to_owned(),
        "limits: [{name: slots, per: [user], concurrency: 1}]".to_owned(),
        "limits: [{name: log, per: [user], rate: 3/minute, algorithm: sliding_log}]".to_owned(),
        "limits: [{name: api, per: [user], rate: [3/minute, 5/hour]}, {name: all, rate: 9/day}]"
            .to_owned(),
        format!("limits: [{}]", one_of_each(4).join(", ")),
    ] {
        check_together(&limits, None);
    }
    check_together(one, Some("api:anna"));
}
