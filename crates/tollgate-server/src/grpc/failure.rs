//! Why a call has no answer, as gRPC says it.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, HeaderValue, Response, header};

use super::body::Body;
use super::{GRPC, Unread};
use tollgate::envoy::CallError;

pub(super) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");

/// The codes of gRPC that are given here, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    Cancelled = 1,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Unavailable = 14,
    Unauthenticated = 16,
}

/// A call without an answer.
#[derive(Debug)]
pub(super) struct Failure {
    code: Code,
    /// A sentence in plain ASCII without `%`, so that it is the same when encoded.
    message: Cow<'static, str>,
}

impl Failure {
    pub(super) fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into() }
    }

    pub(super) fn into_trailers(self) -> HeaderMap {
        let mut trailers = HeaderMap::with_capacity(4);
        trailers.insert(GRPC_STATUS, HeaderValue::from(self.code as u16));
        let message = HeaderValue::from_str(&self.message);
        trailers.insert(GRPC_MESSAGE, message.expect("our own sentences are ASCII"));
        trailers
    }

    /// Header fields and nothing after them.
    pub(super) fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::empty());
        *response.headers_mut() = self.into_trailers();
        response.headers_mut().insert(header::CONTENT_TYPE, GRPC);
        response.headers_mut().insert(GRPC_ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        response
    }
}

impl From<Unread> for Failure {
    fn from(unread: Unread) -> Self {
        Self::new(Code::InvalidArgument, unread.to_string())
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        Self::new(Code::InvalidArgument, error.to_string())
    }
}
