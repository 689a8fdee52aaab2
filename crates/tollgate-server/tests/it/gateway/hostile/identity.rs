//! Whose request it is, and for what, however it is written.

use std::net::TcpListener;

use crate::gateway::Gateway;
use crate::gateway::client::Answer;
use crate::gateway::upstream::Upstream;

/// The settings of a policy that counts requests by address.
fn by_address(settings: &str) -> String {
    format!(
        "{settings}\nlimits: [{{name: a, per: [client_ip], rate: 1000/hour, algorithm: sliding_log}}]"
    )
}

/// Asks with each head, and tells what each leaves of its budget.
fn left(gateway: &Gateway, heads: &[&str]) -> Vec<u64> {
    heads.iter().map(|head| gateway.ask(head).remaining().expect("it is told")).collect()
}

/// The only request since the last that was looked at.
fn passed_on(gateway: &Gateway) -> crate::gateway::upstream::Request {
    let mut requests = gateway.upstream.take_requests();
    assert_eq!(requests.len(), 1, "{requests:?}");
    requests.remove(0)
}

#[test]
fn what_strangers_say_of_themselves_is_not_believed() {
    let gateway = Gateway::start(&by_address("client_ip: {trusted_proxies: [10.0.0.0/8]}"));
    let heads = [
        "GET /\nX-Forwarded-For: 203.0.113.7",
        "GET /\nX-Forwarded-For: 10.0.0.1, 203.0.113.8",
        "GET /\nX-Forwarded-For: 203.0.113.9\nX-Forwarded-For: 203.0.113.10",
        "GET /\nForwarded: for=203.0.113.7",
        "GET /\nX-Real-IP: 203.0.113.7\nTrue-Client-IP: 203.0.113.7\nCF-Connecting-IP: 203.0.113.7",
        "GET /",
    ];
    assert_eq!(left(&gateway, &heads), [999, 998, 997, 996, 995, 994]);
    for request in gateway.upstream.requests() {
        assert_eq!(request.field("x-forwarded-for"), Some("127.0.0.1"));
        assert_eq!(request.field("forwarded"), Some("for=127.0.0.1;host=\"a\";proto=http"));
    }
}

#[test]
fn a_trusted_proxy_is_believed_as_far_as_it_saw() {
    let gateway = Gateway::start(&by_address("client_ip: {trusted_proxies: [127.0.0.0/8]}"));
    let heads = [
        "GET /\nX-Forwarded-For: 203.0.113.7",
        "GET /\nX-Forwarded-For: 198.51.100.1, 203.0.113.7",
        "GET /\nX-Forwarded-For: 198.51.100.2, 203.0.113.7, 127.0.0.2",
        "GET /\nX-Forwarded-For: 198.51.100.3\nX-Forwarded-For: 203.0.113.7:4711",
        "GET /\nX-Forwarded-For: ::ffff:203.0.113.7",
        "GET /\nX-Forwarded-For: [::ffff:cb00:7107]:80",
    ];
    assert_eq!(left(&gateway, &heads), [999, 998, 997, 996, 995, 994], "all are one client's");
    // Nobody can be told apart by these: they are the proxy's own.
    let heads = [
        "GET /",
        "GET /\nX-Forwarded-For: 127.0.0.3",
        "GET /\nX-Forwarded-For: 203.0.113.7, unknown",
        "GET /\nX-Forwarded-For: 203.0.113.7,",
        "GET /\nForwarded: for=203.0.113.7",
    ];
    assert_eq!(left(&gateway, &heads), [999, 998, 997, 996, 995]);
    let many = vec!["203.0.113.7"; 65].join(", ");
    assert_eq!(gateway.ask(&format!("GET /\nX-Forwarded-For: {many}")).status, 400);
}

