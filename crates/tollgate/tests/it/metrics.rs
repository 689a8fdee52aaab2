//! What a limiter counts of its own decisions.

use std::thread;

use tollgate::bounds::METRICS_SERIES_MAX;
use tollgate::envoy::{Call, Descriptor, Descriptors};
use tollgate::metrics::{LimitCount, OTHER_LIMITS};
use tollgate::{
    Change, Charge, Key, Layer, Limit, Limiter, Override, Quota, Request, Ruling, Value,
};

use crate::{Gate, parse, parse_with};

/// Of one limit and tier: allowed, denied, denied in shadow, not counted.
fn counts(limiter: &Limiter, limit: &str, tier: &str) -> Option<[u64; 4]> {
    let metrics = limiter.metrics();
    let is_it = |count: &&LimitCount| &*count.limit == limit && count.tier == tier;
    let count = metrics.limits.iter().find(is_it)?;
    Some([count.allowed, count.denied, count.shadow_denied, count.store_failed])
}

/// How many limits and tiers are told apart.
fn named(limiter: &Limiter) -> usize {
    let limits = limiter.metrics().limits;
    limits.iter().filter(|count| !count.limit.starts_with('#')).count()
}

/// How many requests were ruled so.
fn ruled(limiter: &Limiter, layer: Layer, ruling: Ruling) -> u64 {
    let metrics = limiter.metrics();
    let is_it =
        |count: &&tollgate::metrics::RequestCount| (count.layer, count.ruling) == (layer, ruling);
    metrics.requests.iter().find(is_it).expect("all of them are told").count
}

#[test]
fn what_each_limit_says_is_counted_by_its_outcome() {
    let gate = Gate::new(
        "limits: [{name: wide, rate: 100/minute}, {name: narrow, rate: 2/minute}, \
         {name: trial, rate: 1/minute, mode: shadow}]",
    );
    gate.admitted(5, &[]);
    assert_eq!(counts(&gate.limiter, "wide", ""), Some([5, 0, 0, 0]));
    assert_eq!(counts(&gate.limiter, "narrow", ""), Some([2, 3, 0, 0]));
    assert_eq!(counts(&gate.limiter, "trial", ""), Some([1, 0, 4, 0]));
    assert_eq!(ruled(&gate.limiter, Layer::Request, Ruling::Allowed), 2);
    assert_eq!(ruled(&gate.limiter, Layer::Request, Ruling::Denied), 3);
}

#[test]
fn requests_that_no_limit_judges_are_counted_by_their_ruling() {
    let policy = parse_with(
        "tenants: {file: tenants.yaml, from: \"header:x-api-key\", unknown: refuse}\n\
         deny: [{client_ip: 203.0.113.66}]\n\
         exempt: [{client_ip: 203.0.113.1}]\n\
         limits: [{name: api, per: [tenant], rate: 5/minute, cost: {attribute: weight}}]",
        "keys: {secret: {tenant: acme}}",
    );
    let gate = Gate::under(policy);
    let key = ("header:x-api-key", "secret");
    gate.check(&[("client_ip", "203.0.113.66")]);
    gate.check(&[("client_ip", "203.0.113.1")]);
    gate.check(&[("client_ip", "203.0.113.2")]);
    gate.check(&[key, ("weight", "heavy")]);
    for (ruling, expected) in [
        (Ruling::Blocked, 1),
        (Ruling::Exempt, 1),
        (Ruling::UnknownKey, 1),
        (Ruling::BadCost, 1),
        (Ruling::Allowed, 0),
    ] {
        assert_eq!(ruled(&gate.limiter, Layer::Request, ruling), expected, "{ruling:?}");
    }
    assert_eq!(counts(&gate.limiter, "api", ""), Some([0; 4]));
}

#[test]
fn connections_and_messages_are_no_requests() {
    let gate = Gate::new("limits: [{name: arrivals, when: {layer: connection}, rate: 1/minute}]");
    let connection = Request { layer: Layer::Connection, ..Request::new(&[]) };
    gate.limiter.check(&connection);
    gate.limiter.check(&connection);
    assert_eq!(ruled(&gate.limiter, Layer::Connection, Ruling::Denied), 1);
    assert_eq!(ruled(&gate.limiter, Layer::Request, Ruling::Denied), 0);
}

const TIERED: &str =
    "{name: api, per: [user], rate: {free: 1/minute, pro: 5/minute, default: 2/minute}}";

