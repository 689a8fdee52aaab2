//! A server to ask and a client to ask it with, which knows Envoy's messages from their files only.

use std::error::Error as _;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, request};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use prost_reflect::prost_types::FileDescriptorSet;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use serde_json::Value;
use tokio::net::TcpStream;
use tollgate_server::Door;
use tonic::codegen::tokio_stream;

use crate::server::Running;

pub(crate) const SHOULD_RATE_LIMIT: &str =
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// A client of its gRPC door.
pub(crate) async fn client(running: &Running) -> Client {
    let stream = TcpStream::connect(running.address(Door::Grpc)).await.expect("connected");
    stream.set_nodelay(true).expect("set");
    let (sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("spoken to");
    tokio::spawn(connection);
    Client(sender)
}

/// Stops a server, and waits until that is done.
pub(crate) async fn stop(running: Running) {
    let stopped = tokio::task::spawn_blocking(move || drop(running));
    stopped.await.expect("no panic in the server");
}

type AnyBody = http_body_util::combinators::UnsyncBoxBody<Bytes, std::convert::Infallible>;

#[derive(Clone)]
pub(crate) struct Client(SendRequest<AnyBody>);

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Header fields and trailers.
    fields: HeaderMap,
    body: Bytes,
}

impl Answer {
    pub(crate) fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", |value| value.to_str().expect("text"))
    }

    /// The message, if all went well.
    pub(crate) fn message(&self) -> &[u8] {
        assert_eq!(self.field("grpc-status"), "0", "{self:?}");
        &self.body[5..]
    }

    /// The message as the JSON of a `RateLimitResponse`.
    pub(crate) fn response(&self) -> Value {
        let kind = kind("envoy.service.ratelimit.v3.RateLimitResponse");
        let message = DynamicMessage::decode(kind, self.message()).expect("a response");
        serde_json::to_value(message).expect("JSON")
    }
}

/// A request of gRPC.
pub(crate) fn grpc(request: request::Builder) -> request::Builder {
    request.header("content-type", "application/grpc").header("te", "trailers")
}

impl Client {
    pub(crate) async fn should_rate_limit(&self, body: Bytes) -> Answer {
        self.call(SHOULD_RATE_LIMIT, body, grpc).await
    }

    /// None if the server takes no more calls, and has not looked at this one.
    pub(crate) async fn unless_stopping(&self, body: Bytes) -> Option<Answer> {
        let request = made(SHOULD_RATE_LIMIT, grpc, Full::new(body));
        match self.0.clone().try_send_request(request).await {
            Ok(response) => Some(read(response).await),
            Err(mut refused) => {
                // Either it was not sent, or GOAWAY says that it came too late.
                let is_unseen = refused.take_message().is_some() || is_go_away(refused.error());
                assert!(is_unseen, "lost: {:?}", refused.error());
                None
            }
        }
    }

    pub(crate) async fn call(
        &self,
        path: &str,
        body: Bytes,
        with: impl FnOnce(request::Builder) -> request::Builder,
    ) -> Answer {
        self.send(made(path, with, Full::new(body))).await
    }

    pub(crate) async fn call_in_pieces(&self, path: &str, pieces: Vec<Bytes>) -> Answer {
        let frames = pieces.into_iter().map(|piece| Ok(Frame::data(piece)));
        self.send(made(path, grpc, StreamBody::new(tokio_stream::iter(frames)))).await
    }

    pub(crate) async fn open(&self, path: &str, body: Full<Bytes>) -> Response<Incoming> {
        self.0.clone().send_request(made(path, grpc, body)).await.expect("an answer")
    }

    async fn send(&self, request: Request<AnyBody>) -> Answer {
        read(self.0.clone().send_request(request).await.expect("an answer")).await
    }
}

fn is_go_away(error: &hyper::Error) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<h2::Error>());
    source.is_some_and(|error| error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR))
}

fn made<B>(
    path: &str,
    with: impl FnOnce(request::Builder) -> request::Builder,
    body: B,
) -> Request<AnyBody>
where
    B: Body<Data = Bytes, Error = std::convert::Infallible> + Send + 'static,
{
    let request = Request::post(format!("http://tollgate{path}"));
    with(request).body(body.boxed_unsync()).expect("a request")
}

async fn read(response: Response<Incoming>) -> Answer {
    let (head, body) = response.into_parts();
    let mut fields = head.headers;
    let body = body.collect().await.expect("a whole answer");
    fields.extend(body.trailers().cloned().unwrap_or_default());
    Answer { status: head.status.as_u16(), fields, body: body.to_bytes() }
}

/// A message as gRPC sends it.
pub(crate) fn framed(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).expect("a length").to_be_bytes();
    [&[0], &length[..], message].concat().into()
}

/// A `RateLimitRequest` from its JSON, framed.
pub(crate) fn request(json: &Value) -> Bytes {
    let kind = kind("envoy.service.ratelimit.v3.RateLimitRequest");
    let message = DynamicMessage::deserialize(kind, json).expect("a request");
    framed(&message.encode_to_vec())
}

fn kind(name: &str) -> MessageDescriptor {
    static POOL: std::sync::LazyLock<DescriptorPool> = std::sync::LazyLock::new(|| {
        DescriptorPool::from_file_descriptor_set(compiled()).expect("whole")
    });
    POOL.get_message_by_name(name).expect("a message of these files")
}

/// The files of `proto/` and what they import.
pub(crate) fn compiled() -> FileDescriptorSet {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/proto");
    protox::compile(["envoy/service/ratelimit/v3/rls.proto"], [folder]).expect("compiled")
}
