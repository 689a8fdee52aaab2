//! From a request that was let through to the response of a server.

use std::convert::Infallible;
use std::future::ready;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderValue, UPGRADE};
use http::uri::Authority;
use http::{Method, Request, Response, StatusCode, Version, request};
use hyper::upgrade::OnUpgrade;
use rustls::ClientConfig;
use serde_json::json;
use smallvec::SmallVec;
use tokio::time::{Duration, Instant, timeout_at};
use tollgate::http::path;
use tollgate::{Gateway, Scheme};
use tower_service::Service;

use super::activity::{Activity, duration};
use super::body::{Arriving, Coming, Received, Sending};
use super::bounds::ATTEMPTS_MAX;
use super::dial::{Purpose, dial};
use super::exchange::{Failed, Trouble, exchange, is_exhausted};
use super::fields::{self, Sender};
use super::pool::Upstream;
use super::upgrade::Tunnel;
use super::websocket::{self, Socket};
use crate::connection::Visitor;

/// Passes on the requests of one client's connection.
#[derive(Clone)]
pub(super) struct Proxy(Arc<Link>);

/// When a request must have ended: goes with it.
#[derive(Clone, Copy)]
pub(super) struct Deadline(pub(super) Instant);

/// What the requests of one connection share.
pub(super) struct Link {
    pub(super) visitor: Visitor,
    /// Names the connection, in the ids of its requests.
    pub(super) id: u64,
    sender: Sender,
    pub(super) activity: Arc<Activity>,
    /// What the connection becomes when it is no longer HTTP.
    tunnel: Mutex<Option<Box<Tunnel>>>,
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
        let (link, (mut parts, body)) = (Arc::clone(&self.0), request.into_parts());
        let deadline = parts.extensions.remove::<Deadline>();
        let client = parts.extensions.remove::<OnUpgrade>();
        let Some(plan) = link.plan(&parts) else {
            let why = "nothing is served under this host and path";
            return Box::pin(ready(Ok(refusal(StatusCode::NOT_FOUND, why))));
        };
        // HTTP/2 has no such thing, and HTTP/1.0 does not know of it.
        if let Some(client) = client
            && parts.version == Version::HTTP_11
            && let Some(to) = fields::upgrade(&parts.headers)
        {
            return in_time(deadline, async move {
                Ok(link.upgrade(plan, Request::from_parts(parts, body), to, client).await)
            });
        }
        fields::pass_on_request(&mut parts, &link.sender, plan.is_trusted, None);
        let body = Sending::new(body, &link.activity);
        // A request is large. It stays where it is until it is sent.
        let mut slot = Some(Request::from_parts(parts, body));
        in_time(deadline, async move { Ok(link.pass_on(&plan, &mut slot).await) })
    }
}

/// What comes of passing on a request, unless it takes longer than any may.
fn in_time<F>(
    deadline: Option<Deadline>,
    passing: F,
) -> <Proxy as Service<Request<Received>>>::Future
where
    F: Future<Output = Result<Response<Coming>, Infallible>> + Send + 'static,
{
    let Some(Deadline(deadline)) = deadline else { return Box::pin(passing) };
    Box::pin(async move { timeout_at(deadline, passing).await.unwrap_or_else(|_| Ok(late())) })
}

/// Where a request goes, and how patiently.
struct Plan {
    /// The servers to try, in this order.
    line: SmallVec<[Arc<Upstream>; ATTEMPTS_MAX]>,
    /// Whether the sender may say for whom it asks.
    is_trusted: bool,
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
    pub(super) fn new(visitor: Visitor, activity: Arc<Activity>) -> Self {
        let sender = Sender::new(visitor.peer.ip(), visitor.entrance.tls().is_some());
        let id = visitor.gate.number();
        Self { visitor, id, sender, activity, tunnel: Mutex::default() }
    }

