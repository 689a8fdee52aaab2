//! What becomes of messages on their way through, in HTTP/1.1.

use std::collections::BTreeMap;

use super::Gateway;
use super::client::Client;
use super::script::{Script, connect, in_front_of};
use super::upstream::Request;

const GET: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// Fields by their names, none of which is there twice.
fn by_name(fields: &[(String, String)]) -> BTreeMap<&str, &str> {
    let map: BTreeMap<_, _> = fields.iter().map(|(name, value)| (&**name, &**value)).collect();
    assert_eq!(map.len(), fields.len(), "{fields:?}");
    map
}

fn only(requests: Vec<Request>) -> Request {
    let [request] = <[Request; 1]>::try_from(requests).expect("one request");
    request
}

/// What a client may say of itself, and what is about its connection.
const CLAIMS: &str = "
    connection: x-secret, keep-alive, x-forwarded-for
    x-secret: 1
    keep-alive: timeout=5
    proxy-authorization: Basic eA==
    proxy-connection: keep-alive
    te: gzip, trailers
    upgrade: echo
    x-forwarded-for: 192.0.2.1
    x-forwarded-for: 192.0.2.2
    x-forwarded-proto: ftp
    x-forwarded-host: b
    forwarded: for=192.0.2.1
    via: 1.0 other
    x-request-id: mine
    ratelimit: \"all\";r=1000
    ratelimit-policy: \"all\";q=1000
    x-ratelimit-remaining: 1000
    accept: */*
    x-kept: as it came";

#[test]
fn of_a_request_goes_on_what_is_not_about_its_connection_and_what_is_true() {
    let gateway = Gateway::start("limits: [{name: all, rate: 10/minute}]");
    assert_eq!(gateway.ask(&format!("GET /x/../%6cogin;A=1/?q=%2e%20{CLAIMS}")).status, 200);
    let request = only(gateway.upstream.requests());
    assert_eq!((&*request.method, &*request.target), ("GET", "/login;A=1/?q=%2e%20"));
    let expected = BTreeMap::from([
        ("host", "a"),
        ("accept", "*/*"),
        ("x-kept", "as it came"),
        ("te", "trailers"),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-host", "a"),
        ("forwarded", "for=127.0.0.1;host=\"a\";proto=http"),
        ("via", "1.0 other, 1.1 tollgate"),
        ("x-request-id", "mine"),
    ]);
    assert_eq!(by_name(&request.fields), expected);
}

