//! Answers to requests that do not go on.

use std::borrow::Cow;
use std::fmt::Write;

use ::http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use ::http::{HeaderMap, Response, StatusCode};
use bytes::Bytes;

use crate::Verdict;
use crate::http::problem::{self, Form, REDUCED_CAPACITY};
use crate::http::status;
use crate::http::text::{json_string, number};

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// Why a request does not go on, if not for what the limits said.
pub(super) enum Refusal {
    /// It can be understood in more than one way.
    Ambiguous(String),
    /// It is counted by an address that nobody told us.
    NoPeer,
    /// It would have to wait, and too many do.
    TooManyHeld,
}

impl Refusal {
    /// The answer to a request with these headers.
    pub(super) fn answer(&self, headers: &HeaderMap) -> Response<Bytes> {
        let (status, kind, sentence): (_, _, Cow<'_, str>) = match self {
            Self::Ambiguous(why) => (StatusCode::BAD_REQUEST, "about:blank", why.into()),
            Self::NoPeer => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "about:blank",
                "the service does not know from which address requests come".into(),
            ),
            Self::TooManyHeld => (
                StatusCode::SERVICE_UNAVAILABLE,
                REDUCED_CAPACITY,
                "too many requests are waiting for their turn; try again later".into(),
            ),
        };
        if is_grpc(headers) {
            return in_grpc(status, &sentence);
        }
        let form = Form::preferred(headers);
        let body = match form {
            Form::Problem | Form::Json => document(status, kind, &sentence),
            Form::Text => format!("{sentence}\n").into(),
        };
        in_http(status, form, body)
    }
}

/// What the body of a refusal takes that is about three limits, and more fields than a refusal has.
const REFUSAL_BYTES: usize = 1024;
const REFUSAL_FIELDS: usize = 16;

/// The answer of the limits to a request with these headers.
pub(super) fn by_verdict(verdict: &Verdict, headers: &HeaderMap) -> Response<Bytes> {
    let mut body = Vec::with_capacity(REFUSAL_BYTES);
    if is_grpc(headers) {
        problem::write(&mut body, verdict, Form::Text);
        return in_grpc(status(verdict), String::from_utf8_lossy(&body).trim_end());
    }
    let form = Form::preferred(headers);
    problem::write(&mut body, verdict, form);
    in_http(status(verdict), form, body)
}

fn document(status: StatusCode, kind: &str, sentence: &str) -> Vec<u8> {
    let mut body = Vec::with_capacity(256);
    body.extend_from_slice(b"{\"type\":");
    json_string(&mut body, kind);
    body.extend_from_slice(b",\"title\":");
    json_string(&mut body, status.canonical_reason().unwrap_or_default());
    body.extend_from_slice(b",\"status\":");
    number(&mut body, u64::from(status.as_u16()));
    body.extend_from_slice(b",\"detail\":");
    json_string(&mut body, sentence);
    body.push(b'}');
    body
}

fn in_http(status: StatusCode, form: Form, body: Vec<u8>) -> Response<Bytes> {
    let mut answer = Response::new(Bytes::from(body));
    *answer.status_mut() = status;
    answer.headers_mut().reserve(REFUSAL_FIELDS);
    answer.headers_mut().insert(CONTENT_TYPE, form.content_type());
    answer
}

/// Whether a message is one of gRPC, whose callers understand no other answers.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    const GRPC: &[u8] = b"application/grpc";
    let Some((name, rest)) = kind.split_at_checked(GRPC.len()) else { return false };
    name.eq_ignore_ascii_case(GRPC) && matches!(rest.first(), None | Some(b'+' | b';'))
}

/// An answer of gRPC without a message, where the trailers are all there is and so are headers.
fn in_grpc(status: StatusCode, sentence: &str) -> Response<Bytes> {
    let mut answer = Response::new(Bytes::new());
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    insert_grpc_status(headers, status, sentence);
    answer
}

/// The answer to a call of gRPC whose caller has sent too much.
pub(super) fn grpc_exhausted(sentence: &str) -> Response<Bytes> {
    in_grpc(StatusCode::TOO_MANY_REQUESTS, sentence)
}

/// The end of an answer of gRPC that must not go on, since its caller has had too much.
pub(super) fn grpc_trailers(sentence: &str) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    insert_grpc_status(&mut trailers, StatusCode::TOO_MANY_REQUESTS, sentence);
    trailers
}

fn insert_grpc_status(headers: &mut HeaderMap, status: StatusCode, sentence: &str) {
    headers.insert(GRPC_STATUS, grpc_code(status).into());
    let message = percent_encoded(sentence);
    headers.insert(GRPC_MESSAGE, message.parse().expect("only printable ASCII is left"));
}

/// What a status is to gRPC.
fn grpc_code(status: StatusCode) -> u16 {
    match status {
        StatusCode::TOO_MANY_REQUESTS => 8,    // RESOURCE_EXHAUSTED
        StatusCode::SERVICE_UNAVAILABLE => 14, // UNAVAILABLE
        StatusCode::FORBIDDEN => 7,            // PERMISSION_DENIED
        StatusCode::UNAUTHORIZED => 16,        // UNAUTHENTICATED
        StatusCode::BAD_REQUEST => 3,          // INVALID_ARGUMENT
        _ => 13,                               // INTERNAL
    }
}

/// A message as gRPC sends it: everything but printable ASCII as `%XX`.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if matches!(byte, b' '..=b'~') && byte != b'%' {
            encoded.push(byte as char);
        } else {
            write!(encoded, "%{byte:02X}").expect("a String takes everything");
        }
    }
    encoded
}
