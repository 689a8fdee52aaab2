//! The messages of the call, to and from bytes.
//!
//! Read where they lie and written as they are: a call has a handful of short strings, and giving
//! each of them memory of its own would cost more than the decision. The numbers are those of
//! `proto/`, and the tests hold them against it.

mod fields;

use std::borrow::Cow;
use std::fmt;

use smallvec::SmallVec;
use tollgate::Limiter;
use tollgate::envoy::{
    Call, CallError, CurrentLimit, Descriptor, Metadata, Override, Response, Status, Unit, Value,
};

use super::bounds::{DESCRIPTORS_MAX, ENTRIES_MAX};
use fields::{Field, Fields, Writer};

/// A key and a value.
pub(crate) type Entry<'a> = (Cow<'a, str>, Cow<'a, str>);

/// A call as it was read.
#[derive(Debug, Default)]
pub(crate) struct Question<'a> {
    domain: Cow<'a, str>,
    hits: u32,
    /// The entries of all descriptors, one after the other.
    entries: SmallVec<[Entry<'a>; 8]>,
    /// Each with the number of its entries, which it does not hold yet.
    descriptors: SmallVec<[(usize, Descriptor<'a>); 4]>,
}

/// Why a message is not a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// It is not what protocol buffers look like.
    Malformed,
    /// A limit comes with the call, and nobody knows how long.
    NoUnit,
    /// It asks for too much at once.
    TooMany(CallError),
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => f.write_str("the message is not a RateLimitRequest"),
            Self::NoUnit => f.write_str("a descriptor's limit has no unit of time"),
            Self::TooMany(error) => error.fmt(f),
        }
    }
}

impl<'a> Question<'a> {
    pub(crate) fn new(domain: Cow<'a, str>, hits: u32) -> Self {
        Self { domain, hits, ..Self::default() }
    }

    /// Adds a descriptor; its own `entries` are put in place when the question is asked.
    pub(crate) fn add(
        &mut self,
        entries: impl IntoIterator<Item = Entry<'a>>,
        descriptor: Descriptor<'a>,
    ) -> Result<(), Unread> {
        let before = self.entries.len();
        for entry in entries {
            self.add_entry(entry)?;
        }
        self.close(before, descriptor)
    }

    fn add_entry(&mut self, entry: Entry<'a>) -> Result<(), Unread> {
        if self.entries.len() == ENTRIES_MAX {
            return Err(Unread::TooMany(CallError::TooManyEntries));
        }
        self.entries.push(entry);
        Ok(())
    }

    fn close(&mut self, entries_before: usize, descriptor: Descriptor<'a>) -> Result<(), Unread> {
        if self.descriptors.len() == DESCRIPTORS_MAX {
            return Err(Unread::TooMany(CallError::TooManyDescriptors));
        }
        self.descriptors.push((self.entries.len() - entries_before, descriptor));
        Ok(())
    }

    /// Reads a `RateLimitRequest`.
    pub(super) fn read(message: &'a [u8]) -> Result<Self, Unread> {
        let mut question = Self::default();
        for field in Fields::of(message) {
            match field? {
                (1, Field::Bytes(domain)) => question.domain = text(domain),
                (2, Field::Bytes(descriptor)) => question.read_descriptor(descriptor)?,
                (3, Field::Varint(hits)) => question.hits = low_half(hits),
                _ => {}
            }
        }
        Ok(question)
    }

    fn read_descriptor(&mut self, message: &'a [u8]) -> Result<(), Unread> {
        let before = self.entries.len();
        let mut descriptor = Descriptor::default();
        let mut limit = None;
        for field in Fields::of(message) {
            match field? {
                (1, Field::Bytes(entry)) => self.add_entry(read_entry(entry)?)?,
                (2, Field::Bytes(more)) => read_limit(more, limit.get_or_insert((0, 0, 0)))?,
                (3, Field::Bytes(hits)) => descriptor.hits = Some(read_wrapped(hits)?),
                (4, Field::Varint(is)) => descriptor.is_negative_hits = is != 0,
                _ => {}
            }
        }
        if let Some((requests_per_unit, unit, unit_multiplier)) = limit {
            let unit = unit_numbered(unit).ok_or(Unread::NoUnit)?;
            descriptor.limit = Some(Override { requests_per_unit, unit, unit_multiplier });
        }
        self.close(before, descriptor)
    }

    /// Asks.
    pub(crate) fn ask(&self, limiter: &Limiter) -> Result<Response, CallError> {
        let entries: SmallVec<[(&str, &str); 8]> =
            self.entries.iter().map(|(key, value)| (&**key, &**value)).collect();
        let mut rest = &entries[..];
        let mut descriptors = SmallVec::<[Descriptor<'_>; 4]>::new();
        for (count, descriptor) in &self.descriptors {
            let (own, others) = rest.split_at(*count);
            descriptors.push(Descriptor { entries: own, ..*descriptor });
            rest = others;
        }
        let call = Call { domain: &self.domain, descriptors: &descriptors, hits: self.hits };
        limiter.rate_limit(&call)
    }
}

fn read_entry(message: &[u8]) -> Result<Entry<'_>, Unread> {
    let mut entry = Entry::default();
    for field in Fields::of(message) {
        match field? {
            (1, Field::Bytes(key)) => entry.0 = text(key),
            (2, Field::Bytes(value)) => entry.1 = text(value),
            _ => {}
        }
    }
    Ok(entry)
}

