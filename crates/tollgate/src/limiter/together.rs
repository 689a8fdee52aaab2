//! Several requests at once, each decided on its own.

use std::slice;

use smallvec::SmallVec;
use tollgate_policy::{Charges, Request, Scratch};
use tollgate_store::{Charge, MemoryStore, Taken};

use super::{Begun, Limiter, add, asked};
use crate::bounds::TOGETHER;
use crate::metrics::Counting;
use crate::verdict::{Ruling, Verdict};

impl Limiter {
    /// Decides each of `requests` on its own, in their order, and shows every verdict to `show`. Where
    /// each is under one limit that is cheaper than one by one: their memory is fetched together. A
    /// slot that one is given comes back when its lease ends, so this is for requests of which nobody
    /// learns when they [end](crate::End). False, and nothing is decided, if the states are not in
    /// memory.
    pub fn check_each(&self, requests: &[Request<'_>], mut show: impl FnMut(&Verdict)) -> bool {
        let Some(store) = self.store.memory() else { return false };
        let mut verdict = Verdict::begin(self.policy.load());
        for requests in requests.chunks(TOGETHER) {
            self.check_batch(store, requests, &mut verdict, &mut show);
        }
        true
    }

    /// Decides a few requests under the policy of a verdict, which is used for all of them.
    fn check_batch(
        &self,
        store: &MemoryStore,
        requests: &[Request<'_>],
        verdict: &mut Verdict,
        show: &mut impl FnMut(&Verdict),
    ) {
        let (clock, policy) = (self.store.clock(), &verdict.policy);
        let mut scratches: [Scratch; TOGETHER] = Default::default();
        let mut charges = Charges::new();
        let mut begun: SmallVec<[Begun<'_, '_, '_>; TOGETHER]> = SmallVec::new();
        for (request, scratch) in requests.iter().zip(&mut scratches) {
            let (counting, before) = (Counting::start(clock, request.layer), charges.len());
            let admission = policy.policy.admit(request, scratch, &mut charges);
            begun.push(Begun { request, counting, admission, charges: charges.len() - before });
        }
        // Most requests are under one limit, and most keys are not allowed anything else.
        if policy.overrides.are_none() && begun.iter().all(|begun| begun.charges == 1) {
            let asked: SmallVec<[Charge<'_>; TOGETHER]> =
                charges.iter().map(|charge| asked(policy, charge)).collect();
            let mut answers: SmallVec<[Taken; TOGETHER]> = SmallVec::new();
            store.take_each(&asked, |taken| answers.push(taken));
            for (begun, (charge, taken)) in begun.iter().zip(charges.iter().zip(&answers)) {
                verdict.taken.clear();
                verdict.ruling = add(policy, charge, *taken, Ruling::Allowed, &mut verdict.taken);
                let charges = slice::from_ref(charge);
                self.note(begun, policy, charges, verdict.ruling, &verdict.taken);
                show(verdict);
            }
            return;
        }
        let mut charges = charges.into_iter();
        for begun in &begun {
            let mut own: Charges<'_, '_> = charges.by_ref().take(begun.charges).collect();
            verdict.taken.clear();
            let (ruling, taken) = (&mut verdict.ruling, &mut verdict.taken);
            let elsewhere = self.pay(begun, policy, &mut own, ruling, taken, None);
            debug_assert!(elsewhere.is_none(), "memory answers at once");
            show(verdict);
        }
    }
}
