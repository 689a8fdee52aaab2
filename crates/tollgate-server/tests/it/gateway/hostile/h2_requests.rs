//! Requests of HTTP/2 that would be something else in HTTP/1.1.

use super::wire::{Outcome, Wire, plain, request};
use crate::gateway::Gateway;
use crate::grpc::frames::{DATA, END_HEADERS, END_STREAM, HEADERS, field, frame};

const POLICY: &str = "limits: [{name: all, rate: 100000/hour, algorithm: sliding_log}]";

/// Sends a request with these fields, the second in the same way, and tells what becomes of it: the
/// body that reached the server, or a word.
fn check(gateway: &Gateway, fields: &[u8], body: Option<&str>, expected: &str) {
    let left = || gateway.ask("GET /left").remaining().expect("it is told");
    let before = left();
    gateway.upstream.take_requests();
    let mut wire = Wire::open(gateway);
    match body {
        None => wire.client.send(request(1, fields, END_STREAM)),
        Some(body) => {
            let data = frame(DATA, END_STREAM, 1, body.as_bytes());
            wire.client.send([request(1, fields, 0), data].concat());
        }
    }
    let outcome = wire.outcome(1);
    let requests = gateway.upstream.requests();
    let whole: Vec<_> = requests.iter().filter(|it| it.is_whole).collect();
    let told = match (outcome, &whole[..]) {
        (Outcome::Passed, [one]) => format!("{}={}", one.target, one.body.escape_ascii()),
        (Outcome::Refused, []) => "400".to_owned(),
        (Outcome::Ended, []) => "reset".to_owned(),
        other => format!("{other:?}"),
    };
    let judged = before - left() - 1;
    assert_eq!(told, expected, "{}", fields.escape_ascii());
    assert!(requests.len() as u64 <= judged, "{}", fields.escape_ascii());
}

/// A request with more fields than every one has.
fn with(method: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let fields = fields.iter().map(|(name, value)| field(name, value));
    std::iter::once(plain(method, "/")).chain(fields).collect::<Vec<_>>().concat()
}

/// A request with these fields and no others.
fn only(fields: &[(&str, &str)]) -> Vec<u8> {
    fields.iter().map(|(name, value)| field(name, value)).collect::<Vec<_>>().concat()
}

#[test]
fn a_body_is_as_long_as_it_says() {
    let gateway = Gateway::start(POLICY);
    for (method, fields, body, expected) in [
        ("POST", &[("content-length", "5")][..], Some("hello"), "/=hello"),
        ("POST", &[], Some("hello"), "/=hello"),
        ("GET", &[], Some("hello"), "/=hello"),
        ("POST", &[], None, "/="),
        ("POST", &[("content-length", "0")], None, "/="),
        ("POST", &[("content-length", "0")], Some(""), "/="),
        ("POST", &[("content-length", "5"), ("content-length", "5")], Some("hello"), "/=hello"),
        ("POST", &[("content-length", "5"), ("content-length", "6")], Some("hello"), "reset"),
        ("POST", &[("content-length", "6")], Some("hello"), "reset"),
        ("POST", &[("content-length", "4")], Some("hello"), "reset"),
        ("POST", &[("content-length", "0")], Some("hello"), "reset"),
        ("POST", &[("content-length", "5")], None, "reset"),
        ("GET", &[("content-length", "5")], None, "reset"),
        ("HEAD", &[("content-length", "5")], None, "reset"),
        ("POST", &[("content-length", "+5")], Some("hello"), "reset"),
        ("POST", &[("content-length", "0x5")], Some("hello"), "reset"),
        ("POST", &[("content-length", "5, 5")], Some("hello"), "reset"),
        ("POST", &[("transfer-encoding", "chunked")], Some("0\r\n\r\n"), "reset"),
    ] {
        check(&gateway, &with(method, fields), body, expected);
    }
}

