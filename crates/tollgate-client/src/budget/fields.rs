//! The fields that tell of a budget, found in one pass.
//!
//! There are dozens of names, and most responses have few of them or none: to look for each would cost more than all
//! else that is done for a request.

use std::borrow::Cow;

use http::{HeaderMap, HeaderValue};

use crate::bounds::{ALLOWANCES_MAX, FIELD_BYTES_MAX};

macro_rules! fields {
    ($($field:ident = $name:literal,)*) => {
        /// A field that tells something.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Field {
            $($field,)*
        }

        impl Field {
            const NAMES: &[&str] = &[$($name,)*];

            fn named(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$field),)*
                    _ => None,
                }
            }
        }
    };
}

fields! {
    Age = "age",
    Date = "date",
    RetryAfter = "retry-after",
    RetryAfterMs = "retry-after-ms",
    ShouldRetry = "x-should-retry",
    StripeShouldRetry = "stripe-should-retry",
    RateLimit = "ratelimit",
    RateLimitPolicy = "ratelimit-policy",
    RateLimitRemaining = "ratelimit-remaining",
    RateLimitLimit = "ratelimit-limit",
    RateLimitReset = "ratelimit-reset",
    XRemaining = "x-ratelimit-remaining",
    XLimit = "x-ratelimit-limit",
    XReset = "x-ratelimit-reset",
    XResetAfter = "x-ratelimit-reset-after",
    XUsed = "x-ratelimit-used",
    XResource = "x-ratelimit-resource",
    XBucket = "x-ratelimit-bucket",
    TwitterRemaining = "x-rate-limit-remaining",
    TwitterLimit = "x-rate-limit-limit",
    TwitterReset = "x-rate-limit-reset",
    XRequestsRemaining = "x-ratelimit-remaining-requests",
    XRequestsLimit = "x-ratelimit-limit-requests",
    XRequestsReset = "x-ratelimit-reset-requests",
    XTokensRemaining = "x-ratelimit-remaining-tokens",
    XTokensLimit = "x-ratelimit-limit-tokens",
    XTokensReset = "x-ratelimit-reset-tokens",
    AnthropicRequestsRemaining = "anthropic-ratelimit-requests-remaining",
    AnthropicRequestsLimit = "anthropic-ratelimit-requests-limit",
    AnthropicRequestsReset = "anthropic-ratelimit-requests-reset",
    AnthropicTokensRemaining = "anthropic-ratelimit-tokens-remaining",
    AnthropicTokensLimit = "anthropic-ratelimit-tokens-limit",
    AnthropicTokensReset = "anthropic-ratelimit-tokens-reset",
    AnthropicInputRemaining = "anthropic-ratelimit-input-tokens-remaining",
    AnthropicInputLimit = "anthropic-ratelimit-input-tokens-limit",
    AnthropicInputReset = "anthropic-ratelimit-input-tokens-reset",
    AnthropicOutputRemaining = "anthropic-ratelimit-output-tokens-remaining",
    AnthropicOutputLimit = "anthropic-ratelimit-output-tokens-limit",
    AnthropicOutputReset = "anthropic-ratelimit-output-tokens-reset",
    ShopifyCallLimit = "x-shopify-shop-api-call-limit",
}

/// Each has a bit of its own.
const _: () = assert!(Field::NAMES.len() <= u64::BITS as usize);

/// Those that a response has.
pub(super) struct Found<'a> {
    fields: &'a HeaderMap,
    /// The first line of each.
    first: [Option<&'a HeaderValue>; Field::NAMES.len()],
    /// Those that are there, a bit for each.
    seen: u64,
    /// Those of several lines.
    several: u64,
}

impl<'a> Found<'a> {
    pub(super) fn of(fields: &'a HeaderMap) -> Self {
        let mut found = Self { fields, first: [None; Field::NAMES.len()], seen: 0, several: 0 };
        for (name, value) in fields {
            let Some(field) = Field::named(name.as_str()) else { continue };
            if found.has(field) {
                found.several |= field.bit();
            } else {
                found.seen |= field.bit();
                found.first[field as usize] = Some(value);
            }
        }
        found
    }

    /// Whether there is anything but what only helps to read the others.
    pub(super) fn tells(&self) -> bool {
        self.seen & !(Field::Age.bit() | Field::Date.bit()) != 0
    }

    pub(super) fn has(&self, field: Field) -> bool {
        self.seen & field.bit() != 0
    }

    /// A field's lines as one value, if it is there and no longer than a budget is.
    #[inline]
    pub(super) fn value(&self, field: Field) -> Option<Cow<'a, [u8]>> {
        let first = self.first[field as usize]?.as_bytes();
        if self.is_of_several(field) {
            return self.joined(field).map(Cow::Owned);
        }
        (first.len() <= FIELD_BYTES_MAX).then_some(Cow::Borrowed(first))
    }

    /// The same as text. Go writes `µs`, so it may be more than ASCII.
    #[inline]
    pub(super) fn text(&self, field: Field) -> Option<Cow<'a, str>> {
        match self.value(field)? {
            Cow::Borrowed(value) => str::from_utf8(value).ok().map(Cow::Borrowed),
            Cow::Owned(value) => String::from_utf8(value).ok().map(Cow::Owned),
        }
    }

    /// What is read from its lines, each by itself: the most.
    pub(super) fn most<T: Ord>(&self, field: Field, read: impl Fn(&str) -> Option<T>) -> Option<T> {
        let read = |line: &HeaderValue| {
            let is_short = line.len() <= FIELD_BYTES_MAX;
            str::from_utf8(line.as_bytes()).ok().filter(|_| is_short).and_then(&read)
        };
        if self.is_of_several(field) {
            return self.lines(field).take(ALLOWANCES_MAX).filter_map(read).max();
        }
        self.first[field as usize].and_then(read)
    }

    fn is_of_several(&self, field: Field) -> bool {
        self.several & field.bit() != 0
    }

    #[cold]
    fn joined(&self, field: Field) -> Option<Vec<u8>> {
        let mut value = Vec::new();
        for line in self.lines(field) {
            let between: &[u8] = if value.is_empty() { b"" } else { b", " };
            value.extend_from_slice(between);
            value.extend_from_slice(line.as_bytes());
            if value.len() > FIELD_BYTES_MAX {
                return None;
            }
        }
        Some(value)
    }

    fn lines(&self, field: Field) -> impl Iterator<Item = &'a HeaderValue> + use<'a> {
        self.fields.get_all(Field::NAMES[field as usize]).iter()
    }
}

impl Field {
    fn bit(self) -> u64 {
        1 << self as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is sent under a name is found under it, and under no other.
    #[test]
    fn every_field_is_known_by_its_name() {
        for (at, name) in Field::NAMES.iter().enumerate() {
            assert_eq!(Field::named(name).map(|field| field as usize), Some(at), "{name}");
            assert_eq!(*name, name.to_ascii_lowercase(), "as a response's fields are called");
        }
        assert_eq!(Field::named("x-ratelimit"), None);
    }
}
