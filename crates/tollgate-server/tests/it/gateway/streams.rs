//! Bodies pass as they come, whatever both sides speak.

use std::pin::Pin;
use std::task::{Context, Poll};

use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tollgate_server::Door;
use tonic::codegen::tokio_stream::wrappers::UnboundedReceiverStream;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tower_service::Service;

use super::ends::{Client, Pipe, Server, next, next_text, soon};
use super::script::{Script, connect, in_front_of};
use crate::grpc::client::stop;
use crate::server::{Running, with_doors};
use crate::tls::Authority;

/// A request and its response, each of which is read before its next part is sent, and while the
/// other goes on.
async fn pass_both_ways(client: &mut Client, server: &mut Server, path: &str) {
    let (sent, body) = Pipe::new();
    let mut request = client.post(path, body);
    request.headers_mut().insert("te", HeaderValue::from_static("trailers"));
    request.headers_mut().insert("trailer", HeaderValue::from_static("x-sum"));
    let response = client.send(request);
    sent.send("first").await;
    let arrived = server.next().await;
    let mut request = arrived.request.into_body();
    assert_eq!(next_text(&mut request).await, "first");
    sent.send("second").await;
    assert_eq!(next_text(&mut request).await, "second");

    let (replied, body) = Pipe::new();
    let answer = Response::builder().header("trailer", "x-check").body(body).expect("a response");
    arrived.answer.send(answer).expect("it is waited for");
    let mut response = soon(response).await.expect("an answer").into_body();
    replied.send("one").await;
    assert_eq!(next_text(&mut response).await, "one");
    sent.send("third").await;
    assert_eq!(next_text(&mut request).await, "third");
    sent.end("x-sum", "1 2 3").await;
    let trailers = next(&mut request).await.expect("a trailer").into_trailers().expect("not data");
    assert_eq!(trailers["x-sum"], "1 2 3");
    assert!(next(&mut request).await.is_none());

    // More than any window holds.
    let much = vec![b'x'; 3 << 20];
    let sending = tokio::spawn({
        let much = much.clone();
        async move {
            replied.send(much).await;
            replied.end("x-check", "ok").await;
        }
    });
    let (mut length, mut trailers) = (0, None);
    while let Some(frame) = next(&mut response).await {
        match frame.into_data() {
            Ok(bytes) => length += bytes.len(),
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    assert_eq!(length, much.len());
    assert_eq!(trailers.expect("a trailer")["x-check"], "ok");
    sending.await.expect("all is sent");
}

#[tokio::test]
async fn bodies_and_trailers_pass_as_they_come_between_all_versions_with_tls_and_without() {
    let authority = Authority::new();
    let (own, theirs) = (authority.sign("localhost"), authority.sign("127.0.0.1"));
    let mut servers = Vec::new();
    for certificate in [None, Some(&theirs)] {
        for is_http2 in [false, true] {
            servers.push(Server::start(is_http2, certificate).await);
        }
    }
    let routes: String = (servers.iter().enumerate())
        .map(|(number, it)| format!("  - {{ when: {{ path: /{number} }}, to: {} }}\n", it.url))
        .collect();
    let policy = format!("upstream:\n{routes}gateway: {{ ca: ca.pem }}\nlimits: []");
    let plain = with_doors(&["gateway"], &policy);
    let tls = "{ address: 127.0.0.1:0, tls: { cert: a.pem, key: a.key } }";
    let files = [("a.pem", &*own.cert), ("a.key", &*own.key), ("ca.pem", &*authority.cert)];
    for (trusted, listen) in
        [(None, plain.clone()), (Some(&authority), plain.replace("127.0.0.1:0", tls))]
    {
        let gateway = Running::with_files(&listen, &files);
        for is_http2 in [false, true] {
            let mut client = Client::connect(&gateway, is_http2, trusted).await;
            for (number, server) in servers.iter_mut().enumerate() {
                pass_both_ways(&mut client, server, &format!("/{number}")).await;
            }
        }
        stop(gateway).await;
    }
}

#[test]
fn trailers_of_http_1_go_to_whoever_asks_for_them() {
    let upstream = Script::new();
    let gateway = in_front_of(upstream.url(), "");
    let mut client = connect(&gateway);
    let mut server = None;
    for (asks, ending) in [("te: trailers\r\n", "0\r\nx-check: ok\r\n\r\n"), ("", "0\r\n\r\n")] {
        let body = "3\r\nabc\r\n0\r\nx-sum: 6\r\n\r\n";
        let framing = "transfer-encoding: chunked\r\ntrailer: x-sum";
        client.send(format!("POST / HTTP/1.1\r\nhost: a\r\n{asks}{framing}\r\n\r\n{body}"));
        // One connection for both: what has trailers ends as well.
        let server = server.get_or_insert_with(|| upstream.accept());
        server.until(b"\r\n\r\n");
        assert_eq!(server.take(body.len()).expect("a body"), body.as_bytes());
        server.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-check\r\n\r\n");
        server.send("5\r\nhello\r\n0\r\nx-check: ok\r\n\r\n");
        assert_eq!(client.head().expect("an answer").0, 200);
        assert_eq!(client.chunk().expect("it goes on").expect("a chunk"), b"hello");
        let read = client.take(ending.len()).expect("its end");
        assert_eq!(String::from_utf8(read).unwrap(), ending);
    }
}

/// What gRPC is spoken over.
#[derive(Clone)]
struct Channel(SendRequest<tonic::body::Body>);

impl Service<Request<tonic::body::Body>> for Channel {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = hyper::Result<Response<Incoming>>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

#[tokio::test]
async fn grpc_passes_one_message_or_streams_of_them_with_their_status() {
    let service = Running::with_files("listen: {grpc: 127.0.0.1:0}\nlimits: []\n", &[]);
    let gateway = in_front_of(format!("h2c://{}", service.address(Door::Grpc)), "");
    let stream = TcpStream::connect(gateway.address(Door::Gateway)).await.unwrap();
    let shaken = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (requests, connection) = shaken.unwrap();
    tokio::spawn(connection);
    let channel = Channel(requests);
    let origin: http::Uri = "http://service.example".parse().unwrap();
    let asked = |service: &str| HealthCheckRequest { service: service.to_owned() };

    let mut health = HealthClient::with_origin(channel.clone(), origin.clone());
    let checked = soon(health.check(asked(""))).await.unwrap();
    assert_eq!(checked.get_ref().status, 1);
    let unknown = soon(health.check(asked("nobody"))).await.unwrap_err();
    assert_eq!(unknown.code(), tonic::Code::NotFound, "its status is in the trailers");

    let mut watched = soon(health.watch(asked(""))).await.unwrap().into_inner();
    assert_eq!(soon(watched.message()).await.unwrap().unwrap().status, 1);

    let (ask, questions) = mpsc::unbounded_channel();
    let mut reflection = ServerReflectionClient::with_origin(channel, origin);
    let questions = UnboundedReceiverStream::new(questions);
    let list = |_: u32| v1::ServerReflectionRequest {
        message_request: Some(MessageRequest::ListServices(String::new())),
        ..Default::default()
    };
    ask.send(list(1)).unwrap();
    let answers = soon(reflection.server_reflection_info(questions)).await;
    let mut answers = answers.unwrap().into_inner();
    for number in 2..5 {
        let answer = soon(answers.message()).await.unwrap().unwrap().message_response;
        assert!(matches!(answer, Some(MessageResponse::ListServicesResponse(_))), "{answer:?}");
        ask.send(list(number)).unwrap();
    }
    drop(ask);
    assert!(soon(answers.message()).await.unwrap().is_some());
    assert!(soon(answers.message()).await.unwrap().is_none(), "it ended well");

    // The service tells who watches it that it is leaving: a stream goes on as long as it likes.
    let leaving = tokio::spawn(stop(service));
    assert_eq!(soon(watched.message()).await.unwrap().unwrap().status, 2);
    drop(watched);
    leaving.await.unwrap();
    stop(gateway).await;
}
