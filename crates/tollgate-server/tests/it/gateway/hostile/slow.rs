//! Clients that take their time.

use std::thread;
use std::time::Duration;

use tollgate_server::Door;

use super::wire::{Outcome, Wire, plain, request};
use crate::gateway::Gateway;
use crate::gateway::client::Client;
use crate::gateway::upstream::Upstream;
use crate::grpc::frames::{END_STREAM, HEADERS, field, frame};

/// How long a slow client waits between two bytes.
const BETWEEN: Duration = Duration::from_millis(20);

/// Sends byte after byte; whether the connection ended before the last.
fn is_cut(client: &mut Client, bytes: &[u8]) -> bool {
    bytes.iter().any(|byte| !client.try_send([*byte]) || client.ends_within(BETWEEN))
}

#[test]
fn a_head_that_comes_byte_by_byte_is_cut() {
    let gateway = Gateway::start("gateway: {headers_timeout: 1s}\nlimits: []");
    // Nobody sends so long a head in time.
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "y".repeat(2_000));
    let mut clients = [(); 3].map(|()| gateway.connect());
    clients[1].send("GET /first HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(clients[1].answer().status, 200);
    // The last only looks as if it would speak HTTP/2.
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".repeat(100);
    let sent = [head.as_bytes(), head.as_bytes(), &preface];
    thread::scope(|scope| {
        for (number, (client, sent)) in clients.iter_mut().zip(sent).enumerate() {
            scope.spawn(move || assert!(is_cut(client, sent), "{number}"));
        }
    });
    let targets: Vec<_> = gateway.upstream.requests().into_iter().map(|it| it.target).collect();
    assert_eq!(targets, ["/first"]);
}

#[test]
fn a_head_of_http2_that_comes_byte_by_byte_is_cut_and_pings_are_not() {
    let gateway = Gateway::start("gateway: {headers_timeout: 1s}\nlimits: []");
    let (mut slow, mut quiet) = (Wire::open(&gateway), Wire::open(&gateway));
    slow.client.send(request(1, &plain("GET", "/first"), END_STREAM));
    assert_eq!(slow.outcome(1), Outcome::Passed);
    let fields = [plain("GET", "/"), field("x", &"y".repeat(100)).repeat(20)].concat();
    let head = frame(HEADERS, END_STREAM, 3, &fields);
    thread::scope(|scope| {
        scope.spawn(|| assert!(is_cut(&mut slow.client, &head)));
        scope.spawn(|| {
            const PING: u8 = 6;
            // For longer than a head may take.
            let pings = frame(PING, 0, 0, &[0; 8]).repeat(10);
            assert!(!is_cut(&mut quiet.client, &pings));
            quiet.client.send(request(1, &plain("GET", "/last"), END_STREAM));
            assert_eq!(quiet.outcome(1), Outcome::Passed);
        });
    });
    let targets: Vec<_> = gateway.upstream.requests().into_iter().map(|it| it.target).collect();
    assert_eq!(targets, ["/first", "/last"]);
}

#[test]
fn who_says_nothing_is_not_waited_for() {
    let gateway =
        Gateway::start("gateway: {headers_timeout: 500ms, idle_timeout: 500ms}\nlimits: []");
    let begins = ["", "G", "GET / HTTP/1.1\r\nHost: a\r\n", "PRI * HTTP/2.0\r\n\r\n"];
    let mut clients: Vec<Client> = begins.map(|_| gateway.connect()).into();
    for (client, begin) in clients.iter_mut().zip(begins) {
        client.send(begin);
    }
    let mut wire = Wire::open(&gateway);
    wire.client.send(frame(HEADERS, 0, 1, &plain("GET", "/")));
    clients.extend([wire.client, Wire::open(&gateway).client]);
    for mut client in clients {
        client.rest();
    }
    assert_eq!(gateway.upstream.requests(), []);
}

#[test]
fn a_body_that_stops_coming_is_cut() {
    let gateway =
        Gateway::start("gateway: {idle_timeout: 500ms, headers_timeout: 500ms}\nlimits: []");
    let mut client = gateway.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf");
    let mut wire = Wire::open(&gateway);
    wire.client.send(request(1, &plain("POST", "/"), 0));
    client.rest();
    wire.client.rest();
    let log = gateway.upstream.wait("both are cut", |log| log.count == 2 && log.open == 0);
    assert!(log.requests.iter().all(|it| !it.is_whole));
}

#[test]
fn a_response_that_nobody_reads_is_cut() {
    let upstream = Upstream::start(|exchange| {
        exchange.body();
        exchange.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
        let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
        while exchange.send(&chunk) {}
        exchange.close();
    });
    let gateway = Gateway::around(upstream, "gateway: {idle_timeout: 300ms}\nlimits: []");
    let mut client = gateway.connect();
    client.send("GET /endless HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut wire = Wire::open(&gateway);
    wire.client.send(request(1, &plain("GET", "/endless"), END_STREAM));
    gateway.upstream.wait("both are cut", |log| log.count == 2 && log.open == 0);
}

#[test]
fn a_response_that_takes_too_long_is_cut_whether_or_not_somebody_reads_it() {
    let upstream = Upstream::start(|exchange| {
        exchange.body();
        exchange.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
        let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
        while exchange.send(&chunk) {}
        exchange.close();
    });
    let policy = "gateway: {total_timeout: 300ms, idle_timeout: off}\nlimits: []";
    let gateway = Gateway::around(upstream, policy);
    let mut clients = [(); 2].map(|()| gateway.connect());
    for client in &mut clients {
        client.send("GET /endless HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    clients[0].rest();
    gateway.upstream.wait("both are cut", |log| log.count == 2 && log.open == 0);
}

#[test]
fn clients_that_stop_half_way_do_not_have_a_server_left_out() {
    let policy = "gateway: {headers_timeout: 300ms}\nlimits: []";
    let gateway = Gateway::start(policy);
    let mut clients = [(); 5].map(|()| gateway.connect());
    for client in &mut clients {
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf");
    }
    for mut client in clients {
        assert_eq!(client.answer().status, 504);
    }
    let figures = gateway.running.ask(Door::Admin, "GET /metrics", "").body;
    let failures = figures.lines().find(|it| it.starts_with("tollgate_upstream_failures_total{"));
    assert!(failures.is_some_and(|line| line.ends_with(" 0")), "{failures:?}");
}

#[test]
fn answers_that_nobody_reads_do_not_pile_up() {
    let gateway = Gateway::start("limits: []");
    let mut client = gateway.connect();
    let many = "GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(1_000);
    let taken = client.flood(many.as_bytes(), 1_000, Duration::from_millis(500));
    assert!(taken < 1_000, "it goes on taking requests whose answers nobody reads");
}
