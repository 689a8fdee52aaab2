//! HTTP/1.1 to a server, as far as a request without a body needs it.
//!
//! Most requests are a head and nothing else. Such a one is written at once, and then its response is read by
//! whoever waits for it: there is no task of the connection, no channel to it, and no second copy of the
//! request in case it must be sent again. Requests with a body, where both directions move at a time, and
//! those that leave HTTP are hyper's; a connection on which nothing goes on can be handed over to it.
//!
//! ```text
//! Wire::ask            request → bytes → response, and where its body is
//!   head::write        request → bytes
//!   head::read         bytes   → status, fields, Framing, may the connection be kept
//! Reading::poll_frame  bytes   → frames, as Framing says
//! ```
//!
//! A connection is kept only if its response ended where it said it would, nothing came behind that, and
//! neither side wants it closed. Whatever can be understood in more than one way is no response: the
//! connection is closed, and no byte of it is taken for another response.

mod framing;
mod head;

use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response};
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::task::coop::unconstrained;

use super::body::Sending;
use super::bounds::{INTERIM_MAX, WIRE_READ, WIRE_READ_MAX, WIRE_ROOM};
use super::dial::Stream;
use super::pool::Upstream;
use framing::{Framing, Piece};
use head::Head;

/// A connection to a server on which nothing is going on.
pub(super) struct Wire(Stream);

/// The body of a response: all of it, or what is to be read.
pub(super) enum Answer {
    Whole(Bytes),
    Reading(Box<Reading>),
}

/// Why a request has no response.
#[derive(Debug)]
pub(super) enum Lost {
    /// Too little of it was sent to be a request.
    Unsent(io::Error),
    /// It was sent, and then the connection broke.
    Unanswered(io::Error),
    /// It was answered, but that is no response.
    Misanswered(Malformed),
}

/// What a server sent is no HTTP/1.1, or can be understood in more than one way.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed(&'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "what came is no response: {}", self.0)
    }
}

impl Error for Malformed {}

impl From<Malformed> for io::Error {
    fn from(malformed: Malformed) -> Self {
        Self::new(io::ErrorKind::InvalidData, malformed)
    }
}

impl From<Malformed> for Lost {
    fn from(malformed: Malformed) -> Self {
        Self::Misanswered(malformed)
    }
}

impl Wire {
    pub(super) fn new(stream: Stream) -> Self {
        Self(stream)
    }

    pub(super) fn into_stream(self) -> Stream {
        self.0
    }

    /// Whether nothing has come since the last response: neither the end, nor what nobody asked for. The
    /// system is asked only if something has.
    pub(super) fn is_quiet(&mut self, context: &mut Context<'_>) -> bool {
        let mut room = [0];
        let mut read = ReadBuf::new(&mut room);
        let look = poll_fn(|context| Pin::new(&mut self.0).poll_read(context, &mut read));
        // A task that has read much is told that there is nothing more, so that others have their turn.
        // Whoever looks through many connections would take the last of them for quiet.
        pin!(unconstrained(look)).poll(context).is_pending()
    }

