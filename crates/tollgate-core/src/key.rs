//! Names one state: which limit, and whose.
//!
//! Two different (limit, values) never share a key, whatever bytes the values hold: as text each
//! part is percent-encoded, so neither the colons between them nor the marks of missing and secret
//! values and of shards can come from inside one. The text is the key's whole identity: it can be
//! read back ([`KeyBuf`]).

mod read;

use std::fmt::Write;

pub use read::{KeyBuf, KeyError};

/// The name of a limit with the values it counts by.
///
/// ```
/// use tollgate_core::{Key, Value};
/// let key = Key { limit: "login", values: &[Value::new(b"203.0.113.7"), Value::new(b"a:b")] };
/// assert_eq!(key.text(|_secret| 0), "login:203.0.113.7:a%3Ab");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key<'a> {
    /// The limit's name.
    pub limit: &'a str,
    /// The values of its `per` attributes, in the order of the policy.
    pub values: &'a [Value<'a>],
}

/// The value of one attribute that a limit counts by.
///
/// Two values are the same if all of it is: what is missing differs from what is empty, and a
/// value taken from one of several attributes differs from the same bytes in another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Value<'a> {
    /// The bytes, or nothing when the request has none.
    pub bytes: Option<&'a [u8]>,
    /// Which of several alternative attributes it was taken from; zero if there is but one.
    pub source: u8,
    /// How it is shown and stored.
    pub shown: Shown,
}

/// How a value is shown and stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Shown {
    /// As it is.
    #[default]
    Plainly,
    /// As a keyed hash of its bytes.
    AsHash,
    /// As its bytes in hexadecimal: they are such a hash, of bytes that nobody knows any more.
    IsHash,
}

impl<'a> Value<'a> {
    /// A value that may be shown.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes: Some(bytes), source: 0, shown: Shown::Plainly }
    }

    /// A value that is shown only as a hash.
    pub const fn secret(bytes: &'a [u8]) -> Self {
        Self { shown: Shown::AsHash, ..Self::new(bytes) }
    }

    /// Whether it is, or was, something that must not be shown.
    pub const fn is_secret(&self) -> bool {
        !matches!(self.shown, Shown::Plainly)
    }

    /// What all requests without the attribute share.
    pub const MISSING: Self = Self { bytes: None, source: 0, shown: Shown::Plainly };

    /// The part of a limit, split into several, that a caller belongs to. It stands behind the values
    /// of the attributes.
    pub const fn shard(number: u8) -> Self {
        let bytes: &'static [u8] = &NUMBERS[number as usize];
        Self { bytes: Some(bytes), source: SHARD, shown: Shown::Plainly }
    }

    /// Which shard it names, if it names one.
    pub const fn shard_number(&self) -> Option<u8> {
        match self.bytes {
            Some(&[number]) if self.source == SHARD && !self.is_secret() => Some(number),
            _ => None,
        }
    }
}

/// The source of a shard's number. Attributes are counted from zero and never so many.
const SHARD: u8 = u8::MAX;

/// Every shard's number as a byte that can be borrowed.
static NUMBERS: [[u8; 1]; 256] = {
    let mut numbers = [[0]; 256];
    let mut number = 0;
    while number < numbers.len() {
        numbers[number] = [number as u8];
        number += 1;
    }
    numbers
};

impl Key<'_> {
    /// The key for people, logs and stores: `limit:value:value`. Of a secret value only what
    /// `hash` makes of it is shown; it should be keyed, so that values cannot be guessed.
    pub fn text(&self, hash: impl Fn(&[u8]) -> u128) -> String {
        let mut text = String::new();
        self.write_text(hash, &mut text);
        text
    }

    /// The same, written to the end of `text`.
    pub fn write_text(&self, hash: impl Fn(&[u8]) -> u128, text: &mut String) {
        encode(text, self.limit.as_bytes());
        for value in self.values {
            text.push(':');
            if let Some(number) = value.shard_number() {
                write_to(text, format_args!("%s{number}"));
                continue;
            }
            if value.source > 0 {
                write_to(text, format_args!("%n{}.", value.source));
            }
            match (value.bytes, value.shown) {
                (None, _) => text.push('%'),
                (Some(bytes), Shown::Plainly) => encode(text, bytes),
                (Some(bytes), Shown::AsHash) => {
                    write_to(text, format_args!("%h{:032x}", hash(bytes)));
                }
                (Some(bytes), Shown::IsHash) => {
                    text.push_str("%h");
                    bytes.iter().for_each(|byte| write_to(text, format_args!("{byte:02x}")));
                }
            }
        }
    }
}

fn encode(text: &mut String, bytes: &[u8]) {
    const DIGITS: [char; 16] =
        ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F'];
    let digit = |half: u8| DIGITS[usize::from(half)];
    let mut rest = bytes;
    // Most bytes are plain, and what is plain is copied at once.
    while let Some(at) = rest.iter().position(|byte| !PLAIN[usize::from(*byte)]) {
        text.push_str(str::from_utf8(&rest[..at]).expect("what is plain is ASCII"));
        let byte = rest[at];
        text.extend(['%', digit(byte >> 4), digit(byte & 15)]);
        rest = &rest[at + 1..];
    }
    text.push_str(str::from_utf8(rest).expect("what is plain is ASCII"));
}

/// The bytes that are written as they are.
const PLAIN: [bool; 256] = {
    let (mut plain, mut byte) = ([false; 256], 0);
    while byte < 256 {
        plain[byte] = matches!(byte as u8, b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'~' | b'-');
        byte += 1;
    }
    plain
};

fn write_to(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("a String takes everything");
}
