//! What is changed in the head of a message that is passed on.
//!
//! Fields that are about one connection end with it. What a client says about itself that only we
//! can know is replaced by what we know, and the fields in which limits are told are ours alone.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use bytes::BytesMut;
use http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, COOKIE, FORWARDED, HOST, HeaderMap, HeaderName,
    HeaderValue, TE, TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::{Version, request};
use smallvec::SmallVec;

use super::bounds::REQUEST_ID_BYTES_MAX;
use crate::otlp::TRACEPARENT;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Stands for the host of a request of HTTP/1.0 that names none: no host is like it.
const NO_HOST: HeaderValue = HeaderValue::from_static("\"");

const TRAILERS: HeaderValue = HeaderValue::from_static("trailers");
const UPGRADE_TOKEN: HeaderValue = HeaderValue::from_static("upgrade");

/// Fields that are about one connection, beside those that `Connection` names.
fn is_of_connection(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "keep-alive"
            | "proxy-connection"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "http2-settings"
            | "te"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// Fields in which limits are told. Whoever is behind us may believe that they come from us.
fn is_of_limits(name: &str) -> bool {
    let told = name.strip_prefix("x-").unwrap_or(name).strip_prefix("ratelimit");
    told.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// Fields that tell how limits are at the moment.
fn is_of_moment(name: &str) -> bool {
    matches!(
        name,
        "ratelimit"
            | "ratelimit-remaining"
            | "ratelimit-reset"
            | "retry-after"
            | "retry-after-ms"
            | "x-ratelimit-remaining"
            | "x-ratelimit-reset"
            | "x-ratelimit-retry-after"
    )
}

/// Fields that many servers take for those in which we say for whom we ask.
fn is_look_alike(name: &str) -> bool {
    name.as_bytes().contains(&b'_') && name.replace('_', "-").starts_with("x-forwarded-")
}

/// Who sends requests over a connection, and what is said of it.
pub(super) struct Sender {
    peer: IpAddr,
    is_tls: bool,
    /// Its address as text.
    address: HeaderValue,
    /// What was said in `Forwarded` when it last asked for some host: it rarely asks for another.
    last: Mutex<Option<(HeaderValue, HeaderValue)>>,
}

impl Sender {
    pub(super) fn new(peer: IpAddr, is_tls: bool) -> Self {
        let peer = peer.to_canonical();
        let address = HeaderValue::try_from(peer.to_string()).expect("an address is printable");
        Self { peer, is_tls, address, last: Mutex::default() }
    }

    fn proto(&self) -> &'static str {
        if self.is_tls { "https" } else { "http" }
    }

    /// What `Forwarded` says of a request for this host.
    fn forwarded(&self, host: &HeaderValue) -> HeaderValue {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, said)) = &*last
            && of == host
        {
            return said.clone();
        }
        let peer = match self.peer {
            IpAddr::V4(peer) => format!("for={peer}"),
            IpAddr::V6(peer) => format!("for=\"[{peer}]\""),
        };
        let plain = host.to_str().ok().filter(|host| !host.contains(['"', '\\']));
        let host_said = plain.map_or(String::new(), |host| format!(";host=\"{host}\""));
        let said = format!("{peer}{host_said};proto={}", self.proto());
        let said = HeaderValue::try_from(said).expect("all of it is printable");
        *last = Some((host.clone(), said.clone()));
        said
    }
}

/// What a request asks its connection to become, if anything. Another HTTP it does not become, nor
/// what may hide one: requests in there would be judged by nobody.
pub(super) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let is_asked = tokens(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case(b"upgrade"));
    let to = headers.get(UPGRADE).filter(|_| is_asked)?;
    (!leads_to_http(headers)).then(|| to.clone())
}

/// Whether `Upgrade` names HTTP or what may hide it, or what is no name.
pub(super) fn leads_to_http(headers: &HeaderMap) -> bool {
    let is_http = |token: &[u8]| {
        let name = token.split(|byte| *byte == b'/').next().unwrap_or_default();
        let names: [&[u8]; 4] = [b"h2", b"h2c", b"http", b"tls"];
        names.iter().any(|it| it.eq_ignore_ascii_case(name)) || !token.is_ascii()
    };
    tokens(headers, &UPGRADE).any(is_http)
}