#[test]
fn only_the_header_that_the_policy_names_is_read() {
    let settings = "client_ip: {trusted_proxies: [127.0.0.1], header: forwarded}";
    let gateway = Gateway::start(&by_address(settings));
    let heads = [
        "GET /\nForwarded: for=203.0.113.7",
        "GET /\nForwarded: for=198.51.100.1, For=\"203.0.113.7:80\";proto=https",
        "GET /\nForwarded: for=203.0.113.7\nX-Forwarded-For: 203.0.113.8",
    ];
    assert_eq!(left(&gateway, &heads), [999, 998, 997]);
    let heads = [
        "GET /\nX-Forwarded-For: 203.0.113.8",
        "GET /\nForwarded: for=_hidden",
        "GET /\nForwarded: for=203.0.113.8;for=203.0.113.9",
    ];
    assert_eq!(left(&gateway, &heads), [999, 998, 997], "the proxy's own");
}

#[test]
fn a_client_has_one_budget_for_all_addresses_of_its_prefix() {
    let gateway = Gateway::start(&by_address("client_ip: {trusted_proxies: [127.0.0.1]}"));
    let heads = [
        "GET /\nX-Forwarded-For: 2001:db8:0:1200::1",
        "GET /\nX-Forwarded-For: 2001:db8:0:1200:ffff::2",
        "GET /\nX-Forwarded-For: 2001:db8:0:12ff::3",
        "GET /\nX-Forwarded-For: 2001:db8:0:1300::1",
    ];
    assert_eq!(left(&gateway, &heads), [999, 998, 997, 999]);
}

const PROXIED: &str = "client_ip: {trusted_proxies: [127.0.0.1], proxy_protocol: on}";
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// A header of version 2 for a connection over TCP: of IPv4 if the source has four bytes.
fn version_2(source: &[u8]) -> Vec<u8> {
    let family = if source.len() == 4 { 0x11 } else { 0x21 };
    let addresses = [source, &vec![0; source.len()], &[0, 80, 0, 80]].concat();
    let length = u8::try_from(addresses.len()).expect("a few bytes");
    [SIGNATURE, &[0x21, family, 0, length], &addresses].concat()
}

/// Asks over a connection that begins with these bytes; nothing if it is closed without an answer.
fn ask_after(gateway: &Gateway, header: &[u8]) -> Option<Answer> {
    let mut client = gateway.connect();
    let request = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    client.try_send([header, request].concat());
    client.next()
}

#[test]
fn a_proxy_says_before_anything_else_whose_connection_it_is() {
    let gateway = Gateway::start(&by_address(PROXIED));
    let client = [203, 0, 113, 7];
    let own = [SIGNATURE, &[0x20, 0, 0, 0]].concat();
    let cases: [(&[u8], &str, u64); 8] = [
        (b"PROXY TCP4 203.0.113.7 10.0.0.1 5000 80\r\n", "203.0.113.7", 999),
        (b"PROXY TCP4 203.0.113.8 10.0.0.1 5000 80\r\n", "203.0.113.8", 999),
        (&version_2(&client), "203.0.113.7", 998),
        (b"PROXY TCP6 ::ffff:203.0.113.7 ::1 5000 80\r\n", "203.0.113.7", 997),
        (b"PROXY TCP6 2001:db8::1 ::1 5000 80\r\n", "2001:db8::1", 999),
        (
            &version_2(&[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0xff, 0, 0, 0, 0, 0, 0, 0, 1]),
            "2001:db8:0:ff::1",
            998,
        ),
        (b"PROXY UNKNOWN\r\n", "127.0.0.1", 999),
        (&own, "127.0.0.1", 998),
    ];
    for (header, source, left) in cases {
        let answer = ask_after(&gateway, header).expect("it is answered");
        assert_eq!((answer.status, answer.remaining()), (200, Some(left)), "{source}");
        assert_eq!(passed_on(&gateway).field("x-forwarded-for"), Some(source));
    }
}

#[test]
fn a_proxy_that_does_not_say_so_is_not_answered() {
    let gateway = Gateway::start(&by_address(PROXIED));
    let long = [b"PROXY ".to_vec(), vec![b'x'; 200]].concat();
    let headers: [&[u8]; 8] = [
        b"",
        b"PROXY TCP4 203.0.113.7\r\n",
        b"PROXY TCP4 203.0.113.777 10.0.0.1 5000 80\r\n",
        b"proxy TCP4 203.0.113.7 10.0.0.1 5000 80\r\n",
        b"PROXY TCP4 203.0.113.7 10.0.0.1 5000 80\n",
        b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\x0c",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x01\0",
        &long,
    ];
    for header in headers {
        assert!(ask_after(&gateway, header).is_none(), "{}", header.escape_ascii());
    }
    assert_eq!(gateway.upstream.requests(), []);
}

