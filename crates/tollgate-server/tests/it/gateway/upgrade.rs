//! Connections that leave HTTP.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::spawn_blocking;
use tokio_rustls::TlsAcceptor;

use super::client::Client;
use super::ends::config;
use super::script::{Script, connect, in_front_of};
use super::upstream::Upstream;
use crate::grpc::client::stop;
use crate::server::{Running, with_doors};
use crate::tls::Authority;

const ASK: &str = "GET /echo HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
const AGREE: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\nx-kept: yes\r\n\r\n";
const GET: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// A client and a server that have agreed to leave HTTP.
fn tunnel(gateway: &Running, upstream: &Script) -> (Client, Client) {
    let mut client = connect(gateway);
    client.send(ASK);
    let mut server = upstream.accept();
    let head = String::from_utf8(server.until(b"\r\n\r\n").expect("a request")).expect("text");
    assert!(head.contains("\r\nconnection: upgrade\r\n"), "{head}");
    assert!(head.contains("\r\nupgrade: echo\r\n"), "{head}");
    server.send(AGREE);
    let (status, fields) = client.head().expect("an answer");
    assert_eq!(status, 101);
    for (name, value) in [("connection", "upgrade"), ("upgrade", "echo"), ("x-kept", "yes")] {
        assert!(fields.contains(&(name.to_owned(), value.to_owned())), "{fields:?}");
    }
    (client, server)
}

fn pass(from: &mut Client, to: &mut Client, text: &str) {
    from.send(text);
    assert_eq!(to.take(text.len()).expect("it passes"), text.as_bytes());
}

#[test]
fn what_has_left_http_passes_byte_by_byte_until_both_sides_have_ended() {
    let upstream = Script::new();
    let gateway = in_front_of(upstream.url(), "");
    let (mut client, mut server) = tunnel(&gateway, &upstream);
    pass(&mut client, &mut server, "not\0HTTP\r\n\r\n");
    pass(&mut server, &mut client, "GET / HTTP/1.1\r\n\r\n");
    let much = "x".repeat(100_000);
    pass(&mut client, &mut server, &much);
    client.end();
    server.expect_end();
    pass(&mut server, &mut client, "one side may go on");
    drop(server);
    client.expect_end();

    let (mut client, mut server) = tunnel(&gateway, &upstream);
    server.end();
    client.expect_end();
    pass(&mut client, &mut server, "and so may the other");
    drop(client);
    server.expect_end();

    // What was left behind is used by nobody.
    let mut client = connect(&gateway);
    client.send(GET);
    let mut server = upstream.accept();
    server.until(b"\r\n\r\n");
    server.send(OK);
    assert_eq!(client.answer().status, 200);
}

#[test]
fn nothing_gets_to_the_server_before_it_has_agreed() {
    let upstream = Script::new();
    let gateway = in_front_of(upstream.url(), "");
    let mut client = connect(&gateway);
    client.send(format!("{ASK}early"));
    let mut server = upstream.accept();
    server.until(b"\r\n\r\n");
    server.expect_silence(Duration::from_millis(50));
    server.send(format!("{AGREE}prompt"));
    assert_eq!(client.head().expect("an answer").0, 101);
    assert_eq!(client.take(6).expect("it passes"), b"prompt");
    assert_eq!(server.take(5).expect("it passes"), b"early");

    let mut client = connect(&gateway);
    client.send(format!("{ASK}GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n"));
    let mut server = upstream.accept();
    server.until(b"\r\n\r\n");
    server.send("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno");
    assert_eq!(client.answer().text(), "no");
    // It is a request of its own, as it stands there.
    let mut server = upstream.accept();
    let head = server.until(b"\r\n\r\n").expect("a request");
    assert!(head.starts_with(b"GET /smuggled "), "{}", head.escape_ascii());
    server.send(OK);
    assert_eq!(client.answer().text(), "ok");
}

#[test]
fn a_client_that_goes_before_the_server_agrees_keeps_no_tunnel_waiting() {
    let upstream = Script::new();
    let gateway = in_front_of(upstream.url(), "");
    let mut client = connect(&gateway);
    client.send(GET);
    let mut server = upstream.accept();
    server.until(b"\r\n\r\n");
    server.send("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok");
    // What is early hides from the gateway that the client has gone, until it is answered.
    client.send(format!("{ASK}early"));
    let mut server = upstream.accept();
    server.until(b"\r\n\r\n");
    // It has not read its first answer, so that this is not an end but a reset.
    drop(client);
    server.send(AGREE);
    server.expect_end();
}

#[test]
fn a_server_that_leaves_http_unasked_is_502() {
    let upstream = Script::new();
    let gateway = in_front_of(upstream.url(), "");
    let mut client = connect(&gateway);
    client.send(GET);
    let mut server = upstream.accept();
    server.until(b"\r\n\r\n");
    server.send(format!("{AGREE}and more"));
    assert_eq!(client.answer().status, 502);
    server.expect_end();
}

#[test]
fn a_tunnel_in_which_nothing_moves_is_closed() {
    let upstream = Script::new();
    let gateway = in_front_of(upstream.url(), "gateway: { idle_timeout: 200ms }");
    let (mut client, mut server) = tunnel(&gateway, &upstream);
    for _ in 0..10 {
        client.expect_silence(Duration::from_millis(50));
        pass(&mut server, &mut client, "it goes on");
    }
    client.expect_end();
    server.expect_end();
}

#[tokio::test]
async fn a_server_that_prefers_http_2_is_asked_in_http_1_to_leave_it() {
    let authority = Authority::new();
    let own = authority.sign("127.0.0.1");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config(&own, &[b"h2", b"http/1.1"])));
    let serving = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = acceptor.accept(stream).await.unwrap();
        let protocol = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(AGREE.as_bytes()).await.unwrap();
        let mut heard = [0; 5];
        stream.read_exact(&mut heard).await.unwrap();
        stream.write_all(&heard).await.unwrap();
        protocol
    });
    let policy = format!("upstream: https://{address}\ngateway: {{ ca: ca.pem }}\nlimits: []");
    let files = [("ca.pem", &*authority.cert)];
    let gateway = Running::with_files(&with_doors(&["gateway"], &policy), &files);
    let mut client = connect(&gateway);
    let said = spawn_blocking(move || {
        client.send(ASK);
        assert_eq!(client.head().expect("an answer").0, 101);
        client.send("hello");
        let heard = client.take(5).expect("it passes");
        client.expect_end();
        heard
    });
    assert_eq!(said.await.unwrap(), b"hello");
    assert_eq!(serving.await.unwrap().as_deref(), Some(&b"http/1.1"[..]));
    stop(gateway).await;
}

#[test]
fn a_server_that_cannot_be_asked_to_leave_http_is_not_left_out_for_it() {
    // It takes connections and ends them, as one that speaks HTTP/2 alone when it is asked in HTTP/1.1.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let odd = listener.local_addr().expect("it is bound");
    let (dialled, dials) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            drop(stream);
            if dialled.send(()).is_err() {
                return;
            }
        }
    });
    let other = Upstream::start(|exchange| exchange.answer(200, "ok"));
    let gateway = in_front_of(format!("[\"h2c://{odd}\", \"http://{}\"]", other.address), "");
    for _ in 0..8 {
        let mut client = connect(&gateway);
        client.send(ASK);
        client.head().expect("an answer");
    }
    assert!(dials.try_iter().count() >= 3, "it was asked often enough");
    let mut client = connect(&gateway);
    for _ in 0..4 {
        client.send(GET);
        assert_eq!(client.answer().status, 200);
    }
    assert!(dials.try_iter().count() > 0, "it still has its turn");
}
