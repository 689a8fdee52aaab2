//! How many nodes there are, as far as one of them has heard.
//!
//! By so many a limit is divided while Redis is away. Redis that comes back without its data has heard
//! of nobody, and may be gone again before all have told it that they are there. So fewer nodes than
//! before are believed only when Redis has told so for a while.

use std::sync::atomic::{AtomicU32, Ordering};

use super::bounds::FEWER_TOLD;

/// The nodes there are. Heard of by one thread, asked by all.
#[derive(Debug)]
pub(super) struct Census {
    nodes: AtomicU32,
    /// How often fewer were told of, one time after the other.
    fewer: AtomicU32,
}

impl Census {
    pub(super) fn new() -> Self {
        Self { nodes: AtomicU32::new(1), fewer: AtomicU32::new(0) }
    }

    pub(super) fn nodes(&self) -> u32 {
        self.nodes.load(Ordering::Relaxed)
    }

    /// Redis told how many it has heard of.
    pub(super) fn hear(&self, told: u32) {
        let fewer = self.fewer.load(Ordering::Relaxed) + 1;
        if told >= self.nodes() || fewer > FEWER_TOLD {
            self.nodes.store(told, Ordering::Relaxed);
            self.fewer.store(0, Ordering::Relaxed);
        } else {
            self.fewer.store(fewer, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_that_lost_its_data_does_not_make_a_node_think_that_it_is_alone() {
        let census = Census::new();
        census.hear(3);
        for told in [1, 1, 2] {
            census.hear(told);
            assert_eq!(census.nodes(), 3);
        }
        census.hear(4);
        assert_eq!(census.nodes(), 4, "more are believed at once");
    }

    #[test]
    fn nodes_that_are_gone_are_divided_by_no_longer_after_a_while() {
        let census = Census::new();
        census.hear(3);
        (0..FEWER_TOLD).for_each(|_| census.hear(2));
        assert_eq!(census.nodes(), 3);
        census.hear(2);
        assert_eq!(census.nodes(), 2);
    }
}
