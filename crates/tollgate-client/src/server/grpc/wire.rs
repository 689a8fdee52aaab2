//! The messages of the call, to and from bytes. Their fields have the numbers of Envoy's
//! `envoy/service/ratelimit/v3/rls.proto`.

use std::fmt;
use std::time::Duration;

use crate::bounds::{DESCRIPTORS_BYTES_MAX, DESCRIPTORS_ENTRIES_MAX, DESCRIPTORS_MAX, WAIT_MAX};
use crate::server::wire::{LimitAnswer, Source, Verdict};

/// Before every message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// What a server is asked about over gRPC: descriptors, each a list of entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptors {
    domain: String,
    descriptors: Vec<Vec<(String, String)>>,
    hits: u32,
}

impl Descriptors {
    /// Descriptors of a domain, and what each of them costs; 0 only looks.
    pub fn new(
        domain: &str,
        descriptors: &[&[(&str, &str)]],
        hits: u32,
    ) -> Result<Self, DescriptorsError> {
        if domain.is_empty() || descriptors.is_empty() {
            return Err(DescriptorsError::Empty);
        }
        if descriptors.len() > DESCRIPTORS_MAX {
            return Err(DescriptorsError::TooMany { count: descriptors.len() });
        }
        let longest = descriptors.iter().map(|entries| entries.len()).max().unwrap_or(0);
        if longest > DESCRIPTORS_ENTRIES_MAX {
            return Err(DescriptorsError::TooManyEntries { count: longest });
        }
        let entry = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let owned = |entries: &&[_]| entries.iter().map(entry).collect();
        let descriptors = descriptors.iter().map(owned).collect();
        let this = Self { domain: domain.to_owned(), descriptors, hits };
        match this.to_message().len() {
            ..=DESCRIPTORS_BYTES_MAX => Ok(this),
            bytes => Err(DescriptorsError::TooLong { bytes }),
        }
    }

    pub(super) fn hits(&self) -> u32 {
        self.hits
    }

