//! Whose request it is, behind proxies.

use std::borrow::Cow;
use std::error;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ::http::header::{FORWARDED, HeaderMap, HeaderName};
use smallvec::SmallVec;
use tollgate_policy::ForwardedIn;

use crate::bounds::FORWARDED_MAX;

/// `X-Forwarded-For`.
pub const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The address of the client that `peer` speaks for; `peer` itself unless `trusts` it.
///
/// The list in the one `header` is read from its end, where our own proxies write, over every address
/// that `trusts` accepts, to the first that it does not: that one was seen by a proxy we trust, and
/// what stands before it is whatever the client sent. Several lines are one list, in their order;
/// ports, brackets and quotes are taken off; IPv4 inside IPv6 is IPv4. If the list ends before such
/// an address is found, or something on the way is not an address, the request is the peer's own.
///
/// ```
/// use http::HeaderMap;
/// use tollgate::ForwardedIn;
/// use tollgate::http::client;
///
/// let mut headers = HeaderMap::new();
/// headers.insert(client::X_FORWARDED_FOR, "192.0.2.1, 203.0.113.7, 10.0.0.2".parse()?);
/// let proxy = "10.0.0.1".parse()?;
/// let trusted: tollgate::Cidr = "10.0.0.0/8".parse()?;
/// let trusts = |address| trusted.contains(address);
/// let client = client::address(proxy, &headers, ForwardedIn::XForwardedFor, trusts)?;
/// assert_eq!(client.to_string(), "203.0.113.7", "the first address is only what the client says");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn address(
    peer: IpAddr,
    headers: &HeaderMap,
    header: ForwardedIn,
    trusts: impl Fn(IpAddr) -> bool,
) -> Result<IpAddr, TooManyProxies> {
    let peer = peer.to_canonical();
    if !trusts(peer) {
        return Ok(peer);
    }
    let client = match header {
        ForwardedIn::XForwardedFor => {
            let lines = headers.get_all(X_FORWARDED_FOR).iter();
            let entries = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
            last_stranger(entries, read_entry, trusts)?
        }
        ForwardedIn::Forwarded => {
            let lines = headers.get_all(FORWARDED).iter();
            let elements = lines.flat_map(|line| pieces(line.as_bytes(), b','));
            last_stranger(elements, read_element, trusts)?
        }
    };
    Ok(client.unwrap_or(peer))
}

/// The last address that nobody trusts, if all that stand behind it are addresses.
fn last_stranger<'h>(
    entries: impl Iterator<Item = &'h [u8]>,
    read: impl Fn(&[u8]) -> Option<IpAddr>,
    trusts: impl Fn(IpAddr) -> bool,
) -> Result<Option<IpAddr>, TooManyProxies> {
    let entries: SmallVec<[&[u8]; 8]> = entries.take(FORWARDED_MAX + 1).collect();
    if entries.len() > FORWARDED_MAX {
        return Err(TooManyProxies);
    }
    let is_found = |entry: &Option<IpAddr>| entry.is_none_or(|address| !trusts(address));
    Ok(entries.into_iter().rev().map(read).find(is_found).flatten())
}

/// An entry of `X-Forwarded-For`. Some write quotes around it.
fn read_entry(entry: &[u8]) -> Option<IpAddr> {
    let entry = entry.trim_ascii();
    let unquoted = entry.strip_prefix(b"\"").and_then(|entry| entry.strip_suffix(b"\""));
    read(unquoted.unwrap_or(entry))
}

/// What stands between separators that are not inside of quotes. No quotes reach beyond their line:
/// whoever leaves one open spoils what stands behind it there, and no line that a proxy adds.
fn pieces(line: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    line.split(move |byte| {
        if is_escaped {
            is_escaped = false;
            return false;
        }
        is_escaped = is_quoted && *byte == b'\\';
        is_quoted ^= *byte == b'"';
        !is_quoted && *byte == separator
    })
}

/// An element of `Forwarded`, if it says for what address: `for=192.0.2.1;proto=https`,
/// `For="[2001:db8::1]:80"`. One that is not all as it should be says nothing, since a client may
/// have written a part of it: nor does one that says it twice.
fn read_element(element: &[u8]) -> Option<IpAddr> {
    let mut node = None;
    for pair in pieces(element, b';').map(<[u8]>::trim_ascii).filter(|pair| !pair.is_empty()) {
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (&pair[..equals], unquoted(&pair[equals + 1..])?);
        if name.eq_ignore_ascii_case(b"for") && node.replace(value).is_some() {
            return None;
        }
    }
    read(without_obfuscated_port(&node?))
}

/// A value: a word, or a string in quotes without them.
fn unquoted(value: &[u8]) -> Option<Cow<'_, [u8]>> {
    let Some(rest) = value.strip_prefix(b"\"") else {
        let is_word = value.iter().all(|byte| byte.is_ascii_graphic() && !b"\"\\".contains(byte));
        return is_word.then_some(Cow::Borrowed(value));
    };
    let mut text = Vec::with_capacity(rest.len());
    let mut rest = rest.iter();
    loop {
        match rest.next()? {
            b'"' => return rest.as_slice().is_empty().then_some(Cow::Owned(text)),
            b'\\' => text.push(*rest.next()?),
            byte => text.push(*byte),
        }
    }
}

/// `192.0.2.1` of `192.0.2.1:_hidden`: a proxy may keep a port to itself and tell the address.
fn without_obfuscated_port(node: &[u8]) -> &[u8] {
    let Some(colon) = node.windows(2).rposition(|pair| pair == b":_") else { return node };
    let port = &node[colon + 2..];
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    if !port.is_empty() && port.iter().all(is_name) { &node[..colon] } else { node }
}

/// `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:80`.
fn read(address: &[u8]) -> Option<IpAddr> {
    let address = std::str::from_utf8(address).ok()?;
    let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let ip: IpAddr = match bare {
        Some(bare) => IpAddr::V6(bare.parse().ok()?),
        None => address
            .parse()
            .or_else(|_| address.parse().map(|with_port: SocketAddr| with_port.ip()))
            .ok()?,
    };
    Some(ip.to_canonical())
}

/// More than [`FORWARDED_MAX`] addresses are listed: a bad request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyProxies;

impl fmt::Display for TooManyProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the request lists more than {FORWARDED_MAX} addresses it was forwarded for")
    }
}

impl error::Error for TooManyProxies {}