#[test]
fn a_limit_by_tier_is_counted_for_each_tier_that_the_policy_names() {
    let gate = Gate::new(&format!("limits: [{TIERED}]"));
    for tier in ["free", "pro", "gold", "<script>"] {
        gate.admitted(3, &[("user", tier), ("tier", tier)]);
    }
    gate.admitted(3, &[("user", "none")]);
    assert_eq!(counts(&gate.limiter, "api", "free"), Some([1, 2, 0, 0]));
    assert_eq!(counts(&gate.limiter, "api", "pro"), Some([3, 0, 0, 0]));
    assert_eq!(counts(&gate.limiter, "api", "#other"), Some([6, 3, 0, 0]));
    assert_eq!(named(&gate.limiter), 3, "and for nothing that a caller sends");
}

#[test]
fn no_tier_is_taken_for_those_that_a_limit_does_not_name() {
    let rate = "{other: 1/minute, '#other': 2/minute, default: 3/minute}";
    let gate = Gate::new(&format!("limits: [{{name: api, per: [user], rate: {rate}}}]"));
    for tier in ["other", "#other", "gold"] {
        gate.admitted(4, &[("user", tier), ("tier", tier)]);
    }
    assert_eq!(counts(&gate.limiter, "api", "other"), Some([1, 3, 0, 0]));
    assert_eq!(counts(&gate.limiter, "api", "##other"), Some([2, 2, 0, 0]));
    assert_eq!(counts(&gate.limiter, "api", "#other"), Some([3, 1, 0, 0]));
}

#[test]
fn a_call_of_envoy_that_nobody_could_count_is_uncounted_and_not_denied() {
    let gate = Gate::of_size(parse("limits: []"), 64 << 10);
    let files = "{domain: shop, descriptors: [{key: user, rate_limit: {unit: day, \
                 requests_per_unit: 1, on_store_failure: deny}}]}";
    let descriptors = Descriptors::parse(&[("shop.yaml", files)], false).unwrap();
    gate.limiter.replace_descriptors(descriptors, &Default::default()).unwrap();
    let is_over = |user: &u32| {
        let user = user.to_string();
        let entries = [("user", &*user)];
        let entries = [Descriptor { entries: &entries, ..Descriptor::default() }];
        let call = Call { domain: "shop", descriptors: &entries, hits: 1 };
        gate.limiter.rate_limit(&call).unwrap().wait().is_over
    };
    let users = (0..100_000).find(is_over).expect("memory has a bound");
    let rulings = || {
        let of = |ruling| ruled(&gate.limiter, Layer::Request, ruling);
        [Ruling::Allowed, Ruling::Denied, Ruling::Uncounted].map(of)
    };
    assert_eq!(rulings(), [users.into(), 0, 1]);
    assert!(is_over(&0), "who is at its limit is denied as ever");
    assert_eq!(rulings(), [users.into(), 1, 1]);
}

#[test]
fn limits_that_callers_bring_along_are_timed_from_when_they_were_asked() {
    thread::scope(|scope| {
        scope.spawn(|| {
            let gate = Gate::new("limits: []");
            let limit = Limit::sliding_window(Quota::per_minute(1));
            let limit = gate.limiter.store().enroll(limit).unwrap();
            let key = Key { limit: "cell", values: &[Value::new(b"anna")] };
            let tally = gate.limiter.tally();
            let taken = gate.store.take_one(&Charge::new(key, &limit));
            gate.advance("2s");
            tally.count(&key, &taken);
            let timed = gate.limiter.metrics().check_duration;
            assert_eq!((timed.count, timed.sum), (1, 2.0));
        });
    });
}

#[test]
fn a_limit_that_goes_by_something_else_than_a_tier_has_none() {
    let by_path = "{name: api, rate: {by: path, values: {/search: 1/minute}, default: 2/minute}}";
    let gate = Gate::new(&format!("limits: [{by_path}]"));
    gate.admitted(2, &[("path", "/search")]);
    assert_eq!(counts(&gate.limiter, "api", ""), Some([1, 1, 0, 0]));
    assert_eq!(named(&gate.limiter), 1);
}

#[test]
fn a_tenant_with_a_limit_of_its_own_is_counted_for_its_tier() {
    let policy = parse_with(
        &format!(
            "tenants: {{file: tenants.yaml, from: user, unknown: {{tier: free}}}}\nlimits: [{TIERED}]"
        ),
        "keys: {u1: {tenant: acme, tier: pro, overrides: {api: {rate: 1/minute}}}}",
    );
    let gate = Gate::under(policy);
    gate.admitted(2, &[("user", "u1")]);
    assert_eq!(counts(&gate.limiter, "api", "pro"), Some([1, 1, 0, 0]));
}

