//! Who is asking and for what: addresses behind proxies, paths, and the attributes of a request.

use std::borrow::Cow;
use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue};
use tollgate::http::client::{self, TooManyProxies};
use tollgate::http::path::{Ambiguous, resolve, tidy};
use tollgate::http::{Sent, extract, query};
use tollgate::{Cidr, Missing, Paths, Policy, Request};

use crate::Gate;

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn headers(lines: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        let name: HeaderName = name.parse().expect("a name");
        headers.append(name, HeaderValue::from_bytes(value.as_bytes()).expect("a value"));
    }
    headers
}

/// Whose request it is, behind proxies in 10.0.0.0/8 and 2001:db8:ffff::/48.
fn client_of(peer: &str, forwarded: &[&str]) -> Result<IpAddr, TooManyProxies> {
    let trusted: [Cidr; 2] =
        ["10.0.0.0/8", "2001:db8:ffff::/48"].map(|block| block.parse().expect("a block"));
    let lines: Vec<(&str, &str)> =
        forwarded.iter().map(|line| ("x-forwarded-for", *line)).collect();
    let trusts = |address| trusted.iter().any(|block| block.contains(address));
    client::address(ip(peer), &headers(&lines), trusts)
}

fn check_client(peer: &str, forwarded: &[&str], client: &str) {
    assert_eq!(client_of(peer, forwarded), Ok(ip(client)), "{peer} {forwarded:?}");
}

// Addresses.

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
        ("forwarded", "for=192.0.2.1"),
        ("x-real-ip", "192.0.2.2"),
        ("true-client-ip", "192.0.2.3"),
        ("x-forwarded-for", "203.0.113.7"),
    ];
    let client =
        client::address(ip("10.0.0.1"), &headers(&lines), |address| address == ip("10.0.0.1"));
    assert_eq!(client, Ok(ip("203.0.113.7")));
    let client = client::address(ip("10.0.0.1"), &headers(&lines[..3]), |_| true);
    assert_eq!(client, Ok(ip("10.0.0.1")));
}

