//! What is asked of the limiter about a request, and what becomes of the request then.

use std::cell::Cell;
use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::sync::Arc;

use ::http::header::HOST;
use ::http::request::Parts;
use ::http::uri::Authority;
use ::http::{HeaderMap, Response, Version};
use bytes::Bytes;
use smallvec::SmallVec;

use super::Shared;
use super::bill::{self, Bill};
use super::body::{ResponseBody, Watched};
use super::flow::{Direction, Flow, Known};
use super::hold::Ticket;
use super::refusal::{self, Refusal};
use crate::bounds::ROOM_BYTES_KEPT;
use crate::http::{Sent, client, extract, fields, path};
use crate::limiter::Boxed;
use crate::verdict::decided_at;
use crate::{End, Layer, Limiter, Micros, Missing, Policy, Request, Slot, Timestamp, Verdict};

thread_local! {
    /// Where values are decoded, one request after the other.
    static ROOM: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// What [`TollgateLayer::attributes`](super::TollgateLayer::attributes) says of a request.
#[derive(Debug, Default)]
pub struct Added {
    names: SmallVec<[(&'static str, Range<usize>); 4]>,
    values: Vec<u8>,
}

impl Added {
    /// Says that the request has an attribute. Of one name the first value counts.
    pub fn add(&mut self, name: &'static str, value: impl AsRef<[u8]>) {
        let start = self.values.len();
        self.values.extend_from_slice(value.as_ref());
        self.names.push((name, start..self.values.len()));
    }

    fn pairs(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.names.iter().map(|(name, range)| (*name, &self.values[range.clone()]))
    }
}

/// What becomes of a request.
pub(super) enum Admitted {
    /// It goes on.
    Passed(Passage),
    /// It goes on when its moment has come.
    Held(Ticket, Passage),
    /// It is answered here.
    Refused(Response<Bytes>),
}

/// What a request that goes on takes along, for its response. It goes a long way, so what is large of it
/// is in a box.
pub(super) struct Passage {
    verdict: Box<Verdict>,
    /// When that was right.
    at: Timestamp,
    slot: Option<Slot>,
    /// Whom to tell what the request cost, if a limit waits for that.
    awaiting: Option<Arc<Limiter>>,
    known: Option<Arc<Known>>,
}

/// What is remembered of a request until it is judged.
pub(super) struct Asker {
    /// Whose waits are spread, if it is denied.
    client_ip: IpAddr,
    /// What there is to be said of its streams, if they are counted.
    pub(super) known: Option<Arc<Known>>,
}

impl Shared {
    /// Asks about a request, whose verdict may have to be waited for. What has no one meaning is refused.
    pub(super) fn ask(self: &Arc<Self>, parts: &Parts) -> Result<(Boxed, Asker), Refusal> {
        let pinned = self.limiter.pin();
        let settings = pinned.policy().settings();
        let host = host(parts)?;
        let path = path::resolve(parts.uri.path(), &settings.paths)
            .map_err(|error| Refusal::Ambiguous(error.to_string()))?;
        let client_ip = self.client_ip(parts, pinned.policy())?;
        let sent = Sent {
            method: parts.method.as_str(),
            path: &path,
            query: parts.uri.query(),
            host,
            headers: &parts.headers,
            client_ip,
        };
        let (mut room, mut added) = (ROOM.take(), Added::default());
        let mut attributes = extract(pinned.policy().attributes(), &sent, &mut room)
            .map_err(|error| Refusal::Ambiguous(error.to_string()))?;
        if let Some(add) = &self.attributes {
            add(parts, &mut added);
            // Of a name that is there twice the first counts.
            attributes.extend(added.pairs());
        }
        let request =
            Request { missing: Missing::Shared, end: End::Told, ..Request::new(&attributes) };
        let asked = pinned.ask_boxed(&request);
        let known = pinned.policy().has_limits_of(Layer::Stream);
        let known = known.then(|| Arc::new(Known::new(self, &attributes)));
        drop(attributes);
        if room.capacity() <= ROOM_BYTES_KEPT {
            ROOM.set(room);
        }
        Ok((asked, Asker { client_ip, known }))
    }

    fn client_ip(&self, parts: &Parts, policy: &Policy) -> Result<IpAddr, Refusal> {
        let Some(peer) = (self.peer)(parts) else {
            let is_wanted = policy.attributes().any(|name| name == "client_ip");
            // Where nobody asks any address is as good.
            return if is_wanted { Err(Refusal::NoPeer) } else { Ok(Ipv4Addr::UNSPECIFIED.into()) };
        };
        let settings = &policy.settings().client_ip;
        let trusts = |address| settings.trusted_proxies.iter().any(|it| it.contains(address));
        client::address(peer, &parts.headers, settings.header, trusts)
            .map_err(|error| Refusal::Ambiguous(error.to_string()))
    }

    /// What becomes of a request with these headers that was judged so.
    pub(super) fn admit(
        self: &Arc<Self>,
        verdict: Box<Verdict>,
        asker: Asker,
        headers: &HeaderMap,
    ) -> Admitted {
        // Who has just decided knows what time it is.
        let at = decided_at(&verdict.taken).unwrap_or_else(|| self.limiter.now());
        if !verdict.is_allowed() {
            let mut answer = refusal::by_verdict(&verdict, headers);
            let spread = self.spread.hash_one(asker.client_ip);
            fields::insert(answer.headers_mut(), &verdict, at, spread);
            return Admitted::Refused(answer);
        }
        if verdict.delay() == Micros::ZERO {
            return Admitted::Passed(self.passage(verdict, at, asker));
        }
        match Ticket::draw(self, &verdict) {
            Some(ticket) => Admitted::Held(ticket, self.passage(verdict, at, asker)),
            None => {
                let mut answer = Refusal::TooManyHeld.answer(headers);
                insert_allowed(answer.headers_mut(), &verdict, at);
                Admitted::Refused(answer)
            }
        }
    }

    fn passage(&self, mut verdict: Box<Verdict>, at: Timestamp, asker: Asker) -> Passage {
        let slot = self.slots.hold(&mut verdict);
        let awaiting = bill::is_awaited(&verdict).then(|| Arc::clone(&self.limiter));
        Passage { verdict, at, slot, awaiting, known: asker.known }
    }
}

impl Passage {
    /// Whether what limits count is in the body of the response.
    pub(super) fn reads_response(&self) -> bool {
        self.known.is_some() || self.awaiting.is_some() && bill::is_in_body(&self.verdict)
    }

    /// The service's response, with what the limits have to say.
    pub(super) fn dress<R>(mut self, mut response: Response<R>) -> Response<ResponseBody<R>> {
        let (verdict, at) = (&self.verdict, self.at);
        let headers = response.headers();
        let bill = self.awaiting.take().map(|limiter| Bill::of(limiter, verdict, &response));
        if let Some(exhausted) = self.known.as_ref().and_then(|known| known.silenced()) {
            let mut answer = refusal::grpc_exhausted(&exhausted.to_string());
            insert_allowed(answer.headers_mut(), verdict, at);
            return answer.map(ResponseBody::refusal);
        }
        let known = self.known.take();
        let flow = known.and_then(|known| Flow::of(&known, Direction::Down, headers));
        let watched = (bill.is_some() || flow.is_some()).then(|| {
            let is_grpc = refusal::is_grpc(headers);
            Box::new(Watched { bill, flow, is_grpc })
        });
        insert_allowed(response.headers_mut(), verdict, at);
        let slot = self.slot.take();
        response.map(|body| ResponseBody::passed(body, slot, watched))
    }

    /// The service has no response: it failed, and what waits to be told its cost is owed nothing.
    pub(super) fn fail(self) {
        if let Some(limiter) = self.awaiting {
            drop(Bill::of_failure(limiter, &self.verdict));
        }
    }
}

/// Writes the fields of a request that no limit denies: there is no wait to spread.
fn insert_allowed(headers: &mut HeaderMap, verdict: &Verdict, at: Timestamp) {
    fields::insert(headers, verdict, at, 0);
}

/// Whom a request is for: it must name one host, and only one. Over HTTP/2 the name is in its
/// `:authority`, and `Host` need not be there.
fn host(parts: &Parts) -> Result<Option<&str>, Refusal> {
    let ambiguous = |why: &str| Err(Refusal::Ambiguous(why.to_owned()));
    let authority = parts.uri.authority().map(Authority::as_str);
    let mut hosts = parts.headers.get_all(HOST).iter();
    let (host, another) = (hosts.next(), hosts.next());
    if another.is_some() {
        return ambiguous("the request has several Hosts");
    }
    let host = match host.map(|host| host.to_str()) {
        Some(Err(_)) => return ambiguous("the Host is not text"),
        Some(Ok(host)) => Some(host),
        None => None,
    };
    match (host, authority) {
        (Some(host), Some(authority)) if !host.eq_ignore_ascii_case(authority) => {
            ambiguous("the request is for one host and its Host is another")
        }
        (None, None) if parts.version != Version::HTTP_10 => ambiguous("the request has no Host"),
        (host, authority) => Ok(host.or(authority)),
    }
}
