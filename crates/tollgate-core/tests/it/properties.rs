//! What holds of every algorithm on any traffic, checked over random traces that are the same in
//! every run.

use tollgate_core::bounds::{LOG_ENTRIES_MAX, LOG_WALK_MAX};
use tollgate_core::{
    Algorithm, Align, ChargeId, Cost, Counter, Decision, Entry, Limit, Log, Micros, Outcome, Quota,
    Timestamp,
};

use crate::support::{
    Charged, Rng, START, Subject, period, random_cost, random_limit, random_long_log, random_step,
    span,
};

/// One decision of a trace, with the key as it was before and as it is after.
struct Step<'a> {
    before: &'a Subject,
    after: &'a Subject,
    now: Timestamp,
    cost: Cost,
    decision: Decision,
}

impl Step<'_> {
    fn limit(&self) -> &Limit {
        &self.after.limit
    }

    /// Whether this moment and the wait after it can be told: at the end of time, and under the
    /// largest forced debts, they cannot.
    fn is_in_time(&self, wait: Micros) -> bool {
        self.now.as_micros() + wait.as_micros() < Timestamp::END.as_micros()
    }
}

/// Random traces of every algorithm: mostly requests, now and then one that is forced, punished
/// or refunded; the clock mostly goes on, and sometimes goes back.
fn for_each_decision(check: impl FnMut(&Step<'_>)) -> u64 {
    for_each_decision_of(&Algorithm::ALL, check)
}

fn for_each_decision_of(algorithms: &[Algorithm], mut check: impl FnMut(&Step<'_>)) -> u64 {
    let mut denials = 0;
    for &algorithm in algorithms {
        for seed in 0..60 {
            let mut rng = Rng::new(seed);
            let mut subject = Subject::new(random_limit(&mut rng, algorithm));
            let mut now = Timestamp::from_micros(START + rng.below(1_000_000_000));
            let mut charged: Vec<Charged> = Vec::new();
            for _ in 0..120 {
                now = random_step(&mut rng, now, &subject.limit);
                let cost = random_cost(&mut rng, &subject.limit);
                match rng.below(40) {
                    0 => charged.push(subject.force(now, cost).1),
                    1 if cost.units() <= subject.limit.capacity() => subject.punish(now, cost),
                    2..=4 => {
                        if let Some(charged) = charged.pop() {
                            subject.refund(now, &charged);
                        }
                    }
                    _ => {
                        let before = subject.clone();
                        let (decision, receipt) = subject.charge(now, cost);
                        denials += u64::from(!decision.is_allowed());
                        check(&Step { before: &before, after: &subject, now, cost, decision });
                        charged.push(receipt);
                    }
                }
            }
        }
    }
    denials
}

fn micro_before(now: Timestamp, wait: Micros) -> Timestamp {
    Timestamp::from_micros(now.as_micros() + wait.as_micros() - 1)
}

#[test]
fn retry_after_is_the_shortest_wait_that_works() {
    let mut waits = 0;
    for_each_decision(|step| {
        let Step { after, now, cost, .. } = *step;
        let Some(wait) = step.decision.retry_after() else { return };
        assert!(!wait.is_zero());
        if !step.is_in_time(wait) {
            return;
        }
        waits += 1;
        let then = after.would(now.plus(wait), cost);
        assert!(then.is_allowed(), "{after:?} {now:?} {cost:?} {wait:?}");
        let early = after.would(micro_before(now, wait), cost);
        assert!(!early.is_allowed(), "{after:?} {now:?} {cost:?} {wait:?}");
    });
    assert!(waits > 1_000, "only {waits} denials with a wait");
}

#[test]
fn the_wait_of_a_long_log_works_and_is_the_shortest_where_a_thousand_entries_tell_it() {
    let (mut shortest_waits, mut longer_waits) = (0, 0);
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let (hold, log) = random_long_log(&mut rng);
        let entries: Vec<Entry> = log.entries().collect();
        let units: u32 = entries.iter().map(|entry| entry.units).sum();
        let Ok(Limit::Logged(limit)) = Quota::new(units, hold).map(Limit::sliding_log).unwrap()
        else {
            unreachable!("a log")
        };
        let now = entries[entries.len() - 1].at;
        let cost = 1 + rng.below_either(&[u64::from(units), 2_000]) as u32;
        let cost = Cost::new(cost.min(units));
        let would = |now| limit.decide(&log, now, cost, ChargeId(u64::MAX)).decision;
        let told = would(now).retry_after().unwrap();
        assert!(would(now.plus(told)).is_allowed(), "seed {seed}: {cost:?} {told:?}");

        let mut ended = 0;
        let enough = entries.iter().find(|entry| {
            ended += entry.units;
            ended >= cost.units()
        });
        let enough = enough.unwrap().at;
        let shortest = Micros::new(hold.as_micros() - (now.as_micros() - enough.as_micros()));
        let is_walked_to = entries.get(LOG_WALK_MAX as usize).is_none_or(|at| enough < at.at);
        let are_single = units as usize == entries.len();
        if is_walked_to || are_single || cost.units() <= LOG_WALK_MAX {
            assert_eq!(told, shortest, "seed {seed}: {cost:?}");
            shortest_waits += 1;
        } else {
            assert!(told >= shortest, "seed {seed}: {cost:?}");
            longer_waits += u64::from(told > shortest);
        }
    }
    assert!(shortest_waits > 100 && longer_waits > 20, "{shortest_waits} and {longer_waits}");
}

#[test]
fn past_a_thousand_entries_of_a_log_each_is_taken_for_a_unit() {
    let at = |second| Timestamp::from_micros(START).plus(Micros::from_secs(second));
    let entry = |second| Entry { at: at(second), id: ChargeId(second), units: 2 };
    let log: Log = (0..3_000).map(entry).collect();
    let log_of = |count| Limit::sliding_log(Quota::per_hour(count)).unwrap();
    let told = |limit: Limit, cost| {
        let Limit::Logged(limit) = limit else { unreachable!("a log") };
        let decision = limit.decide(&log, at(3_000), Cost::new(cost), ChargeId(3_000)).decision;
        // Which entry's end is waited for, and which one's for the next unit.
        let entry = |wait: Option<Micros>| wait.unwrap().as_micros() / 1_000_000 - 600 + 1;
        (entry(decision.retry_after()), entry(decision.next_after))
    };
    for (cost, entry) in
        [(1, 1), (2, 1), (3, 2), (2_000, 1_000), (2_001, 1_001), (2_002, 1_002), (3_000, 2_000)]
    {
        assert_eq!(told(log_of(6_000), cost), (entry, 1), "{cost}");
    }
    // All but ten units must end, and then all: no more can be told than the newest's end.
    assert_eq!(told(log_of(10), 1), (3_000, 3_000));
    assert_eq!(told(log_of(6_000), 6_000), (3_000, 1));
}

#[test]
fn only_a_concurrency_limit_denies_without_a_wait() {
    let denials = for_each_decision(|step| {
        let is_denied = matches!(step.decision.outcome, Outcome::Denied { .. });
        let knows_no_wait = step.limit().algorithm() == Algorithm::Concurrency;
        if is_denied {
            assert_eq!(step.decision.retry_after().is_none(), knows_no_wait);
        }
    });
    assert!(denials > 5_000, "only {denials} denials");
}

#[test]
fn what_costs_more_than_the_limit_holds_is_too_costly_and_nothing_else_is() {
    for_each_decision(|step| {
        let is_too_costly = step.cost.units() > step.limit().capacity();
        assert_eq!(step.decision.outcome == Outcome::TooCostly, is_too_costly);
    });
}

#[test]
fn remaining_is_exactly_what_can_still_be_taken() {
    for_each_decision(|step| {
        let Step { after, now, decision, .. } = *step;
        // Nothing remains of a limit that is exceeded, but a peek at it is denied.
        if decision.remaining > 0 {
            let all = after.would(now, Cost::new(decision.remaining));
            assert!(all.is_allowed(), "{after:?} {now:?} {decision:?}");
        }
        if let Some(more) = decision.remaining.checked_add(1) {
            let more = after.would(now, Cost::new(more));
            assert!(!more.is_allowed(), "{after:?} {now:?} {decision:?}");
        }
    });
}

#[test]
fn a_peek_is_denied_only_while_the_limit_is_exceeded() {
    let mut exceeded = 0;
    for_each_decision(|step| {
        let Step { after, now, .. } = *step;
        let peek = after.peek(now);
        if peek.is_allowed() {
            return;
        }
        exceeded += 1;
        assert_eq!(peek.remaining, 0);
        let Some(wait) = peek.retry_after() else { return };
        if step.is_in_time(wait) {
            assert!(after.peek(now.plus(wait)).is_allowed());
            assert!(!after.peek(micro_before(now, wait)).is_allowed());
        }
    });
    assert!(exceeded > 500, "only {exceeded} times");
}

#[test]
fn next_after_is_when_one_more_unit_can_be_taken_and_not_a_microsecond_earlier() {
    for_each_decision(|step| {
        let Step { after, now, decision, .. } = *step;
        let Decision { limit, remaining, next_after, .. } = decision;
        let Some(wait) = next_after else {
            assert_eq!(after.limit.algorithm(), Algorithm::Concurrency);
            assert!(remaining < limit || limit == 0);
            return;
        };
        if wait.is_zero() {
            assert_eq!(remaining, limit, "{after:?} {now:?}");
        } else if limit > 0 && step.is_in_time(wait) {
            let then = after.peek(now.plus(wait)).remaining;
            assert!(then > remaining, "{after:?} {now:?} {decision:?}");
            let early = after.peek(micro_before(now, wait)).remaining;
            assert_eq!(early, remaining, "{after:?} {now:?} {decision:?}");
        }
    });
}

#[test]
fn reset_after_is_when_the_limit_is_whole_and_not_a_microsecond_earlier() {
    for_each_decision(|step| {
        let Step { after, now, decision, .. } = *step;
        let Decision { limit, remaining, reset_after, .. } = decision;
        if limit == 0 || !step.is_in_time(reset_after) {
            return;
        }
        let then = after.peek(now.plus(reset_after));
        assert_eq!(then.remaining, limit, "{after:?} {now:?} {decision:?}");
        assert!(then.is_allowed() && then.reset_after.is_zero());
        if reset_after.is_zero() {
            assert_eq!(remaining, limit);
        } else {
            let early = after.peek(micro_before(now, reset_after)).remaining;
            assert!(early < limit, "{after:?} {now:?} {decision:?}");
        }
    });
}

#[test]
fn a_vacant_state_cannot_be_told_from_a_key_never_seen() {
    let mut rng = Rng::new(7);
    for_each_decision(|step| {
        let vacant_at = step.after.vacant_at().max(step.now);
        if vacant_at >= Timestamp::END {
            return;
        }
        let (mut known, mut unknown) = (step.after.clone(), Subject::new(*step.limit()));
        let mut now = vacant_at.plus(Micros::new(rng.below_either(&[1, 3, 1_000_000])));
        for _ in 0..4 {
            let cost = random_cost(&mut rng, step.limit());
            assert_eq!(known.decide(now, cost), unknown.decide(now, cost), "{known:?} {now:?}");
            now = now.plus(Micros::new(rng.below(span(step.limit()) + 2)));
        }
    });
}

#[test]
fn a_vacant_state_is_carried_over_to_another_quota_as_a_key_never_seen() {
    let mut rng = Rng::new(8);
    for_each_decision(|step| {
        let now = step.after.vacant_at().max(step.now);
        if now >= Timestamp::END {
            return;
        }
        let limit = random_limit(&mut rng, step.limit().algorithm());
        let mut known = step.after.clone();
        known.change(limit, now);
        assert_eq!(known.peek(now), Subject::new(limit).peek(now), "{:?} {limit:?}", step.after);
    });
}

#[test]
fn a_key_is_vacant_as_soon_as_its_limit_is_whole() {
    for_each_decision(|step| {
        let whole_at = step.now.plus(step.decision.reset_after);
        assert!(step.after.vacant_at() <= whole_at, "{:?} {:?}", step.after, step.now);
    });
}

#[test]
fn a_denied_request_leaves_no_trace() {
    let mut rng = Rng::new(9);
    for_each_decision(|step| {
        if step.decision.is_allowed() {
            return;
        }
        // Looking at a key brings a time too far ahead back, whatever is decided.
        let mut before = step.before.clone();
        before.decide(step.now, Cost::PEEK);
        for _ in 0..3 {
            let wait = rng.below_either(&[1, 1_000, 2 * span(step.limit()) + 2]);
            let then = step.now.plus(Micros::new(wait));
            assert_eq!(before.peek(then), step.after.peek(then), "{:?}", step.before);
        }
    });
}

#[test]
fn a_peek_leaves_no_trace() {
    for_each_decision(|step| {
        let mut peeked = step.after.clone();
        peeked.decide(step.now, Cost::PEEK);
        assert_eq!(peeked.peek(step.now), step.after.peek(step.now));
    });
}

#[test]
fn a_clock_that_goes_back_admits_nothing_extra() {
    let mut rng = Rng::new(10);
    for_each_decision(|step| {
        let Step { after, now, .. } = *step;
        let back = rng.below_either(&[3, period(step.limit()) + 1, 3_600_000_000, START]);
        let earlier = Timestamp::from_micros(now.as_micros().saturating_sub(back));
        let (before, behind) = (after.peek(now).remaining, after.peek(earlier).remaining);
        assert!(behind <= before, "{after:?} {now:?} back by {back}: {before} became {behind}");
    });
}

#[test]
fn a_clock_that_goes_back_locks_nobody_out_for_longer_than_a_period() {
    let mut rng = Rng::new(11);
    for_each_decision(|step| {
        let Step { after, now, decision, .. } = *step;
        let back = rng.below_either(&[3, period(step.limit()) + 1, 3_600_000_000, START]);
        let earlier = Timestamp::from_micros(now.as_micros().saturating_sub(back));
        let period = period(step.limit());
        // The longest wait of a clock that goes on, and one period.
        let longest = match step.limit().algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                decision.reset_after.as_micros() + period
            }
            Algorithm::SlidingWindow => 2 * period + period,
            _ => period + period,
        };
        // A bucket's debt is told as of the last charge, so what was repaid since is owed again. And
        // a trace goes back too, so the key may have been ahead before.
        let is_charged = decision.is_allowed() && step.cost != Cost::PEEK;
        let was_ahead = step.before.peek(now).reset_after.as_micros() > longest - period;
        if !is_charged || was_ahead {
            return;
        }
        let locked = after.peek(earlier).reset_after.as_micros();
        assert!(locked <= longest, "{after:?} {now:?} back by {back}: whole after {locked}");
    });
}

