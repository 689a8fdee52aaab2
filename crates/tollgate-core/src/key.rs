//! Names one state: which limit, and whose.
//!
//! Two different (limit, values) never share a key, whatever bytes the values hold: as text each
//! part is percent-encoded, so the colons between them cannot come from inside one.

use std::fmt;

/// The name of a limit with the values it counts by.
///
/// ```
/// use tollgate_core::Key;
/// let key = Key { limit: "login", values: &[b"203.0.113.7", b"a:b"] };
/// assert_eq!(key.to_string(), "login:203.0.113.7:a%3Ab");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key<'a> {
    /// The limit's name.
    pub limit: &'a str,
    /// The values of its `per` attributes, in the order of the policy.
    pub values: &'a [&'a [u8]],
}

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        encode(f, self.limit.as_bytes())?;
        for value in self.values {
            f.write_str(":")?;
            encode(f, value)?;
        }
        Ok(())
    }
}

fn encode(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"._~-".contains(&byte) {
            write!(f, "{}", byte as char)?;
        } else {
            write!(f, "%{byte:02X}")?;
        }
    }
    Ok(())
}