/// Takes out of the trailers of a request what they may not say.
pub(super) fn pass_on_trailers(trailers: &mut HeaderMap) {
    remove(trailers, |name| {
        let is_ours = name == "forwarded" || name.starts_with("x-forwarded-");
        let is_framing = matches!(name, "content-length" | "host");
        is_of_connection(name) || is_of_limits(name) || is_look_alike(name) || is_ours || is_framing
    });
}

/// Makes the head of a client's request that of ours. A connection that is to become something else
/// still says so.
pub(super) fn pass_on_request(
    parts: &mut request::Parts,
    sender: &Sender,
    is_trusted: bool,
    upgrade: Option<HeaderValue>,
) {
    let headers = &mut parts.headers;
    let takes_trailers = headers.contains_key(TE)
        && tokens(headers, &TE).any(|token| token.eq_ignore_ascii_case(b"trailers"));
    // Who waits for leave to send its body has it: we read as soon as a server does.
    remove(headers, |name| {
        is_of_connection(name) || is_of_limits(name) || is_look_alike(name) || name == "expect"
    });
    join_cookies(headers);
    headers.reserve(ADDED);
    name_host(parts);
    say_for_whom(&mut parts.headers, sender, is_trusted);
    add_via(&mut parts.headers, parts.version);
    if takes_trailers {
        parts.headers.insert(TE, TRAILERS);
    }
    if let Some(to) = upgrade {
        ask_to_upgrade(&mut parts.headers, to);
    }
}

/// Makes the head of a server's response that of ours.
pub(super) fn pass_on_response(headers: &mut HeaderMap, version: Version) {
    // A body that comes in chunks is as long as they are, whatever else is said.
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
    // What became of this connection was settled by whoever passes the response on.
    remove(headers, is_of_connection);
    headers.reserve(ADDED);
    add_via(headers, version);
}

/// Makes the fields of a response ready for a connection of HTTP/2, which remembers them for as long as it
/// lasts. Those that do not come again are not to be remembered, in the place of others that do. (To remember
/// them once, so that from then on a number stands for their names, takes a connection most of a kilobyte.) The
/// values of the rest are pieces of what was read at a time, which is kilobytes, or have room for more: they are
/// copied into one piece that is as long as they are.
pub(super) fn detach(headers: &mut HeaderMap, id: Option<&HeaderName>) {
    let mut length = 0;
    for (name, value) in headers.iter_mut() {
        if is_of_moment(name.as_str()) || id == Some(name) {
            value.set_sensitive(true);
        }
        if !value.is_sensitive() {
            length += value.len();
        }
    }
    let mut room = BytesMut::with_capacity(length);
    for value in headers.values_mut().filter(|value| !value.is_sensitive()) {
        room.extend_from_slice(value.as_bytes());
        let copy = HeaderValue::from_maybe_shared(room.split().freeze());
        *value = copy.expect("what was in a value may be in one");
    }
}

/// Fields that are added to a message, at most, or to most of them: room for them is made at once.
const ADDED: usize = 8;

/// Says that a connection is to become something else, or has.
pub(super) fn ask_to_upgrade(headers: &mut HeaderMap, to: HeaderValue) {
    headers.insert(CONNECTION, UPGRADE_TOKEN);
    headers.insert(UPGRADE, to);
}

/// The id that a request came with, if it is one that we would give on.
pub(super) fn request_id<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h HeaderValue> {
    let mut values = headers.get_all(name).iter();
    let (id, another) = (values.next()?, values.next());
    let is_plain = id.as_bytes().iter().all(u8::is_ascii_graphic);
    let is_short = (1..=REQUEST_ID_BYTES_MAX).contains(&id.len());
    (another.is_none() && is_plain && is_short).then_some(id)
}

/// Makes sure that a field of ours goes on: a client may have named it in `Connection`.
pub(super) fn hold_on_to(headers: &mut HeaderMap, name: &HeaderName) {
    let is_it = |token: &[u8]| token.eq_ignore_ascii_case(name.as_str().as_bytes());
    if !tokens(headers, &CONNECTION).any(is_it) {
        return;
    }
    let others: Vec<&[u8]> = tokens(headers, &CONNECTION).filter(|token| !is_it(token)).collect();
    let others = HeaderValue::from_bytes(&others.join(&b", "[..]));
    headers.insert(CONNECTION, others.expect("what was in values may be in one"));
}