#[test]
fn fields_are_those_of_http_2() {
    let gateway = Gateway::start(POLICY);
    for (fields, expected) in [
        (&[("te", "trailers")][..], "/="),
        (&[("te", "gzip")], "reset"),
        (&[("connection", "close")], "reset"),
        (&[("connection", "x-forwarded-for")], "reset"),
        (&[("keep-alive", "5")], "reset"),
        (&[("proxy-connection", "close")], "reset"),
        (&[("upgrade", "websocket")], "reset"),
        (&[("x", "a\r\nb: c")], "reset"),
        (&[("x", "a\nb: c")], "reset"),
        (&[("x", "a\rb")], "reset"),
        (&[("x", "a\0b")], "reset"),
        (&[("x\r\nb", "c")], "reset"),
        (&[("x: b\r\ny", "c")], "reset"),
        (&[("x y", "c")], "reset"),
        (&[("X", "c")], "reset"),
        (&[("", "c")], "reset"),
        (&[("x", "c"), (":path", "/b")], "reset"),
        (&[(":path", "/b")], "reset"),
        (&[(":status", "200")], "reset"),
        (&[(":x", "y")], "reset"),
        // HTTP/1.1 would take the spaces off: what is judged would not be what is passed on.
        (&[("x", " c")], "400"),
        (&[("x", "c ")], "400"),
        (&[("x", "\tc")], "400"),
        (&[("x", "c\t")], "400"),
        (&[("x", " ")], "400"),
        (&[("x", "a b")], "/="),
        (&[("host", "a")], "/="),
        (&[("host", "A")], "/="),
        (&[("host", "b")], "400"),
        (&[("host", "a"), ("host", "a")], "400"),
        (&[("host", "a, b")], "400"),
    ] {
        check(&gateway, &with("GET", fields), None, expected);
    }
}

#[test]
fn a_request_is_for_one_path_of_one_host() {
    let gateway = Gateway::start(POLICY);
    let (get, http) = ((":method", "GET"), (":scheme", "http"));
    for (fields, expected) in [
        (&[get, http, (":path", "/b?c"), (":authority", "a")][..], "/b?c="),
        (&[get, http, (":path", "/b"), ("host", "a")], "/b="),
        (&[get, http, (":path", "/b")], "400"),
        (&[get, http, (":path", "/b"), (":authority", "")], "reset"),
        (&[get, http, (":path", "/b"), (":authority", "u@a")], "400"),
        (&[get, http, (":path", "/b"), (":authority", "a b")], "reset"),
        (&[get, http, (":path", "/b"), (":authority", "a/b")], "reset"),
        (&[get, http, (":path", "/b"), (":authority", "a\r\nx: y")], "reset"),
        (&[get, http, (":authority", "a")], "reset"),
        (&[get, http, (":path", ""), (":authority", "a")], "reset"),
        (&[get, http, (":path", "b"), (":authority", "a")], "reset"),
        (&[get, http, (":path", "/b c"), (":authority", "a")], "reset"),
        (&[get, http, (":path", "/b HTTP/1.1\r\nx: y"), (":authority", "a")], "reset"),
        (&[get, http, (":path", "/b\tc"), (":authority", "a")], "reset"),
        (&[get, http, (":path", "?b"), (":authority", "a")], "400"),
        (&[get, http, (":path", "*"), (":authority", "a")], "400"),
        (&[get, http, (":path", "http://b/"), (":authority", "a")], "reset"),
        (&[get, http, (":path", "/x%2fb"), (":authority", "a")], "400"),
        (&[get, http, (":path", "/x/../%62"), (":authority", "a")], "/b="),
        (
            &[(":method", "GET / HTTP/1.1\r\nx: y"), http, (":path", "/"), (":authority", "a")],
            "reset",
        ),
        (&[(":method", "G T"), http, (":path", "/"), (":authority", "a")], "reset"),
        (&[(":method", ""), http, (":path", "/"), (":authority", "a")], "reset"),
        (&[http, (":path", "/"), (":authority", "a")], "reset"),
        (&[(":method", "CONNECT"), (":authority", "a:80")], "400"),
        (&[(":method", "OPTIONS"), http, (":path", "*"), (":authority", "a")], "*="),
    ] {
        check(&gateway, &only(fields), None, expected);
    }
}

#[test]
fn trailers_say_nothing_of_how_long_a_request_is_or_for_what() {
    let gateway = Gateway::start(POLICY);
    for (trailer, expected) in [
        (field("x", "y"), Outcome::Passed),
        // These are left out.
        (field("content-length", "50"), Outcome::Passed),
        (field(":path", "/b"), Outcome::Passed),
        (field("x", "a\r\nb"), Outcome::Ended),
        (field("transfer-encoding", "chunked"), Outcome::Ended),
    ] {
        let mut wire = Wire::open(&gateway);
        let fields = [
            plain("POST", "/"),
            field("te", "trailers"),
            field("trailer", "x, content-length, :path"),
        ];
        wire.client.send(request(1, &fields.concat(), 0));
        wire.client.send(frame(DATA, 0, 1, b"hello"));
        wire.client.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, &trailer));
        assert_eq!(wire.outcome(1), expected, "{}", trailer.escape_ascii());
        let requests = gateway.upstream.take_requests();
        let whole: Vec<_> = requests.iter().filter(|it| it.is_whole).collect();
        assert_eq!(whole.len(), usize::from(expected == Outcome::Passed));
        let trailers = whole.iter().flat_map(|it| &it.trailers);
        assert!(trailers.map(|(name, _)| name).all(|name| name == "x"), "{requests:?}");
    }
}
