//! A server from its start to its end.

use std::error;
use std::fmt;
use std::future::ready;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::runtime;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tollgate::envoy::Descriptors;
use tollgate::redis::RedisStore;
use tollgate::snapshot::{Keeper, Restored};
use tollgate::{Clock, Limiter, Listener, MemoryStore, Policy, Store, StoreSettings};

use crate::bounds::{ACCEPT_PAUSE, BACKLOG_MAX, UNREADY_BEFORE_DRAIN};
use crate::door::{self, Door, Entrance};
use crate::files;
use crate::gate::Gate;
use crate::history;
use crate::otlp;
use crate::overrides;
use crate::policy_file::{self, Loaded, beside};
use crate::reload::{self, Reloader};
use crate::stage::Stage;
use crate::tls;
use crate::watched::Look;
use crate::workers::Workers;

/// Where the policy comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A built-in policy to try things with.
    Quickstart,
    /// A file, read again when it changes.
    File(PathBuf),
}

/// The built-in policy.
pub const QUICKSTART: &str = include_str!("quickstart.yaml");

/// How often states are saved, if the policy asks for that.
const SNAPSHOT_EVERY: Duration = Duration::from_secs(10);

/// A server whose doors are open and whose first request has not been looked at.
pub struct Server {
    gate: Arc<Gate>,
    open: Vec<Open>,
    reloader: Reloader,
    /// Saves the states once more when it is dropped.
    keeper: Option<Keeper>,
}

/// A door with its socket.
struct Open {
    entrance: Arc<Entrance>,
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Loads the policy and opens the doors it names.
    pub fn bind(source: Source) -> Result<Self, StartError> {
        let mut read = Look::default();
        let mut open = Vec::new();
        let (path, Loaded { policy, descriptors }) = match &source {
            Source::Quickstart => {
                let loopback = Listener::at(SocketAddr::from(([127, 0, 0, 1], 0)));
                let echo = open_door(Door::Echo, &loopback, Path::new(""))?;
                let loaded = quickstart(echo.address);
                open.push(echo);
                (PathBuf::new(), loaded)
            }
            Source::File(path) => {
                let loaded = policy_file::read_noting(path, &mut read);
                (path.clone(), loaded.map_err(|error| StartError::new(&error))?)
            }
        };
        reload::warn(&policy, &descriptors);
        for (door, listener) in door::opened_by(policy.settings()) {
            open.push(open_door(door, &listener, &path)?);
        }
        if open.is_empty() {
            let sentence = "the policy opens no door; write for example \
                            listen: { http: 127.0.0.1:8080 }, or an upstream for the gateway";
            return Err(StartError(sentence.to_owned()));
        }
        let upstream_tls = tls::for_upstreams(policy.settings(), &path).map_err(StartError)?;
        let (store, keeper) = store(&policy, &path)?;
        let audit = policy.settings().observe.audit.clone();
        let settings = policy.settings().descriptors.clone().unwrap_or_default();
        let too_many = |error: tollgate::TooManyLimits| StartError::new(&error);
        let limiter = Limiter::new(policy, store).map_err(too_many)?;
        limiter.replace_descriptors(descriptors, &settings).map_err(too_many)?;
        let (gate, requests) = Gate::new(limiter);
        gate.upstream_tls.store(upstream_tls);
        gate.open.get_or_init(|| open.iter().map(|open| open.entrance.door).collect());
        let audit = gate.audit.prepare(audit.as_ref(), &path).map_err(StartError)?;
        gate.audit.put_in_force(audit);
        let gate = Arc::new(gate);
        let entrances = open.iter().map(|open| Arc::clone(&open.entrance)).collect();
        let reloader = Reloader::new(source, read, entrances, requests, Arc::clone(&gate));
        Ok(Self { gate, open, reloader, keeper })
    }

    /// Which doors are open, and where.
    pub fn addresses(&self) -> impl Iterator<Item = (Door, SocketAddr)> {
        self.open.iter().map(|open| (open.entrance.door, open.address))
    }

    /// Whether other servers with the same policy would count together with this one.
    pub fn shares_states(&self) -> bool {
        self.gate.limiter.store().redis().is_some()
    }

