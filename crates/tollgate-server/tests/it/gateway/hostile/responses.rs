//! Servers that send more than they were asked for: nobody else gets it.

use crate::gateway::Gateway;
use crate::gateway::upstream::Upstream;

/// An answer to a request that nobody sent.
const POISON: &str = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison";

/// Asks for what the server answers with `sent` and an answer more, and for something else then.
fn check(cases: &'static [(&str, &str, u16)]) {
    let upstream = Upstream::start(|exchange| {
        exchange.body();
        let number = exchange.request.target.strip_prefix("/odd/").and_then(|it| it.parse().ok());
        match number {
            Some::<usize>(number) => drop(exchange.send(format!("{}{POISON}", cases[number].1))),
            None => exchange.answer(200, "ok"),
        }
    });
    let gateway = Gateway::around(upstream, "limits: []");
    for (number, (method, sent, expected)) in cases.iter().enumerate() {
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
    }
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
            200,
        ),
    ]);
}