#[test]
fn a_stranger_cannot_say_whose_connection_it_is() {
    let settings = "client_ip: {trusted_proxies: [10.0.0.1], proxy_protocol: on}";
    let gateway = Gateway::start(&by_address(settings));
    let headers: [&[u8]; 2] =
        [b"PROXY TCP4 203.0.113.7 10.0.0.1 5000 80\r\n", &version_2(&[203, 0, 113, 7])];
    for header in headers {
        assert_ne!(ask_after(&gateway, header).map(|it| it.status), Some(200));
    }
    assert_eq!(gateway.upstream.requests(), []);
    assert_eq!(left(&gateway, &["GET /"]), [999], "no request of its was judged");
}

const LOGIN: &str =
    "limits: [{name: a, when: {path: /login}, rate: 1000/hour, algorithm: sliding_log}]";

#[test]
fn a_path_has_one_budget_and_is_passed_on_as_it_was_judged() {
    let gateway = Gateway::start(LOGIN);
    let paths = [
        ("/login", "/login"),
        ("/%6cogin", "/login"),
        ("/%6Cogin", "/login"),
        ("//login", "/login"),
        ("/./login", "/login"),
        ("/x/../login", "/login"),
        ("/x/%2e%2e/login", "/login"),
        ("/../../login", "/login"),
        ("/%2e/login?a=%6c//b", "/login?a=%6c//b"),
        ("/login/", "/login/"),
        ("/login;a=1", "/login;a=1"),
        ("/x/..//%6cogin;b/", "/login;b/"),
        ("http://a/login", "/login"),
        ("http://a//%6cogin", "/login"),
    ];
    for (number, (path, sent)) in paths.into_iter().enumerate() {
        let answer = gateway.ask(&format!("GET {path}"));
        let left = 999 - number as u64;
        assert_eq!((answer.status, answer.remaining()), (200, Some(left)), "{path}");
        assert_eq!(passed_on(&gateway).target, sent, "{path}");
    }
    let answer = gateway.ask("GET /Login");
    assert_eq!((answer.status, answer.remaining()), (200, None), "another path");
}

#[test]
fn a_path_that_servers_read_in_different_ways_is_refused() {
    let gateway = Gateway::start(LOGIN);
    for path in [
        "/x%2flogin",
        "/x%2Flogin",
        "/x%5clogin",
        "/x\\login",
        "/login%00",
        "/login%00.png",
        "/%c0%afx",
        "/%e0%80%af",
        "/%c0%ae%c0%ae/login",
        "/%ff",
        "/%",
        "/%6",
        "/%zz",
        "/%u006cogin",
        "/\u{fc}",
        "login",
        "",
    ] {
        let answer = gateway.ask(&format!("GET {path}"));
        assert_eq!(answer.status, 400, "{path}");
    }
    assert_eq!(gateway.upstream.requests(), []);
    let gateway = Gateway::start(&format!("paths: {{encoded_slash: keep}}\n{LOGIN}"));
    assert_eq!(gateway.ask("GET /x%2flogin").status, 200);
    assert_eq!(passed_on(&gateway).target, "/x%2Flogin", "one segment");
}

#[test]
fn no_method_is_no_limit() {
    let gateway = Gateway::start(
        "limits: [{name: a, when: {method: [GET, POST]}, rate: 1000/hour, algorithm: sliding_log}, \
                  {name: b, when: {method: DELETE}, rate: 0/hour}]",
    );
    let heads = [
        "GET /",
        "get /",
        "gEt /",
        "GET /\nX-HTTP-Method-Override: DELETE",
        "POST /?_method=DELETE\nX-HTTP-Method: DELETE\nX-Method-Override: DELETE",
    ];
    assert_eq!(left(&gateway, &heads), [999, 998, 997, 996, 995]);
    let methods: Vec<_> = gateway.upstream.requests().into_iter().map(|it| it.method).collect();
    assert_eq!(methods, ["GET", "get", "gEt", "GET", "POST"], "passed on as they came");
    for head in ["DELETE /", "delete /", "DELETE /\nX-HTTP-Method-Override: GET"] {
        assert_eq!(gateway.ask(head).status, 429, "{head}");
    }
    assert_eq!(gateway.ask("FOO /").status, 200);
}

