//! A client of tollgate's own server, over HTTP; `grpc.rs` is the one over gRPC.
//!
//! A check always answers, and within its deadline: if the server does not, a [`Fallback`] does. Checks
//! that are made while another is under way travel together, over connections that are kept. What may
//! have been charged is never sent again.

mod asked;
mod connection;
mod fallback;
mod grpc;
mod wire;
mod worker;

use std::fmt;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use http::uri::Authority;
use http::{HeaderValue, StatusCode};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::timeout_at;

use self::asked::Asked;
pub use self::fallback::Fallback;
use self::fallback::Local;
pub use self::grpc::{Descriptors, DescriptorsError, GrpcClient, Reserved};
pub use self::wire::{Check, CheckError, LimitAnswer, Source, Verdict};
use self::worker::{Job, Reply, Waiting, Worker};
use crate::backoff::Backoff;
use crate::bounds::{FOREVER, SERVER_CONNECTIONS, SERVER_QUEUE_MAX};
use crate::clock;
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
    asked: Asked,
    retry: Retry,
    local: Arc<Local>,
}

/// How to ask a server.
#[derive(Clone, Debug)]
pub struct Connect {
    host: String,
    token: Option<HeaderValue>,
    deadline: Duration,
    fallback: Fallback,
}

impl Client {
    /// A server at `http://HOST:PORT`. It need not be there yet.
    pub fn connect(url: &str) -> Result<Connect, UrlError> {
        let address = url.strip_prefix("http://").and_then(address);
        Ok(Connect {
            host: address.ok_or_else(|| UrlError { url: without_secret(url) })?,
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
        let body = check.to_json();
        self.decide(check, |reply| Job::Check { body, reply }).await
    }

    /// A check that charges a guess, to be [settled](Self::settle) within `ttl`, which is an hour at most. The
    /// verdict of a fallback has no reservation, and nothing to settle.
    pub async fn reserve(&self, check: &Check, ttl: Duration) -> Verdict {
        let body = check.to_reserve_json(ttl);
        self.decide(check, |reply| Job::Call { path: "/v1/reserve", body, reply }).await
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
        match self.local.release(lease, clock::now()) {
            Some(was_held) => Ok(was_held),
            None => self.call("/v1/release", wire::lease_json(lease)).await,
        }
    }

    /// Starts a lease anew; false if the server does not know it any more.
    pub async fn renew(&self, lease: &str) -> Result<bool, ServerError> {
        match self.local.renew(lease, clock::now()) {
            Some(is_held) => Ok(is_held),
            None => self.call("/v1/renew", wire::lease_json(lease)).await,
        }
    }

    async fn decide(&self, check: &Check, job: impl FnOnce(Waiting) -> Job) -> Verdict {
        let read = |mut reply: Reply| {
            Verdict::read(&mut reply.body).ok_or_else(|| ServerError::of(&reply))
        };
        match self.ask(job, read).await {
            Ok(verdict) => verdict,
            Err(error) => {
                self.local.decide(&error, |name| check.value(name), check.cost(), clock::now())
            }
        }
    }

    async fn call(&self, path: &'static str, body: String) -> Result<bool, ServerError> {
        let read = |reply: Reply| match reply.status {
            StatusCode::OK if reply.is_done() => Ok(true),
            StatusCode::NOT_FOUND if reply.is_unknown() => Ok(false),
            _ => Err(ServerError::of(&reply)),
        };
        self.ask(|reply| Job::Call { path, body, reply }, read).await
    }

    /// Asks, within the deadline, unless the server is known to be away.
    async fn ask<T>(
        &self,
        job: impl FnOnce(Waiting) -> Job,
        read: impl FnOnce(Reply) -> Result<T, ServerError>,
    ) -> Result<T, ServerError> {
        let away = |why: String| ServerError::Away { why };
        let question = self.asked.begin()?;
        let deadline = clock::now() + self.deadline;
        let (reply, answer) = oneshot::channel();
        if self.jobs.try_send(job(reply)).is_err() {
            return Err(away("too many checks wait for it".to_owned()));
        }
        let mut awaited = Awaited { jobs: &self.jobs, answer };
        let answer = match timeout_at(deadline, &mut awaited.answer).await {
            Ok(Ok(answer)) => answer.map_err(away).and_then(read),
            Ok(Err(_)) | Err(_) => Err(ServerError::late(self.deadline)),
        };
        self.asked.end(question, &answer);
        answer
    }
}

/// An answer that is waited for.
struct Awaited<'a> {
    jobs: &'a mpsc::Sender<Job>,
    answer: oneshot::Receiver<Result<Reply, String>>,
}

impl Drop for Awaited<'_> {
    /// What has come and was not taken is given back: the worker thinks that it was.
    fn drop(&mut self) {
        self.answer.close();
        if let Ok(Ok(reply)) = self.answer.try_recv() {
            for call in reply.held() {
                let _no_room = self.jobs.try_send(Job::GiveBack(call));
            }
        }
    }
}

