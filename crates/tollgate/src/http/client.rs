//! Whose request it is, behind proxies.

use std::error;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ::http::header::{HeaderMap, HeaderName};

use crate::bounds::FORWARDED_MAX;

/// `X-Forwarded-For`.
pub const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The address of the client that `peer` speaks for; `peer` itself unless `trusts` it.
///
/// `X-Forwarded-For` is read from its end, where our own proxies write, over every address that
/// `trusts` accepts, to the first that it does not: that one was seen by a proxy we trust, and what
/// stands before it is whatever the client sent. Several lines are one list, in their order; ports,
/// brackets and quotes are taken off; IPv4 inside IPv6 is IPv4. If the list ends before such an
/// address is found, or something on the way is not an address, the request is the peer's own.
///
/// ```
/// use http::HeaderMap;
/// use tollgate::http::client;
///
/// let mut headers = HeaderMap::new();
/// headers.insert(client::X_FORWARDED_FOR, "192.0.2.1, 203.0.113.7, 10.0.0.2".parse()?);
/// let proxy = "10.0.0.1".parse()?;
/// let trusted: tollgate::Cidr = "10.0.0.0/8".parse()?;
/// let client = client::address(proxy, &headers, |address| trusted.contains(address))?;
/// assert_eq!(client.to_string(), "203.0.113.7", "the first address is only what the client says");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn address(
    peer: IpAddr,
    headers: &HeaderMap,
    trusts: impl Fn(IpAddr) -> bool,
) -> Result<IpAddr, TooManyProxies> {
    let peer = peer.to_canonical();
    if !trusts(peer) {
        return Ok(peer);
    }
    let lines = headers.get_all(X_FORWARDED_FOR);
    let entries = || lines.iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    if entries().count() > FORWARDED_MAX {
        return Err(TooManyProxies);
    }
    let is_found = |entry: &Option<IpAddr>| entry.is_none_or(|address| !trusts(address));
    let client = entries().rev().map(read).find(is_found);
    Ok(client.flatten().unwrap_or(peer))
}

/// One entry, if it is an address: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]`,
/// `"[2001:db8::1]:80"`.
fn read(entry: &[u8]) -> Option<IpAddr> {
    let entry = std::str::from_utf8(entry).ok()?.trim_matches([' ', '\t']);
    let unquoted = entry.strip_prefix('"').and_then(|entry| entry.strip_suffix('"'));
    let entry = unquoted.unwrap_or(entry);
    let bare = entry.strip_prefix('[').and_then(|entry| entry.strip_suffix(']'));
    let address: IpAddr = match bare {
        Some(bare) => IpAddr::V6(bare.parse().ok()?),
        None => entry
            .parse()
            .or_else(|_| entry.parse().map(|with_port: SocketAddr| with_port.ip()))
            .ok()?,
    };
    Some(address.to_canonical())
}

/// `X-Forwarded-For` lists more than [`FORWARDED_MAX`] addresses: a bad request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyProxies;

impl fmt::Display for TooManyProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "X-Forwarded-For lists more than {FORWARDED_MAX} addresses")
    }
}

impl error::Error for TooManyProxies {}
