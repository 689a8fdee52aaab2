//! Names of attributes, as callers send them.

/// Whether two names are one attribute's. Names of header fields have no case.
pub(crate) fn are_one(name: &str, other: &str) -> bool {
    let are_headers = || name.starts_with("header:") && other.starts_with("header:");
    name == other || name.eq_ignore_ascii_case(other) && are_headers()
}

#[cfg(test)]
mod tests {
    use super::are_one;

    #[test]
    fn only_names_of_header_fields_have_no_case() {
        assert!(are_one("user", "user") && are_one("header:x-api-key", "header:X-API-Key"));
        assert!(!are_one("user", "User") && !are_one("header:a", "header:b"));
        assert!(!are_one("query:a", "query:A") && !are_one("header:a", "HEADER:a"));
    }
}
