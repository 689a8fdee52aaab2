//! Loading the policy, at first and whenever its files change.
//!
//! A bad file never replaces a good one: what is in force stays, the mistakes are logged and shown.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::interval;
use tollgate::Policy;

use crate::bounds::LOOK_EVERY;
use crate::door::Entrance;
use crate::gate::Gate;
use crate::policy_file::{self, NoPolicy};
use crate::server::{QUICKSTART, Source, StartError};
use crate::watched::Look;

/// A policy, and every file it is made of.
pub(crate) struct Loaded {
    pub(crate) policy: Policy,
    pub(crate) files: Vec<PathBuf>,
}

impl Loaded {
    pub(crate) fn from(source: &Source) -> Result<Self, StartError> {
        match source {
            Source::Quickstart => {
                let no_files = |_: &str| Err("the built-in policy names none".to_owned());
                let policy = Policy::parse("quickstart", QUICKSTART, &mut { no_files });
                let policy = policy.expect("the built-in policy is tested");
                Ok(Self { policy, files: Vec::new() })
            }
            Source::File(path) => {
                let mut files = Vec::new();
                let policy = load(path, &mut files).map_err(|error| (error, path.as_path()))?;
                Ok(Self { policy, files })
            }
        }
    }
}

fn load(path: &Path, files: &mut Vec<PathBuf>) -> Result<Policy, NoPolicy> {
    policy_file::read_noting(path, files)
}

/// What came of an attempt to load the policy anew: nothing, or every mistake.
pub(crate) type Outcome = Result<(), String>;

/// Somebody who wants the policy loaded anew, and waits for what comes of it.
pub(crate) type Request = oneshot::Sender<Outcome>;

/// Loads the policy anew when its files change, and when asked to.
pub(crate) struct Reloader {
    source: Source,
    /// What the policy in force, or the last attempt at another, was made of.
    files: Vec<PathBuf>,
    entrances: Vec<Arc<Entrance>>,
    requests: mpsc::Receiver<Request>,
    gate: Arc<Gate>,
}

impl Reloader {
    pub(crate) fn new(
        source: Source,
        files: Vec<PathBuf>,
        entrances: Vec<Arc<Entrance>>,
        requests: mpsc::Receiver<Request>,
        gate: Arc<Gate>,
    ) -> Self {
        Self { source, files, entrances, requests, gate }
    }

    /// Goes on until it is aborted.
    pub(crate) async fn run(mut self) {
        let mut ticks = interval(LOOK_EVERY);
        let mut loaded = self.look();
        let mut before = loaded.clone();
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    let now = self.look();
                    // A file that is being written looks different every time.
                    if now != loaded && now == before {
                        (loaded, _) = self.reload_noting(now.clone()).await;
                    }
                    before = now;
                }
                Some(request) = self.requests.recv() => {
                    let (now, outcome) = self.reload_noting(self.look()).await;
                    loaded = now;
                    // Whoever asked may have gone.
                    let _ = request.send(outcome);
                }
            }
        }
    }

    /// Reloads, and says what the files looked like that were read; `before` is what they looked
    /// like right before. One that changes while it is read is read again.
    async fn reload_noting(&mut self, before: Look) -> (Look, Outcome) {
        let files = self.files.clone();
        let outcome = self.reload().await;
        (if files == self.files { before } else { self.look() }, outcome)
    }

    fn look(&self) -> Look {
        let locks = self.entrances.iter().flat_map(|entrance| entrance.files());
        let files: Vec<PathBuf> = self.files.iter().cloned().chain(locks).collect();
        Look::at(&files)
    }

    async fn reload(&mut self) -> Outcome {
        for entrance in &self.entrances {
            if let Err(why) = entrance.reload() {
                tracing::error!(door = %entrance.door, %why, "certificates or token stay as they were");
            }
        }
        let Source::File(path) = &self.source else { return Ok(()) };
        let path = path.clone();
        // A file of a million tenants takes seconds; connections are accepted meanwhile.
        let read = spawn_blocking(move || {
            let mut files = Vec::new();
            (load(&path, &mut files).map_err(|error| error.told_of(&path)), files)
        });
        let (policy, files) = read.await.map_err(|error| error.to_string())?;
        self.files = files;
        let outcome = policy.and_then(|policy| self.put_in_force(policy));
        self.gate.policy_status.note(&outcome);
        match &outcome {
            Ok(()) => tracing::info!("policy loaded anew"),
            Err(mistakes) => tracing::error!(%mistakes, "the policy stays as it was"),
        }
        outcome
    }

    fn put_in_force(&self, policy: Policy) -> Outcome {
        for warning in policy.warnings() {
            tracing::warn!("{warning}");
        }
        self.gate.limiter.replace_policy(policy).map_err(|error| error.to_string())
    }
}
