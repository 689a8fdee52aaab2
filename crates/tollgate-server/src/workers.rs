//! The threads that serve connections.
//!
//! Each has a runtime of its own, and a connection stays on the thread that it was given to: on
//! two cores a work-stealing runtime was seen to spend nearly twice the time on a small request.
//! New connections go to the thread that has the fewest, since a proxy may open only a handful and
//! send everything over them. Those of the admin door have a thread of their own: what is told there
//! takes a while to put together, and nobody's decision should wait for it.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::runtime;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinSet;
use tokio::time::{Duration, interval, timeout};

use crate::bounds::{CONNECTIONS_FOR_ADMIN, CONNECTIONS_MAX, DRAIN_MAX, FILES_FOR_US};
use crate::connection;
use crate::door::{Door, Entrance};
use crate::gate::Gate;
use crate::gateway::Pool;
use crate::gateway::bounds::IDLE_LOOK;

/// The threads, and how to reach them. When this is dropped no more connections come.
pub(crate) struct Workers {
    workers: Vec<Worker>,
    /// Serves the admin door.
    admin: Worker,
    /// So many connections there may be, beside those of the admin door.
    connections_max: usize,
}

struct Worker {
    arrivals: UnboundedSender<Arrival>,
    connections: Arc<AtomicUsize>,
}

/// A connection that nobody has looked at yet.
pub(crate) struct Arrival {
    pub(crate) stream: TcpStream,
    pub(crate) peer: SocketAddr,
    pub(crate) entrance: Arc<Entrance>,
    /// Counts the connection until it is closed.
    pub(crate) place: Place,
}

/// One of the connections there may be.
pub(crate) struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Waits for the threads: they end when no more connections come and the last one is served.
pub(crate) struct Ending(Vec<JoinHandle<()>>);

impl Ending {
    pub(crate) fn wait(self) {
        for thread in self.0 {
            // A panic there was reported by its own thread.
            let _ = thread.join();
        }
    }
}

impl Workers {
    /// Starts so many threads, and that of the admin door.
    pub(crate) fn start(count: usize, gate: &Arc<Gate>) -> io::Result<(Self, Ending)> {
        let mut threads = Vec::new();
        let mut start = |name: String| {
            let (arrivals, received) = mpsc::unbounded_channel();
            let gate = Arc::clone(gate);
            let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
            let thread = thread::Builder::new().name(name);
            threads.push(thread.spawn(move || runtime.block_on(work(received, &gate)))?);
            io::Result::Ok(Worker { arrivals, connections: Arc::default() })
        };
        let admin = start("tollgate-admin".to_owned())?;
        let workers = (0..count).map(|number| start(format!("tollgate-{number}")));
        let workers = workers.collect::<io::Result<_>>()?;
        Ok((Self { workers, admin, connections_max: connections_max() }, Ending(threads)))
    }

    /// Hands a connection to the thread of its door that has the fewest. If there are too many in
    /// all, it is closed, and false.
    pub(crate) fn hand_over(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        entrance: Arc<Entrance>,
    ) -> bool {
        let load = |worker: &Worker| worker.connections.load(Ordering::Relaxed);
        let (worker, reserved) = if entrance.door == Door::Admin {
            (&self.admin, CONNECTIONS_FOR_ADMIN)
        } else {
            let fewest = self.workers.iter().min_by_key(|worker| load(worker));
            (fewest.expect("there is a thread"), 0)
        };
        let all = self.workers.iter().chain([&self.admin]).map(load).sum::<usize>();
        if all >= self.connections_max + reserved {
            return false;
        }
        worker.connections.fetch_add(1, Ordering::Relaxed);
        let place = Place(Arc::clone(&worker.connections));
        worker.arrivals.send(Arrival { stream, peer, entrance, place }).is_ok()
    }
}

/// How many connections the system lets us have: as many files as it allows anybody, who only has to
/// ask for them, less what we need ourselves.
fn connections_max() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If that is refused it stays as it was.
    let _ = setrlimit(Resource::Nofile, limit);
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let files = usize::try_from(files).unwrap_or(usize::MAX);
    files.saturating_sub(FILES_FOR_US + CONNECTIONS_FOR_ADMIN).clamp(1, CONNECTIONS_MAX)
}

async fn work(mut arrivals: UnboundedReceiver<Arrival>, gate: &Arc<Gate>) {
    let mut connections = JoinSet::new();
    let pool = Arc::<Pool>::default();
    let mut sweeps = interval(IDLE_LOOK);
    loop {
        tokio::select! {
            arrival = arrivals.recv() => match arrival {
                Some(arrival) => {
                    let (gate, pool) = (Arc::clone(gate), Arc::clone(&pool));
                    connections.spawn(connection::serve(arrival, gate, pool));
                }
                None => break,
            },
            Some(ended) = connections.join_next() => report(ended),
            _ = sweeps.tick() => {
                let idle = gate.limiter.with_policy(|it| it.settings().gateway.idle_timeout);
                pool.sweep(idle.map(|idle| Duration::from_micros(idle.as_micros())));
            }
        }
    }
    let rest = async {
        while let Some(ended) = connections.join_next().await {
            report(ended);
        }
    };
    if timeout(DRAIN_MAX, rest).await.is_err() {
        tracing::warn!(connections = connections.len(), "cut off: still busy at the deadline");
    }
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a connection ended in a bug of ours");
    }
}