    /// Sends a request, which has no body, and reads the head of its response. The connection goes back to
    /// `keeper` when the response has ended.
    pub(super) fn ask<'k>(
        mut self,
        request: &Request<Sending>,
        keeper: &'k Arc<Upstream>,
    ) -> impl Future<Output = Result<Response<Answer>, Lost>> + use<'k> {
        // What is sent and what comes take turns in it.
        let mut buffer = BytesMut::with_capacity(WIRE_ROOM);
        head::write(request, &mut buffer);
        let method = request.method().clone();
        async move {
            self.send(&buffer).await?;
            buffer.clear();
            let head = self.receive(&method, &mut buffer).await?;
            Ok(self.answer(head, buffer, keeper))
        }
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), Lost> {
        let first = self.0.write(bytes).await;
        let written = first.map_err(Lost::Unsent)?;
        let rest = async {
            self.0.write_all(&bytes[written..]).await?;
            self.0.flush().await
        };
        rest.await.map_err(Lost::Unanswered)
    }

    /// Reads until there is the head of a response that is not an interim one.
    async fn receive(&mut self, method: &Method, buffer: &mut BytesMut) -> Result<Head, Lost> {
        for _ in 0..=INTERIM_MAX {
            let head = loop {
                if let Some(head) = head::read(buffer, method)? {
                    break head;
                }
                let read = poll_fn(|context| self.poll_into(buffer, context)).await;
                if read.map_err(Lost::Unanswered)? == 0 {
                    return Err(Lost::Unanswered(io::ErrorKind::UnexpectedEof.into()));
                }
            };
            if !head.is_interim() {
                return Ok(head);
            }
        }
        Err(Malformed("it does not come to its end").into())
    }

    /// Reads what comes, and then makes as much room for it as it needs: most of it is little, and what is
    /// made of it lies in that room for as long as the response takes.
    fn poll_into(
        &mut self,
        buffer: &mut BytesMut,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut room = [const { MaybeUninit::uninit() }; WIRE_READ];
        let mut read = ReadBuf::uninit(&mut room);
        ready!(Pin::new(&mut self.0).poll_read(context, &mut read))?;
        buffer.extend_from_slice(read.filled());
        Poll::Ready(Ok(read.filled().len()))
    }

    /// The response that begins with this head, and so with what is in the buffer.
    fn answer(self, head: Head, mut buffer: BytesMut, keeper: &Arc<Upstream>) -> Response<Answer> {
        let Head { response, framing, is_kept } = head;
        let body = match framing {
            Framing::Length(length) if length <= buffer.len() as u64 => {
                let whole = buffer.split_to(length as usize).freeze();
                if is_kept && buffer.is_empty() {
                    keeper.keep(self);
                }
                Answer::Whole(whole)
            }
            framing => Answer::Reading(Box::new(Reading {
                wire: Some(self),
                buffer,
                framing,
                keeper: is_kept.then(|| Arc::clone(keeper)),
                room: WIRE_READ,
                error: None,
            })),
        };
        response.map(|()| body)
    }
}

/// A body that is being read.
pub(super) struct Reading {
    /// None when the body has ended, or was broken off.
    wire: Option<Wire>,
    /// What was read and not yet taken.
    buffer: BytesMut,
    framing: Framing,
    /// Who gets the connection afterwards, if anybody may.
    keeper: Option<Arc<Upstream>>,
    /// How much is read at a time: more where more comes, and less again where it does not.
    room: usize,
    /// Why there is no more of it, before that is told.
    error: Option<io::Error>,
}

impl Reading {
    fn end(&mut self) {
        if let (Some(wire), Some(keeper)) = (self.wire.take(), self.keeper.take())
            && self.buffer.is_empty()
        {
            keeper.keep(wire);
        }
    }

    /// Reads more; tells whether there was any.
    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let Some(Wire(stream)) = &mut self.wire else { return Poll::Ready(Ok(false)) };
        let room = self.framing.most().map_or(self.room, |most| most.min(self.room));
        self.buffer.reserve(room);
        let read = ready!(pin!(stream.read_buf(&mut self.buffer)).poll(context))?;
        if self.buffer.len() == self.buffer.capacity() {
            self.room = WIRE_READ_MAX.min(self.room * 2);
        } else if read < self.room / 4 {
            // Who does not take small pieces would keep a large room for each.
            self.room = WIRE_READ.max(self.room / 2);
        }
        Poll::Ready(Ok(read > 0))
    }

    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Piece>> {
        loop {
            match self.framing.next(&mut self.buffer)? {
                Piece::More if ready!(self.poll_more(context))? => {}
                // What has no length ends with its connection.
                Piece::More if matches!(self.framing, Framing::UntilEnd) => {
                    return Poll::Ready(Ok(Piece::End));
                }
                Piece::More => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                piece => return Poll::Ready(Ok(piece)),
            }
        }
    }
}

