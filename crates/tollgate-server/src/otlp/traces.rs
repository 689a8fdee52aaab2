//! Requests that are told about one by one.
//!
//! A request that comes with a trace of its caller's (W3C trace context) is told about if the caller's
//! is, and one that comes with none by lot. At the gateway callers are strangers: only proxies that are
//! trusted are believed there. Nobody waits for any of it, and what there is no room for is not told.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use http::{HeaderName, HeaderValue, Method, Request, StatusCode};
use tollgate::Timestamp;

use super::{nanos, write_attribute, write_number, write_scope};
use crate::bounds::SPANS_MAX;
use crate::door::Door;
use crate::gate::Gate;
use crate::protobuf::Writer;

/// Where a request says which trace it belongs to.
pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// What became of a request that we failed at.
const FAILED: u64 = 2;

/// A request that somebody answered to.
const SERVER: u64 = 2;

/// Spans until they are sent.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    /// Of a million requests so many are told about; none if it is zero.
    share: AtomicU32,
    spans: Mutex<Vec<Span>>,
    dropped: AtomicU64,
}

/// A request that is told about, until its answer is there.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    trace: u128,
    id: u64,
    parent: Option<u64>,
    door: Door,
    method: Method,
    began: Timestamp,
    ended: Timestamp,
    status: StatusCode,
}

impl Traces {
    /// Tells about so many of a million requests from now on.
    pub(crate) fn set_share(&self, share: u32) {
        self.share.store(share, Ordering::Relaxed);
    }

    /// Whether anything is to be told about.
    pub(crate) fn are_collected(&self) -> bool {
        self.share.load(Ordering::Relaxed) > 0
    }

    /// Begins to tell about a request, if it is to be told about.
    #[inline]
    pub(crate) fn begin<B>(
        &self,
        gate: &Gate,
        door: Door,
        peer: IpAddr,
        request: &Request<B>,
    ) -> Option<Box<Span>> {
        match self.share.load(Ordering::Relaxed) {
            0 => None,
            // What an operator asks is no traffic.
            _ if door == Door::Admin => None,
            share => {
                let is_believed = door != Door::Gateway || is_trusted(gate, peer);
                let context = request.headers().get(TRACEPARENT).and_then(Context::read);
                let is_told = match &context {
                    Some(context) if is_believed => context.is_sampled,
                    _ => gate.number() % 1_000_000 < u64::from(share),
                };
                is_told.then(|| Span::begin(gate, door, request.method(), context))
            }
        }
    }

