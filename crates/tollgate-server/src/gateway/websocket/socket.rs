//! What the limits say of one WebSocket and of every message on it.
//!
//! A socket is known by the request that opened it, which is kept: every message is asked about under
//! the policy that is in force then, which may look at something that the one before did not.

use std::net::IpAddr;
use std::sync::Arc;

use http::header::{CONTENT_TYPE, HOST};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, Method, Response, StatusCode, Uri};
use tokio::time::Duration;
use tollgate::http::problem::Form;
use tollgate::http::{Sent, client, extract, fields, path, problem, status};
use tollgate::{Asked, Layer, Missing, OnDenied, Outcome, Request, Ruling, Slot, Slots, Verdict};

use super::super::body::Coming;
use super::super::proxy;
use super::close::Close;
use crate::gate::Gate;
use crate::metrics::One;
use crate::stage::Drain;

/// A WebSocket that is open, or about to be. Dropped, it gives back what it holds.
pub(crate) struct Socket {
    gate: Arc<Gate>,
    opening: Opening,
    _slot: Option<Slot>,
    /// Counts the socket as long as it is open.
    _one: One,
}

/// What is known of a socket.
struct Opening {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    peer: IpAddr,
    /// The socket's name, which no other has: not in this process, and not in one that shares its
    /// store.
    name: String,
}

/// What becomes of a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// It is passed on.
    Passes,
    /// It is asked about again then, and nothing behind it is read before.
    Waits(Duration),
    /// The socket is closed.
    Ends(Close),
}

impl Socket {
    /// Asks whether the request with these `parts`, as they came from `peer`, may open a WebSocket;
    /// the answer to it if it may not.
    pub(crate) async fn open(
        gate: &Arc<Gate>,
        slots: &Arc<Slots>,
        parts: &Parts,
        peer: IpAddr,
    ) -> Result<Self, Response<Coming>> {
        let opening = Opening::new(gate, parts, peer);
        let (asked, client_ip) = opening
            .ask(gate, Layer::Socket, 0)
            .map_err(|why| proxy::refusal(StatusCode::BAD_REQUEST, &why))?;
        let mut verdict = asked.await;
        if !verdict.is_allowed() {
            return Err(refusal(&verdict, &opening.headers, gate, client_ip));
        }
        let slot = slots.hold(&mut verdict);
        let one = gate.websockets.enter();
        Ok(Self { gate: Arc::clone(gate), opening, _slot: slot, _one: one })
    }

    /// Asks about a message of so many bytes, or about more of one.
    pub(crate) fn ask(&self, layer: Layer, bytes: u64) -> Asked<Judgement> {
        match self.opening.ask(&self.gate, layer, bytes) {
            Ok((asked, _)) => asked.map(|verdict| judge(&verdict)),
            Err(why) => Asked::Ready(Judgement::Ends(Close::refused(&why))),
        }
    }

    /// Waits until the server is to stop.
    pub(crate) fn drain(&self) -> Drain {
        self.gate.stages.watch()
    }
}

impl Opening {
    fn new(gate: &Gate, parts: &Parts, peer: IpAddr) -> Self {
        Self {
            method: parts.method.clone(),
            uri: parts.uri.clone(),
            headers: parts.headers.clone(),
            peer,
            name: format!("{:016x}", gate.number()),
        }
    }

    /// Asks the policy in force, and tells whose socket it is; or why nobody can tell.
    fn ask(
        &self,
        gate: &Gate,
        layer: Layer,
        bytes: u64,
    ) -> Result<(Asked<Verdict>, IpAddr), String> {
        let pinned = gate.limiter.pin();
        let settings = pinned.policy().settings();
        let path = path::resolve(self.uri.path(), &settings.paths)
            .map_err(|error| format!("the path: {error}"))?;
        let client_ip = &settings.client_ip;
        let trusts = |address| client_ip.trusted_proxies.iter().any(|it| it.contains(address));
        let client_ip = client::address(self.peer, &self.headers, client_ip.header, trusts)
            .map_err(|error| error.to_string())?;
        let sent = Sent {
            method: self.method.as_str(),
            path: &path,
            query: self.uri.query(),
            host: self.host(),
            headers: &self.headers,
            client_ip,
        };
        let (mut room, bytes) = (Vec::new(), bytes.to_string());
        let mut attributes = extract(pinned.policy().attributes(), &sent, &mut room)
            .map_err(|error| error.to_string())?;
        attributes.push(("connection", self.name.as_bytes()));
        if layer != Layer::Socket {
            attributes.push(("bytes", bytes.as_bytes()));
        }
        let request = Request { missing: Missing::Shared, layer, ..Request::new(&attributes) };
        Ok((pinned.ask(&request), client_ip))
    }

    /// Whom the request was for. That it named one host was seen to before.
    fn host(&self) -> Option<&str> {
        let named = self.uri.authority().map(Authority::as_str);
        named.or_else(|| self.headers.get(HOST).and_then(|host| host.to_str().ok()))
    }
}

/// The answer to a request that opens no socket.
fn refusal(
    verdict: &Verdict,
    headers: &HeaderMap,
    gate: &Gate,
    client_ip: IpAddr,
) -> Response<Coming> {
    let form = Form::preferred(headers);
    let mut body = Vec::with_capacity(512);
    problem::write(&mut body, verdict, form);
    let mut answer = Response::new(Coming::Own(body.into()));
    *answer.status_mut() = status(verdict);
    answer.headers_mut().insert(CONTENT_TYPE, form.content_type());
    fields::insert(answer.headers_mut(), verdict, gate.limiter.now(), gate.spread(client_ip));
    answer
}

/// What becomes of a message that was judged so. Of several limits that deny it the strictest has its
/// way.
fn judge(verdict: &Verdict) -> Judgement {
    let ends = |reason: &str| Judgement::Ends(Close::refused(reason));
    match verdict.ruling() {
        Ruling::Allowed | Ruling::Exempt => Judgement::Passes,
        Ruling::Denied => denied(verdict),
        Ruling::Uncounted => {
            Judgement::Ends(Close::unwell("a limit cannot be counted; try again later"))
        }
        Ruling::Blocked => ends("the client is blocked"),
        Ruling::UnknownKey => ends("the API key is not known"),
        Ruling::BadCost => ends("the message has no cost"),
    }
}

fn denied(verdict: &Verdict) -> Judgement {
    let denials =
        || verdict.answers().filter(|answer| answer.is_enforced() && !answer.is_allowed());
    let is_final = |answer: &tollgate::Answer<'_>| {
        let outcome = answer.decision().map(|decision| decision.outcome);
        answer.rule().on_denied() == OnDenied::Close || outcome == Some(Outcome::TooCostly)
    };
    match (denials().find(is_final), verdict.retry_after()) {
        (None, Some(wait)) => Judgement::Waits(Duration::from_micros(wait.as_micros())),
        (by, _) => {
            let by = by.or_else(|| denials().next());
            let name = by.map_or("", |answer| answer.rule().name());
            Judgement::Ends(Close::refused(&format!("limit {name:?} exceeded")))
        }
    }
}