    /// What the connection has become, now that it is no longer HTTP.
    pub(super) fn take_tunnel(&self) -> Option<Box<Tunnel>> {
        self.tunnel.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Passes on a request.
    async fn pass_on(&self, plan: &Plan, slot: &mut Option<Request<Sending>>) -> Response<Coming> {
        let is_plain = slot.as_ref().is_some_and(is_plain);
        let purpose = if is_plain { Purpose::Plain } else { Purpose::Requests };
        match self.send(plan, slot, purpose).await {
            Ok(response) => finish(response),
            Err(trouble) => trouble.answer(),
        }
    }

    /// Passes on a request after which the connection is to be something else.
    async fn upgrade(
        &self,
        plan: Plan,
        request: Request<Received>,
        to: HeaderValue,
        client: OnUpgrade,
    ) -> Response<Coming> {
        let (mut parts, body) = request.into_parts();
        let socket = if websocket::is_websocket(&parts.headers) {
            let Visitor { gate, peer, .. } = &self.visitor;
            match Socket::open(gate, &gate.slots, &parts, peer.ip()).await {
                Ok(socket) => Some((socket, plan.patience.idle)),
                Err(refused) => return refused,
            }
        } else {
            None
        };
        websocket::prepare(&mut parts.headers);
        fields::pass_on_request(&mut parts, &self.sender, plan.is_trusted, Some(to));
        let mut slot = Some(Request::from_parts(parts, Sending::new(body, &self.activity)));
        match self.send(&plan, &mut slot, Purpose::Upgrade).await {
            Ok(response) => {
                let has_agreed = response.status() == StatusCode::SWITCHING_PROTOCOLS
                    && websocket::is_websocket(response.headers()) == socket.is_some()
                    && !fields::leads_to_http(response.headers());
                if !has_agreed {
                    return finish(response);
                }
                self.become_tunnel(response, client, socket)
            }
            Err(trouble) => trouble.answer(),
        }
    }

    fn plan(&self, parts: &request::Parts) -> Option<Plan> {
        let Visitor { peer, gate, pool, .. } = &self.visitor;
        gate.limiter.with_policy(|policy| {
            let settings = policy.settings();
            let by_request = || {
                let named = parts.uri.authority().map(Authority::as_str);
                let host = || parts.headers.get(HOST).and_then(|host| host.to_str().ok());
                let path = path::resolve(parts.uri.path(), &settings.paths).ok()?;
                policy.route(named.or_else(host).unwrap_or_default(), &path)
            };
            let route = policy.only_route().or_else(by_request)?;
            let line = gate.targets.line(route).into_iter().map(|target| pool.upstream(target));
            let peer = peer.ip().to_canonical();
            let trusted = &settings.client_ip.trusted_proxies;
            Some(Plan {
                line: line.collect(),
                is_trusted: trusted.iter().any(|range| range.contains(peer)),
                patience: Patience::new(&settings.gateway),
            })
        })
    }

    /// Sends a request to one server after the other, until one answers or it may not be sent again.
    async fn send(
        &self,
        plan: &Plan,
        slot: &mut Option<Request<Sending>>,
        purpose: Purpose,
    ) -> Result<Response<Arriving>, Trouble> {
        let mut trouble = None;
        for upstream in &plan.line {
            match self.send_to(upstream, slot, purpose, plan.patience).await {
                Ok(answered) => return Ok(answered),
                Err(failed) => trouble = Some(failed.why),
            }
            if slot.is_none() {
                break;
            }
        }
        Err(trouble.expect("a route has a server"))
    }

    async fn send_to(
        &self,
        upstream: &Arc<Upstream>,
        slot: &mut Option<Request<Sending>>,
        purpose: Purpose,
        patience: Patience,
    ) -> Result<Response<Arriving>, Failed> {
        let targets = &self.visitor.gate.targets;
        while purpose != Purpose::Upgrade
            && let Some(way) = upstream.used(purpose).await
        {
            match exchange(way, slot, upstream, patience.head).await {
                Ok(answered) => {
                    targets.worked(&upstream.target);
                    return Ok(answered);
                }
                // It was closed while it was kept, which says nothing about the server.
                Err(Failed { why: Trouble::Broken(_), is_unsent }) if slot.is_some() => {
                    if !is_unsent {
                        // Perhaps not before this request came; then others would share its fate.
                        break;
                    }
                }
                Err(failed) => {
                    if !matches!(failed.why, Trouble::Broken(_)) {
                        failed.tell(targets, &upstream.target);
                    }
                    return Err(failed);
                }
            }
        }
        Box::pin(self.send_fresh(upstream, slot, purpose, patience)).await
    }

    /// Sends a request over a new connection.
    async fn send_fresh(
        &self,
        upstream: &Arc<Upstream>,
        slot: &mut Option<Request<Sending>>,
        purpose: Purpose,
        patience: Patience,
    ) -> Result<Response<Arriving>, Failed> {
        let gate = &self.visitor.gate;
        let tls: Option<Arc<ClientConfig>> = gate.upstream_tls.load_full();
        let exchanged = match dial(&upstream.target, purpose, &tls, patience.connect).await {
            Ok(dialled) => {
                exchange(upstream.fresh(dialled, purpose), slot, upstream, patience.head).await
            }
            Err(error) => Err(Failed { is_unsent: true, why: Trouble::Unreachable(error) }),
        };
        match &exchanged {
            Ok(_) => gate.targets.worked(&upstream.target),
            // A server that speaks HTTP/2 alone cannot be asked for it, which says nothing of how it is.
            Err(_) if purpose == Purpose::Upgrade && upstream.target.scheme() != Scheme::Http => {}
            Err(failed) => failed.tell(&gate.targets, &upstream.target),
        }
        exchanged
    }

    /// Answers that the connection becomes something else, as it then does.
    fn become_tunnel(
        &self,
        mut response: Response<Arriving>,
        client: OnUpgrade,
        socket: Option<(Socket, Option<Duration>)>,
    ) -> Response<Coming> {
        let server = hyper::upgrade::on(&mut response);
        let to = response.headers().get(UPGRADE).cloned();
        let (parts, body) = response.into_parts();
        let Arriving::Over { loan, .. } = body else {
            unreachable!("what is to leave HTTP goes over hyper's connections")
        };
        let mut response = Response::from_parts(parts, Coming::Own(Bytes::new()));
        let tunnel = Tunnel::new(client, server, loan, socket);
        *self.tunnel.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(tunnel));
        let version = response.version();
        fields::pass_on_response(response.headers_mut(), version);
        if let Some(to) = to {
            fields::ask_to_upgrade(response.headers_mut(), to);
        }
        response
    }
}

