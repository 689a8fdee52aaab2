//! The admin door: health for whoever sends us traffic, policy and keys for their operator.

mod dashboard;
mod explain;
mod keys;
mod live;
mod play;
mod query;
mod throttled;

use std::net::IpAddr;
use std::sync::Arc;

use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use hyper::body::Incoming;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tollgate::redis::Health;
use tollgate::{Mistake, Mistakes, Policy, Rule, Source};

use crate::audit::{Action, Effect};
use crate::connection::Visitor;
use crate::delivery::{Fate, Undelivered};
use crate::gate::Gate;
use crate::http1::{self, Answer};
use crate::metrics;

/// Serves one connection.
pub(crate) async fn serve<S>(stream: S, visitor: Visitor)
where
    S: AsyncRead + AsyncWrite + Fate + Unpin + Send + 'static,
{
    let undelivered = Undelivered::default();
    let stream = http1::attended(stream, &undelivered);
    http1::serve(stream, visitor, &undelivered, answer).await;
}

async fn answer(request: Request<Incoming>, visitor: Arc<Visitor>) -> Answer {
    let gate = &visitor.gate;
    let is_get = matches!(*request.method(), Method::GET | Method::HEAD);
    match request.uri().path() {
        "/healthz" if is_get => return http1::answer(StatusCode::OK, "text/plain", "ok\n"),
        "/readyz" if is_get && gate.stages.is_ready() => {
            return http1::answer(StatusCode::OK, "text/plain", "ready\n");
        }
        "/readyz" if is_get => {
            return http1::answer(StatusCode::SERVICE_UNAVAILABLE, "text/plain", "stopping\n");
        }
        "/metrics" if is_get => {
            return match not_local(&request, &visitor) {
                Some(refusal) => noted(&visitor, &Action::Access, (refusal, Effect::Nothing)),
                None => http1::answer(StatusCode::OK, metrics::CONTENT_TYPE, metrics::text(gate)),
            };
        }
        "/healthz" | "/readyz" | "/metrics" => return http1::wrong_method("GET, HEAD"),
        path => {
            if let Some(page) = dashboard::answer(path, is_get) {
                return page;
            }
        }
    }
    if let Some(refusal) = refused(&request, &visitor) {
        return noted(&visitor, &Action::Access, (refusal, Effect::Nothing));
    }
    match (request.method(), request.uri().path()) {
        (&Method::POST, "/v1/reload") => {
            let done = match gate.reload().await {
                Ok(effect) => {
                    (http1::json(StatusCode::OK, json!({"reloaded": true}).to_string()), effect)
                }
                Err(mistakes) => {
                    (http1::problem(StatusCode::UNPROCESSABLE_ENTITY, &mistakes), Effect::Nothing)
                }
            };
            noted(&visitor, &Action::Reload, done)
        }
        (_, "/v1/reload") => http1::wrong_method("POST"),
        (_, "/v1/policy") if is_get => http1::json(StatusCode::OK, policy(&visitor)),
        (_, "/v1/live") if is_get => {
            live::answer(&visitor, request.uri().query().unwrap_or_default())
        }
        (_, "/v1/policy" | "/v1/live") => http1::wrong_method("GET, HEAD"),
        // In a box of its own: a connection that is idle need not have room for it.
        (&Method::POST, path @ ("/v1/explain" | "/v1/play")) => {
            let is_play = path == "/v1/play";
            Box::pin(async {
                match http1::body(request, gate).await {
                    Ok(body) if is_play => play::answer(&body),
                    Ok(body) => explain::answer(&body, gate).await,
                    Err(refusal) => refusal,
                }
            })
            .await
        }
        (_, "/v1/explain" | "/v1/play") => http1::wrong_method("POST"),
        (_, path) if keys::is_asked(path) => Box::pin(keys::answer(request, &visitor)).await,
        (_, path) => http1::problem(StatusCode::NOT_FOUND, &format!("the admin API has no {path}")),
    }
}

/// What somebody is answered who did something, and what came of it.
type Done = (Answer, Effect);

/// Writes down what somebody did.
fn noted(visitor: &Visitor, action: &Action<'_>, (answer, effect): Done) -> Answer {
    let gate = &visitor.gate;
    gate.audit.acted(&gate.limiter, action, effect, visitor.peer, answer.status().as_u16());
    answer
}

