//! The audit log: who was refused, and what operators did.
//!
//! Deciding never waits for it. Lines are made where something happens, if sampling and the rate bound
//! let them be, and written by a thread. What operators change has an allowance and room in the queue of
//! its own, so that no flood of denials hides it, nor one of actions that change nothing or of strangers
//! who would be operators: they have others.

mod allowance;
mod bounds;
mod line;
mod writer;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwapOption;
use tollgate::{AuditSettings, Denial, DenialSink, Key, KeyBuf, Limiter, Rule, Ruling, Value};

use crate::door::Door;
use crate::policy_file::beside;
use allowance::{Allowance, Sample};
use bounds::{CHANGES_RATE, NOTHING_RATE, STRANGERS_RATE};
use writer::{Ending, Room, Writer};

/// The audit log of a server, or none if the policy asks for none.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    log: ArcSwapOption<Log>,
    /// The thread of the log in force.
    ending: Mutex<Option<Ending>>,
    counts: Arc<Counts>,
}

/// A log in force.
#[derive(Debug)]
struct Log {
    settings: AuditSettings,
    sample: Sample,
    denials: Allowance,
    /// Of actions that changed something, of those that did not, and of strangers'.
    changes: Allowance,
    nothing: Allowance,
    strangers: Allowance,
    writer: Writer,
}

/// What a policy asks for, ready to be put in force.
pub(crate) enum Prepared {
    /// What is in force.
    Same,
    Other(Option<Opened>),
}

/// A log that is not in force yet.
pub(crate) struct Opened(Arc<Log>, Ending);

/// What a line is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Denied,
    Uncounted,
    Blocked,
    UnknownKey,
    Admin,
}

impl Kind {
    pub(crate) const ALL: [Self; 5] =
        [Self::Denied, Self::Uncounted, Self::Blocked, Self::UnknownKey, Self::Admin];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Denied => Ruling::Denied.name(),
            Self::Uncounted => Ruling::Uncounted.name(),
            Self::Blocked => Ruling::Blocked.name(),
            Self::UnknownKey => Ruling::UnknownKey.name(),
            Self::Admin => "admin",
        }
    }

    fn of(ruling: Ruling) -> Option<Self> {
        match ruling {
            Ruling::Denied => Some(Self::Denied),
            Ruling::Uncounted => Some(Self::Uncounted),
            Ruling::Blocked => Some(Self::Blocked),
            Ruling::UnknownKey => Some(Self::UnknownKey),
            Ruling::Allowed | Ruling::Exempt | Ruling::BadCost => None,
        }
    }
}

