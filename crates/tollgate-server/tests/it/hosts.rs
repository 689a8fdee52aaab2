//! Whom a request is for.

use std::io::{Read, Write};

use tollgate_server::Door;

use crate::server::{Answer, Running};

fn send(running: &Running, door: Door, head: &str) -> u16 {
    let mut stream = running.connect(door);
    let head = head.replace('\n', "\r\n");
    stream.write_all(format!("{head}\r\nconnection: close\r\n\r\n").as_bytes()).expect("it reads");
    Answer::read(&mut stream).status
}

#[test]
fn a_request_is_for_one_host() {
    let running = Running::start(&["http", "admin"], "limits: []");
    for (door, path) in [(Door::Http, "/v1/check"), (Door::Admin, "/healthz")] {
        let ask = |head: &str| send(&running, door, &head.replace("PATH", path));
        assert_eq!(ask("GET PATH HTTP/1.1\nhost: a"), 200);
        assert_eq!(ask("GET PATH HTTP/1.1\naccept: */*"), 400, "none");
        assert_eq!(ask("GET PATH HTTP/1.1\nhost: a\nhost: a"), 400, "two");
        assert_eq!(
            ask("GET http://b PATH HTTP/1.1\nhost: a".replace(" PATH", "PATH").as_str()),
            400
        );
        assert_eq!(
            ask("GET http://A PATH HTTP/1.1\nhost: a".replace(" PATH", "PATH").as_str()),
            200
        );
        assert_eq!(ask("GET PATH HTTP/1.0\naccept: */*"), 200, "HTTP/1.0 knows none");
    }
}

#[test]
fn a_request_is_answered_before_what_follows_it_is_read() {
    let running = Running::start(&["http"], "limits: []");
    let one = "GET /v1/check HTTP/1.1\r\nhost: a\r\n\r\n";
    for rest in ["\r\n", "GET /v1/che", "\0\u{1}garbage\r\n\r\n"] {
        let mut stream = running.connect(Door::Http);
        stream.write_all(format!("{one}{rest}").as_bytes()).unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        assert_eq!(&head, b"HTTP/1.1 200", "{rest:?}");
    }
}

#[test]
fn what_is_no_request_is_told_so() {
    let running = Running::start(&["http"], "limits: []");
    for head in [
        "GARBAGE",
        "GET /v1/check HTTP/1.1\nhost: a\ncontent-length: +2",
        "GET /v1/check HTTP/1.1\nhost: a\ncontent-length: 1\ncontent-length: 2",
        "GET /v1/check HTTP/1.1\nhost: a\nna me: b",
    ] {
        assert_eq!(send(&running, Door::Http, head), 400, "{head}");
    }
}

#[test]
fn answers_that_nobody_reads_do_not_pile_up() {
    let running = Running::start(&["http"], "limits: []");
    let mut stream = running.connect(Door::Http);
    stream.set_write_timeout(Some(std::time::Duration::from_secs(1))).unwrap();
    // What is asked for is a hundred times as long as the asking.
    let asked = "GET /openapi.json HTTP/1.1\r\nhost: a\r\n\r\n".repeat(1_000);
    let mut taken = 0;
    while stream.write_all(asked.as_bytes()).is_ok() {
        taken += asked.len();
        assert!(taken < 32 << 20, "it goes on taking requests whose answers nobody reads");
    }
}
