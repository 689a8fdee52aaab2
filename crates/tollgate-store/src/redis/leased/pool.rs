//! What a node holds of one key: a state machine without a clock and without I/O.
//!
//! What must stay true: a unit is spent once, by the one node that holds it, before its lease ends;
//! and what was spent is reported in the next call, or not at all, and then the whole lease counts as
//! spent when it ends. The end is reckoned on this node's own clock from before the call was sent, so
//! that it is over here no later than it is over for Redis; a node that was stopped meanwhile wakes up
//! and finds it over.
//!
//! A call whose fate is unknown ends the lease of a bucket here and now: Redis may hold it to be
//! larger or smaller than we know. It lapses there. Units of a window are not listed anywhere, so
//! such a call changes nothing about those held before.

use tollgate_core::bounds::LEASE_MICROS;
use tollgate_core::{
    Cost, Decision, Leasable, LeaseAnswer, LeaseCall, Micros, Receipt, Timestamp, Word,
};

use super::bounds::{AHEAD_MIN, AHEAD_SHARE, MARGIN_SHARE, REVIEW_AFTER, USAGE_WINDOW};

/// The units of one key that this node may spend.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pool {
    /// The limit that everything here is under.
    limit: Leasable,
    /// Of a bucket the lease, of a window its start; zero if there is none.
    id: u64,
    /// Units that may be spent until `ends_at`.
    held: u32,
    /// Units spent since the last call was sent.
    spent: u32,
    ends_at: Timestamp,
    /// Redis had less to give than was wanted: until asked by a request, it is not asked for more.
    is_scarce: bool,
    underway: Option<Underway>,
    /// The number of the last call that was sent; zero if there was none since the lease began.
    last_call: u64,
    /// When that was.
    asked_at: Timestamp,
    usage: Usage,
    told: Told,
}

/// A call that is not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Underway {
    /// Names the call on this node.
    number: u64,
    sent_at: Timestamp,
    /// Units held when it was sent, without those it gives back.
    kept: u32,
    call: LeaseCall,
}

/// The limit as Redis told of it last, brought up to what was spent here since. What this node holds
/// is not used in it, so that its figures are what a caller can still get from us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Told {
    word: Word,
    /// By the clock of Redis.
    at: Timestamp,
    /// By ours.
    heard_at: Timestamp,
}

/// How a request was paid for, so that it can be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payment {
    /// Not at all: it was denied, or a peek.
    Nothing,
    /// From a lease.
    Held {
        /// Of which time: see [`Pool::mark`].
        mark: u64,
        /// How much.
        units: u32,
    },
    /// By Redis.
    Charged(Receipt),
}

impl Pool {
    pub(crate) fn new(limit: Leasable) -> Self {
        Self {
            limit,
            id: 0,
            held: 0,
            spent: 0,
            ends_at: Timestamp::EPOCH,
            is_scarce: false,
            underway: None,
            last_call: 0,
            asked_at: Timestamp::EPOCH,
            usage: Usage::default(),
            told: Told::default(),
        }
    }

    /// Pays for a request from what is held, if that is enough and the lease has not ended.
    #[inline]
    pub(crate) fn spend(
        &mut self,
        now: Timestamp,
        limit: &Leasable,
        cost: Cost,
    ) -> Option<(Decision, Payment)> {
        let units = cost.units();
        // A peek is answered by who could also pay for something.
        if units.max(1) > self.held || now >= self.ends_at || *limit != self.limit {
            return None;
        }
        self.held -= units;
        self.spent += units;
        self.usage.add(now, units);
        let told_now = self.told.at.plus(now.since(self.told.heard_at));
        let charged = self.limit.counter().force(self.told.word, told_now, cost);
        self.told.word = charged.word;
        let payment = match units {
            0 => Payment::Nothing,
            _ => Payment::Held { mark: self.mark(), units },
        };
        Some((charged.decision, payment))
    }

    /// Takes units back that were paid and then not used; false if they stay spent. Those of a bucket
    /// do once they were reported: Redis has charged them, and time repays them there.
    pub(crate) fn give_back(&mut self, mark: u64, units: u32) -> bool {
        let is_unreported = match self.limit {
            Leasable::TokenBucket(_) => units <= self.spent,
            // Redis is not told what is spent of a window.
            Leasable::FixedWindow(_) => true,
        };
        let is_ours = mark != 0 && mark == self.mark() && is_unreported;
        if is_ours {
            self.spent = self.spent.saturating_sub(units);
            self.held = self.held.saturating_add(units);
            self.told.word = self.limit.without(self.told.word, units);
        }
        is_ours
    }

