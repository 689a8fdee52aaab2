//! Callers of the HTTP door that go away before they have read what they were given.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use serde_json::{Value, json};
use tollgate_harness::{Flavour, Proxy, Server};
use tollgate_server::Door;

use crate::server::{Answer, Running, eventually};
use crate::tls::{Authority, client};

/// A lease that no test waits for.
const LIMITS: &str = "limits: [{ name: jobs, per: [worker], concurrency: 1, lease: 1h }]";

const BODIES: [(&str, &str); 3] = [
    ("check", r#"{"attributes": {"worker": "7"}}"#),
    ("check/batch", r#"[{"attributes": {"worker": "7"}}, {"attributes": {"worker": "8"}}]"#),
    ("reserve", r#"{"attributes": {"worker": "7"}}"#),
];

/// Both ways to say how long a connection is wanted.
const WISHES: [&str; 2] = ["keep-alive", "close"];

fn request(path: &str, wish: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST /v1/{path} HTTP/1.1\r\nhost: localhost\r\nconnection: {wish}\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
}

/// A connection over which a slot has been asked for.
fn asking(running: &Running, path: &str, wish: &str, body: &str) -> TcpStream {
    let mut stream = running.connect(Door::Http);
    stream.write_all(request(path, wish, body).as_bytes()).expect("it reads");
    stream
}

fn check(running: &Running, worker: &str) -> Answer {
    running.ask(Door::Http, &format!("GET /v1/check?worker={worker}"), "")
}

fn release(running: &Running, lease: &Value) -> u16 {
    let body = json!({ "lease": lease }).to_string();
    running.ask(Door::Http, "POST /v1/release", &body).status
}

/// Says that the slots of both workers are to be had.
fn are_free(running: &Running) {
    for worker in ["7", "8"] {
        let mut answer = Value::Null;
        eventually("the slot is free", || {
            answer = check(running, worker).json();
            answer["allowed"] == true
        });
        assert_eq!(release(running, &answer["lease"]), 200);
    }
}

#[test]
fn a_caller_that_goes_without_reading_keeps_no_slot() {
    let running = Running::start(&["http"], LIMITS);
    for (path, body) in BODIES {
        for wish in WISHES {
            for _ in 0..5 {
                drop(asking(&running, path, wish, body));
                are_free(&running);
            }
        }
    }
}

#[test]
fn a_caller_that_asks_for_many_slots_in_one_breath_and_goes_keeps_none() {
    let limits = "limits: [{ name: jobs, per: [worker], concurrency: 100, lease: 1h }]";
    let running = Running::start(&["http"], limits);
    let [(path, body), ..] = BODIES;
    // Plain checks, whose answers take more than one write, and those that are not.
    for fields in ["", "te: trailers\r\n"] {
        let ask = request(path, "keep-alive", body)
            .replace("connection:", &format!("{fields}connection:"));
        let mut stream = running.connect(Door::Http);
        stream.write_all(ask.repeat(90).as_bytes()).expect("it reads");
        eventually("all are answered", || remaining(&running) <= 100 - 90);
        drop(stream);
        eventually("all slots are free", || remaining(&running) == 100);
    }
}

/// Slots that are free.
fn remaining(running: &Running) -> u64 {
    let answer = running.ask(Door::Http, "GET /v1/check?worker=7&cost=0", "").json();
    answer["limits"][0]["remaining"].as_u64().expect("a number")
}

#[test]
fn a_lease_that_was_renewed_is_not_taken_back() {
    let running = Running::start(&["http"], LIMITS);
    let [(path, body), ..] = BODIES;
    let both = [body, &body.replace('7', "8")].map(|body| request(path, "keep-alive", body));
    let mut stream = running.connect(Door::Http);
    stream.write_all(both.concat().as_bytes()).expect("it reads");
    let lease = read(&mut stream)["lease"].clone();
    let renew = json!({ "lease": lease }).to_string();
    assert_eq!(running.ask(Door::Http, "POST /v1/renew", &renew).status, 200);
    // Closed with bytes unread, so that it is reset.
    eventually("the second is answered", || stream.peek(&mut [0; 1]).is_ok_and(|bytes| bytes == 1));
    drop(stream);
    eventually("what was not read is free", || check(&running, "8").json()["allowed"] == true);
    assert_eq!(check(&running, "7").json()["allowed"], false);
    assert_eq!(release(&running, &lease), 200);
}

#[test]
fn a_check_without_a_body_in_its_answer_gives_no_lease() {
    let running = Running::start(&["http"], LIMITS);
    assert_eq!(running.ask(Door::Http, "HEAD /v1/check?worker=7", "").status, 200);
    are_free(&running);
}

#[test]
fn a_caller_that_goes_while_redis_is_asked_keeps_no_slot() {
    let redis = Server::start(Flavour::Redis);
    let proxy = Proxy::start(redis.address());
    let store = format!("store: {{ redis: {{ url: '{}', timeout: 10s }} }}\n{LIMITS}", proxy.url());
    let running = Running::start(&["http"], &store);
    are_free(&running);
    for (path, body) in BODIES {
        for wish in WISHES {
            for is_half_closed in [false, true] {
                for _ in 0..3 {
                    proxy.hang();
                    let stream = asking(&running, path, wish, body);
                    if is_half_closed {
                        stream.shutdown(Shutdown::Write).unwrap();
                    }
                    drop(stream);
                    proxy.heal();
                    are_free(&running);
                }
            }
        }
    }
}

#[test]
fn who_closes_its_side_and_reads_has_what_it_is_given() {
    let running = Running::start(&["http"], LIMITS);
    for wish in WISHES {
        for is_half_closed in [false, true] {
            for _ in 0..5 {
                let (path, body) = BODIES[0];
                let mut stream = asking(&running, path, wish, body);
                if is_half_closed {
                    stream.shutdown(Shutdown::Write).unwrap();
                }
                let lease = read(&mut stream)["lease"].clone();
                drop(stream);
                // For longer than the connection is looked at.
                for _ in 0..20 {
                    assert_eq!(check(&running, "7").status, 429, "{wish}");
                }
                assert_eq!(release(&running, &lease), 200, "{wish}");
            }
        }
    }
}

/// Reads one answer, whether the connection ends with it or not.
fn read(stream: &mut impl Read) -> Value {
    let mut text = String::new();
    loop {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("it answers");
        text.push(char::from(byte[0]));
        if let Some((_, body)) = text.split_once("\r\n\r\n")
            && let Ok(answer) = serde_json::from_str(body)
        {
            return answer;
        }
    }
}

#[test]
fn over_tls_who_goes_keeps_no_slot_and_who_reads_has_it() {
    let authority = Authority::new();
    let own = authority.sign("localhost");
    let policy = format!(
        "listen:\n  admin: 127.0.0.1:0\n  \
         http: {{ address: 127.0.0.1:0, tls: {{ cert: a.pem, key: a.key }} }}\n{LIMITS}\n"
    );
    let running = Running::with_files(&policy, &[("a.pem", &own.cert), ("a.key", &own.key)]);
    let config = Arc::new(client(&authority, None, b"http/1.1"));
    let ask = |path: &str, body: &str| {
        let name = ServerName::try_from("localhost").expect("a name");
        let connection = ClientConnection::new(Arc::clone(&config), name).expect("a client");
        let mut stream = StreamOwned::new(connection, running.connect(Door::Http));
        stream.write_all(request(path, WISHES[0], body).as_bytes()).expect("it reads");
        stream
    };
    let (path, body) = BODIES[0];
    for says_goodbye in [true, false] {
        for _ in 0..5 {
            let mut stream = ask(path, body);
            let lease = read(&mut stream)["lease"].clone();
            if says_goodbye {
                stream.conn.send_close_notify();
                stream.flush().expect("it reads");
            }
            drop(stream);
            assert_eq!(read(&mut ask(path, body))["allowed"], false);
            let released = read(&mut ask("release", &json!({ "lease": lease }).to_string()));
            assert_eq!(released, json!({"released": true}));

            drop(ask(path, body));
            let held = || running.ask(Door::Admin, "GET /metrics", "").body;
            eventually("the slot is back", || held().contains("\ntollgate_leases 0\n"));
        }
    }
}
