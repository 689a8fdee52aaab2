//! How often a limit is wrong, and by how much.
//!
//! The judge is an exact count of what the limit itself let through in the last period. A request
//! allowed although that count was at the limit was wrongly allowed; one denied although the count
//! was below it was wrongly denied. The exact log is never wrong by this measure; the estimate of
//! `sliding_window` is, when the last window's requests did not come evenly.

use std::collections::VecDeque;
use std::fmt;

use tollgate_core::{Algorithm, Quota, QuotaError, Timestamp};

use crate::bounds::ACCURACY_PERIODS;
use crate::random::Random;
use crate::traffic::{self, Arrival};
use crate::{Lane, Trial};

/// What one limit got wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// How many requests were decided.
    pub decisions: u64,
    /// How many of them were let through.
    pub admitted: u64,
    /// Allowed, though the limit had already let its count through in the last period.
    pub wrongly_allowed: u64,
    /// Denied, though the limit had let less than its count through in the last period.
    pub wrongly_denied: u64,
    /// How many more than the count were let through in the worst stretch of one period.
    pub worst_excess: u32,
}

/// Traffic that accuracy is measured on, at so many per cent of the quota's rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// One after the other, evenly.
    Steady {
        /// Per cent of the quota's rate.
        percent: u32,
    },
    /// Independent requests at random.
    Poisson {
        /// Per cent of the quota's rate.
        percent: u32,
    },
    /// Bursts of half the quota within a twentieth of a period, at random moments.
    Bursty {
        /// Per cent of the quota's rate.
        percent: u32,
    },
    /// Somebody who knows where windows end: the whole quota in the last microsecond of a window,
    /// then four requests where the quota has one all through the next; a window of rest; again.
    Adversarial,
}

/// How right `sliding_window` was on one pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accuracy {
    /// The traffic.
    pub pattern: Pattern,
    /// The limit.
    pub quota: Quota,
    /// What it got wrong.
    pub judgement: Judgement,
    /// How many requests the exact log let through.
    pub admitted_by_log: u64,
}

/// Measures `sliding_window` at `count` a minute on every pattern, 1,000 minutes of each. The length
/// of the period only scales time, so a minute stands for all. Fails for a count that no log holds.
pub fn accuracy(count: u32, seed: u64) -> Result<AccuracyTable, QuotaError> {
    let quota = Quota::per_minute(count);
    let estimate = Trial::of(Algorithm::SlidingWindow, quota, count)?;
    let log = Trial::of(Algorithm::SlidingLog, quota, count)?;
    let rows = Pattern::all().map(|pattern| {
        let arrivals = pattern.arrivals(quota, seed);
        Accuracy {
            pattern,
            quota,
            judgement: Judgement::of(&estimate.replay(&arrivals), quota),
            admitted_by_log: log.replay(&arrivals).admitted.into(),
        }
    });
    Ok(AccuracyTable { rows: rows.collect() })
}

impl Judgement {
    /// Judges every answer of a lane against an exact count of what the lane let through. Of a
    /// limit that delays, requests count from their arrival.
    pub fn of(lane: &Lane, quota: Quota) -> Self {
        let mut judgement = Self {
            decisions: lane.events.len() as u64,
            admitted: lane.admitted.into(),
            worst_excess: lane.most_in_any_window.saturating_sub(quota.count()),
            ..Self::default()
        };
        let mut admitted: VecDeque<Timestamp> = VecDeque::new();
        for event in &lane.events {
            while admitted.pop_front_if(|at| at.plus(quota.period()) <= event.at).is_some() {}
            let is_full = admitted.len() >= quota.count() as usize;
            let is_allowed = event.released_at().is_some();
            judgement.wrongly_allowed += u64::from(is_allowed && is_full);
            judgement.wrongly_denied += u64::from(!is_allowed && !is_full);
            if is_allowed {
                admitted.push_back(event.at);
            }
        }
        judgement
    }
}

