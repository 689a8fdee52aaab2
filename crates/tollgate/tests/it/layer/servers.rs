//! The layer in servers that people use, over real sockets.

use std::convert::Infallible;
use std::future::ready;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tollgate::Limiter;
use tollgate::http::layer::RequestBody;
use tollgate::http::{Peer, TollgateLayer};
use tonic::Code;
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};
use tonic::transport::{Channel, Server};
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower_layer::Layer;

use super::slots::{Next, Streams};
use super::{Does, until_left};

fn limiter(policy: &str) -> Arc<Limiter> {
    Arc::new(Limiter::from_yaml(policy).expect("a policy"))
}

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    (listener, address)
}

/// A connection that speaks HTTP/1.1.
async fn connect(address: SocketAddr) -> http1::SendRequest<Empty<Bytes>> {
    let stream = TcpStream::connect(address).await.expect("the server listens");
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("it speaks");
    tokio::spawn(connection);
    sender
}

fn to(address: SocketAddr, path: &str) -> Request<Empty<Bytes>> {
    let request = Request::get(path).header("host", address.to_string());
    request.body(Empty::new()).expect("a request")
}

#[tokio::test]
async fn axum_counts_by_the_address_that_it_accepted() {
    let limits = TollgateLayer::new(limiter(super::ONE_A_MINUTE))
        .peer(|parts| Some(parts.extensions.get::<ConnectInfo<SocketAddr>>()?.0.ip()));
    // Each route gets a service of its own, and all share one budget.
    let router =
        Router::new().route("/a", get(async || "a")).route("/b", get(async || "b")).layer(limits);
    let (listener, address) = listener().await;
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    let mut client = connect(address).await;
    let first = client.send_request(to(address, "/a")).await.unwrap();
    assert_eq!(first.status(), StatusCode::OK);
    assert_eq!(first.headers()["ratelimit-policy"], "\"api\";q=1;w=60");
    assert_eq!(first.into_body().collect().await.unwrap().to_bytes(), "a");
    let second = client.send_request(to(address, "/b")).await.unwrap();
    assert_eq!(second.status(), StatusCode::TOO_MANY_REQUESTS);
    let body = second.into_body().collect().await.unwrap().to_bytes();
    assert!(body.starts_with(b"{\"type\""), "{body:?}");
}

