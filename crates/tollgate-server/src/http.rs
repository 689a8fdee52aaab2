//! Decisions over HTTP.

mod check;
mod forward_auth;
mod object;
mod plain;
mod reserve;

use std::sync::Arc;

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tollgate::Asked;

use crate::connection::Visitor;
use crate::delivery::{Fate, Undelivered};
use crate::envoy_json;
use crate::gate::Gate;
use crate::http1::{self, Answer};
use crate::prefixed::Prefixed;

pub(crate) use check::{Attributes, Units};
pub use check::{ReadAs, read_checks};
pub(crate) use object::Object;

/// What this door answers, for people and programs who want to know.
const OPENAPI: &str = include_str!("http/openapi.json");

/// Serves one connection.
pub(crate) async fn serve<S>(stream: S, visitor: Visitor)
where
    S: AsyncRead + AsyncWrite + Fate + Unpin + Send + 'static,
{
    let undelivered = Undelivered::default();
    let stream = http1::attended(stream, &undelivered);
    if let Some((unread, stream)) = plain::serve(stream, &visitor, &undelivered).await {
        // Boxed, so that a connection with nothing but plain checks does not take the room for it.
        let stream = Prefixed::new(unread, stream);
        Box::pin(http1::serve(stream, visitor, &undelivered, answer)).await;
    }
}

async fn answer(request: Request<Incoming>, visitor: Arc<Visitor>) -> Answer {
    if let Some(refusal) = http1::unauthorized(&request, &visitor) {
        return refusal;
    }
    let path = request.uri().path();
    let is_post = *request.method() == Method::POST;
    let is_get = matches!(*request.method(), Method::GET | Method::HEAD);
    let gate = &visitor.gate;
    match path {
        "/v1/check" if is_get => {
            check::by_query(request.uri().query().unwrap_or_default(), gate).await
        }
        "/v1/check" if is_post => with_body(request, gate, |body| check::by_body(body, gate)).await,
        "/v1/check" => http1::wrong_method("GET, HEAD, POST"),
        "/v1/check/batch" if is_post => {
            with_body(request, gate, |body| check::batch(body, gate)).await
        }
        "/v1/reserve" if is_post => {
            with_body(request, gate, |body| reserve::reserve(body, gate)).await
        }
        "/v1/settle" if is_post => {
            with_body(request, gate, |body| reserve::settle(body, gate)).await
        }
        "/v1/release" if is_post => {
            let release = |lease: &str| gate.leases.release(lease, &gate.limiter);
            with_lease(request, gate, release, json!({"released": true})).await
        }
        "/v1/renew" if is_post => {
            let renew = |lease: &str| gate.leases.renew(lease, &gate.limiter);
            with_lease(request, gate, renew, json!({"renewed": true})).await
        }
        "/json" if is_post => with_body(request, gate, |body| envoy_json::answer(body, gate)).await,
        "/v1/check/batch" | "/v1/reserve" | "/v1/settle" | "/v1/release" | "/v1/renew"
        | "/json" => http1::wrong_method("POST"),
        "/openapi.json" if is_get => http1::json(StatusCode::OK, OPENAPI),
        "/openapi.json" => http1::wrong_method("GET, HEAD"),
        path if forward_auth::is_asked(path) => forward_auth::answer(&request, &visitor).await,
        _ => {
            let sentence = format!("there is no {path} here; /openapi.json lists what there is");
            http1::problem(StatusCode::NOT_FOUND, &sentence)
        }
    }
}

async fn with_body(
    request: Request<Incoming>,
    gate: &Gate,
    answer: impl FnOnce(&[u8]) -> Asked<Answer>,
) -> Answer {
    match http1::body(request, gate).await {
        Ok(body) => answer(&body).await,
        Err(refusal) => refusal,
    }
}

/// What is sent to release or renew.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LeaseBody {
    lease: String,
}

async fn with_lease(
    request: Request<Incoming>,
    gate: &Gate,
    act: impl FnOnce(&str) -> Asked<Option<bool>>,
    done: serde_json::Value,
) -> Answer {
    with_body(request, gate, |body| match serde_json::from_slice::<Object<LeaseBody>>(body) {
        Ok(Object(LeaseBody { lease })) => act(&lease).map(move |is_done| match is_done {
            Some(true) => http1::json(StatusCode::OK, done.to_string()),
            Some(false) => {
                let sentence = "no such lease is held: it was released before, or has ended";
                http1::problem(StatusCode::NOT_FOUND, sentence)
            }
            None => {
                let sentence = "Redis does not answer; what was to be released comes back when it \
                                does, or when its lease ends";
                http1::problem(StatusCode::SERVICE_UNAVAILABLE, sentence)
            }
        }),
        Err(error) => {
            let sentence = format!("{error}; send for example {{\"lease\": \"…\"}}");
            Asked::Ready(http1::problem(StatusCode::BAD_REQUEST, &sentence))
        }
    })
    .await
}