#[test]
fn a_clock_that_goes_back_lets_a_bucket_give_no_more_than_its_burst_and_rate() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket] {
        for seed in 0..150 {
            let mut rng = Rng::new(seed);
            let mut subject = Subject::new(random_limit(&mut rng, algorithm));
            let (limit, span) = (subject.limit, span(&subject.limit));
            // The clock shows the time less all that it was set back by.
            let (mut time, mut set_back) = (START, 0);
            let mut admitted = Vec::new();
            for _ in 0..150 {
                time += rng.below_either(&[2, span / 20 + 2]);
                if rng.one_in(10) {
                    set_back += rng.below_either(&[1_000, span + 1, 3_600_000_000]);
                    set_back = set_back.min(START / 2);
                }
                let cost = random_cost(&mut rng, &limit);
                let now = Timestamp::from_micros(time - set_back);
                if subject.decide(now, cost).is_allowed() {
                    admitted.push((time, cost.units()));
                }
            }
            check_burst_and_rate(&limit, &admitted);
        }
    }
}

/// Steady clocks only: requests at random moments, and which were admitted when.
fn for_each_admission(algorithm: Algorithm, mut check: impl FnMut(&Limit, &[(u64, u32)])) {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut subject = Subject::new(random_limit(&mut rng, algorithm));
        let limit = subject.limit;
        let mut time = START + rng.below(1_000_000_000_000);
        let mut admitted = Vec::new();
        for _ in 0..150 {
            time += rng.below_either(&[1, 3, span(&limit) / 20 + 2, span(&limit) / 3 + 2]);
            let cost = random_cost(&mut rng, &limit);
            if subject.decide(Timestamp::from_micros(time), cost).is_allowed() {
                admitted.push((time, cost.units()));
            }
        }
        check(&limit, &admitted);
    }
}

