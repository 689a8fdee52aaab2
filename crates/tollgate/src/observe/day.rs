//! What a limit and tier was like in the last day: how near anybody came to it, and how many.
//!
//! It is kept for two halves of a day, the present one and the one before it. So what is told is of
//! twelve to twenty-four hours. A figure that comes while the one becomes the other may be counted in
//! either, or be lost: nobody waits for that.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tollgate_core::{Micros, Timestamp};

use super::users::Users;

/// What is remembered of one limit and tier.
#[derive(Debug, Default)]
pub(crate) struct Day {
    present: Half,
    before: Half,
    users: Option<Box<HalvesOfUsers>>,
}

#[derive(Debug, Default)]
struct Half {
    /// Zero if there was none.
    began_micros: AtomicU64,
    decisions: AtomicU64,
    /// The largest share of the limit that was in use, in millionths.
    peak: AtomicU32,
}

#[derive(Debug, Default)]
struct HalvesOfUsers {
    present: Seen,
    before: Seen,
}

#[derive(Debug, Default)]
struct Seen {
    /// Who was allowed something; whoever was not is among those who were denied.
    allowed: Users,
    denied: Users,
}

/// What is told of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct DayTold {
    pub(super) period: Micros,
    pub(super) decisions: u64,
    pub(super) peak: u32,
    /// How many users there were, and how many of them were denied something.
    pub(super) users: Option<(u64, u64)>,
}

const HALF: Micros = Micros::from_secs(12 * 3_600);

impl Day {
    /// Counts users too.
    pub(crate) fn with_users() -> Self {
        Self { users: Some(Box::default()), ..Self::default() }
    }

    pub(crate) fn has_users(&self) -> bool {
        self.users.is_some()
    }

    /// Sees a user, who is whoever has a key of this limit, and is allowed something.
    #[inline]
    pub(crate) fn see_allowed(&self, key: u64) {
        if let Some(users) = &self.users {
            users.present.allowed.see(key);
        }
    }

    /// Sees one who is denied something.
    #[inline]
    pub(crate) fn see_denied(&self, key: u64) {
        if let Some(users) = &self.users {
            users.present.denied.see(key);
        }
    }

    /// Looks closely at a decision that stands for so many.
    pub(crate) fn look(&self, now: Timestamp, weight: u64, used: u32) {
        self.advance(now);
        self.present.decisions.fetch_add(weight, Ordering::Relaxed);
        if self.present.peak.load(Ordering::Relaxed) < used {
            self.present.peak.fetch_max(used, Ordering::Relaxed);
        }
    }

    pub(super) fn tell(&self, now: Timestamp) -> DayTold {
        self.advance(now);
        let Self { present, before, users } = self;
        let began = |half: &Half| half.began_micros.load(Ordering::Relaxed);
        let began = if began(before) > 0 { began(before) } else { began(present) };
        let sum = |of: fn(&Half) -> &AtomicU64| {
            of(present).load(Ordering::Relaxed) + of(before).load(Ordering::Relaxed)
        };
        let peak = |half: &Half| half.peak.load(Ordering::Relaxed);
        DayTold {
            period: now.since(Timestamp::from_micros(began)),
            decisions: sum(|half| &half.decisions),
            peak: peak(present).max(peak(before)),
            users: users.as_ref().map(|users| {
                let HalvesOfUsers { present, before } = &**users;
                let all = [&present.denied, &before.denied, &present.allowed, &before.allowed];
                (Users::count(&all), Users::count(&all[..2]))
            }),
        }
    }

    /// Goes on to the half of `now`.
    fn advance(&self, now: Timestamp) {
        let Half { began_micros, .. } = &self.present;
        let began = began_micros.load(Ordering::Relaxed);
        let end = began.saturating_add(HALF.as_micros());
        if began != 0 && now.as_micros() < end {
            return;
        }
        let is_next = began != 0 && now.as_micros() < end.saturating_add(HALF.as_micros());
        let next = if is_next { end } else { now.as_micros().max(1) };
        let order = Ordering::Relaxed;
        if began_micros.compare_exchange(began, next, order, order).is_err() {
            // Somebody else does it.
            return;
        }
        if began == 0 {
            // The first half begins now; users who came before anybody looked are of it.
            return;
        }
        self.turn_over(if is_next { began } else { 0 });
        if !is_next {
            // Nobody was seen for so long that both are over.
            self.turn_over(0);
        }
    }

    /// Makes the present half, which began then, the one before.
    #[cold]
    fn turn_over(&self, began_micros: u64) {
        let Self { present, before, users } = self;
        let order = Ordering::Relaxed;
        before.began_micros.store(began_micros, order);
        before.decisions.store(present.decisions.swap(0, order), order);
        before.peak.store(present.peak.swap(0, order), order);
        if let Some(users) = users {
            users.before.allowed.take_from(&users.present.allowed);
            users.before.denied.take_from(&users.present.denied);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_micros(1_760_000_000_000_000);

    fn after(hours: u64) -> Timestamp {
        START.plus(Micros::from_secs(hours * 3_600))
    }

    #[test]
    fn what_is_told_is_of_twelve_to_twenty_four_hours() {
        let day = Day::with_users();
        let told = |hours| {
            let told = day.tell(after(hours));
            (told.period.as_micros() / 3_600_000_000, told.decisions, told.peak, told.users)
        };
        day.look(START, 64, 900_000);
        day.see_denied(1 << 60);
        assert_eq!(told(11), (11, 64, 900_000, Some((1, 1))));
        day.look(after(13), 1, 100_000);
        day.see_allowed(2 << 60);
        assert_eq!(told(23), (23, 65, 900_000, Some((2, 1))));
        assert_eq!(told(24), (12, 1, 100_000, Some((1, 0))));
        assert_eq!(told(90), (0, 0, 0, Some((0, 0))), "both halves are over");
    }

    #[test]
    fn users_who_came_before_anybody_looked_are_counted() {
        let day = Day::with_users();
        day.see_denied(1 << 60);
        day.see_allowed(2 << 60);
        day.look(START, 64, 900_000);
        assert_eq!(day.tell(START).users, Some((2, 1)));
    }

    #[test]
    fn a_clock_that_steps_back_counts_in_the_present_half() {
        let day = Day::default();
        day.look(after(1), 1, 5);
        day.look(START, 1, 6);
        let told = day.tell(START);
        assert_eq!((told.period, told.decisions, told.peak), (Micros::ZERO, 2, 6));
    }
}
