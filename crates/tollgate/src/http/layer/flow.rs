//! Streams that pass, one message after the other.
//!
//! A message is asked about where it is due, and nothing more passes until it is allowed. What has
//! not passed is not asked for either: whoever sends it has to wait, and nothing piles up here.

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use ::http::HeaderMap;
use bytes::{Buf, Bytes, BytesMut};
use http_body::{Body, Frame};
use tokio::time::{Sleep, sleep};

use super::Shared;
use super::body::{BoxError, Exhausted};
use super::messages::{Messages, Next};
use crate::http::{Attributes, number_before};
use crate::{Asked, End, Layer, Missing, OnDenied, Request, Verdict, Waiting};

/// What is known of a request, for as long as streams of it pass.
pub(super) struct Known {
    shared: Arc<Shared>,
    /// Of all streams it alone has this name, also where many nodes share a store.
    stream: String,
    names: String,
    values: Vec<u8>,
    /// Where each name and its value end.
    ends: Vec<(usize, usize)>,
    /// Why the client may send no more, once that is so.
    silenced: OnceLock<Reason>,
}

impl Known {
    pub(super) fn new(shared: &Arc<Shared>, attributes: &[(&str, &[u8])]) -> Self {
        let number = shared.streams.fetch_add(1, Ordering::Relaxed);
        let stream = format!("{:016x}-{number}", shared.ours());
        let (mut names, mut values, mut ends) = (String::new(), Vec::new(), Vec::new());
        for (name, value) in attributes {
            names.push_str(name);
            values.extend_from_slice(value);
            ends.push((names.len(), values.len()));
        }
        let (shared, silenced) = (Arc::clone(shared), OnceLock::new());
        Self { shared, stream, names, values, ends, silenced }
    }

    /// Why the request broke off, if the client sent more than it may. The service saw that, and what
    /// it makes of it would not tell the client.
    pub(super) fn silenced(&self) -> Option<Exhausted> {
        self.silenced.get().map(|limit| Exhausted { limit: limit.clone() })
    }

    /// Asks about a message of so many bytes.
    fn ask(&self, direction: Direction, length: u64) -> Asked<Verdict> {
        let mut digits = [0; 20];
        let start = number_before(&mut digits, length);
        // Of a name that is there twice the first counts.
        let mut attributes = Attributes::new();
        attributes.push(("stream", self.stream.as_bytes()));
        attributes.push(("direction", direction.name().as_bytes()));
        attributes.push(("bytes", &digits[start..]));
        let (mut name_start, mut value_start) = (0, 0);
        for &(name_end, value_end) in &self.ends {
            let name = &self.names[name_start..name_end];
            attributes.push((name, &self.values[value_start..value_end]));
            (name_start, value_start) = (name_end, value_end);
        }
        let (missing, end, layer) = (Missing::Shared, End::Told, Layer::Stream);
        let request = Request { missing, end, layer, ..Request::new(&attributes) };
        self.shared.limiter.ask(&request)
    }
}

/// Which way a stream goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Direction {
    /// From the client.
    Up,
    /// To the client.
    Down,
}

impl Direction {
    const fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

/// A stream of messages on its way through.
pub(super) struct Flow {
    known: Arc<Known>,
    direction: Direction,
    messages: Messages,
    /// What has come and not passed.
    rest: Bytes,
    state: State,
}

enum State {
    Open,
    /// A message of this length is asked about.
    Asking(u64, Waiting<Verdict>),
    /// It has to wait until it is asked about again.
    Delayed(u64, Pin<Box<Sleep>>),
    Closed(Reason),
}

/// The limit that closed a stream; none if it was the policy's `deny` list, or the like.
pub(super) type Reason = Option<Arc<str>>;

/// What comes next of a body.
pub(super) enum Passing<D> {
    Frame(Frame<D>),
    Broken(BoxError),
    End,
    Closed(Reason),
}

impl<D> Passing<D> {
    pub(super) fn of<E: Into<BoxError>>(next: Option<Result<Frame<D>, E>>) -> Self {
        match next {
            Some(Ok(frame)) => Self::Frame(frame),
            Some(Err(error)) => Self::Broken(error.into()),
            None => Self::End,
        }
    }
}

impl Flow {
    /// The stream that a body with this head is, if it is one.
    pub(super) fn of(known: &Arc<Known>, direction: Direction, head: &HeaderMap) -> Option<Self> {
        let (messages, known) = (Messages::of(head)?, Arc::clone(known));
        Some(Self { known, direction, messages, rest: Bytes::new(), state: State::Open })
    }

