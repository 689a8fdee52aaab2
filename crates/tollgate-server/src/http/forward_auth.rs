//! Decisions for proxies that ask before they let a request through.
//!
//! nginx (`auth_request`), Traefik and Caddy say with `X-Forwarded-*` what the request is; Envoy's
//! HTTP `ext_authz` sends its method, host and headers, and its URI behind our own path. Who is
//! neither on loopback nor a trusted proxy is believed nothing.

use std::net::IpAddr;

use http::header::HOST;
use http::{HeaderMap, Request, StatusCode};
use tollgate::http::{Sent, client, extract, fields, path, problem, query, status};
use tollgate::{ClientIp, End, Keys, Missing};

use crate::connection::Visitor;
use crate::http1::{self, Answer};

/// Where proxies ask.
pub(super) const PATH: &str = "/v1/forward-auth";

/// What the proxy is about to let through.
struct Forwarded<'r> {
    method: &'r str,
    uri: &'r str,
    host: &'r str,
    client_ip: IpAddr,
}

/// Answers a proxy.
pub(super) fn answer<B>(request: &Request<B>, visitor: &Visitor) -> Answer {
    match decide(request, visitor) {
        Ok(answer) => answer,
        Err(sentence) => http1::problem(StatusCode::BAD_REQUEST, &sentence),
    }
}

fn decide<B>(request: &Request<B>, visitor: &Visitor) -> Result<Answer, String> {
    let gate = &visitor.gate;
    let deny_status = deny_status(request)?;
    let pinned = gate.limiter.pin();
    let forwarded = Forwarded::read(request, visitor, &pinned.policy().settings().client_ip)?;
    let (raw_path, raw_query) = match forwarded.uri.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (forwarded.uri, None),
    };
    let path = path::resolve(raw_path).map_err(|error| format!("the path: {error}"))?;
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
    let mut keys = Keys::default();
    let verdict = pinned.check_showing(&request_for_us, &mut keys);
    let mut answer = if verdict.is_allowed() {
        http1::answer(StatusCode::OK, "text/plain", "")
    } else {
        let form = problem::Form::preferred(request.headers());
        let mut body = Vec::with_capacity(512);
        problem::write(&mut body, &verdict, form);
        let status = deny_status.unwrap_or(status(&verdict));
        let mut answer = http1::answer(status, "", body);
        answer.headers_mut().insert(http::header::CONTENT_TYPE, form.content_type());
        answer
    };
    fields::insert(answer.headers_mut(), &verdict, gate.limiter.now(), gate.spread(&keys));
    Ok(answer)
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
        if one(headers, client::X_FORWARDED_FOR.as_str(), true)?.is_none() {
            return Err(missing("X-Forwarded-For"));
        }
        let client_ip =
            client::address(peer, headers, trusts).map_err(|error| error.to_string())?;
        let appended = request.uri().path_and_query().map_or("", |it| it.as_str());
        let appended = appended.strip_prefix(PATH).filter(|uri| uri.starts_with('/'));
        if let Some(uri) = appended {
            let host = one(headers, HOST.as_str(), false)?.ok_or_else(|| missing("Host"))?;
            return Ok(Self { method: request.method().as_str(), uri, host, client_ip });
        }
        let told = |name| one(headers, name, false)?.ok_or_else(|| missing(name));
        Ok(Self {
            method: told("X-Forwarded-Method")?,
            uri: told("X-Forwarded-Uri")?,
            host: told("X-Forwarded-Host")?,
            client_ip,
        })
    }
}

fn missing(name: &str) -> String {
    format!("the proxy must say {name}; docs/proxies.md shows how")
}

/// The value of a field; of one that may come in several lines the first.
fn one<'h>(headers: &'h HeaderMap, name: &str, several: bool) -> Result<Option<&'h str>, String> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() && !several {
        return Err(format!("{name} is sent more than once"));
    }
    value.to_str().map(Some).map_err(|_| format!("{name} is not text"))
}

/// What the proxy wants denials to be, if it cannot pass on a 429.
fn deny_status<B>(request: &Request<B>) -> Result<Option<StatusCode>, String> {
    if request.uri().path() != PATH {
        // What follows is the client's.
        return Ok(None);
    }
    let mut wanted = query::pairs(request.uri().query().unwrap_or_default())
        .filter(|(name, _)| **name == *b"deny_status");
    let Some((_, value)) = wanted.next() else { return Ok(None) };
    let status = StatusCode::from_bytes(&value).ok();
    let status = status.filter(|it| it.is_client_error() || it.is_server_error());
    status.map(Some).ok_or_else(|| "deny_status may be 400 to 599".to_owned())
}
