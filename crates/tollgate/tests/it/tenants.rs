//! Headroom by tenant.

use tollgate::Micros;
use tollgate::bounds::METRICS_TENANTS_MAX;
use tollgate::metrics::TenantCount;

use crate::{Gate, parse_with};

const POLICY: &str = "
observe: { tenants: true }
tenants: { from: header:x-api-key, file: tenants.yaml, unknown: { tier: free } }
limits:
  - { name: api, per: [tenant], rate: 10/day, algorithm: fixed_window }
  - { name: either, per: [{ first: [tenant, client_ip] }], rate: 4/day, algorithm: fixed_window }
  - { name: everyone, rate: 1000000/day, algorithm: fixed_window }
";

/// Keys `k0`, `k1` … of tenants `t0`, `t1` ….
fn tenants(count: usize) -> String {
    let keys =
        (0..count).map(|number| format!("  k{number}: {{ tenant: t{number}, tier: pro }}\n"));
    format!("keys:\n{}", keys.collect::<String>())
}

fn ask(gate: &Gate, key: &str) {
    // Far enough apart to be looked at, each of them.
    gate.clock.advance(Micros::from_millis(10));
    gate.check(&[("header:x-api-key", key), ("client_ip", "203.0.113.7"), ("tenant", "forged")]);
}

/// What is told: the limit, the tenant, how many figures, and what they add up to.
fn told(gate: &Gate) -> Vec<(String, String, u64, f64)> {
    let told = |TenantCount { limit, tenant, used }| {
        (String::from(&*limit), String::from(&*tenant), used.count, (used.sum * 1e3).round() / 1e3)
    };
    gate.limiter.metrics().tenants.into_iter().map(told).collect()
}

#[test]
fn limits_that_count_by_tenant_tell_how_much_each_uses() {
    let gate = Gate::under(parse_with(POLICY, &tenants(2)));
    ask(&gate, "k0");
    ask(&gate, "k0");
    ask(&gate, "k1");
    let expected = [
        ("api", "t0", 2, 0.3),
        ("api", "t1", 1, 0.1),
        ("either", "t0", 2, 0.75),
        ("either", "t1", 1, 0.25),
        ("#others", "#others", 0, 0.0),
    ];
    let expected = expected
        .map(|(limit, tenant, count, sum)| (limit.to_owned(), tenant.to_owned(), count, sum));
    assert_eq!(told(&gate), expected);
}

#[test]
fn nothing_is_told_unless_the_policy_wants_it() {
    let text = POLICY.replace("tenants: true", "tenants: false");
    let gate = Gate::under(parse_with(&text, &tenants(2)));
    ask(&gate, "k0");
    assert_eq!(told(&gate), []);
}

#[test]
fn no_caller_adds_to_what_is_told_whatever_keys_it_sends() {
    let gate = Gate::under(parse_with(POLICY, &tenants(1)));
    ask(&gate, "k0");
    let before = told(&gate).len();
    for number in 0..10_000 {
        ask(&gate, &format!("guess-{number}"));
    }
    assert_eq!(told(&gate).len(), before);
}

#[test]
fn of_a_file_of_many_tenants_the_first_that_come_are_told_apart() {
    let many = METRICS_TENANTS_MAX * 2;
    let text = POLICY.replace("per: [{ first: [tenant, client_ip] }]", "per: [client_ip]");
    let gate = Gate::under(parse_with(&text, &tenants(many)));
    for number in 0..many {
        ask(&gate, &format!("k{number}"));
    }
    let told = told(&gate);
    assert_eq!(told.len(), METRICS_TENANTS_MAX + 1);
    assert_eq!(told.last().unwrap().2 as usize, many - METRICS_TENANTS_MAX);
}

#[test]
fn a_reload_keeps_what_was_counted_of_limits_and_tenants_that_stay() {
    let gate = Gate::under(parse_with(POLICY, &tenants(2)));
    ask(&gate, "k0");
    ask(&gate, "k1");
    let text = POLICY.replace("name: either", "name: other");
    gate.limiter.replace_policy(parse_with(&text, &tenants(1))).unwrap();
    let left: Vec<(String, String, u64, f64)> = told(&gate);
    let left: Vec<(&str, &str, u64)> =
        left.iter().map(|(limit, tenant, count, _)| (&**limit, &**tenant, *count)).collect();
    assert_eq!(left, [("api", "t0", 1), ("#others", "#others", 0)]);
}