/// The answer to a request that may only ask for our health; none if it may do more.
fn refused<B>(request: &Request<B>, visitor: &Visitor) -> Option<Answer> {
    if let Some(refusal) = http1::unauthorized(request, visitor) {
        return Some(refusal);
    }
    let has_token = visitor.entrance.token().is_some();
    let why = foreign(request.headers(), has_token)?;
    Some(http1::problem(StatusCode::FORBIDDEN, why))
}

/// The answer to who asks for metrics as a page of another site could: they name tenants. A door with a
/// token is one that others than this machine reach, by whatever name they know it.
fn not_local<B>(request: &Request<B>, visitor: &Visitor) -> Option<Answer> {
    if visitor.entrance.token().is_some() {
        return None;
    }
    foreign(request.headers(), false).map(|why| http1::problem(StatusCode::FORBIDDEN, why))
}

/// Why a request may come from a page of another site, open in the operator's browser: such a page
/// must not speak for the operator, not across origins and not under a name of its own that points
/// here.
fn foreign(headers: &HeaderMap, has_token: bool) -> Option<&'static str> {
    let Some(host) = host(headers) else { return Some("the request has no Host, or several") };
    if !has_token && !is_local_name(host.host()) {
        return Some("without a token, this door answers only to localhost and addresses");
    }
    if headers.get("sec-fetch-site").is_some_and(|site| site == "cross-site") {
        return Some("requests from other sites are refused");
    }
    let origin = headers.get(header::ORIGIN)?.to_str().unwrap_or_default();
    let is_own = origin.split_once("://").is_some_and(|(_, it)| it == host.as_str());
    (!is_own).then_some("requests from other origins are refused")
}

/// The one host that a request names.
fn host(headers: &HeaderMap) -> Option<Authority> {
    let mut named = headers.get_all(header::HOST).iter();
    match (named.next(), named.next()) {
        // A name before an @ would be taken for the host by some, and not by us.
        (Some(host), None) => host.to_str().ok()?.parse().ok().filter(|_| !has_user(host)),
        _ => None,
    }
}

fn has_user(host: &HeaderValue) -> bool {
    host.as_bytes().contains(&b'@')
}

fn is_local_name(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}

/// Everything that is wrong with what somebody sent, in one line.
fn sentences(mistakes: &Mistakes) -> String {
    mistakes.iter().map(Mistake::sentence).collect::<Vec<_>>().join("; ")
}

/// The policy in force, without anything that is secret in it.
fn policy(visitor: &Visitor) -> String {
    let mut told = loads(&visitor.gate);
    visitor.gate.limiter.with_policy(|policy| {
        let warnings: Vec<String> = policy.warnings().iter().map(ToString::to_string).collect();
        let limits: Vec<_> = policy.rules().iter().map(|rule| limit(policy, rule)).collect();
        told["limits"] = limits.into();
        told["warnings"] = warnings.into();
    });
    told["store"] = store(visitor);
    told.to_string()
}

/// When the policy was loaded, and what became of attempts to load it anew.
fn loads(gate: &Gate) -> serde_json::Value {
    let loads = gate.policy_status.loads();
    json!({
        "loaded_ms": live::millis(loads.loaded_at),
        "reloads": {"succeeded": loads.succeeded, "failed": loads.failed},
        "error": loads.error,
    })
}

/// How the store is; nothing of memory, which is always well.
fn store(visitor: &Visitor) -> serde_json::Value {
    let Some(redis) = visitor.gate.limiter.store().redis() else { return json!(null) };
    let server = |Health { address, is_well, calls, timeouts, failures, not_sent, .. }| {
        json!({
            "address": address,
            "is_well": is_well,
            "calls": calls,
            "timeouts": timeouts,
            "failures": failures,
            "not_sent": not_sent,
        })
    };
    let servers: Vec<_> = redis.health().into_iter().map(server).collect();
    json!({"servers": servers, "settled_without": redis.settled()})
}

fn limit(policy: &Policy, rule: &Rule) -> serde_json::Value {
    let rates: Vec<String> = rule
        .limits()
        .into_iter()
        .map(|limit| match policy.rate(limit) {
            Some(rate) => rate.to_string(),
            None => format!("{} at a time", policy.limits()[limit].capacity()),
        })
        .collect();
    let per: Vec<Vec<&str>> =
        rule.per().iter().map(|per| per.sources().iter().map(Source::name).collect()).collect();
    json!({
        "name": &**rule.name(),
        "algorithm": rule.algorithm().name(),
        "rates": rates,
        "per": per,
        "tiers": rule.tiers(),
        "line": rule.place().line,
        "shadow": rule.mode() == tollgate::Mode::Shadow,
    })
}
