//! What must hold of a request for a limit to apply.
//!
//! A condition on an attribute that is not there does not hold, whatever it asks, except `absent`
//! and what is said by `not`. Methods and hosts are compared without regard to case, so that `get`
//! is no way around a limit on GET; everything else is compared byte by byte.

use std::net::Ipv6Addr;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::address::CidrSet;
use crate::attribute::{AttributeId, Attributes, Facts};
use crate::mistake::quoted;
use crate::path::Pattern;

/// What must hold of one attribute.
#[derive(Clone, Debug)]
pub(crate) struct Condition {
    pub(crate) attribute: AttributeId,
    pub(crate) test: Test,
}

#[derive(Clone, Debug)]
pub(crate) enum Test {
    /// It is one of these, byte by byte.
    OneOf(SmallVec<[Word; 1]>),
    /// It is one of these methods, written in capitals here.
    Method(SmallVec<[Word; 1]>),
    /// One of these patterns stands for it.
    Path(Vec<Pattern>),
    /// It is one of these hosts, or below one of them.
    Host(Vec<HostPattern>),
    /// It is an address in one of these blocks.
    Cidr(Box<CidrSet>),
    Present,
    Absent,
    Not(Box<Test>),
}

/// A value that conditions ask for. Conditions that ask for the same one share it, so that a
/// policy of thousands of limits on `POST` has that word in one place.
pub(crate) type Word = Arc<[u8]>;

/// A host, or every host below it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HostPattern {
    /// In small letters, without `*.`.
    pub(crate) name: Word,
    pub(crate) below: bool,
}

impl Condition {
    pub(crate) fn holds(&self, facts: &Facts<'_>) -> bool {
        self.test.holds(self.attribute, facts)
    }
}

impl Test {
    fn holds(&self, attribute: AttributeId, facts: &Facts<'_>) -> bool {
        match (self, facts.value(attribute)) {
            (Self::Not(test), _) => !test.holds(attribute, facts),
            (Self::Absent, value) => value.is_none(),
            (_, None) => false,
            (Self::Present, Some(_)) => true,
            (Self::OneOf(words), Some(value)) => words.iter().any(|word| **word == *value),
            (Self::Method(methods), Some(value)) => {
                methods.iter().any(|method| method.eq_ignore_ascii_case(value))
            }
            (Self::Path(patterns), Some(value)) => {
                patterns.iter().any(|pattern| pattern.matches(value))
            }
            (Self::Host(hosts), Some(value)) => {
                let host = canonical_host(value);
                hosts.iter().any(|pattern| pattern.stands_for(&host))
            }
            (Self::Cidr(blocks), Some(_)) => {
                facts.address(attribute).is_some_and(|address| blocks.contains(address))
            }
        }
    }

    /// Whether it holds where the attribute is not there.
    pub(crate) fn holds_of_none(&self) -> bool {
        match self {
            Self::Not(test) => !test.holds_of_none(),
            Self::Absent => true,
            _ => false,
        }
    }

    /// Whether there may be a value that it holds of.
    pub(crate) fn may_hold_of_some(&self) -> bool {
        match self {
            Self::Not(test) => !test.holds_of_all(),
            Self::Absent => false,
            _ => true,
        }
    }

    /// Whether it holds of any value for sure.
    fn holds_of_all(&self) -> bool {
        match self {
            Self::Not(test) => !test.may_hold_of_some(),
            Self::Present => true,
            _ => false,
        }
    }
}

impl HostPattern {
    pub(crate) fn stands_for(&self, host: &[u8]) -> bool {
        if !self.below {
            return *host == *self.name;
        }
        host.strip_suffix(&*self.name).is_some_and(|rest| rest.len() > 1 && rest.ends_with(b"."))
    }

    /// Whether it stands for every host that `other` does.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let is_same = self.name == other.name && self.below == other.below;
        is_same || (self.below && self.stands_for(&other.name))
    }

    /// The host as it would be written.
    fn text(&self) -> String {
        let name = String::from_utf8_lossy(&self.name);
        if self.below { format!("*.{name}") } else { name.into_owned() }
    }
}