/// Removes some fields, and what `Connection` names.
fn remove(headers: &mut HeaderMap, is_out: impl Fn(&str) -> bool) {
    let is_out = |name: &&HeaderName| is_out(name.as_str());
    let mut out: SmallVec<[HeaderName; 4]> = headers.keys().filter(is_out).cloned().collect();
    if out.contains(&CONNECTION) {
        // Most say nothing else, and that is out by itself.
        let others =
            tokens(headers, &CONNECTION).filter(|token| !token.eq_ignore_ascii_case(b"keep-alive"));
        let named = others.filter_map(|token| HeaderName::from_bytes(token).ok());
        let named: Vec<HeaderName> = named.filter(|name| !is_needed(name)).collect();
        out.extend(named);
    }
    for name in out {
        headers.remove(name);
    }
}

/// What no `Connection` can take out: how long the body is, for whom the request is, and what may be ours.
fn is_needed(name: &HeaderName) -> bool {
    [CONTENT_LENGTH, HOST, ACCEPT_ENCODING, TRACEPARENT].contains(name)
}

/// The words in all lines of a field.
fn tokens<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h [u8]> {
    let lines = headers.get_all(name).iter().map(HeaderValue::as_bytes);
    let tokens = lines.flat_map(|line| line.split(|byte| *byte == b','));
    tokens.map(<[u8]>::trim_ascii).filter(|token| !token.is_empty())
}

/// HTTP/2 may send cookies in several lines; HTTP/1.1 may not.
fn join_cookies(headers: &mut HeaderMap) {
    // Of most requests no field has several lines, which is quickly seen.
    if headers.len() == headers.keys_len() || headers.get_all(COOKIE).iter().nth(1).is_none() {
        return;
    }
    let lines: Vec<_> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    let joined = HeaderValue::from_bytes(&lines.join(&b"; "[..]));
    headers.insert(COOKIE, joined.expect("what was in values may be in one"));
}

/// Says in `Host` for whom a request is that said it elsewhere.
fn name_host(parts: &mut request::Parts) {
    if let Some(authority) = parts.uri.authority()
        && !parts.headers.contains_key(HOST)
    {
        let host = HeaderValue::from_str(authority.as_str());
        parts.headers.insert(HOST, host.expect("an authority is printable"));
    }
}

/// `X-Forwarded-*` and `Forwarded`: what a sender said goes on only if it is trusted, and what we
/// know of the sender stands behind it.
fn say_for_whom(headers: &mut HeaderMap, sender: &Sender, is_trusted: bool) {
    let host = headers.get(HOST).cloned();
    add(headers, X_FORWARDED_FOR, sender.address.clone(), is_trusted);
    if !is_trusted || !headers.contains_key(X_FORWARDED_PROTO) {
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(sender.proto()));
    }
    let forwarded = sender.forwarded(host.as_ref().unwrap_or(&NO_HOST));
    add(headers, FORWARDED, forwarded, is_trusted);
    match host {
        Some(host) if !is_trusted || !headers.contains_key(X_FORWARDED_HOST) => {
            headers.insert(X_FORWARDED_HOST, host);
        }
        None if !is_trusted => drop(headers.remove(X_FORWARDED_HOST)),
        _ => {}
    }
}

/// `Via`, in which every proxy on the way stands.
fn add_via(headers: &mut HeaderMap, version: Version) {
    let ours = match version {
        Version::HTTP_2 => "2 tollgate",
        Version::HTTP_10 => "1.0 tollgate",
        _ => "1.1 tollgate",
    };
    add(headers, VIA, HeaderValue::from_static(ours), true);
}

