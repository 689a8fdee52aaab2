//! Clients that mean no good, at every door; afterwards it still answers.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::Folder;
use crate::support::http::{self, Connection};
use crate::support::server::Server;

const POLICY: &str = "
listen: { http: 127.0.0.1:0, grpc: 127.0.0.1:0, admin: 127.0.0.1:0, resp: 127.0.0.1:0 }
limits: [{ name: all, rate: 1000000/second }]
";
const DOORS: [&str; 4] = ["http", "grpc", "admin", "resp"];

fn serve(folder: &Folder) -> Server {
    Server::start(Path::new(&folder.write("policy.yaml", POLICY)))
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("it is not zero");
    stream
}

/// Everything that comes back until the other side ends the connection, one way or the other.
fn read_to_end(mut stream: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => panic!("it is not closed"),
        _ => bytes,
    }
}

/// Whether every door answers a client that means well.
fn still_answers(server: &Server) {
    assert_eq!(server.get("http", "/v1/check").status, 200);
    assert_eq!(server.get("admin", "/healthz").status, 200);
    assert_eq!(resp(&mut connect(server.address("resp"))), *b"+PONG\r\n");
    grpc(&mut connect(server.address("grpc")));
}

fn resp(stream: &mut TcpStream) -> [u8; 7] {
    stream.write_all(b"PING\r\n").expect("it reads");
    let mut answer = [0; 7];
    stream.read_exact(&mut answer).expect("it answers");
    answer
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// A frame of no settings.
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];

/// Asks for the health of the gRPC door, byte by byte of HTTP/2.
fn grpc(stream: &mut TcpStream) {
    let mut block = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/grpc.health.v1.Health/Check"),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        // A literal that is not indexed, lengths below 127, no Huffman.
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).expect("it is short"));
            block.extend(text.as_bytes());
        }
    }
    let mut bytes = [PREFACE, &SETTINGS].concat();
    let mut frame = |kind: u8, flags: u8, payload: &[u8]| {
        let length = u8::try_from(payload.len()).expect("it is short");
        bytes.extend([0, 0, length, kind, flags, 0, 0, 0, 1]);
        bytes.extend(payload);
    };
    frame(1, 4, &block);
    // An empty message asks for the health of everything.
    frame(0, 1, &[0; 5]);
    stream.write_all(&bytes).expect("it reads");
    let mut answer: Vec<u8> = Vec::new();
    let serving = [0, 0, 0, 0, 2, 8, 1];
    while !answer.windows(serving.len()).any(|window| window == serving) {
        let mut some = [0; 1024];
        let read = stream.read(&mut some).expect("it answers");
        assert!(read > 0, "the connection ended: {answer:?}");
        answer.extend(&some[..read]);
    }
}

/// Bytes without a meaning, the same ones every time.
fn garbage(length: usize) -> Vec<u8> {
    let mut state: u64 = 42;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_le_bytes()[6]
    };
    (0..length).map(|_| next()).collect()
}

#[test]
fn bytes_without_a_meaning_end_a_connection_and_nothing_else() {
    let folder = Folder::new();
    let server = serve(&folder);
    for door in DOORS {
        for length in [1, 100, 10_000, 1_000_000] {
            let mut stream = connect(server.address(door));
            // It may be closed before everything is written.
            let _ = stream.write_all(&garbage(length));
            let _ = stream.shutdown(Shutdown::Write);
            read_to_end(stream);
        }
        still_answers(&server);
    }
}

#[test]
fn what_speaks_another_protocol_is_sent_away() {
    let folder = Folder::new();
    let server = serve(&folder);
    let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    for (door, spoken) in
        [("resp", &request[..]), ("grpc", request), ("http", b"*1\r\n$4\r\nPING\r\n")]
    {
        let mut stream = connect(server.address(door));
        stream.write_all(spoken).expect("it reads");
        let answer = read_to_end(stream);
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{door}");
    }
    still_answers(&server);
}

#[test]
fn a_client_that_has_said_everything_is_answered_and_one_that_has_not_is_let_go() {
    let folder = Folder::new();
    let server = serve(&folder);
    let mut stream = connect(server.address("admin"));
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert!(read_to_end(stream).starts_with(b"HTTP/1.1 200"), "half closed is not closed");
    let mut stream = connect(server.address("resp"));
    stream.write_all(b"PING\r\nPING\r\n").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_to_end(stream), b"+PONG\r\n+PONG\r\n");
    let halves: [(&str, &[u8]); 4] = [
        ("http", b"POST /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{"),
        ("admin", b"GET /healthz HT"),
        ("grpc", b"PRI * HTTP/2.0\r\n\r\nSM"),
        ("resp", b"*2\r\n$4\r\nPING\r\n$100\r\nab"),
    ];
    for (door, half) in halves {
        let mut stream = connect(server.address(door));
        stream.write_all(half).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        read_to_end(stream);
    }
    still_answers(&server);
}