/// Units admitted from each admission on to each later one, with the time between the two.
fn for_each_stretch(admitted: &[(u64, u32)], mut check: impl FnMut(u64, u64)) {
    for (place, &(first, _)) in admitted.iter().enumerate() {
        let mut units = 0;
        for &(last, more) in &admitted[place..] {
            units += u64::from(more);
            check(last - first, units);
        }
    }
}

fn ticks(limit: &Limit) -> (u128, u128, u128) {
    let (per_unit, per_micro, burst) = match limit {
        Limit::Counter(Counter::TokenBucket(limit)) => {
            let [per_unit, per_micro, burst, _] = limit.numbers();
            (per_unit, per_micro, burst)
        }
        Limit::Counter(Counter::LeakyBucket(limit)) => {
            let [per_unit, per_micro, burst, ..] = limit.numbers();
            (per_unit, per_micro, burst)
        }
        other => panic!("{other:?} is not a bucket"),
    };
    (per_unit.into(), per_micro.into(), burst.into())
}

fn check_burst_and_rate(limit: &Limit, admitted: &[(u64, u32)]) {
    let (per_unit, per_micro, burst) = ticks(limit);
    for_each_stretch(admitted, |stretch, units| {
        let most = burst * per_unit + u128::from(stretch) * per_micro;
        assert!(u128::from(units) * per_unit <= most, "{limit:?}: {units} in {stretch} us");
    });
}

