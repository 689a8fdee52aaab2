//! Keys that an operator names, and what single ones are allowed instead.

use tollgate_core::{Align, Limit, Quota};
use tollgate_policy::{Change, Policy};

use crate::{policy, policy_with};

const LIMITS: &str = "
limits:
  - { name: login, per: [client_ip, user], rate: 5/minute, algorithm: sliding_log }
  - { name: api, per: [tenant], rate: { free: 60/minute, default: 600/minute }, algorithm: token_bucket,
      burst: { free: 10, default: 50 } }
  - { name: bucket, per: [user], rate: 60/minute, algorithm: token_bucket, burst: 10 }
  - { name: plain, per: [user], rate: 60/minute, algorithm: token_bucket }
  - { name: twice, per: [user], rate: [10/second, 100/hour], algorithm: fixed_window, align: key }
  - { name: secret, per: [{ first: [header:x-api-key, client_ip] }], rate: 5/minute }
  - { name: everyone, rate: 9/second }
  - { name: slots, per: [user], concurrency: 3, lease: 9s }
  - { name: shaped, per: [user], rate: 5/second, algorithm: leaky_bucket, queue: 7, max_delay: 2s }
  - { name: hot, rate: 10/second, algorithm: token_bucket, shards: { count: 4, by: client_ip } }
";

/// The rates of a key, as they are told, or why it has none.
fn rates(policy: &Policy, key: &str) -> Result<Vec<String>, String> {
    let named = policy.named(&key.parse().expect("a key"))?;
    let rate = |limit: &usize| match policy.rate(*limit) {
        Some(rate) => format!("{rate} of {}", policy.limits()[*limit].capacity()),
        None => format!("{} at a time", policy.limits()[*limit].capacity()),
    };
    assert_eq!(
        &**policy.rules()[named.rule].name(),
        key.parse::<tollgate_core::KeyBuf>().expect("it is a key").limit()
    );
    Ok(named.limits.iter().map(rate).collect())
}

#[test]
fn a_key_tells_its_limit_or_the_few_it_may_be_under() {
    let policy = policy(LIMITS);
    let hash = "0123456789abcdef".repeat(2);
    for (key, expected) in [
        ("login:203.0.113.7:a%3Ab", &["5/minute of 5"][..]),
        ("login:%:%", &["5/minute of 5"]),
        ("api:acme", &["60/minute of 10", "600/minute of 50"]),
        ("twice%232:u", &["100/hour of 100"]),
        (&format!("secret:%h{hash}"), &["5/minute of 5"]),
        ("secret:%n1.203.0.113.7", &["5/minute of 5"]),
        ("everyone", &["9/second of 9"]),
        ("slots:u", &["3 at a time"]),
        ("hot:%s0", &["3/second of 3"]),
        ("hot:%s3", &["2/second of 2"]),
    ] {
        assert_eq!(rates(&policy, key).unwrap(), expected, "{key}");
    }
}

#[test]
fn a_key_that_no_request_has_is_refused_with_a_sentence() {
    let policy = policy(LIMITS);
    let hash = "0123456789abcdef".repeat(2);
    for (key, expected) in [
        ("logn:a:b", "the policy has no limit \"logn\"; did you mean login?"),
        ("twice%233:u", "the policy has no limit \"twice#3\""),
        ("login:a", "limit \"login\" counts by client_ip, user, and the key has 1 values"),
        ("everyone:a", "limit \"everyone\" counts by nothing, and the key has 1 values"),
        ("login:a:%n1.b", "limit \"login\" tries user, and the key has a value of another"),
        ("secret:s3cret", "limit \"secret\" keeps header:x-api-key secret; write its hash"),
        (
            &format!("slots:%h{hash}"),
            "limit \"slots\" counts by user itself, and a hash of it, as operators are shown under \
             observe: {keys: hashed}, does not tell it; write the value in its place",
        ),
        ("slots:u:%s0", "limit \"slots\" is not split into shards"),
        ("hot", "limit \"hot\" is split into shards; end the key with one of :%s0 to :%s3"),
        ("hot:%s4", "limit \"hot\" is split into shards"),
    ] {
        let why = rates(&policy, key).expect_err(key);
        assert!(why.starts_with(expected), "{key}: {why}");
        assert!(!why.contains("s3cret"), "{why}");
    }
}

#[test]
fn the_key_of_a_tenant_that_the_file_allows_something_else_is_under_that() {
    let keys =
        "keys:\n  one: { tenant: acme, tier: free, overrides: { api: { rate: 900/minute } } }\n";
    let section =
        "tenants: { from: header:x-api-key, file: tenants.yaml, unknown: { tier: free } }";
    let policy = policy_with(&format!("{section}\n{LIMITS}"), keys);
    assert_eq!(rates(&policy, "api:acme").unwrap(), ["900/minute of 10"]);
    assert_eq!(rates(&policy, "api:globex").unwrap().len(), 2);
    assert_eq!(rates(&policy, "api:%").unwrap().len(), 2);
}

fn changed(key: &str, change: &str) -> Result<(Limit, Option<Quota>), String> {
    let policy = policy(LIMITS);
    let rule = policy.named(&key.parse().expect("a key")).expect("a limit").rule;
    let (change, _) = Change::parse(change, "ttl_ms").map_err(|mistakes| mistakes.to_string())?;
    policy.changed(rule, &change)
}

