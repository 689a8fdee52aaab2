//! Requests whose states are not in this process's memory.

use std::sync::Arc;

use arc_swap::Guard;
use smallvec::SmallVec;
use tollgate_policy::Charges;
use tollgate_store::{Answers, Asked, Charge, Clock};

use super::{INLINE, InForce, Keys, Limiter, asked, key, look, ruled};
use crate::metrics::{Counted, Counting, Live, Turn};
use crate::observe::{Observer, Said};
use crate::verdict::{Entry, Ruling, Verdict};

/// What is asked of a store that is not in memory.
pub(super) struct Elsewhere {
    asked: Asked<Answers>,
    charged: SmallVec<[Charged; INLINE]>,
    /// The keys of all, should they be looked at.
    keys: Keys,
    observer: Arc<Observer>,
    counted: Arc<Counted>,
    clock: Clock,
}

/// What is kept of a charge until its answer is there.
struct Charged {
    rule: u32,
    limit: u32,
    tier: u32,
    /// Where it is counted by its tenant, if it is.
    tenant: Option<Arc<Live>>,
}

impl Elsewhere {
    /// Nobody is asked if no limit applies.
    pub(super) fn ask(
        limiter: &Limiter,
        policy: &InForce,
        charges: &Charges<'_, '_>,
        turn: Turn,
    ) -> Option<Self> {
        let store = &limiter.store;
        let ask = |charge| asked(policy, charge);
        let asked: SmallVec<[Charge<'_>; INLINE]> = charges.iter().map(ask).collect();
        let charged = charges.iter().map(|charge| Charged {
            rule: charge.rule_index as u32,
            limit: charge.limit as u32,
            tier: charge.tier,
            tenant: (turn.weight() > 0).then(|| policy.series.of_tenant(charge)).flatten(),
        });
        let charged = charged.collect();
        let mut keys = Keys::default();
        for charge in charges {
            keys.push(|text| policy.write_shown_key(store, &key(charge), text));
        }
        (!asked.is_empty()).then(|| Self {
            asked: store.take(&asked),
            charged,
            keys,
            observer: Arc::clone(&limiter.observer),
            counted: Arc::clone(&limiter.counted),
            clock: store.clock().clone(),
        })
    }

    pub(super) fn verdict(self, policy: Arc<InForce>, counting: Counting) -> Asked<Verdict> {
        let Self { asked, charged, keys, observer, counted, clock } = self;
        asked.map(move |answers| {
            let (mut ruling, mut taken) = (Ruling::Allowed, SmallVec::new());
            for (&Charged { rule, limit, tier, .. }, said) in charged.iter().zip(answers.taken()) {
                let charged = &policy.policy.rules()[rule as usize];
                policy.series.of(rule as usize, tier).count(charged.mode(), said);
                ruling = ruled(ruling, charged, said);
                taken.push(Entry { rule, limit, taken: *said });
            }
            counting.end(&counted, &clock, ruling);
            let told = charged.iter().zip(answers.taken()).enumerate();
            let said = told.map(|(place, (charged, taken))| Said {
                place,
                series: policy.series.of(charged.rule as usize, charged.tier),
                mode: policy.policy.rules()[charged.rule as usize].mode(),
                taken,
            });
            let write = |place: usize, text: &mut String| text.push_str(keys.at(place));
            if ruling == Ruling::Uncounted {
                observer.record.tell(&clock, ruling, &said, write);
            }
            if let Some(looked) = counting.looked(&clock, ruling, None) {
                observer.look(looked, said, write);
                for (charged, taken) in charged.iter().zip(answers.taken()) {
                    charged.tenant.iter().for_each(|used| look(used, looked, taken));
                }
            }
            let origin = answers.origin().cloned();
            Verdict { ruling, taken, origin, policy: Guard::from_inner(policy) }
        })
    }
}
