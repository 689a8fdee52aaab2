//! Loading the policy, at first and whenever its files change.
//!
//! A bad file never replaces a good one: what is in force stays, the mistakes are logged and shown.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};
use tollgate::envoy::Descriptors;
use tollgate::{Policy, Settings};

use crate::audit::Effect;
use crate::bounds::LOOK_EVERY;
use crate::door::{Entrance, Lock};
use crate::files::{self, Unusable};
use crate::gate::Gate;
use crate::policy_file::{self, Loaded};
use crate::server::Source;
use crate::tls;
use crate::watched::Look;

/// What came of an attempt to load the policy anew: whether the files were others than before, or every
/// mistake.
pub(crate) type Outcome = Result<Effect, String>;

/// Somebody who wants the policy loaded anew, and waits for what comes of it.
pub(crate) type Request = oneshot::Sender<Outcome>;

/// Loads the policy anew when its files change, and when asked to.
pub(crate) struct Reloader {
    source: Source,
    /// What was read last, for the policy in force or an attempt at another, as it looked then.
    read: Arc<Look>,
    /// What cannot change while we run.
    at_start: Arc<Settings>,
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
        let at_start = Arc::new(gate.limiter.with_policy(|policy| policy.settings().clone()));
        Self { source, read: Arc::new(read), at_start, entrances, requests, gate }
    }

    /// Goes on until it is aborted.
    pub(crate) async fn run(mut self) {
        let mut ticks = interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut before = None;
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    let read = Arc::clone(&self.read);
                    let Some(now) = apart(move || read.again()).await else { continue };
                    // A file that is being written looks different every time.
                    if now != *self.read && before.as_ref() == Some(&now) {
                        // What came of it is logged.
                        let _ = self.reload().await;
                    }
                    before = Some(now);
                }
                Some(request) = self.requests.recv() => {
                    // Whoever asked may have gone.
                    let _ = request.send(self.reload().await);
                }
            }
        }
    }

    /// Reads everything again, and puts it in force if nothing in it is wrong.
    async fn reload(&mut self) -> Outcome {
        let (source, entrances) = (self.source.clone(), self.entrances.clone());
        let (gate, at_start) = (Arc::clone(&self.gate), Arc::clone(&self.at_start));
        let reloaded = apart(move || {
            let mut read = Look::default();
            note_locks(&entrances, &mut read);
            let outcome = reload(&source, &entrances, &gate, &at_start, &mut read);
            (outcome, read)
        });
        let Some((outcome, read)) = reloaded.await else {
            return Err("loading the policy ended in a bug of ours".to_owned());
        };
        let outcome = outcome.map(|()| Effect::of(read != *self.read));
        self.read = Arc::new(read);
        self.gate.policy_status.note(&outcome, self.gate.limiter.now());
        match &outcome {
            Ok(_) => tracing::info!("policy loaded anew"),
            Err(mistakes) => tracing::error!("everything stays as it was: {mistakes}"),
        }
        outcome
    }
}

/// Does work with files on a thread of its own: a file of a million tenants takes seconds, a file
/// system that hangs takes for ever, and connections are accepted meanwhile.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    spawn_blocking(work).await.ok()
}

fn reload(
    source: &Source,
    entrances: &[Arc<Entrance>],
    gate: &Gate,
    at_start: &Settings,
    read: &mut Look,
) -> Result<(), String> {
    let locks: Vec<Result<Lock, Vec<Unusable>>> =
        entrances.iter().map(|entrance| entrance.read_again()).collect();
    let loaded = match source {
        Source::Quickstart => None,
        Source::File(path) => Some(policy_file::read_noting(path, read)),
    };
    let mut wrong: Vec<String> = Vec::new();
    wrong.extend(loaded.iter().filter_map(|it| it.as_ref().err()).map(ToString::to_string));
    wrong.extend(locks.iter().filter_map(|it| it.as_ref().err()).map(|it| files::sentences(it)));
    let upstream_tls = match (source, &loaded) {
        (Source::File(path), Some(Ok(Loaded { policy, .. }))) => {
            let upstream_tls = tls::for_upstreams(policy.settings(), path);
            upstream_tls.map_err(|sentence| wrong.push(sentence)).ok()
        }
        _ => None,
    };
    let audit = match (source, &loaded) {
        (Source::File(path), Some(Ok(Loaded { policy, .. }))) => {
            let audit = gate.audit.prepare(policy.settings().observe.audit.as_ref(), path);
            audit.map_err(|sentence| wrong.push(sentence)).ok()
        }
        _ => None,
    };
    if !wrong.is_empty() {
        return Err(wrong.join("\n"));
    }
    if let Some(Ok(Loaded { policy, descriptors })) = loaded {
        warn(&policy, &descriptors);
        warn_of_changes(at_start, policy.settings());
        // Before servers that need it are in force; what nobody needs any more does no harm.
        if let Some(Some(upstream_tls)) = upstream_tls {
            gate.upstream_tls.store(Some(upstream_tls));
        }
        gate.limiter.replace_all(policy, descriptors).map_err(|error| error.to_string())?;
        audit.into_iter().for_each(|audit| gate.audit.put_in_force(audit));
    }
    for (entrance, lock) in entrances.iter().zip(locks.into_iter().flatten()) {
        entrance.change_lock(lock);
    }
    Ok(())
}

/// Logs what is allowed and probably not meant.
pub(crate) fn warn(policy: &Policy, descriptors: &Descriptors) {
    for warning in policy.warnings().iter().chain(descriptors.warnings()) {
        tracing::warn!("{warning}");
    }
}

fn warn_of_changes(at_start: &Settings, now: &Settings) {
    if now.upstream.is_empty() && !at_start.upstream.is_empty() {
        tracing::warn!("there is no `upstream` any more; the gateway answers everything with 404");
    }
    for (name, is_other) in [
        ("listen", at_start.listen != now.listen),
        ("store", at_start.store != now.store),
        ("max_held", at_start.gateway.max_held != now.gateway.max_held),
    ] {
        if is_other {
            tracing::warn!("`{name}` is read at the start only; restart for it to change");
        }
    }
}

/// Notes what the files of the doors' locks look like.
fn note_locks(entrances: &[Arc<Entrance>], look: &mut Look) {
    for file in entrances.iter().flat_map(|entrance| entrance.files()) {
        look.note(file);
    }
}
