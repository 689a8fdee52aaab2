//! The Redis protocol: any Redis client in any language is an SDK.
//!
//! `session.rs` is the protocol; here is the connection around it. One read, one batch of decisions,
//! one write. While answers are on their way to one connection, others are served. A connection that waits holds no buffers, so that thousands of idle ones cost little.

mod check;
mod command;
mod parse;
mod reply;
mod session;
mod throttle;

pub(crate) use throttle::{KEY_SPACE, Throttles};

use std::future::{Future, Pending, pending, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Timeout, timeout};
use tollgate::{Limiter, Waiting};

use crate::bounds::REPLIES_MAX;
use crate::bounds::{COMMAND_MAX, COMMANDS_READ, FAREWELL_BYTES_MAX, FAREWELL_MAX};
use crate::connection::Visitor;
use crate::token::Token;
use reply::Output;
use session::{Desk, Flow, Session};

/// Serves one connection until either side has had enough.
pub(crate) async fn serve<S>(stream: S, visitor: Visitor)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let Visitor { gate, entrance, .. } = visitor;
    let mut drain = gate.stages.watch();
    let token = || entrance.token();
    // A connection that breaks is over; nobody is left to be told.
    let _ = converse(stream, &gate.limiter, &gate.throttles, token, drain.started()).await;
}

/// Numbers connections.
static CONNECTIONS: AtomicU64 = AtomicU64::new(1);

async fn converse<S>(
    stream: S,
    limiter: &Limiter,
    throttles: &Throttles,
    token: impl Fn() -> Option<Arc<Token>>,
    draining: impl Future<Output = ()>,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut line =
        Line { stream, input: BytesMut::new(), output: Output::default(), deadline: None };
    let id = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
    let mut session = Session::new(id);
    let mut draining = pin!(draining);
    loop {
        match line.receive(draining.as_mut()).await? {
            Received::Bytes => {}
            Received::End => return Ok(()),
            Received::Drain => return line.part().await,
        }
        loop {
            let token = token();
            let desk = Desk { limiter, throttles, token: token.as_ref() };
            let before = line.input.len();
            let flow = session.feed(&mut line.input, &mut line.output, &desk);
            if line.input.len() < before {
                line.deadline = None;
            }
            // A web request gets no answer, and no patience either.
            let is_stranger = flow == Flow::Close && line.output.is_empty();
            line.send().await?;
            match flow {
                Flow::More => break,
                Flow::Again => {}
                Flow::Close if is_stranger => return Ok(()),
                Flow::Close => return line.part().await,
            }
        }
    }
}

/// A connection with what has arrived and what is to be written.
struct Line<S> {
    stream: S,
    input: BytesMut,
    output: Output,
    /// Ends when a command that has begun to arrive is late.
    deadline: Option<Pin<Box<Timeout<Pending<()>>>>>,
}

