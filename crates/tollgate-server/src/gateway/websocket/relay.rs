//! A WebSocket from the moment it is open to its end.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy, sink, split};
use tokio::time::{sleep, timeout};
use tollgate::{Asked, Layer};

use super::bounds::{CLOSING_MAX, FRAGMENTS_A_MESSAGE};
use super::close::Close;
use super::frames::{Frame, FromClient, FromServer, Kind, Next};
use super::pipe::{Life, Pipe};
use super::socket::{Judgement, Socket};
use crate::bounds::{FAREWELL_BYTES_MAX, FAREWELL_MAX};

/// Passes on what both sides send until either ends, the limits have had enough of the client, nothing
/// has been sent for as long as `idle`, or the server is to stop. Whatever ends it, both sides are
/// ended, and what the socket holds is given back.
pub(crate) async fn relay<C, U>(client: C, upstream: U, socket: Socket, idle: Option<Duration>)
where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    let life = Life::new();
    let (from_client, to_client) = split(client);
    let (from_upstream, to_upstream) = split(upstream);
    let mut up = Up::new(Pipe::new(from_client, to_upstream, &life));
    let mut down = Down::new(Pipe::new(from_upstream, to_client, &life));
    let mut drain = socket.drain();
    let ended = tokio::select! {
        ended = up.run(&socket) => ended,
        ended = down.run() => ended,
        () = life.is_idle(idle) => Ended::ByUs(Close::away("nothing was sent for too long")),
        () = drain.started() => Ended::ByUs(Close::away("the server is going away")),
    };
    let mut by_us = None;
    match ended {
        Ended::ByUs(close) => {
            tracing::debug!(?close, "a WebSocket is closed");
            by_us = Some(close);
        }
        Ended::ByClient => {
            let client_leaves = async {
                discard(&mut up.pipe.from).await;
                sleep(FAREWELL_MAX).await;
            };
            let _ = timeout(CLOSING_MAX, async {
                tokio::select! { _ = down.run() => {}, () = client_leaves => {} }
            })
            .await;
        }
        Ended::ClientGone => {
            let _ = timeout(FAREWELL_MAX, async {
                let _ = up.pipe.to.shutdown().await;
                down.run().await
            })
            .await;
        }
        Ended::UpstreamDeaf => drop(timeout(CLOSING_MAX, down.run()).await),
        Ended::UpstreamGone => {}
    }
    // Whoever hears of the end may open another socket at once.
    drop(socket);
    let is_by_us = by_us.is_some();
    let _ = tokio::join!(
        timeout(CLOSING_MAX, up.finish(is_by_us)),
        timeout(CLOSING_MAX, down.finish(by_us)),
    );
    // Closing while bytes are on their way would take the close frame with it.
    let _ = timeout(FAREWELL_MAX, discard(&mut up.pipe.from)).await;
}

/// What ended a socket.
enum Ended {
    /// We did, and tell the client why.
    ByUs(Close),
    /// The client said so, in a close frame that was passed on.
    ByClient,
    /// The client is not there any more.
    ClientGone,
    /// The server reads no more, but may have something to say.
    UpstreamDeaf,
    /// The server is not there any more.
    UpstreamGone,
}

/// From the client to the server.
struct Up<'l, R, W> {
    pipe: Pipe<'l, R, W>,
    frames: FromClient,
    /// Whether a frame has begun of which nothing was passed on.
    is_held: bool,
}