#[test]
fn fields_that_are_ours_are_ours() {
    let gateway = Gateway::start(&by_address("client_ip: {}"));
    let answer = gateway.ask(
        "GET /
         RateLimit: \"a\";r=9999;t=1
         RateLimit-Policy: \"a\";q=9999;w=1
         X-RateLimit-Remaining: 9999
         X-Forwarded-For: 203.0.113.7
         X-Forwarded-Proto: https
         X-Forwarded-Host: evil
         X-Request-Id: mine
         Connection: X-Forwarded-For, X-Forwarded-Proto, Forwarded, X-Request-Id, Host, Via
         Keep-Alive: timeout=5",
    );
    assert_eq!((answer.status, answer.remaining()), (200, Some(999)));
    let request = passed_on(&gateway);
    for (name, value) in [
        ("ratelimit", None),
        ("ratelimit-policy", None),
        ("x-ratelimit-remaining", None),
        ("connection", None),
        ("keep-alive", None),
        ("host", Some("a")),
        ("x-forwarded-for", Some("127.0.0.1")),
        ("x-forwarded-proto", Some("http")),
        ("x-forwarded-host", Some("a")),
        ("forwarded", Some("for=127.0.0.1;host=\"a\";proto=http")),
        ("via", Some("1.1 tollgate")),
    ] {
        assert_eq!(request.field(name), value, "{name}");
    }
    let id = request.field("x-request-id").expect("it has an id");
    assert_eq!(answer.field("x-request-id"), Some(id), "whatever became of the client's");
}

#[test]
fn a_key_that_is_sent_twice_is_no_key() {
    let gateway = Gateway::start(
        "limits: [{name: a, per: [header:x-api-key], rate: 1000/hour, algorithm: sliding_log}]",
    );
    for head in [
        "GET /\nX-Api-Key: a\nX-Api-Key: b",
        "GET /\nX-Api-Key: a\nX-Api-Key: a",
        "GET /\nX-Api-Key: a\nx-api-key:",
    ] {
        assert_eq!(gateway.ask(head).status, 400, "{head}");
    }
    assert_eq!(gateway.upstream.requests(), []);
    let heads =
        ["GET /\nX-Api-Key: a", "GET /\nX-Api-Key: b", "GET /", "GET /\nX-Api-Key: a", "GET /"];
    assert_eq!(
        left(&gateway, &heads),
        [999, 999, 999, 998, 998],
        "none is one of all who have none"
    );
}

#[test]
fn nobody_is_dialled_but_the_servers_of_the_policy() {
    let upstream = Upstream::start(|exchange| {
        exchange.send(
            "HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n",
        );
    });
    let gateway = Gateway::around(upstream, "limits: []");
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = elsewhere.local_addr().unwrap();
    let ask = |line: &str, host: &str| {
        let mut client = gateway.connect();
        client.send(format!("{line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"));
        client.answer()
    };
    for host in ["169.254.169.254".to_owned(), address.to_string()] {
        let answer = ask(&format!("GET http://{host}/latest/meta-data"), &host);
        assert_eq!(answer.status, 302, "the answer of the one server there is");
        assert_eq!(
            answer.field("location"),
            Some("http://169.254.169.254/"),
            "and nobody followed it"
        );
        let request = passed_on(&gateway);
        assert_eq!((&*request.target, request.field("host")), ("/latest/meta-data", Some(&*host)));
        assert_eq!(ask(&format!("CONNECT {host}"), &host).status, 400);
    }
    assert_eq!(gateway.upstream.requests(), []);
    elsewhere.set_nonblocking(true).unwrap();
    assert!(elsewhere.accept().is_err(), "somebody connected");
}
