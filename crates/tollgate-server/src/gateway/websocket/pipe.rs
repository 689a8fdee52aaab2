//! One direction of a socket: bytes that were read, and of them those that may be sent.
//!
//! Every step can be given up at any `await` and taken again later, with nothing lost or sent twice.

use std::future::pending;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Duration, Instant, sleep_until};

use super::bounds::RELAYED_BYTES;
use crate::moment::moment;

pub(crate) struct Pipe<'l, R, W> {
    pub(crate) from: R,
    pub(crate) to: W,
    /// `..sent` is gone, `sent..passed` may be sent, and `passed..read` has to be looked at.
    buffer: Box<[u8]>,
    sent: usize,
    passed: usize,
    read: usize,
    life: &'l Life,
}

impl<'l, R, W> Pipe<'l, R, W>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    pub(crate) fn new(from: R, to: W, life: &'l Life) -> Self {
        let buffer = vec![0; RELAYED_BYTES].into_boxed_slice();
        Self { from, to, buffer, sent: 0, passed: 0, read: 0, life }
    }

    /// What has to be looked at.
    pub(crate) fn arrived(&self) -> &[u8] {
        &self.buffer[self.passed..self.read]
    }

    /// Says that the first so many bytes of it may be sent.
    pub(crate) fn pass(&mut self, bytes: usize) {
        self.passed += bytes;
        debug_assert!(self.passed <= self.read, "nobody passes what has not arrived");
    }

    /// Reads more; false at the end. While there is no room it reads nothing.
    pub(crate) async fn read(&mut self) -> io::Result<bool> {
        if self.sent > 0 {
            self.buffer.copy_within(self.sent..self.read, 0);
            self.passed -= self.sent;
            self.read -= self.sent;
            self.sent = 0;
        }
        if self.read == self.buffer.len() {
            pending::<()>().await;
        }
        let read = self.from.read(&mut self.buffer[self.read..]).await?;
        self.read += read;
        self.life.note();
        Ok(read > 0)
    }

    /// Sends everything that may be sent.
    pub(crate) async fn send(&mut self) -> io::Result<()> {
        if self.sent == self.passed {
            return Ok(());
        }
        while self.sent < self.passed {
            let sent = self.to.write(&self.buffer[self.sent..self.passed]).await?;
            if sent == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.sent += sent;
            self.life.note();
        }
        self.to.flush().await
    }
}

/// When bytes last passed, in either direction.
pub(crate) struct Life {
    began: Instant,
    last_millis: AtomicU64,
}

impl Life {
    pub(crate) fn new() -> Self {
        Self { began: moment(), last_millis: AtomicU64::new(0) }
    }

    fn note(&self) {
        let millis = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_millis.store(millis, Ordering::Relaxed);
    }

    /// Returns when nothing has passed for so long.
    pub(crate) async fn is_idle(&self, idle: Option<Duration>) {
        let Some(idle) = idle else { return pending().await };
        loop {
            let last = Duration::from_millis(self.last_millis.load(Ordering::Relaxed));
            let end = self.began + last + idle;
            if moment() >= end {
                return;
            }
            sleep_until(end).await;
        }
    }
}
