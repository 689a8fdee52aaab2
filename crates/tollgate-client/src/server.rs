//! A client of tollgate's own server, over HTTP; `grpc.rs` is the one over gRPC.
//!
//! A check always answers, and within its deadline: if the server does not, a [`Fallback`] does. Checks
//! that are made while another is under way travel together, over connections that are kept. What may
//! have been charged is never sent again.

mod connection;
mod fallback;
mod grpc;
mod wire;
mod worker;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::timeout_at;

pub use self::fallback::Fallback;
use self::fallback::Local;
pub use self::grpc::{Descriptors, DescriptorsError, GrpcClient};
pub use self::wire::{Check, CheckError, LimitAnswer, Source, Verdict};
use self::worker::{Ask, Job, Reply, Worker};
use crate::backoff::Backoff;
use crate::bounds::{FOREVER, SERVER_CONNECTIONS, SERVER_QUEUE_MAX};
use crate::breaker::{Breaker, Circuit};
use crate::clock;
use crate::events;
use crate::retry::{Attempt, Retry};

/// Asks a tollgate server. Clones share its connections.
///
/// ```no_run
/// use tollgate_client::{Check, Client};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Client::connect("http://127.0.0.1:8080")?.start();
/// let verdict = client.check(&Check::new(&[("user", "42")], 1)?).await;
/// if !verdict.is_allowed {
///     println!("come back in {:?}", verdict.retry_after);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    jobs: mpsc::Sender<Job>,
    deadline: Duration,
    circuit: Circuit,
    retry: Retry,
    local: Arc<Local>,
}

/// How to ask a server.
#[derive(Clone, Debug)]
pub struct Connect {
    host: String,
    token: Option<String>,
    deadline: Duration,
    fallback: Fallback,
}

impl Client {
    /// A server at `http://HOST:PORT`. It need not be there yet.
    pub fn connect(url: &str) -> Result<Connect, UrlError> {
        let host = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
        let host =
            host.filter(|host| !host.is_empty() && !host.contains(['/', '@', '?', '#', ' ']));
        let host = host.ok_or_else(|| UrlError { url: url.to_owned() })?;
        let has_port = !host.ends_with(']') && host.contains(':');
        Ok(Connect {
            host: if has_port { host.to_owned() } else { format!("{host}:80") },
            token: None,
            deadline: Duration::from_millis(100),
            fallback: Fallback::Allow,
        })
    }

    /// Whether a request may go on. If the server does not say so in time, the fallback does.
    ///
    /// It may be dropped at any moment; what the server has charged by then stays charged, and slots
    /// that it gave are given back.
    pub async fn check(&self, check: &Check) -> Verdict {
        self.decide(check, Ask::Check(check.to_json())).await
    }

    /// A check that charges a guess, to be [settled](Self::settle) within `ttl`. The verdict of a fallback
    /// has no reservation, and nothing to settle.
    pub async fn reserve(&self, check: &Check, ttl: Duration) -> Verdict {
        let body = check.to_reserve_json(ttl);
        self.decide(check, Ask::Call { path: "/v1/reserve", body }).await
    }

    /// Brings a reservation to what was really used; false if the server does not know it any more. It is
    /// tried again if it fails, since a settlement counts once however often it is told.
    pub async fn settle(&self, reservation: &str, cost: u32) -> Result<bool, ServerError> {
        let body = wire::settle_json(reservation, cost);
        let attempt = || async {
            match self.call("/v1/settle", body.clone()).await {
                Err(ServerError::Away { why }) => {
                    Attempt::Failed { last: Err(ServerError::Away { why }), wait: None }
                }
                answered => Attempt::Done(answered),
            }
        };
        self.retry.run(attempt).await
    }

    /// Gives the slots of a lease back; false if the server does not know it any more.
    pub async fn release(&self, lease: &str) -> Result<bool, ServerError> {
        self.call("/v1/release", wire::lease_json(lease)).await
    }

    /// Starts a lease anew; false if the server does not know it any more.
    pub async fn renew(&self, lease: &str) -> Result<bool, ServerError> {
        self.call("/v1/renew", wire::lease_json(lease)).await
    }

