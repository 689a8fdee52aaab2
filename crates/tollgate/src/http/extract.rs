//! From a request to the attributes that a policy asks about.

use std::borrow::Cow;
use std::error;
use std::fmt;
use std::io::Write;
use std::net::{IpAddr, Ipv6Addr};
use std::ops::Range;

use ::http::header::{COOKIE, HeaderMap};
use smallvec::SmallVec;

use super::query;
use super::text::number;

/// A request, as far as limits can ask about it.
#[derive(Clone, Copy, Debug)]
pub struct Sent<'r> {
    /// The method.
    pub method: &'r str,
    /// The path in its one form: see [`path::resolve`](super::path::resolve).
    pub path: &'r str,
    /// What follows the question mark, if there is one.
    pub query: Option<&'r str>,
    /// The host, with or without port, on which the request's line and its `Host` agree.
    pub host: Option<&'r str>,
    /// The header fields.
    pub headers: &'r HeaderMap,
    /// Whose request it is: see [`client::address`](super::client::address).
    pub client_ip: IpAddr,
}

/// What is known of a request, by name: the attributes of a [`Request`](crate::Request).
pub type Attributes<'r> = SmallVec<[(&'r str, &'r [u8]); 16]>;

/// Finds the attributes `wanted` by a policy ([`Policy::attributes`](crate::Policy::attributes))
/// that the request has: `method`, `path`, `host`, `client_ip`, `header:name`, `query:name` and
/// `cookie:name`. Others are for a caller to know.
///
/// What servers take for one has one value, so that it has one budget: a method is in capitals; a
/// host is in small letters, without its port and without the dot that may end it. What is sent
/// twice under one name has no one value: we would count by one of them and the server behind us
/// might act on the other. Neither has what should be a host and is none. If the policy asks about
/// it, the request is refused.
///
/// `room` holds the values that had to be decoded. Whatever it held is gone; reuse it, and nothing
/// is allocated for a plain request.
pub fn extract<'r>(
    wanted: impl Iterator<Item = &'r str>,
    sent: &Sent<'r>,
    room: &'r mut Vec<u8>,
) -> Result<Attributes<'r>, BadRequest> {
    room.clear();
    let mut found: SmallVec<[(&'r str, Found<'r>); 16]> = SmallVec::new();
    for name in wanted {
        // Kinds are few and short. To look for the colon would take longer.
        let value = if let Some(field) = name.strip_prefix("header:") {
            sent.header(field)?
        } else if let Some(parameter) = name.strip_prefix("query:") {
            sent.parameter(parameter, room)?
        } else if let Some(cookie) = name.strip_prefix("cookie:") {
            sent.cookie(cookie)?
        } else {
            sent.plain(name, room)?
        };
        found.extend(value.map(|value| (name, value)));
    }
    let room: &'r [u8] = room;
    let value = |found: Found<'r>| match found {
        Found::Sent(bytes) => bytes,
        Found::InRoom(range) => &room[range],
    };
    Ok(found.into_iter().map(|(name, found)| (name, value(found))).collect())
}

/// Where a value is.
enum Found<'r> {
    Sent(&'r [u8]),
    InRoom(Range<usize>),
}

impl<'r> Found<'r> {
    fn of(value: Cow<'r, [u8]>, room: &mut Vec<u8>) -> Self {
        match value {
            Cow::Borrowed(bytes) => Self::Sent(bytes),
            Cow::Owned(bytes) => Self::written(room, |room| room.extend_from_slice(&bytes)),
        }
    }

    fn written(room: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) -> Self {
        let start = room.len();
        write(room);
        Self::InRoom(start..room.len())
    }
}

