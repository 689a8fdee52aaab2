//! What this node counts by itself while Redis does not answer: its share of each limit.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::bounds::SHARES_MAX;
use crate::enrolled::Enrolled;
use crate::memory::MemoryStore;

/// Limits divided by a number of nodes, as the memory store knows them.
#[derive(Debug, Default)]
pub(super) struct Shares(Mutex<HashMap<(u32, u32), Enrolled>>);

impl Shares {
    /// The share of a limit among `nodes`; nothing if there are more limits than can be told apart.
    pub(super) fn of(&self, limit: &Enrolled, nodes: u32, local: &MemoryStore) -> Option<Enrolled> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = known.get(&(limit.number, nodes)) {
            return Some(*share);
        }
        if known.len() == SHARES_MAX {
            known.clear();
        }
        let share = local.enroll(limit.limit.share(nodes)).ok()?;
        known.insert((limit.number, nodes), share);
        Some(share)
    }
}