impl Body for Reading {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if let Some(error) = self.error.take() {
            return Poll::Ready(Some(Err(error)));
        }
        if self.wire.is_none() {
            return Poll::Ready(None);
        }
        let piece = ready!(self.poll_piece(context));
        Poll::Ready(match piece {
            Ok(Piece::Data(bytes)) => {
                if self.framing.is_over() {
                    self.end();
                }
                Some(Ok(Frame::data(bytes)))
            }
            Ok(Piece::Trailers(trailers)) => {
                self.end();
                Some(Ok(Frame::trailers(trailers)))
            }
            Ok(Piece::End | Piece::More) => {
                self.end();
                None
            }
            Err(error) => {
                // Whoever hears of it drops what it has not passed on. But what has come is the client's.
                (self.wire, self.error) = (None, Some(error));
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.wire.is_none() && self.error.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.framing, &self.wire) {
            (Framing::Length(length), _) => SizeHint::with_exact(*length),
            (_, None) => SizeHint::with_exact(0),
            _ => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};
    use tollgate::Policy;

    use super::super::dial::Purpose;
    use super::super::gathering::Gathering;
    use super::super::pool::Pool;
    use super::*;

    fn upstream() -> Arc<Upstream> {
        let no_files = |_: &str| Err("there are none".to_owned());
        let text = "upstream: http://a\nlimits: []";
        let policy = Policy::parse("policy.yaml", text, &mut { no_files }).expect("a policy");
        let route = policy.route("", "/").expect("a route");
        Pool::default().upstream(&route.targets()[0])
    }

    /// A connection, and the server's end of it.
    async fn connected() -> (Wire, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let stream = TcpStream::connect(address).await.expect("a connection");
        let (server, _) = listener.accept().await.expect("the same");
        (Wire::new(Stream::Plain(Gathering(stream))), server)
    }

    /// Waits until something has come.
    async fn heard(wire: &mut Wire) {
        let Stream::Plain(Gathering(stream)) = &mut wire.0 else { panic!("there is no TLS here") };
        stream.readable().await.expect("it is open");
    }

    #[tokio::test]
    async fn connections_that_are_of_no_use_are_seen_however_many_they_are() {
        // More than a task may read before others have their turn.
        const MANY: usize = 300;
        let upstream = upstream();
        let mut servers = Vec::new();
        for number in 0..MANY {
            let (mut wire, mut server) = connected().await;
            if number % 2 == 0 {
                server.write_all(b"HTTP/1.1 200 OK\r\n").await.expect("it is open");
                servers.push(server);
            } else {
                drop(server);
            }
            heard(&mut wire).await;
            upstream.keep(wire);
        }
        let used = tokio::spawn(async move { upstream.used(Purpose::Plain).await.is_some() });
        assert!(!used.await.expect("it does not panic"));
    }

    #[tokio::test]
    async fn small_pieces_share_their_room_also_after_large_ones() {
        const SMALL: usize = 100;
        let (wire, mut server) = connected().await;
        let head = head::read(&mut BytesMut::from("HTTP/1.1 200 OK\r\n\r\n"), &Method::GET);
        let head = head.expect("a head").expect("all of it");
        let response = wire.answer(head, BytesMut::new(), &upstream());
        let Answer::Reading(mut reading) = response.into_body() else { panic!("it has no end") };
        let mut next = async |length: usize, server: &mut TcpStream| {
            server.write_all(&vec![b'x'; length]).await.expect("it is open");
            let (mut pieces, mut left) = (Vec::new(), length);
            while left > 0 {
                let frame = poll_fn(|context| Pin::new(&mut *reading).poll_frame(context)).await;
                let bytes = frame.expect("more").expect("a piece").into_data().expect("bytes");
                left -= bytes.len();
                pieces.push(bytes);
            }
            pieces
        };
        next(2 * WIRE_READ_MAX, &mut server).await;
        let mut small = Vec::new();
        for _ in 0..WIRE_READ / SMALL {
            small.extend(next(SMALL, &mut server).await);
        }
        let is_behind = |pair: &&[Bytes]| pair[0].as_ptr_range().end == pair[1].as_ptr();
        let rooms = 1 + small.windows(2).filter(|pair| !is_behind(pair)).count();
        assert!(rooms <= 4, "{} pieces lie in {rooms} rooms", small.len());
        assert_eq!(reading.room, WIRE_READ);
    }
}
