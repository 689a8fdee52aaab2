//! The ways in: what each of them speaks, and whom it lets in.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use tollgate::{Listen, Listener};

use crate::bounds::SECRET_FILE_BYTES_MAX;
use crate::policy_file::{beside, text_of};
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
}

impl Door {
    /// Its name in a policy.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
            Self::Admin => "admin",
            Self::Resp => "resp",
        }
    }

    /// What it offers inside TLS.
    fn protocols(self) -> &'static [&'static [u8]] {
        match self {
            Self::Http | Self::Admin => &[b"http/1.1"],
            Self::Grpc => &[b"h2"],
            Self::Resp => &[],
        }
    }
}

impl fmt::Display for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The doors that a policy opens, and where. Without a `listen` section those that every server
/// has, on loopback.
pub(crate) fn opened_by(listen: &Listen) -> Vec<(Door, Listener)> {
    if !listen.is_written {
        let loopback = |port| Listener::at(SocketAddr::from(([127, 0, 0, 1], port)));
        return vec![
            (Door::Http, loopback(8080)),
            (Door::Grpc, loopback(8081)),
            (Door::Admin, loopback(8082)),
        ];
    }
    let written = [
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
    tls: Option<(tls::Files, ArcSwap<ServerConfig>)>,
    token: Option<(PathBuf, ArcSwap<Token>)>,
}

impl Entrance {
    /// Reads what the door's lock needs; files are looked for beside `policy`. Every error is a
    /// sentence.
    pub(crate) fn new(door: Door, listener: &Listener, policy: &Path) -> Result<Self, String> {
        let tls = listener.tls.as_ref().map(|tls| {
            let files = tls::Files {
                cert: beside(policy, &tls.cert),
                key: beside(policy, &tls.key),
                client_ca: tls.client_ca.as_ref().map(|file| beside(policy, file)),
            };
            let config = ArcSwap::new(files.load(door.protocols())?);
            Ok::<_, String>((files, config))
        });
        let token = listener.token_file.as_ref().map(|file| {
            let file = beside(policy, file);
            let token = ArcSwap::from_pointee(read_token(&file)?);
            Ok::<_, String>((file, token))
        });
        let (tls, token) = (tls.transpose()?, token.transpose()?);
        let is_local = listener.address.ip().to_canonical().is_loopback();
        let is_guarded =
            token.is_some() || tls.as_ref().is_some_and(|(files, _)| files.client_ca.is_some());
        let address = listener.address;
        if !is_local && !is_guarded && door == Door::Admin {
            return Err(format!(
                "the admin door at {address} is open to others and asks for nothing; give it a \
                 token_file, client certificates (tls.client_ca), or an address on loopback"
            ));
        }
        if !is_local && !is_guarded {
            tracing::warn!(%door, %address, "whoever can reach this door can spend everybody's \
                budget; give it a token_file or client certificates (tls.client_ca)");
        }
        Ok(Self { door, tls, token })
    }

    /// What TLS needs, if this door speaks it.
    pub(crate) fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.tls.as_ref().map(|(_, config)| config.load_full())
    }

    /// What callers must show, if anything.
    pub(crate) fn token(&self) -> Option<Arc<Token>> {
        self.token.as_ref().map(|(_, token)| token.load_full())
    }

    /// The files of the lock.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let tls = self.tls.iter().flat_map(|(files, _)| files.paths());
        tls.chain(self.token.iter().map(|(file, _)| file)).cloned().collect()
    }

    /// Reads the files again. What cannot be used changes nothing.
    pub(crate) fn reload(&self) -> Result<(), String> {
        if let Some((files, config)) = &self.tls {
            config.store(files.load(self.door.protocols())?);
        }
        if let Some((file, token)) = &self.token {
            token.store(Arc::new(read_token(file)?));
        }
        Ok(())
    }
}

fn read_token(file: &Path) -> Result<Token, String> {
    let text = text_of(file, SECRET_FILE_BYTES_MAX)
        .map_err(|why| format!("{} cannot be read: {why}", file.display()))?;
    Token::read(&text).ok_or_else(|| format!("{} holds no token", file.display()))
}
