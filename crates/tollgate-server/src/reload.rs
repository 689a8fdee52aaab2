//! Loading the policy, at first and whenever its files change.
//!
//! A bad file never replaces a good one: what is in force stays, the mistakes are logged and shown.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::interval;
use tollgate::envoy::Descriptors;
use tollgate::{Limiter, Policy};

use crate::bounds::LOOK_EVERY;
use crate::door::Entrance;
use crate::gate::Gate;
use crate::policy_file::{self, Loaded};
use crate::server::Source;
use crate::watched::Look;

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
            (policy_file::read_noting(&path, &mut files), files)
        });
        let (loaded, files) = read.await.map_err(|error| error.to_string())?;
        self.files = files;
        let loaded = loaded.map_err(|error| error.to_string());
        let outcome = loaded.and_then(|loaded| put_in_force(&self.gate.limiter, loaded));
        self.gate.policy_status.note(&outcome);
        match &outcome {
            Ok(()) => tracing::info!("policy loaded anew"),
            Err(mistakes) => tracing::error!(%mistakes, "the policy stays as it was"),
        }
        outcome
    }
}

/// Puts everything that was loaded in force. Nothing of it can be wrong any more, but there may be
/// too much of it.
fn put_in_force(limiter: &Limiter, loaded: Loaded) -> Outcome {
    let Loaded { policy, descriptors } = loaded;
    warn(&policy, &descriptors);
    let settings = policy.settings().descriptors.clone().unwrap_or_default();
    limiter.replace_policy(policy).map_err(|error| error.to_string())?;
    limiter.replace_descriptors(descriptors, &settings).map_err(|error| error.to_string())
}

/// Logs what is allowed and probably not meant.
pub(crate) fn warn(policy: &Policy, descriptors: &Descriptors) {
    for warning in policy.warnings().iter().chain(descriptors.warnings()) {
        tracing::warn!("{warning}");
    }
}