    /// What is known of its request.
    pub(super) fn known(&self) -> &Known {
        &self.known
    }

    /// Whether all that has come has passed.
    pub(super) fn is_clear(&self) -> bool {
        self.rest.is_empty()
    }

    /// What comes next of `body`.
    pub(super) fn poll_frame<B>(
        &mut self,
        mut body: Pin<&mut B>,
        context: &mut Context<'_>,
    ) -> Poll<Passing<B::Data>>
    where
        B: Body,
        B::Data: From<Bytes>,
        B::Error: Into<BoxError>,
    {
        loop {
            if let Err(reason) = ready!(self.poll_open(context)) {
                return Poll::Ready(Passing::Closed(reason));
            }
            let piece = self.next_piece();
            if !piece.is_empty() {
                return Poll::Ready(Passing::Frame(Frame::data(piece.into())));
            }
            if !matches!(self.state, State::Open) {
                continue;
            }
            let frame = match Passing::of(ready!(body.as_mut().poll_frame(context))) {
                Passing::Frame(frame) => frame,
                Passing::End if !self.is_clear() => return Poll::Ready(cut_off()),
                other => return Poll::Ready(other),
            };
            match frame.into_data() {
                Ok(mut data) => self.add(data.copy_to_bytes(data.remaining())),
                Err(_) if !self.is_clear() => return Poll::Ready(cut_off()),
                Err(trailers) => return Poll::Ready(Passing::Frame(trailers)),
            }
        }
    }

    /// Ready when no message is waited for; not if there must be no more.
    fn poll_open(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Reason>> {
        loop {
            match &mut self.state {
                State::Open => return Poll::Ready(Ok(())),
                State::Closed(reason) => return Poll::Ready(Err(reason.clone())),
                State::Asking(length, waiting) => {
                    let length = *length;
                    let verdict = ready!(Pin::new(waiting).poll(context));
                    self.judge(length, &verdict);
                }
                State::Delayed(length, timer) => {
                    ready!(timer.as_mut().poll(context));
                    let length = *length;
                    self.ask(length);
                }
            }
        }
    }

    /// As much of what has come as may pass now.
    fn next_piece(&mut self) -> Bytes {
        let mut passing = 0;
        while passing < self.rest.len() && matches!(self.state, State::Open) {
            match self.messages.next(&self.rest[passing..]) {
                Next::Passes(count) => passing += count,
                Next::Due(length) => self.ask(length),
                Next::Unknown => break,
            }
        }
        self.rest.split_to(passing)
    }

    fn add(&mut self, bytes: Bytes) {
        if self.is_clear() {
            self.rest = bytes;
            return;
        }
        // All that can be left is the beginning of a message's head.
        let mut both = BytesMut::with_capacity(self.rest.len() + bytes.len());
        both.extend_from_slice(&self.rest);
        both.extend_from_slice(&bytes);
        self.rest = both.freeze();
    }

    fn ask(&mut self, length: u64) {
        match self.known.ask(self.direction, length) {
            Asked::Ready(verdict) => self.judge(length, &verdict),
            Asked::Waiting(waiting) => self.state = State::Asking(length, waiting),
        }
    }

    fn judge(&mut self, length: u64, verdict: &Verdict) {
        if verdict.is_allowed() {
            self.messages.pay(length);
            self.state = State::Open;
            return;
        }
        let denials = || verdict.answers().filter(|it| it.is_enforced() && !it.is_allowed());
        let closing = denials().find(|answer| answer.rule().on_denied() == OnDenied::Close);
        self.state = match (closing, verdict.retry_after()) {
            (None, Some(wait)) => {
                let wait = Duration::from_micros(wait.as_micros());
                State::Delayed(length, Box::pin(sleep(wait)))
            }
            (closing, _) => {
                let answer = closing.or_else(|| denials().next());
                let reason = answer.map(|answer| Arc::clone(answer.rule().name()));
                if let Direction::Up = self.direction {
                    self.known.silenced.get_or_init(|| reason.clone());
                }
                State::Closed(reason)
            }
        };
    }
}

fn cut_off<D>() -> Passing<D> {
    Passing::Broken("the stream ends in the head of a message".into())
}
