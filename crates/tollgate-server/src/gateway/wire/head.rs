//! The head of a request as bytes, and bytes as the head of a response.

use std::mem::MaybeUninit;

use bytes::{Bytes, BytesMut};
use http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING,
};
use http::{Method, Request, Response, StatusCode, Version};
use httparse::{Header, ParserConfig, Status};
use hyper::ext::ReasonPhrase;

use super::Malformed;
use super::framing::Framing;
use crate::bounds::HEAD_BYTES_MAX;
use crate::gateway::bounds::{RESPONSE_FIELDS_FEW, RESPONSE_FIELDS_MAX};
use crate::gateway::doubt;

/// The head of a response, and what it says of what follows.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) response: Response<()>,
    pub(super) framing: Framing,
    /// Whether the connection may be used once more.
    pub(super) is_kept: bool,
}

impl Head {
    /// Whether another head follows, which is the answer.
    pub(super) fn is_interim(&self) -> bool {
        let status = self.response.status();
        status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS
    }
}

/// Writes the head of a request that has no body, and whose fields say so already.
pub(super) fn write<B>(request: &Request<B>, out: &mut BytesMut) {
    out.extend_from_slice(request.method().as_str().as_bytes());
    out.extend_from_slice(b" ");
    // Not all of it at once: where a path is empty it is written as one that is not.
    out.extend_from_slice(request.uri().path().as_bytes());
    if let Some(query) = request.uri().query() {
        out.extend_from_slice(b"?");
        out.extend_from_slice(query.as_bytes());
    }
    out.extend_from_slice(b" HTTP/1.1\r\n");
    for (name, value) in request.headers() {
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// Takes the head of the response to a request of this method out of what was read; nothing if not all of
/// it is there.
pub(super) fn read(read: &mut BytesMut, method: &Method) -> Result<Option<Head>, Malformed> {
    let end = match blank_line(read) {
        Some(end) if end <= HEAD_BYTES_MAX => end,
        None if read.len() < HEAD_BYTES_MAX => return Ok(None),
        _ => return Err(Malformed("its head is too long")),
    };
    let bytes = read.split_to(end).freeze();
    let mut room = [const { MaybeUninit::<Header<'_>>::uninit() }; RESPONSE_FIELDS_MAX];
    let mut parsed = httparse::Response::new(&mut []);
    let ended =
        ParserConfig::default().parse_response_with_uninit_headers(&mut parsed, &bytes, &mut room);
    if ended != Ok(Status::Complete(end)) {
        return Err(Malformed("it has no head"));
    }
    let mut response = Response::new(());
    let status = parsed.code.and_then(|code| StatusCode::from_u16(code).ok());
    *response.status_mut() = status.ok_or(Malformed("it has no status"))?;
    let is_latest = parsed.version == Some(1);
    *response.version_mut() = if is_latest { Version::HTTP_11 } else { Version::HTTP_10 };
    // The usual words go without saying.
    if let Some(reason) = parsed.reason
        && response.status().canonical_reason() != Some(reason)
        && let Ok(reason) = ReasonPhrase::try_from(reason.as_bytes())
    {
        response.extensions_mut().insert(reason);
    }
    let mut said = Said::new(parsed.headers.len());
    for field in parsed.headers.iter() {
        said.add(field, &bytes)?;
    }
    let framing = said.framing(&response, method)?;
    let is_kept = framing != Framing::UntilEnd && is_kept(&said, &response);
    *response.headers_mut() = said.headers;
    Ok(Some(Head { response, framing, is_kept }))
}

/// What a head says, and of that what is about its end and its connection.
struct Said {
    headers: HeaderMap,
    length: Option<u64>,
    is_coded: bool,
    is_close: bool,
    is_keep_alive: bool,
}

impl Said {
    fn new(fields: usize) -> Self {
        Self {
            headers: HeaderMap::with_capacity(fields.max(RESPONSE_FIELDS_FEW)),
            length: None,
            is_coded: false,
            is_close: false,
            is_keep_alive: false,
        }
    }

    /// A field; `bytes` are those that it lies in.
    fn add(&mut self, field: &Header<'_>, bytes: &Bytes) -> Result<(), Malformed> {
        const BAD: Malformed = Malformed("a field of it is none");
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| BAD)?;
        if name == CONNECTION {
            self.is_close |= tokens(field.value).any(|it| it.eq_ignore_ascii_case(b"close"));
            let is_one = |it: &[u8]| it.eq_ignore_ascii_case(b"keep-alive");
            self.is_keep_alive |= tokens(field.value).any(is_one);
            // Mostly it says nothing else, and nothing to anybody else.
            if is_one(field.value) {
                return Ok(());
            }
        } else if name == CONTENT_LENGTH {
            let known = self.length;
            let length = length(field.value)?;
            self.length = Some(length);
            return match known {
                None => {
                    self.headers.insert(CONTENT_LENGTH, length.into());
                    Ok(())
                }
                Some(known) if known == length => Ok(()),
                Some(_) => Err(Malformed("it has several lengths")),
            };
        } else if name == TRANSFER_ENCODING {
            self.is_coded = true;
        }
        let value = HeaderValue::from_maybe_shared(bytes.slice_ref(field.value));
        self.headers.append(name, value.map_err(|_| BAD)?);
        Ok(())
    }

    /// Where the body of this response to a request of this method ends (RFC 9112, section 6.3).
    fn framing(&self, response: &Response<()>, method: &Method) -> Result<Framing, Malformed> {
        let status = response.status();
        let has_none = status.is_informational()
            || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        if has_none || method == Method::HEAD {
            return Ok(Framing::Length(0));
        }
        if !self.is_coded {
            return Ok(self.length.map_or(Framing::UntilEnd, Framing::Length));
        }
        if response.version() == Version::HTTP_10 || doubt::is_unclear(&self.headers) {
            return Err(Malformed("its end can be understood in more than one way"));
        }
        Ok(Framing::CHUNKED)
    }
}

fn is_kept(said: &Said, response: &Response<()>) -> bool {
    let is_http = response.status() != StatusCode::SWITCHING_PROTOCOLS;
    let is_wanted = said.is_keep_alive || response.version() == Version::HTTP_11;
    is_http && is_wanted && !said.is_close
}

/// The one length that a line tells, be it several times.
fn length(line: &[u8]) -> Result<u64, Malformed> {
    const BAD: Malformed = Malformed("its length is no number");
    let mut lengths = line.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).map(|digits| {
        let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
        let text = str::from_utf8(digits).ok().filter(|_| is_number);
        text.and_then(|text| text.parse::<u64>().ok()).ok_or(BAD)
    });
    let first = lengths.next().unwrap_or(Err(BAD))?;
    for other in lengths {
        if other? != first {
            return Err(Malformed("it has several lengths"));
        }
    }
    Ok(first)
}

fn tokens(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

/// Where the first line ends that has nothing in it, and with it a head. Lines end in CRLF, but some
/// servers leave out the CR, and nobody reads that otherwise.
pub(super) fn blank_line(bytes: &[u8]) -> Option<usize> {
    let mut line = 0;
    for end in memchr::memchr_iter(b'\n', bytes) {
        if matches!(&bytes[line..end], b"" | b"\r") && line > 0 {
            return Some(end + 1);
        }
        line = end + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(method: &Method, text: &str) -> Result<Option<Head>, Malformed> {
        read(&mut BytesMut::from(text), method)
    }

    /// Where the response to a request of this method ends, and whether its connection is kept.
    fn end(method: &Method, text: &str) -> Result<(Framing, bool), &'static str> {
        let head = head(method, text).map_err(|malformed| malformed.0)?.expect("it is whole");
        Ok((head.framing, head.is_kept))
    }

    #[test]
    fn a_request_is_its_line_and_its_fields() {
        let line = |uri: &str| {
            let mut out = BytesMut::new();
            write(&Request::get(uri).body(()).expect("a request"), &mut out);
            String::from_utf8(out.to_vec()).expect("text")
        };
        assert_eq!(line("*"), "GET * HTTP/1.1\r\n\r\n");
        assert_eq!(line("http://a?b"), "GET /?b HTTP/1.1\r\n\r\n");
        assert_eq!(line("/?"), "GET /? HTTP/1.1\r\n\r\n");
        let mut request = Request::new(());
        *request.method_mut() = Method::OPTIONS;
        *request.uri_mut() = "/a%20b?c=d".parse().expect("a path");
        request.headers_mut().append("host", HeaderValue::from_static("a:80"));
        request.headers_mut().append("x-odd", HeaderValue::from_bytes(b"\xFF").expect("a value"));
        request.headers_mut().append("x-odd", HeaderValue::from_static(""));
        let mut out = BytesMut::new();
        write(&request, &mut out);
        let expected: &[u8] =
            b"OPTIONS /a%20b?c=d HTTP/1.1\r\nhost: a:80\r\nx-odd: \xFF\r\nx-odd: \r\n\r\n";
        assert_eq!(out, expected);
    }

    #[test]
    fn a_head_is_read_when_it_is_whole_and_what_is_behind_it_is_left() {
        let text = "HTTP/1.1 404 Nowhere\r\nA: b\r\nconnection: Keep-Alive\r\na:\tc \r\n\r\n";
        for length in 0..text.len() {
            let mut part = BytesMut::from(&text[..length]);
            assert!(read(&mut part, &Method::GET).expect("nothing is wrong").is_none());
            assert_eq!(part, text[..length]);
        }
        let mut all = BytesMut::from(&*format!("{text}more"));
        let head = read(&mut all, &Method::GET).expect("a head").expect("all of it");
        assert_eq!(all, "more");
        assert_eq!(head.response.status(), StatusCode::NOT_FOUND);
        assert_eq!(head.response.version(), Version::HTTP_11);
        let reason = head.response.extensions().get::<ReasonPhrase>().expect("a reason");
        assert_eq!(reason.as_bytes(), b"Nowhere");
        assert_eq!(format!("{:?}", head.response.headers()), r#"{"a": "b", "a": "c"}"#);
    }

    #[test]
    fn a_body_ends_by_the_first_rule_that_says_so() {
        const KEPT: bool = true;
        for (method, text, expected) in [
            (Method::HEAD, "1.1 200 OK\r\ncontent-length: 5", (Framing::Length(0), KEPT)),
            (Method::HEAD, "1.1 200 OK\r\ntransfer-encoding: chunked", (Framing::Length(0), KEPT)),
            (Method::GET, "1.1 204 No Content\r\ncontent-length: 5", (Framing::Length(0), KEPT)),
            (Method::GET, "1.1 304 Not Modified\r\ncontent-length: 5", (Framing::Length(0), KEPT)),
            (Method::GET, "1.1 103 Early Hints\r\ncontent-length: 5", (Framing::Length(0), KEPT)),
            (Method::GET, "1.1 101 Switching Protocols", (Framing::Length(0), false)),
            (Method::GET, "1.1 200 OK\r\ncontent-length: 5", (Framing::Length(5), KEPT)),
            (Method::GET, "1.1 200 OK\r\ncontent-length: 5, 05", (Framing::Length(5), KEPT)),
            (
                Method::GET,
                "1.1 200 OK\r\ncontent-length: 5\r\nContent-Length: 5",
                (Framing::Length(5), KEPT),
            ),
            (Method::GET, "1.1 200 OK\r\ntransfer-encoding: Chunked", (Framing::CHUNKED, KEPT)),
            (Method::GET, "1.1 200 OK", (Framing::UntilEnd, false)),
        ] {
            assert_eq!(end(&method, &format!("HTTP/{text}\r\n\r\n")), Ok(expected), "{text}");
        }
        let twice = "HTTP/1.1 200 OK\r\ncontent-length: 5,5\r\ncontent-length: 5\r\n\r\n";
        let head = head(&Method::GET, twice).expect("a head").expect("all of it");
        assert_eq!(format!("{:?}", head.response.headers()), r#"{"content-length": "5"}"#);
    }

    #[test]
    fn what_may_end_in_two_places_is_no_response() {
        const SEVERAL: &str = "it has several lengths";
        const NO_NUMBER: &str = "its length is no number";
        const UNCLEAR: &str = "its end can be understood in more than one way";
        for (fields, why) in [
            ("content-length: 5\r\ncontent-length: 6", SEVERAL),
            ("content-length: 5, 6", SEVERAL),
            ("content-length: ", NO_NUMBER),
            ("content-length: +5", NO_NUMBER),
            ("content-length: -5", NO_NUMBER),
            ("content-length: 5 5", NO_NUMBER),
            ("content-length: 0x5", NO_NUMBER),
            ("content-length: 5,", NO_NUMBER),
            ("content-length: 18446744073709551616", NO_NUMBER),
            ("content-length: 5\r\ntransfer-encoding: chunked", UNCLEAR),
            ("transfer-encoding: chunked\r\ncontent-length: 0", UNCLEAR),
            ("transfer-encoding: gzip, chunked", UNCLEAR),
            ("transfer-encoding: chunked\r\ntransfer-encoding: chunked", UNCLEAR),
            ("transfer-encoding: identity", UNCLEAR),
            ("transfer-encoding: ", UNCLEAR),
        ] {
            let text = format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n");
            assert_eq!(end(&Method::GET, &text), Err(why), "{fields}");
        }
        let old = "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        assert_eq!(end(&Method::GET, old), Err(UNCLEAR));
    }

    #[test]
    fn what_is_no_head_is_no_response() {
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(RESPONSE_FIELDS_MAX + 1));
        for text in [
            "what?\r\n\r\n",
            "HTTP/2 200 OK\r\n\r\n",
            "HTTP/1.1 20 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nno field\r\n\r\n",
            "HTTP/1.1 200 OK\r\na : b\r\n\r\n",
            "HTTP/1.1 200 OK\r\na: b\r\n c\r\n\r\n",
            "HTTP/1.1 200 OK\r\na: b\0\r\n\r\n",
            "HTTP/1.1 200 OK\r\na: b\rc\r\n\r\n",
            &many,
        ] {
            assert!(head(&Method::GET, text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_connection_is_kept_if_both_versions_and_nobody_objects() {
        for (text, is_kept) in [
            ("HTTP/1.1 200 OK", true),
            ("HTTP/1.1 200 OK\r\nconnection: close", false),
            ("HTTP/1.1 200 OK\r\nconnection: x, Close", false),
            ("HTTP/1.1 200 OK\r\nconnection: close\r\nconnection: keep-alive", false),
            ("HTTP/1.0 200 OK", false),
            ("HTTP/1.0 200 OK\r\nconnection: Keep-Alive", true),
            ("HTTP/1.0 200 OK\r\nconnection: keep-alive, close", false),
        ] {
            let text = format!("{text}\r\ncontent-length: 0\r\n\r\n");
            assert_eq!(end(&Method::GET, &text), Ok((Framing::Length(0), is_kept)), "{text}");
        }
    }
}