#[test]
fn no_stretch_of_time_gets_more_than_burst_and_rate_from_a_bucket() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket] {
        for_each_admission(algorithm, check_burst_and_rate);
    }
}

#[test]
fn no_period_gets_more_than_the_count_from_a_sliding_log() {
    for_each_admission(Algorithm::SlidingLog, |limit, admitted| {
        for_each_stretch(admitted, |stretch, units| {
            let is_within = stretch < period(limit);
            assert!(!is_within || units <= limit.capacity().into(), "{limit:?}");
        });
    });
}

#[test]
fn no_window_gets_more_than_the_count_from_a_fixed_window() {
    for_each_admission(Algorithm::FixedWindow, |limit, admitted| {
        let Limit::Counter(Counter::FixedWindow(window)) = limit else { unreachable!() };
        let [count, period, is_by_key] = window.numbers();
        let (mut start, mut units) = (0, 0);
        for &(at, more) in admitted.iter().filter(|(_, units)| *units > 0) {
            if at - start >= period {
                start = if is_by_key == 1 { at } else { at - at % period };
                units = 0;
            }
            units += u64::from(more);
            assert!(units <= count, "{limit:?}");
        }
    });
}

#[test]
fn a_sliding_window_admits_while_its_estimate_is_below_the_count() {
    for_each_admission(Algorithm::SlidingWindow, |limit, admitted| {
        let (count, period) = (u128::from(limit.capacity()), u128::from(period(limit)));
        let units_in = |window: u128, until: usize| -> u128 {
            let inside = |at: u64| u128::from(at) / period == window;
            let units = admitted[..=until].iter().filter(|(at, _)| inside(*at));
            units.map(|(_, units)| u128::from(*units)).sum()
        };
        for (place, &(at, _)) in admitted.iter().enumerate() {
            let (number, elapsed) = (u128::from(at) / period, u128::from(at) % period);
            let faded = units_in(number - 1, place) * (period - elapsed) / period;
            assert!(faded + units_in(number, place) <= count, "{limit:?} at {at}");
        }
        // Just under twice the count is what an adversary can get.
        for_each_stretch(admitted, |stretch, units| {
            let is_within = u128::from(stretch) < period;
            assert!(!is_within || u128::from(units) <= 2 * count, "{limit:?}");
        });
    });
}

