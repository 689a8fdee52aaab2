//! Addresses behind proxies.

use std::net::IpAddr;

use tollgate::http::client::{self, TooManyProxies};
use tollgate::{Cidr, ForwardedIn};

use super::{headers, ip};
use crate::Gate;

/// Whose request it is, behind proxies in 10.0.0.0/8 and 2001:db8:ffff::/48 that write these lines.
fn client_behind(
    peer: &str,
    header: ForwardedIn,
    lines: &[&str],
) -> Result<IpAddr, TooManyProxies> {
    let trusted: [Cidr; 2] =
        ["10.0.0.0/8", "2001:db8:ffff::/48"].map(|block| block.parse().expect("a block"));
    let trusts = |address| trusted.iter().any(|block| block.contains(address));
    let name = match header {
        ForwardedIn::XForwardedFor => "x-forwarded-for",
        ForwardedIn::Forwarded => "forwarded",
    };
    let lines: Vec<(&str, &str)> = lines.iter().map(|line| (name, *line)).collect();
    client::address(ip(peer), &headers(&lines), header, trusts)
}

fn client_of(peer: &str, forwarded: &[&str]) -> Result<IpAddr, TooManyProxies> {
    client_behind(peer, ForwardedIn::XForwardedFor, forwarded)
}

fn check_client(peer: &str, forwarded: &[&str], client: &str) {
    assert_eq!(client_of(peer, forwarded), Ok(ip(client)), "{peer} {forwarded:?}");
}

/// The same of what `Forwarded` says.
fn check_forwarded(peer: &str, forwarded: &[&str], client: &str) {
    let found = client_behind(peer, ForwardedIn::Forwarded, forwarded);
    assert_eq!(found, Ok(ip(client)), "{peer} {forwarded:?}");
}

#[test]
fn a_peer_that_is_not_trusted_speaks_for_itself_whatever_it_forwards() {
    for forwarded in ["1.2.3.4", "10.0.0.1", "192.0.2.1, 10.0.0.1", "", "garbage"] {
        check_client("203.0.113.9", &[forwarded], "203.0.113.9");
    }
    let many = vec!["1.2.3.4"; 1_000].join(",");
    check_client("203.0.113.9", &[&many], "203.0.113.9");
}

#[test]
fn random_forwarded_addresses_from_a_stranger_share_one_budget() {
    let gate = Gate::new("limits: [{name: a, per: [client_ip], rate: 5/minute}]");
    let allowed = (0..100).filter(|number| {
        let forged = format!("192.0.2.{number}");
        let client = client_of("203.0.113.9", &[&forged]).unwrap().to_string();
        gate.allows(&[("client_ip", &client)])
    });
    assert_eq!(allowed.count(), 5);
}

#[test]
fn behind_trusted_proxies_the_last_address_that_is_none_of_them_counts() {
    check_client("10.0.0.1", &["203.0.113.7"], "203.0.113.7");
    check_client("10.0.0.1", &["192.0.2.66, 203.0.113.7"], "203.0.113.7");
    check_client("10.0.0.1", &["192.0.2.66, 203.0.113.7, 10.0.0.3, 10.0.0.2"], "203.0.113.7");
    check_client("10.0.0.1", &["10.9.9.9, 203.0.113.7,10.0.0.3 ,\t10.0.0.2"], "203.0.113.7");
    check_client("2001:db8:ffff::1", &["2001:db8::7"], "2001:db8::7");
    check_client("::ffff:10.0.0.1", &["203.0.113.7"], "203.0.113.7");
}

#[test]
fn several_lines_are_one_list_in_their_order() {
    check_client("10.0.0.1", &["192.0.2.66", "203.0.113.7", "10.0.0.2"], "203.0.113.7");
    check_client("10.0.0.1", &["203.0.113.7, 10.0.0.3", "10.0.0.2"], "203.0.113.7");
    check_client("10.0.0.1", &["203.0.113.7", "192.0.2.66"], "192.0.2.66");
}

