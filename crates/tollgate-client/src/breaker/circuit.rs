//! The circuit of one key, shared by all who call under it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use tokio::time::Instant;

use super::machine::{Machine, Outcome, Shut, Ticket, Turn};
use super::{Change, Listener, Reason, Settings, State};
use crate::clock;
use crate::events;
use crate::retry::Share;

/// The circuit of one key. Clones are the same circuit.
#[derive(Clone, Debug)]
pub struct Circuit {
    shared: Arc<Shared>,
}

pub(super) struct Shared {
    key: Arc<str>,
    listener: Option<Listener>,
    /// Of the requests that are made under it, how many may be retries.
    share: Arc<Share>,
    machine: Mutex<Machine>,
    /// Held by whoever tells of changes.
    telling: Mutex<()>,
}

impl Circuit {
    pub(super) fn of(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Makes a call if the circuit lets it through. An error is a failure.
    pub async fn call<T, E>(
        &self,
        call: impl AsyncFnOnce() -> Result<T, E>,
    ) -> Result<T, CallError<E>> {
        let permit = self.enter().map_err(CallError::Open)?;
        match call().await {
            Ok(value) => {
                permit.succeeded();
                Ok(value)
            }
            Err(error) => {
                permit.failed();
                Err(CallError::Failed(error))
            }
        }
    }

    /// Lets a call through, or not. Whoever has the permit says how the call ended; one that is
    /// dropped has not ended.
    pub fn enter(&self) -> Result<Permit, Open> {
        self.enter_at(clock::now())
    }

    pub(crate) fn enter_at(&self, now: Instant) -> Result<Permit, Open> {
        let ticket = self.shared.with(|machine| machine.enter(now));
        let ticket = ticket.map_err(|shut| {
            events::not_made(Some(&self.shared.key), "open");
            self.open(shut)
        })?;
        Ok(Permit { circuit: self.clone(), ticket: Some(ticket) })
    }

    /// Whether a call would be let through, as far as can be told without making it.
    pub fn check(&self) -> Result<(), Open> {
        self.check_at(clock::now())
    }

    pub(crate) fn check_at(&self, now: Instant) -> Result<(), Open> {
        let shut = self.shared.machine().shut(now);
        shut.map_or(Ok(()), |shut| Err(self.open(shut)))
    }

    fn open(&self, Shut { reason, retry_after }: Shut) -> Open {
        Open { key: self.shared.key.clone(), reason, retry_after }
    }

    /// A call was refused that began before there was a circuit. One that has opened since is not told: it is others
    /// who see how it is.
    #[cfg(any(feature = "reqwest", feature = "tower"))]
    pub(super) fn was_refused_at(&self, now: Instant) {
        self.shared.with(|machine| {
            if machine.state(now) == State::Closed
                && let Ok(ticket) = machine.enter(now)
            {
                machine.leave(ticket, Outcome::Refusal, now);
            }
        });
    }

    #[cfg(any(feature = "reqwest", feature = "tower"))]
    pub(super) fn key(&self) -> &str {
        &self.shared.key
    }

    #[cfg(any(feature = "reqwest", feature = "tower"))]
    pub(crate) fn share(&self) -> &Share {
        &self.shared.share
    }

    /// How it is.
    pub fn state(&self) -> State {
        self.shared.machine().state(clock::now())
    }

    /// Opens it until somebody takes that back; then calls are made to see. It holds for all who have this
    /// circuit, which are not those of its key if there were too many keys when it was made
    /// ([`KEYS_MAX`](crate::bounds::KEYS_MAX)).
    pub fn force_open(&self, is_forced: bool) {
        self.shared.with(|machine| machine.force(is_forced));
    }
}

impl Shared {
    pub(super) fn new(
        key: &str,
        listener: Option<Listener>,
        share: Arc<Share>,
        settings: Settings,
        now: Instant,
    ) -> Self {
        let machine = Mutex::new(Machine::new(settings, now));
        Self { key: key.into(), listener, share, machine, telling: Mutex::default() }
    }

    pub(super) fn is_fresh(&self, now: Instant) -> bool {
        self.machine().is_fresh(now) && self.share.is_fresh(now)
    }

    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something to the machine, and tells of what changed when its lock is free again.
    fn with<T>(&self, act: impl FnOnce(&mut Machine) -> T) -> T {
        let mut machine = self.machine();
        let answer = act(&mut machine);
        let has_turned = machine.has_turned();
        drop(machine);
        if has_turned {
            self.tell();
        }
        answer
    }

    /// One tells of all changes in their order; whoever makes another meanwhile leaves it to the one who tells.
    #[cold]
    fn tell(&self) {
        while self.machine().has_turned() {
            let _telling = match self.telling.try_lock() {
                Ok(telling) => telling,
                // A listener has panicked; the next one is told nevertheless.
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            loop {
                let turn = self.machine().next_turn();
                let Some(Turn { from, to, reason }) = turn else { break };
                let change = Change { key: self.key.clone(), from, to, reason };
                events::circuit(&change);
                if let Some(listener) = &self.listener {
                    listener(&change);
                }
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        events::circuit_gone(self.machine().state_as_told());
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let machine = self.machine();
        f.debug_struct("Shared").field("key", &self.key).field("machine", &*machine).finish()
    }
}

/// A call that was let through.
#[derive(Debug)]
pub struct Permit {
    circuit: Circuit,
    /// Gone when the end of the call was told.
    ticket: Option<Ticket>,
}

impl Permit {
    /// The call went well.
    pub fn succeeded(self) {
        self.end(Outcome::Success, clock::now());
    }

    /// The call failed.
    pub fn failed(self) {
        self.end(Outcome::Failure, clock::now());
    }

    /// The call was refused: the other side works, and wants less. For a circuit that failures have opened this is a
    /// success; one that refusals have opened opens again.
    pub fn refused(self) {
        self.end(Outcome::Refusal, clock::now());
    }

    /// The call was not made after all: its place is given back, and it tells nothing, however long that took.
    pub fn not_made(self) {
        self.end(Outcome::NotMade, clock::now());
    }

    pub(crate) fn end(mut self, outcome: Outcome, now: Instant) {
        self.leave(outcome, now);
    }

    fn leave(&mut self, outcome: Outcome, now: Instant) {
        if let Some(ticket) = self.ticket.take() {
            self.circuit.shared.with(|machine| machine.leave(ticket, outcome, now));
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            self.leave(Outcome::Dropped, clock::now());
        }
    }
}

/// A circuit is open: the call was not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// Whose circuit.
    pub key: Arc<str>,
    /// Why it opened; [`Reason::Rested`] if it is half open, and others are to see how it is.
    pub reason: Reason,
    /// How long until a call may be let through, if that is known.
    pub retry_after: Option<Duration>,
}

impl fmt::Display for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        f.write_str(match self.reason {
            Reason::Forced => " was not called: its circuit was opened by hand",
            Reason::Refusals => " has refused everything of late and was not called",
            Reason::Rested => " is being tried by others after a pause, and was not called",
            _ => " does not work of late and was not called",
        })?;
        match self.retry_after {
            Some(wait) => write!(f, "; try again in {} ms", wait.as_millis()),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Open {}

/// Why a call brought nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError<E> {
    /// It was not made.
    Open(Open),
    /// It was made, and failed.
    Failed(E),
}

impl<E: fmt::Display> fmt::Display for CallError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(open) => open.fmt(f),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for CallError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Open(_) => None,
            Self::Failed(error) => error.source(),
        }
    }
}
