//! The first bytes of HTTP/2.
//!
//! They are read here, since nobody below would ever give up on a client that does not send them.

use std::io;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::prefixed::Prefixed;

pub(super) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The stream once its preface was seen, which whoever is next reads once more.
pub(super) async fn read<S: AsyncRead + Unpin>(mut stream: S) -> io::Result<Prefixed<S>> {
    let mut seen = [0; PREFACE.len()];
    let mut length = 0;
    while length < seen.len() {
        let read = stream.read(&mut seen[length..]).await?;
        length += read;
        if read == 0 || !PREFACE.starts_with(&seen[..length]) {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(Prefixed::new(Bytes::from_static(PREFACE), stream))
}
