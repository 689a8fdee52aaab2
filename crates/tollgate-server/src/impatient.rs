//! A stream whose other end must read what it is sent.
//!
//! Otherwise whoever asks and does not read holds a connection for ever, with the answers that it
//! did not read.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::delivery::{Fate, Presence};

/// Fails when nothing could be written for `patience`.
pub(crate) struct Impatient<S> {
    stream: S,
    patience: Duration,
    /// Runs while something waits to be written.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> Impatient<S> {
    pub(crate) fn new(stream: S, patience: Duration) -> Self {
        Self { stream, patience, waiting: None }
    }

    /// Passes on what came of an attempt to write, unless there has been no progress for too long.
    fn watched<T>(
        &mut self,
        attempt: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if attempt.is_ready() {
            self.waiting = None;
            return attempt;
        }
        let patience = self.patience;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: Fate> Fate for Impatient<S> {
    const HAS_LAST_WORD: bool = S::HAS_LAST_WORD;

    fn is_reset(&self) -> Option<bool> {
        self.stream.is_reset()
    }

    fn presence(&self) -> Presence {
        self.stream.presence()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let attempt = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watched(attempt, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let attempt = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.watched(attempt, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let attempt = Pin::new(&mut self.stream).poll_flush(context);
        self.watched(attempt, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let attempt = Pin::new(&mut self.stream).poll_shutdown(context);
        self.watched(attempt, context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::timeout;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_reads_is_given_up() {
        let (_client, ours) = duplex(16);
        let mut stream = Impatient::new(ours, PATIENCE);
        let written = timeout(PATIENCE * 2, stream.write_all(&[0; 64])).await.expect("in time");
        assert_eq!(written.map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
    }

    #[tokio::test(start_paused = true)]
    async fn who_reads_slowly_but_reads_is_waited_for() {
        let (mut client, ours) = duplex(16);
        let mut stream = Impatient::new(ours, PATIENCE);
        let reading = tokio::spawn(async move {
            let mut read = [0; 16];
            for _ in 0..4 {
                sleep(PATIENCE / 2).await;
                client.read_exact(&mut read).await.expect("bytes");
            }
        });
        stream.write_all(&[0; 64]).await.expect("it is read");
        reading.await.expect("no panic");
    }
}
