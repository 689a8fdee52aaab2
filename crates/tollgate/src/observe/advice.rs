//! What somebody who minds the limits should know, in a sentence with its numbers.

use std::fmt;

use tollgate_core::{Micros, Timestamp};
use tollgate_policy::Mode;

use super::day::DayTold;
use super::slices::Slice;
use super::summary::Counter;
use crate::bounds::ADVICE_MAX;
use crate::limiter::InForce;
use crate::metrics::OTHER_TIERS;

/// Something that an operator should know.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Advice {
    /// A limit that nobody comes near: it may be too wide to protect anything.
    NeverApproached {
        /// The limit.
        limit: String,
        /// The tier, empty if it does not go by tier.
        tier: String,
        /// The largest share of it that was in use when a request was looked at, in percent.
        peak_percent: f64,
        /// How many decisions there were.
        decisions: u64,
        /// In which time.
        period: Micros,
    },
    /// A limit that many of those hit whom it is for: it may be too tight.
    HitByMany {
        /// The limit.
        limit: String,
        /// The tier, empty if it does not go by tier.
        tier: String,
        /// How many users were denied something, about.
        denied: u64,
        /// Of how many, about.
        users: u64,
        /// In which time.
        period: Micros,
        /// Whether the limit is in shadow, and would have denied it.
        is_shadow: bool,
    },
    /// A key that is at the end of its limit all the time: it may need a larger one.
    Riding {
        /// The key, as it may be shown.
        key: String,
        /// The share of its limit that was in use, on average, in percent.
        used_percent: f64,
        /// How many requests it sent, at least.
        requests: u64,
        /// In which time.
        period: Micros,
    },
    /// A key that sends a large part of a spike and is let through: no limit may be meant for it.
    PassingInSpike {
        /// The key, as it may be shown.
        key: String,
        /// How many of the requests of the spike it sent, at least.
        requests: u64,
        /// How many of these were denied.
        denied: u64,
        /// How many requests there were.
        all: u64,
        /// How many times as many as there are in that time on average.
        times: f64,
        /// In which time.
        period: Micros,
    },
}

/// A limit is said never to be approached if less of it than this was in use at any time, in millionths.
const APPROACHED: u32 = 500_000;

/// And only after so long: a morning tells nothing of the rest of the day.
const NEVER_APPROACHED_PERIOD: Micros = Micros::from_secs(6 * 3_600);

/// And of so many decisions: of those some dozens at least were looked at, however fast they came.
const NEVER_APPROACHED_DECISIONS: u64 = 10_000;

/// A limit is said to be hit by many if more than this share of the users were denied something.
const HIT_BY_MANY_PERCENT: u64 = 40;

/// And of so many users: of fewer, a handful who try things out are a large share.
const HIT_BY_MANY_USERS: u64 = 20;

/// A key rides at its limit if this much of it is in use on average, in millionths.
const RIDING: u64 = 900_000;

/// And over so many requests, so that one burst does not make a rider.
const RIDING_REQUESTS: u64 = 100;

/// And so many looks at it: one may stand for hundreds of requests, and tells of a moment.
const RIDING_LOOKS: u32 = 10;

/// A spike has so many times the requests that there are on average.
const SPIKE_TIMES: f64 = 3.0;

/// And so many requests in a minute: ten a second are no burden to anybody, however few there were before.
const SPIKE_REQUESTS: u64 = 600;

/// A key makes a spike if it sent one part in so many of it.
const SPIKE_KEY_ONE_IN: u64 = 5;

