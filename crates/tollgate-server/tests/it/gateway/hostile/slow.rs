//! Clients that take their time.

use std::time::Duration;

use super::wire::{Wire, plain, request};
use crate::gateway::Gateway;
use crate::gateway::client::Client;
use crate::gateway::upstream::Upstream;
use crate::grpc::frames::{HEADERS, frame};

/// How long a slow client waits between two bytes.
const BETWEEN: Duration = Duration::from_millis(20);

/// Sends byte after byte; whether the connection ended before the last.
fn is_cut(client: &mut Client, bytes: &[u8]) -> bool {
    bytes.iter().any(|byte| !client.try_send([*byte]) || client.ends_within(BETWEEN))
}

#[test]
fn a_head_that_comes_byte_by_byte_is_cut() {
    let gateway = Gateway::start("gateway: {headers_timeout: 200ms}\nlimits: []");
    // Nobody sends so long a head in time.
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "y".repeat(2_000));
    let mut client = gateway.connect();
    assert!(is_cut(&mut client, head.as_bytes()), "the first head");
    let mut client = gateway.connect();
    client.send("GET /first HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.answer().status, 200);
    assert!(is_cut(&mut client, head.as_bytes()), "the second");
    let mut client = gateway.connect();
    assert!(is_cut(&mut client, &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".repeat(10)), "no preface");
    let targets: Vec<_> = gateway.upstream.requests().into_iter().map(|it| it.target).collect();
    assert_eq!(targets, ["/first"]);
}

#[test]
fn who_says_nothing_is_not_waited_for() {
    let gateway =
        Gateway::start("gateway: {headers_timeout: 200ms, idle_timeout: 200ms}\nlimits: []");
    let begins = ["", "G", "GET / HTTP/1.1\r\nHost: a\r\n", "PRI * HTTP/2.0\r\n\r\n"];
    for begin in begins {
        let mut client = gateway.connect();
        client.send(begin);
        client.rest();
    }
    let mut wire = Wire::open(&gateway);
    wire.client.rest();
    let mut wire = Wire::open(&gateway);
    wire.client.send(frame(HEADERS, 0, 1, &plain("GET", "/")));
    wire.client.rest();
    assert_eq!(gateway.upstream.requests(), []);
}

#[test]
fn a_body_that_stops_coming_is_cut() {
    let gateway =
        Gateway::start("gateway: {idle_timeout: 200ms, headers_timeout: 200ms}\nlimits: []");
    let mut client = gateway.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf");
    client.rest();
    let mut wire = Wire::open(&gateway);
    wire.client.send(request(1, &plain("POST", "/"), 0));
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
    wire.client.send(request(1, &plain("GET", "/endless"), crate::grpc::frames::END_STREAM));
    gateway.upstream.wait("both are cut", |log| log.count == 2 && log.open == 0);
}