#[test]
fn a_leaky_bucket_releases_no_closer_together_than_its_rate() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut subject = Subject::new(random_limit(&mut rng, Algorithm::LeakyBucket));
        let limit = subject.limit;
        let (per_unit, per_micro, _) = ticks(&limit);
        let mut time = START;
        let mut released: Vec<(u64, u32)> = Vec::new();
        for _ in 0..150 {
            time += rng.below_either(&[1, 3, span(&limit) / 20 + 2]);
            let cost = random_cost(&mut rng, &limit);
            let decision = subject.decide(Timestamp::from_micros(time), cost);
            if decision.is_allowed() && cost != Cost::PEEK {
                released.push((time + decision.delay().as_micros(), cost.units()));
            }
        }
        for (place, &(first, _)) in released.iter().enumerate() {
            // What leaves between two releases must have had its time between them; each release is
            // rounded up to a microsecond, so two may seem closer by less than one.
            let mut units = 0;
            for pair in released[place..].windows(2) {
                units += u128::from(pair[0].1);
                let time = u128::from(pair[1].0 - first);
                assert!((time + 1) * per_micro > units * per_unit, "{limit:?}");
            }
        }
    }
}

#[test]
fn a_leaky_bucket_holds_nobody_longer_than_its_longest_delay() {
    for_each_decision_of(&[Algorithm::LeakyBucket], |step| {
        let Limit::Counter(Counter::LeakyBucket(limit)) = step.limit() else { unreachable!() };
        let [.., max_delay] = limit.numbers();
        if step.cost != Cost::PEEK {
            assert!(step.decision.delay().as_micros() <= max_delay, "{limit:?}");
        }
    });
}

#[test]
fn never_more_slots_are_held_than_a_concurrency_limit_has() {
    for seed in 0..100 {
        let mut rng = Rng::new(seed);
        let mut subject = Subject::new(random_limit(&mut rng, Algorithm::Concurrency));
        let (slots, lease) = (u64::from(subject.limit.capacity()), period(&subject.limit));
        let mut time = START;
        let mut held: Vec<(u64, u32, Charged)> = Vec::new();
        for _ in 0..200 {
            time += rng.below_either(&[2, lease / 20 + 1]);
            let now = Timestamp::from_micros(time);
            held.retain(|(at, ..)| time - at < lease);
            if rng.one_in(3) && !held.is_empty() {
                let (.., charged) = held.swap_remove(rng.below(held.len() as u64) as usize);
                subject.refund(now, &charged);
                continue;
            }
            let cost = random_cost(&mut rng, &subject.limit);
            let in_use: u64 = held.iter().map(|(_, units, _)| u64::from(*units)).sum();
            let (decision, charged) = subject.charge(now, cost);
            let fits = in_use + u64::from(cost.units()) <= slots;
            assert_eq!(decision.is_allowed(), fits, "{:?} with {in_use} in use", subject.limit);
            if fits && cost != Cost::PEEK {
                held.push((time, cost.units(), charged));
            }
        }
    }
}

#[test]
fn a_refund_right_away_restores_every_figure() {
    let mut rng = Rng::new(12);
    for_each_decision(|step| {
        let Step { after, now, cost, .. } = *step;
        for is_forced in [false, true] {
            let mut refunded = after.clone();
            let charged = match is_forced {
                true => refunded.force(now, cost).1,
                false => refunded.charge(now, cost).1,
            };
            refunded.refund(now, &charged);
            for _ in 0..3 {
                let wait = rng.below_either(&[1, 1_000, 2 * span(step.limit()) + 2]);
                let then = now.plus(Micros::new(wait));
                assert_eq!(refunded.peek(then), after.peek(then), "{after:?} {now:?} {cost:?}");
            }
        }
    });
}

#[test]
fn a_later_refund_is_as_if_the_charge_had_never_been_made() {
    let mut rng = Rng::new(13);
    for_each_decision(|step| {
        let Step { after, now, cost, .. } = *step;
        let (mut refunded, never) = (after.clone(), after.clone());
        let (_, charged) = refunded.charge(now, cost);
        let mut then = now;
        for _ in 0..3 {
            // Whoever looks meanwhile changes nothing.
            then = then.plus(Micros::new(rng.below_either(&[2, span(step.limit()) / 2 + 2])));
            refunded.decide(then, Cost::PEEK);
        }
        refunded.refund(then, &charged);
        for wait in [0, 1, rng.below(span(step.limit()) + 1)] {
            let then = then.plus(Micros::new(wait));
            assert_eq!(refunded.peek(then), never.peek(then), "{after:?} {now:?} {cost:?}");
        }
    });
}

