//! A network between a client and a server that can be slow, silent, one-sided or cut.
//!
//! What a fault is for is what a client cannot tell apart: a server that is slow, a network that
//! lost the answer, a machine that is gone without a word. Faults are set while connections are
//! open and hold at once, for what is under way too.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Sleep, sleep};

use crate::bounds::{CHUNK_BYTES, CHUNKS_MAX};

/// A proxy in a thread of its own; it and its connections end when this is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    faults: watch::Sender<Faults>,
    counts: Arc<Counts>,
    thread: Option<JoinHandle<()>>,
}

/// What goes wrong. The counts are of events: a connection is concerned by those after its own
/// beginning.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    request_delay: Duration,
    reply_delay: Duration,
    hangs: bool,
    drops_replies: bool,
    refuses: bool,
    cuts: u64,
    halvings: u64,
    ends: bool,
}

#[derive(Debug, Default)]
struct Counts {
    dials: AtomicU64,
    open: AtomicU64,
}

impl Proxy {
    /// Passes everything on to a server that listens there, now or later.
    pub fn start(server: SocketAddr) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
        listener.set_nonblocking(true).expect("sockets can be asked for that");
        let address = listener.local_addr().expect("it is bound");
        let (faults, watched) = watch::channel(Faults::default());
        let counts = Arc::new(Counts::default());
        let counted = Arc::clone(&counts);
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a thread and a few files");
            // What is still open ends with the runtime.
            runtime.block_on(accept(listener, server, watched, counted)).expect("it listens");
        });
        Self { address, faults, counts, thread: Some(thread) }
    }

    /// Where a client finds the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same as a client is told of it.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// How many connections were made, refused ones included.
    pub fn dials(&self) -> u64 {
        self.counts.dials.load(Ordering::SeqCst)
    }

    /// How many connections are open.
    pub fn open(&self) -> u64 {
        self.counts.open.load(Ordering::SeqCst)
    }

    /// What a client sends arrives so much later. Nothing is held up beyond that: many requests may
    /// be under way at once.
    pub fn delay_requests(&self, by: Duration) {
        self.change(|faults| faults.request_delay = by);
    }

    /// What the server sends arrives so much later.
    pub fn delay_replies(&self, by: Duration) {
        self.change(|faults| faults.reply_delay = by);
    }

    /// Nothing arrives in either direction, and connections still succeed. After
    /// [`heal`](Self::heal), what was sent meanwhile arrives.
    pub fn hang(&self) {
        self.change(|faults| faults.hangs = true);
    }

    /// Requests arrive, answers never do, not later either.
    pub fn drop_replies(&self) {
        self.change(|faults| faults.drops_replies = true);
    }

    /// New connections are reset as soon as they are made. They are counted, which those refused
    /// by a port that nobody listens at could not be.
    pub fn refuse(&self) {
        self.change(|faults| faults.refuses = true);
    }

    /// Ends every connection that is open. New ones succeed.
    pub fn cut(&self) {
        self.change(|faults| faults.cuts += 1);
    }

    /// Ends every connection that is open on the server's side only: the client is not told, and
    /// what it sends goes nowhere. New ones succeed.
    pub fn half_open(&self) {
        self.change(|faults| faults.halvings += 1);
    }

    /// Lets everything through again. What was cut stays cut.
    pub fn heal(&self) {
        self.change(|faults| {
            let Faults { cuts, halvings, ends, .. } = *faults;
            *faults = Faults { cuts, halvings, ends, ..Faults::default() };
        });
    }

    fn change(&self, change: impl FnOnce(&mut Faults)) {
        self.faults.send_modify(change);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.change(|faults| faults.ends = true);
        // If it panicked, the test has failed already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

async fn accept(
    listener: std::net::TcpListener,
    server: SocketAddr,
    mut faults: watch::Receiver<Faults>,
    counts: Arc<Counts>,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let client = tokio::select! {
            _ = faults.wait_for(|faults| faults.ends) => return Ok(()),
            accepted = listener.accept() => accepted?.0,
        };
        counts.dials.fetch_add(1, Ordering::SeqCst);
        if faults.borrow().refuses {
            client.set_zero_linger()?;
            continue;
        }
        let (faults, counts) = (faults.clone(), Arc::clone(&counts));
        tokio::spawn(async move {
            counts.open.fetch_add(1, Ordering::SeqCst);
            // What breaks on the way is for the client to see, not for us.
            let _ = carry(client, server, faults).await;
            counts.open.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

/// One connection, from its beginning to its end.
async fn carry(
    client: TcpStream,
    server: SocketAddr,
    mut faults: watch::Receiver<Faults>,
) -> io::Result<()> {
    let Faults { cuts, halvings, .. } = *faults.borrow_and_update();
    let server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let (mut cut, mut halved) = (faults.clone(), faults.clone());
    let cut = cut.wait_for(|faults| faults.cuts != cuts);
    tokio::pin!(cut);
    tokio::select! {
        ended = async {
            tokio::try_join!(
                pump(&mut from_client, &mut to_server, Direction::Requests, faults.clone()),
                pump(&mut from_server, &mut to_client, Direction::Replies, faults.clone()),
            )
        } => return ended.map(drop),
        _ = &mut cut => return Ok(()),
        _ = halved.wait_for(|faults| faults.halvings != halvings) => {}
    }
    drop((from_server, to_server));
    let mut nowhere = tokio::io::sink();
    tokio::select! {
        _ = tokio::io::copy(&mut from_client, &mut nowhere) => {}
        _ = cut => {}
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Direction {
    Requests,
    Replies,
}

impl Direction {
    fn delay(self, faults: &Faults) -> Duration {
        match self {
            Self::Requests => faults.request_delay,
            Self::Replies => faults.reply_delay,
        }
    }

    fn drops(self, faults: &Faults) -> bool {
        matches!(self, Self::Replies) && faults.drops_replies
    }
}

/// Bytes, and when they are due.
type Chunk = (Option<Pin<Box<Sleep>>>, Vec<u8>);

/// Carries bytes in one direction until they end. They are read as they come and written when they
/// are due, so that a delay holds up nothing that comes after.
async fn pump(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    direction: Direction,
    faults: watch::Receiver<Faults>,
) -> io::Result<()> {
    let (queue, mut queued) = mpsc::channel::<Chunk>(CHUNKS_MAX);
    let mut healed = faults.clone();
    let read = async move {
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            let length = from.read(&mut buffer).await?;
            let delay = direction.delay(&faults.borrow());
            let due = (!delay.is_zero()).then(|| Box::pin(sleep(delay)));
            if length == 0 || queue.send((due, buffer[..length].to_vec())).await.is_err() {
                return io::Result::Ok(());
            }
        }
    };
    let write = async {
        while let Some((due, bytes)) = queued.recv().await {
            if let Some(due) = due {
                due.await;
            }
            let faults = healed.wait_for(|faults| !faults.hangs).await;
            let is_dropped = faults.is_ok_and(|faults| direction.drops(&faults));
            if !is_dropped {
                to.write_all(&bytes).await?;
            }
        }
        // The end is news too, and does not arrive while nothing does.
        let _ = healed.wait_for(|faults| !faults.hangs).await;
        to.shutdown().await
    };
    tokio::try_join!(read, write).map(drop)
}