    /// The value of the first entry of that key.
    pub(super) fn value(&self, key: &str) -> Option<&str> {
        let mut entries = self.descriptors.iter().flatten();
        entries.find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    /// A framed `RateLimitRequest`.
    pub(super) fn to_message(&self) -> Vec<u8> {
        self.with_hits(self.hits, false)
    }

    /// What brings what was charged to what was used, if that is not the same.
    pub(super) fn to_settlement(&self, used: u32) -> Option<Vec<u8>> {
        let (difference, is_less) = (self.hits.abs_diff(used), used < self.hits);
        (difference > 0).then(|| self.with_hits(difference, is_less))
    }

    fn with_hits(&self, hits: u32, is_negative: bool) -> Vec<u8> {
        let mut message = vec![0; PREFIX_BYTES];
        let mut writer = Writer(&mut message);
        writer.bytes(1, self.domain.as_bytes());
        for entries in &self.descriptors {
            writer.message(2, |descriptor| {
                for (key, value) in entries {
                    descriptor.message(1, |entry| {
                        entry.bytes(1, key.as_bytes());
                        entry.bytes(2, value.as_bytes());
                    });
                }
                // In a descriptor nothing is nothing; in the request it would be one.
                descriptor.message(3, |wrapped| wrapped.varint(1, hits.into()));
                descriptor.varint(4, is_negative.into());
            });
        }
        let length = u32::try_from(message.len() - PREFIX_BYTES).unwrap_or(u32::MAX);
        message[1..PREFIX_BYTES].copy_from_slice(&length.to_be_bytes());
        message
    }

    /// Reads a framed `RateLimitResponse`, if it is one that answers every descriptor.
    pub(super) fn verdict(&self, answer: &[u8]) -> Option<Verdict> {
        let (prefix, message) = answer.split_at_checked(PREFIX_BYTES)?;
        let length = u32::from_be_bytes(prefix[1..].try_into().ok()?);
        if prefix[0] != 0 || usize::try_from(length).ok()? != message.len() {
            return None;
        }
        let mut code = 0;
        let mut limits = Vec::new();
        for field in Fields(message) {
            match field? {
                (1, Field::Number(number)) => code = number,
                (2, Field::Bytes(status)) => {
                    limits.push(self.limit(self.descriptors.get(limits.len())?, status)?);
                }
                _ => {}
            }
        }
        if limits.len() != self.descriptors.len() {
            return None;
        }
        let is_allowed = match code {
            1 => true,
            2 => false,
            _ => return None,
        };
        let waits = limits.iter().filter(|limit| !limit.is_allowed).map(|limit| limit.retry_after);
        Some(Verdict {
            is_allowed,
            retry_after: if is_allowed { None } else { waits.flatten().max() },
            delay: Duration::ZERO,
            reason: None,
            limits,
            lease: None,
            reservation: None,
            source: Source::Server,
            why_fallback: None,
        })
    }

    /// Reads a `DescriptorStatus`.
    fn limit(&self, entries: &[(String, String)], status: &[u8]) -> Option<LimitAnswer> {
        let (mut code, mut remaining, mut reset) = (0, 0, None);
        let mut told = None;
        for field in Fields(status) {
            match field? {
                (1, Field::Number(number)) => code = number,
                (2, Field::Bytes(limit)) => told = Some(named_limit(limit)?),
                (3, Field::Number(number)) => remaining = number,
                (4, Field::Bytes(wait)) => reset = Some(duration(wait)?),
                _ => {}
            }
        }
        let is_allowed = code == 1;
        let (limit, name) = told.map_or((None, String::new()), |(limit, name)| (Some(limit), name));
        let entries: Vec<String> =
            entries.iter().map(|(key, value)| format!("{key}={value}")).collect();
        Some(LimitAnswer {
            name,
            key: format!("{}: {}", self.domain, entries.join(", ")),
            is_allowed,
            limit,
            remaining: limit.map(|_| remaining),
            retry_after: reset.filter(|_| !is_allowed),
            reset_after: reset,
            is_shadow: false,
        })
    }
}

/// How many, and the name.
fn named_limit(message: &[u8]) -> Option<(u64, String)> {
    let mut told = (0, String::new());
    for field in Fields(message) {
        match field? {
            (1, Field::Number(count)) => told.0 = count,
            (3, Field::Bytes(name)) => told.1 = String::from_utf8_lossy(name).into_owned(),
            _ => {}
        }
    }
    Some(told)
}

fn duration(message: &[u8]) -> Option<Duration> {
    let mut told = Duration::ZERO;
    for field in Fields(message) {
        match field? {
            (1, Field::Number(seconds)) => told = told.saturating_add(Duration::from_secs(seconds)),
            (2, Field::Number(nanos)) => told = told.saturating_add(Duration::from_nanos(nanos)),
            _ => {}
        }
    }
    Some(told.min(WAIT_MAX))
}

/// Writes fields of protocol buffers behind each other.
struct Writer<'a>(&'a mut Vec<u8>);

impl Writer<'_> {
    fn varint(&mut self, number: u8, value: u64) {
        self.number(u64::from(number) << 3);
        self.number(value);
    }

    fn bytes(&mut self, number: u8, bytes: &[u8]) {
        self.number(u64::from(number) << 3 | 2);
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, number: u8, write: impl FnOnce(&mut Writer<'_>)) {
        let mut message = Vec::new();
        write(&mut Writer(&mut message));
        self.bytes(number, &message);
    }

    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

/// The value of a field, as far as it is told by the bytes alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field<'a> {
    Number(u64),
    /// A text or a message.
    Bytes(&'a [u8]),
    /// A number of fixed size, which nothing that is read here has.
    Fixed,
}

/// The fields of a message that are left to read; `None` where there is none, and no other after it.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<(u64, Field<'a>)> {
        let key = self.number()?;
        let field = match key & 7 {
            0 => Field::Number(self.number()?),
            1 => self.take(8).map(|_| Field::Fixed)?,
            2 => {
                let length = usize::try_from(self.number()?).ok()?;
                Field::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Field::Fixed)?,
            _ => return None,
        };
        Some((key >> 3, field))
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Option<(u64, Field<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() { None } else { Some(self.field()) }
    }
}

