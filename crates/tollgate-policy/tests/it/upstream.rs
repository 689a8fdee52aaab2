//! Where requests are sent.

use tollgate_policy::bounds::{HOST_BYTES_MAX, ROUTE_PATTERNS_MAX, ROUTES_MAX, TARGETS_MAX};
use tollgate_policy::{Policy, Scheme};

use crate::policy;

/// Where a request is sent: the number of the route and its first server, or nowhere.
fn sent(policy: &Policy, host: &str, path: &str) -> String {
    let Some(route) = policy.route(host, path) else { return "nowhere".to_owned() };
    assert!(std::ptr::eq(route, &policy.settings().upstream[route.number()]));
    format!("{} {}", route.number(), route.targets()[0])
}

fn behind(upstream: &str) -> Policy {
    policy(&format!(
        "listen: {{ gateway: 127.0.0.1:0 }}\nupstream: {upstream}\nlimits: [{{ name: it, rate: 5/minute }}]\n"
    ))
}

#[test]
fn a_url_or_a_list_of_them_is_one_route_for_everything() {
    let one = behind("http://127.0.0.1:3000");
    assert_eq!(sent(&one, "any.example.com", "/any"), "0 http://127.0.0.1:3000");
    let several = behind("[http://10.0.0.1:3000, http://10.0.0.2:3000]");
    let targets = several.route("", "/").unwrap().targets();
    let targets: Vec<String> = targets.iter().map(ToString::to_string).collect();
    assert_eq!(targets, ["http://10.0.0.1:3000", "http://10.0.0.2:3000"]);
    assert!(policy("limits: []").route("example.com", "/").is_none());
    assert!(several.only_route().is_some());
    assert!(
        behind("[{ when: { path: /a }, to: http://a }, { to: http://b }]").only_route().is_none()
    );
}

#[test]
fn a_server_has_a_scheme_a_host_and_a_port() {
    let check = |url: &str, scheme: Scheme, host: &str, port: u16| {
        let policy = behind(&format!("\"{url}\""));
        let target = &policy.route("", "/").unwrap().targets()[0];
        assert_eq!((target.scheme(), target.host(), target.port()), (scheme, host, port), "{url}");
    };
    check("http://127.0.0.1:3000", Scheme::Http, "127.0.0.1", 3000);
    check("http://Upstream.Internal", Scheme::Http, "upstream.internal", 80);
    check("https://upstream.internal/", Scheme::Https, "upstream.internal", 443);
    check("https://[2001:DB8:0::1]:8443", Scheme::Https, "2001:db8::1", 8443);
    check("h2c://127.0.0.1:50051", Scheme::H2c, "127.0.0.1", 50051);
    let ipv6 = behind("\"http://[::1]\"");
    assert_eq!(sent(&ipv6, "h", "/"), "0 http://[::1]:80");
}

