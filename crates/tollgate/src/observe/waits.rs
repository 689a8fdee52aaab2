//! Who was told to wait, and until when.
//!
//! A key has one slot, where the last that was told to wait is remembered: a part of its number, so that
//! others are not taken for it, and the time. Whoever reads or writes it needs no lock.
//!
//! A caller with several requests under way is told by the first answer, which the others cannot know yet:
//! for a moment after a key was first told, nobody is early.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tollgate_core::{Micros, Timestamp};

use crate::bounds::{UNDER_WAY_MAX, UNDER_WAY_SHARE, WAITS_SLOTS};

/// The waits that keys were told.
#[derive(Debug)]
pub(super) struct Waits {
    started: Timestamp,
    slots: Box<[Slot]>,
}

#[derive(Debug, Default)]
struct Slot {
    /// The upper bits of a key's number, then until when it waits in milliseconds since the start; zero if
    /// there is nothing.
    until: AtomicU64,
    /// When it was told first, of those times that it came too early since: the lower bits of the milliseconds.
    since: AtomicU32,
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
        let known = slot.until.load(Ordering::Relaxed);
        let is_its_own = known != 0 && known >> MILLIS_BITS == key >> MILLIS_BITS;
        let (at, until) = (self.millis(now), known & MILLIS_MAX);
        let is_waiting = is_its_own && at < until;
        let came = match () {
            () if !is_its_own => Came::Untold,
            () if !is_waiting => Came::InTime,
            () if slot.may_be_under_way(at, until) => Came::Untold,
            () => Came::Early,
        };
        match told {
            Some(wait) => {
                // Rounded down: whoever is a moment early is not early.
                let until = self.millis(now.plus(wait));
                slot.until.store(key >> MILLIS_BITS << MILLIS_BITS | until, Ordering::Relaxed);
                if !is_waiting {
                    slot.since.store(at as u32, Ordering::Relaxed);
                }
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
    /// Whether a request may have been sent before its caller was told to wait until then.
    fn may_be_under_way(&self, at: u64, until: u64) -> bool {
        let since = self.since.load(Ordering::Relaxed);
        let elapsed = u64::from((at as u32).wrapping_sub(since));
        let wait = elapsed + (until - at);
        elapsed < UNDER_WAY_MAX.min(wait / UNDER_WAY_SHARE)
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
        assert_eq!(waits.see(KEY, START, wait), Came::Untold);
        for late in [0, 100, 249] {
            assert_eq!(waits.see(KEY, after(late), wait), Came::Untold, "{late}");
        }
        assert_eq!(waits.see(KEY, after(250), wait), Came::Early);
        assert_eq!(waits.see(KEY, after(251), wait), Came::Early, "it has been told for long");
        let back = 251 + 10_000;
        assert_eq!(waits.see(KEY, after(back), wait), Came::InTime, "and is told anew");
        assert_eq!(waits.see(KEY, after(back + 249), wait), Came::Untold);
        assert_eq!(waits.see(KEY, after(back + 250), wait), Came::Early);
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