/// What somebody does at the admin door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action<'a> {
    /// Asks for something that is not for everybody, and is turned away.
    Access,
    Reload,
    Reset(&'a KeyBuf),
    Override(&'a KeyBuf),
    Ban(&'a KeyBuf),
    RemoveOverride(&'a KeyBuf),
    Unban(&'a KeyBuf),
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Something is other than before.
    Changed,
    /// Nothing is, since nothing was to be done, or it could not or may not be.
    Nothing,
}

impl Effect {
    pub(crate) fn of(has_changed: bool) -> Self {
        if has_changed { Self::Changed } else { Self::Nothing }
    }
}

impl<'a> Action<'a> {
    fn name(&self) -> &'static str {
        match self {
            Self::Access => "access",
            Self::Reload => "reload",
            Self::Reset(_) => "reset",
            Self::Override(_) => "override",
            Self::Ban(_) => "ban",
            Self::RemoveOverride(_) => "remove_override",
            Self::Unban(_) => "unban",
        }
    }

    /// What a key is allowed by an override that was put.
    fn change(&self, limiter: &Limiter) -> Option<serde_json::Value> {
        let (Self::Override(key) | Self::Ban(key)) = self else { return None };
        serde_json::from_str(&limiter.override_of(key)?.to_string()).ok()
    }

    fn key(&self) -> Option<&'a KeyBuf> {
        match self {
            Self::Access | Self::Reload => None,
            Self::Reset(key)
            | Self::Override(key)
            | Self::Ban(key)
            | Self::RemoveOverride(key)
            | Self::Unban(key) => Some(key),
        }
    }
}

/// How many lines were written, and how many were not.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    lines: [AtomicU64; Kind::ALL.len()],
    dropped: AtomicU64,
}

impl Counts {
    fn wrote(&self, kind: Kind) {
        self.lines[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn lines_of(&self, kind: Kind) -> u64 {
        self.lines[kind as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn dropped_lines(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl Audit {
    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Opens what the policy at `path` asks for. If it cannot be opened, a sentence says so, and what is
    /// in force stays.
    pub(crate) fn prepare(
        &self,
        settings: Option<&AuditSettings>,
        path: &Path,
    ) -> Result<Prepared, String> {
        let before = self.log.load();
        if before.as_ref().map(|log| &log.settings) == settings {
            return Ok(Prepared::Same);
        }
        let Some(settings) = settings else { return Ok(Prepared::Other(None)) };
        let file = beside(path, &settings.file);
        let (writer, ending) = Writer::start(&file, &self.counts).map_err(|error| {
            format!("the audit log {} cannot be written: {error}", file.display())
        })?;
        let log = Log {
            settings: settings.clone(),
            sample: Sample::new(settings.sample),
            denials: Allowance::new(settings.rate),
            changes: Allowance::new(CHANGES_RATE),
            nothing: Allowance::new(NOTHING_RATE),
            strangers: Allowance::new(STRANGERS_RATE),
            writer,
        };
        Ok(Prepared::Other(Some(Opened(Arc::new(log), ending))))
    }

    /// Puts it in force. What is being written under the log before it still gets there.
    pub(crate) fn put_in_force(&self, prepared: Prepared) {
        match prepared {
            Prepared::Same => {
                if let Some(log) = &*self.log.load() {
                    log.writer.look();
                }
            }
            Prepared::Other(other) => {
                let (log, ending) = other.map(|Opened(log, ending)| (log, ending)).unzip();
                self.log.store(log);
                *self.ending.lock().unwrap_or_else(PoisonError::into_inner) = ending;
            }
        }
    }

    /// Ends it when everything is written, or when that takes too long.
    pub(crate) fn close(&self) {
        self.log.store(None);
        let ending = self.ending.lock().unwrap_or_else(PoisonError::into_inner).take();
        ending.into_iter().for_each(Ending::wait);
    }

    /// Writes down what somebody did at the admin door, what came of it, and what it was answered with.
    pub(crate) fn acted(
        &self,
        limiter: &Limiter,
        action: &Action<'_>,
        effect: Effect,
        peer: SocketAddr,
        status: u16,
    ) {
        let log = self.log.load();
        let Some(log) = &*log else { return };
        let at = limiter.now();
        let (allowance, room) = match (action, effect) {
            (Action::Access, _) => (&log.strangers, Room::Nothing),
            (_, Effect::Nothing) => (&log.nothing, Room::Nothing),
            (_, Effect::Changed) => (&log.changes, Room::Changes),
        };
        if !allowance.take(at) {
            return self.counts.dropped();
        }
        let acted = line::Acted { action: action.name(), peer, status };
        let is_done = acted.is_done();
        let key = action.key().and_then(|key| shown(limiter, key, is_done));
        let change = action.change(limiter).filter(|_| is_done);
        let subject = line::Subject { key, change };
        log.writer.write(Kind::Admin, room, line::of_action(at, &acted, subject));
    }
}

/// A key that an operator names, as it may be written down. If nothing was done with it, it may be none
/// at all, but a secret that was taken for one: of that no more is shown than of any other secret.
fn shown(limiter: &Limiter, key: &KeyBuf, is_done: bool) -> Option<String> {
    if is_done {
        return Some(limiter.shown_key(key));
    }
    let is_limit = |rule: &Rule| &**rule.name() == key.limit();
    let is_known = limiter.with_policy(|policy| policy.rules().iter().any(is_limit));
    is_known.then(|| hashed(limiter, key))
}

/// A key with every value as a hash.
fn hashed(limiter: &Limiter, key: &KeyBuf) -> String {
    let mut values = key.values();
    for value in &mut values {
        if let Some(bytes) =
            value.bytes.filter(|_| value.shard_number().is_none() && !value.is_secret())
        {
            *value = Value { source: value.source, ..Value::secret(bytes) };
        }
    }
    limiter.store().key_text(&Key { limit: key.limit(), values: &values })
}

impl DenialSink for Audit {
    fn refused(&self, denial: &Denial<'_>) {
        let log = self.log.load();
        let (Some(log), Some(kind)) = (&*log, Kind::of(denial.ruling)) else { return };
        let Some(stands_for) = log.sample.draw() else { return };
        if !log.denials.take(denial.at) {
            return self.counts.dropped();
        }
        let stands_for = stands_for * u64::from(denial.weight);
        let line = line::of_denial(denial, Door::of_task(), stands_for);
        log.writer.write(kind, Room::Denials, line);
    }
}

#[cfg(test)]
mod tests;
