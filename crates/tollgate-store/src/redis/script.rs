//! A script and the name that Redis knows it by.

use super::client;

/// Made once and kept for good.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) text: &'static str,
    /// The SHA-1 of the text in hexadecimal digits.
    pub(crate) sha: String,
}

impl Script {
    pub(crate) fn new(text: &'static str) -> Self {
        Self { text, sha: client::sha1(text) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_named_as_redis_names_it() {
        assert_eq!(Script::new("return 1").sha, "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}
