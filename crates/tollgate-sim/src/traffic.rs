//! Arrivals made to show what limits do.
//!
//! Every kind is sized by the quota it is sent against, so that it is always a little too much for
//! it, and spans at most [`PERIODS`] periods. Time begins on a boundary of the wall clock's windows,
//! because that is where some algorithms have their weak spot.

use std::fmt;
use std::str::FromStr;

use tollgate_core::{Micros, Quota, Timestamp};

use crate::bounds::PERIODS;
use crate::random::Random;
use crate::trial::{Event, Verdict};

/// 1 January 2026: a date like any other, so that simulated times look like real ones.
const SOME_DAY_MICROS: u64 = 1_767_225_600_000_000;

/// How a crowd of clients behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Traffic {
    /// The whole quota just before a window ends and again just after: within a sixtieth of a
    /// period on either side.
    Boundary,
    /// One and a half quotas at once, again after three quarters of a period.
    Burst,
    /// One request after the other, evenly, three where the quota has two.
    Steady,
    /// Independent requests at random, three where the quota has two.
    Poisson,
    /// Twice as many clients as the quota has units, all at once, each of which comes back until
    /// it is served: every other one again and again, the rest when they were told to.
    RetryStorm,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When it comes.
    pub at: Timestamp,
    /// Who sends it.
    pub client: u32,
}

impl Traffic {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Boundary, Self::Burst, Self::Steady, Self::Poisson, Self::RetryStorm];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Boundary => "boundary",
            Self::Burst => "burst",
            Self::Steady => "steady",
            Self::Poisson => "poisson",
            Self::RetryStorm => "retry-storm",
        }
    }

    /// When it begins under this quota: on a boundary of the wall clock's windows.
    pub fn origin(quota: Quota) -> Timestamp {
        let period = quota.period().as_micros();
        Timestamp::from_micros(SOME_DAY_MICROS.next_multiple_of(period))
    }

    /// The arrivals, in order. Of a retry storm this is the first wave; who comes back depends on
    /// the answers.
    pub fn arrivals(self, quota: Quota, seed: u64) -> Vec<Arrival> {
        let period = quota.period().as_micros();
        let sixtieth = period / 60;
        // A quota of nothing is shown by what a quota of one would get.
        let count = u64::from(quota.count().max(1));
        let mut random = Random::new(seed);
        let offsets = match self {
            Self::Boundary => {
                let starts = [period - sixtieth, period];
                starts.map(|start| crowd(count, start, sixtieth, &mut random)).concat()
            }
            Self::Burst => {
                let starts = (period / 8..PERIODS * period).step_by((period * 3 / 4) as usize);
                starts
                    .flat_map(|start| crowd(count * 3 / 2, start, sixtieth, &mut random))
                    .collect()
            }
            Self::Steady => steady(quota, 150, PERIODS),
            Self::Poisson => poisson(quota, 150, PERIODS, &mut random),
            Self::RetryStorm => crowd(2 * count, period / 4, sixtieth, &mut random),
        };
        arrivals(quota, offsets)
    }

    /// When a client that got this answer comes again, if it does.
    pub(crate) fn comes_back(self, quota: Quota, event: &Event) -> Option<Timestamp> {
        let Verdict::Denied { retry_after } = event.verdict else { return None };
        if self != Self::RetryStorm {
            return None;
        }
        let end = Self::origin(quota).plus(Micros::new(PERIODS * quota.period().as_micros()));
        // Waits are told in whole seconds; here, in twentieths of a period. That is what brings
        // clients back together.
        let tick = quota.period().as_micros() / 20;
        let is_patient = event.client.is_multiple_of(2);
        let wait = match retry_after {
            Some(wait) if is_patient => wait.as_micros().next_multiple_of(tick),
            _ => tick,
        };
        let back = event.at.plus(Micros::new(wait));
        (back < end).then_some(back)
    }
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Traffic {
    type Err = TrafficError;

    fn from_str(text: &str) -> Result<Self, TrafficError> {
        let named = Self::ALL.into_iter().find(|traffic| traffic.name() == text);
        named.ok_or_else(|| TrafficError { text: text.to_owned() })
    }
}

/// Text that names no traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrafficError {
    text: String,
}

impl fmt::Display for TrafficError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Traffic::ALL.map(Traffic::name).join(", ");
        write!(f, "{:?} is no kind of traffic; write one of {names}", self.text)
    }
}

impl std::error::Error for TrafficError {}

/// Arrivals at these microseconds after the origin, each from a client of its own.
pub(crate) fn arrivals(quota: Quota, offsets: Vec<u64>) -> Vec<Arrival> {
    let origin = Traffic::origin(quota);
    let at = |offset| origin.plus(Micros::new(offset));
    offsets
        .into_iter()
        .zip(0..)
        .map(|(offset, client)| Arrival { at: at(offset), client })
        .collect()
}

/// So many at random moments of a short while, in order.
pub(crate) fn crowd(count: u64, start: u64, width: u64, random: &mut Random) -> Vec<u64> {
    let mut offsets: Vec<u64> = (0..count).map(|_| start + random.below(width)).collect();
    offsets.sort_unstable();
    offsets
}

/// One after the other, evenly, at so many per cent of the quota's rate.
pub(crate) fn steady(quota: Quota, percent: u64, periods: u64) -> Vec<u64> {
    let period = u128::from(quota.period().as_micros());
    let per_hundred_periods = u128::from(quota.count().max(1)) * u128::from(percent);
    let number = per_hundred_periods * u128::from(periods) / 100;
    (0..number).map(|index| (index * period * 100 / per_hundred_periods) as u64).collect()
}

/// At random moments that know nothing of each other, at so many per cent of the quota's rate.
pub(crate) fn poisson(quota: Quota, percent: u64, periods: u64, random: &mut Random) -> Vec<u64> {
    let period = u128::from(quota.period().as_micros());
    let per_hundred_periods = u128::from(quota.count().max(1)) * u128::from(percent);
    let end = period * u128::from(periods);
    let mut offsets = Vec::new();
    // In 2^−32 of a microsecond, because waits may be shorter than one microsecond.
    let mut offset = 0_u128;
    loop {
        offset += u128::from(random.exponential()) * period * 100 / per_hundred_periods;
        if offset >> 32 >= end {
            return offsets;
        }
        offsets.push((offset >> 32) as u64);
    }
}