impl Advice {
    /// What kind of advice it is, in a word.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NeverApproached { .. } => "never_approached",
            Self::HitByMany { .. } => "hit_by_many",
            Self::Riding { .. } => "riding",
            Self::PassingInSpike { .. } => "passing_in_spike",
        }
    }

    /// What the limits of a policy were like.
    pub(super) fn of_limits(in_force: &InForce, now: Timestamp) -> Vec<Self> {
        let (mut many, mut never) = (Vec::new(), Vec::new());
        for (rule, tier, day) in in_force.series.days(&in_force.policy) {
            let told = day.tell(now);
            let is_shadow = rule.mode() == Mode::Shadow;
            many.extend(Self::of_users(rule.name(), &tier, &told, is_shadow));
            never.extend(Self::of_peak(rule.name(), &tier, &told));
        }
        [many, never].into_iter().flat_map(|list| list.into_iter().take(ADVICE_MAX)).collect()
    }

    fn of_users(limit: &str, tier: &str, told: &DayTold, is_shadow: bool) -> Option<Self> {
        let (users, denied) = told.users?;
        let is_hit = users >= HIT_BY_MANY_USERS && denied * 100 > users * HIT_BY_MANY_PERCENT;
        is_hit.then(|| Self::HitByMany {
            limit: limit.to_owned(),
            tier: tier.to_owned(),
            denied: denied.min(users),
            users,
            period: told.period,
            is_shadow,
        })
    }

    fn of_peak(limit: &str, tier: &str, told: &DayTold) -> Option<Self> {
        let is_far = told.peak < APPROACHED
            && told.decisions >= NEVER_APPROACHED_DECISIONS
            && told.period >= NEVER_APPROACHED_PERIOD;
        is_far.then(|| Self::NeverApproached {
            limit: limit.to_owned(),
            tier: tier.to_owned(),
            peak_percent: f64::from(told.peak) / 1e4,
            decisions: told.decisions,
            period: told.period,
        })
    }

    /// Which keys rode at their limits in the last hour.
    pub(super) fn of_riders((hour, period): &(Slice, Micros)) -> Vec<Self> {
        let riding = |counter: &Counter| {
            // What was inherited from another key came without a use.
            let requests = counter.weight - counter.error;
            let is_riding = requests >= RIDING_REQUESTS
                && counter.looks >= RIDING_LOOKS
                && counter.used >= requests * RIDING;
            // Who is denied most of what it sends hammers, and no larger limit is meant for that.
            let is_riding = is_riding && counter.other * 2 < requests;
            is_riding.then(|| Self::Riding {
                key: counter.text.to_string(),
                used_percent: (counter.used / requests) as f64 / 1e4,
                requests,
                period: *period,
            })
        };
        let mut riders: Vec<(u64, Self)> = hour
            .busiest
            .counters
            .iter()
            .filter_map(|counter| Some((counter.weight, riding(counter)?)))
            .collect();
        riders.sort_by_key(|(weight, _)| std::cmp::Reverse(*weight));
        riders.into_iter().map(|(_, rider)| rider).take(ADVICE_MAX).collect()
    }

    /// Which keys made a spike in the last minute, and were let through.
    pub(super) fn of_spike(minute: &(Slice, Micros), hour: &(Slice, Micros)) -> Vec<Self> {
        let rate = |(slice, period): &(Slice, Micros)| {
            slice.requests as f64 / period.as_micros().max(1) as f64
        };
        let (times, (slice, period)) = (rate(minute) / rate(hour), minute);
        // Nothing at all in the hour makes this no number, which is no spike.
        let is_spike = times >= SPIKE_TIMES && slice.requests >= SPIKE_REQUESTS;
        if !is_spike {
            return Vec::new();
        }
        let passing = |counter: &&Counter| {
            let requests = counter.weight - counter.error;
            // A key without values is everybody.
            counter.text.contains(':')
                && requests * SPIKE_KEY_ONE_IN >= slice.requests
                && counter.other * 2 < requests
        };
        let told = |counter: &Counter| Self::PassingInSpike {
            key: counter.text.to_string(),
            requests: counter.weight - counter.error,
            denied: counter.other,
            all: slice.requests,
            times,
            period: *period,
        };
        slice.busiest.counters.iter().filter(passing).map(told).take(ADVICE_MAX).collect()
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverApproached { limit, tier, peak_percent, decisions, period } => write!(
                f,
                "nobody comes near {}: at most {peak_percent:.0} % of it was in use in {decisions} \
                 decisions over {}; it may be wider than what it protects can bear",
                Of(limit, tier),
                Time(*period)
            ),
            Self::HitByMany { limit, tier, denied, users, period, is_shadow } => write!(
                f,
                "{} {} something to about {denied} of {users} users ({} %) in {}; it may be too tight",
                Of(limit, tier),
                if *is_shadow { "would have denied" } else { "denied" },
                denied * 100 / (*users).max(1),
                Time(*period)
            ),
            Self::Riding { key, used_percent, requests, period } => write!(
                f,
                "{key} rides at its limit: {used_percent:.0} % of it was in use on average in \
                 {requests} requests over {}; it may need a larger one",
                Time(*period)
            ),
            Self::PassingInSpike { key, requests, denied, all, times, period } => write!(
                f,
                "{key} sent {requests} of the {all} requests of the last {}, {times:.1} times the \
                 average of the hour, and only {denied} of them were denied; no limit may be meant \
                 for it",
                Time(*period)
            ),
        }
    }
}

/// A limit and tier, as people name it.
struct Of<'a>(&'a str, &'a str);

impl fmt::Display for Of<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(limit, tier) = self;
        write!(f, "limit {limit}")?;
        match *tier {
            "" => Ok(()),
            OTHER_TIERS => f.write_str(" of other tiers"),
            tier => write!(f, " of tier {tier}"),
        }
    }
}

/// A time in the largest unit that it has two of.
struct Time(Micros);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_micros() / 1_000_000 {
            seconds if seconds >= 7_200 => write!(f, "{} hours", seconds / 3_600),
            seconds if seconds >= 120 => write!(f, "{} minutes", seconds / 60),
            seconds => write!(f, "{seconds} seconds"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: DayTold = DayTold {
        period: NEVER_APPROACHED_PERIOD,
        decisions: NEVER_APPROACHED_DECISIONS,
        peak: APPROACHED - 1,
        users: Some((HIT_BY_MANY_USERS, 9)),
    };

    #[test]
    fn a_limit_is_far_from_everybody_only_after_hours_of_many_decisions_below_a_half() {
        let said = |told: DayTold| Advice::of_peak("api", "free", &told).map(|it| it.to_string());
        let sentence = "nobody comes near limit api of tier free: at most 50 % of it was in use in \
                        10000 decisions over 6 hours; it may be wider than what it protects can bear";
        assert_eq!(said(DAY).as_deref(), Some(sentence));
        assert_eq!(said(DayTold { peak: APPROACHED, ..DAY }), None);
        assert_eq!(said(DayTold { decisions: DAY.decisions - 1, ..DAY }), None);
        let shorter = Micros::new(DAY.period.as_micros() - 1);
        assert_eq!(said(DayTold { period: shorter, ..DAY }), None);
    }

    #[test]
    fn a_limit_is_hit_by_many_if_it_is_by_more_than_two_fifths_of_twenty() {
        let said = |users| {
            let told = DayTold { users, ..DAY };
            Advice::of_users("api", "", &told, false).map(|it| it.to_string())
        };
        let sentence = "limit api denied something to about 9 of 20 users (45 %) in 6 hours; it may be \
                        too tight";
        assert_eq!(said(Some((20, 9))).as_deref(), Some(sentence));
        assert_eq!(said(Some((20, 8))), None);
        assert_eq!(said(Some((19, 19))), None);
        assert_eq!(said(None), None);
        // Two sketches may disagree by a little.
        assert!(said(Some((100, 102))).is_some_and(|it| it.contains("100 of 100 users (100 %)")));
    }
}
