//! WebSockets behind the gateway: limits on how many are open and on what clients send over them.
//!
//! The request that opens a socket is one like any other. What then passes is relayed as it is:
//! a [`Socket`] knows what the limits say of each message of the client, and [`relay`] asks it when a
//! frame begins and passes the frame on only then. What the server sends is not looked at but for
//! where frames end, so that a close frame of ours is never put inside of another.

mod bounds;
mod close;
mod frames;
mod pipe;
mod relay;
mod socket;

use http::HeaderMap;
use http::header::{SEC_WEBSOCKET_EXTENSIONS, UPGRADE};

pub(crate) use relay::relay;
pub(crate) use socket::Socket;

/// Whether a request, or the response that agrees to it, is to open a WebSocket.
pub(crate) fn is_websocket(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(UPGRADE).iter();
    let mut wanted = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    wanted.any(|word| {
        // A version may follow the name.
        let name = word.trim_ascii().split(|byte| *byte == b'/').next();
        name.is_some_and(|name| name.eq_ignore_ascii_case(b"websocket"))
    })
}

/// Takes what is not for the server out of a request that opens a WebSocket: no extension is offered,
/// and so none agreed on. Compressed messages would cost the server more than they count.
pub(crate) fn prepare(headers: &mut HeaderMap) {
    headers.remove(SEC_WEBSOCKET_EXTENSIONS);
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_websocket_is_asked_for_by_name() {
        let check = |lines: &[&'static str], expected: bool| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(UPGRADE, HeaderValue::from_static(line));
            }
            assert_eq!(is_websocket(&headers), expected, "{lines:?}");
        };
        check(&["websocket"], true);
        check(&["WebSocket"], true);
        check(&["h2c, websocket"], true);
        check(&["h2c", "websocket"], true);
        check(&["websocket/13"], true);
        check(&[], false);
        check(&["h2c"], false);
        check(&["websockets"], false);
    }

    #[test]
    fn no_extension_is_offered_to_the_server() {
        let mut headers = HeaderMap::new();
        headers.append(SEC_WEBSOCKET_EXTENSIONS, HeaderValue::from_static("permessage-deflate"));
        headers.append(SEC_WEBSOCKET_EXTENSIONS, HeaderValue::from_static("x-other"));
        headers.append(UPGRADE, HeaderValue::from_static("websocket"));
        prepare(&mut headers);
        assert_eq!(headers.len(), 1, "{headers:?}");
    }
}
