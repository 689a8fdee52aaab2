//! From a request to the attributes that a policy asks about.

use std::borrow::Cow;
use std::error;
use std::fmt;
use std::io::Write;
use std::net::IpAddr;
use std::ops::Range;

use ::http::header::{COOKIE, HeaderMap};
use smallvec::SmallVec;

use super::query;

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
/// What is sent twice under one name has no one value: we would count by one of them and the server
/// behind us might act on the other. If the policy asks about it, the request is refused.
///
/// `room` holds the values that had to be decoded. Whatever it held is gone; reuse it, and nothing
/// is allocated for a plain request.
pub fn extract<'r>(
    wanted: impl Iterator<Item = &'r str>,
    sent: &Sent<'r>,
    room: &'r mut Vec<u8>,
) -> Result<Attributes<'r>, Repeated> {
    room.clear();
    let mut found: SmallVec<[(&'r str, Found<'r>); 16]> = SmallVec::new();
    for name in wanted {
        let value = match name.split_once(':') {
            None => sent.plain(name, room),
            Some(("header", field)) => sent.header(field)?,
            Some(("query", parameter)) => sent.parameter(parameter, room)?,
            Some(("cookie", cookie)) => sent.cookie(cookie)?,
            Some(_) => None,
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
            Cow::Owned(bytes) => {
                let start = room.len();
                room.extend_from_slice(&bytes);
                Self::InRoom(start..room.len())
            }
        }
    }
}

impl<'r> Sent<'r> {
    fn plain(&self, name: &str, room: &mut Vec<u8>) -> Option<Found<'r>> {
        match name {
            "method" => Some(Found::Sent(self.method.as_bytes())),
            "path" => Some(Found::Sent(self.path.as_bytes())),
            "host" => self.host.map(|host| Found::Sent(host.as_bytes())),
            "client_ip" => {
                let start = room.len();
                write!(room, "{}", self.client_ip.to_canonical()).expect("a Vec takes everything");
                Some(Found::InRoom(start..room.len()))
            }
            _ => None,
        }
    }

    fn header(&self, name: &str) -> Result<Option<Found<'r>>, Repeated> {
        let values = self.headers.get_all(name).iter();
        let value = only(values, || Repeated::new("header", name))?;
        Ok(value.map(|value| Found::Sent(value.as_bytes())))
    }

    fn parameter(&self, name: &str, room: &mut Vec<u8>) -> Result<Option<Found<'r>>, Repeated> {
        let pairs = query::pairs(self.query.unwrap_or_default());
        let values = pairs.filter(|(known, _)| **known == *name.as_bytes());
        let value = only(values, || Repeated::new("query parameter", name))?;
        Ok(value.map(|(_, value)| Found::of(value, room)))
    }

    /// Cookies come in one line or, over HTTP/2, in several.
    fn cookie(&self, name: &str) -> Result<Option<Found<'r>>, Repeated> {
        let lines = self.headers.get_all(COOKIE).iter();
        let pairs = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
        let values = pairs.filter_map(|pair| {
            pair.trim_ascii_start().strip_prefix(name.as_bytes())?.strip_prefix(b"=")
        });
        let value = only(values, || Repeated::new("cookie", name))?;
        Ok(value.map(|value| Found::Sent(value.trim_ascii_end())))
    }
}

fn only<T>(
    mut values: impl Iterator<Item = T>,
    repeated: impl FnOnce() -> Repeated,
) -> Result<Option<T>, Repeated> {
    let value = values.next();
    if values.next().is_some() { Err(repeated()) } else { Ok(value) }
}

/// Something that the policy asks about was sent more than once: a bad request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeated {
    what: &'static str,
    name: String,
}

impl Repeated {
    fn new(what: &'static str, name: &str) -> Self {
        Self { what, name: name.to_owned() }
    }
}

impl fmt::Display for Repeated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} {:?} is sent more than once", self.what, self.name)
    }
}

impl error::Error for Repeated {}
