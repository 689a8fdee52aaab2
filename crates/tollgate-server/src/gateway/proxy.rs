//! From a request that was let through to the response of a server.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderValue, UPGRADE};
use http::uri::Authority;
use http::{Request, Response, StatusCode, Version, request};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use rustls::ClientConfig;
use serde_json::json;
use smallvec::SmallVec;
use tokio::time::Duration;
use tollgate::Gateway;
use tollgate::http::path;
use tower_service::Service;

use super::activity::duration;
use super::body::{Coming, Progress, Received, Sending};
use super::bounds::ATTEMPTS_MAX;
use super::dial::{Purpose, dial};
use super::exchange::{Answered, Failed, Trouble, exchange, is_exhausted};
use super::fields::{self, Sender};
use super::pool::{Loan, Upstream};
use super::upgrade::Tunnel;
use super::websocket::{self, Socket};
use crate::connection::Visitor;

/// Passes on the requests of one client's connection.
#[derive(Clone)]
pub(super) struct Proxy(Arc<Link>);

/// What the requests of one connection share.
pub(super) struct Link {
    pub(super) visitor: Visitor,
    /// Names the connection, in the ids of its requests.
    pub(super) id: u64,
    is_tls: bool,
    /// What the connection becomes when it is no longer HTTP.
    tunnel: Mutex<Option<Tunnel>>,
}

impl Proxy {
    pub(super) fn new(link: Arc<Link>) -> Self {
        Self(link)
    }
}

impl Service<Request<Received>> for Proxy {
    type Response = Response<Coming>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Coming>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Received>) -> Self::Future {
        let link = Arc::clone(&self.0);
        Box::pin(async move { Ok(link.pass_on(request).await) })
    }
}

/// Where a request goes, and how patiently.
struct Plan {
    /// The servers to try, in this order.
    line: SmallVec<[Arc<Upstream>; ATTEMPTS_MAX]>,
    sender: Sender,
    patience: Patience,
}

#[derive(Clone, Copy)]
struct Patience {
    connect: Duration,
    head: Duration,
    idle: Option<Duration>,
}

impl Patience {
    fn new(settings: &Gateway) -> Self {
        Self {
            connect: duration(settings.connect_timeout),
            head: duration(settings.headers_timeout),
            idle: settings.idle_timeout.map(duration),
        }
    }
}

impl Link {
    pub(super) fn new(visitor: Visitor) -> Self {
        let is_tls = visitor.entrance.tls().is_some();
        let id = visitor.gate.number();
        Self { visitor, id, is_tls, tunnel: Mutex::default() }
    }

