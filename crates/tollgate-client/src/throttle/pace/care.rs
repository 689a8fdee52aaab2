//! How carefully requests go where nobody knows how much there is.

use std::time::Duration;

use tokio::time::Instant;

use crate::bounds::{CARE_FAST_MAX, CARE_LASTS, GAP_MAX, GAP_ROUND};

/// How many may be under way, as TCP finds out how much a network takes: each that goes well lets one
/// more go, up to where it went wrong before; from there on it takes a whole round of them. A refusal
/// halves it. It ends a while after the last refusal, when nobody waits for more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Care {
    since: Instant,
    /// When the last of those under way was answered, or taken for one that goes well.
    pub(super) heard_at: Instant,
    pub(super) most: u32,
    /// Of those that were sent since it began. What was sent before tells nothing of how much there is now.
    pub(super) under_way: u32,
    /// The last request that was sent before.
    pub(super) sent_before: u64,
    went_wrong_at: u32,
    went_well: u32,
    gap: Gap,
    /// Whether it was some requests alone that hit a wall or were refused, under the only name that was heard.
    pub(super) is_of_some: bool,
}

/// The time from one request to the next. A wait of a fraction of a second is that for a bucket's next
/// unit, and nobody who is answered in less is slowed down by how many are under way. So one request
/// goes in that time; after a few that went well in half of it; after a refusal in twice.
#[derive(Clone, Copy, Debug, Default)]
struct Gap {
    length: Duration,
    went_well: u32,
}

impl Care {
    pub(super) fn new(is_of_some: bool, sent_before: u64, now: Instant) -> Self {
        Self {
            since: now,
            heard_at: now,
            most: 1,
            under_way: 0,
            sent_before,
            went_wrong_at: CARE_FAST_MAX,
            went_well: 0,
            gap: Gap::default(),
            is_of_some,
        }
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= CARE_LASTS
    }

    /// The time from one request to the next.
    pub(super) fn gap(&self) -> Duration {
        self.gap.length
    }

    pub(super) fn after_success(self, now: Instant) -> Self {
        Self { gap: self.gap.after_success(), heard_at: now, ..self.grown() }
    }

    /// Those under way have not been refused for so long that they are taken for going well.
    pub(super) fn after_patience(self, now: Instant) -> Self {
        let grown = (0..self.under_way).fold(self, |care, _| care.grown());
        Self { heard_at: now, ..grown }
    }

    pub(super) fn after_failure(self, now: Instant) -> Self {
        Self { heard_at: now, ..self }
    }

    pub(super) fn after_refusal(self, now: Instant) -> Self {
        let half = (self.most / 2).max(1);
        let (since, heard_at) = (now, now);
        Self { since, heard_at, most: half, went_wrong_at: half, went_well: 0, ..self }
    }

    /// After a refusal that told so long a wait.
    pub(super) fn with_gap(self, wait: Duration) -> Self {
        Self { gap: self.gap.after_refusal(wait), ..self }
    }

    fn grown(self) -> Self {
        let went_well = self.went_well + 1;
        if self.most < self.went_wrong_at || went_well >= self.most {
            Self { most: self.most.saturating_add(1), went_well: 0, ..self }
        } else {
            Self { went_well, ..self }
        }
    }
}

impl Gap {
    fn after_success(self) -> Self {
        if self.went_well + 1 < GAP_ROUND {
            Self { went_well: self.went_well + 1, ..self }
        } else {
            Self { length: self.length / 2, went_well: 0 }
        }
    }

    fn after_refusal(self, wait: Duration) -> Self {
        let told = if wait <= GAP_MAX { wait } else { Duration::ZERO };
        Self { length: (self.length * 2).max(told).min(GAP_MAX), went_well: 0 }
    }
}