#[test]
fn many_keys_make_nothing_more_to_tell() {
    let gate =
        Gate::new(&format!("limits: [{TIERED}, {{name: ip, per: [client_ip], rate: 1/minute}}]"));
    let told = |gate: &Gate| {
        let metrics = gate.limiter.metrics();
        (metrics.limits.len(), metrics.requests.len())
    };
    let before = told(&gate);
    for number in 0..50_000 {
        let text = number.to_string();
        gate.check(&[("user", &text), ("tier", &text), ("client_ip", &text)]);
    }
    assert_eq!(told(&gate), before);
    assert_eq!(ruled(&gate.limiter, Layer::Request, Ruling::Allowed), 50_000);
}

#[test]
fn counts_stay_with_a_limit_that_keeps_its_name_and_tier() {
    let gate = Gate::new(&format!("limits: [{{name: gone, rate: 9/minute}}, {TIERED}]"));
    gate.admitted(3, &[("user", "a"), ("tier", "free")]);
    let other = TIERED.replace("pro:", "gold:");
    gate.limiter
        .replace_policy(parse(&format!("limits: [{other}, {{name: new, rate: 9/minute}}]")))
        .unwrap();
    assert_eq!(counts(&gate.limiter, "api", "free"), Some([1, 2, 0, 0]));
    assert_eq!(counts(&gate.limiter, "api", "pro"), None);
    assert_eq!(counts(&gate.limiter, "api", "gold"), Some([0; 4]));
    assert_eq!(counts(&gate.limiter, "gone", ""), None);
    assert_eq!(counts(&gate.limiter, "new", ""), Some([0; 4]));
    gate.admitted(1, &[("user", "b"), ("tier", "gold")]);
    assert_eq!(counts(&gate.limiter, "api", "gold"), Some([1, 0, 0, 0]));
    assert_eq!(ruled(&gate.limiter, Layer::Request, Ruling::Denied), 2);
}

#[test]
fn what_was_asked_under_the_policy_before_is_counted_too() {
    let gate = Gate::new("limits: [{name: api, rate: 9/minute}]");
    let pinned = gate.limiter.pin();
    gate.limiter.replace_policy(parse("limits: [{name: api, rate: 9/hour}]")).unwrap();
    assert!(pinned.ask(&Request::new(&[])).wait().is_allowed());
    assert_eq!(counts(&gate.limiter, "api", ""), Some([1, 0, 0, 0]));
}

#[test]
fn a_key_with_an_override_counts_for_its_limit() {
    let gate = Gate::new("limits: [{name: api, per: [user], rate: 9/minute}]");
    gate.admitted(1, &[("user", "a")]);
    let (change, _) = Change::parse(r#"{"rate": "1/minute"}"#, "until_ms").unwrap();
    let one = Override { key: "api:b".parse().unwrap(), change, until: None };
    gate.limiter.put_override(one).unwrap();
    gate.admitted(2, &[("user", "b")]);
    assert_eq!(counts(&gate.limiter, "api", ""), Some([2, 1, 0, 0]));
}

#[test]
fn limits_beyond_the_bound_are_counted_together() {
    let limit =
        |number: usize| format!("{{name: l{number}, when: {{n: n{number}}}, rate: 1/minute}}");
    let limits: Vec<String> = (0..METRICS_SERIES_MAX + 10).map(limit).collect();
    let policy = format!("limits: [{}]", limits.join(", "));
    let gate = Gate::new(&policy);
    for number in [0, METRICS_SERIES_MAX - 1, METRICS_SERIES_MAX, METRICS_SERIES_MAX + 9] {
        gate.admitted(2, &[("n", &format!("n{number}"))]);
    }
    gate.limiter.replace_policy(parse(&policy)).unwrap();
    assert_eq!(named(&gate.limiter), METRICS_SERIES_MAX);
    assert_eq!(counts(&gate.limiter, "l0", ""), Some([1, 1, 0, 0]));
    assert_eq!(counts(&gate.limiter, OTHER_LIMITS, ""), Some([2, 2, 0, 0]));
}

#[test]
fn no_count_is_lost_between_threads() {
    const EACH: u64 = 5_000;
    let gate = Gate::new("limits: [{name: api, rate: 1/year}]");
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..EACH).for_each(|_| drop(gate.limiter.check(&Request::new(&[])))));
        }
    });
    assert_eq!(counts(&gate.limiter, "api", ""), Some([1, 8 * EACH - 1, 0, 0]));
    assert_eq!(ruled(&gate.limiter, Layer::Request, Ruling::Denied), 8 * EACH - 1);
}