#[test]
fn what_a_change_does_not_say_stays_as_the_limit_has_it() {
    let rate = |text: &str| text.parse::<Quota>().expect("a rate");
    let check = |key: &str, change: &str, limit: Limit, told: Option<&str>| {
        assert_eq!(changed(key, change), Ok((limit, told.map(rate))), "{key} {change}");
    };
    let bucket = |text, burst| Limit::token_bucket(rate(text), burst).unwrap();
    check("bucket:u", "{\"rate\": \"90/minute\"}", bucket("90/minute", 10), Some("90/minute"));
    check("bucket:u", "{\"burst\": 7}", bucket("60/minute", 7), Some("60/minute"));
    check("plain:u", "{\"rate\": \"90/minute\"}", bucket("90/minute", 90), Some("90/minute"));
    check("api:a", "{rate: 90/minute, burst: 7}", bucket("90/minute", 7), Some("90/minute"));
    check("hot:%s1", "{rate: 9/second, burst: 7}", bucket("9/second", 7), Some("9/second"));
    let window = Limit::fixed_window(rate("5/day"), Align::Key);
    check("twice%232:u", "{\"rate\": \"5/day\"}", window, Some("5/day"));
    let shaped = Limit::leaky_bucket(rate("9/second"), 7, Some("2s".parse().unwrap())).unwrap();
    check("shaped:u", "{\"rate\": \"9/second\"}", shaped, Some("9/second"));
    let slots = Limit::concurrency(8, "9s".parse().unwrap()).unwrap();
    check("slots:u", "{\"concurrency\": 8}", slots, None);
}

#[test]
fn a_change_that_means_nothing_is_refused_with_the_sentence_of_a_tenants_file() {
    for (key, change, expected) in [
        (
            "api:a",
            "{\"rate\": \"90/minute\"}",
            "burst must be said too, because the limit has it by tier",
        ),
        ("api:a", "{\"burst\": 9}", "rate must be said too, because the limit has it by tier"),
        (
            "hot:%s0",
            "{\"burst\": 9}",
            "rate must be said too, because the limit is split into shards",
        ),
        ("login:a:b", "{\"burst\": 9}", "burst means nothing to it, because it is a sliding_log"),
        ("bucket:u", "{\"queue\": 9}", "queue means nothing to it, because it is a token_bucket"),
        ("bucket:u", "{\"concurrency\": 9}", "concurrency means nothing to it"),
        ("slots:u", "{\"rate\": \"9/second\"}", "it counts slots; only concurrency can be changed"),
        (
            "slots:u",
            "{\"concurrency\": 4000000000}",
            "4000000000 at a time are more than are told apart",
        ),
        ("login:a:b", "{\"rate\": \"4000000000/day\"}", "100000"),
        (
            "login:a:b",
            "{\"rate\": \"5/minuet\"}",
            "rate \"5/minuet\" is not a rate; write for example 5/minute",
        ),
        ("login:a:b", "{}", "it changes nothing; write for example {rate: 900/minute}"),
        (
            "login:a:b",
            "[]",
            "a map is expected here, of rate, burst, queue, concurrency, ban, ttl_ms",
        ),
        ("login:a:b", "{\"ban\": \"yes\"}", "ban"),
        ("login:a:b", "{\"ban\": false}", "ban is true and goes alone"),
        ("login:a:b", "{\"ban\": true, \"rate\": \"5/minute\"}", "ban is true and goes alone"),
        ("login:a:b", "", ""),
        ("login:a:b", "{\"rat\": \"5/minute\"}", "rate"),
        ("login:a:b", "{\"rate\": [\"5/minute\", \"9/hour\"]}", "rate has 2 where a key has 1"),
        (
            "login:a:b",
            "{\"rate\": \"5/minute\", \"ttl_ms\": \"soon\"}",
            "ttl_ms is not a whole number",
        ),
        ("login:a:b", "{\"rate\": \"5/minute\", \"ttl_ms\": -1}", "ttl_ms is not a whole number"),
        ("login:a:b", "{\"rate\": \"5/minute\"", ""),
    ] {
        let why = changed(key, change).expect_err(change);
        assert!(why.contains(expected), "{key} {change}: {why}");
    }
    let long = format!("{{\"rate\": \"5/minute\"}}{}", " ".repeat(10_000));
    assert!(changed("login:a:b", &long).is_err_and(|why| why.contains("at most 4096 bytes")));
}

#[test]
fn a_change_reads_back_from_what_it_is_written_as() {
    let (change, millis) = Change::parse(
        "{\"rate\": \"900/90s\", \"burst\": 50, \"ttl_ms\": 90000000000000}",
        "ttl_ms",
    )
    .unwrap();
    assert_eq!(change.to_string(), "{\"rate\":\"900/90s\",\"burst\":50}");
    assert_eq!(millis, Some(90_000_000_000_000));
    assert_eq!(Change::parse(&change.to_string(), "until_ms"), Ok((change, None)));
    let slots = Change { concurrency: Some(3), ..Change::default() };
    assert_eq!(Change::parse(&slots.to_string(), "until_ms"), Ok((slots, None)));
    let (ban, millis) = Change::parse("{\"ban\": true, \"ttl_ms\": 5}", "ttl_ms").unwrap();
    assert_eq!((ban.to_string(), millis), ("{\"ban\":true}".to_owned(), Some(5)));
    assert_eq!(Change::parse(&ban.to_string(), "until_ms"), Ok((ban, None)));
}
