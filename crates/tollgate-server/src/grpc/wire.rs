//! The messages of the call, to and from bytes.
//!
//! Read where they lie and written as they are: a call has a handful of short strings, and giving
//! each of them memory of its own would cost more than the decision. The numbers are those of
//! `proto/`, and the tests hold them against it.

mod fields;

use std::borrow::Cow;
use std::fmt;

use smallvec::SmallVec;
use tollgate::bounds::{DESCRIPTORS_MAX, ENTRIES_MAX};
use tollgate::envoy::{
    Call, CallError, CurrentLimit, Descriptor, Metadata, Override, Response, Status, Unit, Value,
};
use tollgate::{Asked, Limiter};

use crate::protobuf::Writer;
use fields::{Field, Fields};

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
            self.add_entry(before, entry)?;
        }
        self.close(before, descriptor)
    }

    fn add_entry(&mut self, entries_before: usize, entry: Entry<'a>) -> Result<(), Unread> {
        if self.entries.len() - entries_before == ENTRIES_MAX {
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
                (3, Field::Varint(hits)) => question.hits = count(hits),
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
                (1, Field::Bytes(entry)) => self.add_entry(before, read_entry(entry)?)?,
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
    pub(crate) fn ask(&self, limiter: &Limiter) -> Result<Asked<Response>, CallError> {
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
            (1, Field::Varint(number)) => limit.0 = count(number),
            (2, Field::Varint(unit)) => limit.1 = unit,
            (3, Field::Bytes(multiplier)) => limit.2 = count(read_wrapped(multiplier)?),
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
    str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

/// A count that its 32-bit field cannot hold is the most it can. Protocol buffers would take its low
/// half, which may be nothing.
fn count(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
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

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use prost::Message;
    use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
    use serde_json::json;
    use smallvec::smallvec;

    use super::*;

    /// A message as the files of `proto/` have it.
    fn kind(name: &str) -> MessageDescriptor {
        let files = include_bytes!("../../proto/descriptors.bin");
        let pool = DescriptorPool::decode(&files[..]).expect("files");
        let name = format!("envoy.service.ratelimit.v3.{name}");
        pool.get_message_by_name(&name).expect("a message of these files")
    }

    fn request(json: &serde_json::Value) -> Vec<u8> {
        let message = DynamicMessage::deserialize(kind("RateLimitRequest"), json);
        message.expect("a request").encode_to_vec()
    }

    fn check_read(message: &[u8], expected: &str) {
        let question = Question::read(message).expect("read");
        let descriptors = question.descriptors.iter();
        let descriptors: Vec<_> = descriptors
            .map(|(entries, descriptor)| {
                let Descriptor { entries: _, limit, hits, is_negative_hits } = descriptor;
                let limit =
                    limit.map(|limit| (limit.requests_per_unit, limit.unit, limit.unit_multiplier));
                (entries, limit, hits, is_negative_hits)
            })
            .collect();
        let Question { domain, hits, entries, .. } = &question;
        assert_eq!(format!("{domain} {hits} {entries:?} {descriptors:?}"), expected);
    }

    #[test]
    fn a_count_that_is_too_large_is_not_taken_for_a_small_one() {
        // hits_addend = 2^32, of which protocol buffers would read the low half: nothing.
        let question = Question::read(&[0x18, 0x80, 0x80, 0x80, 0x80, 0x10]);
        assert_eq!(question.map(|it| it.hits).ok(), Some(u32::MAX));
    }

    #[test]
    fn a_request_is_read_as_the_proto_files_say() {
        let message = request(&json!({
            "domain": "shop",
            "hitsAddend": 4294967295u32,
            "descriptors": [
                {"entries": [{"key": "a", "value": "b"}, {"key": "c"}], "hitsAddend": "0"},
                {
                    "entries": [{"key": "d", "value": "é"}],
                    "limit": {"requestsPerUnit": 300, "unit": "YEAR", "unitMultiplier": 7},
                    "hitsAddend": "18446744073709551615",
                    "isNegativeHits": true,
                },
                {},
            ],
        }));
        check_read(
            &message,
            r#"shop 4294967295 [("a", "b"), ("c", ""), ("d", "é")] [(2, None, Some(0), false), (1, Some((300, Year, 7)), Some(18446744073709551615), true), (0, None, None, false)]"#,
        );
        check_read(b"", " 0 [] []");
    }

    #[test]
    fn what_is_unknown_is_skipped_and_what_comes_twice_counts_once() {
        let once = request(&json!({"domain": "a", "hitsAddend": 1}));
        let twice = request(&json!({"domain": "b", "hitsAddend": 2}));
        let unknown = b"\x99\x06\0\0\0\0\0\0\0\0\x9d\x06\0\0\0\0\x92\x06\x02hi\x90\x06\xff\x01";
        check_read(&[&once[..], unknown, &twice[..]].concat(), "b 2 [] []");

        // One limit in two pieces: the count, then the unit.
        check_read(
            b"\x12\x08\x12\x02\x08\x05\x12\x02\x10\x02",
            " 0 [] [(0, Some((5, Minute, 0)), None, false)]",
        );
    }

    #[test]
    fn a_value_that_is_no_text_is_still_counted() {
        check_read(
            b"\x12\x0a\x0a\x08\x0a\x01k\x12\x03a\xff\xfe",
            r#" 0 [("k", "a��")] [(1, None, None, false)]"#,
        );
    }

    #[test]
    fn what_is_no_request_is_told_so() {
        let cases: [(&[u8], Unread); 6] = [
            (b"\x0a", Unread::Malformed),
            (b"\x0a\x05ab", Unread::Malformed),
            (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", Unread::Malformed),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", Unread::Malformed),
            (b"\x0b\x0c", Unread::Malformed),
            (b"\x12\x02\x12\x00", Unread::NoUnit),
        ];
        for (message, why) in cases {
            assert_eq!(Question::read(message).err(), Some(why), "{message:?}");
        }
        let descriptors = b"\x12\x00".repeat(DESCRIPTORS_MAX + 1);
        let why = Unread::TooMany(CallError::TooManyDescriptors);
        assert_eq!(Question::read(&descriptors).err(), Some(why));
        let entries = b"\x0a\x00".repeat(ENTRIES_MAX + 1);
        let mut descriptor = Vec::new();
        Writer(&mut descriptor).bytes(2, &entries);
        let why = Unread::TooMany(CallError::TooManyEntries);
        assert_eq!(Question::read(&descriptor).err(), Some(why));
    }

    #[test]
    fn a_request_cut_short_or_changed_never_panics() {
        let whole = request(&json!({
            "domain": "shop",
            "descriptors": [{
                "entries": [{"key": "a", "value": "b"}],
                "limit": {"requestsPerUnit": 300, "unit": "YEAR"},
                "hitsAddend": "5",
            }],
        }));
        for at in 0..whole.len() {
            let _ = Question::read(&whole[..at]);
            for bits in 1..=u8::MAX {
                let mut changed = whole.clone();
                changed[at] ^= bits;
                let _ = Question::read(&changed);
            }
        }
    }

    /// An answer with everything in it.
    pub(crate) fn full_response() -> Response {
        let limit = CurrentLimit {
            name: Some("calm".repeat(100).into()),
            requests_per_unit: 300,
            unit: Unit::Week,
            unit_multiplier: Some(2),
        };
        let bare = CurrentLimit {
            name: None,
            requests_per_unit: 0,
            unit: Unit::Second,
            unit_multiplier: None,
        };
        Response {
            is_over: true,
            statuses: smallvec![
                Status {
                    is_over: true,
                    current_limit: Some(limit),
                    limit_remaining: 0,
                    seconds_until_reset: Some(604_800),
                },
                Status {
                    is_over: false,
                    current_limit: Some(bare),
                    limit_remaining: u32::MAX,
                    seconds_until_reset: Some(0),
                },
                Status::default(),
            ],
            headers: vec![(Arc::from("RateLimit-Reset"), "7".to_owned())],
            metadata: Some(vec![
                ("domain", Value::Text("shop".to_owned())),
                ("hits", Value::Number(1.5)),
                ("none", Value::Number(0.0)),
                ("no", Value::Bool(false)),
                ("list", Value::List(vec![Value::Bool(true), Value::Text(String::new())])),
                ("map", Value::Map(vec![("empty", Value::List(Vec::new()))])),
            ]),
        }
    }

    /// The JSON of an answer, by way of its bytes.
    pub(crate) fn json_of(response: &Response) -> serde_json::Value {
        let mut bytes = Vec::new();
        write(response, &mut bytes);
        let message = DynamicMessage::decode(kind("RateLimitResponse"), &bytes[..]);
        let message = message.expect("a response");
        assert_eq!(message.unknown_fields().count(), 0);
        serde_json::to_value(message).expect("JSON")
    }

    #[test]
    fn an_answer_is_written_as_the_proto_files_say() {
        let expected = json!({
            "overallCode": "OVER_LIMIT",
            "statuses": [
                {
                    "code": "OVER_LIMIT",
                    "currentLimit": {
                        "requestsPerUnit": 300,
                        "unit": "WEEK",
                        "name": "calm".repeat(100),
                        "unitMultiplier": 2,
                    },
                    "durationUntilReset": "604800s",
                },
                {
                    "code": "OK",
                    "currentLimit": {"unit": "SECOND"},
                    "limitRemaining": u32::MAX,
                    "durationUntilReset": "0s",
                },
                {"code": "OK"},
            ],
            "responseHeadersToAdd": [{"key": "RateLimit-Reset", "value": "7"}],
            "dynamicMetadata": {
                "domain": "shop",
                "hits": 1.5,
                "none": 0.0,
                "no": false,
                "list": [true, ""],
                "map": {"empty": []},
            },
        });
        assert_eq!(json_of(&full_response()), expected);
        assert_eq!(json_of(&Response::default()), json!({"overallCode": "OK"}));
    }

    #[test]
    fn every_unit_has_the_number_of_its_name() {
        for (name, unit) in UNITS {
            let limit =
                CurrentLimit { name: None, requests_per_unit: 1, unit, unit_multiplier: None };
            let status = Status { current_limit: Some(limit), ..Status::default() };
            let response = Response { statuses: smallvec![status], ..Response::default() };
            assert_eq!(json_of(&response)["statuses"][0]["currentLimit"]["unit"], name);
            assert_eq!(unit_numbered(number_of(unit)), Some(unit));
        }
        assert_eq!(unit_numbered(0), None);
        assert_eq!(unit_numbered(8), None);
    }
}
