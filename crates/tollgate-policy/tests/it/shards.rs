//! One limit split over several keys.

use std::collections::{BTreeMap, BTreeSet};

use tollgate_core::{Key, Value};
use tollgate_policy::{Admission, Charges, Missing, Policy, Request, Scratch, Standing};

use crate::{Attributes, Random, policy, policy_with};

const PAGE: &str = include_str!("../../../../docs/policy.md");

/// What one rule charges a request: its shard, and the share as `rate capacity`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Charged {
    shard: u8,
    share: String,
    key: String,
}

/// What the first rule charges a request; `explain` must say the same.
fn charged(policy: &Policy, attributes: &Attributes<'_>) -> Charged {
    charged_by(policy, &Request { missing: Missing::Shared, ..Request::new(attributes) })
}

fn charged_by(policy: &Policy, request: &Request<'_>) -> Charged {
    let mut scratch = Scratch::default();
    let mut charges = Charges::new();
    let Admission::Charged = policy.admit(request, &mut scratch, &mut charges) else { panic!() };
    let charge = &charges[0];
    assert_eq!(charge.values.len(), charge.rule.per().len() + 1);
    let explained = policy.explain(request).into_iter().map(|it| it.standing);
    let mut explained = explained.filter_map(|standing| match standing {
        Standing::Applies { limit, shard, .. } => Some((limit, shard)),
        Standing::DoesNotApply(_) => None,
    });
    let (limit, shard) = explained.next().expect("one applies");
    let shard = shard.expect("it is split");
    assert_eq!((limit, charge.values.last()), (charge.limit, Some(&Value::shard(shard))));
    let rate = policy.rate(limit).map_or("slots".to_owned(), |rate| rate.to_string());
    let share = format!("{rate} {}", policy.limits()[limit].capacity());
    let key = Key { limit: charge.rule.name(), values: &charge.values }.text(|_| 0);
    Charged { shard, share, key }
}

/// The share of every shard.
fn shares(policy: &Policy, attributes: &Attributes<'_>) -> Vec<String> {
    let count = usize::from(policy.rules()[0].shards().expect("it is split").count());
    let mut shares = BTreeMap::new();
    for caller in 0..100_000 {
        let caller = caller.to_string();
        let mut attributes = attributes.to_vec();
        attributes.push(("user", caller.as_bytes()));
        let charged = charged(policy, &attributes);
        let known = shares.entry(charged.shard).or_insert(charged.share.clone());
        assert_eq!(*known, charged.share);
        if shares.len() == count {
            break;
        }
    }
    assert_eq!(shares.len(), count, "every shard has its callers");
    shares.into_values().collect()
}

fn total(shares: &[String]) -> (u32, u32) {
    let numbers = shares.iter().map(|share| {
        let (rate, capacity) = share.split_once(' ').expect("two words");
        let count = rate.split_once('/').map_or(0, |(count, _)| count.parse().expect("a number"));
        (count, capacity.parse::<u32>().expect("a number"))
    });
    numbers.fold((0, 0), |(rates, sizes), (rate, size): (u32, u32)| (rates + rate, sizes + size))
}

#[test]
fn shares_add_up_to_the_limit_whatever_it_is_split_into() {
    let check = |terms: &str, count: u32, expected: (u32, u32)| {
        let text = format!(
            "store: redis://h\nlimits: [{{ name: it, {terms}, shards: {{ count: {count}, by: user }} }}]"
        );
        let shares = shares(&policy(&text), &[]);
        assert_eq!(total(&shares), expected, "{terms} over {count}");
        let sizes = shares.iter().map(|share| share.split_once(' ').unwrap().1.parse::<u32>());
        let sizes: Vec<u32> = sizes.collect::<Result<_, _>>().unwrap();
        assert!(sizes.is_sorted_by(|one, next| one >= next), "the first have one more: {sizes:?}");
        assert!(sizes[0] - sizes[sizes.len() - 1] <= 1, "{sizes:?}");
    };
    for algorithm in ["sliding_window", "fixed_window", "sliding_log"] {
        for (rate, count) in [(10, 10), (11, 10), (999, 10), (1_000, 7), (300, 256), (2, 2)] {
            check(&format!("rate: {rate}/minute, algorithm: {algorithm}"), count, (rate, rate));
        }
    }
    for (rate, burst, count) in [(603, 52, 10), (52, 603, 10), (100, 100, 3), (7, 300, 7)] {
        let terms = format!("rate: {rate}/minute, algorithm: token_bucket, burst: {burst}");
        check(&terms, count, (rate, burst));
    }
    for (slots, count) in [(5, 5), (23, 10)] {
        check(&format!("concurrency: {slots}"), count, (0, slots));
    }
    check("rate: 0/minute", 10, (0, 0));
    check("rate: 4294967295/second", 256, (u32::MAX, u32::MAX));
}

