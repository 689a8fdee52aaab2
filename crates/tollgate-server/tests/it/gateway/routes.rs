//! Which server a request goes to, and what becomes of it if that one is of no use.

use std::net::TcpStream;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use tokio::net::TcpSocket;

use super::client::Answer;
use super::script::{Script, connect, in_front_of};
use super::upstream::Upstream;
use crate::server::Running;

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// A server that answers everything with this.
fn server(answer: &'static str) -> Upstream {
    Upstream::start(move |exchange| exchange.answer(200, answer))
}

/// A server that reads requests, and closes the connection instead of answering.
fn breaking() -> Upstream {
    Upstream::start(|exchange| {
        exchange.body();
        exchange.close();
    })
}

fn list(servers: &[&Upstream]) -> String {
    let urls: Vec<_> = servers.iter().map(|it| format!("http://{}", it.address)).collect();
    format!("[{}]", urls.join(", "))
}

/// Sends a request over a connection of its own.
fn ask(gateway: &Running, method: &str, host: &str, path: &str, body: &str) -> Answer {
    let mut client = connect(gateway);
    let length =
        if body.is_empty() { String::new() } else { format!("content-length: {}\r\n", body.len()) };
    client.send(format!(
        "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{length}\r\n{body}"
    ));
    if method == "HEAD" {
        let (status, fields) = client.head().expect("an answer");
        return Answer { status, fields, body: Vec::new() };
    }
    client.answer()
}

