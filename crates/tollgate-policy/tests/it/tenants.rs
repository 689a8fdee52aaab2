//! Whose request it is, and what that changes.

use tollgate_policy::{Admission, Caller, Charges, KnownBy, Missing, Policy, Request, Scratch};

use crate::{ask_api, ask_http, policy, policy_with};

const KEYS: &str = "\
keys:
  key-of-acme: { tenant: acme, tier: pro }
  # printf %s key-of-globex | sha256sum
  sha256:dd058ac6ebb1b6702f474ea5c9d9203617767b478c5cf97f6a79d43cec63e8ce: { tenant: globex, tier: pro }
  key-of-initech: { tenant: initech }
";

fn section(unknown: &str) -> String {
    format!("tenants: {{ from: header:x-api-key, file: tenants.yaml, unknown: {unknown} }}\n")
}

const LIMIT: &str = "limits:
  - { name: api, per: [tenant], rate: { free: 60/minute, pro: 600/minute, default: 1/minute } }
";

fn with_key(key: &str) -> [(&str, &[u8]); 1] {
    [("header:x-api-key", key.as_bytes())]
}

#[test]
fn a_key_gives_tenant_and_tier() {
    let policy = policy_with(&(section("{ tier: free }") + LIMIT), KEYS);
    assert_eq!(policy.tenant_keys(), 3);
    assert_eq!(ask_http(&policy, &with_key("key-of-acme")), "api 600/minute [acme] 1");
    assert_eq!(ask_http(&policy, &with_key("key-of-globex")), "api 600/minute [globex] 1");
    let told = ask_http(&policy, &with_key("key-of-initech"));
    assert_eq!(told, "api 60/minute [initech] 1", "a key without a tier has that of strangers");
}

#[test]
fn a_key_may_be_given_as_its_hash() {
    // printf %s one | sha256sum
    let hash = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed";
    for hash in [hash.to_owned(), hash.to_uppercase()] {
        let keys = format!("keys: {{ sha256:{hash}: {{ tenant: acme, tier: pro }} }}");
        let policy = policy_with(&(section("refuse") + LIMIT), &keys);
        assert_eq!(ask_http(&policy, &with_key("one")), "api 600/minute [acme] 1");
        assert_eq!(ask_http(&policy, &with_key(&hash)), "unknown key");
        assert_eq!(ask_http(&policy, &with_key(&format!("sha256:{hash}"))), "unknown key");
    }
}

#[test]
fn strangers_share_one_budget_at_every_door() {
    let policy = policy_with(&(section("{ tier: free }") + LIMIT), KEYS);
    for key in ["", "guess-1", "guess-2", "KEY-OF-ACME"] {
        assert_eq!(ask_http(&policy, &with_key(key)), "api 60/minute [-] 1");
        assert_eq!(ask_api(&policy, &with_key(key)), "api 60/minute [-] 1");
    }
    assert_eq!(ask_http(&policy, &[]), "api 60/minute [-] 1");
    assert_eq!(ask_api(&policy, &[]), "api 60/minute [-] 1");
}

#[test]
fn strangers_can_be_refused() {
    let policy = policy_with(&(section("refuse") + LIMIT), KEYS);
    assert_eq!(ask_http(&policy, &with_key("guess")), "unknown key");
    assert_eq!(ask_http(&policy, &[]), "unknown key");
    assert_eq!(ask_http(&policy, &with_key("key-of-acme")), "api 600/minute [acme] 1");
}

#[test]
fn strangers_are_refused_unless_the_policy_says_otherwise() {
    let text = "tenants: { from: header:x-api-key, file: tenants.yaml }\n".to_owned() + LIMIT;
    assert_eq!(ask_http(&policy_with(&text, KEYS), &[]), "unknown key");
}