#[test]
fn tiers_and_overrides_have_shares_of_their_own() {
    let text = "\
store: redis://127.0.0.1:6379
tenants: { from: header:x-api-key, file: tenants.yaml, unknown: { tier: free } }
limits:
  - name: api
    per: [tenant]
    rate: { free: 60/minute, pro: 603/minute }
    algorithm: token_bucket
    burst: { free: 10, pro: 52 }
    shards: { count: 10, by: user }
";
    let tenants = "\
keys:
  pro: { tenant: acme, tier: pro }
  more: { tenant: initech, tier: pro, overrides: { api: { rate: 905/minute } } }
  none: { tenant: mallory, overrides: { api: { rate: 0/minute, burst: 0 } } }
";
    let policy = policy_with(text, tenants);
    let check = |key: &str, expected: (u32, u32)| {
        let shares = shares(&policy, &[("header:x-api-key", key.as_bytes())]);
        assert_eq!(total(&shares), expected, "{key}");
    };
    check("unknown", (60, 10));
    check("pro", (603, 52));
    check("more", (905, 52));
    check("none", (0, 0));
}

const EVERYONE: &str = "\
store: redis://127.0.0.1:6379
limits:
  - { name: everyone, rate: 1000/second, shards: { count: 10, by: client_ip } }
";

#[test]
fn a_caller_is_on_the_same_shard_on_every_node_and_in_every_version() {
    let policy = policy(EVERYONE);
    // These may never change: two versions on one store would give a caller two shares.
    for (address, shard) in [
        ("203.0.113.7", 2),
        ("203.0.113.8", 0),
        ("198.51.100.1", 7),
        ("2001:db8::1", 1),
        ("not an address", 0),
        ("", 2),
    ] {
        let charged = charged(&policy, &[("client_ip", address.as_bytes())]);
        assert_eq!(charged.shard, shard, "{address}");
        assert_eq!(charged.key, format!("everyone:%s{shard}"));
    }
}

#[test]
fn a_client_that_rotates_through_its_prefix_stays_on_its_shard() {
    let policy = policy(EVERYONE);
    let shard = |address: &str| charged(&policy, &[("client_ip", address.as_bytes())]).shard;
    let first = shard("2001:db8:0:1200::1");
    for last in 0..200 {
        assert_eq!(shard(&format!("2001:db8:0:12{:02x}::{last}", last % 256)), first);
    }
    assert_eq!(shard("203.0.113.7"), shard("::ffff:203.0.113.7"));
}

#[test]
fn all_without_the_attribute_are_on_one_shard_at_every_door() {
    let policy = policy(EVERYONE);
    let at = |missing, attributes: &Attributes<'_>| {
        charged_by(&policy, &Request { missing, ..Request::new(attributes) })
    };
    let skipped = at(Missing::Skip, &[]);
    assert_eq!(skipped, at(Missing::Shared, &[]));
    assert_eq!(skipped, at(Missing::Shared, &[("path", b"/x")]));
}