#[test]
fn a_refund_after_other_charges_is_exact_for_windows_and_logs() {
    let algorithms = [
        Algorithm::SlidingWindow,
        Algorithm::FixedWindow,
        Algorithm::SlidingLog,
        Algorithm::Concurrency,
    ];
    let mut rng = Rng::new(14);
    for_each_decision_of(&algorithms, |step| {
        // Windows aligned by key begin with the first charge, so there which it is matters.
        let is_by_key = match step.limit() {
            Limit::Counter(Counter::FixedWindow(limit)) => limit.numbers()[2] == 1,
            _ => false,
        };
        let Some((refunded, never, then)) = refund_among_others(step, &mut rng) else { return };
        if !is_by_key {
            for wait in [0, 1, rng.below(span(step.limit()) + 1)] {
                let then = then.plus(Micros::new(wait));
                assert_eq!(
                    refunded.peek(then),
                    never.peek(then),
                    "{:?} {:?}",
                    step.after,
                    step.now
                );
            }
        }
    });
}

#[test]
fn a_refund_after_other_charges_gives_a_bucket_no_more_than_it_took() {
    let mut rng = Rng::new(15);
    for_each_decision_of(&[Algorithm::TokenBucket, Algorithm::LeakyBucket], |step| {
        let Some((refunded, never, then)) = refund_among_others(step, &mut rng) else { return };
        let (refunded, never) = (refunded.peek(then), never.peek(then));
        assert!(refunded.remaining <= never.remaining, "{:?} {:?}", step.after, step.now);
        assert!(refunded.reset_after >= never.reset_after, "{:?} {:?}", step.after, step.now);
    });
}

/// A key to which a charge was made and refunded after others, and one to which it was not made;
/// `None` if what was made of the others differs. And the moment of the refund.
fn refund_among_others(step: &Step<'_>, rng: &mut Rng) -> Option<(Subject, Subject, Timestamp)> {
    let (mut refunded, mut never) = (step.after.clone(), step.after.clone());
    let (_, charged) = refunded.charge(step.now, step.cost);
    // The charge that is not made has a name too.
    never.decide(step.now, Cost::PEEK);
    let mut then = step.now;
    for _ in 0..4 {
        then = then.plus(Micros::new(rng.below_either(&[2, span(step.limit()) / 3 + 2])));
        let cost = Cost::new(rng.below(u64::from(step.limit().capacity()) / 3 + 2) as u32);
        let (one, other) = (refunded.decide(then, cost), never.decide(then, cost));
        if one.is_allowed() != other.is_allowed() {
            return None;
        }
    }
    refunded.refund(then, &charged);
    Some((refunded, never, then))
}

#[test]
fn a_refund_gives_nothing_back_that_time_has_given_back() {
    let mut rng = Rng::new(16);
    for_each_decision(|step| {
        let Step { after, now, cost, .. } = *step;
        let mut subject = after.clone();
        let (_, charged) = subject.charge(now, cost);
        let vacant_at = subject.vacant_at().max(now);
        let mut then = vacant_at.plus(Micros::new(rng.below_either(&[1, 1_000])));
        if then >= Timestamp::END {
            return;
        }
        for _ in 0..3 {
            subject.decide(then, random_cost(&mut rng, step.limit()));
            then = then.plus(Micros::new(rng.below_either(&[1, span(step.limit()) / 3 + 2])));
        }
        let before = subject.peek(then);
        subject.refund(then, &charged);
        assert_eq!(subject.peek(then), before, "{after:?} {now:?} {cost:?}");
    });
}

#[test]
fn a_refund_of_a_denial_gives_nothing_back() {
    for_each_decision(|step| {
        let mut subject = step.after.clone();
        let (decision, charged) = subject.charge(step.now, step.cost);
        if !decision.is_allowed() {
            let before = subject.peek(step.now);
            subject.refund(step.now, &charged);
            assert_eq!(subject.peek(step.now), before);
        }
    });
}

#[test]
fn a_refund_behind_a_clock_that_went_back_gives_nothing_back_that_time_has_given_back() {
    for_each_decision(|step| {
        let Step { now, .. } = *step;
        if step.limit().algorithm() == Algorithm::SlidingWindow {
            return; // Behind, what had faded counts again, and so can be given back.
        }
        let mut subject = Subject::new(*step.limit());
        let capacity = step.limit().capacity();
        let (_, charged) = subject.charge(now, Cost::new(capacity));
        // All of it is back, and has been taken by others, when the clock steps back.
        let later = subject.vacant_at().plus(Micros::new(1));
        if later >= Timestamp::END {
            return;
        }
        subject.decide(later, Cost::new(capacity));
        for back in [1, 2, span(step.limit()) / 2, span(step.limit()), 3_600_000_000] {
            let behind = Timestamp::from_micros(later.as_micros().saturating_sub(back));
            let mut refunded = subject.clone();
            refunded.refund(behind, &charged);
            assert_eq!(refunded.peek(behind), subject.peek(behind), "{subject:?} {behind:?}");
        }
    });
}

