//! Concurrency slots that callers over the network hold.
//!
//! The store gives a slot back by itself when its lease ends, and from then on its name means nothing
//! here either. So what is kept here is bounded by the slots that are held, and those by the memory of
//! the store; it comes on top of that memory.

use std::sync::Arc;

use tollgate::{Asked, Lease, Limiter};

use crate::gate::Gate;
use crate::tickets::Tickets;

/// Leases by name.
#[derive(Debug)]
pub(crate) struct Leases(Tickets<Kept>);

#[derive(Debug)]
struct Kept {
    lease: Lease,
    /// Whether a caller has said its name, which nobody knows who was not told.
    is_known: bool,
}

impl Leases {
    pub(crate) fn new() -> Self {
        Self(Tickets::new())
    }

    /// Keeps a lease; gives the name that releases it.
    fn keep(&self, lease: Lease, limiter: &Limiter) -> String {
        let now = limiter.now();
        self.0.keep(now, now.plus(lease.length()), |_| Kept { lease, is_known: false })
    }

    /// How many are kept, those included that have ended and are not forgotten yet.
    pub(crate) fn count(&self) -> usize {
        self.0.count()
    }

    /// Gives the slots of a lease back; false if it is unknown or has ended, nothing if nobody can tell.
    pub(crate) fn release(&self, name: &str, limiter: &Limiter) -> Asked<Option<bool>> {
        let kept = self.0.take(name);
        kept.map_or(Asked::Ready(Some(false)), |kept| limiter.release(kept.lease))
    }

    /// Gives the slots of a lease back unless somebody knows of it.
    fn withdraw(&self, name: &str, limiter: &Limiter) {
        if self.0.with(name, |kept, _| kept.is_known) == Some(false) {
            // It is on its way whether somebody waits for the answer or not.
            drop(self.release(name, limiter));
        }
    }

    /// Starts a lease anew; false if it is unknown or has ended, nothing if nobody can tell.
    pub(crate) fn renew(&self, name: &str, limiter: &Limiter) -> Asked<Option<bool>> {
        let now = limiter.now();
        let renewed = self.0.with(name, |kept, ends_at| {
            kept.is_known = true;
            // If one of several slots has ended the others go on, and can still be released.
            *ends_at = now.plus(kept.lease.length());
            limiter.renew(&kept.lease)
        });
        renewed.unwrap_or(Asked::Ready(Some(false)))
    }
}

/// A lease that is kept, with its name on the way to a caller. It is released if it does not get there.
pub(crate) struct Given {
    name: String,
    gate: Arc<Gate>,
    is_delivered: bool,
}

impl Given {
    /// Keeps a lease of this gate's limiter.
    pub(crate) fn new(lease: Lease, gate: &Arc<Gate>) -> Self {
        let name = gate.leases.keep(lease, &gate.limiter);
        Self { name, gate: Arc::clone(gate), is_delivered: false }
    }

    /// The name that releases it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// It is the caller's from now on.
    pub(crate) fn deliver(mut self) {
        self.is_delivered = true;
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        if !self.is_delivered {
            self.gate.leases.withdraw(&self.name, &self.gate.limiter);
        }
    }
}
