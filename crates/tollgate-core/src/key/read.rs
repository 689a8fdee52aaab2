//! A key read back from its text.
//!
//! Exactly what is written is read: of two texts, one at most is a key's. Whoever writes a byte as
//! `%3a`, or escapes a letter that needs none, is told how it is written.

use std::{error, fmt};

use super::{Key, SHARD, Shown, Value};

/// A key that has its parts to itself.
///
/// ```
/// use tollgate_core::{Key, KeyBuf};
/// let key: KeyBuf = "login:203.0.113.7:a%3Ab".parse()?;
/// assert_eq!(key.limit(), "login");
/// assert_eq!(key.values()[1].bytes, Some(&b"a:b"[..]));
/// assert_eq!(key.to_string(), "login:203.0.113.7:a%3Ab");
/// # Ok::<(), tollgate_core::KeyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyBuf {
    limit: String,
    values: Vec<Part>,
}

/// A value that has its bytes to itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Part {
    bytes: Option<Vec<u8>>,
    source: u8,
    shown: Shown,
}

/// Bytes of the hash by which a secret value is shown.
const HASH_BYTES: usize = 16;

impl KeyBuf {
    /// The limit's name.
    pub fn limit(&self) -> &str {
        &self.limit
    }

    /// The values, for a [`Key`] to borrow. Secret ones are hashes.
    pub fn values<'k>(&'k self) -> Vec<Value<'k>> {
        let value = |Part { bytes, source, shown }: &'k Part| Value {
            bytes: bytes.as_deref(),
            source: *source,
            shown: *shown,
        };
        self.values.iter().map(value).collect()
    }
}

impl fmt::Display for KeyBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = Key { limit: &self.limit, values: &self.values() };
        f.write_str(&key.text(|_| unreachable!("secret values of a text are hashes already")))
    }
}

impl std::str::FromStr for KeyBuf {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let mut parts = text.split(':');
        let limit = decoded(parts.next().unwrap_or_default())?;
        let limit = String::from_utf8(limit).map_err(|_| KeyError::Name)?;
        let values = parts.map(Part::read).collect::<Result<_, _>>()?;
        let key = Self { limit, values };
        // Whatever was read generously is written in one way only.
        match key.to_string() {
            right if right == text => Ok(key),
            right => Err(KeyError::Spelling { right }),
        }
    }
}

impl Part {
    fn read(text: &str) -> Result<Self, KeyError> {
        let shown = Shown::Plainly;
        if let Some(number) = text.strip_prefix("%s") {
            let number = number.parse().map_err(|_| KeyError::mark(text))?;
            return Ok(Self { bytes: Some(vec![number]), source: SHARD, shown });
        }
        let (source, rest) = match text.strip_prefix("%n") {
            Some(rest) => {
                let numbered = rest.split_once('.');
                let numbered =
                    numbered.and_then(|(number, rest)| Some((number.parse().ok()?, rest)));
                numbered.ok_or_else(|| KeyError::mark(text))?
            }
            None => (0, text),
        };
        if rest == "%" {
            return Ok(Self { bytes: None, source, shown });
        }
        match rest.strip_prefix("%h") {
            Some(hash) => {
                let bytes = hashed(hash).ok_or_else(|| KeyError::mark(rest))?;
                Ok(Self { bytes: Some(bytes), source, shown: Shown::IsHash })
            }
            None => Ok(Self { bytes: Some(decoded(rest)?), source, shown }),
        }
    }
}

/// The bytes of a hash.
fn hashed(digits: &str) -> Option<Vec<u8>> {
    let digits = digits.as_bytes();
    let byte = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(pair[1])?);
    (digits.len() == 2 * HASH_BYTES).then(|| digits.chunks(2).map(byte).collect())?
}

/// What is behind the escapes.
fn decoded(text: &str) -> Result<Vec<u8>, KeyError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let pair = after
            .first_chunk::<2>()
            .and_then(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
        bytes.push(pair.ok_or_else(|| KeyError::mark(text))?);
        rest = &after[2..];
    }
    Ok(bytes)
}

fn digit(letter: u8) -> Option<u8> {
    char::from(letter).to_digit(16).map(|digit| digit as u8)
}

/// Why a text is no key's.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// A percent sign that begins nothing we know.
    Mark {
        /// Around it, escaped.
        part: String,
    },
    /// The limit's name is not UTF-8 text.
    Name,
    /// It is written in another way.
    Spelling {
        /// How.
        right: String,
    },
}

impl KeyError {
    fn mark(part: &str) -> Self {
        const SHOWN: usize = 48;
        let cut: String = part.chars().take(SHOWN).collect();
        let more = if cut.len() < part.len() { "…" } else { "" };
        Self::Mark { part: format!("{cut:?}{more}") }
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mark { part } => write!(
                f,
                "{part} is no part of a key; a percent sign begins a byte (%3A), a missing value (%), \
                 a hash (%h and {} digits), a source (%n1.) or a shard (%s0)",
                2 * HASH_BYTES
            ),
            Self::Name => f.write_str("the limit's name is not UTF-8 text"),
            Self::Spelling { right } => {
                write!(f, "keys are written in one way only; write {right}")
            }
        }
    }
}

impl error::Error for KeyError {}
