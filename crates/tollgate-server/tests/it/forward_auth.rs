//! Proxies that ask before they let a request through.

use serde_json::{Value, json};
use tollgate_server::Door;

use crate::http::check_spread;
use crate::server::{Answer, Running};

const POLICY: &str = "
limits:
  - { name: login, when: { method: POST, path: /login, host: shop.example }, per: [client_ip], rate: 1/day }
  - { name: busy, when: { path: /busy }, per: [client_ip], concurrency: 1 }
";

fn start() -> Running {
    Running::start(&["http"], POLICY)
}

/// What nginx, Traefik and Caddy send.
fn forwarded(uri: &str, client: &str) -> String {
    format!(
        "X-Forwarded-Method: POST\nX-Forwarded-Uri: {uri}\nX-Forwarded-Host: shop.example\n\
         X-Forwarded-For: {client}"
    )
}

fn ask(running: &Running, target: &str, fields: &str) -> Answer {
    running.ask(Door::Http, &format!("GET {target}\n{fields}"), "")
}

#[test]
fn a_client_is_let_through_and_then_refused_with_a_problem() {
    let running = start();
    let login = forwarded("/login?next=/", "203.0.113.7");
    let answer = ask(&running, "/v1/forward-auth", &login);
    assert_eq!((answer.status, answer.body.as_str()), (200, ""));
    assert_eq!(answer.field("x-ratelimit-remaining"), Some("0"));
    let answer = ask(&running, "/v1/forward-auth", &login);
    assert_eq!(answer.status, 429);
    assert!(answer.field("retry-after").is_some());
    assert_eq!(answer.field("content-type"), Some("application/problem+json"));
    assert_eq!(answer.json()["violated-policies"], json!(["login"]));
    let other = ask(&running, "/v1/forward-auth", &forwarded("/login", "203.0.113.8"));
    assert_eq!(other.status, 200, "another client");
}

#[test]
fn one_path_has_one_budget_however_it_is_written() {
    let running = start();
    let login = ask(&running, "/v1/forward-auth", &forwarded("/login", "203.0.113.7"));
    assert_eq!(login.status, 200);
    for uri in [
        "/%6cogin",
        "//login",
        "/./login",
        "/x/../login",
        "/login?a=b",
        "/login/",
        "/login//",
        "/login/.",
        "/login;a=1",
        "/login%3b",
        "/;/login",
    ] {
        let answer = ask(&running, "/v1/forward-auth", &forwarded(uri, "203.0.113.7"));
        assert_eq!(answer.status, 429, "{uri}");
    }
    for ambiguous in ["/a%2flogin", "/a%5clogin", "/a%00", "login", ""] {
        let answer = ask(&running, "/v1/forward-auth", &forwarded(ambiguous, "203.0.113.7"));
        assert_eq!(answer.status, 400, "{ambiguous:?}");
    }
}

#[test]
fn the_policy_says_what_is_one_path() {
    let running = Running::start(
        &["http"],
        "
paths: { trailing_slash: apart, params: apart, case: same, encoded_slash: keep }
limits: [{ name: path, per: [path, client_ip], rate: 1/day }]
",
    );
    for (uri, status) in [
        ("/login", 200),
        ("/login/", 200),
        ("/login;a=1", 200),
        ("/Login", 429),
        ("/LOGIN/", 429),
        ("/a%2flogin", 200),
        ("/A%2Flogin", 429),
    ] {
        let answer = ask(&running, "/v1/forward-auth", &forwarded(uri, "203.0.113.7"));
        assert_eq!(answer.status, status, "{uri}");
    }
}

#[test]
fn a_host_and_a_method_have_one_budget_however_they_are_written() {
    let policy = "limits: [{ name: each, per: [host, method, client_ip], rate: 1/day }]";
    let running = Running::start(&["http"], policy);
    let status = |method: &str, host: &str| {
        let fields = format!(
            "X-Forwarded-Method: {method}\nX-Forwarded-Uri: /\nX-Forwarded-Host: {host}\n\
             X-Forwarded-For: 203.0.113.7"
        );
        ask(&running, "/v1/forward-auth", &fields).status
    };
    assert_eq!(status("DELETE", "api.example.com"), 200);
    for method in ["DELETE", "delete", "Delete"] {
        for host in ["API.example.com", "api.example.com.", "api.example.com:80"] {
            assert_eq!(status(method, host), 429, "{method} {host}");
        }
        for host in ["api.example.com:81", "api.example.com:00080", "api.example.com:"] {
            assert_eq!(status(method, host), 429, "{method} {host}");
        }
    }
    for host in ["me@api.example.com", "api.example.com:x", "api..example.com", "2001:db8::1"] {
        assert_eq!(status("DELETE", host), 400, "{host}");
    }
    assert_eq!(status("GET", "api.example.com"), 200, "another method");
}