#[test]
fn what_nobody_could_count_is_counted_as_such() {
    let policy = parse("limits: [{name: api, per: [user], rate: 1/day, on_store_failure: deny}]");
    // The least there is, full of keys at their limits.
    let gate = Gate::of_size(policy, 1);
    let mut number = 0;
    while counts(&gate.limiter, "api", "").is_some_and(|[.., failed]| failed == 0) {
        number += 1;
        gate.check(&[("user", &number.to_string())]);
        assert!(number < 100_000, "memory is full by then");
    }
    assert_eq!(ruled(&gate.limiter, Layer::Request, Ruling::Uncounted), 1);
}

#[test]
fn the_share_of_a_limit_in_use_is_looked_at_now_and_then_for_all() {
    let gate = Gate::new("limits: [{name: api, rate: 40000/minute}]");
    gate.admitted(40_000, &[]);
    let used = gate.limiter.metrics().limits[0].used.clone();
    // One in 256 is looked at, for 256: gaps spread by 148 make it 1,900 of 40,000, and this is five times that.
    assert!(used.count.abs_diff(40_000) < 9_500, "{}", used.count);
    let mean = used.sum / used.count as f64;
    assert!((0.35..0.65).contains(&mean), "from nothing to all of it: {mean}");
    let (_, under_a_tenth) = used.buckets[0];
    assert!(under_a_tenth < used.count / 5, "{under_a_tenth}");
    gate.admitted(1_000, &[]);
    assert_eq!(gate.limiter.metrics().limits[0].used, used, "what is denied uses nothing");
}

#[test]
fn requests_that_come_slowly_are_looked_at_one_by_one() {
    let gate = Gate::new("limits: [{name: api, rate: 100000/minute}]");
    // Whatever this thread did before, by now it is slow.
    let slowly = |requests: u64| {
        for _ in 0..requests {
            gate.advance("10ms");
            gate.check(&[]);
        }
        let metrics = gate.limiter.metrics();
        (metrics.limits[0].used.count, metrics.check_duration.count)
    };
    let (used, timed) = slowly(500);
    assert_eq!(slowly(100), (used + 100, timed + 100));
}

#[test]
fn checks_are_timed_by_the_clock_of_the_store() {
    let gate = Gate::new("limits: [{name: api, rate: 1000/minute}]");
    gate.admitted(10_000, &[]);
    let told = gate.limiter.metrics().check_duration;
    assert!(told.count.abs_diff(10_000) < 2_350, "{}", told.count);
    assert_eq!(told.sum, 0.0, "the clock stands still");
}

const DESCRIPTORS: &str = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: hour, requests_per_unit: 2 } }
  - { key: trial, shadow_mode: true, rate_limit: { unit: hour, requests_per_unit: 1 } }
";

#[test]
fn limits_of_descriptors_are_counted_by_their_domain() {
    let gate = Gate::new("limits: []");
    let load = |files: &str| {
        let descriptors = Descriptors::parse(&[("shop.yaml", files)], false).unwrap();
        gate.limiter.replace_descriptors(descriptors, &Default::default()).unwrap();
    };
    let ask = |domain: &str, key: &str| {
        let descriptors = [Descriptor { entries: &[(key, "anna")], ..Descriptor::default() }];
        let call = Call { domain, descriptors: &descriptors, hits: 1 };
        gate.limiter.rate_limit(&call).unwrap().wait().is_over
    };
    load(DESCRIPTORS);
    assert_eq!([(); 3].map(|()| ask("shop", "user")), [false, false, true]);
    assert_eq!([(); 2].map(|()| ask("shop", "trial")), [false, false]);
    assert!(!ask("a domain that a caller made up", "user"));
    assert_eq!(counts(&gate.limiter, "envoy:shop", ""), Some([3, 1, 1, 0]));
    assert_eq!(named(&gate.limiter), 1);
    assert_eq!(ruled(&gate.limiter, Layer::Request, Ruling::Denied), 1);
    assert_eq!(ruled(&gate.limiter, Layer::Request, Ruling::Allowed), 5);
    load(&format!("{DESCRIPTORS}  - {{ key: new, rate_limit: {{ unlimited: true }} }}"));
    assert_eq!(counts(&gate.limiter, "envoy:shop", ""), Some([3, 1, 1, 0]));
}