#[test]
fn one_shard_of_one_caller_is_a_key_of_its_own() {
    let text = "\
store: redis://127.0.0.1:6379
limits:
  - { name: api, per: [tenant], rate: 100/second, shards: { count: 10, by: user } }
";
    let policy = policy(text);
    let key = |tenant: &str, user: &str| {
        let attributes: [(&str, &[u8]); 2] =
            [("tenant", tenant.as_bytes()), ("user", user.as_bytes())];
        charged(&policy, &attributes)
    };
    let (one, other) = (key("acme", "1"), key("globex", "1"));
    assert_eq!(one.shard, other.shard);
    assert_eq!(one.key, format!("api:acme:%s{}", one.shard));
    assert_eq!(other.key, format!("api:globex:%s{}", one.shard));
}

/// The slot of a Cluster that a key lies in whose hash tag is this.
fn slot(tag: &str) -> u16 {
    let shift = |sum: u16| if sum & 0x8000 == 0 { sum << 1 } else { sum << 1 ^ 0x1021 };
    let add = |sum: u16, byte: u8| (0..8).fold(sum ^ u16::from(byte) << 8, |sum, _| shift(sum));
    tag.bytes().fold(0, add) % 16_384
}

#[test]
fn the_shards_of_one_limit_lie_in_slots_of_their_own() {
    assert_eq!(slot("123456789"), 0x31C3, "the check value of CRC16/XMODEM");
    for values in [&[][..], &[Value::new(b"acme")]] {
        let tag = |number: u8| {
            let values = [values, &[Value::shard(number)]].concat();
            let text = Key { limit: "", values: &values }.text(|_| 0);
            text.trim_start_matches(':').to_owned()
        };
        let slots: BTreeSet<u16> = (0..=u8::MAX).map(|number| slot(&tag(number))).collect();
        assert_eq!(slots.len(), 256, "{}", tag(0));
    }
}

/// Of so many callers who all send as much, and together `load` percent of the limit: the part of
/// their requests that is denied though the limit as a whole has room, in tenths of a percent, on
/// average over some crowds and in the worst of them.
fn denied_too_early(policy: &Policy, callers: usize, load: u64) -> (u64, u64) {
    const CROWDS: u64 = 20;
    let mut random = Random(7);
    let denied: Vec<u64> = (0..CROWDS)
        .map(|_| {
            let mut crowds = [0u64; 10];
            for _ in 0..callers {
                let address = std::net::Ipv4Addr::from(random.next() as u32).to_string();
                let charged = shard_of(policy, &address);
                crowds[usize::from(charged)] += 1;
            }
            // In units of which a shard holds ten times the callers and a caller sends `load`.
            let room = callers as u64 * 10;
            let sent = crowds.map(|crowd| crowd * load);
            let over: u64 = sent.iter().map(|sent| sent.saturating_sub(room)).sum();
            (over * 1_000).div_ceil(callers as u64 * load)
        })
        .collect();
    (denied.iter().sum::<u64>().div_ceil(CROWDS), denied.iter().copied().max().unwrap_or(0))
}

fn shard_of(policy: &Policy, address: &str) -> u8 {
    let attributes: [(&str, &[u8]); 1] = [("client_ip", address.as_bytes())];
    let mut scratch = Scratch::default();
    let request = Request::new(&attributes);
    let mut charges = Charges::new();
    let Admission::Charged = policy.admit(&request, &mut scratch, &mut charges) else { panic!() };
    let bytes = charges[0].values.last().and_then(|shard| shard.bytes).expect("it is split");
    bytes[0]
}

#[test]
fn what_is_denied_too_early_is_what_the_page_says() {
    let policy = policy(EVERYONE);
    let percent = |tenths: u64| format!("{}.{} %", tenths / 10, tenths % 10);
    for callers in [100, 1_000, 10_000] {
        let cells = [100, 90, 80, 50].map(|load| {
            let (average, worst) = denied_too_early(&policy, callers, load);
            format!("{} ({})", percent(average), percent(worst))
        });
        let row = format!("| {callers} | {} |", cells.join(" | "));
        assert!(PAGE.contains(&row), "the page does not state {row}");
    }
}