#[test]
fn ports_brackets_and_quotes_are_taken_off() {
    for (written, address) in [
        ("203.0.113.7:4711", "203.0.113.7"),
        ("\"203.0.113.7\"", "203.0.113.7"),
        ("\"203.0.113.7:80\"", "203.0.113.7"),
        ("2001:db8::7", "2001:db8::7"),
        ("[2001:db8::7]", "2001:db8::7"),
        ("[2001:db8::7]:4711", "2001:db8::7"),
        ("\"[2001:db8::7]:4711\"", "2001:db8::7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("[::ffff:cb00:7107]:80", "203.0.113.7"),
    ] {
        check_client("10.0.0.1", &[written], address);
    }
}

#[test]
fn too_few_entries_or_one_that_is_no_address_leave_the_peers_own() {
    for forwarded in [
        "",
        " ",
        ",",
        "10.0.0.2",
        "10.0.0.3, 10.0.0.2",
        "unknown",
        "_hidden",
        "203.0.113.7, unknown",
        "203.0.113.7, , 10.0.0.2",
        "203.0.113.7,",
        "[203.0.113.7]",
        "203.0.113.7:",
        "203.0.113.7:99999",
        "203.0.113.07",
        "0xcb.0.113.7",
        "3405803783",
        "203.0.113",
        "fe80::1%eth0",
        "[2001:db8::7",
        "\"203.0.113.7",
        "for=203.0.113.7",
        "203.0.113.7\u{e9}",
        "203.0.113.7 192.0.2.1",
    ] {
        check_client("10.0.0.1", &[forwarded], "10.0.0.1");
    }
    check_client("10.0.0.1", &[], "10.0.0.1");
}

#[test]
fn what_lies_before_the_client_is_not_even_looked_at() {
    check_client("10.0.0.1", &["unknown, , garbage, 203.0.113.7, 10.0.0.2"], "203.0.113.7");
}

#[test]
fn only_the_configured_header_is_read() {
    let lines = [
        ("x-real-ip", "192.0.2.2"),
        ("true-client-ip", "192.0.2.3"),
        ("forwarded", "for=203.0.113.8"),
        ("x-forwarded-for", "203.0.113.7"),
    ];
    let proxy = ip("10.0.0.1");
    for (header, its_own, without) in [
        (ForwardedIn::XForwardedFor, "203.0.113.7", [lines[0], lines[1], lines[2]]),
        (ForwardedIn::Forwarded, "203.0.113.8", [lines[0], lines[1], lines[3]]),
    ] {
        let client = client::address(proxy, &headers(&lines), header, |it| it == proxy);
        assert_eq!(client, Ok(ip(its_own)), "{header:?}");
        let client = client::address(proxy, &headers(&without), header, |_| true);
        assert_eq!(client, Ok(proxy), "{header:?}");
    }
}

#[test]
fn forwarded_is_walked_as_the_other_header_is() {
    check_forwarded("203.0.113.9", &["for=1.2.3.4"], "203.0.113.9");
    check_forwarded("10.0.0.1", &["for=203.0.113.7"], "203.0.113.7");
    check_forwarded("10.0.0.1", &["for=192.0.2.66, for=203.0.113.7"], "203.0.113.7");
    check_forwarded("10.0.0.1", &["for=192.0.2.66, for=203.0.113.7,for=10.0.0.2"], "203.0.113.7");
    check_forwarded(
        "10.0.0.1",
        &["for=192.0.2.66", "for=203.0.113.7", "for=10.0.0.2"],
        "203.0.113.7",
    );
    check_forwarded("10.0.0.1", &["for=203.0.113.7", "for=192.0.2.66"], "192.0.2.66");
    check_forwarded("10.0.0.1", &["for=unknown, nonsense, ,for=203.0.113.7"], "203.0.113.7");
    check_forwarded("::ffff:10.0.0.1", &["for=203.0.113.7"], "203.0.113.7");
    let many = vec!["for=1.2.3.4"; 1_000].join(",");
    check_forwarded("203.0.113.9", &[&many], "203.0.113.9");
}

#[test]
fn forwarded_is_read_as_its_standard_says() {
    for (element, address) in [
        ("For=203.0.113.7", "203.0.113.7"),
        ("FOR=203.0.113.7;proto=https;by=10.0.0.2", "203.0.113.7"),
        ("by=10.0.0.2;proto=https;for=203.0.113.7", "203.0.113.7"),
        ("proto=https; for=203.0.113.7 ;", "203.0.113.7"),
        (";;for=203.0.113.7", "203.0.113.7"),
        ("for=\"203.0.113.7\"", "203.0.113.7"),
        ("for=\"203.0.113.7:4711\"", "203.0.113.7"),
        ("for=203.0.113.7:4711", "203.0.113.7"),
        ("for=\"203.0.113.7:_hidden\"", "203.0.113.7"),
        ("for=\"203.0.113.\\7\"", "203.0.113.7"),
        ("for=\"[2001:db8::7]\"", "2001:db8::7"),
        ("for=\"[2001:db8::7]:4711\"", "2001:db8::7"),
        ("for=\"[2001:DB8::7]:_x.y-z_1\"", "2001:db8::7"),
        ("for=\"[::ffff:cb00:7107]:80\"", "203.0.113.7"),
        ("for=203.0.113.7;host=\"a, for=192.0.2.1;for=192.0.2.2\"", "203.0.113.7"),
        ("for=203.0.113.7;host=\"a\\\", for=192.0.2.1\"", "203.0.113.7"),
        ("host=\"\\\\\";for=203.0.113.7", "203.0.113.7"),
        ("for=203.0.113.7;host=example.com:8080;secret=a==", "203.0.113.7"),
        ("before=192.0.2.1;for=203.0.113.7", "203.0.113.7"),
    ] {
        check_forwarded("10.0.0.1", &[element], address);
        check_forwarded("10.0.0.1", &[&format!("for=192.0.2.66, {element}")], address);
        check_forwarded("10.0.0.1", &[element, "for=10.0.0.2"], address);
    }
}

#[test]
fn an_element_of_forwarded_that_names_no_address_leaves_the_peers_own() {
    for element in [
        "",
        ",",
        ";",
        "for=unknown",
        "for=\"unknown:80\"",
        "for=_hidden",
        "for=\"_hidden:_port\"",
        "for=\"203.0.113.7:_\"",
        "for=\"203.0.113.7:_x:80\"",
        "for=\"203.0.113.7:99999\"",
        "for=",
        "for=\"\"",
        "for",
        "for 203.0.113.7",
        "for =203.0.113.7",
        "for= 203.0.113.7",
        "for=\" 203.0.113.7\"",
        "for=\"\\\"203.0.113.7\\\"\"",
        "for=203.0.113.7;for=203.0.113.7",
        "for=203.0.113.7;FOR=192.0.2.1",
        "for=203.0.113.7;proto",
        "for=203.0.113.7;host=a b",
        "for=203.0.113.7;host=\"a",
        "for=203.0.113.7;host=\"a\\\"",
        "for=203.0.113.7;host=\"a\"b",
        "for=203.0.113.7;host=a\"b\"",
        "for=203.0.113.7\\",
        "for='203.0.113.7'",
        "for=203.0.113.7\u{e9}",
        "proto=https;by=203.0.113.7",
        "xfor=203.0.113.7",
        "203.0.113.7",
        "for=10.0.0.2",
    ] {
        check_forwarded("10.0.0.1", &[element], "10.0.0.1");
        check_forwarded("10.0.0.1", &["for=192.0.2.66;proto", element, "for=10.0.0.2"], "10.0.0.1");
    }
    check_forwarded("10.0.0.1", &[], "10.0.0.1");
}

#[test]
fn quotes_that_a_client_leaves_open_hide_nobody_behind_another_address() {
    // A line of the proxy's own is not reached by them.
    check_forwarded("10.0.0.1", &["for=192.0.2.66;x=\"", "for=203.0.113.7"], "203.0.113.7");
    check_forwarded("10.0.0.1", &["for=192.0.2.66;x=\"\\", "for=203.0.113.7"], "203.0.113.7");
    // Where the proxy wrote behind them, nobody can tell what is whose.
    check_forwarded("10.0.0.1", &["for=192.0.2.66;x=\", for=203.0.113.7"], "10.0.0.1");
    check_forwarded("10.0.0.1", &["for=192.0.2.66;x=\", for=\"[2001:db8::7]:80\""], "10.0.0.1");
    // In the other header quotes mean nothing.
    check_client("10.0.0.1", &["192.0.2.66\", 203.0.113.7"], "203.0.113.7");
}

#[test]
fn more_than_sixty_four_entries_are_refused() {
    for (header, entry) in
        [(ForwardedIn::XForwardedFor, "203.0.113.7"), (ForwardedIn::Forwarded, "for=203.0.113.7")]
    {
        let list = |length: usize| vec![entry; length].join(", ");
        let client = |lines: &[&str]| client_behind("10.0.0.1", header, lines);
        assert_eq!(client(&[&list(64)]), Ok(ip("203.0.113.7")));
        assert_eq!(client(&[&list(65)]), Err(TooManyProxies));
        assert_eq!(client(&[&list(40), &list(25)]), Err(TooManyProxies));
        assert_eq!(client(&[&",".repeat(64)]), Err(TooManyProxies));
    }
}

#[test]
fn one_address_has_one_budget_however_it_is_written() {
    let gate = Gate::new("limits: [{name: a, per: [client_ip], rate: 2/minute}]");
    let allowed =
        ["1.2.3.4", "::ffff:1.2.3.4", "::ffff:102:304", "[::ffff:102:304]:80"].map(|written| {
            let client = client_of("10.0.0.1", &[written]).unwrap().to_string();
            gate.allows(&[("client_ip", &client)])
        });
    assert_eq!(allowed, [true, true, false, false]);
    assert!(gate.allows(&[("client_ip", "::ffff:1.2.3.5")]), "another address, another budget");
}
