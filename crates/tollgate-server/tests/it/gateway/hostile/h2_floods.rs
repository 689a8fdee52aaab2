//! Connections of HTTP/2 that are all work and no request.

use std::fs;
use std::time::Duration;

use super::wire::{Outcome, Wire, plain, request};
use crate::gateway::Gateway;
use crate::grpc::frames::{
    CONTINUATION, DATA, END_STREAM, HEADERS, PING, SETTINGS, field, frame, reset,
};

const POLICY: &str = "limits: [{name: all, rate: 100000/hour, algorithm: sliding_log}]";

/// More than what other tests need meanwhile, and far less than a flood brings.
const GROWTH_MAX: usize = 256 << 20;

/// A connection from which nothing was taken for so long is stuck.
const STUCK: Duration = Duration::from_millis(500);

/// How much memory this process has.
fn memory() -> usize {
    let text = fs::read_to_string("/proc/self/statm").expect("the system tells");
    let pages: usize = text.split(' ').nth(1).and_then(|it| it.parse().ok()).expect("a number");
    pages * 4096
}

/// Whatever happens to a connection, others are served, and memory does not grow.
fn check(flood: impl FnOnce(&Gateway, &mut Wire)) {
    let gateway = Gateway::start(POLICY);
    let mut other = Wire::open(&gateway);
    let before = memory();
    let mut wire = Wire::open(&gateway);
    flood(&gateway, &mut wire);
    other.client.send(request(1, &plain("GET", "/other"), END_STREAM));
    assert_eq!(other.outcome(1), Outcome::Passed);
    assert_eq!(gateway.ask("GET /another").status, 200);
    let grown = memory().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "memory grew by {grown}");
}

/// Sends a frame more often than anybody who does not read may: what comes back would pile up.
fn check_unread(bytes: &[u8]) {
    check(|_, wire| {
        let many = bytes.repeat(64 * 1024 / bytes.len());
        let taken = wire.client.flood(&many, 1_024, STUCK);
        assert!(taken < 512, "it goes on taking what it would have to answer");
    });
}

/// So many requests, each of which is reset at once.
pub(super) fn resets(count: u32) -> impl Iterator<Item = Vec<u8>> {
    (0..count).map(|number| {
        let stream = 2 * number + 1;
        [request(stream, &plain("GET", "/reset"), END_STREAM), reset(stream)].concat()
    })
}

#[test]
fn requests_that_are_reset_at_once_are_charged_and_harm_nobody() {
    let resets: Vec<_> = resets(10_000).collect();
    // Each by itself, and as many as fit into what is read at a time.
    for pieces in [resets.clone(), resets.chunks(100).map(<[Vec<u8>]>::concat).collect()] {
        check(|gateway, wire| {
            let left = || gateway.ask("GET /left").remaining().expect("it is told");
            let before = left();
            gateway.upstream.take_requests();
            // A connection that makes so much of nothing may be ended.
            let _ = pieces.iter().all(|piece| wire.client.try_send(piece));
            let reached = gateway.upstream.requests();
            let reached = reached.iter().filter(|it| it.target == "/reset").count();
            let judged = before - left() - 1;
            assert!(reached as u64 <= judged, "{reached} reached the server, {judged} were judged");
        });
    }
}

#[test]
fn a_request_that_is_reset_after_it_was_let_in_is_charged() {
    let gateway = Gateway::start(POLICY);
    let mut wire = Wire::open(&gateway);
    let before = gateway.ask("GET /left").remaining().unwrap();
    for number in 0..5_u32 {
        let stream = 2 * number + 1;
        wire.client.send(request(stream, &plain("POST", "/reset"), 0));
        gateway.upstream.wait("it has come", |log| {
            log.requests.iter().filter(|it| it.target == "/reset").count() == number as usize + 1
        });
        wire.client.send(reset(stream));
    }
    let after = gateway.ask("GET /left").remaining().unwrap();
    assert_eq!(before - after, 5 + 1);
}

#[test]
fn a_head_that_does_not_end_ends_its_connection() {
    let long = field("x", &"y".repeat(100)).repeat(100);
    for more in [frame(CONTINUATION, 0, 1, &long), frame(CONTINUATION, 0, 1, &[]).repeat(100)] {
        check(|_, wire| {
            wire.client.send(frame(HEADERS, 0, 1, &plain("GET", "/")));
            wire.client.flood(&more, 10_000, STUCK);
            wire.client.rest();
        });
    }
}

#[test]
fn pings_whose_answers_nobody_reads_are_not_read_either() {
    check_unread(&frame(PING, 0, 0, &[0; 8]));
}

#[test]
fn settings_whose_answers_nobody_reads_are_not_read_either() {
    check_unread(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff]));
}

#[test]
fn a_body_of_no_request_ends_its_connection() {
    check(|_, wire| {
        wire.client.flood(&frame(DATA, 0, 1, b"body"), 10_000, STUCK);
        wire.client.rest();
    });
}

#[test]
fn a_body_of_empty_pieces_ends_its_connection() {
    let empty = frame(DATA, 0, 1, &[]);
    check(|gateway, wire| {
        let few = [request(1, &plain("POST", "/few"), 0), empty.repeat(10)].concat();
        wire.client.send([few, frame(DATA, END_STREAM, 1, b"end")].concat());
        assert_eq!(wire.outcome(1), Outcome::Passed);
        let requests = gateway.upstream.requests();
        assert_eq!(requests.last().map(|it| &*it.body), Some(&b"end"[..]));
    });
    check(|_, wire| {
        wire.client.send(request(1, &plain("POST", "/many"), 0));
        wire.client.flood(&empty.repeat(1_000), 1_000, STUCK);
        wire.client.rest();
    });
}