#[tokio::test]
async fn tonic_tells_a_caller_of_grpc_in_grpc() {
    let policy = "limits: [{name: checks, when: {path: /grpc.health.v1.Health/Check}, \
                  per: [client_ip], rate: 2/minute}]";
    let limits = TollgateLayer::new(limiter(policy))
        .peer(|parts| Some(parts.extensions.get::<TcpConnectInfo>()?.remote_addr()?.ip()));
    let (_, service) = tonic_health::server::health_reporter();
    let (listener, address) = listener().await;
    let server = Server::builder().layer(limits).add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await;
    let mut client = HealthClient::new(channel.unwrap());
    for left in ["1", "0"] {
        let answer = client.check(HealthCheckRequest::default()).await.unwrap();
        assert_eq!(answer.metadata().get("x-ratelimit-remaining").unwrap(), left);
    }
    let refusal = client.check(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(refusal.code(), Code::ResourceExhausted);
    assert!(refusal.message().starts_with("limit \"checks\" allows 2/minute"), "{refusal}");
    assert!(refusal.metadata().contains_key("retry-after"), "{refusal}");
    let watched = client.watch(HealthCheckRequest::default()).await;
    assert!(watched.is_ok(), "another method has no limit");
}

#[tokio::test]
async fn a_stream_of_tonic_that_sends_too_much_ends_with_a_status() {
    let policy = "limits: [{name: changes, when: {layer: stream, path: /grpc.health.v1.Health/Watch, \
                  direction: down}, per: [stream], rate: 2/hour}]";
    let limits = TollgateLayer::new(limiter(policy));
    let (health, service) = tonic_health::server::health_reporter();
    let (listener, address) = listener().await;
    let server = Server::builder().layer(limits).add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await;
    let mut client = HealthClient::new(channel.unwrap());
    for _ in 0..2 {
        health.set_service_status("", ServingStatus::Serving).await;
        let watched = client.watch(HealthCheckRequest::default()).await.unwrap();
        let mut changes = watched.into_inner();
        assert!(changes.message().await.unwrap().is_some());
        health.set_service_status("", ServingStatus::NotServing).await;
        assert!(changes.message().await.unwrap().is_some());
        health.set_service_status("", ServingStatus::Serving).await;
        let end = changes.message().await.unwrap_err();
        assert_eq!(end.code(), Code::ResourceExhausted);
        assert_eq!(end.message(), "limit \"changes\" has no more for the rest of this");
    }
}

#[tokio::test]
async fn a_caller_of_tonic_that_sends_too_much_is_told_so() {
    let policy = "limits: [{name: sent, when: {layer: stream, direction: up}, rate: 1/hour}]";
    let limits = TollgateLayer::new(limiter(policy));
    let (_, service) = tonic_health::server::health_reporter();
    let (listener, address) = listener().await;
    let server = Server::builder().layer(limits).add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await;
    let mut client = HealthClient::new(channel.unwrap());
    assert!(client.check(HealthCheckRequest::default()).await.is_ok());
    let refusal = client.check(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(refusal.code(), Code::ResourceExhausted);
    assert_eq!(refusal.message(), "limit \"sent\" has no more for the rest of this");
}

/// A server of bare hyper, HTTP/1.1 and HTTP/2, whose responses never end.
async fn endless(policy: &str, next: Next) -> (Arc<Limiter>, SocketAddr) {
    let limiter = limiter(policy);
    let limits = TollgateLayer::new(Arc::clone(&limiter));
    let (listener, address) = listener().await;
    tokio::spawn(async move {
        while let Ok((stream, peer)) = listener.accept().await {
            let limited = limits.layer(Does(move |_: Request<RequestBody<Incoming>>| {
                ready(Ok::<_, Infallible>(Response::new(Streams(next))))
            }));
            let service = Does(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(Peer(peer));
                let mut limited = limited.clone();
                async move { super::call(&mut limited, request).await.await }
            });
            tokio::spawn(async move {
                let service = TowerToHyperService::new(service);
                let mut is_h2 = [0; 3];
                let _ = stream.peek(&mut is_h2).await;
                let io = TokioIo::new(stream);
                if &is_h2 == b"PRI" {
                    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    let _ = server.serve_connection(io, service).await;
                } else {
                    let server = hyper::server::conn::http1::Builder::new();
                    let _ = server.serve_connection(io, service).await;
                }
            });
        }
    });
    (limiter, address)
}

#[tokio::test]
async fn a_client_that_hangs_up_on_a_stream_gives_its_slot_back() {
    let (limiter, address) = endless("limits: [{name: jobs, concurrency: 1}]", Next::Never).await;
    for _ in 0..3 {
        let mut client = connect(address).await;
        let response = client.send_request(to(address, "/")).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        until_left(&limiter, &[0]).await;
        let mut other = connect(address).await;
        let refused = other.send_request(to(address, "/")).await.unwrap();
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        drop((client, response));
        until_left(&limiter, &[1]).await;
    }
}

#[tokio::test]
async fn a_stream_that_is_reset_over_http2_gives_its_slot_back_and_stays_charged() {
    let policy = "limits: [{name: jobs, concurrency: 1}, {name: api, rate: 9/hour}]";
    let (limiter, address) = endless(policy, Next::Never).await;
    let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (mut client, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    for left in [8, 7, 6] {
        let request = Request::get(format!("http://{address}/")).body(Empty::<Bytes>::new());
        let response = client.send_request(request.unwrap()).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        until_left(&limiter, &[0, left]).await;
        drop(response);
        until_left(&limiter, &[1, left]).await;
    }
}

#[tokio::test]
async fn a_client_sees_that_a_response_was_cut() {
    let policy = "limits: [{name: traffic, rate: 1000/hour, \
                  cost: {reserve: 100, settle: {body: bytes}}, on_exhausted: cut}]";
    for is_h2 in [false, true] {
        let (limiter, address) = endless(policy, Next::Data).await;
        let response = if is_h2 {
            let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
            let (mut client, connection) =
                http2::handshake(TokioExecutor::new(), stream).await.unwrap();
            tokio::spawn(connection);
            let request = Request::get(format!("http://{address}/")).body(Empty::<Bytes>::new());
            client.send_request(request.unwrap()).await
        } else {
            connect(address).await.send_request(to(address, "/")).await
        };
        // A reset may overtake what was sent before, and be all that a client sees.
        let body = match response {
            Ok(response) => response.into_body().collect().await.map(|_| ()),
            Err(error) => Err(error),
        };
        assert!(body.is_err(), "over HTTP/2: {is_h2}");
        until_left(&limiter, &[0]).await;
    }
}
