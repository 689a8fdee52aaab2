//! What a caller must show at a door that asks for it.
//!
//! How long a comparison takes tells nothing about the token: otherwise it could be guessed byte by
//! byte.

use std::fmt;
use std::hint::black_box;

use http::{HeaderMap, HeaderValue, header};

/// A secret that callers of one door share.
#[derive(PartialEq, Eq)]
pub(crate) struct Token(Box<[u8]>);

impl Token {
    /// Reads the text of a token's file; nothing if there is no token in it. White space around it
    /// is the editor's.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let token = text.trim();
        (!token.is_empty()).then(|| Self(token.as_bytes().into()))
    }

    /// Whether this is what a caller shows.
    pub(crate) fn matches(&self, shown: &[u8]) -> bool {
        // Every byte that is shown is looked at, whatever the ones before it were.
        let pairs = shown.iter().zip(self.0.iter().cycle());
        let differences = pairs.fold(0, |seen, (one, other)| black_box(seen | (one ^ other)));
        (differences == 0) & (shown.len() == self.0.len())
    }

    /// Whether a request shows it, as `Authorization: Bearer …`. Of several such fields nobody knows
    /// which one somebody on the way has looked at, so they show nothing.
    pub(crate) fn is_shown(&self, headers: &HeaderMap) -> bool {
        let mut fields = headers.get_all(header::AUTHORIZATION).iter();
        let (Some(field), None) = (fields.next(), fields.next()) else { return false };
        bearer(field).is_some_and(|shown| self.matches(shown))
    }
}

/// What a field shows, if its scheme, in letters of any case, is the right one.
fn bearer(field: &HeaderValue) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"Bearer ";
    let (scheme, shown) = field.as_bytes().trim_ascii().split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME).then(|| shown.trim_ascii())
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(file: &str, shown: &[u8], expected: bool) {
        let token = Token::read(file).expect("a token");
        assert_eq!(token.matches(shown), expected, "{shown:?}");
    }

    #[test]
    fn a_token_is_what_its_file_holds_without_the_space_around_it() {
        check("open-sesame", b"open-sesame", true);
        check("\n  open sesame\r\n", b"open sesame", true);
        check("open-sesame\n", b"open-sesame\n", false);
    }

    #[test]
    fn nothing_but_the_whole_token_opens() {
        for shown in [&b""[..], b"s", b"sesam", b"sesamE", b"sesamesesame", b"sesame\0", b"Sesame"]
        {
            check("sesame", shown, false);
        }
    }

    /// Whether a request with these fields shows the token `sesame`.
    fn check_fields(fields: &[&str], expected: bool) {
        let token = Token::read("sesame").expect("a token");
        let field = |text: &&str| HeaderValue::from_str(text).expect("a field");
        let headers: HeaderMap =
            fields.iter().map(|text| (header::AUTHORIZATION, field(text))).collect();
        assert_eq!(token.is_shown(&headers), expected, "{fields:?}");
    }

    #[test]
    fn a_request_shows_its_token_in_one_field_whose_scheme_has_no_case() {
        for field in ["Bearer sesame", "bearer sesame", "BEARER   sesame  ", "Bearer \tsesame"] {
            check_fields(&[field], true);
        }
        for field in ["", "sesame", "Bearer", "Bearer ", "Basic sesame", "Bearersesame", "Bearer x"]
        {
            check_fields(&[field], false);
        }
        check_fields(&[], false);
        check_fields(&["Bearer sesame", "Bearer sesame"], false);
        check_fields(&["Basic x", "Bearer sesame"], false);
    }

    #[test]
    fn an_empty_file_holds_no_token() {
        assert!(Token::read("").is_none());
        assert!(Token::read(" \n\t\n").is_none());
    }

    #[test]
    fn a_token_is_never_shown() {
        assert_eq!(format!("{:?}", Token::read("sesame")), "Some(Token(…))");
    }
}