/// Why something cannot be asked over gRPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DescriptorsError {
    /// There is no domain, or no descriptor.
    Empty,
    /// There are too many descriptors.
    TooMany {
        /// How many.
        count: usize,
    },
    /// One of them has too many entries.
    TooManyEntries {
        /// How many.
        count: usize,
    },
    /// They are too long.
    TooLong {
        /// How many bytes together.
        bytes: usize,
    },
}

impl fmt::Display for DescriptorsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("a call names a domain and at least one descriptor"),
            Self::TooMany { count } => {
                write!(f, "a call has {count} descriptors; {DESCRIPTORS_MAX} may be")
            }
            Self::TooManyEntries { count } => {
                write!(f, "a descriptor has {count} entries; {DESCRIPTORS_ENTRIES_MAX} may be")
            }
            Self::TooLong { bytes } => {
                write!(f, "a call has {bytes} bytes; {DESCRIPTORS_BYTES_MAX} may be")
            }
        }
    }
}

impl std::error::Error for DescriptorsError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn user() -> Descriptors {
        Descriptors::new("d", &[&[("user", "anna")]], 1).expect("it is short")
    }

    /// A framed answer: OVER_LIMIT, 5 a unit, 0 left, 7 seconds.
    const OVER: [u8; 21] =
        *b"\0\0\0\0\x10\x08\x02\x12\x0c\x08\x02\x12\x04\x08\x05\x10\x01\x22\x02\x08\x07";

    #[test]
    fn an_answer_is_a_verdict() {
        let verdict = user().verdict(&OVER).unwrap();
        assert!(!verdict.is_allowed);
        assert_eq!(verdict.retry_after, Some(Duration::from_secs(7)));
        let limit = &verdict.limits[0];
        assert_eq!((limit.limit, limit.remaining, &*limit.key), (Some(5), Some(0), "d: user=anna"));
    }

    #[test]
    fn what_is_no_answer_is_no_verdict_and_no_panic() {
        let unknown = b"\0\0\0\0\x04\x08\0\x12\0";
        let none = b"\0\0\0\0\0";
        for bytes in [&b""[..], b"\0", none, unknown, &[&OVER[..], b"x"].concat()] {
            assert_eq!(user().verdict(bytes), None, "{bytes:?}");
        }
        for at in 0..OVER.len() {
            assert_eq!(user().verdict(&OVER[..at]), None);
            for bits in 1..=u8::MAX {
                let mut changed = OVER;
                changed[at] ^= bits;
                let _ = user().verdict(&changed);
            }
        }
    }

    #[test]
    fn what_the_server_would_refuse_is_not_sent() {
        let entries = [("a", "b"); DESCRIPTORS_ENTRIES_MAX + 1];
        let many = [&entries[..1]; DESCRIPTORS_MAX + 1];
        let long = "x".repeat(DESCRIPTORS_BYTES_MAX);
        let refused = |domain: &str, descriptors: &[&[(&str, &str)]]| {
            Descriptors::new(domain, descriptors, 1).expect_err("too much").to_string()
        };
        let empty = "a call names a domain and at least one descriptor";
        assert_eq!(refused("", &[&[("a", "b")]]), empty);
        assert_eq!(refused("d", &[]), empty);
        assert_eq!(refused("d", &many), "a call has 129 descriptors; 128 may be");
        assert_eq!(refused("d", &[&entries]), "a descriptor has 65 entries; 64 may be");
        assert!(refused("d", &[&[("a", &long)]]).ends_with("bytes; 262144 may be"));
    }
}
