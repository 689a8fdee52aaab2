//! URLs of Redis servers.
//!
//! They are read here only to be refused with a sentence if they are wrong; whoever dials one reads it
//! again. No sentence repeats a part of one: what looks like a port may be the end of a password.

use std::net::Ipv6Addr;

/// What a URL is to name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    /// One server, also by a socket of this machine.
    Server,
    /// A node of a Cluster.
    Member,
    /// A Sentinel, with the login and the database of the master.
    Sentinel,
}

/// What is wrong with a URL, to follow it in a sentence.
pub(crate) fn check(url: &str, names: Names) -> Result<(), &'static str> {
    let is_unseen = |letter: char| letter.is_whitespace() || letter.is_control();
    if url.contains(is_unseen) {
        return Err("holds a space; write it as %20");
    }
    match url.split_once("://") {
        Some(("redis" | "rediss", rest)) => check_host(rest, names),
        Some(("redis+unix" | "unix", _)) if names != Names::Server => {
            Err("is a socket of this machine; write the host, as in redis://10.0.0.1:6379")
        }
        Some(("redis+unix" | "unix", rest)) => check_socket(rest),
        Some(("valkey" | "valkeys", _)) => {
            Err("is not a URL of Redis; Valkey is reached by redis:// or rediss:// too")
        }
        _ => Err("is not a URL of Redis; write for example redis://127.0.0.1:6379"),
    }
}

/// What may be shown of a URL that is wrong in such a way that a password in it does not stand before
/// an `@` behind its scheme; nothing of others, in which it does.
pub(crate) fn hidden(url: &str) -> Option<String> {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some(_), Some(_)) | (None, None) => None,
        (None, Some((_, host))) => Some(format!("…@{host}")),
        (Some((scheme, rest)), None) => {
            let authority = rest.split(['/', '?', '#']).next().unwrap_or("");
            let (_, last) = authority.rsplit_once(':')?;
            // `redis://user:password`: what looks like a port is none.
            (!is_number(last)).then(|| format!("{scheme}://…"))
        }
    }
}

fn check_host(rest: &str, names: Names) -> Result<(), &'static str> {
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if path.contains('@') {
        return Err("has a /, ? or # in its user or password; write it as %2F, %3F or %23");
    }
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    if host.contains(',') {
        return Err(match names {
            Names::Server => {
                "names several servers; write redis: { cluster: [redis://10.0.0.1:6379, …] }, or \
                 Sentinels as redis: { sentinel: { master: …, nodes: […] } }"
            }
            Names::Member | Names::Sentinel => {
                "names several servers; write a URL for each, as in [redis://10.0.0.1, redis://10.0.0.2]"
            }
        });
    }
    let (name, port) = split_port(host)?;
    if name.is_empty() {
        return Err("names no host; write for example redis://127.0.0.1:6379");
    }
    if matches!(name, "0.0.0.0" | "[::]") {
        return Err("names every address and no server; write for example redis://127.0.0.1:6379");
    }
    if port.is_some_and(|port| !is_number(port) || !port.parse::<u16>().is_ok_and(|it| it > 0)) {
        return Err("has a port that is not a number from 1 to 65535");
    }
    if path.contains(['?', '#']) {
        return Err("has a part behind ? or #, which means nothing here");
    }
    match path.strip_prefix('/').unwrap_or("") {
        "" | "0" => Ok(()),
        _ if names == Names::Member => Err("names a database; a Cluster has none but 0"),
        database => check_database(database),
    }
}

/// The host and what stands behind its colon.
fn split_port(host: &str) -> Result<(&str, Option<&str>), &'static str> {
    const IN_BRACKETS: &str =
        "has an IPv6 address that is not in brackets; write for example redis://[::1]:6379";
    if let Some(inside) = host.strip_prefix('[') {
        let (address, after) = inside.split_once(']').ok_or(IN_BRACKETS)?;
        address.parse::<Ipv6Addr>().map_err(|_| IN_BRACKETS)?;
        let name = &host[..address.len() + 2];
        return match after.strip_prefix(':') {
            None if !after.is_empty() => Err(IN_BRACKETS),
            port => Ok((name, port)),
        };
    }
    match host.split_once(':') {
        Some((_, port)) if port.contains(':') => Err(IN_BRACKETS),
        Some((name, port)) => Ok((name, Some(port))),
        None => Ok((host, None)),
    }
}

/// `/run/redis.sock?db=1&user=tollgate&pass=…`.
fn check_socket(rest: &str) -> Result<(), &'static str> {
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    if !path.starts_with('/') || path == "/" {
        return Err("names no socket; write three slashes, as in unix:///run/redis.sock");
    }
    if rest.contains('#') {
        return Err("has a part behind #, which means nothing here");
    }
    for part in query.split('&').filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some(("db", database)) => check_database(database)?,
            Some(("user" | "pass", _)) => {}
            _ => return Err("has something else behind ? than db=…, user=… and pass=…"),
        }
    }
    Ok(())
}

fn check_database(text: &str) -> Result<(), &'static str> {
    if is_number(text) && text.parse::<u32>().is_ok() {
        return Ok(());
    }
    Err("has a database that is not a number; write for example redis://127.0.0.1:6379/1")
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_a_url_of_redis_is_told_how_it_is_written() {
        for (url, names, told) in [
            ("redis://h1:1,h2:2", Names::Server, "cluster: ["),
            ("redis://u:p@h1,h2", Names::Server, "sentinel: {"),
            ("redis://h1:1,h2:2", Names::Member, "a URL for each"),
            ("valkey://h:6379", Names::Server, "redis://"),
            ("valkeys://h:6379", Names::Sentinel, "rediss://"),
        ] {
            let why = check(url, names).unwrap_err();
            assert!(why.contains(told), "{url}: {why}");
        }
        assert_eq!(check("redis://u:a,b@h1", Names::Server), Ok(()), "a password may hold a comma");
    }
}