#[test]
fn the_first_route_that_fits_is_taken_and_without_one_nothing_is_found() {
    let servers = [server("api"), server("example"), server("static")];
    let [api, example, files] = servers.each_ref().map(|it| it.address);
    let routes = format!(
        "
  - {{ when: {{ host: api.example.com, path: /v1/** }}, to: http://{api} }}
  - {{ when: {{ host: \"*.example.com\" }}, to: http://{example} }}
  - {{ when: {{ path: [/static/**, /favicon.ico] }}, to: http://{files} }}"
    );
    let gateway = in_front_of(routes, "");
    for (host, path, expected) in [
        ("api.example.com", "/v1/users", "api"),
        ("API.Example.com:8000", "/v1/users", "api"),
        ("api.example.com", "/x/..//%761/users", "api"),
        ("api.example.com", "/v2/users", "example"),
        ("www.example.com", "/static/a.css", "example"),
        ("localhost", "/static/a.css", "static"),
        ("localhost", "/favicon.ico", "static"),
    ] {
        let answer = ask(&gateway, "GET", host, path, "");
        assert_eq!((answer.status, &*answer.text()), (200, expected), "{host} {path}");
    }
    for (host, path) in [("localhost", "/"), ("example.org", "/v1/users"), ("example.com", "/")] {
        let answer = ask(&gateway, "GET", host, path, "");
        assert_eq!(answer.status, 404, "{host} {path}");
        assert_eq!(answer.field("content-type"), Some("application/problem+json"));
    }
}

#[test]
fn servers_of_a_route_take_turns() {
    let servers = [server("a"), server("b"), server("c")];
    let gateway = in_front_of(list(&servers.each_ref()), "");
    for _ in 0..9 {
        assert_eq!(ask(&gateway, "GET", "a", "/", "").status, 200);
    }
    assert_eq!(servers.each_ref().map(|it| it.log().count), [3, 3, 3]);
}

#[test]
fn a_server_that_takes_no_connections_costs_nobody_an_answer() {
    // Bound, so that nobody else listens there, and nobody does.
    let dead = TcpSocket::new_v4().expect("a socket");
    dead.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
    let dead_url = format!("http://{}", dead.local_addr().expect("it is bound"));
    let alive = server("alive");
    let gateway = in_front_of(format!("[{dead_url}, http://{}]", alive.address), "");
    for (method, body) in
        [("GET", ""), ("POST", "hello"), ("POST", "hello"), ("PUT", "hello"), ("DELETE", "")]
    {
        let answer = ask(&gateway, method, "a", "/", body);
        assert_eq!((answer.status, &*answer.text()), (200, "alive"), "{method}");
    }
    let seen = alive.requests();
    assert_eq!(seen.len(), 5);
    assert_eq!(seen[2].body, b"hello", "nothing of the body is lost");
    let gateway = in_front_of(dead_url, "");
    let answer = ask(&gateway, "POST", "a", "/", "hello");
    assert_eq!(answer.status, 502);
    assert_eq!(answer.field("content-type"), Some("application/problem+json"));
}

#[test]
fn a_server_that_fails_three_times_is_left_out() {
    let (failing, alive) = (breaking(), server("alive"));
    let gateway = in_front_of(list(&[&failing, &alive]), "");
    for number in 1..=12 {
        assert_eq!(ask(&gateway, "GET", "a", "/", "").status, 200, "request {number}");
    }
    assert_eq!(failing.log().connections.len(), 3, "every second turn was its own");
    assert_eq!(alive.log().count, 12);
}

#[test]
fn what_may_have_been_seen_is_sent_again_only_if_that_does_no_harm() {
    const CASES: [(&str, &str, u16); 8] = [
        ("GET", "", 200),
        ("HEAD", "", 200),
        ("OPTIONS", "", 200),
        ("GET", "with a body", 502),
        ("POST", "", 502),
        ("POST", "with a body", 502),
        ("PUT", "with a body", 502),
        ("DELETE", "", 502),
    ];
    let pairs = CASES.map(|_| (breaking(), server("alive")));
    let routes: String = pairs
        .iter()
        .enumerate()
        .map(|(number, (failing, alive))| {
            let to = list(&[failing, alive]);
            format!("\n  - {{ when: {{ path: /{number} }}, to: {to} }}")
        })
        .collect();
    let gateway = in_front_of(routes, "");
    for (number, (method, body, status)) in CASES.into_iter().enumerate() {
        let answer = ask(&gateway, method, "a", &format!("/{number}"), body);
        assert_eq!(answer.status, status, "{method} {body:?}");
        let (failing, alive) = &pairs[number];
        let seen = [failing.log().count, alive.log().count];
        assert_eq!(seen, [1, usize::from(status == 200)], "{method} {body:?}");
    }
}

#[test]
fn a_request_that_breaks_connections_breaks_no_more_than_a_new_one() {
    const CLIENTS: usize = 8;
    let together = Barrier::new(CLIENTS);
    let upstream = Upstream::start(move |exchange| {
        if exchange.request.target == "/poison" {
            return exchange.close();
        }
        // All at once, so that each has a connection of its own, which is kept afterwards.
        together.wait();
        exchange.answer(200, "ok");
    });
    let gateway = in_front_of(format!("http://{}", upstream.address), "");
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| connect(&gateway)).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    for client in &mut clients {
        assert_eq!(client.answer().status, 200);
    }
    assert_eq!(upstream.log().connections.len(), CLIENTS);
    clients[0].send("GET /poison HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(clients[0].answer().status, 502);
    assert_eq!(
        upstream.log().count,
        CLIENTS + 2,
        "once over a kept connection, once over a new one"
    );
}

#[test]
fn a_kept_connection_that_the_server_has_closed_costs_nobody_an_answer() {
    let upstream = Script::new();
    let gateway = in_front_of(upstream.url(), "");
    let mut client = connect(&gateway);
    for body in ["hello", ""].repeat(20) {
        let length = body.len();
        client
            .send(format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n{body}"));
        let mut server = upstream.accept();
        server.until(b"\r\n\r\n");
        assert_eq!(server.take(length).expect("the body"), body.as_bytes());
        server.send(OK);
        assert_eq!(client.answer().status, 200);
        // As servers do with connections that nobody uses.
        drop(server);
    }
    assert_eq!(upstream.waiting(), 0);
}

#[test]
fn a_kept_connection_takes_requests_with_a_body_and_without() {
    let upstream = Script::new();
    let gateway = in_front_of(upstream.url(), "");
    let mut client = connect(&gateway);
    let mut kept = None;
    for (method, body) in [("GET", ""), ("POST", "hello"), ("GET", ""), ("POST", ""), ("PUT", "x")]
    {
        let length = body.len();
        client.send(format!(
            "{method} / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n{body}"
        ));
        let server = kept.get_or_insert_with(|| upstream.accept());
        let head = String::from_utf8(server.until(b"\r\n\r\n").expect("a request")).unwrap();
        assert!(head.starts_with(&format!("{method} / HTTP/1.1\r\nhost: a\r\n")), "{head}");
        assert!(head.contains(&format!("content-length: {length}\r\n")), "{head}");
        assert_eq!(server.take(length).expect("the body"), body.as_bytes());
        server.send(OK);
        assert_eq!(client.answer().status, 200);
    }
    assert_eq!(upstream.waiting(), 0, "one is enough");
}

#[test]
fn what_is_no_response_is_502_and_a_response_that_breaks_off_breaks_off() {
    let upstream = Script::new();
    let gateway = in_front_of(upstream.url(), "");
    let mut client = connect(&gateway);
    for sent in [
        "what?\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-le",
        "",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
    ] {
        client.send("POST / HTTP/1.1\r\nhost: a\r\n\r\n");
        let mut server = upstream.accept();
        server.until(b"\r\n\r\n");
        server.send(sent);
        drop(server);
        assert_eq!(client.answer().status, 502, "{sent:?}");
    }
    for sent in
        ["content-length: 10\r\n\r\nhello", "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n"]
    {
        let mut client = connect(&gateway);
        client.send("POST / HTTP/1.1\r\nhost: a\r\n\r\n");
        let mut server = upstream.accept();
        server.until(b"\r\n\r\n");
        server.send(format!("HTTP/1.1 200 OK\r\n{sent}"));
        assert_eq!(client.head().expect("an answer").0, 200);
        drop(server);
        let rest = String::from_utf8(client.rest()).unwrap();
        assert!(rest.contains("hello") && !rest.ends_with("0\r\n\r\n"), "{rest:?}");
    }
}

#[test]
fn a_server_that_does_not_answer_in_time_is_504_but_not_while_the_request_moves() {
    let upstream = Script::new();
    let gateway = in_front_of(upstream.url(), "gateway: { headers_timeout: 200ms }");
    let mut client = connect(&gateway);
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut server = upstream.accept();
    server.until(b"\r\n\r\n");
    assert_eq!(client.answer().status, 504);
    assert_eq!(upstream.waiting(), 0, "it may have been seen, and is not sent again");
    server.expect_end();

    const STEPS: usize = 30;
    client.send(format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {STEPS}\r\n\r\n"));
    let mut server = upstream.accept();
    server.until(b"\r\n\r\n");
    for _ in 0..STEPS {
        // Three times as long as an answer may take.
        client.expect_silence(Duration::from_millis(20));
        client.send("x");
        assert_eq!(server.take(1).expect("it goes on"), b"x");
    }
    server.send(OK);
    assert_eq!(client.answer().status, 200);
}

#[test]
fn a_request_that_takes_longer_in_all_than_it_may_is_504_or_breaks_off() {
    let upstream = Script::new();
    let gateway = in_front_of(upstream.url(), "gateway: { total_timeout: 200ms }");
    let mut client = connect(&gateway);
    client.send("GET / HTTP/1.1\r\nhost: a\r\nx-request-id: mine\r\n\r\n");
    let mut server = upstream.accept();
    server.until(b"\r\n\r\n");
    let answer = client.answer();
    assert_eq!((answer.status, answer.field("x-request-id")), (504, Some("mine")));
    server.expect_end();

    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut server = upstream.accept();
    server.until(b"\r\n\r\n");
    server.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n");
    assert_eq!(client.head().expect("an answer").0, 200);
    assert_eq!(client.rest(), b"5\r\nhello\r\n");
    server.expect_end();
}

#[test]
fn a_request_that_has_had_its_time_is_told_what_is_left_and_gets_back_what_it_reserved() {
    let upstream = Script::new();
    let policy = "gateway: { total_timeout: 200ms }\n\
                  limits: [{name: tokens, rate: 100/hour, algorithm: fixed_window, \
                  cost: {reserve: 60, settle: {header: x-tokens}}}]";
    let gateway = in_front_of(upstream.url(), policy);
    let mut client = connect(&gateway);
    for _ in 0..2 {
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        let mut server = upstream.accept();
        server.until(b"\r\n\r\n");
        let answer = client.answer();
        assert_eq!((answer.status, answer.field("x-ratelimit-remaining")), (504, Some("40")));
        server.expect_end();
    }
}

#[test]
fn where_nothing_moves_for_too_long_the_connection_is_closed() {
    let upstream = Script::new();
    let gateway = in_front_of(upstream.url(), "gateway: { idle_timeout: 100ms }");
    let mut client = connect(&gateway);
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut server = upstream.accept();
    server.until(b"\r\n\r\n");
    // How long an answer may take is another matter.
    client.expect_silence(Duration::from_millis(300));
    server.send("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello");
    assert_eq!(client.head().expect("an answer").0, 200);
    assert_eq!(client.rest(), b"hello", "the response stops, and so does all else");
    server.expect_end();
    let mut client = connect(&gateway);
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut server = upstream.accept();
    server.until(b"\r\n\r\n");
    server.send(OK);
    assert_eq!(client.answer().status, 200);
    client.expect_end();
}

#[tokio::test]
async fn a_server_that_leaves_connections_waiting_is_passed_over() {
    let full = TcpSocket::new_v4().unwrap();
    full.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let full = full.listen(1).unwrap();
    let address = full.local_addr().unwrap();
    // Nobody accepts, so that after a few nobody gets in any more.
    let patience = Duration::from_millis(100);
    let waiting: Vec<_> =
        (0..64).map_while(|_| TcpStream::connect_timeout(&address, patience).ok()).collect();
    assert!(waiting.len() < 64, "there is always room for one more");
    let alive = server("alive");
    let policy = "gateway: { connect_timeout: 100ms }";
    let gateway = in_front_of(format!("[http://{address}, http://{}]", alive.address), policy);
    assert_eq!(ask(&gateway, "POST", "a", "/", "hello").status, 200);
    let gateway = in_front_of(format!("http://{address}"), policy);
    assert_eq!(ask(&gateway, "POST", "a", "/", "hello").status, 502);
}

#[test]
fn bodies_of_clients_who_leave_end_at_the_server_too() {
    let upstream = Script::new();
    let gateway = in_front_of(upstream.url(), "");
    let mut client = connect(&gateway);
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nhello");
    let mut server = upstream.accept();
    server.until(b"\r\n\r\n");
    assert_eq!(server.take(5).expect("its beginning"), b"hello");
    drop(client);
    server.expect_end();

    let mut client = connect(&gateway);
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut server = upstream.accept();
    server.until(b"\r\n\r\n");
    drop(client);
    server.expect_end();
}

#[test]
fn many_at_once_are_all_answered_by_servers_that_come_and_go() {
    const CLIENTS: usize = 8;
    const REQUESTS: usize = 50;
    // Every tenth response is the last of its connection, as servers do to be rid of old ones.
    let upstream = Upstream::start(|exchange| {
        exchange.body();
        if exchange.request.target.ends_with('0') {
            exchange.send("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok");
            exchange.close();
        } else {
            exchange.answer(200, "ok");
        }
    });
    let gateway = Arc::new(in_front_of(format!("http://{}", upstream.address), ""));
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = connect(&gateway);
                for number in 0..REQUESTS {
                    client.send(format!(
                        "POST /{number} HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello"
                    ));
                    assert_eq!(client.answer().status, 200, "request {number}");
                }
            });
        }
    });
    assert_eq!(upstream.requests().len(), CLIENTS * REQUESTS);
}
