//! Messages that whoever is next might understand differently.
//!
//! Most such requests are refused as they are read, or by the layer. Some kinds are left. A body counts as
//! chunked if the last of its codings says so; we undo no other coding, so whoever gets the body would
//! take it for something else. What stands in `Host` may be no host, which cannot be said in every
//! version of HTTP. What is asked for may be no path, which some take for one. And in HTTP/2 a value may stand
//! between spaces, which HTTP/1.1 takes off: it would be judged as another. Of responses it is those that end in
//! two places.

use http::header::{CONTENT_LENGTH, HOST, HeaderMap, TRANSFER_ENCODING};
use http::uri::{Authority, PathAndQuery};
use http::{HeaderValue, Method, Request, Version};

/// What makes a request one that others might understand differently.
pub(super) fn doubtful<B>(request: &Request<B>) -> Option<&'static str> {
    let headers = request.headers();
    let host = headers.get(HOST).map(HeaderValue::as_bytes);
    let authority = request.uri().authority().map(Authority::as_str).map(str::as_bytes);
    if !host.is_none_or(is_host) || !authority.is_none_or(is_host) {
        return Some("the host is not a name or an address, with or without a port");
    }
    if !asks_for_path(request) {
        return Some("what is asked for is no path");
    }
    if request.version() == Version::HTTP_2 && headers.values().any(is_padded) {
        return Some("a value begins or ends with a space");
    }
    is_coded(headers).then_some("the only transfer coding understood here is chunked")
}

/// Whether a request is for a path, or for what its method may be for instead (RFC 9112, section 3.2).
fn asks_for_path<B>(request: &Request<B>) -> bool {
    let uri = request.uri();
    let path = uri.path_and_query().map(PathAndQuery::as_str);
    match (request.method(), path) {
        (&Method::CONNECT, path) => path.is_none(),
        (&Method::OPTIONS, Some("*")) | (_, None) => true,
        // After a host the path may be left out, but not in HTTP/2, which says both apart.
        (_, Some(path)) if path.starts_with('?') => {
            uri.authority().is_some() && request.version() != Version::HTTP_2
        }
        (_, Some(path)) => path.starts_with('/'),
    }
}

fn is_padded(value: &HeaderValue) -> bool {
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    is_space(value.as_bytes().first()) || is_space(value.as_bytes().last())
}

/// Whether it cannot be told where a message ends that has a coding: it is one that we do not understand, or
/// there is a length beside it, and who goes by that sees another end (RFC 9112, section 6.3).
pub(super) fn is_unclear(headers: &HeaderMap) -> bool {
    is_coded(headers)
        || headers.contains_key(TRANSFER_ENCODING) && headers.contains_key(CONTENT_LENGTH)
}

/// Whether there is a coding other than that a body is chunked.
fn is_coded(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter().map(HeaderValue::as_bytes);
    match (codings.next(), codings.next()) {
        (None, _) => false,
        (Some(coding), None) => !coding.trim_ascii().eq_ignore_ascii_case(b"chunked"),
        (Some(_), Some(_)) => true,
    }
}

/// A name or an address, with a port or without (RFC 3986, section 3.2.2). Nobody's name before an `@`.
fn is_host(text: &[u8]) -> bool {
    let (name, rest) = match text.strip_prefix(b"[") {
        Some(text) => {
            let Some(end) = text.iter().position(|byte| *byte == b']') else { return false };
            (&text[..end], &text[end + 1..])
        }
        None => text.split_at(text.iter().position(|byte| *byte == b':').unwrap_or(text.len())),
    };
    let is_address = |byte: &u8| byte.is_ascii_hexdigit() || b":.".contains(byte);
    let is_plain = |byte: &u8| {
        byte.is_ascii_alphanumeric()
            || matches!(
                byte,
                b'-' | b'.' | b'_' | b'~' | b'%' | b'!' | b'$' | b'&'..=b',' | b';' | b'='
            )
    };
    let is_name = if text.starts_with(b"[") {
        name.iter().all(is_address)
    } else {
        name.iter().all(is_plain)
    };
    let is_port = rest.is_empty()
        || rest.strip_prefix(b":").is_some_and(|port| port.iter().all(u8::is_ascii_digit));
    !name.is_empty() && is_name && is_port
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_or_an_address_and_perhaps_a_port() {
        for host in
            ["a", "a.b-c_d", "A:80", "a:", "192.0.2.1:8000", "[::1]", "[2001:db8::1]:80", "a."]
        {
            assert!(is_host(host.as_bytes()), "{host}");
        }
        for host in [
            "", ":80", "a b", "a/b", "a:b", "a:8 0", "u@a", "a?b", "a#b", "a\\b", "[", "[::1",
            "[]", "[g]", "[::1]x", "\u{e4}",
        ] {
            assert!(!is_host(host.as_bytes()), "{host}");
        }
    }

    #[test]
    fn a_body_is_chunked_or_it_is_not() {
        let is_coded = |lines: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(TRANSFER_ENCODING, HeaderValue::from_static(line));
            }
            super::is_coded(&headers)
        };
        assert!(!is_coded(&[]));
        assert!(!is_coded(&["chunked"]));
        assert!(!is_coded(&["Chunked"]));
        for lines in [&["gzip, chunked"][..], &["chunked, chunked"], &["chunked", "chunked"], &[""]]
        {
            assert!(is_coded(lines), "{lines:?}");
        }
    }
}
