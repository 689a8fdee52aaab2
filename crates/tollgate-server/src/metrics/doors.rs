//! Connections by door.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::sheet::Kind::{Counter, Gauge};
use super::sheet::Sheet;
use crate::door::Door;

/// What there is of something at the moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Open(Arc<AtomicUsize>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct One(Arc<AtomicUsize>);

impl Open {
    /// One more.
    pub(crate) fn enter(&self) -> One {
        self.0.fetch_add(1, Ordering::Relaxed);
        One(Arc::clone(&self.0))
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for One {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The connections of all doors.
#[derive(Debug, Default)]
pub(crate) struct DoorCounts([DoorCount; Door::ALL.len()]);

/// The connections of one.
#[derive(Debug, Default)]
pub(crate) struct DoorCount {
    pub(crate) open: Open,
    accepted: AtomicU64,
    refused: AtomicU64,
}

impl DoorCount {
    /// A connection came, and was taken or not.
    pub(crate) fn came(&self, is_taken: bool) {
        let counter = if is_taken { &self.accepted } else { &self.refused };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl DoorCounts {
    pub(crate) fn of(&self, door: Door) -> &DoorCount {
        &self.0[door as usize]
    }

    pub(super) fn write(&self, sheet: &mut Sheet<'_>) {
        let doors = || Door::ALL.iter().map(|door| (*door, self.of(*door)));
        let mut open = sheet.family("tollgate_connections", Gauge, "Connections that are open.");
        for (door, count) in doors() {
            open.sample(&[("door", door.name())], count.open.count());
        }
        let help = "Connections that were taken in.";
        let mut accepted = sheet.family("tollgate_connections_accepted_total", Counter, help);
        for (door, count) in doors() {
            accepted.sample(&[("door", door.name())], count.accepted.load(Ordering::Relaxed));
        }
        let help = "Connections that were closed, since there were too many in all.";
        let mut refused = sheet.family("tollgate_connections_refused_total", Counter, help);
        for (door, count) in doors() {
            refused.sample(&[("door", door.name())], count.refused.load(Ordering::Relaxed));
        }
    }
}
