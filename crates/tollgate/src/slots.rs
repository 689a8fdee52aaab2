//! Concurrency slots of what is under way: requests, connections, WebSockets.
//!
//! A slot comes back when its [`Slot`] is dropped, which happens once and whatever ends the work.
//! Until then its lease is renewed: a response may take longer than a lease, and nobody may be asking
//! for the rest of it. So that is not left to whoever polls: while there are slots, one task for each
//! length of lease renews those that have been held for a while.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::runtime::Handle;
use tokio::time::{Duration, sleep};
use tollgate_core::{Limit, Logged};

use crate::{Answer, Lease, Limiter, Micros, Verdict};

/// The slots that are held, whose leases are renewed on the runtime of whoever holds them.
///
/// ```
/// # use std::sync::Arc;
/// use tollgate::{Limiter, Request, Slots};
///
/// let policy = "limits: [{name: at-work, concurrency: 1}]";
/// let limiter = Arc::new(Limiter::from_yaml(policy)?);
/// let slots = Arc::new(Slots::new(Arc::clone(&limiter)));
///
/// let mut verdict = limiter.check(&Request::new(&[]));
/// let slot = slots.hold(&mut verdict);
/// assert!(!limiter.check(&Request::new(&[])).is_allowed(), "one is at work");
/// drop(slot);
/// assert!(limiter.check(&Request::new(&[])).is_allowed());
/// # Ok::<(), tollgate::LimiterError>(())
/// ```
pub struct Slots {
    limiter: Arc<Limiter>,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    by_length: HashMap<Micros, Alike>,
    given: u64,
}

/// Slots whose leases are equally long.
#[derive(Default)]
struct Alike {
    leases: HashMap<u64, Kept>,
    is_tended: bool,
}

struct Kept {
    lease: Lease,
    /// Whether it was there already when leases were last renewed.
    is_old: bool,
}

/// Held while something is under way; dropped, it gives its slots back.
#[must_use = "slots come back when this is dropped"]
pub struct Slot {
    slots: Arc<Slots>,
    length: Micros,
    id: u64,
}

impl Slots {
    /// For slots of `limiter`.
    pub fn new(limiter: Arc<Limiter>) -> Self {
        Self { limiter, held: Mutex::default() }
    }

    /// Holds the slots that a verdict came with, if it came with any.
    pub fn hold(self: &Arc<Self>, verdict: &mut Verdict) -> Option<Slot> {
        let lease = verdict.take_lease()?;
        let shortest = verdict.answers().filter_map(lease_of).min().unwrap_or(lease.length());
        Some(self.keep(lease, shortest))
    }

    /// Holds a lease, the shortest of whose slots lasts for `length`.
    fn keep(self: &Arc<Self>, lease: Lease, length: Micros) -> Slot {
        let mut held = self.lock();
        held.given += 1;
        let id = held.given;
        let alike = held.by_length.entry(length).or_default();
        alike.leases.insert(id, Kept { lease, is_old: false });
        // Without a runtime nobody renews, and a lease is only as long as the policy says.
        if !alike.is_tended
            && let Ok(runtime) = Handle::try_current()
        {
            alike.is_tended = true;
            runtime.spawn(Tending { slots: Arc::downgrade(self), length }.run());
        }
        Slot { slots: Arc::clone(self), length, id }
    }

    /// Renews what has been held for a while; false if there is nothing left to look after, and
    /// whoever comes next starts another task.
    fn renew(&self, length: Micros) -> bool {
        let mut held = self.lock();
        let alike = held.by_length.entry(length).or_default();
        if alike.leases.is_empty() {
            held.by_length.remove(&length);
            return false;
        }
        for kept in alike.leases.values_mut() {
            if kept.is_old {
                // What is on its way gets there whether somebody waits for the answer or not.
                drop(self.limiter.renew(&kept.lease));
            }
            kept.is_old = true;
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots").finish_non_exhaustive()
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").finish_non_exhaustive()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut held = self.slots.lock();
        let alike = held.by_length.get_mut(&self.length);
        let kept = alike.and_then(|alike| alike.leases.remove(&self.id));
        drop(held);
        if let Some(kept) = kept {
            drop(self.slots.limiter.release(kept.lease));
        }
    }
}

fn lease_of(answer: Answer<'_>) -> Option<Micros> {
    match answer.limit() {
        Limit::Logged(Logged::Concurrency(limit)) => Some(limit.lease()),
        _ => None,
    }
}

/// The task that renews leases of one length.
struct Tending {
    slots: Weak<Slots>,
    length: Micros,
}

impl Tending {
    async fn run(mut self) {
        // What is renewed from its second look on is renewed before two thirds of its lease are over.
        let pause = Duration::from_micros(self.length.as_micros() / 3);
        loop {
            sleep(pause).await;
            let Some(slots) = self.slots.upgrade() else { return };
            if !slots.renew(self.length) {
                self.slots = Weak::new();
                return;
            }
        }
    }
}

impl Drop for Tending {
    /// Its runtime ended before the slots did: whoever comes next starts another on its own.
    fn drop(&mut self) {
        let Some(slots) = self.slots.upgrade() else { return };
        if let Some(alike) = slots.lock().by_length.get_mut(&self.length) {
            alike.is_tended = false;
        }
    }
}
