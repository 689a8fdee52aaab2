//! The part of a URL after its question mark.

use std::borrow::Cow;

use super::text::percent_decoded;

/// The pairs of a query, as forms write them: names and values with `+` for a space and what is
/// encoded decoded. A name without `=` has an empty value; a percent sign that encodes nothing stands
/// for itself.
///
/// ```
/// use tollgate::http::query::pairs;
/// let pairs: Vec<_> = pairs("user=42&q=a+%26b").collect();
/// assert_eq!(pairs[0], (b"user".into(), b"42".into()));
/// assert_eq!(pairs[1], (b"q".into(), b"a &b".into()));
/// ```
pub fn pairs(query: &str) -> impl Iterator<Item = (Cow<'_, [u8]>, Cow<'_, [u8]>)> {
    query.as_bytes().split(|byte| *byte == b'&').filter(|pair| !pair.is_empty()).map(|pair| {
        let equals = pair.iter().position(|byte| *byte == b'=');
        let (name, value) = equals.map_or((pair, &[][..]), |at| (&pair[..at], &pair[at + 1..]));
        (decoded(name), decoded(value))
    })
}

fn decoded(bytes: &[u8]) -> Cow<'_, [u8]> {
    if !bytes.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return Cow::Borrowed(bytes);
    }
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => match percent_decoded(after) {
                Some(byte) => {
                    rest = &after[2..];
                    byte
                }
                None => byte,
            },
            byte => byte,
        });
    }
    Cow::Owned(decoded)
}