#[test]
fn the_first_route_that_stands_for_host_and_path_is_taken() {
    let policy = behind(
        "
  - { when: { host: api.example.com, path: /v1/** }, to: http://one }
  - { when: { host: [\"*.example.com\", example.org] }, to: http://two }
  - { when: { path: [/static/*, \"/users/{id}\"] }, to: http://three }
  - { when: { path: /v1/** }, to: http://four }",
    );
    let check = |host: &str, path: &str, expected: &str| {
        assert_eq!(sent(&policy, host, path), expected, "{host} {path}");
    };
    assert_eq!(policy.warnings(), []);
    check("api.example.com", "/v1/chat", "0 http://one:80");
    check("API.example.com.:8000", "/v1", "0 http://one:80");
    check("api.example.com", "/v2", "1 http://two:80");
    check("EXAMPLE.org", "/v1/chat", "1 http://two:80");
    check("example.com", "/users/7", "2 http://three:80");
    check("example.com", "/users/7/posts", "nowhere");
    check("10.0.0.1", "/v1/chat", "3 http://four:80");
    check("", "/", "nowhere");
}

#[test]
fn a_route_stands_for_the_one_form_of_a_path() {
    let policy = policy(
        "listen: { gateway: 127.0.0.1:0 }
upstream: [{ when: { path: /Docs/ }, to: http://docs }]
paths: { case: same }
limits: []
",
    );
    assert_eq!(sent(&policy, "h", "/docs"), "0 http://docs:80");
}

#[test]
fn attributes_that_only_routes_ask_for_are_not_asked_of_requests() {
    let policy = behind("[{ when: { host: h, path: /p }, to: http://one }]");
    assert_eq!(policy.attributes().count(), 0);
}

#[test]
fn a_route_that_is_never_taken_is_warned_of() {
    let check = |first: &str, second: &str, is_taken: bool| {
        let policy = behind(&format!(
            "
  - {{ when: {{ {first} }}, to: http://one }}
  - {{ when: {{ {second} }}, to: http://two }}"
        ));
        let warnings: Vec<String> = policy.warnings().iter().map(ToString::to_string).collect();
        let expected = "policy.yaml:4:5: warning[route-never-taken]: route 2 of upstream is never taken, \
                        because route 1 stands for all that it does; write it before that one";
        let expected = if is_taken { vec![] } else { vec![expected.to_owned()] };
        assert_eq!(warnings, expected, "{first}, {second}");
    };
    for (first, second) in [
        ("", ""),
        ("", "host: example.com, path: /a"),
        ("path: /**", "path: /a/**"),
        ("path: /a/**", "path: [/a, /a/*, \"/a/{b}/c\", /a/**/d]"),
        ("path: [/a, /b/*]", "path: [/a, /b/c], host: example.com"),
        ("host: \"*.example.com\"", "host: [a.example.com, \"*.b.example.com\"]"),
        ("host: example.com", "host: EXAMPLE.com, path: /a"),
    ] {
        check(first, second, false);
    }
    for (first, second) in [
        ("host: example.com", ""),
        ("path: /a/*", "path: /a/**"),
        ("path: /a/*", "path: /a"),
        ("path: /a", "path: [/a, /b]"),
        ("path: /*/x", "path: /a/*"),
        ("host: example.com, path: /a", "host: example.com"),
        ("host: \"*.example.com\"", "host: example.com"),
        ("host: a.example.com", "host: \"*.example.com\""),
    ] {
        check(first, second, true);
    }
}

#[test]
fn routes_as_long_as_a_policy_can_hold_are_read() {
    let long = "/**/a/*/b".repeat(400);
    let routes: String = (1..ROUTES_MAX)
        .map(|number| {
            format!(
                "  - {{ when: {{ path: [/{number}{long}, {long}/{number}] }}, to: http://h }}\n"
            )
        })
        .collect();
    let policy = behind(&format!("\n{routes}  - {{ to: http://last }}"));
    assert_eq!(sent(&policy, "h", "/"), format!("{} http://last:80", ROUTES_MAX - 1));
}

#[test]
fn routes_and_servers_are_bounded() {
    let check = |upstream: &str, sentence: &str| {
        let mistakes = crate::parse(&format!("upstream: {upstream}\nlimits: []")).unwrap_err();
        let told: Vec<&str> = mistakes.iter().map(tollgate_policy::Mistake::sentence).collect();
        assert_eq!(told, [sentence]);
    };
    let routes = "{to: http://a}, ".repeat(ROUTES_MAX + 1);
    check(&format!("[{routes}]"), "upstream: 1001 routes are more than 1000, the most");
    let servers = "http://a, ".repeat(TARGETS_MAX + 1);
    check(&format!("[{servers}]"), "upstream names 101 servers; the most is 100");
    check(&format!("[{{to: [{servers}]}}]"), "upstream[1]: to names 101 servers; the most is 100");
    let hosts = "h, ".repeat(ROUTE_PATTERNS_MAX + 1);
    check(
        &format!("[{{when: {{host: [{hosts}]}}, to: http://a}}]"),
        "upstream[1]: host names 101; the most is 100",
    );
    let long = format!("http://{}", "a".repeat(HOST_BYTES_MAX + 1));
    let mistakes = crate::parse(&format!("upstream: {long}\nlimits: []")).unwrap_err();
    assert!(mistakes.to_string().contains("names no host"), "{mistakes}");
}
