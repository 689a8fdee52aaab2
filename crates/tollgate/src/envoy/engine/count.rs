//! How a call is counted, and its keys looked at.

use std::sync::Arc;

use tollgate_core::Value;
use tollgate_policy::Mode;
use tollgate_store::{Store, Taken};

use super::{Item, Plan};
use crate::limiter::{Keys, Limiter};
use crate::metrics::{Counted, Counting, Series};
use crate::observe::{Observer, Said};
use crate::verdict::Ruling;

/// Where a call is counted.
#[derive(Clone, Copy)]
pub(super) struct Counts<'a> {
    pub(super) store: &'a Store,
    pub(super) counted: &'a Counted,
    pub(super) observer: &'a Observer,
    pub(super) series: Option<&'a Series>,
}

/// The same, for when the answers come later.
pub(super) struct CountLater {
    pub(super) store: Store,
    counted: Arc<Counted>,
    observer: Arc<Observer>,
    series: Option<Series>,
    /// The keys of all items.
    keys: Keys,
}

impl CountLater {
    pub(super) fn new(
        limiter: &Limiter,
        series: Option<&Series>,
        plan: &Plan,
        values: &[Value<'_>],
    ) -> Self {
        let mut keys = Keys::default();
        for item in &plan.items {
            keys.push(|text| limiter.write_shown_key(&item.key(values), text));
        }
        Self {
            store: limiter.store().clone(),
            counted: Arc::clone(&limiter.counted),
            observer: Arc::clone(&limiter.observer),
            series: series.cloned(),
            keys,
        }
    }

    pub(super) fn count(&self, plan: &Plan, said: &[Taken], counting: Counting) {
        let Self { store, counted, observer, series, keys } = self;
        let counts = Counts { store, counted, observer, series: series.as_ref() };
        plan.count(counts, said, counting, |place, text| text.push_str(keys.at(place)));
    }
}

impl Plan {
    /// Counts the call, and what its limits said. Their keys are `write`'s to write, by their place.
    pub(super) fn count(
        &self,
        counts: Counts<'_>,
        said: &[Taken],
        counting: Counting,
        write: impl Fn(usize, &mut String),
    ) {
        let Counts { store, counted, observer, series } = counts;
        let mode = |item: &Item| {
            let is_shadow = self.is_shadow || self.descriptors[item.descriptor].is_shadow;
            if is_shadow { Mode::Shadow } else { Mode::Enforce }
        };
        let taken = self.items.iter().zip(said).enumerate();
        let taken = taken.filter(|(_, (item, _))| !item.is_credit);
        let said_of = |series| {
            taken.clone().map(move |(place, (item, taken))| Said {
                place,
                series,
                mode: mode(item),
                taken,
            })
        };
        let ruling = self.ruling(said);
        if let Some(series) = series {
            for one in said_of(series) {
                series.count(one.mode, one.taken);
            }
            let decided_at = said.first().and_then(Taken::counted_at);
            if let Some(looked) = counting.looked(store.clock(), ruling, decided_at) {
                observer.look(looked, said_of(series), &write);
            }
            if ruling == Ruling::Uncounted {
                observer.record.tell(store.clock(), ruling, &said_of(series), &write);
            }
        }
        counting.end(counted, store.clock(), ruling);
    }

    /// What becomes of the call. It is uncounted if all limits in its way could not count it.
    fn ruling(&self, said: &[Taken]) -> Ruling {
        if !self.is_over(said) {
            return Ruling::Allowed;
        }
        let is_counted = self.items.iter().zip(said).any(|(item, taken)| {
            let is_shadow = self.descriptors[item.descriptor].is_shadow;
            item.is_over(taken) && !is_shadow && !matches!(taken, Taken::Uncounted { .. })
        });
        if is_counted { Ruling::Denied } else { Ruling::Uncounted }
    }
}