/// Sets a list to one entry, or puts the entry at its end.
fn add(headers: &mut HeaderMap, name: HeaderName, entry: HeaderValue, keeps_others: bool) {
    if !keeps_others || !headers.contains_key(&name) {
        headers.insert(name, entry);
        return;
    }
    let others = headers.get_all(&name).iter().map(HeaderValue::as_bytes);
    let list: Vec<&[u8]> = others.chain([entry.as_bytes()]).collect();
    let list = HeaderValue::from_bytes(&list.join(&b", "[..]));
    headers.insert(name, list.expect("what was in values may be in one"));
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::Request;

    use super::*;

    fn parts(lines: &[(&'static str, &'static str)]) -> request::Parts {
        let mut request = Request::new(());
        for (name, value) in lines {
            let value = HeaderValue::from_static(value);
            request.headers_mut().append(HeaderName::from_static(name), value);
        }
        request.into_parts().0
    }

    /// What a stranger's request has in some field when it is passed on: every line, or nothing.
    fn passed(lines: &[(&'static str, &'static str)], name: &str) -> String {
        let stranger = Sender::new([203, 0, 113, 7].into(), true);
        passed_from(&stranger, false, lines, name)
    }

    fn passed_from(
        sender: &Sender,
        is_trusted: bool,
        lines: &[(&'static str, &'static str)],
        name: &str,
    ) -> String {
        let mut parts = parts(lines);
        let to = upgrade(&parts.headers);
        pass_on_request(&mut parts, sender, is_trusted, to);
        let values = parts.headers.get_all(name).iter();
        values.map(|it| it.to_str().expect("text")).collect::<Vec<_>>().join(" | ")
    }

    #[test]
    fn fields_of_a_connection_end_with_it_and_nobody_names_others_away() {
        let lines = [
            ("host", "a.example"),
            ("connection", "close, X-Secret"),
            ("connection", "content-length, x-forwarded-for, host, accept-encoding"),
            ("accept-encoding", "identity"),
            ("x-secret", "1"),
            ("content-length", "5"),
            ("keep-alive", "timeout=5"),
            ("te", "gzip, trailers"),
            ("proxy-authorization", "Basic eA=="),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("http2-settings", "AAMAAABkAAQAoAAAAAIAAAAA"),
            ("expect", "100-continue"),
        ];
        for (name, left) in [
            ("connection", ""),
            ("x-secret", ""),
            ("content-length", "5"),
            ("host", "a.example"),
            ("accept-encoding", "identity"),
            ("keep-alive", ""),
            ("te", "trailers"),
            ("proxy-authorization", ""),
            ("transfer-encoding", ""),
            ("upgrade", ""),
            ("http2-settings", ""),
            ("expect", ""),
            ("x-forwarded-for", "203.0.113.7"),
        ] {
            assert_eq!(passed(&lines, name), left, "{name}");
        }
    }

    #[test]
    fn values_are_the_same_in_memory_of_their_own() {
        let read = Bytes::from(b"HTTP/1.1 200 OK\r\na: \xFFb\r\nc: d\r\n\r\n".to_vec());
        let value = |place| HeaderValue::from_maybe_shared(read.slice(place)).expect("a value");
        let mut secret = HeaderValue::from_static("d");
        secret.set_sensitive(true);
        let mut headers = HeaderMap::new();
        headers.append("a", value(20..22));
        headers.append("a", value(27..28));
        headers.append("a", HeaderValue::from_static(""));
        headers.append("c", secret);
        let before = headers.clone();
        detach(&mut headers, None);
        assert_eq!(headers, before);
        assert!(headers["c"].is_sensitive() && !headers["a"].is_sensitive());
        drop(before);
        assert!(read.is_unique(), "nothing of what was read is kept");
    }

    #[test]
    fn nobody_is_asked_to_remember_what_does_not_come_again() {
        let mut headers = HeaderMap::new();
        let names = ["via", "x-id", "ratelimit-policy", "ratelimit", "x-ratelimit-limit"];
        for name in names.into_iter().chain(["x-ratelimit-remaining", "retry-after"]) {
            headers.append(name, HeaderValue::from_static("1"));
        }
        detach(&mut headers, Some(&HeaderName::from_static("x-id")));
        let new = headers.iter().filter(|(_, value)| value.is_sensitive());
        let new: Vec<&str> = new.map(|(name, _)| name.as_str()).collect();
        assert_eq!(new, ["x-id", "ratelimit", "x-ratelimit-remaining", "retry-after"]);
    }

    #[test]
    fn what_a_stranger_says_of_itself_is_replaced_and_a_trusted_proxy_is_believed() {
        let lines = [
            ("host", "a.example"),
            ("x-forwarded-for", "192.0.2.1"),
            ("x-forwarded-proto", "ftp"),
            ("x-forwarded-host", "b.example"),
            ("forwarded", "for=192.0.2.1"),
            ("via", "1.1 other"),
        ];
        let proxy = Sender::new("2001:db8::1".parse().expect("an address"), false);
        for (name, of_stranger, of_proxy) in [
            ("x-forwarded-for", "203.0.113.7", "192.0.2.1, 2001:db8::1"),
            ("x-forwarded-proto", "https", "ftp"),
            ("x-forwarded-host", "a.example", "b.example"),
            (
                "forwarded",
                "for=203.0.113.7;host=\"a.example\";proto=https",
                "for=192.0.2.1, for=\"[2001:db8::1]\";host=\"a.example\";proto=http",
            ),
            ("via", "1.1 other, 1.1 tollgate", "1.1 other, 1.1 tollgate"),
        ] {
            assert_eq!(passed(&lines, name), of_stranger, "{name}");
            assert_eq!(passed_from(&proxy, true, &lines, name), of_proxy, "{name}");
        }
    }

    #[test]
    fn a_connection_that_is_to_become_something_else_still_says_so() {
        let lines = [("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")];
        assert_eq!(passed(&lines, "connection"), "upgrade");
        assert_eq!(passed(&lines, "upgrade"), "websocket");
        for hidden in ["h2c", "H2C", "HTTP/2.0", "TLS/1.2", "websocket, h2c"] {
            let lines = [("connection", "upgrade, http2-settings"), ("upgrade", hidden)];
            assert_eq!(passed(&lines, "upgrade"), "", "{hidden}");
            assert_eq!(passed(&lines, "connection"), "", "{hidden}");
        }
    }

    #[test]
    fn cookies_are_one_line_and_fields_of_limits_are_nobodys_but_ours() {
        let lines = [
            ("cookie", "a=1"),
            ("cookie", "b=2"),
            ("ratelimit", "\"api\";r=1000"),
            ("x-ratelimit-remaining", "1000"),
            ("x_forwarded_for", "192.0.2.1"),
            ("x-forwarded_proto", "https"),
            ("x_other", "kept"),
        ];
        assert_eq!(passed(&lines, "cookie"), "a=1; b=2");
        assert_eq!(passed(&lines, "ratelimit"), "");
        assert_eq!(passed(&lines, "x-ratelimit-remaining"), "");
        assert_eq!(passed(&lines, "x_forwarded_for"), "");
        assert_eq!(passed(&lines, "x-forwarded_proto"), "");
        assert_eq!(passed(&lines, "x_other"), "kept");
    }

    #[test]
    fn a_response_in_chunks_has_no_other_length() {
        let mut headers =
            parts(&[("transfer-encoding", "chunked"), ("content-length", "4")]).headers;
        pass_on_response(&mut headers, Version::HTTP_11);
        assert!(!headers.contains_key(CONTENT_LENGTH));
        let mut headers = parts(&[("content-length", "4")]).headers;
        pass_on_response(&mut headers, Version::HTTP_11);
        assert!(headers.contains_key(CONTENT_LENGTH));
    }

    #[test]
    fn trailers_say_nothing_that_is_ours_to_say() {
        let mut trailers = parts(&[
            ("x-forwarded-for", "192.0.2.1"),
            ("forwarded", "for=192.0.2.1"),
            ("ratelimit", "x"),
            ("content-length", "4"),
            ("grpc-status", "0"),
        ])
        .headers;
        pass_on_trailers(&mut trailers);
        assert_eq!(trailers.keys().collect::<Vec<_>>(), ["grpc-status"]);
    }

    #[test]
    fn an_upgrade_that_is_no_text_is_none() {
        let mut headers = parts(&[("connection", "upgrade")]).headers;
        headers.insert(UPGRADE, HeaderValue::from_bytes(b"h2c, \xff").expect("bytes"));
        assert_eq!(upgrade(&headers), None);
        headers.insert(UPGRADE, HeaderValue::from_bytes(b"\xff").expect("bytes"));
        assert_eq!(upgrade(&headers), None);
    }

    #[test]
    fn an_id_is_kept_if_there_is_one_that_can_be_read() {
        let name = HeaderName::from_static("x-request-id");
        let kept = |lines: &[(&'static str, &'static str)]| {
            request_id(&parts(lines).headers, &name).is_some()
        };
        assert!(kept(&[("x-request-id", "abc-123")]));
        assert!(!kept(&[]));
        assert!(!kept(&[("x-request-id", "")]));
        assert!(!kept(&[("x-request-id", "two words")]));
        assert!(!kept(&[("x-request-id", "a"), ("x-request-id", "b")]));
        let long: &'static str = "x".repeat(REQUEST_ID_BYTES_MAX + 1).leak();
        assert!(!kept(&[("x-request-id", long)]));
        assert!(kept(&[("x-request-id", &long[1..])]));
    }
}