#[test]
fn a_denial_has_the_status_that_the_proxy_can_pass_on() {
    let running = start();
    let login = forwarded("/login", "203.0.113.7");
    ask(&running, "/v1/forward-auth", &login);
    for (query, status) in [("deny_status=403", 403), ("deny_status=401", 401), ("", 429)] {
        let answer = ask(&running, &format!("/v1/forward-auth?{query}"), &login);
        assert_eq!(answer.status, status);
        assert!(answer.field("retry-after").is_some());
    }
    for query in
        ["deny_status=200", "deny_status=x", "deny_status=", "deny_status=403&deny_status=403"]
    {
        let answer = ask(&running, &format!("/v1/forward-auth?{query}"), &login);
        assert_eq!(answer.status, 400, "{query}");
    }
}

#[test]
fn nothing_but_a_denial_takes_the_status_of_denials() {
    let policy = "
tenants: { from: header:x-api-key, file: tenants.yaml, unknown: refuse }
deny: [{ path: /admin }]
limits: [{ name: all, rate: 1/year, cost: { attribute: header:x-cost } }]
";
    let policy = crate::server::with_doors(&["http"], policy);
    let running =
        Running::with_files(&policy, &[("tenants.yaml", "keys: { good: { tenant: a } }")]);
    let status = |path: &str, fields: &str| {
        let fields = format!("{}\n{fields}", forwarded(path, "203.0.113.7"));
        ask(&running, "/v1/forward-auth?deny_status=418", &fields).status
    };
    assert_eq!(status("/", "x-api-key: good\nx-cost: 1"), 200);
    assert_eq!(status("/", "x-api-key: good\nx-cost: 1"), 418);
    assert_eq!(status("/", "x-api-key: good\nx-cost: much"), 400);
    assert_eq!(status("/", "x-api-key: bad\nx-cost: 1"), 401);
    assert_eq!(status("/admin", "x-api-key: good\nx-cost: 1"), 403);
}

#[test]
fn a_store_that_is_full_is_no_denial() {
    let policy = "
store: { memory: { max_bytes: 1MiB } }
limits: [{ name: all, per: [client_ip], rate: 1/year, on_store_failure: deny }]
";
    let running = Running::start(&["http"], policy);
    let is_full = |thousand: u32| {
        let address = |n: u32| std::net::Ipv4Addr::from(0x0a00_0000 + 1_000 * thousand + n);
        let check = |n| json!({"attributes": {"client_ip": address(n).to_string()}});
        let checks: Vec<Value> = (0..1_000).map(check).collect();
        let answer = running.ask(Door::Http, "POST /v1/check/batch", &json!(checks).to_string());
        answer.json().as_array().expect("verdicts").iter().all(|it| it["reason"] == "uncounted")
    };
    assert!((0..1_000).any(is_full), "a megabyte holds fewer than a million keys");
    let fields = forwarded("/", "203.0.113.7");
    let answer = ask(&running, "/v1/forward-auth?deny_status=403", &fields);
    assert_eq!(answer.status, 503, "{}", answer.body);
}

#[test]
fn a_deny_status_that_is_none_is_told_also_while_requests_pass() {
    let running = start();
    let login = forwarded("/login", "203.0.113.7");
    assert_eq!(ask(&running, "/v1/forward-auth?deny_status=2", &login).status, 400);
    assert_eq!(ask(&running, "/v1/forward-auth", &login).status, 200, "and nothing was charged");
}

