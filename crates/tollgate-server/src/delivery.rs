//! Whether an answer reached whoever asked, where something depends on it.
//!
//! An answer that names a lease gives its caller a slot. If the caller has gone the slot must come back,
//! or nobody has it until the lease ends. That a caller has closed its side says nothing: it may still
//! read. Known are answers that could not be written, and those that a caller's system answered with a
//! reset, since there was nobody left to read them. That takes one way there and back, so a connection
//! that ends right after such an answer is looked at a little longer. What a system took and nobody
//! read cannot be known.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};
use tokio_rustls::server::TlsStream;

use crate::bounds::{DELIVERED_AFTER, DELIVERY_LOOKS, DELIVERY_PAUSE};
use crate::http1::Answer;
use crate::leases::Given;
use crate::moment::moment;

/// What is given with an answer, as an extension of it.
#[derive(Clone)]
struct With(Arc<Vec<Given>>);

/// Makes an answer one that gives leases, which come back if it reaches nobody.
pub(crate) fn giving(mut answer: Answer, given: Vec<Given>) -> Answer {
    if !given.is_empty() {
        answer.extensions_mut().insert(With(Arc::new(given)));
    }
    answer
}

/// Makes an answer give nothing, since whoever asked will not read of it.
pub(crate) fn withdraw(answer: &mut Answer) {
    answer.extensions_mut().remove::<With>();
}

/// What the answers of one connection gave that may not have reached anybody. It comes back when this
/// goes, unless it was written by then and the connection did not break.
#[derive(Default)]
pub(crate) struct Undelivered {
    /// Whether there is any, so that all other answers cost no lock.
    is_any: AtomicBool,
    /// Whether there was a moment since it was written in which the caller had said nothing more.
    has_paused: AtomicBool,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    given: Vec<Given>,
    written_at: Option<Instant>,
    /// Whether the connection broke too early. Nothing that is written from then on reaches anybody.
    is_lost: bool,
}

impl Undelivered {
    /// Takes over what an answer gives.
    pub(crate) fn take(&self, answer: &mut Answer) {
        let given = answer.extensions_mut().remove().and_then(|With(given)| Arc::into_inner(given));
        self.hold(given.unwrap_or_default());
    }

    /// Takes over what is given with the next answer. Whoever waits for the answers before and then asks again has
    /// read them; who asks for all in one breath may never do.
    pub(crate) fn hold(&self, given: Vec<Given>) {
        if self.is_any.load(Ordering::Relaxed) && self.has_paused.load(Ordering::Relaxed) {
            let mut held = self.held();
            if !held.is_lost && held.written_at.take().is_some() {
                held.deliver();
                self.is_any.store(false, Ordering::Relaxed);
            }
        }
        if !given.is_empty() {
            let mut held = self.held();
            held.given.extend(given);
            held.written_at = None;
            self.is_any.store(true, Ordering::Relaxed);
        }
    }

    /// Everything there was to write has been written.
    fn written(&self) {
        if self.is_any.load(Ordering::Relaxed) {
            self.held().written_at.get_or_insert_with(|| {
                self.has_paused.store(false, Ordering::Relaxed);
                moment()
            });
        }
    }

    /// Everything the caller has said was read.
    fn paused(&self) {
        self.has_paused.store(true, Ordering::Relaxed);
    }

    /// The connection is broken, and what was just written reached nobody.
    fn lost(&self) {
        let mut held = self.held();
        held.is_lost |= held.written_at.is_none_or(|at| at.elapsed() < DELIVERED_AFTER);
    }

    /// Whether something was just written that may reach nobody.
    fn is_doubtful(&self) -> bool {
        self.is_any.load(Ordering::Relaxed) && {
            let held = self.held();
            !held.given.is_empty()
                && held.written_at.is_some_and(|at| at.elapsed() < DELIVERED_AFTER)
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn deliver(&mut self) {
        self.given.drain(..).for_each(Given::deliver);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.written_at.is_some() && !self.is_lost {
            self.deliver();
        }
    }
}

/// A stream that can tell what became of it.
pub(crate) trait Fate {
    /// Whether it says something when it is closed. Whoever has read everything and gone would answer
    /// that with a reset as well.
    const HAS_LAST_WORD: bool;

    /// Whether the other side reset it; nothing as long as that may still happen.
    fn is_reset(&self) -> Option<bool>;

    /// What the system knows of the other side, whatever is still to be read.
    fn presence(&self) -> Presence;
}

/// Whether there is somebody on the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    There,
    /// It says nothing more. It may still read.
    Silent,
    Gone,
}

impl Fate for TcpStream {
    const HAS_LAST_WORD: bool = false;

    fn is_reset(&self) -> Option<bool> {
        // A connection that is over has no other side any more, and an error if it was reset.
        self.peer_addr().is_err().then(|| !matches!(self.take_error(), Ok(None)))
    }

    fn presence(&self) -> Presence {
        #[cfg(target_os = "linux")]
        const SILENT: PollFlags = PollFlags::RDHUP;
        #[cfg(not(target_os = "linux"))]
        const SILENT: PollFlags = PollFlags::empty();
        let mut looked = [PollFd::new(self, SILENT)];
        if poll(&mut looked, Some(&Timespec::default())).is_err() {
            return Presence::There;
        }
        match looked[0].revents() {
            seen if seen.intersects(PollFlags::HUP | PollFlags::ERR) => Presence::Gone,
            seen if seen.intersects(SILENT) => Presence::Silent,
            _ => Presence::There,
        }
    }
}

impl<S: Fate> Fate for TlsStream<S> {
    const HAS_LAST_WORD: bool = true;

    fn is_reset(&self) -> Option<bool> {
        self.get_ref().0.is_reset()
    }

