//! Decisions for proxies that ask before they let a request through.
//!
//! nginx (`auth_request`), Traefik and Caddy say with `X-Forwarded-*` what the request is; Envoy's
//! HTTP `ext_authz` sends its method, host and headers, and its URI behind our own path. Who is
//! neither on loopback nor a trusted proxy is believed nothing.

use std::net::IpAddr;
use std::sync::Arc;

use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, Request, Response, StatusCode};
use tollgate::http::problem::Form;
use tollgate::http::{Sent, client, extract, fields, path, problem, query, status};
use tollgate::{Asked, ClientIp, End, ForwardedIn, Missing, Ruling, Verdict};

use crate::connection::Visitor;
use crate::gate::Gate;
use crate::http1::{self, Answer};

/// Where proxies ask; Envoy puts the request's own path behind it.
const PATH: &str = "/v1/forward-auth";

/// Whether a path is for proxies.
pub(super) fn is_asked(path: &str) -> bool {
    let behind = path.strip_prefix(PATH);
    behind.is_some_and(|behind| behind.is_empty() || behind.starts_with('/'))
}

/// What the proxy is about to let through.
struct Forwarded<'r> {
    method: &'r str,
    uri: &'r str,
    host: &'r str,
    client_ip: IpAddr,
}

/// Answers a proxy.
pub(super) fn answer<B>(request: &Request<B>, visitor: &Visitor) -> Asked<Answer> {
    match decide(request, visitor) {
        Ok(answer) => answer,
        Err(sentence) => Asked::Ready(http1::problem(StatusCode::BAD_REQUEST, &sentence)),
    }
}

fn decide<B>(request: &Request<B>, visitor: &Visitor) -> Result<Asked<Answer>, String> {
    let gate = &visitor.gate;
    let deny_status = deny_status(request)?;
    let pinned = gate.limiter.pin();
    let forwarded = Forwarded::read(request, visitor, &pinned.policy().settings().client_ip)?;
    let (raw_path, raw_query) = match forwarded.uri.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (forwarded.uri, None),
    };
    let paths = &pinned.policy().settings().paths;
    let path = path::resolve(raw_path, paths).map_err(|error| format!("the path: {error}"))?;
    let sent = Sent {
        method: forwarded.method,
        path: &path,
        query: raw_query,
        host: Some(forwarded.host),
        headers: request.headers(),
        client_ip: forwarded.client_ip,
    };
    let mut room = Vec::new();
    let attributes = extract(pinned.policy().attributes(), &sent, &mut room)
        .map_err(|repeated| repeated.to_string())?;
    // Whether the request ends well, and when, a proxy never tells.
    let request_for_us = tollgate::Request {
        missing: Missing::Shared,
        end: End::Unknown,
        ..tollgate::Request::new(&attributes)
    };
    let whom = Whom { deny_status, spread: gate.spread(forwarded.client_ip) };
    let form = || Form::preferred(request.headers());
    Ok(match pinned.ask(&request_for_us) {
        Asked::Ready(verdict) => Asked::Ready(whom.tell(&verdict, form, gate)),
        Asked::Waiting(waiting) => {
            let (form, gate) = (form(), Arc::clone(gate));
            Asked::later(async move { whom.tell(&waiting.await, || form, &gate) })
        }
    })
}

/// Whom an answer is for.
struct Whom {
    /// What the proxy wants instead of a 429.
    deny_status: Option<StatusCode>,
    /// No two clients are told the same wait.
    spread: u64,
}

impl Whom {
    /// Which form a refusal has is looked at only if there is one.
    fn tell(&self, verdict: &Verdict, form: impl FnOnce() -> Form, gate: &Gate) -> Answer {
        let mut answer = if verdict.is_allowed() {
            http1::answer(StatusCode::OK, "text/plain", "")
        } else {
            let form = form();
            let mut body = Vec::with_capacity(512);
            problem::write(&mut body, verdict, form);
            let mut answer = Response::new(body.into());
            // A proxy that is told of our own trouble must not take it for the client's.
            let wanted = self.deny_status.filter(|_| verdict.ruling() == Ruling::Denied);
            *answer.status_mut() = wanted.unwrap_or(status(verdict));
            answer.headers_mut().insert(CONTENT_TYPE, form.content_type());
            answer
        };
        fields::insert(answer.headers_mut(), verdict, gate.limiter.now(), self.spread);
        answer
    }
}

impl<'r> Forwarded<'r> {
    fn read<B>(
        request: &'r Request<B>,
        visitor: &Visitor,
        settings: &ClientIp,
    ) -> Result<Self, String> {
        let peer = visitor.peer.ip().to_canonical();
        let trusts = |address: IpAddr| {
            address.is_loopback() || settings.trusted_proxies.iter().any(|it| it.contains(address))
        };
        if !trusts(peer) {
            return Err(format!(
                "what {peer} forwards is not believed; name it under client_ip.trusted_proxies"
            ));
        }
        let headers = request.headers();
        if !headers.contains_key(client::X_FORWARDED_FOR) {
            return Err(missing("X-Forwarded-For"));
        }
        let client_ip = client::address(peer, headers, ForwardedIn::XForwardedFor, trusts)
            .map_err(|error| error.to_string())?;
        let appended = request.uri().path_and_query().map_or("", |it| it.as_str());
        let appended = appended.strip_prefix(PATH).filter(|uri| uri.starts_with('/'));
        if let Some(uri) = appended {
            let (method, host) = (request.method().as_str(), single(headers, HOST.as_str())?);
            return Ok(Self { method, uri, host, client_ip });
        }
        Ok(Self {
            method: single(headers, "X-Forwarded-Method")?,
            // A comma may be part of it.
            uri: told(headers, "X-Forwarded-Uri")?,
            host: single(headers, "X-Forwarded-Host")?,
            client_ip,
        })
    }
}

fn missing(name: &str) -> String {
    format!("the proxy must say {name}; docs/proxies.md shows how")
}

/// The value of a field that must be there, once.
fn told<'h>(headers: &'h HeaderMap, name: &str) -> Result<&'h str, String> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().ok_or_else(|| missing(name))?;
    if values.next().is_some() {
        return Err(format!("{name} is sent more than once"));
    }
    value.to_str().map_err(|_| format!("{name} is not text"))
}

/// The same of a field whose value has no comma: where there is one, a proxy has joined what a
/// client sent with what it says itself, and nobody knows which is which.
fn single<'h>(headers: &'h HeaderMap, name: &str) -> Result<&'h str, String> {
    let value = told(headers, name)?;
    if value.contains(',') {
        return Err(format!("{name} has several values; the proxy must set it, not add to it"));
    }
    Ok(value)
}

/// What the proxy wants instead of a 429, if it cannot pass that on.
fn deny_status<B>(request: &Request<B>) -> Result<Option<StatusCode>, String> {
    if request.uri().path() != PATH {
        // What follows is the client's.
        return Ok(None);
    }
    let mut wanted = query::pairs(request.uri().query().unwrap_or_default())
        .filter(|(name, _)| **name == *b"deny_status");
    let Some((_, value)) = wanted.next() else { return Ok(None) };
    if wanted.next().is_some() {
        return Err("deny_status is sent twice".to_owned());
    }
    let status = StatusCode::from_bytes(&value).ok();
    let status = status.filter(|it| it.is_client_error() || it.is_server_error());
    status.map(Some).ok_or_else(|| "deny_status may be 400 to 599".to_owned())
}