#[test]
fn a_receipt_of_a_time_that_was_taken_back_gives_nothing_back() {
    for_each_decision(|step| {
        let limit = *step.limit();
        let (taken_at, capacity) = (Timestamp::from_micros(START), Cost::new(limit.capacity()));
        let mut subject = Subject::new(limit);
        let (_, charged) = subject.charge(taken_at, capacity);
        // The clock steps back so far that all is whole again before it gets there once more.
        let back = 4 * (span(&limit) + period(&limit));
        let behind = Timestamp::from_micros(START.saturating_sub(back));
        subject.decide(behind, Cost::PEEK);
        let later = subject.vacant_at();
        if later >= taken_at {
            return;
        }
        subject.decide(later, capacity);
        let before = subject.peek(later);
        subject.refund(later, &charged);
        assert_eq!(subject.peek(later), before, "{subject:?} {later:?}");
    });
}

#[test]
fn a_penalty_is_at_most_two_buckets() {
    let mut rng = Rng::new(17);
    for _ in 0..200 {
        let mut subject = Subject::new(random_limit(&mut rng, Algorithm::TokenBucket));
        let now = Timestamp::from_micros(START);
        for _ in 0..20 {
            subject.punish(now, Cost::new(rng.below(2 + u64::from(u32::MAX / 2)) as u32));
        }
        let refill = u128::from(span(&subject.limit));
        let reset = u128::from(subject.peek(now).reset_after.as_micros());
        assert!(reset <= 2 * refill, "{subject:?}");
    }
}

#[test]
fn a_changed_count_leaves_what_was_consumed_consumed() {
    let now = Timestamp::from_micros(START);
    let bucket = |count, burst| Limit::token_bucket(Quota::per_minute(count), burst);
    let queue = |count, length| Limit::leaky_bucket(Quota::per_minute(count), length, None);
    let pairs = [
        (bucket(60, 60), bucket(70, 70)),
        (queue(60, 60), queue(70, 70)),
        (
            Ok(Limit::sliding_window(Quota::per_minute(60))),
            Ok(Limit::sliding_window(Quota::per_minute(70))),
        ),
        (
            Ok(Limit::fixed_window(Quota::per_minute(60), Align::Clock)),
            Ok(Limit::fixed_window(Quota::per_minute(70), Align::Clock)),
        ),
        (Limit::sliding_log(Quota::per_minute(60)), Limit::sliding_log(Quota::per_minute(70))),
        (
            Limit::concurrency(60, Micros::from_secs(60)),
            Limit::concurrency(70, Micros::from_secs(60)),
        ),
    ];
    for (sixty, seventy) in pairs {
        let mut subject = Subject::new(sixty.expect("a limit"));
        assert_eq!(subject.decide(now, Cost::new(60)).remaining, 0);
        subject.change(seventy.expect("a limit"), now);
        assert_eq!(subject.peek(now).remaining, 10, "{subject:?}");
    }
}

#[test]
fn a_change_of_quota_keeps_the_units_in_use_rounded_up() {
    let counters = &Algorithm::ALL[..4];
    let mut rng = Rng::new(18);
    for_each_decision_of(counters, |step| {
        let Step { after, now, .. } = *step;
        let limit = random_limit(&mut rng, step.limit().algorithm());
        let mut changed = after.clone();
        changed.change(limit, now);
        if matches!(limit, Limit::Counter(Counter::LeakyBucket(_))) {
            return; // What remains of a queue depends on how long one may wait in it, too.
        }
        let (before, then) = (after.peek(now), changed.peek(now));
        if before.reset_after.is_zero() {
            assert_eq!(then.remaining, then.limit, "{after:?} {limit:?}");
        } else if before.remaining > 0 {
            // Part of a unit in use is a unit in use, of the old limit and of the new one.
            let used = before.limit - before.remaining;
            let expected = then.limit.saturating_sub(used);
            let off = expected.abs_diff(then.remaining);
            assert!(then.remaining <= expected && off <= 1, "{after:?} {limit:?} at {now:?}");
        } else {
            assert!(then.remaining <= then.limit.saturating_sub(before.limit));
        }
    });
}

#[test]
fn a_change_of_quota_behind_a_clock_that_went_back_opens_nothing_early() {
    let minute = |count| Quota::per_minute(count);
    let half = |count| Quota::new(count, Micros::from_secs(30)).expect("half a minute");
    let pairs = [
        (Limit::token_bucket(minute(60), 60), Limit::token_bucket(half(60), 60)),
        (Ok(Limit::sliding_window(minute(60))), Ok(Limit::sliding_window(half(60)))),
        (
            Ok(Limit::fixed_window(minute(60), Align::Clock)),
            Ok(Limit::fixed_window(half(60), Align::Clock)),
        ),
    ];
    for (old, new) in pairs {
        let mut subject = Subject::new(old.expect("a limit"));
        let taken_at = Timestamp::from_micros(START - START % 60_000_000);
        subject.decide(taken_at, Cost::new(60));
        let behind = Timestamp::from_micros(taken_at.as_micros() - 20_000_000);
        subject.change(new.expect("a limit"), behind);
        assert_eq!(subject.peek(behind).remaining, 0, "{subject:?}");
        assert_eq!(subject.peek(taken_at).remaining, 0, "{subject:?}");
    }
}

