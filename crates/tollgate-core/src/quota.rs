//! What an operator asks for: so many units in so much time; and what one request takes of it.

use std::fmt;
use std::str::FromStr;

use crate::Micros;
use crate::bounds::{LOG_ENTRIES_MAX, PERIOD_MICROS_MAX, PERIOD_MICROS_MIN};
use crate::time::unit_name;

/// How many units one request takes. Zero is a peek: it answers and changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(u32);

impl Cost {
    /// The cost of a request unless somebody says otherwise.
    pub const ONE: Self = Self(1);
    /// Answers, and changes nothing.
    pub const PEEK: Self = Self(0);

    /// A cost of so many units.
    pub const fn new(units: u32) -> Self {
        Self(units)
    }

    /// How many units.
    pub const fn units(self) -> u32 {
        self.0
    }

    pub(crate) const fn get(self) -> u64 {
        self.0 as u64
    }
}

impl Default for Cost {
    fn default() -> Self {
        Self::ONE
    }
}

impl TryFrom<u64> for Cost {
    type Error = CostError;

    fn try_from(units: u64) -> Result<Self, CostError> {
        u32::try_from(units).map(Self).map_err(|_| CostError { text: units.to_string() })
    }
}

impl FromStr for Cost {
    type Err = CostError;

    /// Reads decimal digits and nothing else: no sign, no fraction, no exponent, no hexadecimal.
    fn from_str(text: &str) -> Result<Self, CostError> {
        let error = || CostError { text: text.to_owned() };
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(error());
        }
        text.parse().map(Self).map_err(|_| error())
    }
}

/// Something that is not a cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostError {
    text: String,
}

impl fmt::Display for CostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cost {:?} is not a whole number from 0 to {}", self.text, u32::MAX)
    }
}

impl std::error::Error for CostError {}

/// So many units in so much time, as written: `60/minute`, `1000/90s`.
///
/// ```
/// use tollgate_core::{Micros, Quota};
/// assert_eq!("1000/90s".parse(), Quota::new(1_000, Micros::from_secs(90)));
/// assert_eq!(Quota::per_minute(60).to_string(), "60/minute");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    count: u32,
    period: Micros,
}

impl Quota {
    /// `count` units every `period`, which is between a millisecond and a year.
    pub fn new(count: u32, period: Micros) -> Result<Self, QuotaError> {
        if !(PERIOD_MICROS_MIN..=PERIOD_MICROS_MAX).contains(&period.as_micros()) {
            return Err(QuotaError::PeriodOutOfRange { period });
        }
        Ok(Self { count, period })
    }

    /// `count` units every second.
    pub const fn per_second(count: u32) -> Self {
        Self { count, period: Micros::from_secs(1) }
    }

    /// `count` units every minute.
    pub const fn per_minute(count: u32) -> Self {
        Self { count, period: Micros::from_secs(60) }
    }

    /// `count` units every hour.
    pub const fn per_hour(count: u32) -> Self {
        Self { count, period: Micros::from_secs(3_600) }
    }

    /// `count` units every day.
    pub const fn per_day(count: u32) -> Self {
        Self { count, period: Micros::from_secs(86_400) }
    }

    /// How many units.
    pub const fn count(self) -> u32 {
        self.count
    }

    /// In how much time.
    pub const fn period(self) -> Micros {
        self.period
    }
}

impl FromStr for Quota {
    type Err = QuotaError;

    fn from_str(text: &str) -> Result<Self, QuotaError> {
        let error = || QuotaError::NotARate { text: text.to_owned() };
        let (count, period) = text.split_once('/').ok_or_else(error)?;
        if count.is_empty() || !count.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(error());
        }
        let count: u32 = count
            .parse()
            .map_err(|_| QuotaError::CountTooLarge { text: count.to_owned(), most: u32::MAX })?;
        Self::new(count, period.parse().map_err(|_| error())?)
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match unit_name(self.period.as_micros()) {
            Some(unit) => write!(f, "{}/{unit}", self.count),
            None => write!(f, "{}/{}", self.count, self.period),
        }
    }
}

/// Why a quota, or a limit made of it, cannot be served.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuotaError {
    /// The text does not read as a rate.
    NotARate {
        /// What was written.
        text: String,
    },
    /// The count is beyond what is counted.
    CountTooLarge {
        /// What was written.
        text: String,
        /// The most that can be counted.
        most: u32,
    },
    /// The period is too short or too long.
    PeriodOutOfRange {
        /// What was asked for.
        period: Micros,
    },
    /// The bucket would take more than a hundred years to refill.
    RefillTooSlow {
        /// The rate it refills at.
        quota: Quota,
        /// How much it holds.
        burst: u32,
    },
    /// A log, or a concurrency limit, of too many entries.
    LogTooLong {
        /// How many were asked for.
        count: u32,
    },
}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotARate { text } => {
                write!(f, "{text:?} is not a rate; write for example 5/minute or 1000/90s")
            }
            Self::CountTooLarge { text, most } => {
                write!(f, "{text} is more than can be counted; the most is {most}")
            }
            Self::PeriodOutOfRange { period } => {
                write!(f, "a period of {period} is outside 1ms to 365d")
            }
            Self::RefillTooSlow { quota, burst } => write!(
                f,
                "a bucket of {burst} would take more than 100 years to refill at {quota}; \
                 lower the burst or raise the rate"
            ),
            Self::LogTooLong { count } => write!(
                f,
                "{count} entries a key are more than a log holds; the most is {LOG_ENTRIES_MAX}, \
                 and sliding_window or token_bucket count further without a log"
            ),
        }
    }
}

impl std::error::Error for QuotaError {}
