//! Who is asking and for what: addresses behind proxies, paths, and the attributes of a request.

mod addresses;
mod paths;

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue};
use tollgate::http::{Sent, extract, query};
use tollgate::{Missing, Request};

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
