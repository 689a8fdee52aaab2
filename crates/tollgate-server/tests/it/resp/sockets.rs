//! The door on real sockets, and real clients at it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use tollgate_server::Door;

use crate::server::{Running, eventually};

const LIMITS: &str = "limits: [{name: api, per: [user], rate: 5/day, algorithm: fixed_window}]";

fn start() -> Running {
    Running::start(&["resp"], LIMITS)
}

/// A server that asks for a token.
fn start_guarded() -> Running {
    let listen = "listen: {resp: {address: '127.0.0.1:0', token_file: token}}";
    Running::with_files(&format!("{listen}\n{LIMITS}\n"), &[("token", "sesame\n")])
}

/// Reads as much as is expected, and compares.
fn expect(stream: &mut TcpStream, expected: &str) {
    let mut read = vec![0; expected.len()];
    stream.read_exact(&mut read).expect("a reply");
    assert_eq!(str::from_utf8(&read).expect("text"), expected);
}

fn expect_end(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    // A connection that is reset is closed too.
    let _ = stream.read_to_end(&mut rest);
    assert_eq!(rest.escape_ascii().to_string(), "");
}

#[test]
fn a_pipeline_is_answered_in_order() {
    let server = start();
    let mut stream = server.connect(Door::Resp);
    stream.write_all(&b"PING\r\nECHO a\r\n*1\r\n$4\r\nPING\r\n".repeat(1_000)).unwrap();
    expect(&mut stream, &"+PONG\r\n$1\r\na\r\n+PONG\r\n".repeat(1_000));
}

#[test]
fn connections_share_what_is_counted() {
    let server = start();
    for left in (0..5).rev() {
        let mut stream = server.connect(Door::Resp);
        stream.write_all(b"TG.CHECK user 42\r\n").unwrap();
        expect(&mut stream, &format!("*7\r\n:1\r\n:5\r\n:{left}\r\n:-1\r\n"));
    }
    let mut stream = server.connect(Door::Resp);
    stream.write_all(b"TG.CHECK user 42\r\n").unwrap();
    expect(&mut stream, "*7\r\n:0\r\n:5\r\n:0\r\n:");
}

#[test]
fn a_client_that_half_closes_still_gets_its_replies() {
    let server = start();
    let mut stream = server.connect(Door::Resp);
    stream.write_all(b"PING\r\nPING\r\nPI").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    expect(&mut stream, "+PONG\r\n+PONG\r\n");
    expect_end(&mut stream);
}

#[test]
fn a_client_that_is_refused_learns_why_and_others_are_served() {
    let server = start();
    let mut other = server.connect(Door::Resp);
    let mut stream = server.connect(Door::Resp);
    // More than is read before it is refused.
    let _ = stream.write_all(&vec![b'x'; 1 << 20]);
    expect(&mut stream, "-ERR Protocol error: too big inline request");
    let mut web = server.connect(Door::Resp);
    web.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    expect_end(&mut web);
    other.write_all(b"PING\r\nQUIT\r\n").unwrap();
    expect(&mut other, "+PONG\r\n+OK\r\n");
    expect_end(&mut other);
}

#[test]
fn what_arrived_before_the_end_is_answered() {
    let mut server = start();
    let mut streams: Vec<_> = (0..20).map(|_| server.connect(Door::Resp)).collect();
    for stream in &mut streams {
        stream.write_all(b"PING\r\n").unwrap();
        expect(stream, "+PONG\r\n");
    }
    for stream in &mut streams {
        stream.write_all(b"CL.THROTTLE k 99 1 1\r\nPI").unwrap();
    }
    server.begin_to_stop();
    for stream in &mut streams {
        expect(stream, "*5\r\n:0\r\n:100\r\n:");
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert!(rest.ends_with("\r\n"), "{rest:?}");
    }
}

#[test]
fn a_door_with_a_token_asks_for_it() {
    let server = start_guarded();
    let mut stream = server.connect(Door::Resp);
    stream.write_all(b"PING\r\nAUTH x\r\nAUTH sesame\r\nPING\r\n").unwrap();
    expect(&mut stream, "-NOAUTH Authentication required.\r\n");
    expect(&mut stream, "-WRONGPASS this is not the token\r\n+OK\r\n+PONG\r\n");
}

#[test]
fn a_token_that_changes_is_asked_for_on_connections_that_are_open() {
    let server = start_guarded();
    let mut stream = server.connect(Door::Resp);
    stream.write_all(b"AUTH sesame\r\nPING\r\n").unwrap();
    expect(&mut stream, "+OK\r\n+PONG\r\n");
    server.folder.write("token", "mellon\n");
    eventually("the old token is no longer taken", || {
        let mut other = server.connect(Door::Resp);
        other.write_all(b"AUTH mellon\r\n").unwrap();
        let mut first = [0];
        other.read_exact(&mut first).unwrap();
        first == *b"+"
    });
    stream.write_all(b"PING\r\nAUTH mellon\r\nPING\r\n").unwrap();
    expect(&mut stream, "-NOAUTH Authentication required.\r\n+OK\r\n+PONG\r\n");
}

/// What the real redis-cli shows.
fn redis_cli(server: &Running, arguments: &[&str]) -> String {
    let output = Command::new("redis-cli")
        .args([
            "-p",
            &server.address(Door::Resp).port().to_string(),
            "--no-auth-warning",
            "--no-raw",
        ])
        .args(arguments)
        .output()
        .expect("redis-cli is installed: it is in Debian's package redis-tools");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text").trim_end().to_owned()
}

#[test]
fn redis_cli_can_talk_to_it() {
    let server = start();
    for protocol in ["-2", "-3"] {
        let ask = |arguments: &[&str]| redis_cli(&server, &[&[protocol], arguments].concat());
        assert_eq!(ask(&["PING"]), "PONG");
        assert_eq!(ask(&["ECHO", "a \"b\"\r\n"]), r#""a \"b\"\r\n""#);
        assert_eq!(
            ask(&["CL.THROTTLE", protocol, "15", "30", "60"]),
            "1) (integer) 0\n2) (integer) 16\n3) (integer) 15\n4) (integer) -1\n5) (integer) 2"
        );
        let denied = ask(&["CL.THROTTLE", protocol, "15", "30", "60", "17"]);
        assert!(denied.starts_with("1) (integer) 1\n2) (integer) 16\n"), "{denied}");
        let checked = ask(&["TG.CHECK", "user", protocol]);
        assert!(
            checked.starts_with("1) (integer) 1\n2) (integer) 5\n3) (integer) 4\n"),
            "{checked}"
        );
        assert!(checked.ends_with("\n6) \"api\"\n7) (integer) 0"), "{checked}");
        assert_eq!(ask(&["NO"]), "(error) ERR unknown command 'NO'");
        assert_eq!(ask(&["CLIENT", "GETNAME"]), "(nil)");
    }
    let told = redis_cli(&server, &["-3", "HELLO"]);
    assert!(told.starts_with("1# \"server\" => \"tollgate\""), "{told}");
}

#[test]
fn redis_cli_shows_its_token() {
    let server = start_guarded();
    assert_eq!(redis_cli(&server, &["-a", "sesame", "PING"]), "PONG");
    assert_eq!(redis_cli(&server, &["-3", "--user", "me", "-a", "sesame", "PING"]), "PONG");
    assert!(redis_cli(&server, &["PING"]).contains("NOAUTH"));
}