    fn presence(&self) -> Presence {
        self.get_ref().0.presence()
    }
}

/// A stream that is watched for what becomes of what is written to it.
pub(crate) struct Attended<'u, S> {
    stream: S,
    undelivered: &'u Undelivered,
    /// How the other side ended, until that is told.
    end: Option<io::Result<()>>,
    is_shut: bool,
    looks: u32,
    pause: Option<Pin<Box<Sleep>>>,
}

impl<'u, S: Fate> Attended<'u, S> {
    pub(crate) fn new(stream: S, undelivered: &'u Undelivered) -> Self {
        let (end, is_shut, looks, pause) = (None, false, 0, None);
        Self { stream, undelivered, end, is_shut, looks, pause }
    }

    /// Passes on what came of an attempt to write.
    fn noted<T>(&self, attempt: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if matches!(attempt, Poll::Ready(Err(_))) {
            self.undelivered.lost();
        }
        attempt
    }

    /// Waits until it is known what became of the last answer, for a while.
    fn poll_fate(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while self.undelivered.is_doubtful() && self.looks < DELIVERY_LOOKS {
            if let Some(is_reset) = self.stream.is_reset() {
                if is_reset {
                    self.undelivered.lost();
                }
                break;
            }
            let pause = DELIVERY_PAUSE * (1 << self.looks);
            let pause = self.pause.get_or_insert_with(|| Box::pin(sleep(pause)));
            ready!(pause.as_mut().poll(context));
            self.pause = None;
            self.looks += 1;
        }
        Poll::Ready(())
    }
}

impl<S: AsyncRead + Fate + Unpin> AsyncRead for Attended<'_, S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.end.is_none() {
            let before = buffer.filled().len();
            let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(context, buffer) else {
                self.undelivered.paused();
                return Poll::Pending;
            };
            match &read {
                Ok(()) if buffer.filled().len() > before => return Poll::Ready(read),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    self.undelivered.lost();
                }
                // Over TLS some end without a goodbye, which is an error too.
                _ => {}
            }
            self.end = Some(read);
        }
        // There is no looking any more once we have said goodbye ourselves.
        if S::HAS_LAST_WORD {
            ready!(self.poll_fate(context));
        }
        Poll::Ready(self.end.take().unwrap_or(Ok(())))
    }
}

impl<S: AsyncWrite + Fate + Unpin> AsyncWrite for Attended<'_, S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let attempt = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.noted(attempt)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let attempt = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.noted(attempt)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let attempt = Pin::new(&mut self.stream).poll_flush(context);
        if matches!(attempt, Poll::Ready(Ok(()))) {
            self.undelivered.written();
        }
        self.noted(attempt)
    }

    /// Whoever waits for the end gets it at once, and is looked at afterwards; except where the end is
    /// said in words. There only whoever ends first is looked at.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_shut {
            ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
            self.is_shut = true;
        }
        if !S::HAS_LAST_WORD {
            ready!(self.poll_fate(context));
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
impl Fate for tokio::io::DuplexStream {
    const HAS_LAST_WORD: bool = false;

    fn is_reset(&self) -> Option<bool> {
        Some(false)
    }

    fn presence(&self) -> Presence {
        Presence::There
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::StatusCode;
    use tokio::time::advance;
    use tollgate::{Limiter, Request};

    use super::*;
    use crate::gate::Gate;
    use crate::http1;

    /// What happens on a connection after an answer that gives a lease was made.
    enum Event {
        Written,
        Passes(Duration),
        /// The answer to the next request is made, and gives nothing.
        Next,
        Paused,
        Lost,
    }

    fn plain() -> Answer {
        http1::json(StatusCode::OK, "{}")
    }

    /// An answer that gives a lease, and who knows of it.
    fn one() -> (Answer, Arc<Gate>) {
        let yaml = "limits: [{ name: jobs, concurrency: 1 }]";
        let gate = Arc::new(Gate::new(Limiter::from_yaml(yaml).expect("a policy")).0);
        let lease = gate.limiter.check(&Request::new(&[])).take_lease().expect("a slot is free");
        (giving(plain(), vec![Given::new(lease, &gate)]), gate)
    }

    /// Says whether the lease is still held when the connection has gone after `events`.
    async fn check(events: &[Event], is_held: bool) {
        let (mut answer, gate) = one();
        let undelivered = Undelivered::default();
        undelivered.take(&mut answer);
        assert_eq!(gate.leases.count(), 1);
        for event in events {
            match event {
                Event::Written => undelivered.written(),
                Event::Passes(time) => advance(*time).await,
                Event::Next => undelivered.take(&mut plain()),
                Event::Paused => undelivered.paused(),
                Event::Lost => undelivered.lost(),
            }
        }
        drop(undelivered);
        assert_eq!(gate.leases.count(), usize::from(is_held));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_written_or_lost_right_after_comes_back_and_nothing_else_does() {
        use Event::{Lost, Next, Passes, Paused, Written};
        check(&[], false).await;
        check(&[Lost], false).await;
        check(&[Next, Passes(DELIVERED_AFTER)], false).await;
        check(&[Written], true).await;
        check(&[Written, Lost], false).await;
        check(&[Passes(DELIVERED_AFTER), Written, Lost], false).await;
        check(&[Written, Passes(DELIVERED_AFTER), Lost], true).await;
        check(&[Written, Paused, Next, Lost], true).await;
        // What was asked before it was written does not tell that it was read.
        check(&[Written, Next, Lost], false).await;
        check(&[Paused, Written, Next, Lost], false).await;
        check(&[Lost, Written], false).await;
        check(&[Written, Lost, Written], false).await;
    }

    #[test]
    fn an_answer_that_is_dropped_gives_nothing() {
        let (answer, gate) = one();
        drop(answer);
        assert_eq!(gate.leases.count(), 0);
    }
}
