//! Who was told to wait, and until when.
//!
//! A key has one slot, where the last that was told to wait is remembered: a part of its number, so that
//! others are not taken for it, and the time. Whoever reads or writes it needs no lock.
//!
//! A caller with several requests under way is told by the first answer, of which the others cannot know
//! yet: for a moment after a key was told, a few are not early.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::{Micros, Timestamp};

use crate::bounds::{UNDER_WAY_MAX, UNDER_WAY_MILLIS_MAX, UNDER_WAY_SHARE, WAITS_SLOTS};

/// The waits that keys were told.
#[derive(Debug)]
pub(super) struct Waits {
    started: Timestamp,
    slots: Box<[Slot]>,
}

#[derive(Debug, Default)]
pub(super) struct Slot {
    /// The upper bits of a key's number, then until when it waits in milliseconds since the start; zero if
    /// there is nothing.
    until: AtomicU64,
    /// The milliseconds when it was told to wait, from which it has not come back in time yet, then how many
    /// came since that may not have heard. Written before `until`, so that who reads that finds one no older.
    told: AtomicU64,
}

/// How a key came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Came {
    /// Nobody told it to wait, it may not have heard of it yet, or nobody remembers.
    Untold,
    /// Before the wait was over.
    Early,
    /// After that.
    InTime,
}

const _: () = assert!(WAITS_SLOTS.is_power_of_two());

/// 34 years.
const MILLIS_BITS: u32 = 40;
const MILLIS_MAX: u64 = (1 << MILLIS_BITS) - 1;

/// Leaves room for more than are ever forgiven, should several threads do so at once.
const FORGIVEN_BITS: u32 = 16;

impl Waits {
    pub(super) fn new(started: Timestamp) -> Self {
        // A moment before the start, so that no wait ends at zero.
        let started = Timestamp::from_micros(started.as_micros().saturating_sub(1_000));
        let slots = (0..WAITS_SLOTS).map(|_| Slot::default()).collect();
        Self { started, slots }
    }

    /// A key came, and is now told to wait, or not.
    pub(super) fn see(&self, key: u64, now: Timestamp, told: Option<Micros>) -> Came {
        let slot = &self.slots[key as usize & (WAITS_SLOTS - 1)];
        let known = slot.until.load(Ordering::Acquire);
        let is_its_own = known != 0 && known >> MILLIS_BITS == key >> MILLIS_BITS;
        let (at, until) = (self.millis(now), known & MILLIS_MAX);
        let is_waiting = is_its_own && at < until;
        let came = match () {
            () if !is_its_own => Came::Untold,
            () if !is_waiting => Came::InTime,
            () if slot.forgives(at, until) => Came::Untold,
            () => Came::Early,
        };
        match told {
            Some(wait) => {
                // Rounded down: whoever is a moment early is not early.
                let until = self.millis(now.plus(wait));
                if !is_waiting {
                    slot.told.store(at << FORGIVEN_BITS, Ordering::Relaxed);
                }
                slot.until.store(key >> MILLIS_BITS << MILLIS_BITS | until, Ordering::Release);
            }
            None if came == Came::InTime => slot.until.store(0, Ordering::Relaxed),
            None => {}
        }
        came
    }

    fn millis(&self, at: Timestamp) -> u64 {
        (at.since(self.started).as_micros() / 1_000).min(MILLIS_MAX)
    }
}

impl Slot {
    /// Whether a request may have been sent before its caller was told to wait until then: one of a few in
    /// the first moment.
    fn forgives(&self, at: u64, until: u64) -> bool {
        let told = self.told.load(Ordering::Relaxed);
        // Two threads need not agree on what time it is.
        let since = (told >> FORGIVEN_BITS).min(at);
        let forgiven = told & ((1 << FORGIVEN_BITS) - 1);
        let moment = UNDER_WAY_MILLIS_MAX.min((until - since) / UNDER_WAY_SHARE);
        let forgives = at - since < moment && forgiven < UNDER_WAY_MAX;
        if forgives {
            self.told.fetch_add(1, Ordering::Relaxed);
        }
        forgives
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_micros(1_760_000_000_000_000);
    const KEY: u64 = 0x1234_5678_9ABC_DEF0;

    fn after(millis: u64) -> Timestamp {
        START.plus(Micros::from_millis(millis))
    }

    #[test]
    fn who_comes_back_before_the_wait_is_over_is_early_and_later_in_time() {
        let (waits, wait) = (Waits::new(START), Some(Micros::from_secs(1)));
        assert_eq!(waits.see(KEY, START, wait), Came::Untold);
        assert_eq!(waits.see(KEY, after(998), wait), Came::Early, "and told anew");
        assert_eq!(waits.see(KEY, after(1_500), None), Came::Early);
        assert_eq!(waits.see(KEY, after(1_998), None), Came::InTime);
        assert_eq!(waits.see(KEY, after(1_999), None), Came::Untold, "once");
    }

    #[test]
    fn who_may_not_have_heard_yet_is_not_early() {
        let (waits, wait) = (Waits::new(START), Some(Micros::from_secs(10)));
        assert_eq!(waits.see(KEY, after(5), wait), Came::Untold);
        for at in [3, 5, 30, 54] {
            assert_eq!(waits.see(KEY, after(at), wait), Came::Untold, "{at}");
        }
        assert_eq!(waits.see(KEY, after(55), wait), Came::Early);
        assert_eq!(waits.see(KEY, after(56), wait), Came::Early, "it was told long before");
        let back = 56 + 10_000;
        assert_eq!(waits.see(KEY, after(back), wait), Came::InTime, "and is told anew");
        assert_eq!(waits.see(KEY, after(back + 49), wait), Came::Untold);
        assert_eq!(waits.see(KEY, after(back + 50), wait), Came::Early);
    }

    #[test]
    fn so_many_that_come_at_once_were_not_all_under_way() {
        let (waits, wait) = (Waits::new(START), Some(Micros::from_secs(10)));
        let came: Vec<Came> = (0..30).map(|_| waits.see(KEY, START, wait)).collect();
        let untold = came.iter().filter(|came| **came == Came::Untold).count();
        assert_eq!(untold as u64, 1 + UNDER_WAY_MAX);
        assert_eq!(came.last(), Some(&Came::Early));
    }

    #[test]
    fn a_short_wait_is_no_excuse_for_all_of_it() {
        let (waits, wait) = (Waits::new(START), Some(Micros::from_millis(100)));
        waits.see(KEY, START, wait);
        assert_eq!(waits.see(KEY, after(24), None), Came::Untold);
        assert_eq!(waits.see(KEY, after(26), None), Came::Early);
    }

    #[test]
    fn another_key_in_the_same_slot_is_not_taken_for_it() {
        let (waits, wait) = (Waits::new(START), Some(Micros::from_secs(1)));
        let other = KEY ^ 1 << 60;
        waits.see(KEY, START, wait);
        assert_eq!(waits.see(other, START, wait), Came::Untold);
        assert_eq!(waits.see(KEY, after(500), None), Came::Untold, "the last one is remembered");
        assert_eq!(waits.see(other, after(500), None), Came::Early);
    }

    #[test]
    fn waits_without_an_end_and_clocks_that_step_back_do_no_harm() {
        let waits = Waits::new(START);
        waits.see(KEY, Timestamp::EPOCH, Some(Micros::new(u64::MAX)));
        assert_eq!(waits.see(KEY, after(500), Some(Micros::ZERO)), Came::Early);
        assert_eq!(waits.see(KEY, Timestamp::EPOCH, None), Came::Untold);
        assert_eq!(waits.see(KEY, after(500), None), Came::InTime);
    }
}