#[test]
fn another_algorithm_starts_afresh() {
    let mut rng = Rng::new(19);
    for_each_decision(|step| {
        let algorithm = rng.pick(&Algorithm::ALL);
        if algorithm == step.limit().algorithm() {
            return;
        }
        let limit = random_limit(&mut rng, algorithm);
        let mut changed = step.after.clone();
        changed.change(limit, step.now);
        assert_eq!(changed.peek(step.now), Subject::new(limit).peek(step.now));
    });
}

#[test]
fn a_lapsed_lease_is_neither_renewed_nor_released() {
    let lease = Micros::from_secs(30);
    let Ok(Limit::Logged(limit)) = Limit::concurrency(2, lease) else { unreachable!() };
    let start = Timestamp::from_micros(START);
    let mut log = Log::default();
    log.apply(limit.decide(&log, start, Cost::ONE, ChargeId(1)).change);
    log.apply(limit.decide(&log, start, Cost::ONE, ChargeId(2)).change);

    let soon = start.plus(Micros::from_secs(20));
    assert!(limit.renew(&mut log, soon, ChargeId(1)));
    let ended = start.plus(lease);
    assert!(!limit.renew(&mut log, ended, ChargeId(2)));
    assert_eq!(limit.give_back(&mut log, ended, ChargeId(2), 1), 0);
    assert_eq!(limit.give_back(&mut log, ended, ChargeId(1), 1), 1, "it was renewed");
    assert_eq!(limit.give_back(&mut log, ended, ChargeId(1), 1), 0, "once is enough");
}

#[test]
fn forced_charges_to_a_full_log_are_held_as_long_as_any_other() {
    let start = Timestamp::from_micros(START);
    let Ok(Limit::Logged(limit)) = Limit::sliding_log(Quota::per_minute(LOG_ENTRIES_MAX)) else {
        unreachable!("the longest log")
    };
    let entry = |id| Entry { at: start, id: ChargeId(id), units: 1 };
    let mut log: Log = (0..u64::from(LOG_ENTRIES_MAX)).map(entry).collect();
    let late = start.plus(Micros::from_secs(59));
    log.apply(limit.force(&log, late, Cost::new(5), ChargeId(u64::MAX)).change);
    assert_eq!(log.len(), LOG_ENTRIES_MAX as usize, "it grows no longer");

    let remaining = |seconds| {
        let now = start.plus(Micros::from_secs(seconds));
        limit.decide(&log, now, Cost::PEEK, ChargeId(0)).decision.remaining
    };
    // The five, and the one that they were put together with.
    assert_eq!(remaining(60), LOG_ENTRIES_MAX - 6);
    assert_eq!(remaining(118), LOG_ENTRIES_MAX - 6);
    assert_eq!(remaining(119), LOG_ENTRIES_MAX);
}

#[test]
fn a_queue_without_a_longest_delay_takes_what_it_has_room_for_though_the_clock_went_back() {
    let limit = Limit::leaky_bucket(Quota::per_minute(10), 10, None).expect("a queue");
    let mut subject = Subject::new(limit);
    let now = Timestamp::from_micros(START);
    subject.decide(now, Cost::new(9));
    let decision = subject.decide(Timestamp::from_micros(START - 50_000_000), Cost::ONE);
    assert_eq!(decision.delay(), Micros::from_secs(9 * 6 + 50));
}

#[test]
fn a_coarsened_bucket_errs_by_less_than_one_in_a_million_and_against_the_caller() {
    let mut rng = Rng::new(20);
    let mut coarsened = 0;
    for _ in 0..200_000 {
        let period = match rng.below(4) {
            0 => 600_000_001 + 2 * rng.below(1_000),
            _ => 1_000 + rng.below_either(&[1 << 20, 1 << 30, 365 * 86_400_000_000 - 1_000]),
        };
        let count = 1 + rng.below_either(&[1_000, 1 << 20, u64::from(u32::MAX)]) as u32;
        let burst = match rng.below(3) {
            0 => u32::MAX,
            1 => 1 + rng.below(u64::from(u32::MAX)) as u32,
            _ => count,
        };
        let quota = Quota::new(count, Micros::new(period)).expect("a period in range");
        let Ok(Limit::Counter(Counter::TokenBucket(bucket))) = Limit::token_bucket(quota, burst)
        else {
            continue;
        };
        let [per_unit, per_micro, ..] = bucket.numbers().map(u128::from);
        // A unit should take period / count; it takes per_unit / per_micro.
        let (asked, served) = (u128::from(period) * per_micro, per_unit * u128::from(count));
        assert!(served >= asked, "{bucket:?} is faster than {quota}");
        let error_in_a_million = (served - asked) * 1_000_000;
        assert!(error_in_a_million < asked, "{bucket:?} for {quota} with a burst of {burst}");
        coarsened += u64::from(served != asked);
    }
    assert!(coarsened > 10_000, "only {coarsened} were coarsened");
}