    /// Serves until `stop`, then until what was asked by then is answered.
    pub fn run_until(mut self, stop: impl Future<Output = ()>) -> Result<(), StartError> {
        let cannot = |error: io::Error| StartError(format!("cannot start a thread: {error}"));
        let runtime =
            runtime::Builder::new_current_thread().enable_all().build().map_err(cannot)?;
        let cores = thread::available_parallelism().map_or(1, usize::from);
        // One core is left to the system, whose share of a small request is the larger one, and to
        // whoever asks from the same machine. Threads that have to wait for a core serve fewer
        // requests each time they get one, and each request costs more.
        let threads = cores.saturating_sub(1).max(1);
        let (workers, ending) = Workers::start(threads, &self.gate).map_err(cannot)?;
        // The last requests are charged too, so the last snapshot is saved after them.
        let keeper = self.keeper.take();
        let gate = Arc::clone(&self.gate);
        runtime.block_on(self.serve(workers, stop)).map_err(cannot)?;
        ending.wait();
        gate.limiter.store().close().wait();
        gate.audit.close();
        drop(keeper);
        // After all that must not be lost, and with what came while we drained.
        runtime.block_on(otlp::last(&gate));
        // A file that takes for ever to be read is not waited for.
        runtime.shutdown_background();
        tracing::info!("stopped");
        Ok(())
    }

    /// The same, until the process is told to stop by SIGTERM or SIGINT. SIGHUP loads the policy
    /// anew.
    pub fn run(self) -> Result<(), StartError> {
        let gate = Arc::clone(&self.gate);
        self.run_until(async move {
            if let Err(error) = signalled(&gate).await {
                tracing::error!(%error, "cannot listen for signals");
            }
        })
    }

    async fn serve(self, workers: Workers, stop: impl Future<Output = ()>) -> io::Result<()> {
        let Self { gate, open, reloader, keeper: _ } = self;
        let workers = Arc::new(workers);
        let mut accepting = JoinSet::new();
        for Open { entrance, listener, address } in open {
            tracing::info!(door = %entrance.door, %address, "listening");
            listener.set_nonblocking(true)?;
            let listener = tokio::net::TcpListener::from_std(listener)?;
            accepting.spawn(accept(listener, entrance, Arc::clone(&workers), Arc::clone(&gate)));
        }
        drop(workers);
        let reloading = tokio::spawn(reloader.run());
        let following = tokio::spawn(overrides::follow(Arc::clone(&gate)));
        let remembering = tokio::spawn(history::keep(Arc::clone(&gate)));
        let exporting = tokio::spawn(otlp::run(Arc::clone(&gate)));
        stop.await;
        tracing::info!("stopping");
        gate.stages.enter(Stage::Unready);
        sleep(UNREADY_BEFORE_DRAIN).await;
        gate.stages.enter(Stage::Draining);
        while accepting.join_next().await.is_some() {}
        reloading.abort();
        following.abort();
        exporting.abort();
        remembering.abort();
        Ok(())
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.addresses()).finish()
    }
}

/// Takes connections in until we drain.
async fn accept(
    listener: tokio::net::TcpListener,
    entrance: Arc<Entrance>,
    workers: Arc<Workers>,
    gate: Arc<Gate>,
) {
    let mut drain = gate.stages.watch();
    let mut is_pressed = false;
    loop {
        let accepted = tokio::select! {
            biased;
            () = drain.started() => break,
            accepted = listener.accept() => accepted,
        };
        let failed = match accepted {
            Ok((stream, peer)) => {
                let stream = stream.into_std();
                let handed =
                    stream.map(|stream| workers.hand_over(stream, peer, Arc::clone(&entrance)));
                if let Ok(is_taken) = handed {
                    gate.doors.of(entrance.door).came(is_taken);
                }
                match handed {
                    Ok(true) => None,
                    Ok(false) => Some("there are too many connections".to_owned()),
                    Err(error) => Some(error.to_string()),
                }
            }
            // The client left while it waited.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => None,
            Err(error) => Some(error.to_string()),
        };
        if let Some(why) = &failed {
            if !is_pressed {
                tracing::error!(door = %entrance.door, %why, "cannot take a connection");
            }
            sleep(ACCEPT_PAUSE).await;
        }
        is_pressed = failed.is_some();
    }
    // Whoever got through before now is still served.
    for _ in 0..BACKLOG_MAX {
        tokio::select! {
            biased;
            Ok((stream, peer)) = listener.accept() => {
                if let Ok(stream) = stream.into_std() {
                    let is_taken = workers.hand_over(stream, peer, Arc::clone(&entrance));
                    gate.doors.of(entrance.door).came(is_taken);
                }
            }
            () = ready(()) => break,
        }
    }
}

