//! HTTP/2 by hand, for what no client would send.

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a small frame").to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// What a client says first.
pub(crate) fn opening() -> Vec<u8> {
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(SETTINGS, 0, 0, &[])].concat()
}

/// A header field, neither compressed nor remembered.
pub(crate) fn field(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| {
        let length = u8::try_from(text.len()).expect("a short text");
        assert!(length < 127);
        [vec![length], text.as_bytes().to_vec()].concat()
    };
    [vec![0], text(name), text(value)].concat()
}

/// The header fields of a call.
pub(crate) fn fields() -> Vec<u8> {
    [
        field(":method", "POST"),
        field(":scheme", "http"),
        field(":path", super::SHOULD_RATE_LIMIT),
        field(":authority", "tollgate"),
        field("content-type", "application/grpc"),
        field("te", "trailers"),
    ]
    .concat()
}

pub(crate) fn headers(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &fields())
}

pub(crate) fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())
}

/// A whole call, from the first byte of the connection.
pub(crate) fn call(stream: u32, message: &[u8]) -> Vec<u8> {
    [opening(), headers(stream), frame(DATA, END_STREAM, stream, message)].concat()
}
