//! Loading the policy, at first and whenever its files change.
//!
//! A bad file never replaces a good one: what is in force stays, the mistakes are logged and shown.

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
    /// What was read last, for the policy in force or an attempt at another, as it looked then.
    read: Look,
    entrances: Vec<Arc<Entrance>>,
    requests: mpsc::Receiver<Request>,
    gate: Arc<Gate>,
}

impl Reloader {
    pub(crate) fn new(
        source: Source,
        mut read: Look,
        entrances: Vec<Arc<Entrance>>,
        requests: mpsc::Receiver<Request>,
        gate: Arc<Gate>,
    ) -> Self {
        note_locks(&entrances, &mut read);
        Self { source, read, entrances, requests, gate }
    }

    /// Goes on until it is aborted.
    pub(crate) async fn run(mut self) {
        let mut ticks = interval(LOOK_EVERY);
        let mut before = self.read.again();
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    let now = self.read.again();
                    // A file that is being written looks different every time.
                    if now != self.read && now == before {
                        // What came of it is logged.
                        let _ = self.reload().await;
                    }
                    before = now;
                }
                Some(request) = self.requests.recv() => {
                    // Whoever asked may have gone.
                    let _ = request.send(self.reload().await);
                }
            }
        }
    }

    async fn reload(&mut self) -> Outcome {
        let mut read = Look::default();
        note_locks(&self.entrances, &mut read);
        for entrance in &self.entrances {
            if let Err(why) = entrance.reload() {
                tracing::error!(door = %entrance.door, %why, "certificates or token stay as they were");
            }
        }
        let Source::File(path) = &self.source else { return Ok(()) };
        let path = path.clone();
        // A file of a million tenants takes seconds; connections are accepted meanwhile.
        let reading = spawn_blocking(move || (policy_file::read_noting(&path, &mut read), read));
        let (loaded, read) = reading.await.map_err(|error| error.to_string())?;
        self.read = read;
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

/// Notes what the files of the doors' locks look like.
fn note_locks(entrances: &[Arc<Entrance>], look: &mut Look) {
    for file in entrances.iter().flat_map(|entrance| entrance.files()) {
        look.note(&file);
    }
}
