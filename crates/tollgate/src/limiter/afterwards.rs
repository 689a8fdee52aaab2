//! What comes after a verdict: giving back, settling, and slots that are held until the work ends.

use arc_swap::Guard;
use smallvec::SmallVec;
use tollgate_core::{Cost, Limit, Logged, Micros};
use tollgate_policy::Rule;
use tollgate_store::{Asked, Claim, Taken};

use super::Limiter;
use crate::verdict::{Entry, Verdict};

/// Slots held while a request's work goes on.
#[derive(Debug)]
#[must_use = "slots that are not released come back only when their lease ends"]
pub struct Lease {
    slots: SmallVec<[Claim; 2]>,
    length: Micros,
}

impl Lease {
    /// After how long the last of its slots comes back if nobody gives it back or renews it.
    pub fn length(&self) -> Micros {
        self.length
    }
}

impl Verdict {
    /// The concurrency slots that the request holds, if it holds any: give them back with
    /// [`Limiter::release`] when its work ends. They are the lease's from then on, and no longer
    /// refunded with the verdict.
    pub fn take_lease(&mut self) -> Option<Lease> {
        let limits = &self.policy.enrolled;
        let (mut slots, mut length) = (SmallVec::new(), Micros::ZERO);
        for (place, entry) in self.taken.iter_mut().enumerate() {
            if let Limit::Logged(Logged::Concurrency(limit)) = limits[entry.limit as usize].limit()
                && let Some(slot) = entry.taken.take_receipt()
            {
                slots.push(Claim::new(slot, self.origin.as_ref(), place));
                length = length.max(limit.lease());
            }
        }
        (!slots.is_empty()).then_some(Lease { slots, length })
    }
}

impl Limiter {
    /// Gives back everything that a request was charged and time has not given back already. Nobody
    /// is told when that is done.
    pub fn refund(&self, verdict: Verdict) {
        let Verdict { taken, origin, .. } = verdict;
        for (place, entry) in taken.into_iter().enumerate() {
            if let Some(receipt) = entry.taken.receipt() {
                // What is on its way gets there whether somebody waits for the answer or not.
                drop(self.store.refund(&Claim::new(receipt, origin.as_ref(), place)));
            }
        }
    }

    /// Brings what a request was charged to what it really cost, when that is known: less comes back,
    /// as far as time has not given it back already, and more is charged, past the end of a limit if
    /// need be. The verdict that comes back tells what is left then, as to a peek, and has nothing to
    /// refund.
    ///
    /// Limits that say themselves what a request costs stay charged as they are, unless they say that
    /// it is settled; so do concurrency slots, whose lease is released or refunded as ever. A request
    /// that was denied has nothing to settle.
    pub fn settle(&self, verdict: Verdict, cost: Cost) -> Asked<Verdict> {
        let is_settled = |rule: &Rule| !rule.has_own_cost() || rule.settle().is_some();
        self.settle_each(verdict, |rule| is_settled(rule).then_some(cost))
    }

    /// The same, with what a request really cost under each limit; nothing for one that stays charged
    /// as it is.
    pub fn settle_each(
        &self,
        verdict: Verdict,
        cost: impl Fn(&Rule) -> Option<Cost>,
    ) -> Asked<Verdict> {
        if !verdict.is_allowed() {
            return Asked::Ready(verdict);
        }
        let Verdict { ruling, mut taken, origin, policy } = verdict.kept();
        let settle = |(place, entry): (usize, &Entry)| {
            let Some(receipt) = entry.taken.open_receipt() else {
                return Asked::Ready(entry.taken);
            };
            let claim = Claim::new(receipt, origin.as_ref(), place);
            let limit = policy.enrolled[entry.limit as usize].limit();
            let is_slot = matches!(limit, Limit::Logged(Logged::Concurrency(_)));
            if is_slot && claim.cost() != Cost::PEEK {
                // Still to be released.
                return Asked::Ready(entry.taken);
            }
            let rule = &policy.policy.rules()[entry.rule as usize];
            // A limit in shadow may have denied what went on, and was not charged for it.
            let is_charged = entry.taken.is_allowed() && !is_slot;
            let cost = cost(rule).filter(|_| is_charged).unwrap_or(claim.cost());
            self.store.settle(&claim, cost)
        };
        // All are asked before the first answer is waited for.
        let mut asked: SmallVec<[Asked<Taken>; 4]> = taken.iter().enumerate().map(settle).collect();
        if asked.iter().all(|asked| matches!(asked, Asked::Ready(_))) {
            for (entry, asked) in taken.iter_mut().zip(asked) {
                entry.taken = asked.wait();
            }
            return Asked::Ready(Verdict { ruling, taken, origin, policy });
        }
        let policy = Guard::into_inner(policy);
        Asked::later(async move {
            for (entry, asked) in taken.iter_mut().zip(asked.drain(..)) {
                entry.taken = asked.await;
            }
            Verdict { ruling, taken, origin, policy: Guard::from_inner(policy) }
        })
    }

    /// Gives the slots of a lease back; false if all of them had come back by themselves, nothing if
    /// nobody can tell, since the store does not answer. Then they come back when it does, or when the
    /// lease ends.
    pub fn release(&self, lease: Lease) -> Asked<Option<bool>> {
        every(lease.slots.into_iter().map(|slot| self.store.refund(&slot)), true)
    }

    /// Starts a lease anew; false if one of its slots has come back by itself, nothing if nobody can
    /// tell.
    pub fn renew(&self, lease: &Lease) -> Asked<Option<bool>> {
        every(lease.slots.iter().map(|slot| self.store.renew(slot)), false)
    }
}

/// What becomes of several answers, of which there is one at least: that which `decides`, whatever the
/// others say, or else the other if all say so.
fn every(asked: impl Iterator<Item = Asked<Option<bool>>>, decides: bool) -> Asked<Option<bool>> {
    let both = move |one: Option<bool>, other: Option<bool>| {
        if [one, other].contains(&Some(decides)) { Some(decides) } else { one.and(other) }
    };
    // All are asked before the first answer is waited for.
    let asked: SmallVec<[Asked<Option<bool>>; 2]> = asked.collect();
    asked
        .into_iter()
        .reduce(|one, other| match (one, other) {
            (Asked::Ready(one), Asked::Ready(other)) => Asked::Ready(both(one, other)),
            (one, other) => Asked::later(async move { both(one.await, other.await) }),
        })
        .unwrap_or(Asked::Ready(Some(false)))
}