/// A host in small letters, without its port and without the dot that may end it; an IPv6 address
/// in its usual form.
pub(crate) fn canonical_host(host: &[u8]) -> SmallVec<[u8; 64]> {
    let mut name = host;
    if let Some(colon) = host.iter().rposition(|byte| *byte == b':') {
        // The colons of an IPv6 address are inside brackets; only what follows them is a port.
        let port = &host[colon + 1..];
        let whole = !host[..colon].contains(&b':') || host[..colon].ends_with(b"]");
        if whole && port.iter().all(u8::is_ascii_digit) {
            name = &host[..colon];
        }
    }
    if let Some(address) = read_bracketed(name) {
        return SmallVec::from_slice(format!("[{address}]").as_bytes());
    }
    let mut name: SmallVec<[u8; 64]> =
        SmallVec::from_slice(name.strip_suffix(b".").unwrap_or(name));
    name.make_ascii_lowercase();
    name
}

fn read_bracketed(host: &[u8]) -> Option<Ipv6Addr> {
    let inside = host.strip_prefix(b"[")?.strip_suffix(b"]")?;
    std::str::from_utf8(inside).ok()?.parse().ok()
}

/// A method in capitals.
pub(crate) fn canonical_method(method: &[u8]) -> SmallVec<[u8; 32]> {
    let mut method = SmallVec::from_slice(method);
    method.make_ascii_uppercase();
    method
}

impl Condition {
    /// The condition as it would be written. Values that may be credentials are not repeated.
    pub(crate) fn text(&self, attributes: &Attributes, secret: bool) -> String {
        format!("{}: {}", attributes.name(self.attribute), self.test.text(secret))
    }

    /// Why the condition does not hold, as a sentence. Values that may be credentials are not
    /// repeated, neither the one that was sent nor those that are asked for.
    pub(crate) fn why_not(
        &self,
        facts: &Facts<'_>,
        attributes: &Attributes,
        secret: bool,
    ) -> String {
        let name = attributes.name(self.attribute);
        let asked = self.test.text(secret);
        let Some(value) = facts.value(self.attribute) else {
            return format!("the request has no {name}, and {asked} is asked for");
        };
        let shown =
            if secret { HIDDEN.to_owned() } else { quoted(&String::from_utf8_lossy(value)) };
        format!("{name} is {shown}, and {asked} is asked for")
    }
}

impl Test {
    /// The right-hand side as it would be written; only its shape if values are secret.
    fn text(&self, secret: bool) -> String {
        match self {
            Self::OneOf(values) | Self::Method(values) => {
                let text = |value: &Word| String::from_utf8_lossy(value).into_owned();
                list(values.iter().map(text), secret)
            }
            Self::Path(patterns) => list(patterns.iter().map(Pattern::to_string), secret),
            Self::Host(hosts) => list(hosts.iter().map(HostPattern::text), secret),
            Self::Cidr(blocks) => {
                let blocks = blocks.blocks().iter().map(ToString::to_string);
                format!("{{cidr: {}}}", list(blocks, secret))
            }
            Self::Present => "present".to_owned(),
            Self::Absent => "absent".to_owned(),
            Self::Not(test) => format!("{{not: {}}}", test.text(secret)),
        }
    }
}

/// What stands for a value that may be a credential.
pub(crate) const HIDDEN: &str = "…";

/// One word, or a list in brackets that is cut after a few.
fn list(words: impl ExactSizeIterator<Item = String>, secret: bool) -> String {
    const SHOWN: usize = 5;
    let count = words.len();
    let shown = words.take(SHOWN).map(|word| if secret { HIDDEN.to_owned() } else { word });
    let shown = shown.collect::<Vec<String>>().join(", ");
    match count {
        1 => shown,
        _ if count > SHOWN => format!("[{shown}, … {} more]", count - SHOWN),
        _ => format!("[{shown}]"),
    }
}