    /// What is the same for as long as units can be given back: of a bucket until the next call, which
    /// reports them, of a window until it ends.
    fn mark(&self) -> u64 {
        match self.limit {
            Leasable::TokenBucket(_) => self.last_call,
            Leasable::FixedWindow(_) => self.id,
        }
    }

    /// Whether a call is due that no request waits for: to get more before it is needed, or to report
    /// and to give back what is not.
    #[inline]
    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        if self.underway.is_some() {
            return false;
        }
        let recent = self.usage.recent(now);
        let runs_out = !self.is_scarce
            && recent >= AHEAD_MIN
            && self.held <= recent / AHEAD_SHARE
            && now < self.ends_at;
        runs_out || (now.since(self.asked_at) >= REVIEW_AFTER && self.has_to_tell(now))
    }

    /// Whether Redis takes something for held or unspent that is not.
    pub(crate) fn has_to_tell(&self, now: Timestamp) -> bool {
        match self.limit {
            // What has ended there is told no more.
            Leasable::TokenBucket(_) => self.held + self.spent > 0 && now < self.ends_at,
            Leasable::FixedWindow(_) => self.held > 0,
        }
    }

    /// Whether nothing is lost by forgetting this pool.
    pub(crate) fn is_vacant(&self, now: Timestamp) -> bool {
        self.underway.is_none() && !self.has_to_tell(now) && self.usage.recent(now) == 0
    }

    /// The limit that everything held is under.
    pub(crate) fn limit(&self) -> Leasable {
        self.limit
    }

    /// Whether a call is on its way.
    pub(crate) fn is_asking(&self) -> bool {
        self.underway.is_some()
    }

    /// A call for a request that cannot be paid from here: everything held is given back with it, so
    /// that Redis decides on all there is. `waiting` units are wanted by others at the moment.
    pub(crate) fn ask(
        &mut self,
        now: Timestamp,
        limit: &Leasable,
        cost: Cost,
        waiting: u32,
        number: u64,
    ) -> LeaseCall {
        if std::mem::discriminant(limit) != std::mem::discriminant(&self.limit) {
            self.abandon();
        }
        self.limit = *limit;
        let want = self.usage.recent(now).saturating_add(waiting);
        self.call(now, self.held, cost, want, number)
    }

    /// A call that no request waits for: it brings what is held to what was used of late.
    pub(crate) fn review(&mut self, now: Timestamp, number: u64) -> LeaseCall {
        let recent = self.usage.recent(now);
        let returned = self.held.saturating_sub(recent);
        self.call(now, returned, Cost::PEEK, recent.saturating_sub(self.held), number)
    }

    /// A call that gives everything back.
    pub(crate) fn close(&mut self, now: Timestamp, number: u64) -> LeaseCall {
        self.call(now, self.held, Cost::PEEK, 0, number)
    }

    fn call(
        &mut self,
        now: Timestamp,
        returned: u32,
        cost: Cost,
        want: u32,
        number: u64,
    ) -> LeaseCall {
        debug_assert!(self.underway.is_none(), "one call at a time");
        let mut returned = returned;
        if let Leasable::TokenBucket(_) = self.limit
            && (self.id == 0 || now >= self.ends_at)
        {
            self.abandon();
            (self.id, returned) = (number, 0);
        }
        self.held -= returned;
        let spent = std::mem::take(&mut self.spent);
        let call = LeaseCall { id: self.id, spent, returned, cost, want };
        self.underway = Some(Underway { number, sent_at: now, kept: self.held, call });
        (self.last_call, self.asked_at) = (number, now);
        call
    }

    /// Takes an answer in; false if it is none to the call under way, and so nothing of ours.
    pub(crate) fn answered(&mut self, now: Timestamp, number: u64, answer: &LeaseAnswer) -> bool {
        let Some(underway) = self.underway.take_if(|it| it.number == number) else { return false };
        let LeaseAnswer { granted, leased, word, .. } = *answer;
        self.held = match self.limit {
            // Never more than Redis knows of, whatever we believed to keep.
            Leasable::TokenBucket(_) => {
                underway.kept.saturating_add(granted).min(leased).saturating_sub(self.spent)
            }
            Leasable::FixedWindow(_) if word.high == self.id => self.held + granted,
            Leasable::FixedWindow(_) => granted,
        };
        match self.limit {
            Leasable::TokenBucket(_) if self.held + self.spent == 0 => self.id = 0,
            Leasable::TokenBucket(_) => {}
            Leasable::FixedWindow(_) => self.id = word.high,
        }
        let lasts = self.limit.lasts(answer).as_micros();
        self.ends_at = underway.sent_at.plus(Micros::new(lasts - lasts / MARGIN_SHARE));
        self.is_scarce = granted < underway.call.want;
        let word = self.limit.without(word, self.held);
        self.told = Told { word, at: answer.now, heard_at: now };
        if answer.is_allowed {
            self.usage.add(now, underway.call.cost.units());
        }
        true
    }

    /// The call was surely not run: all is as it was before.
    pub(crate) fn not_sent(&mut self, number: u64) {
        if let Some(underway) = self.underway.take_if(|it| it.number == number) {
            self.held += underway.call.returned;
            self.spent += underway.call.spent;
        }
    }

    /// Nobody knows whether the call was run.
    pub(crate) fn lost(&mut self, number: u64) {
        if self.underway.take_if(|it| it.number == number).is_some()
            && let Leasable::TokenBucket(_) = self.limit
        {
            self.abandon();
        }
    }

    /// Leaves the lease to lapse.
    pub(crate) fn abandon(&mut self) {
        (self.id, self.held, self.spent, self.last_call) = (0, 0, 0, 0);
    }
}