#[test]
fn lists_come_before_the_refusal_of_strangers() {
    let lists = "exempt:\n  - { path: /health }\ndeny:\n  - { path: /admin }\n";
    let policy = policy_with(&(section("refuse") + lists + LIMIT), KEYS);
    assert_eq!(ask_http(&policy, &[("path", b"/health")]), "exempt");
    assert_eq!(ask_http(&policy, &[("path", b"/admin")]), "blocked");
    assert_eq!(ask_http(&policy, &[("path", b"/")]), "unknown key");
}

#[test]
fn tenant_and_tier_cannot_be_claimed_when_they_are_looked_up() {
    let policy = policy_with(&(section("{ tier: free }") + LIMIT), KEYS);
    let claim: [(&str, &[u8]); 3] =
        [("tenant", b"acme"), ("tier", b"pro"), ("header:x-api-key", b"guess")];
    assert_eq!(ask_api(&policy, &claim), "api 60/minute [-] 1");
    assert_eq!(ask_api(&policy, &claim[..2]), "api 60/minute [-] 1");
}

#[test]
fn without_a_tenants_section_the_caller_says_tenant_and_tier() {
    let policy = policy(LIMIT);
    let said: [(&str, &[u8]); 2] = [("tenant", b"acme"), ("tier", b"pro")];
    assert_eq!(ask_api(&policy, &said), "api 600/minute [acme] 1");
    assert_eq!(ask_api(&policy, &said[1..]), "");
}

#[test]
fn conditions_may_ask_for_tenant_and_tier() {
    let limits = "limits:
  - { name: acme, when: { tenant: acme }, rate: 1/minute }
  - { name: free, when: { tier: free }, rate: 2/minute }
  - { name: stranger, when: { tenant: absent }, rate: 3/minute }
";
    let policy = policy_with(&(section("{ tier: free }") + limits), KEYS);
    assert_eq!(ask_http(&policy, &with_key("key-of-acme")), "acme 1/minute [] 1");
    assert_eq!(ask_http(&policy, &[]), "free 2/minute [] 1; stranger 3/minute [] 1");
}

#[test]
fn the_key_itself_is_secret_wherever_it_comes_from() {
    let text = "tenants: { from: query:key, file: tenants.yaml }
limits:
  - { name: it, per: [query:key], rate: 5/minute }
";
    let policy = policy_with(text, KEYS);
    assert_eq!(ask_http(&policy, &[("query:key", b"key-of-acme")]), "it 5/minute [*key-of-acme] 1");
}

#[test]
fn keys_are_not_kept_as_text() {
    let policy = policy_with(&(section("refuse") + LIMIT), KEYS);
    assert!(!format!("{policy:?}").contains("key-of-"));
}

/// Capacity and rate of the first limit that applies.
fn first_limit(policy: &Policy, attributes: &[(&str, &[u8])]) -> String {
    let request = Request { missing: Missing::Shared, ..Request::new(attributes) };
    let mut scratch = Scratch::default();
    let mut charges = Charges::new();
    let Admission::Charged = policy.admit(&request, &mut scratch, &mut charges) else { panic!() };
    let limit = charges[0].limit;
    let rate = policy.rate(limit).map_or("slots".to_owned(), |rate| rate.to_string());
    format!("{rate} of {}", policy.limits()[limit].capacity())
}

#[test]
fn overrides_change_what_they_say_and_leave_the_rest() {
    let text = section("{ tier: free }")
        + "limits:
  - name: api
    per: [tenant]
    algorithm: token_bucket
    rate: { free: 60/minute, pro: 600/minute }
    burst: { free: 10, pro: 50 }
";
    let keys = "\
keys:
  none: { tenant: a, tier: pro }
  rate: { tenant: b, tier: pro, overrides: { api: { rate: 900/minute } } }
  rate-free: { tenant: b, tier: free }
  burst: { tenant: c, tier: free, overrides: { api: { burst: 99 } } }
  both: { tenant: d, tier: gold, overrides: { api: { rate: 7/hour, burst: 3 } } }
  tierless: { tenant: e, overrides: { api: { rate: 8/minute } } }
";
    let policy = policy_with(&text, keys);
    for (key, expected) in [
        ("none", "600/minute of 50"),
        ("rate", "900/minute of 50"),
        ("rate-free", "900/minute of 10"),
        ("burst", "60/minute of 99"),
        ("both", "7/hour of 3"),
        ("tierless", "8/minute of 10"),
        ("stranger", "60/minute of 10"),
    ] {
        assert_eq!(first_limit(&policy, &with_key(key)), expected, "{key}");
    }
}