/// `HOST:PORT`, where `HOST` alone has port 80.
fn address(text: &str) -> Option<String> {
    let text = text.strip_suffix('/').unwrap_or(text);
    let authority: Authority = text.parse().ok()?;
    let host = authority.host();
    let port = match text.strip_prefix(host)? {
        "" => 80,
        _ => NonZeroU16::new(authority.port_u16()?)?.get(),
    };
    (!host.is_empty()).then(|| format!("{host}:{port}"))
}

/// A URL without what stands before an @, which may be a secret.
fn without_secret(url: &str) -> String {
    let Some((before, host)) = url.rsplit_once('@') else { return url.to_owned() };
    let scheme = before.find("://").map_or("", |end| &before[..end + 3]);
    format!("{scheme}***@{host}")
}

impl Connect {
    /// The token that the server asks for. White space around it is that of a file.
    pub fn token(self, token: &str) -> Result<Self, TokenError> {
        let token = token.trim();
        if token.is_empty() {
            return Err(TokenError);
        }
        let mut field = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| TokenError)?;
        field.set_sensitive(true);
        Ok(Self { token: Some(field), ..self })
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
            let worker = Worker::new(&self.host, self.token.clone(), self.deadline);
            tokio::spawn(worker.run(Arc::clone(&receiver)));
        }
        let second = Duration::from_secs(1);
        let backoff = Backoff::new(second / 10, second);
        Client {
            jobs: sender,
            deadline: self.deadline,
            asked: Asked::new(&self.host),
            retry: Retry::new().backoff(backoff).deadline(10 * second),
            local: Arc::new(Local::new(self.fallback)),
        }
    }

    /// Makes a client that asks over gRPC instead: `http://HOST:PORT` is then the server's gRPC door.
    pub fn start_grpc(self) -> GrpcClient {
        GrpcClient::start(self)
    }
}

/// What is not the address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlError {
    url: String,
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = &self.url;
        if url.starts_with("https://") {
            let instead = "give http://HOST:PORT, of the server or of a proxy beside this process that speaks it";
            return write!(
                f,
                "{url:?} is asked over TLS, which this client does not speak; {instead}"
            );
        }
        write!(f, "{url:?} is not http://HOST:PORT, such as http://127.0.0.1:8080")
    }
}

impl std::error::Error for UrlError {}

/// What cannot be a token. It is not told: it may be one that was only cut wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenError;

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a token is one line of text, and this is none")
    }
}

impl std::error::Error for TokenError {}

/// Why a server did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerError {
    /// It did not answer, or could not.
    Away {
        /// What happened.
        why: String,
    },
    /// It answers others, but not us: the token is wrong, or it is no tollgate server. Unlike what passes by itself
    /// this is told as a warning when it was a check.
    Unwilling {
        /// Its status: of HTTP, or of gRPC if that was asked over.
        status: u16,
        /// What it said.
        why: String,
    },
    /// The question is wrong; it would answer another.
    Refused {
        /// Its status: of HTTP, or of gRPC if that was asked over.
        status: u16,
        /// What it said.
        why: String,
    },
}

impl ServerError {
    /// What a reply says that is not what was asked for.
    fn of(reply: &Reply) -> Self {
        let status = reply.status.as_u16();
        let why = match reply.status.is_success() {
            true => "this is no answer of tollgate",
            false => reply.body["detail"].as_str().unwrap_or_default(),
        };
        let why = why.to_owned();
        match status {
            _ if reply.is_wrong_question() => Self::Refused { status, why },
            500.. => Self::Away { why: format!("it answered {}", reply.status) },
            _ => Self::Unwilling { status, why },
        }
    }

    fn late(deadline: Duration) -> Self {
        let within = deadline.as_millis();
        Self::Away { why: format!("there was no answer within {within} ms") }
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Away { why } => write!(f, "the server did not answer: {why}"),
            Self::Unwilling { status, why } | Self::Refused { status, why } => {
                let colon = if why.is_empty() { "" } else { ": " };
                write!(f, "the server answered {status}{colon}{why}")
            }
        }
    }
}

impl std::error::Error for ServerError {}