#[cfg(test)]
impl Pool {
    pub(crate) fn held(&self) -> u32 {
        self.held
    }

    /// Forgets what is only told, and not gone by.
    pub(crate) fn forget_figures(&mut self, now: Timestamp) {
        (self.told, self.asked_at, self.is_scarce) = Default::default();
        if self.usage.recent(now) == 0 {
            self.usage = Usage::default();
        }
    }
}

/// Units spent of late, in two windows: of between one and two windows' time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Usage {
    window: u64,
    this: u32,
    last: u32,
}

impl Usage {
    #[inline]
    fn add(&mut self, now: Timestamp, units: u32) {
        let window = now.as_micros() / USAGE_WINDOW.as_micros();
        if window != self.window {
            let last = if window == self.window + 1 { self.this } else { 0 };
            *self = Self { window, this: 0, last };
        }
        self.this = self.this.saturating_add(units);
    }

    #[inline]
    fn recent(&self, now: Timestamp) -> u32 {
        match (now.as_micros() / USAGE_WINDOW.as_micros()).saturating_sub(self.window) {
            0 => self.this.saturating_add(self.last),
            1 => self.this,
            _ => 0,
        }
    }
}

// A review that is not answered may be made again before the lease ends.
const _: () = assert!(REVIEW_AFTER.as_micros() * 2 < LEASE_MICROS.as_micros());

#[cfg(test)]
mod tests {
    use tollgate_core::{Align, LeasedState, Limit, Quota};

    use super::*;

    /// A node and a Redis, on one clock.
    struct Pair {
        limit: Leasable,
        redis: LeasedState,
        pool: Pool,
        now: Timestamp,
        calls: u64,
    }

    impl Pair {
        fn both(count: u32) -> [Self; 2] {
            let bucket = Limit::token_bucket(Quota::per_day(1), count).expect("a bucket");
            [bucket, Limit::fixed_window(Quota::per_day(count), Align::Clock)].map(|limit| {
                let limit = Leasable::of(&limit).expect("it can be leased");
                let now = Timestamp::from_micros(1_760_000_000_000_000);
                Self { limit, redis: LeasedState::default(), pool: Pool::new(limit), now, calls: 0 }
            })
        }

        fn pass(&mut self, millis: u64) {
            self.now = self.now.plus(Micros::from_millis(millis));
        }

        fn call(&mut self, make: impl FnOnce(&mut Pool, Timestamp, u64) -> LeaseCall) -> LeaseCall {
            self.calls += 1;
            let call = make(&mut self.pool, self.now, self.calls);
            let answer = self.limit.lease(&mut self.redis, self.now, &call);
            assert!(self.pool.answered(self.now, self.calls, &answer));
            call
        }

        /// One unit, from the pool or from Redis; what is left then, as a caller is told.
        fn take(&mut self) -> u32 {
            let limit = self.limit;
            if let Some((decision, _)) = self.pool.spend(self.now, &limit, Cost::ONE) {
                return decision.remaining;
            }
            self.call(|pool, now, number| pool.ask(now, &limit, Cost::ONE, 0, number));
            let left = self.limit.without(self.redis.word, self.pool.held);
            limit.counter().decide(left, self.now, Cost::PEEK).decision.remaining
        }

        fn take_ten(&mut self) {
            for _ in 0..10 {
                self.take();
            }
        }

        fn review(&mut self) -> LeaseCall {
            self.call(Pool::review)
        }

        /// What a node that holds nothing would find.
        fn left_to_others(&self) -> u32 {
            let (mut redis, limit) = (self.redis.clone(), self.limit);
            limit.settle(&mut redis, self.now);
            limit.counter().decide(redis.word, self.now, Cost::PEEK).decision.remaining
        }
    }

