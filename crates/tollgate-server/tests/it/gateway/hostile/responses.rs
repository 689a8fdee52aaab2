//! Servers that send more than they were asked for: nobody else gets it.

use crate::gateway::Gateway;
use crate::gateway::script::{Script, connect, in_front_of};
use crate::gateway::upstream::Upstream;

/// An answer to a request that nobody sent.
const POISON: &str = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison";

/// Asks for what the server answers with `sent` and an answer more, and for something else then. Returns
/// what came behind the heads.
fn check(cases: &'static [(&str, &str, u16)]) -> Vec<Vec<u8>> {
    let upstream = Upstream::start(|exchange| {
        exchange.body();
        let number = exchange.request.target.strip_prefix("/odd/").and_then(|it| it.parse().ok());
        match number {
            Some::<usize>(number) => drop(exchange.send(format!("{}{POISON}", cases[number].1))),
            None => exchange.answer(200, "ok"),
        }
    });
    let gateway = Gateway::around(upstream, "limits: []");
    let ask = |(number, (method, sent, expected)): (usize, &(&str, &str, u16))| {
        let mut client = gateway.connect();
        client.send(format!(
            "{method} /odd/{number} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        ));
        let (status, _) = client.head().expect("an answer");
        assert_eq!(status, *expected, "{sent}");
        let rest = client.rest();
        assert!(
            !rest.windows(4).any(|window| window == b"HTTP"),
            "{sent}: {}",
            rest.escape_ascii()
        );
        for _ in 0..3 {
            assert_eq!(gateway.ask("GET /next").text(), "ok", "{sent}");
        }
        rest
    };
    cases.iter().enumerate().map(ask).collect()
}

#[test]
fn what_comes_after_a_response_belongs_to_nobody() {
    check(&[
        ("GET", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", 200),
        ("GET", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 200),
        ("GET", "HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n", 204),
        ("GET", "HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", 304),
        ("HEAD", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", 200),
    ]);
}

#[test]
fn a_response_has_one_length_or_is_none() {
    check(&[
        ("POST", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok", 502),
        ("POST", "HTTP/1.1 200 OK\r\ncontent-length: +2\r\n\r\nok", 502),
        (
            "GET",
            "HTTP/1.1 200 OK\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n\
             2\r\nok\r\n0\r\n\r\n",
            502,
        ),
        (
            "GET",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            502,
        ),
        ("GET", "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", 502),
    ]);
}

#[test]
fn a_body_whose_chunks_are_none_breaks_off() {
    let bodies = check(&[
        ("GET", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok0\r\n\r\n", 200),
        ("GET", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\nok\r\n0\r\n\r\n", 200),
        ("GET", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n+2\r\nok\r\n0\r\n\r\n", 200),
        ("GET", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\nno field\r\n\r\n", 200),
    ]);
    assert!(bodies.iter().all(|body| !body.ends_with(b"0\r\n\r\n")), "they seem to be whole");
}

#[test]
fn what_is_no_response_is_not_asked_for_again() {
    let upstream = Script::new();
    let gateway = in_front_of(upstream.url(), "");
    let mut client = connect(&gateway);
    let mut server = None;
    for (fields, expected) in [("", 200), ("transfer-encoding: chunked\r\n", 502)] {
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        let server = server.get_or_insert_with(|| upstream.accept());
        server.until(b"\r\n\r\n").expect("a request");
        server.send(format!("HTTP/1.1 200 OK\r\n{fields}content-length: 2\r\n\r\nok"));
        assert_eq!(client.answer().status, expected);
    }
    assert_eq!(upstream.waiting(), 0);
}

#[test]
fn a_length_and_chunks_are_no_response_to_a_request_with_a_body_either() {
    let upstream = Script::new();
    let gateway = in_front_of(upstream.url(), "");
    let mut client = connect(&gateway);
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi");
    let mut server = upstream.accept();
    server.until(b"\r\n\r\nhi");
    let fields = "content-length: 2\r\ntransfer-encoding: chunked";
    server.send(format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n2\r\nok\r\n0\r\n\r\n"));
    assert_eq!(client.answer().status, 502);
    server.expect_end();
}

#[test]
fn a_head_has_an_end_and_so_have_those_before_it() {
    let fields = "x-field: many of them\r\n".repeat(4_000);
    let long = format!("x-field: {}", "x".repeat(70_000));
    let interim = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(200);
    for sent in
        [format!("HTTP/1.1 200 OK\r\n{fields}"), format!("HTTP/1.1 200 OK\r\n{long}"), interim]
    {
        let upstream = Upstream::start(move |exchange| {
            exchange.send(&sent);
            exchange.wait_for_end();
        });
        let gateway = Gateway::around(upstream, "limits: []");
        assert_eq!(gateway.ask("POST /").status, 502);
    }
}

#[test]
fn what_comes_while_nobody_asks_answers_nobody() {
    let upstream = Script::new();
    let gateway = in_front_of(upstream.url(), "");
    let mut client = connect(&gateway);
    let mut servers = Vec::new();
    for body in ["one", "two", "six"] {
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        let mut server = upstream.accept();
        server.until(b"\r\n\r\n").expect("a request");
        server.send(format!("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{body}"));
        assert_eq!(client.answer().text(), body);
        server.send(POISON);
        servers.push(server);
    }
}