#[test]
fn a_proxy_that_leaves_something_out_is_told_so() {
    let running = start();
    let all = forwarded("/login", "203.0.113.7");
    for left_out in ["Method", "Uri", "Host", "For"] {
        let name = format!("X-Forwarded-{left_out}");
        let fields: Vec<&str> = all.lines().filter(|line| !line.starts_with(&name)).collect();
        let answer = ask(&running, "/v1/forward-auth", &fields.join("\n"));
        assert_eq!(answer.status, 400, "{name}");
        assert!(answer.body.contains(&name), "{}", answer.body);
    }
    let twice = format!("{all}\nX-Forwarded-Uri: /other");
    assert_eq!(ask(&running, "/v1/forward-auth", &twice).status, 400);
    for (one, joined) in
        [("Method: POST", "Method: GET, POST"), ("Host: shop.example", "Host: evil, shop.example")]
    {
        let joined = all.replace(one, joined);
        let answer = ask(&running, "/v1/forward-auth", &joined);
        assert_eq!(answer.status, 400, "{joined}");
        assert!(answer.body.contains("several values"), "{}", answer.body);
    }
    let comma = ask(&running, "/v1/forward-auth", &forwarded("/a,b?c=d,e", "203.0.113.7"));
    assert_eq!(comma.status, 200, "a comma may be part of a URI");
}

#[test]
fn what_a_client_says_of_itself_is_not_believed() {
    let running = start();
    // The proxy appended the address it saw; what stands before it is the client's own.
    let statuses = ["1.1.1.1, 203.0.113.7", "2.2.2.2, 203.0.113.7", "203.0.113.7"]
        .map(|chain| ask(&running, "/v1/forward-auth", &forwarded("/login", chain)).status);
    assert_eq!(statuses, [200, 429, 429]);
    let long = vec!["127.0.0.1"; 65].join(", ");
    assert_eq!(ask(&running, "/v1/forward-auth", &forwarded("/login", &long)).status, 400);
}

#[test]
fn envoy_sends_the_request_itself_behind_our_path() {
    let running = start();
    let send = |method: &str, uri: &str| {
        let head = format!(
            "{method} /v1/forward-auth{uri}\nhost: shop.example\nx-forwarded-for: 203.0.113.7"
        );
        running.ask(Door::Http, &head, "").status
    };
    assert_eq!(send("GET", "/login"), 200, "only a POST is limited");
    assert_eq!(send("POST", "/login?deny_status=200"), 200);
    assert_eq!(send("POST", "/login?deny_status=200"), 429, "the query is the client's");
}

#[test]
fn a_slot_that_nobody_would_give_back_is_not_taken() {
    let running = start();
    for _ in 0..3 {
        let answer = ask(&running, "/v1/forward-auth", &forwarded("/busy", "203.0.113.7"));
        assert_eq!(answer.status, 200);
    }
}

#[test]
fn a_client_that_wants_text_gets_text() {
    let running = start();
    let login = forwarded("/login", "203.0.113.7");
    ask(&running, "/v1/forward-auth", &login);
    let answer = ask(&running, "/v1/forward-auth", &format!("{login}\naccept: text/plain"));
    assert_eq!(answer.field("content-type"), Some("text/plain; charset=utf-8"));
    assert!(serde_json::from_str::<Value>(&answer.body).is_err());
}

#[test]
fn only_its_own_path_and_what_is_behind_it_is_for_proxies() {
    let running = start();
    for path in ["/v1/forward-authentic", "/v1/forward-auth.html", "/v1/forward-auth;a"] {
        assert_eq!(ask(&running, path, &forwarded("/", "203.0.113.7")).status, 404, "{path}");
    }
    for path in ["/v1/forward-auth", "/v1/forward-auth?a=b", "/v1/forward-auth/a"] {
        assert_eq!(ask(&running, path, &forwarded("/", "203.0.113.7")).status, 200, "{path}");
    }
}

#[test]
fn a_wait_belongs_to_the_client_also_where_all_are_counted_together() {
    let running =
        Running::start(&["http"], "limits: [{ name: all, rate: 1/year, algorithm: token_bucket }]");
    let wait = |client: &str| {
        let answer = ask(&running, "/v1/forward-auth", &forwarded("/", client));
        answer.field("retry-after-ms").map(|wait| wait.parse().expect("milliseconds"))
    };
    assert_eq!(wait("203.0.113.1"), None, "the first is let through");
    let clients = ["203.0.113.1", "203.0.113.2", "203.0.113.3"];
    check_spread(clients.map(|client| wait(client).expect("a wait")));
}
