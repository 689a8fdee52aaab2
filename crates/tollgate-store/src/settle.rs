//! Charges brought to what was really used, when that is known.

use tollgate_core::{ChargeId, Cost};

use crate::account::{Account, NoRoom, decide_unknown};
use crate::charge::{Receipt, Taken};
use crate::memory::{MemoryStore, Place};
use crate::sync::Ordering;

impl MemoryStore {
    /// Brings a charge to what was really used, and tells what its limit says then; see
    /// [`Store::settle`](crate::Store::settle). Of one receipt, call it once.
    pub fn settle(&self, receipt: &Receipt, cost: Cost) -> Taken {
        let uncounted = Taken::Uncounted { is_allowed: true };
        let Some(limit) = self.register.get(receipt.limit) else { return uncounted };
        let (key, now) = (receipt.key, self.clock.now());
        let id = ChargeId(self.next_charge.fetch_add(1, Ordering::Relaxed));
        let tell = |decision| {
            let receipt = Receipt::of_nothing(key, receipt.limit);
            Taken::Decided { decision, receipt }
        };
        let reserve = |bytes| self.reserve_for_logs(bytes);
        let settle =
            |mut account: Account<'_>| account.settle(&limit, receipt, cost, id, now, reserve);
        if cost <= receipt.cost {
            // Of a key that was forgotten time has given everything back.
            return match self.account_of(key).map(settle) {
                Some(Ok(told)) => told.map_or(uncounted, tell),
                Some(Err(NoRoom)) => uncounted,
                None => tell(decide_unknown(&limit, now, Cost::PEEK)),
            };
        }
        let mut forgotten = 0;
        loop {
            let Place::At(index) = self.make_room(key, now, &[]) else { return uncounted };
            match self.account_at(index, key).map(settle) {
                Some(Ok(told)) => return told.map_or(uncounted, tell),
                Some(Err(NoRoom)) if self.forget_another_log(&mut forgotten, now, &[key]) => {}
                Some(Err(NoRoom)) => return uncounted,
                None => {}
            }
        }
    }
}