    async fn decide(&self, check: &Check, ask: Ask) -> Verdict {
        let why = match self.ask(ask).await {
            Ok(reply) => match Verdict::read(reply.body) {
                Some(verdict) => return verdict,
                None => format!("it answered {} and no verdict", reply.status),
            },
            Err(why) => why,
        };
        events::server_away(&why);
        self.local.decide(|name| check.value(name), check.cost(), clock::now())
    }

    async fn call(&self, path: &'static str, body: String) -> Result<bool, ServerError> {
        let reply = self.ask(Ask::Call { path, body }).await;
        let Reply { status, body } = reply.map_err(|why| ServerError::Away { why })?;
        match status.as_u16() {
            200 => Ok(true),
            404 => Ok(false),
            500.. => Err(ServerError::Away { why: format!("it answered {status}") }),
            _ => {
                let why = body["detail"].as_str().unwrap_or_default().to_owned();
                Err(ServerError::Refused { status: status.as_u16(), why })
            }
        }
    }

    /// Asks, within the deadline, unless the server is known to be away.
    async fn ask(&self, ask: Ask) -> Result<Reply, String> {
        let permit = self.circuit.enter().map_err(|open| open.to_string())?;
        let deadline = clock::now() + self.deadline;
        let (reply, answer) = oneshot::channel();
        if self.jobs.try_send(Job { ask, reply }).is_err() {
            return Err("too many checks wait for it".to_owned());
        }
        match timeout_at(deadline, answer).await {
            Ok(Ok(Ok(reply))) => {
                permit.succeeded();
                Ok(reply)
            }
            failed => {
                permit.failed();
                let late =
                    || Err(format!("there was no answer within {} ms", self.deadline.as_millis()));
                failed.map_or_else(|_| late(), |told| told.unwrap_or_else(|_| late()))
            }
        }
    }
}

impl Connect {
    /// The token that the server asks for.
    #[must_use]
    pub fn token(self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self }
    }

    /// How long an answer may take: 100 ms, unless said.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline: deadline.min(FOREVER), ..self }
    }

    /// Who decides when the server does not: everything is allowed, unless said.
    #[must_use]
    pub fn fallback(self, fallback: Fallback) -> Self {
        Self { fallback, ..self }
    }

    /// Makes the client. It must be called inside a tokio runtime, where the connections live.
    pub fn start(self) -> Client {
        let (sender, receiver) = mpsc::channel(SERVER_QUEUE_MAX);
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..SERVER_CONNECTIONS {
            let worker = Worker::new(&self.host, self.token.as_deref(), self.deadline);
            tokio::spawn(worker.run(Arc::clone(&receiver)));
        }
        let second = Duration::from_secs(1);
        let backoff = Backoff::new(second / 10, second);
        Client {
            jobs: sender,
            deadline: self.deadline,
            circuit: self.circuit(),
            retry: Retry::new().backoff(backoff).deadline(10 * second),
            local: Arc::new(Local::new(self.fallback)),
        }
    }

    /// Makes a client that asks over gRPC instead: `http://HOST:PORT` is then the server's gRPC door.
    pub fn start_grpc(self) -> GrpcClient {
        GrpcClient::start(self)
    }

    /// A server that is away is asked again every second; who asks meanwhile need not wait.
    fn circuit(&self) -> Circuit {
        Breaker::new().successes(1).open_for(Duration::from_secs(1)).circuit(&self.host)
    }
}

/// What is not the address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlError {
    url: String,
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not http://HOST:PORT, such as http://127.0.0.1:8080", self.url)
    }
}

impl std::error::Error for UrlError {}

/// Why a server did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerError {
    /// It did not answer, or could not.
    Away {
        /// What happened.
        why: String,
    },
    /// It does not do that.
    Refused {
        /// Its status: of HTTP, or of gRPC if that was asked over.
        status: u16,
        /// What it said.
        why: String,
    },
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Away { why } => write!(f, "the server did not answer: {why}"),
            Self::Refused { status, why } => write!(f, "the server answered {status}: {why}"),
        }
    }
}

impl std::error::Error for ServerError {}
