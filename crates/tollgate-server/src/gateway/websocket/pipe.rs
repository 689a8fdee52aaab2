//! One direction of a socket: bytes that were read, and of them those that may be sent.
//!
//! Every step can be given up at any `await` and taken again later, with nothing lost or sent twice.
//! Most sockets are quiet most of the time, and keep no room meanwhile.

use std::cell::RefCell;
use std::future::{pending, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::{Duration, Instant, sleep_until};

use super::bounds::RELAYED_BYTES;
use crate::moment::moment;

thread_local! {
    /// Where bytes are put first.
    static ROOM: RefCell<Box<[u8]>> = RefCell::new(vec![0; RELAYED_BYTES].into());
}

pub(crate) struct Pipe<'l, R, W> {
    pub(crate) from: R,
    pub(crate) to: W,
    /// `..sent` is gone, `sent..passed` may be sent, and `passed..` has to be looked at.
    buffer: Vec<u8>,
    sent: usize,
    passed: usize,
    life: &'l Life,
}

impl<'l, R, W> Pipe<'l, R, W>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    pub(crate) fn new(from: R, to: W, life: &'l Life) -> Self {
        Self { from, to, buffer: Vec::new(), sent: 0, passed: 0, life }
    }

    /// What has to be looked at.
    pub(crate) fn arrived(&self) -> &[u8] {
        &self.buffer[self.passed..]
    }

    /// Says that the first so many bytes of it may be sent.
    pub(crate) fn pass(&mut self, bytes: usize) {
        self.passed += bytes;
        debug_assert!(self.passed <= self.buffer.len(), "nobody passes what has not arrived");
    }

    /// Reads more; false at the end. While there is no room it reads nothing.
    pub(crate) async fn read(&mut self) -> io::Result<bool> {
        self.buffer.drain(..self.sent);
        self.passed -= self.sent;
        self.sent = 0;
        let room_left = RELAYED_BYTES - self.buffer.len();
        if room_left == 0 {
            pending::<()>().await;
        }
        let read = poll_fn(|context| {
            ROOM.with_borrow_mut(|room| {
                let mut room = ReadBuf::new(&mut room[..room_left]);
                let polled = Pin::new(&mut self.from).poll_read(context, &mut room);
                self.buffer.extend_from_slice(room.filled());
                if polled.is_pending() && self.buffer.is_empty() {
                    self.buffer = Vec::new();
                }
                polled.map_ok(|()| room.filled().len())
            })
        });
        let read = read.await?;
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
