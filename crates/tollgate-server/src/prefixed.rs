//! A stream whose first bytes were looked at, and are read once more by whoever is next.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::delivery::{Fate, Presence};

/// Bytes that were read ahead, and the stream they came from.
pub(crate) struct Prefixed<S> {
    /// In a box, since for nearly all of its time a stream has none.
    unread: Option<Box<Bytes>>,
    stream: S,
}

impl<S> Prefixed<S> {
    pub(crate) fn new(unread: Bytes, stream: S) -> Self {
        Self { unread: (!unread.is_empty()).then(|| Box::new(unread)), stream }
    }
}

impl<S: Fate> Fate for Prefixed<S> {
    const HAS_LAST_WORD: bool = S::HAS_LAST_WORD;

    fn is_reset(&self) -> Option<bool> {
        self.stream.is_reset()
    }

    fn presence(&self) -> Presence {
        self.stream.presence()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Prefixed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(unread) = &mut self.unread else {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        };
        let now = unread.len().min(buffer.remaining());
        buffer.put_slice(&unread[..now]);
        unread.advance(now);
        if unread.is_empty() {
            // Not even an end of it keeps what was read ahead in memory as long as the stream lasts.
            self.unread = None;
            // What comes behind is wanted too, if it is here: half a head would be looked at twice,
            // in a buffer twice as large. An end is met again when more is asked for, and after an error it is one.
            if buffer.remaining() > 0 {
                let _ = Pin::new(&mut self.stream).poll_read(context, buffer);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Prefixed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn what_was_read_ahead_comes_first_however_little_is_read_at_a_time() {
        for room in [1, 2, 3, 100] {
            let (mut far, near) = duplex(64);
            far.write_all(b"def").await.unwrap();
            far.shutdown().await.unwrap();
            let mut stream = Prefixed::new(Bytes::from_static(b"abc"), near);
            let (mut seen, mut piece) = (Vec::new(), vec![0; room]);
            while let read @ 1.. = stream.read(&mut piece).await.unwrap() {
                seen.extend_from_slice(&piece[..read]);
            }
            assert_eq!(seen, b"abcdef", "{room} bytes at a time");
        }
    }

    #[tokio::test]
    async fn what_is_written_does_not_wait_for_what_is_unread() {
        let (mut far, near) = duplex(64);
        let mut stream = Prefixed::new(Bytes::from_static(b"abc"), near);
        assert!(stream.is_write_vectored(), "several slices are one write");
        let slices = [io::IoSlice::new(b"to "), io::IoSlice::new(b"you")];
        assert_eq!(stream.write_vectored(&slices).await.unwrap(), 6);
        stream.shutdown().await.unwrap();
        let mut heard = String::new();
        far.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, "to you");
    }
}
