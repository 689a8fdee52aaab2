//! One call to Redis from the moment it is made until its answer is read.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::script::Script;
use super::words::Words;

/// What is to be done with a reply that nobody waits for any more.
pub(crate) type Late = Box<dyn FnOnce(Reply) + Send>;

/// What is asked of a server.
pub(crate) struct Call {
    /// The script to run; without one the words are a plain command.
    pub(crate) script: Option<&'static Script>,
    /// With a script: the number of keys, the keys, the arguments. Otherwise the whole command.
    pub(crate) words: Words,
    /// Where the keys are; see [`super::Fleet::slot`].
    pub(crate) slot: u16,
    /// Called with a reply that came after the deadline, on the I/O thread, or that came to somebody
    /// who no longer reads it, on the thread where the future is dropped.
    pub(crate) late: Option<Late>,
}

/// What a server answers. Statuses and strings are one here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Nil,
    Integer(i64),
    Bytes(Vec<u8>),
    List(Vec<Reply>),
}

/// Why there is no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Surely not run: the server is unreachable or unwell, or too much is waiting for it.
    NotSent,
    /// No reply within the deadline; it may have run, or may run yet.
    Timeout,
    /// The connection broke after it was sent; it may have run.
    Lost,
    /// Not run: its keys are being moved, and are not all in one place.
    TryAgain,
    /// The server answered with this error.
    Refused(String),
}

impl Failure {
    /// What it is told as: an error of Redis by its first word.
    pub(super) fn kind(&self) -> &str {
        match self {
            Self::NotSent => "not sent",
            Self::Timeout => "timeout",
            Self::Lost => "lost",
            Self::TryAgain => "TRYAGAIN",
            Self::Refused(error) => error.split(' ').next().unwrap_or_default(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSent => f.write_str("not sent: Redis is unreachable, unwell or overloaded"),
            Self::Timeout => f.write_str("no reply from Redis within the deadline"),
            Self::Lost => f.write_str("the connection to Redis broke before the reply"),
            Self::TryAgain => f.write_str("keys are being moved to another server"),
            Self::Refused(error) => write!(f, "Redis refused: {error}"),
        }
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { script, words, slot, late } = self;
        f.debug_struct("Call")
            .field("script", &script.map(|script| &script.sha))
            .field("words", words)
            .field("slot", slot)
            .field("late", &late.is_some())
            .finish()
    }
}

/// The answer to a call, on its way. It needs no runtime to be awaited.
pub(crate) struct Pending(State);

enum State {
    NotSent,
    Waiting(oneshot::Receiver<Answer>),
    Read,
}

/// A result, with what to do if nobody reads it.
struct Answer {
    result: Result<Reply, Failure>,
    late: Option<Late>,
}

impl Answer {
    fn unread(self) {
        if let (Ok(reply), Some(late)) = (self.result, self.late) {
            late(reply);
        }
    }
}

impl Pending {
    pub(super) const NOT_SENT: Self = Self(State::NotSent);
}

impl Future for Pending {
    type Output = Result<Reply, Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = match &mut self.0 {
            State::NotSent => Err(Failure::NotSent),
            // Whoever held the other end went with its thread, and the call may have gone before it.
            State::Waiting(receiver) => ready!(Pin::new(receiver).poll(context))
                .map_or(Err(Failure::Lost), |answer| answer.result),
            State::Read => panic!("an answer is read once"),
        };
        self.0 = State::Read;
        Poll::Ready(result)
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").finish_non_exhaustive()
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let State::Waiting(receiver) = &mut self.0 {
            // From here on the other end sees that nobody reads; what it sent before is ours.
            receiver.close();
            if let Ok(answer) = receiver.try_recv() {
                answer.unread();
            }
        }
    }
}

/// A call with somebody waiting for it, on the I/O thread.
pub(super) struct Job {
    pub(super) script: Option<&'static Script>,
    pub(super) words: Words,
    pub(super) deadline: Instant,
    /// How often it was sent on.
    pub(super) hops: u8,
    /// The server does not know the script: its text is sent.
    pub(super) with_text: bool,
    /// The server must be told that another one sent us.
    pub(super) asking: bool,
    late: Option<Late>,
    /// Nobody, once the deadline has passed.
    caller: Option<oneshot::Sender<Answer>>,
}

impl Job {
    pub(super) fn new(call: Call, deadline: Instant) -> (Self, Pending) {
        let Call { script, words, slot: _, late } = call;
        let (caller, receiver) = oneshot::channel();
        let caller = Some(caller);
        let job = Self {
            script,
            words,
            deadline,
            hops: 0,
            with_text: false,
            asking: false,
            late,
            caller,
        };
        (job, Pending(State::Waiting(receiver)))
    }

    /// Whether somebody waits for the answer.
    pub(super) fn is_awaited(&self) -> bool {
        self.caller.as_ref().is_some_and(|caller| !caller.is_closed())
    }

    /// Whether the deadline was kept so far.
    pub(super) fn is_open(&self) -> bool {
        self.caller.is_some()
    }

    /// Tells the caller that the deadline has passed. A reply may still come.
    pub(super) fn time_out(&mut self) {
        if let Some(caller) = self.caller.take() {
            let answer = Answer { result: Err(Failure::Timeout), late: None };
            // Whoever dropped the future does not want to know.
            let _ = caller.send(answer);
        }
    }

    pub(super) fn settle(self, result: Result<Reply, Failure>) {
        let answer = Answer { result, late: self.late };
        let unread = match self.caller {
            Some(caller) => caller.send(answer).err(),
            None => Some(answer),
        };
        if let Some(answer) = unread {
            answer.unread();
        }
    }
}