/// What a connection waited for.
enum Received {
    Bytes,
    /// The client has left.
    End,
    /// We are about to, and everything that had arrived by now is answered.
    Drain,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Line<S> {
    async fn receive(
        &mut self,
        mut draining: Pin<&mut impl Future<Output = ()>>,
    ) -> io::Result<Received> {
        let Self { stream, input, output, deadline } = self;
        poll_fn(|context| {
            input.reserve(COMMANDS_READ);
            if let Poll::Ready(read) = pin!(stream.read_buf(input)).poll(context) {
                let received = |bytes| if bytes == 0 { Received::End } else { Received::Bytes };
                return Poll::Ready(read.map(received));
            }
            if input.is_empty() {
                // Idle connections are many, and each may be idle for hours.
                *input = BytesMut::new();
                output.free();
            } else {
                let late = || Box::pin(timeout(COMMAND_MAX, pending()));
                if deadline.get_or_insert_with(late).as_mut().poll(context).is_ready() {
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
            }
            draining.as_mut().poll(context).map(|()| Ok(Received::Drain))
        })
        .await
    }

    async fn send(&mut self) -> io::Result<()> {
        let Self { stream, output, .. } = self;
        if output.is_empty() {
            return Ok(());
        }
        if !output.is_whole() {
            // Boxed, so that a connection that waits for its client does not take the room for it.
            Box::pin(output.complete()).await;
        }
        let replies = output.bytes();
        timeout(REPLIES_MAX, async {
            stream.write_all(replies).await?;
            stream.flush().await
        })
        .await??;
        output.clear();
        Ok(())
    }

    /// Closes the connection so that the client gets every reply: closed with bytes unread, the
    /// system would take back what it has not delivered.
    async fn part(mut self) -> io::Result<()> {
        timeout(FAREWELL_MAX, async {
            self.stream.shutdown().await?;
            let mut rest = self.stream.take(FAREWELL_BYTES_MAX as u64);
            tokio::io::copy(&mut rest, &mut tokio::io::sink()).await.map(drop)
        })
        .await?
    }
}

/// The replies to a whole conversation, which do not depend on how its bytes are cut. For tests
/// and fuzzing.
#[doc(hidden)]
pub fn conversation(limiter: &Limiter, token: Option<&str>, pieces: &[&[u8]]) -> Vec<u8> {
    let (throttles, token) = (Throttles::default(), token.and_then(Token::read).map(Arc::new));
    let desk = Desk { limiter, throttles: &throttles, token: token.as_ref() };
    let mut session = Session::new(1);
    let (mut input, mut output, mut replies) = (BytesMut::new(), Output::default(), Vec::new());
    for piece in pieces {
        input.extend_from_slice(piece);
        loop {
            let flow = session.feed(&mut input, &mut output, &desk);
            output = Waiting::new(async move {
                output.complete().await;
                output
            })
            .wait();
            replies.extend_from_slice(output.bytes());
            output.clear();
            match flow {
                Flow::More => break,
                Flow::Again => {}
                Flow::Close => return replies,
            }
        }
    }
    replies
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use tokio::io::{DuplexStream, duplex};

    use super::reply::{Protocol, Replies};
    use super::*;

    /// Serves one end of a pipe until it is over; nobody asks to stop.
    async fn check_ends(ours: DuplexStream) -> io::Result<()> {
        let limiter = Limiter::from_yaml("limits: []").expect("a policy");
        converse(ours, &limiter, &Throttles::default(), || None, pending()).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_command_that_has_begun_must_arrive_in_time() {
        let (mut client, ours) = duplex(1 << 10);
        let serving = tokio::spawn(check_ends(ours));
        // An idle client has all the time there is.
        assert!(timeout(COMMAND_MAX * 100, client.read_u8()).await.is_err());
        let drip = async {
            for byte in b"PING\r\nECHO drip drip drip".iter().cycle() {
                let wait = timeout(COMMAND_MAX / 8, pending::<()>()).await;
                assert!(wait.is_err());
                if client.write_all(&[*byte]).await.is_err() {
                    return;
                }
            }
        };
        drip.await;
        let ended = serving.await.expect("no panic");
        assert_eq!(ended.map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
        let mut replies = Vec::new();
        client.read_to_end(&mut replies).await.expect("the end");
        assert_eq!(replies, b"+PONG\r\n");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_no_replies_is_cut_off() {
        let (mut client, ours) = duplex(1 << 10);
        let serving = tokio::spawn(check_ends(ours));
        let flood = b"COMMAND\r\n".repeat(1_000);
        assert!(client.write_all(&flood).await.is_err(), "nobody reads to the end of it");
        let ended = serving.await.expect("no panic");
        assert_eq!(ended.map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
    }

    #[tokio::test(start_paused = true)]
    async fn what_had_arrived_is_answered_before_we_leave() {
        let (mut client, ours) = duplex(1 << 10);
        client.write_all(b"PING\r\nPING\r\nPI").await.expect("room");
        let limiter = Limiter::from_yaml("limits: []").expect("a policy");
        let throttles = Throttles::default();
        let serving = converse(ours, &limiter, &throttles, || None, ready(()));
        // The client does not hang up, and is not waited for.
        let _ = timeout(FAREWELL_MAX * 2, serving).await.expect("the end");
        let mut replies = Vec::new();
        client.read_to_end(&mut replies).await.expect("the end");
        assert_eq!(replies, b"+PONG\r\n+PONG\r\n");
    }

    #[tokio::test]
    async fn an_idle_connection_holds_no_buffers() {
        let (mut client, ours) = duplex(1 << 10);
        let mut line = Line {
            stream: ours,
            input: BytesMut::with_capacity(COMMANDS_READ),
            output: Output::default(),
            deadline: None,
        };
        Replies::new(&mut line.output, Protocol::default()).simple("OK");
        line.output.clear();
        assert_ne!(line.output.room(), 0);
        // Draining is looked at only when there is nothing to read.
        let received = line.receive(pin!(ready(()))).await;
        assert!(matches!(received, Ok(Received::Drain)));
        assert_eq!((line.input.capacity(), line.output.room()), (0, 0));
        client.write_all(b"PI").await.expect("room");
        assert!(matches!(line.receive(pin!(ready(()))).await, Ok(Received::Bytes)));
        assert!(matches!(line.receive(pin!(ready(()))).await, Ok(Received::Drain)));
        assert_eq!(line.input, b"PI"[..], "what has begun to arrive is kept");
        let size = size_of_val(&check_ends(line.stream));
        assert!(size < 2 << 10, "a connection waits in {size} bytes");
    }
}