impl Pattern {
    /// What is measured: each kind of traffic at half the rate, just below it, just above it and
    /// at twice the rate; and the worst.
    pub fn all() -> impl Iterator<Item = Self> {
        let kinds: [fn(u32) -> Self; 3] = [
            |percent| Self::Steady { percent },
            |percent| Self::Poisson { percent },
            |percent| Self::Bursty { percent },
        ];
        let loads = kinds.into_iter().flat_map(|kind| [50, 90, 120, 200].map(kind));
        loads.chain([Self::Adversarial])
    }

    /// 1,000 periods of it, in order.
    pub fn arrivals(self, quota: Quota, seed: u64) -> Vec<Arrival> {
        let mut random = Random::new(seed);
        let offsets = match self {
            Self::Steady { percent } => traffic::steady(quota, percent.into(), ACCURACY_PERIODS),
            Self::Poisson { percent } => {
                traffic::poisson(quota, percent.into(), ACCURACY_PERIODS, &mut random)
            }
            Self::Bursty { percent } => bursty(quota, percent.into(), &mut random),
            Self::Adversarial => adversarial(quota),
        };
        traffic::arrivals(quota, offsets)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steady { percent } => write!(f, "steady, {percent} % of the rate"),
            Self::Poisson { percent } => write!(f, "Poisson, {percent} % of the rate"),
            Self::Bursty { percent } => write!(f, "bursty, {percent} % of the rate"),
            Self::Adversarial => f.write_str("adversarial"),
        }
    }
}

fn bursty(quota: Quota, percent: u64, random: &mut Random) -> Vec<u64> {
    let period = quota.period().as_micros();
    let size = u64::from(quota.count()).div_ceil(2);
    let bursts = u64::from(quota.count()) * percent * ACCURACY_PERIODS / 100 / size;
    let mut offsets: Vec<u64> = (0..bursts)
        .flat_map(|_| {
            let start = random.below(ACCURACY_PERIODS * period);
            traffic::crowd(size, start, period / 20, random)
        })
        .collect();
    offsets.sort_unstable();
    offsets
}

fn adversarial(quota: Quota) -> Vec<u64> {
    let (count, period) = (u64::from(quota.count()), quota.period().as_micros());
    let attack = |start: u64| {
        let last_moment = std::iter::repeat_n(start + period - 1, count as usize);
        let next_window =
            (0..4 * count).map(move |step| start + period + step * period / (4 * count));
        last_moment.chain(next_window)
    };
    (0..ACCURACY_PERIODS / 3).flat_map(|round| attack(3 * round * period)).collect()
}

/// The measurements as a table; its text is Markdown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccuracyTable {
    /// One for each pattern.
    pub rows: Vec<Accuracy>,
}

impl fmt::Display for AccuracyTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| traffic | decisions | wrongly allowed | wrongly denied | worst excess | let through |"
        )?;
        writeln!(f, "|---|---:|---:|---:|---:|---:|")?;
        for Accuracy { pattern, quota, judgement, admitted_by_log } in &self.rows {
            let decisions = judgement.decisions;
            let allowed = Percent::up(judgement.wrongly_allowed, decisions);
            let denied = Percent::up(judgement.wrongly_denied, decisions);
            let excess = Percent::up(judgement.worst_excess.into(), quota.count().into());
            let through = Percent::nearest(judgement.admitted, *admitted_by_log);
            writeln!(
                f,
                "| {pattern} | {decisions} | {allowed} | {denied} | {excess} | {through} |"
            )?;
        }
        Ok(())
    }
}

/// A share, in tenths of a per cent.
struct Percent(u64);

impl Percent {
    /// Rounded up, so that only what never happened reads as 0.
    fn up(part: u64, whole: u64) -> Self {
        Self((part * 1_000).div_ceil(whole.max(1)))
    }

    fn nearest(part: u64, whole: u64) -> Self {
        Self((part * 2_000 + whole) / (2 * whole).max(1))
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(tenths) = self;
        write!(f, "{}", tenths / 10)?;
        if !tenths.is_multiple_of(10) {
            write!(f, ".{}", tenths % 10)?;
        }
        f.write_str(" %")
    }
}