/// Returns when the process is told to stop.
async fn signalled(gate: &Arc<Gate>) -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = hang_up.recv() => {
                let gate = Arc::clone(gate);
                // What comes of it is logged by the reloader, and other signals are heard meanwhile.
                tokio::spawn(async move { gate.reload().await });
            }
        }
    }
}

/// The built-in policy, in front of a server of our own.
fn quickstart(upstream: SocketAddr) -> Loaded {
    let text = QUICKSTART.replace("127.0.0.1:3000", &upstream.to_string());
    let no_files = |_: &str| Err("the built-in policy names none".to_owned());
    let policy = Policy::parse("quickstart", &text, &mut { no_files });
    let policy = policy.expect("the built-in policy is tested");
    Loaded { policy, descriptors: Descriptors::default() }
}

fn open_door(door: Door, listener: &Listener, path: &Path) -> Result<Open, StartError> {
    let entrance = Entrance::new(door, listener, path)
        .map_err(|unusable| StartError(files::sentences(&unusable)))?;
    let cannot = |error| {
        let address = listener.address;
        StartError(format!(
            "cannot open the {door} door at {address}: {error}; `listen` says which doors are open, \
             and where"
        ))
    };
    let socket = TcpListener::bind(listener.address).map_err(cannot)?;
    let address = socket.local_addr().map_err(cannot)?;
    Ok(Open { entrance: Arc::new(entrance), listener: socket, address })
}

/// Where states are kept, and who saves them, if anybody does.
fn store(policy: &Policy, path: &Path) -> Result<(Store, Option<Keeper>), StartError> {
    let memory = match &policy.settings().store {
        StoreSettings::Memory(memory) => memory,
        StoreSettings::Redis(redis) => {
            let settings = tollgate::redis::settings(redis, policy.settings().nodes);
            let store = RedisStore::open(settings).map_err(|error| StartError::new(&error))?;
            return Ok((store.into(), None));
        }
    };
    let max_bytes = memory.max_bytes.map_or(tollgate::bounds::MAX_BYTES_DEFAULT, |bytes| {
        usize::try_from(bytes).unwrap_or(usize::MAX)
    });
    let unreservable = |error: tollgate::Unreservable| StartError::new(&error);
    let Some(snapshot) = &memory.snapshot else {
        let store = MemoryStore::with_max_bytes(Clock::system(), max_bytes);
        return Ok((store.map_err(unreservable)?.into(), None));
    };
    let file = beside(path, snapshot);
    let (store, restored) =
        MemoryStore::restore(&file, Clock::system(), max_bytes).map_err(unreservable)?;
    match restored {
        Restored::Nothing => {}
        Restored::Keys(keys) => tracing::info!(keys, "went on from the snapshot"),
        Restored::SetAside { why, to } => {
            tracing::error!(%why, moved_to = ?to, "the snapshot cannot be used; starting empty");
        }
    }
    let store = Arc::new(store);
    let report = |saved| {
        if let Err(error) = saved {
            tracing::error!(%error, "cannot save a snapshot");
        }
    };
    let keeper = Keeper::start(Arc::clone(&store), file, SNAPSHOT_EVERY, report)
        .map_err(|error| StartError(format!("cannot start a thread: {error}")))?;
    Ok((store.into(), Some(keeper)))
}

/// Why a server could not start, as a sentence.
pub struct StartError(String);

impl StartError {
    fn new(error: &dyn error::Error) -> Self {
        Self(error.to_string())
    }
}

impl fmt::Debug for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl error::Error for StartError {}
