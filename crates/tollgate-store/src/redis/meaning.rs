//! What the errors of a server mean to those who reach it. Codes only are matched: the texts after
//! them differ between servers and versions.

/// An error that concerns where or how a call was sent, or who answered it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Meaning<'a> {
    /// The script is not known there.
    NoScript,
    /// The slot is served elsewhere.
    Moved(Place<'a>),
    /// This once, ask elsewhere.
    Ask(Place<'a>),
    /// The slot is between two servers, and the keys are not all on one of them.
    TryAgain,
    /// The server is unwell, and would say the same to any call.
    Unwell,
    /// The server is well, but we should not be talking to it, or not like this: another connection
    /// may help.
    Misplaced,
    /// About the call itself.
    Other,
}

/// Where a slot is said to be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place<'a> {
    pub(super) slot: u16,
    /// Empty: the host that said so.
    pub(super) host: &'a str,
    pub(super) port: u16,
}

impl<'a> Meaning<'a> {
    pub(super) fn of(error: &'a str) -> Self {
        let (code, rest) = error.split_once(' ').unwrap_or((error, ""));
        match code {
            "NOSCRIPT" => Self::NoScript,
            "MOVED" => Place::parse(rest).map_or(Self::Other, Self::Moved),
            "ASK" => Place::parse(rest).map_or(Self::Other, Self::Ask),
            "TRYAGAIN" => Self::TryAgain,
            "OOM" | "MISCONF" | "NOREPLICAS" | "BUSY" | "LOADING" | "CLUSTERDOWN"
            | "MASTERDOWN" => Self::Unwell,
            "READONLY" | "NOAUTH" => Self::Misplaced,
            _ => Self::Other,
        }
    }
}

/// What whoever wrote the policy should know of an error that comes to those who are sent to the wrong
/// kind of server, or nothing.
pub(super) fn hint(error: &str, is_cluster: bool) -> Option<&'static str> {
    match Meaning::of(error) {
        Meaning::Moved(_) | Meaning::Ask(_) if !is_cluster => Some(
            "this server is of a Cluster; write store: { redis: { cluster: [redis://host:port] } }",
        ),
        // Of servers that a policy may name, Sentinels alone know no scripts.
        Meaning::Other if error.starts_with("ERR unknown command 'EVAL") => Some(
            "this may be a Sentinel; write store: { redis: { sentinel: { master: name, nodes: \
             [redis://host:port] } } }",
        ),
        _ => None,
    }
}

impl<'a> Place<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut words = text.split(' ');
        let slot: u16 = words.next()?.parse().ok()?;
        let (host, port) = words.next()?.rsplit_once(':')?;
        let slot = (slot < super::slots::SLOTS).then_some(slot)?;
        Some(Self { slot, host, port: port.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirections_tell_slot_host_and_port() {
        let place = |slot, host, port| Place { slot, host, port };
        for (error, meaning) in [
            ("MOVED 3999 127.0.0.1:6381", Meaning::Moved(place(3_999, "127.0.0.1", 6_381))),
            ("ASK 0 redis-1.example:7000", Meaning::Ask(place(0, "redis-1.example", 7_000))),
            ("MOVED 16383 ::1:6381", Meaning::Moved(place(16_383, "::1", 6_381))),
            ("MOVED 1 :6381", Meaning::Moved(place(1, "", 6_381))),
            ("MOVED 16384 127.0.0.1:6381", Meaning::Other),
            ("MOVED -1 127.0.0.1:6381", Meaning::Other),
            ("MOVED 1 127.0.0.1", Meaning::Other),
            ("MOVED 1 127.0.0.1:66000", Meaning::Other),
            ("MOVED", Meaning::Other),
            ("ASK ", Meaning::Other),
        ] {
            assert_eq!(Meaning::of(error), meaning, "{error}");
        }
    }

    #[test]
    fn whoever_asks_the_wrong_kind_of_server_is_told_what_to_write() {
        for (error, is_cluster, told) in [
            ("MOVED 3999 127.0.0.1:6381", false, Some("cluster: [")),
            ("ASK 3999 127.0.0.1:6381", false, Some("cluster: [")),
            ("MOVED 3999 127.0.0.1:6381", true, None),
            (
                "ERR unknown command 'EVALSHA', with args beginning with: 'a'",
                false,
                Some("sentinel: {"),
            ),
            ("ERR unknown command 'EVAL'", true, Some("sentinel: {")),
            ("ERR unknown command 'GET'", false, None),
            ("NOPERM this user", false, None),
        ] {
            let hint = hint(error, is_cluster);
            assert_eq!(hint.is_some(), told.is_some(), "{error}");
            assert!(
                hint.is_none_or(|hint| told.is_some_and(|told| hint.contains(told))),
                "{error}"
            );
        }
    }

    #[test]
    fn codes_are_matched_whole_and_texts_not_at_all() {
        for (error, meaning) in [
            ("NOSCRIPT No matching script.", Meaning::NoScript),
            ("NOSCRIPT whatever Valkey says", Meaning::NoScript),
            ("OOM", Meaning::Unwell),
            ("LOADING Redis is loading the dataset in memory", Meaning::Unwell),
            ("READONLY You can't write against a read only replica.", Meaning::Misplaced),
            ("TRYAGAIN Multiple keys request during rehashing of slot", Meaning::TryAgain),
            ("BUSYGROUP Consumer Group name already exists", Meaning::Other),
            ("ERR OOM", Meaning::Other),
            ("", Meaning::Other),
        ] {
            assert_eq!(Meaning::of(error), meaning, "{error}");
        }
    }
}