impl<'r> Sent<'r> {
    fn plain(&self, name: &str, room: &mut Vec<u8>) -> Result<Option<Found<'r>>, BadRequest> {
        Ok(match name {
            "method" => Some(self.method(room)),
            "path" => Some(Found::Sent(self.path.as_bytes())),
            "host" => self.host.map(|host| one_host(host, room)).transpose()?,
            "client_ip" => Some(Found::written(room, |room| address(room, self.client_ip))),
            _ => None,
        })
    }

    /// In capitals, though `get` is another method than `GET`: not every server knows.
    fn method(&self, room: &mut Vec<u8>) -> Found<'r> {
        let method = self.method.as_bytes();
        if !method.iter().any(u8::is_ascii_lowercase) {
            return Found::Sent(method);
        }
        Found::written(room, |room| room.extend(method.iter().map(u8::to_ascii_uppercase)))
    }

    fn header(&self, name: &str) -> Result<Option<Found<'r>>, BadRequest> {
        let values = self.headers.get_all(name).iter();
        let value = only(values, || BadRequest::repeated("header", name))?;
        Ok(value.map(|value| Found::Sent(value.as_bytes())))
    }

    fn parameter(&self, name: &str, room: &mut Vec<u8>) -> Result<Option<Found<'r>>, BadRequest> {
        let pairs = query::pairs(self.query.unwrap_or_default());
        let values = pairs.filter(|(known, _)| **known == *name.as_bytes());
        let value = only(values, || BadRequest::repeated("query parameter", name))?;
        Ok(value.map(|(_, value)| Found::of(value, room)))
    }

    /// Cookies come in one line or, over HTTP/2, in several.
    fn cookie(&self, name: &str) -> Result<Option<Found<'r>>, BadRequest> {
        let lines = self.headers.get_all(COOKIE).iter();
        let pairs = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
        let values = pairs.filter_map(|pair| {
            pair.trim_ascii_start().strip_prefix(name.as_bytes())?.strip_prefix(b"=")
        });
        let value = only(values, || BadRequest::repeated("cookie", name))?;
        Ok(value.map(|value| Found::Sent(value.trim_ascii_end())))
    }
}

fn address(room: &mut Vec<u8>, address: IpAddr) {
    match address.to_canonical() {
        // Four numbers are written in a tenth of the time that it takes to have them formatted.
        IpAddr::V4(address) => {
            let [first, rest @ ..] = address.octets();
            number(room, first.into());
            for octet in rest {
                room.push(b'.');
                number(room, octet.into());
            }
        }
        IpAddr::V6(address) => write!(room, "{address}").expect("a Vec takes everything"),
    }
}

/// The one form of a host: in small letters, without its port and without the dot that may end it.
fn one_host<'r>(host: &'r str, room: &mut Vec<u8>) -> Result<Found<'r>, BadRequest> {
    if let Some((address, rest)) = host.strip_prefix('[').and_then(|it| it.split_once(']')) {
        let address: Ipv6Addr = address.parse().map_err(|_| BadRequest::NotAHost)?;
        if !rest.is_empty() && !rest.strip_prefix(':').is_some_and(is_port) {
            return Err(BadRequest::NotAHost);
        }
        return Ok(Found::written(room, |room| {
            write!(room, "[{address}]").expect("a Vec takes everything");
        }));
    }
    let (name, port) = host.split_once(':').unwrap_or((host, ""));
    let name = name.strip_suffix('.').unwrap_or(name);
    if !is_port(port) || !name.split('.').all(is_label) {
        return Err(BadRequest::NotAHost);
    }
    if !name.contains(|letter: char| letter.is_ascii_uppercase()) {
        return Ok(Found::Sent(name.as_bytes()));
    }
    Ok(Found::written(room, |room| room.extend(name.bytes().map(|it| it.to_ascii_lowercase()))))
}

/// Whether a host may have this port; it may have an empty one.
fn is_port(text: &str) -> bool {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.is_empty() || is_number && text.parse::<u16>().is_ok()
}

fn is_label(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    !text.is_empty() && text.bytes().all(is_plain)
}

fn only<T>(
    mut values: impl Iterator<Item = T>,
    repeated: impl FnOnce() -> BadRequest,
) -> Result<Option<T>, BadRequest> {
    let value = values.next();
    if values.next().is_some() { Err(repeated()) } else { Ok(value) }
}

/// Why something that the policy asks about has no one value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadRequest {
    /// It is sent more than once.
    Repeated {
        /// What it is: a header, a query parameter or a cookie.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// The host is none.
    NotAHost,
}

impl BadRequest {
    fn repeated(what: &'static str, name: &str) -> Self {
        Self::Repeated { what, name: name.to_owned() }
    }
}

impl fmt::Display for BadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Repeated { what, name } => {
                write!(f, "the {what} {name:?} is sent more than once")
            }
            Self::NotAHost => {
                f.write_str("the host is not a name or an address, with or without a port")
            }
        }
    }
}

impl error::Error for BadRequest {}