    /// Tells about a request, now that it is answered, if it is to be told about.
    pub(crate) fn end(&self, gate: &Gate, span: Option<Box<Span>>, status: StatusCode) {
        let Some(span) = span else { return };
        let mut spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        if spans.len() >= SPANS_MAX {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        spans.push(Span { ended: gate.limiter.now(), status, ..*span });
    }

    /// Those that are to be sent.
    pub(super) fn take(&self) -> Vec<Span> {
        std::mem::take(&mut *self.spans.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// How many there was no room for.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl Span {
    #[cold]
    fn begin(gate: &Gate, door: Door, method: &Method, context: Option<Context>) -> Box<Self> {
        let (trace, parent) = match context {
            Some(context) => (context.trace, Some(context.parent)),
            None => (u128::from(gate.number()) << 64 | u128::from(gate.number()), None),
        };
        let (began, method) = (gate.limiter.now(), method.clone());
        let (id, status) = (gate.number().max(1), StatusCode::OK);
        Box::new(Self { trace, id, parent, door, method, began, ended: began, status })
    }

    /// What whoever is asked next is told of the trace.
    pub(crate) fn context(&self) -> HeaderValue {
        let text = format!("00-{:032x}-{:016x}-01", self.trace, self.id);
        HeaderValue::try_from(text).expect("digits may be in a value")
    }

    fn write(&self, it: &mut Writer<'_>) {
        it.bytes(1, &self.trace.to_be_bytes());
        it.bytes(2, &self.id.to_be_bytes());
        if let Some(parent) = self.parent {
            it.bytes(4, &parent.to_be_bytes());
        }
        it.bytes(5, format!("tollgate {}", self.door).as_bytes());
        it.varint(6, SERVER);
        it.fixed(7, nanos(self.began));
        it.fixed(8, nanos(self.ended));
        write_attribute(it, 9, "tollgate.door", self.door.name());
        write_attribute(it, 9, "http.request.method", self.method.as_str());
        write_number(it, 9, "http.response.status_code", self.status.as_u16().into());
        if self.status.is_server_error() {
            it.message(15, |it| it.varint(3, FAILED));
        }
    }
}

/// Whether whoever connects is believed what it says of those it speaks for.
fn is_trusted(gate: &Gate, peer: IpAddr) -> bool {
    let peer = peer.to_canonical();
    peer.is_loopback()
        || gate.limiter.with_policy(|policy| {
            policy.settings().client_ip.trusted_proxies.iter().any(|range| range.contains(peer))
        })
}

/// An `ExportTraceServiceRequest`.
pub(super) fn request(spans: &[Span], resource: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut request = Vec::with_capacity(256 * (1 + spans.len()));
    Writer(&mut request).message(1, |it| {
        it.message(1, resource);
        it.message(2, |it| {
            write_scope(it);
            spans.iter().for_each(|span| it.message(2, |it| span.write(it)));
        });
    });
    request
}

/// What a request says of the trace it belongs to.
#[derive(Debug, PartialEq, Eq)]
struct Context {
    trace: u128,
    parent: u64,
    is_sampled: bool,
}

impl Context {
    /// Reads a `traceparent`; nothing of one that is none.
    fn read(value: &HeaderValue) -> Option<Self> {
        let text = value.to_str().ok()?;
        let mut parts = text.split('-');
        let mut part = |length: usize| {
            let part = parts.next().filter(|part| part.len() == length)?;
            let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            part.bytes().all(is_digit).then_some(part)
        };
        let (version, trace, parent, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
        let has_more = parts.next().is_some();
        // Later versions may say more, and never less.
        if version == "ff" || version == "00" && has_more {
            return None;
        }
        let trace = u128::from_str_radix(trace, 16).ok().filter(|trace| *trace != 0)?;
        let parent = u64::from_str_radix(parent, 16).ok().filter(|parent| *parent != 0)?;
        let flags = u8::from_str_radix(flags, 16).ok()?;
        Some(Self { trace, parent, is_sampled: flags & 1 == 1 })
    }
}

#[cfg(test)]
mod tests {
    use tollgate::Limiter;

    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const PARENT: &str = "b7ad6b7169203331";

    const STRANGER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 7));

    fn gate() -> Gate {
        Gate::new(Limiter::from_yaml("limits: []").expect("a policy")).0
    }

    fn with(traceparent: &str) -> Request<()> {
        Request::get("/").header(TRACEPARENT, traceparent).body(()).expect("a request")
    }

    fn begin(share: u32, request: &Request<()>) -> Option<Box<Span>> {
        let traces = Traces::default();
        traces.set_share(share);
        traces.begin(&gate(), Door::Http, STRANGER, request)
    }

    #[test]
    fn a_request_belongs_to_its_callers_trace() {
        let span = begin(1, &with(&format!("00-{TRACE}-{PARENT}-01"))).unwrap();
        assert_eq!(format!("{:032x}", span.trace), TRACE);
        assert_eq!(span.parent, u64::from_str_radix(PARENT, 16).ok());
        let context = span.context();
        let told = Context::read(&context).unwrap();
        assert_eq!((told.trace, told.parent, told.is_sampled), (span.trace, span.id, true));
        assert_ne!(span.id, span.parent.unwrap());
    }

    #[test]
    fn a_callers_word_counts_unless_nobody_collects() {
        let sampled = with(&format!("00-{TRACE}-{PARENT}-01"));
        assert!(begin(0, &sampled).is_none());
        assert!(begin(1_000_000, &with(&format!("00-{TRACE}-{PARENT}-00"))).is_none());
        assert!(begin(1_000_000, &Request::new(())).is_some());
    }

    #[test]
    fn at_the_gateway_a_strangers_word_does_not_count() {
        let policy = "client_ip: {trusted_proxies: [198.51.100.0/24]}\nlimits: []";
        let gate = Gate::new(Limiter::from_yaml(policy).unwrap()).0;
        let sampled = with(&format!("00-{TRACE}-{PARENT}-01"));
        let told = |share, peer: &str| {
            let traces = Traces::default();
            traces.set_share(share);
            traces.begin(&gate, Door::Gateway, peer.parse().unwrap(), &sampled)
        };
        for believed in ["127.0.0.1", "::1", "198.51.100.9", "::ffff:198.51.100.9"] {
            assert!(told(1, believed).is_some(), "{believed}");
        }
        assert!((0..1_000).all(|_| told(1, "203.0.113.7").is_none()));
        // By lot it is told about, and then in its caller's trace.
        let span = told(1_000_000, "203.0.113.7").unwrap();
        assert_eq!(format!("{:032x}", span.trace), TRACE);
    }

    #[test]
    fn what_is_no_context_is_as_none() {
        let zero = "0".repeat(32);
        for wrong in [
            String::new(),
            "00".to_owned(),
            format!("00-{TRACE}-{PARENT}"),
            format!("00-{TRACE}-{PARENT}-01-more"),
            format!("ff-{TRACE}-{PARENT}-01"),
            format!("00-{zero}-{PARENT}-01"),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{}-{PARENT}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}0-{PARENT}-01"),
            format!("00-{TRACE}-+7ad6b7169203331-01"),
        ] {
            assert_eq!(Context::read(&HeaderValue::try_from(&*wrong).unwrap()), None, "{wrong}");
        }
        let later = HeaderValue::try_from(format!("01-{TRACE}-{PARENT}-03-more")).unwrap();
        assert!(Context::read(&later).is_some_and(|it| it.is_sampled));
    }

    #[test]
    fn a_share_of_requests_is_told_about() {
        let (gate, traces) = (gate(), Traces::default());
        traces.set_share(100_000);
        let begin = || traces.begin(&gate, Door::Http, STRANGER, &Request::new(()));
        let begun = (0..20_000).filter(|_| begin().is_some()).count();
        assert!((1_700..2_300).contains(&begun), "{begun}");
    }

    #[test]
    fn what_there_is_no_room_for_is_counted_and_not_kept() {
        let (gate, traces) = (gate(), Traces::default());
        traces.set_share(1_000_000);
        for _ in 0..SPANS_MAX + 5 {
            let span = traces.begin(&gate, Door::Http, STRANGER, &Request::new(()));
            traces.end(&gate, span, StatusCode::OK);
        }
        assert_eq!((traces.take().len(), traces.dropped()), (SPANS_MAX, 5));
        assert!(traces.take().is_empty());
    }
}