/// The count, the number of the unit, and its multiplier.
fn read_limit(message: &[u8], limit: &mut (u32, u64, u32)) -> Result<(), Unread> {
    for field in Fields::of(message) {
        match field? {
            (1, Field::Varint(count)) => limit.0 = low_half(count),
            (2, Field::Varint(unit)) => limit.1 = unit,
            (3, Field::Bytes(multiplier)) => limit.2 = low_half(read_wrapped(multiplier)?),
            _ => {}
        }
    }
    Ok(())
}

/// A number that can be absent.
fn read_wrapped(message: &[u8]) -> Result<u64, Unread> {
    let mut number = 0;
    for field in Fields::of(message) {
        if let (1, Field::Varint(value)) = field? {
            number = value;
        }
    }
    Ok(number)
}

/// Envoy passes on header fields as they came, and a call that is refused is a request let through:
/// bytes that are no text are counted together rather than not at all.
fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// What protocol buffers read in a 32-bit field that holds more.
fn low_half(number: u64) -> u32 {
    (number & u64::from(u32::MAX)) as u32
}

/// Its number in the messages.
pub(crate) const fn number_of(unit: Unit) -> u64 {
    match unit {
        Unit::Second => 1,
        Unit::Minute => 2,
        Unit::Hour => 3,
        Unit::Day => 4,
        Unit::Month => 5,
        Unit::Year => 6,
        Unit::Week => 7,
    }
}

pub(crate) const UNITS: [(&str, Unit); 7] = [
    ("SECOND", Unit::Second),
    ("MINUTE", Unit::Minute),
    ("HOUR", Unit::Hour),
    ("DAY", Unit::Day),
    ("WEEK", Unit::Week),
    ("MONTH", Unit::Month),
    ("YEAR", Unit::Year),
];

pub(crate) fn unit_numbered(number: u64) -> Option<Unit> {
    UNITS.into_iter().map(|(_, unit)| unit).find(|unit| number_of(*unit) == number)
}

/// Writes a `RateLimitResponse` behind what is there.
pub(super) fn write(response: &Response, bytes: &mut Vec<u8>) {
    let mut writer = Writer(bytes);
    writer.varint(1, code(response.is_over));
    for status in &response.statuses {
        writer.message(2, |writer| write_status(status, writer));
    }
    for (name, value) in &response.headers {
        writer.message(3, |writer| {
            writer.bytes(1, name.as_bytes());
            writer.bytes(2, value.as_bytes());
        });
    }
    if let Some(metadata) = &response.metadata {
        writer.message(6, |writer| write_map(metadata, writer));
    }
}

/// Never the zero of UNKNOWN: Envoy lets that through even when told to deny.
const fn code(is_over: bool) -> u64 {
    if is_over { 2 } else { 1 }
}

fn write_status(status: &Status, writer: &mut Writer<'_>) {
    writer.varint(1, code(status.is_over));
    if let Some(limit) = &status.current_limit {
        writer.message(2, |writer| write_current_limit(limit, writer));
    }
    writer.varint_unless_zero(3, status.limit_remaining.into());
    if let Some(seconds) = status.seconds_until_reset {
        writer.message(4, |writer| writer.varint_unless_zero(1, seconds));
    }
}

fn write_current_limit(limit: &CurrentLimit, writer: &mut Writer<'_>) {
    writer.varint_unless_zero(1, limit.requests_per_unit.into());
    writer.varint(2, number_of(limit.unit));
    if let Some(name) = &limit.name {
        writer.bytes(3, name.as_bytes());
    }
    if let Some(multiplier) = limit.unit_multiplier {
        writer.message(4, |writer| writer.varint_unless_zero(1, multiplier.into()));
    }
}

fn write_map(map: &Metadata, writer: &mut Writer<'_>) {
    for (name, value) in map {
        writer.message(1, |writer| {
            writer.bytes(1, name.as_bytes());
            writer.message(2, |writer| write_value(value, writer));
        });
    }
}

fn write_value(value: &Value, writer: &mut Writer<'_>) {
    match value {
        Value::Number(number) => writer.double(2, *number),
        Value::Text(text) => writer.bytes(3, text.as_bytes()),
        Value::Bool(is) => writer.varint(4, u64::from(*is)),
        Value::Map(map) => writer.message(5, |writer| write_map(map, writer)),
        Value::List(list) => writer.message(6, |writer| {
            for value in list {
                writer.message(1, |writer| write_value(value, writer));
            }
        }),
    }
}
