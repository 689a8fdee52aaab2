//! The ways in: what each of them speaks, and whom it lets in.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use hyper::rt::Executor;
use rustls::ServerConfig;
use tollgate::{Listener, Settings};

use crate::files::{Named, Unusable};
use crate::tls;
use crate::token::Token;

/// A way in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Door {
    /// Decisions over HTTP.
    Http,
    /// Envoy's rate limit service.
    Grpc,
    /// Health and the admin API.
    Admin,
    /// The Redis protocol.
    Resp,
    /// The reverse proxy.
    Gateway,
    /// What the reverse proxy of the built-in policy stands in front of.
    Echo,
}

impl Door {
    /// All of them, in the order of their numbers.
    pub(crate) const ALL: [Self; 6] =
        [Self::Http, Self::Grpc, Self::Admin, Self::Resp, Self::Gateway, Self::Echo];

    /// Its name in a policy.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
            Self::Admin => "admin",
            Self::Resp => "resp",
            Self::Gateway => "gateway",
            Self::Echo => "echo",
        }
    }

    /// What it offers inside TLS.
    fn protocols(self) -> &'static [&'static [u8]] {
        match self {
            Self::Http | Self::Admin => &[b"http/1.1"],
            Self::Grpc => &[b"h2"],
            Self::Gateway => &[b"h2", b"http/1.1"],
            Self::Resp | Self::Echo => &[],
        }
    }
}

tokio::task_local! {
    /// The door by which what a task serves came in.
    static CAME_BY: Door;
}

impl Door {
    /// Does the work for what came in by this door, and lets it be known meanwhile.
    pub(crate) fn serving<W: Future>(self, work: W) -> impl Future<Output = W::Output> {
        CAME_BY.scope(self, work)
    }

    /// The door by which what is served here and now came in.
    pub(crate) fn of_task() -> Option<Self> {
        CAME_BY.try_with(|door| *door).ok()
    }
}

/// Starts tasks that work for what came in by a door.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Starter(pub(crate) Door);

impl<W> Executor<W> for Starter
where
    W: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, work: W) {
        tokio::spawn(self.0.serving(work));
    }
}

impl fmt::Display for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The doors that a policy opens, and where. Without a `listen` section those that every server
/// has, on loopback. A gateway needs something to stand in front of.
pub(crate) fn opened_by(settings: &Settings) -> Vec<(Door, Listener)> {
    let listen = &settings.listen;
    let gateway = settings.gateway_listener();
    if !listen.is_written {
        let loopback = |port| Listener::at(SocketAddr::from(([127, 0, 0, 1], port)));
        let mut opened = vec![
            (Door::Http, loopback(8080)),
            (Door::Grpc, loopback(8081)),
            (Door::Admin, loopback(8082)),
        ];
        opened.extend(gateway.map(|listener| (Door::Gateway, listener)));
        return opened;
    }
    let written = [
        (Door::Gateway, &gateway),
        (Door::Http, &listen.http),
        (Door::Grpc, &listen.grpc),
        (Door::Admin, &listen.admin),
        (Door::Resp, &listen.resp),
    ];
    written.into_iter().filter_map(|(door, listener)| Some((door, listener.clone()?))).collect()
}

/// One door with its lock: certificates and token, which are read again when their files change.
pub(crate) struct Entrance {
    pub(crate) door: Door,
    files: Files,
    lock: ArcSwap<Lock>,
}

/// Where the parts of a lock are.
struct Files {
    tls: Option<tls::Files>,
    token: Option<Named>,
}

/// What a door asks of whoever comes.
pub(crate) struct Lock {
    tls: Option<Arc<ServerConfig>>,
    token: Option<Arc<Token>>,
}

impl Entrance {
    /// Reads what the door's lock needs; files are looked for beside `policy`.
    pub(crate) fn new(
        door: Door,
        listener: &Listener,
        policy: &Path,
    ) -> Result<Self, Vec<Unusable>> {
        let named = |file: &String| Named::by(policy, file);
        let tls = listener.tls.as_ref().map(|tls| tls::Files {
            cert: named(&tls.cert),
            key: named(&tls.key),
            client_ca: tls.client_ca.as_ref().map(named),
        });
        let token = listener.token_file.as_ref().map(named);
        let files = Files { tls, token };
        let lock = ArcSwap::from_pointee(files.read(door)?);
        Ok(Self { door, files, lock })
    }

    /// What TLS needs, if this door speaks it.
    pub(crate) fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.lock.load().tls.clone()
    }

    /// What callers must show, if anything.
    pub(crate) fn token(&self) -> Option<Arc<Token>> {
        self.lock.load().token.clone()
    }

    /// The files of the lock.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        let token = self.files.token.iter().map(Named::path);
        self.files.tls.iter().flat_map(tls::Files::paths).chain(token)
    }

    /// Reads the files again. What is read is for [`Entrance::change_lock`].
    pub(crate) fn read_again(&self) -> Result<Lock, Vec<Unusable>> {
        self.files.read(self.door)
    }

    pub(crate) fn change_lock(&self, lock: Lock) {
        self.lock.store(Arc::new(lock));
    }
}

impl Files {
    fn read(&self, door: Door) -> Result<Lock, Vec<Unusable>> {
        let tls = self.tls.as_ref().map(|files| files.load(door.protocols())).transpose();
        let token = self.token.as_ref().map(read_token).transpose();
        match (tls, token) {
            (Ok(tls), Ok(token)) => Ok(Lock { tls, token: token.map(Arc::new) }),
            (tls, token) => Err(tls.err().into_iter().flatten().chain(token.err()).collect()),
        }
    }
}

fn read_token(file: &Named) -> Result<Token, Unusable> {
    Token::read(&file.text()?).ok_or_else(|| file.unusable("holds no token"))
}
