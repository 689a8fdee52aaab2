//! The last decisions of a key.
//!
//! A key has one slot, where those of the last that came up are remembered.

use tollgate_core::{Decision, Timestamp};

use crate::bounds::{RECENT_DECISIONS, RECENT_KEYS};

/// One decision of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recent {
    /// When it was made.
    pub at: Timestamp,
    /// Whether the request was allowed.
    pub is_allowed: bool,
    /// What could still be taken then.
    pub remaining: u32,
}

/// The last decisions of some keys.
#[derive(Debug)]
pub(super) struct LastDecisions(Box<[Slot]>);

#[derive(Clone, Debug, Default)]
pub(super) struct Slot {
    key: u64,
    /// How many there were, also those that are forgotten.
    count: usize,
    decisions: [Option<Recent>; RECENT_DECISIONS],
}

const _: () = assert!(RECENT_KEYS.is_power_of_two());

impl LastDecisions {
    pub(super) fn new() -> Self {
        Self(vec![Slot::default(); RECENT_KEYS].into())
    }

    pub(super) fn add(&mut self, key: u64, at: Timestamp, decision: &Decision) {
        let slot = &mut self.0[place(key)];
        if slot.key != key {
            *slot = Slot { key, ..Slot::default() };
        }
        let recent =
            Recent { at, is_allowed: decision.is_allowed(), remaining: decision.remaining };
        slot.decisions[slot.count % RECENT_DECISIONS] = Some(recent);
        slot.count += 1;
    }

    /// Those of a key, the last one first.
    pub(super) fn tell(&self, key: u64) -> Vec<Recent> {
        let slot = &self.0[place(key)];
        let (later, earlier) = slot.decisions.split_at(slot.count % RECENT_DECISIONS);
        let is_it = slot.key == key;
        let newest_first = later.iter().rev().chain(earlier.iter().rev());
        newest_first.flatten().filter(|_| is_it).copied().collect()
    }
}

fn place(key: u64) -> usize {
    key as usize & (RECENT_KEYS - 1)
}