    /// What the connection has become, now that it is no longer HTTP.
    pub(super) fn take_tunnel(&self) -> Option<Tunnel> {
        self.tunnel.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    async fn pass_on(&self, request: Request<Received>) -> Response<Coming> {
        let (mut parts, body) = request.into_parts();
        let Some(plan) = self.plan(&parts) else {
            return refusal(StatusCode::NOT_FOUND, "nothing is served under this host and path");
        };
        // HTTP/2 has no such thing, and HTTP/1.0 does not know of it.
        let to = fields::upgrade(&parts.headers).filter(|_| parts.version == Version::HTTP_11);
        let Some((to, client)) = to.zip(parts.extensions.remove::<OnUpgrade>()) else {
            fields::pass_on_request(&mut parts, &plan.sender, None);
            let request = Request::from_parts(parts, Sending::from(body));
            return match self.send(&plan, request, Purpose::Requests).await {
                Ok((response, loan, progress)) => finish(response, loan, progress),
                Err(refused) => refused,
            };
        };
        let socket = if websocket::is_websocket(&parts.headers) {
            websocket::prepare(&mut parts.headers);
            let Visitor { gate, peer, .. } = &self.visitor;
            match Socket::open(gate, &gate.slots, &parts, peer.ip()).await {
                Ok(socket) => Some((socket, plan.patience.idle)),
                Err(refused) => return refused,
            }
        } else {
            None
        };
        fields::pass_on_request(&mut parts, &plan.sender, Some(to));
        let request = Request::from_parts(parts, Sending::from(body));
        match self.send(&plan, request, Purpose::Upgrade).await {
            Ok((response, loan, progress)) => {
                let has_agreed = response.status() == StatusCode::SWITCHING_PROTOCOLS
                    && websocket::is_websocket(response.headers()) == socket.is_some();
                if !has_agreed {
                    return finish(response, loan, progress);
                }
                self.become_tunnel(response, loan, client, socket)
            }
            Err(refused) => refused,
        }
    }

    fn plan(&self, parts: &request::Parts) -> Option<Plan> {
        let Visitor { peer, gate, pool, .. } = &self.visitor;
        let pinned = gate.limiter.pin();
        let (policy, settings) = (pinned.policy(), pinned.policy().settings());
        let host = parts
            .uri
            .authority()
            .map(Authority::as_str)
            .or_else(|| parts.headers.get(HOST).and_then(|host| host.to_str().ok()));
        let path = path::resolve(parts.uri.path(), &settings.paths).ok()?;
        let route = policy.route(host.unwrap_or_default(), &path)?;
        let line = gate.targets.line(route).into_iter().map(|target| pool.upstream(target));
        let peer: IpAddr = peer.ip().to_canonical();
        let trusted = &settings.client_ip.trusted_proxies;
        let is_trusted = trusted.iter().any(|range| range.contains(peer));
        Some(Plan {
            line: line.collect(),
            sender: Sender { peer, is_trusted, is_tls: self.is_tls },
            patience: Patience::new(&settings.gateway),
        })
    }

    /// Sends a request to one server after the other, until one answers or it may not be sent again.
    async fn send(
        &self,
        plan: &Plan,
        request: Request<Sending>,
        purpose: Purpose,
    ) -> Result<Answered, Response<Coming>> {
        let mut request = request;
        let mut trouble = None;
        for upstream in &plan.line {
            let failed = match self.send_to(upstream, request, purpose, plan.patience).await {
                Ok(answered) => return Ok(answered),
                Err(failed) => failed,
            };
            trouble = Some(failed.why);
            match failed.request {
                Some(again) => request = again,
                None => break,
            }
        }
        Err(match trouble {
            Some(Trouble::Late) => {
                refusal(StatusCode::GATEWAY_TIMEOUT, "the server behind this one does not answer")
            }
            Some(Trouble::Unfinished) => {
                refusal(StatusCode::BAD_REQUEST, "the body of the request is not whole")
            }
            Some(Trouble::Unreachable(error)) if is_exhausted(&error) => {
                refusal(StatusCode::SERVICE_UNAVAILABLE, "there are too many connections")
            }
            _ => refusal(StatusCode::BAD_GATEWAY, "the server behind this one is not to be had"),
        })
    }

    async fn send_to(
        &self,
        upstream: &Arc<Upstream>,
        mut request: Request<Sending>,
        purpose: Purpose,
        patience: Patience,
    ) -> Result<Answered, Failed> {
        let targets = &self.visitor.gate.targets;
        while purpose == Purpose::Requests
            && let Some(loan) = upstream.used().await
        {
            match exchange(loan, request, upstream, patience.head).await {
                Ok(answered) => {
                    targets.worked(&upstream.target);
                    return Ok(answered);
                }
                // It was closed while it was kept, which says nothing about the server.
                Err(Failed { request: Some(again), why: Trouble::Broken(_), is_unsent }) => {
                    request = again;
                    if !is_unsent {
                        // Perhaps not before this request came; then others would share its fate.
                        break;
                    }
                }
                Err(failed) => {
                    failed.tell(targets, &upstream.target);
                    return Err(failed);
                }
            }
        }
        let tls: Option<Arc<ClientConfig>> = self.visitor.gate.upstream_tls.load_full();
        let dialled = dial(&upstream.target, purpose, &tls, patience.connect).await;
        let exchanged = match dialled {
            Ok(dialled) => {
                let loan = upstream.fresh(dialled);
                exchange(loan, request, upstream, patience.head).await
            }
            Err(error) => {
                let why = Trouble::Unreachable(error);
                Err(Failed { request: Some(request), is_unsent: true, why })
            }
        };
        match &exchanged {
            Ok(_) => targets.worked(&upstream.target),
            Err(failed) => failed.tell(targets, &upstream.target),
        }
        exchanged
    }

    /// Answers that the connection becomes something else, as it then does.
    fn become_tunnel(
        &self,
        mut response: Response<Incoming>,
        loan: Loan,
        client: OnUpgrade,
        socket: Option<(Socket, Option<Duration>)>,
    ) -> Response<Coming> {
        let server = hyper::upgrade::on(&mut response);
        let to = response.headers().get(UPGRADE).cloned();
        let tunnel = Tunnel::new(client, server, loan, socket);
        *self.tunnel.lock().unwrap_or_else(PoisonError::into_inner) = Some(tunnel);
        let version = response.version();
        fields::pass_on_response(response.headers_mut(), version);
        if let Some(to) = to {
            fields::ask_to_upgrade(response.headers_mut(), to);
        }
        response.map(|_| Coming::Own(Bytes::new()))
    }
}

/// A server's response, for the client.
fn finish(
    mut response: Response<Incoming>,
    loan: Loan,
    progress: Option<Arc<Progress>>,
) -> Response<Coming> {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return refusal(StatusCode::BAD_GATEWAY, "the server behind this one left HTTP unasked");
    }
    let version = response.version();
    fields::pass_on_response(response.headers_mut(), version);
    // What a server of HTTP/1.0 cannot do we can.
    *response.version_mut() = Version::HTTP_11;
    response.map(|body| Coming::passing(body, loan, progress))
}

/// An answer of our own, for programs (RFC 9457) and people.
pub(super) fn refusal(status: StatusCode, detail: &str) -> Response<Coming> {
    let title = status.canonical_reason().unwrap_or("refused");
    let body = json!({"title": title, "status": status.as_u16(), "detail": detail}).to_string();
    let mut answer = Response::new(Coming::Own(Bytes::from(body)));
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static("application/problem+json");
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}
