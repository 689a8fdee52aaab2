//! The first bytes of HTTP/2.
//!
//! They are read here, since nobody below would ever give up on a client that does not send them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A stream whose preface was seen and is read once more by whoever is next.
pub(super) struct AfterPreface<S> {
    unread: &'static [u8],
    stream: S,
}

impl<S: AsyncRead + Unpin> AfterPreface<S> {
    pub(super) async fn read(mut stream: S) -> io::Result<Self> {
        let mut seen = [0; PREFACE.len()];
        let mut length = 0;
        while length < seen.len() {
            let read = stream.read(&mut seen[length..]).await?;
            length += read;
            if read == 0 || !PREFACE.starts_with(&seen[..length]) {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        Ok(Self { unread: PREFACE, stream })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AfterPreface<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.unread.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let (now, later) = self.unread.split_at(self.unread.len().min(buffer.remaining()));
        buffer.put_slice(now);
        self.unread = later;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AfterPreface<S> {
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
