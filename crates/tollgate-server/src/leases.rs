//! Concurrency slots that callers over the network hold.
//!
//! A caller holds a name of 128 random bits, which nobody can guess; we hold the lease. The store
//! gives a slot back by itself when its lease ends, and from then on its name means nothing here
//! either. So what is kept here is bounded by the slots that are held, and those by the memory of the
//! store; it comes on top of that memory.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use tollgate::{Asked, Lease, Limiter, Timestamp};

/// Ends of leases that are gone already and not worth a look.
const ENDS_KEPT: usize = 1024;

/// Leases by name.
#[derive(Debug)]
pub(crate) struct Leases {
    held: Mutex<Held>,
    names: [RandomState; 2],
}

#[derive(Debug, Default)]
struct Held {
    leases: HashMap<u128, Kept>,
    /// When to look at whom, soonest first. A lease that was renewed is looked at again later.
    ends: BinaryHeap<Reverse<(Timestamp, u128)>>,
    given: u64,
}

#[derive(Debug)]
struct Kept {
    lease: Lease,
    ends_at: Timestamp,
}

impl Leases {
    pub(crate) fn new() -> Self {
        Self { held: Mutex::default(), names: [RandomState::new(), RandomState::new()] }
    }

    /// Keeps a lease; gives the name that releases it.
    pub(crate) fn keep(&self, lease: Lease, limiter: &Limiter) -> String {
        let now = limiter.now();
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.forget_ended(now);
        held.given += 1;
        let [high, low] = [0, 1].map(|half: usize| self.names[half].hash_one(held.given));
        let name = u128::from(high) << 64 | u128::from(low);
        let ends_at = now.plus(lease.length());
        held.ends.push(Reverse((ends_at, name)));
        held.leases.insert(name, Kept { lease, ends_at });
        format!("{name:032x}")
    }

    /// Gives the slots of a lease back; false if it is unknown, or has ended.
    pub(crate) fn release(&self, name: &str, limiter: &Limiter) -> Asked<bool> {
        let Some(name) = read(name) else { return Asked::Ready(false) };
        let kept = self.held.lock().unwrap_or_else(PoisonError::into_inner).leases.remove(&name);
        kept.map_or(Asked::Ready(false), |kept| limiter.release(kept.lease))
    }

    /// Starts a lease anew; false if it is unknown, or has ended.
    pub(crate) fn renew(&self, name: &str, limiter: &Limiter) -> Asked<bool> {
        let Some(name) = read(name) else { return Asked::Ready(false) };
        let now = limiter.now();
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(kept) = held.leases.get_mut(&name) else { return Asked::Ready(false) };
        // If one of several slots has ended the others go on, and can still be released.
        kept.ends_at = now.plus(kept.lease.length());
        limiter.renew(&kept.lease)
    }
}

impl Held {
    fn forget_ended(&mut self, now: Timestamp) {
        // Each lease that comes makes two go, so that nobody waits for all that have ended.
        for _ in 0..2 {
            let Some(&Reverse((at, name))) = self.ends.peek() else { break };
            if at >= now {
                break;
            }
            self.ends.pop();
            match self.leases.get(&name).map(|kept| kept.ends_at) {
                Some(ends_at) if ends_at < now => drop(self.leases.remove(&name)),
                Some(ends_at) => self.ends.push(Reverse((ends_at, name))),
                None => {}
            }
        }
        // Most leases are released long before their end; their ends need not be waited for.
        if self.ends.len() > 2 * self.leases.len() + ENDS_KEPT {
            let ends = self.leases.iter().map(|(name, kept)| Reverse((kept.ends_at, *name)));
            self.ends = ends.collect();
        }
    }
}

fn read(name: &str) -> Option<u128> {
    let is_name = name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    u128::from_str_radix(name, 16).ok().filter(|_| is_name)
}
