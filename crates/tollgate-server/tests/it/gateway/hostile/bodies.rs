//! Bytes that come with a request that is not let through, or before they may.

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tollgate_server::Door;

use crate::gateway::Gateway;
use crate::gateway::client::Client;
use crate::gateway::upstream::{Exchange, Upstream};
use crate::grpc::client::stop;
use crate::server::{Running, eventually, with_doors};

/// Nobody may upload, and all may do anything else.
const POLICY: &str = "limits: [{name: a, when: {path: /upload}, rate: 0/hour}]";

/// A request that nobody sent, but which bodies here are made of.
const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";

/// What follows a request that was refused is answered as what it is, or not at all.
fn check_after(gateway: &Gateway, client: &mut Client) {
    if client.try_send("GET /after HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n") {
        assert!(client.next().is_none_or(|answer| answer.status == 200));
    }
    client.expect_end();
    for request in gateway.upstream.take_requests() {
        assert_eq!(request.target, "/after");
    }
}

#[test]
fn a_body_that_nobody_wants_is_not_taken_for_requests() {
    let gateway = Gateway::start(POLICY);
    for times in [1, 100, 1_000, 100_000] {
        let body = HIDDEN.repeat(times);
        let length = body.len();
        let (begin, rest) = body.split_at(length / 2);
        let mut client = gateway.connect();
        client
            .send(format!("POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"));
        assert_eq!(client.answer().status, 429, "before the body has come");
        let _ = client.try_send(begin) && client.try_send(rest);
        check_after(&gateway, &mut client);
        let mut client = gateway.connect();
        client.send("POST /upload HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        assert_eq!(client.answer().status, 429, "before the body has come");
        let _ = client.try_send(format!("{length:x}\r\n{body}\r\n0\r\n\r\n"));
        check_after(&gateway, &mut client);
    }
}

/// A client of HTTP/2 may send only so much before the other side has taken it. What is refused is
/// taken too, or the connection would be stuck.
#[tokio::test]
async fn bodies_that_nobody_wants_leave_room_for_others() {
    let gateway = Gateway::start(POLICY);
    let stream = TcpStream::connect(gateway.running.address(Door::Gateway)).await.unwrap();
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut requests, connection) = handshake.await.unwrap();
    let connection = tokio::spawn(connection);
    let mut post = |path: &str| {
        let request = http::Request::post(format!("http://a{path}"));
        requests.send_request(request.body(Full::new(Bytes::from(vec![b'x'; 200_000]))).unwrap())
    };
    for _ in 0..20 {
        assert_eq!(post("/upload").await.unwrap().status(), 429);
    }
    assert_eq!(post("/other").await.unwrap().status(), 200);
    let bodies: Vec<_> = gateway.upstream.requests().iter().map(|it| it.body.len()).collect();
    assert_eq!(bodies, [200_000]);
    connection.abort();
    stop(gateway.running).await;
}

#[test]
fn who_is_refused_is_not_told_to_go_on() {
    let gateway = Gateway::start(POLICY);
    let length = HIDDEN.len();
    let head = format!(
        "POST /upload HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n"
    );
    // One sends its body all the same, the other does not.
    for body in [HIDDEN, ""] {
        let mut client = gateway.connect();
        client.send(&head);
        assert_eq!(client.answer().status, 429);
        client.try_send(body);
        check_after(&gateway, &mut client);
    }
}

#[test]
fn nothing_is_passed_on_before_the_server_has_agreed_to_leave_http() {
    let upstream = Upstream::start(|exchange| {
        if exchange.request.target == "/no" {
            exchange.answer(200, "no");
            return;
        }
        exchange
            .send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n");
        let mut heard = Vec::new();
        while heard.len() < 5 {
            heard.extend(exchange.bytes());
        }
        exchange.send([b"heard ", &heard[..]].concat());
        exchange.close();
    });
    let gateway = Gateway::around(upstream, "limits: []");
    let ask = |path: &str| {
        let mut client = gateway.connect();
        client.send(format!(
            "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nearly"
        ));
        client
    };
    let mut client = ask("/yes");
    assert_eq!(client.head().unwrap().0, 101);
    assert_eq!(client.rest(), b"heard early");
    let mut client = ask("/no");
    assert_eq!(client.answer().text(), "no");
    drop(client);
    // The next on the same connection, behind anything that may have been passed on.
    assert_eq!(gateway.ask("GET /no").text(), "no");
    assert_eq!(gateway.upstream.requests().len(), 3);
    let early = |bytes: &&Vec<u8>| bytes.windows(5).any(|window| window == b"early");
    let connections = gateway.upstream.log().connections;
    assert_eq!(connections.iter().filter(early).count(), 1, "of the one that agreed");
}

#[test]
fn clients_that_break_off_are_no_failure_of_a_server() {
    let servers = [(); 2].map(|()| Upstream::start(Exchange::ok));
    let [one, other] = servers.each_ref().map(|it| it.address);
    let policy = format!("upstream: [http://{one}, http://{other}]\nlimits: []");
    let gateway = Running::with_files(&with_doors(&["gateway"], &policy), &[]);
    let connect = || Client::new(gateway.connect(Door::Gateway));
    let begin = "POST /bad HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    for _ in 0..6 {
        let mut client = connect();
        client.send(format!("{begin}x\r\n"));
        assert_eq!(client.answer().status, 400);
    }
    for _ in 0..6 {
        let begun = || servers.iter().map(|it| it.log().count).sum::<usize>();
        let before = begun();
        let mut client = connect();
        client.send(format!("{begin}1\r\nx\r\n"));
        eventually("it has come", || begun() > before);
    }
    for server in &servers {
        server.wait("all of them have broken off", |log| log.open == 0);
    }
    for _ in 0..4 {
        let mut client = connect();
        client.send("GET /good HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        assert_eq!(client.answer().status, 200);
    }
    for server in &servers {
        let good = server.log().requests.into_iter().filter(|it| it.target == "/good");
        assert_eq!(good.count(), 2, "each has its turn");
    }
}
