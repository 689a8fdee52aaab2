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
use crate::{
    Asked, End, Layer, Limiter, Micros, Missing, Policy, Request, Slot, Timestamp, Verdict,
};

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
    Refused(Denial),
}

/// What a request that goes on takes along, for its response.
pub(super) struct Passage {
    told: Told,
    slot: Option<Slot>,
    /// Whom to tell what the request cost, if a limit waits for that.
    awaiting: Option<Arc<Limiter>>,
    known: Option<Arc<Known>>,
}

/// What is remembered of a request until it is judged.
pub(super) struct Asker {
    /// How the waits of its client are spread.
    spread: u64,
    /// What there is to be said of its streams, if they are counted.
    pub(super) known: Option<Arc<Known>>,
}

/// What a response says of the limits.
struct Told {
    verdict: Verdict,
    /// When that was right.
    at: Timestamp,
    spread: u64,
}

/// A request that does not go on, and why.
pub(super) struct Denial {
    told: Told,
    /// Why, if not for what the limits said.
    otherwise: Option<Refusal>,
}

impl Shared {
    /// Asks about a request. What has no one meaning is refused.
    pub(super) fn ask(self: &Arc<Self>, parts: &Parts) -> Result<(Asked<Verdict>, Asker), Refusal> {
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
        let asked = pinned.ask(&request);
        let known = pinned.policy().has_limits_of(Layer::Stream);
        let known = known.then(|| Arc::new(Known::new(self, &attributes)));
        drop(attributes);
        if room.capacity() <= ROOM_BYTES_KEPT {
            ROOM.set(room);
        }
        Ok((asked, Asker { spread: self.spread.hash_one(client_ip), known }))
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

    /// What becomes of a request that was judged so.
    pub(super) fn admit(self: &Arc<Self>, verdict: Verdict, asker: Asker) -> Admitted {
        let Asker { spread, known } = asker;
        let told = Told { verdict, at: self.limiter.now(), spread };
        if !told.verdict.is_allowed() {
            return Admitted::Refused(Denial { told, otherwise: None });
        }
        if told.verdict.delay() == Micros::ZERO {
            return Admitted::Passed(self.passage(told, known));
        }
        match Ticket::draw(self, &told.verdict) {
            Some(ticket) => Admitted::Held(ticket, self.passage(told, known)),
            None => Admitted::Refused(Denial { told, otherwise: Some(Refusal::TooManyHeld) }),
        }
    }

    fn passage(&self, mut told: Told, known: Option<Arc<Known>>) -> Passage {
        let slot = self.slots.hold(&mut told.verdict);
        let awaiting = bill::is_awaited(&told.verdict).then(|| Arc::clone(&self.limiter));
        Passage { told, slot, awaiting, known }
    }
}

impl Passage {
    /// Whether what limits count is in the body of the response.
    pub(super) fn reads_response(&self) -> bool {
        self.known.is_some() || self.awaiting.is_some() && bill::is_in_body(&self.told.verdict)
    }

    /// The service's response, with what the limits have to say.
    pub(super) fn dress<R>(self, mut response: Response<R>) -> Response<ResponseBody<R>> {
        let Self { told, slot, awaiting, known } = self;
        let headers = response.headers();
        let bill = awaiting.map(|limiter| Bill::of(limiter, &told.verdict, &response));
        if let Some(exhausted) = known.as_ref().and_then(|known| known.silenced()) {
            let mut answer = refusal::grpc_exhausted(&exhausted.to_string());
            told.insert_into(answer.headers_mut());
            return answer.map(ResponseBody::refusal);
        }
        let flow = known.and_then(|known| Flow::of(&known, Direction::Down, headers));
        let watched = (bill.is_some() || flow.is_some()).then(|| {
            let is_grpc = refusal::is_grpc(headers);
            Box::new(Watched { bill, flow, is_grpc })
        });
        told.insert_into(response.headers_mut());
        response.map(|body| ResponseBody::passed(body, slot, watched))
    }

    /// The service has no response: it failed, and what waits to be told its cost is owed nothing.
    pub(super) fn fail(self) {
        if let Some(limiter) = self.awaiting {
            drop(Bill::of_failure(limiter, &self.told.verdict));
        }
    }
}

impl Denial {
    /// The answer to a request with these headers.
    pub(super) fn answer(&self, headers: &HeaderMap) -> Response<Bytes> {
        let mut answer = match &self.otherwise {
            None => refusal::by_verdict(&self.told.verdict, headers),
            Some(refusal) => refusal.answer(headers),
        };
        self.told.insert_into(answer.headers_mut());
        answer
    }
}

impl Told {
    fn insert_into(&self, headers: &mut HeaderMap) {
        fields::insert(headers, &self.verdict, self.at, self.spread);
    }
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
