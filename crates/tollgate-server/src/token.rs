//! What a caller must show at a door that asks for it.
//!
//! How long a comparison takes tells nothing about the token: otherwise it could be guessed byte by
//! byte.

use std::fmt;
use std::hint::black_box;

/// A secret that callers of one door share.
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
