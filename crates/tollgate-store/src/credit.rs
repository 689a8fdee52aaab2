//! Units given back by somebody who cannot name the charge they were taken by.

use tollgate_core::{Cost, Limit};

use crate::account::{Account, decide_unknown};
use crate::charge::{Charge, Counted, Receipt, Taken};
use crate::enrolled::Enrolled;
use crate::memory::MemoryStore;

impl MemoryStore {
    /// Gives back `cost` units of what a key has consumed under a limit, the latest first and no
    /// more than it has; answers as a peek would from then on. Of a window only what was taken in
    /// the one that is open comes back.
    ///
    /// Whoever still has the receipt does better with [`MemoryStore::refund`], which knows how much
    /// of that charge time has given back already.
    pub fn credit(&self, charge: &Charge<'_>) -> Taken {
        let (key, now) = (self.secret.fingerprint_of(charge), self.clock.now());
        let Enrolled { limit, number, .. } = charge.limit;
        let slot = loop {
            let index = match self.table.find(key) {
                Some(index) => Some(index),
                None => {
                    // Only the shard's lock tells a key that is moving from one that is unknown.
                    let _shard = self.table.lock_shard_of(key);
                    self.table.find(key)
                }
            };
            let Some(index) = index else {
                let decision = decide_unknown(limit, now, Cost::PEEK);
                return Taken::Decided { decision, receipt: Receipt::of_nothing(key, *number) };
            };
            if let Some(slot) = self.table.lock_at(index, key) {
                break slot;
            }
        };
        let mut account = Account { slot, logs: &self.logs, register: &self.register };
        match limit {
            Limit::Counter(counter) => {
                let step = account.credit_counter(counter, *number, now, charge.cost);
                let (number, counter, cost) = (*number, *counter, Cost::PEEK);
                Taken::Counted(Counted { key, number, counter, step, now, cost })
            }
            Limit::Logged(logged) => {
                let decision = account.credit_log(logged, *number, now, charge.cost);
                Taken::Decided { decision, receipt: Receipt::of_nothing(key, *number) }
            }
        }
    }
}
