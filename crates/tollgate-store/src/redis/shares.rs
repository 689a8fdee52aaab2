//! What this node counts by itself while Redis does not answer: its share of each limit.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::bounds::SHARES_MAX;
use crate::enrolled::Enrolled;
use crate::memory::MemoryStore;

/// Limits divided by a number of nodes, as the memory store knows them.
#[derive(Debug, Default)]
pub(super) struct Shares(Mutex<HashMap<(u32, u32), Enrolled>>);

/// Node counts up to this are told apart; of larger ones as many for each doubling as half of it.
const EXACT_NODES: u32 = 16;

impl Shares {
    /// The share of a limit among `nodes`, or a little less where they are many, so that nodes that
    /// come and go do not use up the numbers that limits have; nothing if there are more limits than
    /// can be told apart.
    pub(super) fn of(&self, limit: &Enrolled, nodes: u32, local: &MemoryStore) -> Option<Enrolled> {
        let nodes = rounded(nodes);
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

/// So many nodes, or an eighth more at most.
fn rounded(nodes: u32) -> u32 {
    let step = (nodes.next_power_of_two() / EXACT_NODES).max(1);
    nodes.next_multiple_of(step)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn few_nodes_share_exactly_and_many_nearly_so() {
        for nodes in 1..=EXACT_NODES {
            assert_eq!(rounded(nodes), nodes);
        }
        for nodes in 1..=10_000 {
            let rounded = rounded(nodes);
            assert!(rounded >= nodes && rounded <= nodes + nodes / 8, "{nodes}: {rounded}");
        }
        let different: HashSet<u32> = (1..=1_000).map(rounded).collect();
        assert!(different.len() <= 64, "{}", different.len());
    }
}
