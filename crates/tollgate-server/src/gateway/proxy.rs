//! From a request that was let through to the response of a server.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use http::uri::{Authority, PathAndQuery, Uri};
use http::{Method, Request, Response, StatusCode, Version, request};
use http_body::Body;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use rustix::io::Errno;
use rustls::ClientConfig;
use serde_json::json;
use smallvec::SmallVec;
use tokio::time::{Duration, timeout};
use tollgate::http::path;
use tollgate::{Gateway, Scheme, Target};
use tower_service::Service;

use super::activity::duration;
use super::body::{Coming, Progress, Received, Sending};
use super::bounds::ATTEMPTS_MAX;
use super::dial::{Purpose, dial};
use super::fields::{self, Sender};
use super::pool::{Loan, Upstream};
use super::targets::Targets;
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

/// Why there is no response.
struct Failed {
    /// The request, if it may be sent to somebody else.
    request: Option<Request<Sending>>,
    /// Whether nothing of it was sent.
    is_unsent: bool,
    why: Trouble,
}

/// What went wrong with a server.
enum Trouble {
    /// There is no connection.
    Unreachable(io::Error),
    /// The connection ended before there was a response.
    Broken(hyper::Error),
    /// There was none in time.
    Late,
    /// The client did not send all of its request.
    Unfinished,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(error) => write!(f, "no connection: {error}"),
            Self::Broken(error) => write!(f, "the connection broke: {error}"),
            Self::Late => f.write_str("no response in time"),
            Self::Unfinished => f.write_str("the request did not come to its end"),
        }
    }
}

impl Failed {
    /// Tells of a server that failed, unless it was the client who did, or we.
    fn tell(&self, targets: &Targets, target: &Target) {
        match &self.why {
            Trouble::Unfinished => {}
            Trouble::Unreachable(error) if is_exhausted(error) => {}
            why => targets.failed(target, why),
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

/// A response, the connection that it comes over, and how far its request has got.
type Answered = (Response<Incoming>, Loan, Option<Arc<Progress>>);

/// Sends a request over a connection and waits for the head of the response. What was not sent, or
/// does no harm when it is sent twice, comes back if there is none.
async fn exchange(
    mut loan: Loan,
    mut request: Request<Sending>,
    upstream: &Upstream,
    patience: Duration,
) -> Result<Answered, Failed> {
    address(&mut request, loan.is_http2(), &upstream.target);
    measure(&mut request, loan.is_http2());
    let copy = copy_of(&request);
    let progress = request.body().progress();
    let answer = {
        let mut sent = pin!(loan.send(request));
        loop {
            match timeout(patience, sent.as_mut()).await {
                Ok(answer) => break Some(answer),
                // The server may wait for the rest of the request, and so do we.
                Err(_) if progress.as_ref().is_some_and(|it| it.has_moved()) => {}
                Err(_) => break None,
            }
        }
    };
    match answer {
        Some(Ok(response)) => Ok((response, loan, progress)),
        Some(Err(_)) if progress.is_some_and(|it| it.has_failed()) => {
            Err(Failed { request: None, is_unsent: false, why: Trouble::Unfinished })
        }
        Some(Err(mut error)) => {
            let unsent = error.take_message();
            let (is_unsent, request) = (unsent.is_some(), unsent.or(copy));
            Err(Failed { request, is_unsent, why: Trouble::Broken(error.into_error()) })
        }
        None => Err(Failed { request: None, is_unsent: false, why: Trouble::Late }),
    }
}

/// Another request like this one, if sending both does no more than sending one.
fn copy_of(request: &Request<Sending>) -> Option<Request<Sending>> {
    let is_safe = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    if !is_safe || !matches!(request.body(), Sending::Nothing) {
        return None;
    }
    let mut copy = Request::new(Sending::Nothing);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    copy.headers_mut().clone_from(request.headers());
    Some(copy)
}

/// Says for whom a request is in the way of its version: in a field of its own, or in the URI.
fn address(request: &mut Request<Sending>, is_http2: bool, target: &Target) {
    let path = request.uri().path_and_query().cloned();
    let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
    if is_http2 {
        *request.version_mut() = Version::HTTP_2;
        let scheme = if target.scheme() == Scheme::Https { "https" } else { "http" };
        let host = request.headers_mut().remove(HOST);
        let uri = request.uri();
        if uri.authority().is_some() && uri.scheme_str() == Some(scheme) {
            return;
        }
        let host = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
        let host = host.or_else(|| uri.authority().cloned()).unwrap_or_else(|| authority(target));
        let uri = Uri::builder().scheme(scheme).authority(host).path_and_query(path);
        *request.uri_mut() = uri.build().expect("every part was one");
        return;
    }
    *request.version_mut() = Version::HTTP_11;
    if !request.headers().contains_key(HOST) {
        let host = request.uri().authority().cloned().unwrap_or_else(|| authority(target));
        let host = HeaderValue::from_str(host.as_str()).expect("an authority is printable");
        request.headers_mut().insert(HOST, host);
    }
    if request.uri().authority().is_some() {
        *request.uri_mut() = Uri::from(path);
    }
}

/// Says how long a request is, as we know it and not as it was told.
fn measure(request: &mut Request<Sending>, is_http2: bool) {
    let length = request.body().size_hint().exact();
    let is_empty = matches!(request.body(), Sending::Nothing);
    let headers = request.headers_mut();
    headers.remove(TRANSFER_ENCODING);
    match length {
        // Most requests have no body, and say nothing of it.
        Some(_) if is_empty && !headers.contains_key(CONTENT_LENGTH) => {}
        Some(length) => drop(headers.insert(CONTENT_LENGTH, length.into())),
        None => {
            headers.remove(CONTENT_LENGTH);
            if !is_http2 {
                // It would otherwise be taken for granted that a GET has no body.
                headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            }
        }
    }
}

fn authority(target: &Target) -> Authority {
    let (host, port) = (target.host(), target.port());
    let text =
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    text.parse().expect("a host of a policy is one of an authority")
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

/// Whether an error is ours: there are no more files, or ports, to be had.
fn is_exhausted(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::MFILE | Errno::NFILE | Errno::ADDRNOTAVAIL | Errno::NOBUFS))
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