#[test]
fn a_burst_that_was_left_to_the_rate_follows_the_overridden_rate() {
    let text = section("refuse")
        + "limits:\n  - { name: api, rate: 60/minute, algorithm: token_bucket }\n";
    let keys = "keys: { one: { tenant: a, overrides: { api: { rate: 900/minute } } } }";
    assert_eq!(first_limit(&policy_with(&text, keys), &with_key("one")), "900/minute of 900");
}

#[test]
fn slots_queues_and_several_rates_can_be_overridden() {
    let slots = section("refuse") + "limits:\n  - { name: it, concurrency: 10 }\n";
    let keys = "keys: { one: { tenant: a, overrides: { it: { concurrency: 20 } } } }";
    assert_eq!(first_limit(&policy_with(&slots, keys), &with_key("one")), "slots of 20");

    let queue =
        section("refuse") + "limits:\n  - { name: it, rate: 5/second, algorithm: leaky_bucket }\n";
    let keys = "keys: { one: { tenant: a, overrides: { it: { queue: 20 } } } }";
    assert_eq!(first_limit(&policy_with(&queue, keys), &with_key("one")), "5/second of 20");

    let rates = section("refuse") + "limits:\n  - { name: it, rate: [5/second, 50/minute] }\n";
    let keys = "keys: { one: { tenant: a, overrides: { it: { rate: [6/second, 60/minute] } } } }";
    let told = ask_http(&policy_with(&rates, keys), &with_key("one"));
    assert_eq!(told, "it 6/second [] 1; it#2 60/minute [] 1");
}

#[test]
fn thousands_of_keys_are_all_found() {
    let mut keys = String::from("keys:\n");
    for number in 0..20_000 {
        keys += &format!("  key-{number}: {{ tenant: t{}, tier: pro }}\n", number / 2);
    }
    let policy = policy_with(&(section("refuse") + LIMIT), &keys);
    assert_eq!(policy.tenant_keys(), 20_000);
    for number in (0..20_000).step_by(997) {
        let expected = format!("api 600/minute [t{}] 1", number / 2);
        assert_eq!(ask_http(&policy, &with_key(&format!("key-{number}"))), expected);
    }
}

#[test]
fn whom_a_request_is_taken_for_is_told() {
    let check = |policy: &Policy, attributes: &[(&str, &[u8])], tenant, tier, known_by| {
        let (tenant, tier) = (Option::map(tenant, str::as_bytes), Option::map(tier, str::as_bytes));
        let caller = policy.caller(&Request::new(attributes));
        assert_eq!(caller, Caller { tenant, tier, known_by });
    };
    let claimed = [("tenant", b"acme" as &[u8]), ("tier", b"pro")];
    let free = policy_with(&(section("{ tier: free }") + LIMIT), KEYS);
    let by_file = KnownBy::TenantsFile;
    check(&free, &with_key("key-of-acme"), Some("acme"), Some("pro"), by_file);
    check(&free, &with_key("key-of-initech"), Some("initech"), Some("free"), by_file);
    check(&free, &with_key("a-guess"), None, Some("free"), KnownBy::Nobody);
    check(&free, &claimed, None, Some("free"), KnownBy::Nobody);
    let refused = policy_with(&(section("refuse") + LIMIT), KEYS);
    check(&refused, &with_key("key-of-initech"), Some("initech"), None, by_file);
    check(&refused, &[], None, None, KnownBy::Nobody);
    let none = policy("limits: [{ name: api, rate: 5/minute }]");
    check(&none, &claimed, Some("acme"), Some("pro"), KnownBy::Sender);
    check(&none, &[], None, None, KnownBy::Sender);
}