#[test]
fn more_than_sixty_four_entries_are_refused() {
    let list = |length: usize| vec!["203.0.113.7"; length].join(", ");
    check_client("10.0.0.1", &[&list(64)], "203.0.113.7");
    assert_eq!(client_of("10.0.0.1", &[&list(65)]), Err(TooManyProxies));
    assert_eq!(client_of("10.0.0.1", &[&list(40), &list(25)]), Err(TooManyProxies));
    assert_eq!(client_of("10.0.0.1", &[&",".repeat(64)]), Err(TooManyProxies));
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

// Paths.

/// What a policy says of paths.
fn paths(text: &str) -> Paths {
    let text = format!("paths: {text}\nlimits: []");
    let policy = Policy::parse("policy.yaml", &text, &mut |_| Err(String::new()));
    policy.unwrap_or_else(|mistakes| panic!("{mistakes}")).settings().paths
}

#[test]
fn a_path_has_one_form() {
    let paths = paths("{ trailing_slash: apart, params: apart }");
    for (raw, resolved) in [
        ("/", "/"),
        ("/login", "/login"),
        ("/login/", "/login/"),
        ("/login;a=1", "/login;a=1"),
        ("*", "*"),
        ("/%6cogin", "/login"),
        ("/%6Cogin", "/login"),
        ("/%6c%6f%67%69%6e", "/login"),
        ("//login", "/login"),
        ("///login//", "/login/"),
        ("/./login", "/login"),
        ("/login/.", "/login/"),
        ("/x/../login", "/login"),
        ("/x/%2e%2E/login", "/login"),
        ("/x/.%2e/login", "/login"),
        ("/%2e/login", "/login"),
        ("/../../login", "/login"),
        ("/..", "/"),
        ("/x/..", "/"),
        ("/x/y/..", "/x/"),
        ("/x//../login", "/login"),
        ("/x/y/../../z/./../login", "/login"),
        ("/.well-known/acme", "/.well-known/acme"),
        ("/...", "/..."),
        ("/..x/y", "/..x/y"),
        ("/x./y../z", "/x./y../z"),
        ("/a%20b", "/a%20b"),
        ("/caf%c3%a9", "/caf%C3%A9"),
        ("/%e2%82%ac%f0%9f%98%80", "/%E2%82%AC%F0%9F%98%80"),
        ("/a%3ab%40c%2bd%21", "/a:b@c+d!"),
        ("/a%3bb", "/a%3Bb"),
        ("/a%3fb%23c", "/a%3Fb%23c"),
        ("/%252f", "/%252f"),
        ("/%25%32%66", "/%252f"),
        ("/a{b}|\"<>^`", "/a%7Bb%7D%7C%22%3C%3E%5E%60"),
        ("/a%0ab%7f", "/a%0Ab%7F"),
        ("/;a/login", "/;a/login"),
        ("/%3ba/login", "/%3Ba/login"),
    ] {
        assert_eq!(resolve(raw, &paths).as_deref(), Ok(resolved), "{raw}");
        assert_eq!(resolve(resolved, &paths).as_deref(), Ok(resolved), "{resolved} stays as it is");
    }
}

#[test]
fn a_path_that_is_read_in_two_ways_is_refused() {
    let paths = Paths::default();
    for (raw, why) in [
        ("", Ambiguous::Relative),
        ("login", Ambiguous::Relative),
        ("http://example.com/login", Ambiguous::Relative),
        ("/a%2fb", Ambiguous::Slash),
        ("/a%2Fb", Ambiguous::Slash),
        ("/..%2flogin", Ambiguous::Slash),
        ("/a%5cb", Ambiguous::Slash),
        ("/a%5C..%5Cb", Ambiguous::Slash),
        ("/a\\b", Ambiguous::Slash),
        ("/login%00", Ambiguous::Nul),
        ("/login%00.png", Ambiguous::Nul),
        ("/%", Ambiguous::BadEncoding),
        ("/%4", Ambiguous::BadEncoding),
        ("/%zz", Ambiguous::BadEncoding),
        ("/%u002f", Ambiguous::BadEncoding),
        ("/%+1a", Ambiguous::BadEncoding),
        ("/%c0%af", Ambiguous::BadEncoding),
        ("/%e0%80%af", Ambiguous::BadEncoding),
        ("/%f0%80%80%af", Ambiguous::BadEncoding),
        ("/%c0%ae%c0%ae/login", Ambiguous::BadEncoding),
        ("/%ed%a0%80", Ambiguous::BadEncoding),
        ("/%c3/%a9", Ambiguous::BadEncoding),
        ("/%c3a", Ambiguous::BadEncoding),
        ("/caf%e9", Ambiguous::BadEncoding),
        ("/caf\u{e9}", Ambiguous::NotInAPath),
        ("/a b", Ambiguous::NotInAPath),
        ("/a\0", Ambiguous::NotInAPath),
        ("/a\r\nb", Ambiguous::NotInAPath),
        ("/a\x7f", Ambiguous::NotInAPath),
        ("/a?b", Ambiguous::NotInAPath),
        ("/a#b", Ambiguous::NotInAPath),
        ("/x/..;/login", Ambiguous::HiddenDots),
        ("/x/..;a=1/login", Ambiguous::HiddenDots),
        ("/x/..%3b/login", Ambiguous::HiddenDots),
        ("/.;/login", Ambiguous::HiddenDots),
        ("/%2e%2e;/login", Ambiguous::HiddenDots),
        ("/x/;/../login", Ambiguous::HiddenDots),
        ("/x/;a/y/../../login", Ambiguous::HiddenDots),
        ("/x/%3b/../login", Ambiguous::HiddenDots),
        ("/%3b/login", Ambiguous::EncodedParameters),
        ("/search/%3Bword", Ambiguous::EncodedParameters),
    ] {
        assert_eq!(resolve(raw, &paths), Err(why), "{raw:?}");
    }
}

#[test]
fn every_way_to_write_a_path_has_the_budget_of_that_path() {
    for pattern in ["/login", "/login/", "/login;a=1"] {
        let policy = format!("limits: [{{name: a, when: {{path: {pattern}}}, rate: 3/minute}}]");
        let gate = Gate::new(&policy);
        let paths = gate.limiter.pin().policy().settings().paths;
        let ways = [
            "/login",
            "/%6cogin",
            "//login",
            "/./login",
            "/x/../login",
            "/%2e//x/..//%6C%6fgin",
            "/login/",
            "/login//",
            "/login/.",
            "/login;a=1",
            "/login;",
            "/login%3b",
            "/login%3Ba/;b",
            "/;/login",
            "/;a=1/login;b/",
        ];
        let allowed = ways.map(|raw| gate.allows(&[("path", &resolve(raw, &paths).unwrap())]));
        assert_eq!(allowed.iter().filter(|it| **it).count(), 3, "{pattern} {allowed:?}");
        assert!(gate.allows(&[("path", &resolve("/Login", &paths).unwrap())]), "it is another");
    }
}

#[test]
fn a_policy_says_what_is_one_path() {
    let none = "{ trailing_slash: apart, params: apart, case: apart }";
    for (raw, by_default, cases, slashes_apart, params_apart, apart) in [
        ("/", "/", "/", "/", "/", "/"),
        ("/Login", "/Login", "/login", "/Login", "/Login", "/Login"),
        ("/login/", "/login", "/login", "/login/", "/login", "/login/"),
        ("/login;A=1", "/login", "/login", "/login", "/login;A=1", "/login;A=1"),
        ("/login;a/", "/login", "/login", "/login/", "/login;a", "/login;a/"),
        ("/login/;a", "/login", "/login", "/login/", "/login/;a", "/login/;a"),
        ("/a;b/C;d/e", "/a/C/e", "/a/c/e", "/a/C/e", "/a;b/C;d/e", "/a;b/C;d/e"),
        ("/;jsessionid=1", "/", "/", "/", "/;jsessionid=1", "/;jsessionid=1"),
        ("/a%3bB", "/a", "/a", "/a", "/a%3BB", "/a%3BB"),
        ("/%c3%89", "/%C3%89", "/%c3%89", "/%C3%89", "/%C3%89", "/%C3%89"),
        ("*", "*", "*", "*", "*", "*"),
    ] {
        for (options, form) in [
            ("{}", by_default),
            ("{ case: same }", cases),
            ("{ trailing_slash: apart }", slashes_apart),
            ("{ params: apart }", params_apart),
            (none, apart),
        ] {
            let paths = paths(options);
            assert_eq!(resolve(raw, &paths).as_deref(), Ok(form), "{raw} {options}");
            assert_eq!(resolve(form, &paths).as_deref(), Ok(form), "{form} {options}");
        }
    }
}

#[test]
fn encoded_slashes_are_kept_inside_a_segment_if_the_policy_says_so() {
    let paths = paths("{ encoded_slash: keep }");
    for (raw, form) in [
        ("/a%2fb", "/a%2Fb"),
        ("/a%5cb/", "/a%5Cb"),
        ("/files/x%2f%2Fy", "/files/x%2F%2Fy"),
        ("/x%2fy/../login", "/login"),
        ("/a%252fb", "/a%252fb"),
    ] {
        assert_eq!(resolve(raw, &paths).as_deref(), Ok(form), "{raw}");
    }
    for (raw, why) in [
        ("/a\\b", Ambiguous::Slash),
        ("/a%2f..%2fb", Ambiguous::HiddenDots),
        ("/..%2flogin", Ambiguous::HiddenDots),
        ("/a%5c%2e%2e", Ambiguous::HiddenDots),
        ("/a%2f.;x", Ambiguous::HiddenDots),
        ("/a%2f%00", Ambiguous::Nul),
        ("/%c0%af", Ambiguous::BadEncoding),
    ] {
        assert_eq!(resolve(raw, &paths), Err(why), "{raw}");
    }
    let gate = Gate::new("limits: [{name: a, when: {path: '/files/*'}, rate: 1/minute}]");
    let allowed = ["/files/x%2fy", "/files/z"]
        .map(|raw| gate.allows(&[("path", &resolve(raw, &paths).unwrap())]));
    assert_eq!(allowed, [true, false]);
}

#[test]
fn whatever_the_bytes_a_path_is_resolved_once_and_for_all_or_refused() {
    let settings = ["{}", "{ params: apart, trailing_slash: apart }", "{ encoded_slash: keep }"];
    let settings = settings.map(paths);
    let pieces = ["/", "a", ".", "..", ";", "%2e", "%41", "%c3%a9", "%3B", "//", "%2F", "~"];
    let mut number = 0_usize;
    while number < pieces.len().pow(5) {
        let (mut rest, mut raw) = (number, String::from("/"));
        for _ in 0..5 {
            raw.push_str(pieces[rest % pieces.len()]);
            rest /= pieces.len();
        }
        let paths = &settings[number % settings.len()];
        let resolved = resolve(&raw, paths);
        match tidy(&raw, paths) {
            Err(why) => assert_eq!(resolved, Err(why), "{raw}"),
            Ok(sent_on) => {
                assert_eq!(tidy(&sent_on, paths).as_deref(), Ok(&*sent_on), "{raw}");
                assert_eq!(resolve(&sent_on, paths), resolved, "{raw}");
                assert_eq!(sent_on == raw, matches!(sent_on, Cow::Borrowed(_)), "{raw}");
            }
        }
        if let Ok(resolved) = resolved {
            assert_eq!(resolve(&resolved, paths).as_deref(), Ok(&*resolved), "{raw}");
            let folders = resolved[1..].split('/').rev().skip(1);
            assert!(
                resolved.starts_with('/') && folders.into_iter().all(|it| !it.is_empty()),
                "{raw}"
            );
            assert!(resolved.split('/').all(|segment| segment != "." && segment != ".."), "{raw}");
        }
        number += 7;
    }
}

#[test]
fn a_path_is_sent_on_as_it_was_judged_with_all_that_was_only_folded_together() {
    for options in ["{}", "{ trailing_slash: apart, params: apart }", "{ case: same }"] {
        let paths = paths(options);
        for (raw, sent_on) in [
            ("*", "*"),
            ("/", "/"),
            ("/%6cogin", "/login"),
            ("//login", "/login"),
            ("/./login", "/login"),
            ("/x/../login", "/login"),
            ("/login/", "/login/"),
            ("/login//", "/login/"),
            ("/login;a=1", "/login;a=1"),
            ("/x/../%4Cogin;A=%42/", "/Login;A=B/"),
            ("/login%3ba", "/login%3Ba"),
            ("/;jsessionid=1", "/;jsessionid=1"),
            ("/caf%c3%a9", "/caf%C3%A9"),
            ("/caf%C3%A9", "/caf%C3%A9"),
        ] {
            assert_eq!(tidy(raw, &paths).as_deref(), Ok(sent_on), "{raw} {options}");
        }
    }
}

// Attributes.

/// A request for `/login` of one client.
fn sent<'r>(headers: &'r HeaderMap, query: Option<&'r str>) -> Sent<'r> {
    Sent {
        method: "POST",
        path: "/login",
        query,
        host: Some("example.com"),
        headers,
        client_ip: ip("::ffff:203.0.113.7"),
    }
}

/// What is found of a request, as text.
fn found(wanted: &[&str], headers: &HeaderMap, query: &str) -> Result<Vec<String>, String> {
    let mut room = b"left over".to_vec();
    let sent = sent(headers, Some(query));
    let attributes = extract(wanted.iter().copied(), &sent, &mut room);
    let attributes = attributes.map_err(|repeated| repeated.to_string())?;
    let text = |(name, value): &(&str, &[u8])| format!("{name}={}", value.escape_ascii());
    Ok(attributes.iter().map(text).collect())
}

#[test]
fn the_attributes_that_a_policy_asks_about_are_found() {
    let headers = headers(&[
        ("X-Api-Key", "s3cret"),
        ("cookie", "theme=dark; session=abc=def ;last="),
        ("x-empty", ""),
    ]);
    let wanted = [
        "method",
        "path",
        "host",
        "client_ip",
        "header:x-api-key",
        "header:x-empty",
        "header:x-none",
        "query:q",
        "query:flag",
        "query:none",
        "cookie:session",
        "cookie:last",
        "cookie:heme",
        "tenant",
        "what:ever",
    ];
    assert_eq!(
        found(&wanted, &headers, "q=a%26b+c&flag&x=1").unwrap(),
        [
            "method=POST",
            "path=/login",
            "host=example.com",
            "client_ip=203.0.113.7",
            "header:x-api-key=s3cret",
            "header:x-empty=",
            "query:q=a&b c",
            "query:flag=",
            "cookie:session=abc=def",
            "cookie:last=",
        ]
    );
}

#[test]
fn a_method_is_counted_in_capitals() {
    let gate = Gate::new("limits: [{name: a, per: [method], rate: 2/minute}]");
    let allowed = ["DELETE", "delete", "Delete", "dELETE"].map(|method| {
        let no_headers = HeaderMap::new();
        let sent = Sent { method, ..sent(&no_headers, None) };
        let mut room = Vec::new();
        let attributes = extract(["method"].into_iter(), &sent, &mut room).unwrap();
        assert_eq!(attributes.as_slice(), [("method", b"DELETE" as &[u8])]);
        gate.limiter.check(&Request::new(&attributes)).is_allowed()
    });
    assert_eq!(allowed, [true, true, false, false]);
}

/// The host that is found of a request, as text.
fn host_of(host: &str) -> Result<String, String> {
    let no_headers = HeaderMap::new();
    let sent = Sent { host: Some(host), ..sent(&no_headers, None) };
    let mut room = Vec::new();
    let attributes = extract(["host"].into_iter(), &sent, &mut room);
    let attributes = attributes.map_err(|error| error.to_string())?;
    Ok(attributes[0].1.escape_ascii().to_string())
}

#[test]
fn a_host_has_one_form() {
    for (sent, host) in [
        ("api.example.com", "api.example.com"),
        ("API.example.com", "api.example.com"),
        ("api.example.com.", "api.example.com"),
        ("api.example.com:80", "api.example.com"),
        ("api.example.com:81", "api.example.com"),
        ("api.example.com:00080", "api.example.com"),
        ("api.example.com:", "api.example.com"),
        ("Api.Example.Com.:443", "api.example.com"),
        ("my_service", "my_service"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("203.0.113.7:80", "203.0.113.7"),
        ("[2001:DB8:0:0::1]", "[2001:db8::1]"),
        ("[2001:db8::1]:8080", "[2001:db8::1]"),
        ("[2001:db8::1]:", "[2001:db8::1]"),
        ("[::ffff:203.0.113.7]", "[::ffff:203.0.113.7]"),
    ] {
        assert_eq!(host_of(sent).as_deref(), Ok(host), "{sent}");
    }
}

#[test]
fn what_is_no_host_is_refused() {
    for sent in [
        "",
        ".",
        ":80",
        "a..b",
        "a.b..",
        ".a",
        "a:b",
        "a:80:80",
        "a:+80",
        "a:-1",
        "a:65536",
        "a:8 0",
        "user@example.com",
        "user:1@example.com",
        "a/b",
        "a?b",
        "a%2eb",
        "a b",
        " a",
        "a\0",
        "a\r\nb",
        "a,b",
        "caf\u{e9}.example",
        "2001:db8::1",
        "[2001:db8::1",
        "2001:db8::1]",
        "[]",
        "[2001:db8::1]x",
        "[2001:db8::1].",
        "[2001:db8::1]:x",
        "[203.0.113.7]",
        "[fe80::1%25eth0]",
        "[v1.a]",
    ] {
        let told = "the host is not a name or an address, with or without a port";
        assert_eq!(host_of(sent).unwrap_err(), told, "{sent:?}");
    }
    let no_headers = HeaderMap::new();
    let sent = Sent { host: Some("a b"), ..sent(&no_headers, None) };
    assert!(extract(["path"].into_iter(), &sent, &mut Vec::new()).is_ok(), "nobody asked");
}

#[test]
fn what_the_policy_asks_about_and_is_sent_twice_is_refused() {
    let twice = headers(&[
        ("x-api-key", "mine"),
        ("x-api-key", "yours"),
        ("cookie", "session=1; theme=dark"),
        ("cookie", "session=2"),
    ]);
    let refused = |name| found(&[name], &twice, "q=1&%71=2").unwrap_err();
    assert_eq!(refused("header:x-api-key"), "the header \"x-api-key\" is sent more than once");
    assert_eq!(refused("query:q"), "the query parameter \"q\" is sent more than once");
    assert_eq!(refused("cookie:session"), "the cookie \"session\" is sent more than once");
    assert_eq!(found(&["cookie:theme"], &twice, "").unwrap(), ["cookie:theme=dark"]);
    assert_eq!(found(&["method"], &twice, "q=1&q=2").unwrap(), ["method=POST"], "nobody asked");
}

#[test]
fn a_name_of_a_header_that_cannot_be_one_is_simply_not_there() {
    assert_eq!(found(&["header:not a name", "header:"], &HeaderMap::new(), "").unwrap(), [""; 0]);
}

#[test]
fn leaving_out_the_header_a_limit_counts_by_is_no_way_around_it() {
    let gate = Gate::new("limits: [{name: a, per: ['header:x-api-key'], rate: 3/minute}]");
    let no_headers = HeaderMap::new();
    let mut room = Vec::new();
    let allowed = (0..9).filter(|_| {
        let pinned = gate.limiter.pin();
        let sent = sent(&no_headers, None);
        let attributes = extract(pinned.policy().attributes(), &sent, &mut room).unwrap();
        let request = Request { missing: Missing::Shared, ..Request::new(&attributes) };
        pinned.ask(&request).wait().is_allowed()
    });
    assert_eq!(allowed.count(), 3);
}

#[test]
fn queries_are_read_as_forms_write_them() {
    let pairs = |text: &str| -> Vec<String> {
        let pairs = query::pairs(text);
        pairs
            .map(|(name, value)| format!("{}={}", name.escape_ascii(), value.escape_ascii()))
            .collect()
    };
    assert_eq!(pairs(""), [""; 0]);
    assert_eq!(pairs("&&"), [""; 0]);
    assert_eq!(pairs("a=1&b=2"), ["a=1", "b=2"]);
    assert_eq!(pairs("a&=1&b="), ["a=", "=1", "b="]);
    assert_eq!(pairs("a=b=c"), ["a=b=c"]);
    assert_eq!(pairs("%61+b=%2B%20+"), ["a b=+  "]);
    assert_eq!(pairs("a=%&b=%4&c=%zz&d=%00%ff"), ["a=%", "b=%4", "c=%zz", "d=\\x00\\xff"]);
}