impl<'l, R, W> Up<'l, R, W>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    fn new(pipe: Pipe<'l, R, W>) -> Self {
        Self { pipe, frames: FromClient::default(), is_held: false }
    }

    async fn run(&mut self, socket: &Socket) -> Ended {
        loop {
            if let Err(ended) = self.step(socket).await {
                return ended;
            }
        }
    }

    async fn step(&mut self, socket: &Socket) -> Result<(), Ended> {
        match self.frames.next(self.pipe.arrived()) {
            Err(fault) => return Err(Ended::ByUs(fault.into())),
            Ok(Next::Payload(bytes)) => self.pipe.pass(bytes),
            Ok(Next::Frame(frame)) => {
                self.is_held = true;
                self.admit(&frame, socket).await?;
                self.is_held = false;
                self.pipe.pass(frame.header);
                if frame.kind == Kind::Close {
                    return Err(self.close().await);
                }
            }
            Ok(Next::Unknown) => {
                self.send().await?;
                if !self.read().await {
                    return Err(Ended::ClientGone);
                }
            }
        }
        Ok(())
    }

    /// Returns when a frame may be passed on.
    async fn admit(&mut self, frame: &Frame, socket: &Socket) -> Result<(), Ended> {
        let Some(layer) = counted_as(frame) else { return Ok(()) };
        loop {
            let judgement = match socket.ask(layer, frame.payload) {
                Asked::Ready(judgement) => judgement,
                Asked::Waiting(judgement) => {
                    self.send().await?;
                    judgement.await
                }
            };
            match judgement {
                Judgement::Passes => return Ok(()),
                Judgement::Ends(close) => return Err(Ended::ByUs(close)),
                Judgement::Waits(wait) => {
                    self.send().await?;
                    tokio::select! {
                        () = sleep(wait) => {}
                        () = self.client_leaves() => return Err(Ended::ClientGone),
                    }
                }
            }
        }
    }

    /// Passes on the rest of a close frame; what may follow it counts for nobody.
    async fn close(&mut self) -> Ended {
        loop {
            if let Err(ended) = self.send().await {
                return ended;
            }
            if self.frames.is_between_frames() {
                return Ended::ByClient;
            }
            match self.frames.next(self.pipe.arrived()) {
                Ok(Next::Payload(bytes)) => self.pipe.pass(bytes),
                _ if self.read().await => {}
                _ => return Ended::ClientGone,
            }
        }
    }

    /// Reads until the client has left, as far as there is room.
    async fn client_leaves(&mut self) {
        while self.read().await {}
    }

    /// False when the client has left.
    async fn read(&mut self) -> bool {
        self.pipe.read().await.unwrap_or(false)
    }

    async fn send(&mut self) -> Result<(), Ended> {
        self.pipe.send().await.map_err(|_| Ended::UpstreamDeaf)
    }

    /// Ends the server's side, with a close frame if one has its place there.
    async fn finish(&mut self, is_by_us: bool) -> io::Result<()> {
        self.pipe.send().await?;
        if is_by_us && (self.is_held || self.frames.is_between_frames()) {
            self.pipe.to.write_all(&Close::TO_SERVER).await?;
        }
        self.pipe.to.shutdown().await
    }
}

/// What a frame counts as.
fn counted_as(frame: &Frame) -> Option<Layer> {
    match frame.kind {
        Kind::Message | Kind::Control => Some(Layer::Message),
        Kind::Fragment(number) if number % FRAGMENTS_A_MESSAGE == 0 => Some(Layer::Message),
        Kind::Fragment(_) if frame.payload > 0 => Some(Layer::Fragment),
        Kind::Fragment(_) | Kind::Close => None,
    }
}

/// From the server to the client.
struct Down<'l, R, W> {
    pipe: Pipe<'l, R, W>,
    frames: FromServer,
}

impl<'l, R, W> Down<'l, R, W>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    fn new(pipe: Pipe<'l, R, W>) -> Self {
        Self { pipe, frames: FromServer::default() }
    }

    async fn run(&mut self) -> Ended {
        loop {
            if self.pipe.send().await.is_err() {
                return Ended::ClientGone;
            }
            if !self.pipe.read().await.unwrap_or(false) {
                return Ended::UpstreamGone;
            }
            let passed = self.frames.pass(self.pipe.arrived());
            self.pipe.pass(passed);
        }
    }

    /// Ends the client's side, and tells it why if that was us.
    async fn finish(&mut self, by_us: Option<Close>) -> io::Result<()> {
        if let Some(close) = by_us {
            self.finish_frame().await?;
            self.pipe.to.write_all(&close.frame()).await?;
        }
        self.pipe.to.shutdown().await
    }

    /// Passes on what is missing of a frame of the server.
    async fn finish_frame(&mut self) -> io::Result<()> {
        loop {
            self.pipe.send().await?;
            if self.frames.is_between_frames() {
                return Ok(());
            }
            if !self.pipe.read().await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let rest = self.frames.pass_rest(self.pipe.arrived());
            self.pipe.pass(rest);
        }
    }
}

/// Reads to the end, though not for ever, and throws away.
async fn discard(from: &mut (impl AsyncRead + Unpin)) {
    let _ = copy(&mut from.take(FAREWELL_BYTES_MAX as u64), &mut sink()).await;
}

#[cfg(test)]
mod tests;