#[test]
fn what_a_trusted_proxy_says_is_passed_on_with_its_address_behind() {
    let gateway = Gateway::start("client_ip: { trusted_proxies: [127.0.0.0/8] }\nlimits: []");
    assert_eq!(
        gateway.ask(&format!("GET /{}", CLAIMS.replace(", x-forwarded-for", ""))).status,
        200
    );
    let request = only(gateway.upstream.requests());
    for (name, value) in [
        ("x-forwarded-for", "192.0.2.1, 192.0.2.2, 127.0.0.1"),
        ("x-forwarded-proto", "ftp"),
        ("x-forwarded-host", "b"),
        ("forwarded", "for=192.0.2.1, for=127.0.0.1;host=\"a\";proto=http"),
    ] {
        assert_eq!(request.field(name), Some(value), "{name}");
    }
    assert_eq!(gateway.ask("GET /silent").status, 200);
    let silent = gateway.upstream.requests().pop().expect("another request");
    assert_eq!(silent.field("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(silent.field("x-forwarded-host"), Some("a"));
    assert_eq!(silent.field("x-forwarded-proto"), Some("http"));
}

#[test]
fn of_a_response_goes_on_what_is_not_about_its_connection_and_limits_are_ours() {
    let upstream = Script::new();
    let gateway = in_front_of(upstream.url(), "limits: [{name: all, rate: 10/minute}]");
    let mut client = connect(&gateway);
    client.send(GET);
    let mut server = upstream.accept();
    server.until(b"\r\n\r\n");
    server.send(
        "HTTP/1.1 200 OK\r\nconnection: x-gone\r\nx-gone: 1\r\nkeep-alive: timeout=1\r\n\
         proxy-authenticate: Basic\r\nupgrade: h2c\r\nvia: 1.1 far\r\nx-request-id: theirs\r\n\
         ratelimit: \"other\";r=1000\r\nratelimit-policy: \"other\";q=1000\r\n\
         x-ratelimit-remaining: 1000\r\nx-kept: as it came\r\ncontent-length: 2\r\n\r\nok",
    );
    let answer = client.answer();
    let fields = by_name(&answer.fields);
    for (name, value) in [
        ("connection", None),
        ("x-gone", None),
        ("keep-alive", None),
        ("proxy-authenticate", None),
        ("upgrade", None),
        ("via", Some("1.1 far, 1.1 tollgate")),
        ("ratelimit-policy", Some("\"all\";q=10;w=60")),
        ("x-ratelimit-remaining", Some("9")),
        ("x-kept", Some("as it came")),
    ] {
        assert_eq!(fields.get(name), value.as_ref(), "{name}");
    }
    assert!(fields["ratelimit"].starts_with("\"all\";r=9"), "{fields:?}");
    assert_ne!(fields["x-request-id"], "theirs");
}

#[test]
fn an_id_that_can_be_read_is_kept_another_replaced_and_every_answer_has_it() {
    let gateway = Gateway::start("limits: [{name: all, rate: 7/hour, algorithm: fixed_window}]");
    let ask = |lines: &str| {
        let answer = gateway.ask(&format!("GET /\n{lines}"));
        let told = answer.field("x-request-id").expect("every answer has one").to_owned();
        let passed = gateway.upstream.take_requests().pop();
        let passed = passed.map(|it| it.field("x-request-id").expect("passed on").to_owned());
        (answer.status, told, passed)
    };
    let long = "i".repeat(128);
    for id in ["a", "01J-{x}/y", &long] {
        let kept = id.to_owned();
        assert_eq!(ask(&format!("x-request-id: {id}")), (200, kept.clone(), Some(kept)));
    }
    let mut made = Vec::new();
    for lines in [
        "",
        "x-request-id: two words",
        &format!("x-request-id: i{long}"),
        "x-request-id: a\nx-request-id: b",
    ] {
        let (status, told, passed) = ask(lines);
        assert_eq!((status, Some(&told)), (200, passed.as_ref()), "{lines}");
        assert!(told.len() == 32 && told.bytes().all(|it| it.is_ascii_hexdigit()), "{told}");
        assert!(!made.contains(&told), "{told} again");
        made.push(told);
    }
    assert_eq!(ask("x-request-id: refused"), (429, "refused".to_owned(), None));
}

#[test]
fn ids_have_another_name_or_none_if_the_policy_says_so() {
    let gateway = Gateway::start("gateway: { request_id: x-trace-id }\nlimits: []");
    let answer = gateway.ask("GET /\nx-trace-id: mine\nx-request-id: two words");
    assert_eq!(answer.field("x-trace-id"), Some("mine"));
    let request = only(gateway.upstream.requests());
    assert_eq!(request.field("x-trace-id"), Some("mine"));
    assert_eq!(request.field("x-request-id"), Some("two words"));
    let gateway = Gateway::start("gateway: { request_id: off }\nlimits: []");
    assert_eq!(gateway.ask("GET /").field("x-request-id"), None);
    assert_eq!(only(gateway.upstream.requests()).field("x-request-id"), None);
}

/// However a server frames its responses, a client can tell where each ends: all come over one
/// connection, and servers that keep theirs are asked over one as well.
#[test]
fn every_response_ends_where_the_server_meant_it_to() {
    let upstream = Script::new();
    let gateway = in_front_of(upstream.url(), "");
    let mut client = connect(&gateway);
    let mut kept: Option<Client> = None;
    for (method, sent, is_closed, status, framing, body) in [
        ("HEAD", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", false, 200, "5", ""),
        ("HEAD", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", false, 200, "", ""),
        ("GET", "HTTP/1.1 204 No Content\r\n\r\n", false, 204, "", ""),
        ("GET", "HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", false, 304, "", ""),
        ("GET", "HTTP/1.1 304 Not Modified\r\netag: \"a\"\r\n\r\n", false, 304, "", ""),
        ("GET", "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", false, 200, "0", ""),
        ("GET", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", false, 200, "5", "hello"),
        (
            "GET",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
            false,
            200,
            "chunked",
            "hello",
        ),
        (
            "GET",
            "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n\
             HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
            false,
            200,
            "5",
            "hello",
        ),
        ("GET", "HTTP/1.1 200 OK\r\n\r\nhello", true, 200, "chunked", "hello"),
        ("GET", "HTTP/1.0 200 OK\r\n\r\nhello", true, 200, "chunked", "hello"),
        ("GET", "HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello", true, 200, "5", "hello"),
        (
            "GET",
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello",
            true,
            200,
            "5",
            "hello",
        ),
        ("POST", "HTTP/1.1 500 Oh\r\ncontent-length: 5\r\n\r\nhello", false, 500, "5", "hello"),
    ] {
        client.send(format!("{method} / HTTP/1.1\r\nhost: a\r\n\r\n"));
        let mut server = kept.take().unwrap_or_else(|| upstream.accept());
        let head = String::from_utf8(server.until(b"\r\n\r\n").expect("a request")).unwrap();
        assert!(head.starts_with(method), "{head}");
        server.send(sent);
        kept = (!is_closed).then_some(server);
        let (found, fields) = client.head().expect("an answer");
        let fields = by_name(&fields);
        let found_framing = fields.get("content-length").or(fields.get("transfer-encoding"));
        let found_framing = found_framing.copied().unwrap_or_default();
        assert_eq!((found, found_framing), (status, framing), "{sent}");
        let mut read = Vec::new();
        if framing == "chunked" {
            while let Some(chunk) = client.chunk().expect("it goes on") {
                read.extend(chunk);
            }
        } else {
            read = client.take(body.len()).expect("it goes on");
        }
        assert_eq!(read, body.as_bytes(), "{sent}");
    }
}

#[test]
fn a_client_of_http_1_0_is_answered_in_its_way() {
    let upstream = Script::new();
    let gateway = in_front_of(upstream.url(), "");
    let mut client = connect(&gateway);
    client.send("GET / HTTP/1.0\r\nhost: a\r\n\r\n");
    let mut server = upstream.accept();
    let head = String::from_utf8(server.until(b"\r\n\r\n").expect("a request")).unwrap();
    assert!(head.starts_with("GET / HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("via: 1.0 tollgate\r\n"), "{head}");
    server.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
    let answer = String::from_utf8(client.rest()).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.0 200") && !head.contains("chunked"), "{head}");
    assert_eq!(body, "hello");
}

#[test]
fn a_body_that_waits_for_leave_is_asked_for_when_its_request_may_pass() {
    let upstream = Script::new();
    let gateway = in_front_of(upstream.url(), "limits: [{name: all, rate: 1/hour}]");
    let post = "POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n";
    let mut client = connect(&gateway);
    client.send(post);
    let mut server = upstream.accept();
    let head = String::from_utf8(server.until(b"\r\n\r\n").expect("a request")).unwrap();
    assert!(!head.contains("expect"), "{head}");
    assert_eq!(client.head().expect("leave").0, 100);
    client.send("hello");
    assert_eq!(server.take(5).expect("the body"), b"hello");
    server.send(OK);
    assert_eq!(client.answer().status, 200);

    let mut refused = connect(&gateway);
    refused.send(post);
    assert_eq!(refused.answer().status, 429, "and no leave before");
}

#[test]
fn an_answer_that_comes_before_the_end_of_its_request_is_delivered_and_harms_no_other() {
    let upstream = Script::new();
    let gateway = in_front_of(upstream.url(), "");
    let mut client = connect(&gateway);
    client.send("POST /early HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nhello");
    let mut server = upstream.accept();
    server.until(b"\r\n\r\n");
    server.take(5);
    server.send("HTTP/1.1 413 Much\r\ncontent-length: 3\r\n\r\nbig");
    let answer = client.answer();
    assert_eq!((answer.status, answer.text()), (413, "big".to_owned()));
    // The rest of the first request still goes where it belongs.
    client.send("there");
    assert_eq!(server.rest(), b"there", "and then nothing more comes over this connection");
    client.send(GET);
    let mut server = upstream.accept();
    let head = server.until(b"\r\n\r\n").expect("a request");
    assert!(head.starts_with(b"GET / HTTP/1.1\r\n"), "{}", head.escape_ascii());
    server.send(OK);
    assert_eq!(client.answer().status, 200);
}
