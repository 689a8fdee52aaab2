//! Where the gateway sends what it lets through.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::bounds::HOST_BYTES_MAX;
use crate::condition::{HostPattern, canonical_host};
use crate::mistake::Place;
use crate::path::Pattern;

/// Requests of some hosts and paths, and the servers they are sent to.
#[derive(Clone, Debug)]
pub struct Route {
    pub(crate) place: Place,
    /// Which of [`Settings::upstream`](crate::Settings::upstream).
    pub(crate) number: usize,
    /// Any of these; any host if there are none.
    pub(crate) hosts: Vec<HostPattern>,
    /// The same of paths.
    pub(crate) paths: Vec<Pattern>,
    pub(crate) targets: Vec<Target>,
}

impl Route {
    /// The servers, at least one, in the order written.
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// Which of [`Settings::upstream`](crate::Settings::upstream) it is.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Where it is written.
    pub fn place(&self) -> &Place {
        &self.place
    }

    pub(crate) fn stands_for_all(&self) -> bool {
        self.hosts.is_empty() && self.paths.is_empty()
    }

    pub(crate) fn stands_for(&self, host: &str, path: &str) -> bool {
        let is_host = || {
            let host = canonical_host(host.as_bytes());
            self.hosts.iter().any(|pattern| pattern.stands_for(&host))
        };
        let is_path = || self.paths.iter().any(|pattern| pattern.matches(path.as_bytes()));
        (self.hosts.is_empty() || is_host()) && (self.paths.is_empty() || is_path())
    }

    /// How long its patterns are: what [`covers`](Self::covers) takes goes by the product of two.
    pub(crate) fn length(&self) -> usize {
        let hosts: usize = self.hosts.iter().map(|host| host.name.len() + 1).sum();
        let paths: usize = self.paths.iter().map(Pattern::length).sum();
        hosts + paths + 1
    }

    /// Whether it stands for everything that `other` does.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let each_host = || {
            let covered = |host: &HostPattern| self.hosts.iter().any(|it| it.covers(host));
            !other.hosts.is_empty() && other.hosts.iter().all(covered)
        };
        let each_path = || {
            let covered = |path: &Pattern| self.paths.iter().any(|it| it.covers(path));
            !other.paths.is_empty() && other.paths.iter().all(covered)
        };
        (self.hosts.is_empty() || each_host()) && (self.paths.is_empty() || each_path())
    }
}

/// One server of an upstream, by the URL `http://host:port`, `https://host:port` or
/// `h2c://host:port`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    scheme: Scheme,
    host: Box<str>,
    port: u16,
}

/// How a server is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheme {
    /// `http`: HTTP/1.1.
    Http,
    /// `https`: over TLS, HTTP/2 or HTTP/1.1 as the server likes.
    Https,
    /// `h2c`: HTTP/2 without TLS, as servers of gRPC speak it.
    H2c,
}

impl Scheme {
    const ALL: [Self; 3] = [Self::Http, Self::Https, Self::H2c];

    /// What a URL begins with.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::H2c => "h2c",
        }
    }

    const fn port(self) -> u16 {
        match self {
            Self::Http | Self::H2c => 80,
            Self::Https => 443,
        }
    }
}

impl Target {
    /// How it is spoken to.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// A name in small letters, an IPv4 address, or an IPv6 address without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// That of the URL, or else 80 or 443.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether it is whoever listens there, as far as its URL tells.
    pub(crate) fn is_at(&self, listener: SocketAddr) -> bool {
        let own = listener.ip().to_canonical();
        let is_there = |ip: IpAddr| match own {
            // Every address is one of ours here, and IPv4 comes in by all of IPv6 too.
            _ if own.is_unspecified() => ip.is_loopback() && (own.is_ipv6() || ip.is_ipv4()),
            _ => ip == own,
        };
        let loopback: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        let is_ours = match self.host.parse::<IpAddr>() {
            Ok(ip) => is_there(ip.to_canonical()),
            Err(_) => &*self.host == "localhost" && loopback.into_iter().any(is_there),
        };
        is_ours && self.port == listener.port()
    }

    /// Reads a URL, or says what is wrong with it, to follow it in a sentence. No sentence repeats a
    /// part of one: what looks like a port may be the end of a password.
    pub(crate) fn read(url: &str) -> Result<Self, &'static str> {
        let (scheme, rest) = url
            .split_once("://")
            .and_then(|(name, rest)| {
                Some((Scheme::ALL.into_iter().find(|it| it.name() == name)?, rest))
            })
            .ok_or("is not a URL; write for example http://127.0.0.1:3000")?;
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        if rest.contains('@') {
            return Err("holds a user or password, which nobody would be sent");
        }
        if !matches!(path, "" | "/") {
            return Err(
                "goes on behind its host; write the host alone, since paths are passed on as \
                        they are asked for",
            );
        }
        let (host, port) = split_port(authority)?;
        let port = match port {
            None => scheme.port(),
            Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
                port.parse().ok().filter(|port| *port > 0).ok_or(BAD_PORT)?
            }
            Some(_) => return Err(BAD_PORT),
        };
        Ok(Self { scheme, host: host.into(), port })
    }
}

const BAD_PORT: &str = "has a port that is not a number from 1 to 65535";

/// The host in its usual form, and what stands behind its colon.
fn split_port(authority: &str) -> Result<(String, Option<&str>), &'static str> {
    const IN_BRACKETS: &str =
        "has an IPv6 address that is not in brackets; write for example http://[::1]:3000";
    const EVERY: &str =
        "names every address and no server; write for example http://127.0.0.1:3000";
    if let Some(inside) = authority.strip_prefix('[') {
        let (address, after) = inside.split_once(']').ok_or(IN_BRACKETS)?;
        let address: Ipv6Addr = address.parse().map_err(|_| IN_BRACKETS)?;
        if address.is_unspecified() {
            return Err(EVERY);
        }
        return match after.strip_prefix(':') {
            None if !after.is_empty() => Err(IN_BRACKETS),
            port => Ok((address.to_string(), port)),
        };
    }
    let (host, port) = match authority.split_once(':') {
        Some((_, port)) if port.contains(':') => return Err(IN_BRACKETS),
        Some((host, port)) => (host, Some(port)),
        None => (authority, None),
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if host.is_empty() || host.len() > HOST_BYTES_MAX || !host.bytes().all(is_plain) {
        return Err("names no host; write for example http://127.0.0.1:3000");
    }
    if host.parse::<Ipv4Addr>().is_ok_and(|address| address.is_unspecified()) {
        return Err(EVERY);
    }
    Ok((host.to_ascii_lowercase(), port))
}

impl fmt::Display for Target {
    /// Its URL.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scheme, host, port } = self;
        let scheme = scheme.name();
        if host.contains(':') {
            write!(f, "{scheme}://[{host}]:{port}")
        } else {
            write!(f, "{scheme}://{host}:{port}")
        }
    }
}