impl Trouble {
    /// What the client is told.
    fn answer(&self) -> Response<Coming> {
        match self {
            Self::Late | Self::Stalled => {
                refusal(StatusCode::GATEWAY_TIMEOUT, "the server behind this one does not answer")
            }
            Self::Unfinished => {
                refusal(StatusCode::BAD_REQUEST, "the body of the request is not whole")
            }
            Self::Unreachable(error) if is_exhausted(error) => {
                refusal(StatusCode::SERVICE_UNAVAILABLE, "there are too many connections")
            }
            Self::Unreachable(_) | Self::Broken(_) => {
                refusal(StatusCode::BAD_GATEWAY, "the server behind this one is not to be had")
            }
        }
    }
}

/// A server's response, for the client.
fn finish(mut response: Response<Arriving>) -> Response<Coming> {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return refusal(StatusCode::BAD_GATEWAY, "the server behind this one left HTTP unasked");
    }
    let version = response.version();
    fields::pass_on_response(response.headers_mut(), version);
    // What a server of HTTP/1.0 cannot do we can.
    *response.version_mut() = Version::HTTP_11;
    response.map(Coming::new)
}

/// Whether a request is a head and nothing else. What `CONNECT` asks for is no path.
fn is_plain(request: &Request<Sending>) -> bool {
    matches!(request.body(), Sending::Nothing) && request.method() != Method::CONNECT
}

/// The answer to a request that takes longer than any may.
pub(super) fn late() -> Response<Coming> {
    refusal(StatusCode::GATEWAY_TIMEOUT, "the request has had its time")
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
