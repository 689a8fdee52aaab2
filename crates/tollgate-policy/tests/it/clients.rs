//! What a policy says of connections by their address alone.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use tollgate_policy::{Admission, Charges, Layer, Missing, Policy, Request, Scratch};

use crate::policy;

const TEXT: &str = "
listen: { gateway: 127.0.0.1:0 }
upstream: http://127.0.0.1:3000
client_ip: { trusted_proxies: [10.1.0.0/16, 10.0.0.0/8, 11.0.0.0/8, \"fd00::/8\"] }
deny:
  - { client_ip: 192.0.2.66 }
  - { client_ip: { cidr: [\"2001:db8:dead::/48\"] } }
  - { client_ip: 192.0.2.67, path: /admin }
exempt:
  - { client_ip: { not: { cidr: [128.0.0.0/1, \"::/0\"] } } }
limits:
  - { name: all, when: { layer: connection }, per: [client_ip], rate: 20/second }
  - { name: requests, per: [client_ip], rate: 20/second }
  - { name: some, when: { layer: connection, client_ip: { cidr: [203.0.113.0/24, 203.0.113.7/32, \"2001:db8::/32\"] } }, per: [client_ip], rate: 20/second }
  - { name: others, when: { layer: connection, client_ip: { not: { cidr: [203.0.113.0/24, 0.0.0.0/8] } } }, per: [client_ip], concurrency: 5 }
  - { name: here, when: { layer: connection, client_ip: present }, per: [client_ip], concurrency: 5 }
  - { name: nobody, when: { layer: connection, client_ip: absent }, per: [client_ip], concurrency: 5 }
  - { name: one, when: { layer: connection, client_ip: [192.0.2.1, 192.0.2.2, 192.0.2.4] }, per: [client_ip], concurrency: 5 }
";

fn shown(ranges: &[RangeInclusive<IpAddr>]) -> String {
    let shown = ranges.iter().map(|range| format!("{}-{}", range.start(), range.end()));
    shown.collect::<Vec<String>>().join(" ")
}

#[test]
fn the_addresses_of_a_limit_of_connections_are_told_as_ranges() {
    let policy = policy(TEXT);
    let check = |rule: usize, expected: &str| {
        assert_eq!(shown(&policy.clients(rule).unwrap()), expected, "rule {rule}");
    };
    let all_of_ipv6 = "::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
    check(0, &format!("0.0.0.0-255.255.255.255 {all_of_ipv6}"));
    assert_eq!(policy.clients(1), None, "it counts requests");
    let block = "2001:db8::-2001:db8:ffff:ffff:ffff:ffff:ffff:ffff";
    check(2, &format!("203.0.113.0-203.0.113.255 {block}"));
    check(3, &format!("1.0.0.0-203.0.112.255 203.0.114.0-255.255.255.255 {all_of_ipv6}"));
    check(4, &format!("0.0.0.0-255.255.255.255 {all_of_ipv6}"));
    check(5, "");
    check(6, "192.0.2.1-192.0.2.2 192.0.2.4-192.0.2.4");
}

#[test]
fn the_addresses_of_lists_are_those_of_entries_that_ask_for_nothing_else() {
    let policy = policy(TEXT);
    let block = "2001:db8:dead::-2001:db8:dead:ffff:ffff:ffff:ffff:ffff";
    assert_eq!(shown(&policy.denied_clients()), format!("192.0.2.66-192.0.2.66 {block}"));
    assert_eq!(shown(&policy.exempt_clients()), "0.0.0.0-127.255.255.255");
    let none = crate::policy("limits: [{ name: a, rate: 1/second }]");
    assert_eq!((none.denied_clients(), none.exempt_clients()), (Vec::new(), Vec::new()));
}

#[test]
fn blocks_of_trusted_proxies_that_meet_are_one() {
    let trusted = policy(TEXT).trusted_proxies();
    let block = "fd00::-fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
    assert_eq!(shown(&trusted), format!("10.0.0.0-11.255.255.255 {block}"));
}

/// By what a connection is let through, refused or counted.
fn met(policy: &Policy, address: IpAddr) -> Vec<usize> {
    let text = address.to_string();
    let attributes: [(&str, &[u8]); 1] = [("client_ip", text.as_bytes())];
    let layer = Layer::Connection;
    let request = Request { missing: Missing::Shared, layer, ..Request::new(&attributes) };
    let (mut scratch, mut charges) = (Scratch::default(), Charges::new());
    match policy.admit(&request, &mut scratch, &mut charges) {
        Admission::Charged => charges.iter().map(|charge| charge.rule_index).collect(),
        _ => vec![usize::MAX],
    }
}

#[test]
fn what_the_ranges_say_is_what_a_connection_meets() {
    let policy = policy(TEXT);
    let holds = |ranges: &[RangeInclusive<IpAddr>], address: &IpAddr| {
        ranges.iter().any(|range| range.contains(address))
    };
    let edges = (0..policy.rules().len()).filter_map(|rule| policy.clients(rule));
    let edges = edges.chain([policy.denied_clients(), policy.exempt_clients()]);
    let edges: Vec<IpAddr> = edges.flatten().flat_map(|it| [*it.start(), *it.end()]).collect();
    assert!(edges.len() > 20);
    for address in edges.iter().flat_map(around) {
        let is_listed = [policy.denied_clients(), policy.exempt_clients()]
            .iter()
            .any(|list| holds(list, &address));
        let expected: Vec<usize> = if is_listed {
            vec![usize::MAX]
        } else {
            let rules = 0..policy.rules().len();
            let is_met =
                |rule: &usize| policy.clients(*rule).is_some_and(|it| holds(&it, &address));
            rules.filter(is_met).collect()
        };
        assert_eq!(met(&policy, address), expected, "{address}");
    }
}

/// An address and its neighbours.
fn around(address: &IpAddr) -> Vec<IpAddr> {
    let near = [-1, 0, 1].map(|by| match address {
        IpAddr::V4(it) => Ipv4Addr::from(it.to_bits().saturating_add_signed(by)).into(),
        IpAddr::V6(it) => Ipv6Addr::from(it.to_bits().saturating_add_signed(by.into())).into(),
    });
    near.to_vec()
}