#[test]
fn heads_and_bodies_have_an_end() {
    let folder = Folder::new();
    let server = serve(&folder);
    let huge = "x".repeat(1024 * 1024);
    for door in ["http", "admin"] {
        let mut connection = Connection::open(server.address(door));
        // It may be closed before everything is written, and with it the answer.
        let answer = connection.ask("GET", "/v1/check", &[("X-Huge", &huge)], "");
        assert!(answer.as_ref().map_or(true, |answer| answer.status == 431), "{answer:?}");
        let many: String = (0..1_000).map(|number| format!("x-{number}: 1\r\n")).collect();
        let mut connection = Connection::open(server.address(door));
        let head = format!("GET /v1/check HTTP/1.1\r\nHost: a\r\n{many}\r\n");
        let answer = connection.send(head.as_bytes()).and_then(|()| connection.answer());
        assert!(answer.as_ref().map_or(true, |answer| answer.status == 431), "{answer:?}");
    }
    let declared = [("Content-Length", "10000000000"), ("Expect", "100-continue")];
    let answer = http::request(server.address("http"), "POST", "/v1/check", &declared, "");
    assert_eq!(answer.status, 413, "before a byte of it is sent");
    let mut connection = Connection::open(server.address("http"));
    connection
        .send(b"POST /v1/check HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        .unwrap();
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    let sent = (0..1_000).take_while(|_| connection.send(chunk.as_bytes()).is_ok()).count();
    assert!(sent < 1_000, "64 MiB of a body were taken");
    // A command that says it is huge, and one that is.
    let mut stream = connect(server.address("resp"));
    stream.write_all(b"*2\r\n$4\r\nPING\r\n$1000000000\r\n").unwrap();
    assert!(read_to_end(stream).starts_with(b"-ERR"));
    let mut stream = connect(server.address("resp"));
    let _ = stream.write_all(&vec![b'x'; 1024 * 1024]);
    assert!(read_to_end(stream).len() < 1_000);
    still_answers(&server);
    assert!(server.process.resident_kib() < 256 * 1024, "{}", server.process.resident_kib());
}

#[test]
fn clients_that_take_their_time_are_in_nobodys_way() {
    let folder = Folder::new();
    let server = serve(&folder);
    let mut slow: Vec<TcpStream> = Vec::new();
    for door in DOORS {
        slow.extend((0..100).map(|_| connect(server.address(door))));
    }
    let beginnings: [&[u8]; 4] = [
        b"POST /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nX-Slow: ",
        b"*2\r\n$8\r\nTG.CHECK\r\n$4000\r\n",
    ];
    for at in 0..60 {
        for (number, stream) in slow.iter_mut().enumerate() {
            if let Some(byte) = beginnings[number / 100].get(at..=at) {
                stream.write_all(byte).expect("it waits for the rest");
            }
        }
        if at % 20 == 0 {
            still_answers(&server);
        }
    }
    still_answers(&server);
}

/// Lets this process, and those it starts, open as many files as the system lets it; tells how many.
fn raise_open_files() -> usize {
    let own = std::process::id().to_string();
    let limits = fs::read_to_string("/proc/self/limits").expect("Linux says so");
    let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("it is there");
    let most = line.split_whitespace().nth(4).expect("it has a hard limit").to_owned();
    let most_files = format!("--nofile={most}:{most}");
    let raised = Command::new("prlimit").args(["--pid", &own, &most_files]).status();
    assert!(raised.is_ok_and(|status| status.success()), "prlimit comes with Linux");
    most.parse().unwrap_or(usize::MAX)
}

#[test]
fn ten_thousand_idle_connections_take_less_than_20_kib_each() {
    check_idle("http", 20, |stream| get(stream, "/v1/check"));
    check_idle("admin", 20, |stream| get(stream, "/healthz"));
    check_idle("resp", 20, |stream| assert_eq!(resp(stream), *b"+PONG\r\n"));
    check_idle("grpc", 20, |stream| {
        stream.write_all(PREFACE).expect("it reads");
        stream.write_all(&SETTINGS).expect("it reads");
        // It greets with settings of its own.
        stream.read_exact(&mut [0; 9]).expect("it answers");
    });
    // HTTP/2 keeps the buffers of the first call.
    check_idle("grpc", 28, grpc);
}

/// Opens idle connections that were in use before; each may take so much memory.
fn check_idle(door: &str, most_kib: u64, use_it: fn(&mut TcpStream)) {
    // Other tests, and the server itself, need some files too.
    let count = raise_open_files().saturating_sub(500).min(10_000);
    assert!(count >= 500, "the system lets a process open too few files: {count} and 500 more");
    let folder = Folder::new();
    let server = serve(&folder);
    still_answers(&server);
    let before = server.process.resident_kib();
    let address = server.address(door);
    let open = |_| {
        let mut stream = connect(address);
        use_it(&mut stream);
        stream
    };
    let idle: Vec<TcpStream> = (0..count).map(open).collect();
    still_answers(&server);
    let each = (server.process.resident_kib() - before) * 1024 / count as u64;
    assert!(each < most_kib * 1024, "{door}: {each} bytes for each of {count}");
    drop(idle);
    still_answers(&server);
}

/// A request and its whole answer.
fn get(stream: &mut TcpStream, path: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let answer = Connection::over(stream).answer().expect("it answers");
    assert_eq!(answer.status, 200, "{answer:?}");
}