    #[test]
    fn what_is_told_to_remain_is_what_redis_has_left_and_what_is_held() {
        for mut pair in Pair::both(100) {
            for left in (40..100).rev() {
                assert_eq!(pair.take(), left);
                assert_eq!(pair.left_to_others() + pair.pool.held, left);
            }
            assert!(pair.calls < 15, "{} calls for 60 requests", pair.calls);
        }
    }

    #[test]
    fn no_more_is_held_after_a_call_than_was_used_in_the_fifth_of_a_second_before() {
        for mut pair in Pair::both(10_000) {
            let mut used: Vec<(Timestamp, u32)> = Vec::new();
            // Busy, then less and less so.
            for rest in [1, 2, 4, 8, 16, 32, 64, 128] {
                for _ in 0..256 / rest {
                    let calls = pair.calls;
                    used.push((pair.now, 1));
                    pair.take();
                    if pair.pool.is_due(pair.now) {
                        pair.review();
                    }
                    let since = pair.now.as_micros() - 2 * USAGE_WINDOW.as_micros();
                    let recent = used.iter().filter(|(at, _)| at.as_micros() > since);
                    let recent: u32 = recent.map(|(_, units)| units).sum();
                    let is_called = pair.calls > calls;
                    assert!(!is_called || pair.pool.held <= recent, "{:?}", pair.pool);
                    pair.pass(rest);
                }
            }
            pair.pass(200);
            assert!(!pair.pool.has_to_tell(pair.now) || pair.pool.is_due(pair.now));
            pair.review();
            assert_eq!(pair.pool.held, 0);
            assert_eq!(pair.left_to_others() as usize, 10_000 - used.len());
            assert!(pair.pool.is_vacant(pair.now));
        }
    }

    #[test]
    fn a_call_that_was_not_sent_changes_nothing() {
        for mut pair in Pair::both(100) {
            pair.take_ten();
            let (held, spent) = (pair.pool.held, pair.pool.spent);
            let limit = pair.limit;
            pair.pool.ask(pair.now, &limit, Cost::new(50), 0, 77);
            assert_eq!(pair.pool.held, 0, "everything was to be given back");
            pair.pool.not_sent(77);
            assert_eq!((pair.pool.held, pair.pool.spent), (held, spent));
        }
    }

    /// A unit that the pool pays for, and what it is given back by.
    fn paid(pair: &mut Pair) -> (u64, u32) {
        let limit = pair.limit;
        let paid = pair.pool.spend(pair.now, &limit, Cost::ONE).expect("it holds some");
        let Payment::Held { mark, units } = paid.1 else { panic!("{paid:?}") };
        (mark, units)
    }

    #[test]
    fn what_was_reported_as_spent_is_not_taken_out_of_what_others_spent_since() {
        let [mut bucket, _] = Pair::both(100);
        bucket.take_ten();
        let (mark, units) = paid(&mut bucket);
        bucket.review();
        paid(&mut bucket);
        let (held, spent) = (bucket.pool.held, bucket.pool.spent);
        assert!(!bucket.pool.give_back(mark, units));
        assert_eq!((bucket.pool.held, bucket.pool.spent), (held, spent));
    }

    #[test]
    fn what_was_paid_since_the_last_call_can_be_given_back_and_of_a_window_also_what_was_before() {
        for mut pair in Pair::both(100) {
            pair.take_ten();
            let (mark, units) = paid(&mut pair);
            let held = pair.pool.held;
            assert!(pair.pool.give_back(mark, units));
            assert_eq!(pair.pool.held, held + 1);
        }
        let [_, mut window] = Pair::both(100);
        window.take_ten();
        let (mark, units) = paid(&mut window);
        window.review();
        let held = window.pool.held;
        assert!(window.pool.give_back(mark, units));
        assert_eq!(window.pool.held, held + 1);
        assert_eq!(window.left_to_others() + window.pool.held, 90);
        window.pass(86_400_000);
        window.take();
        assert!(!window.pool.give_back(mark, units), "that window is over");
    }

    #[test]
    fn a_lost_answer_ends_the_lease_of_a_bucket_and_leaves_the_units_of_a_window() {
        let [mut bucket, mut window] = Pair::both(100);
        for pair in [&mut bucket, &mut window] {
            pair.take_ten();
            assert!(pair.pool.held > 0);
            pair.pool.review(pair.now, 77);
            pair.pool.lost(77);
        }
        assert_eq!(bucket.pool.held, 0);
        assert!(window.pool.held > 0);
    }
}
