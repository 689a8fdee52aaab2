//! Names one state: which limit, and whose.
//!
//! Two different (limit, values) never share a key, whatever bytes the values hold: as text each
//! part is percent-encoded, so neither the colons between them nor the marks of missing and secret
//! values can come from inside one.

use std::fmt::Write;

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
    /// Whether it is shown and stored only as a hash.
    pub secret: bool,
}

impl<'a> Value<'a> {
    /// A value that may be shown.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes: Some(bytes), source: 0, secret: false }
    }

    /// What all requests without the attribute share.
    pub const MISSING: Self = Self { bytes: None, source: 0, secret: false };
}

impl Key<'_> {
    /// The key for people, logs and stores: `limit:value:value`. Of a secret value only what
    /// `hash` makes of it is shown; it should be keyed, so that values cannot be guessed.
    pub fn text(&self, hash: impl Fn(&[u8]) -> u64) -> String {
        let mut text = String::new();
        self.write_text(hash, &mut text);
        text
    }

    /// The same, written to the end of `text`.
    pub fn write_text(&self, hash: impl Fn(&[u8]) -> u64, text: &mut String) {
        encode(text, self.limit.as_bytes());
        for value in self.values {
            text.push(':');
            if value.source > 0 {
                write_to(text, format_args!("%{}.", value.source));
            }
            match value.bytes {
                None => text.push('%'),
                Some(bytes) if value.secret => {
                    write_to(text, format_args!("%h{:016x}", hash(bytes)));
                }
                Some(bytes) => encode(text, bytes),
            }
        }
    }
}

fn encode(text: &mut String, bytes: &[u8]) {
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"._~-".contains(&byte) {
            text.push(byte as char);
        } else {
            write_to(text, format_args!("%{byte:02X}"));
        }
    }
}

fn write_to(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("a String takes everything");
}
