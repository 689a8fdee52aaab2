//! Points in time and stretches of it, in whole microseconds.
//!
//! Microseconds since 1970 stay below 2^53 until the year 2255, so a Redis script, whose only
//! number is a double, computes with exactly the integers Rust computes with. Nanoseconds need
//! 61 bits today.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::bounds::EXACT_MAX;

/// A moment: microseconds since the Unix epoch, at most 2^53 − 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The Unix epoch.
    pub const EPOCH: Self = Self(0);
    /// The last moment that can be told exactly, in the year 2255.
    pub const END: Self = Self(EXACT_MAX);

    /// The moment `micros` after the epoch; [`Timestamp::END`] if that is past it.
    #[inline]
    pub const fn from_micros(micros: u64) -> Self {
        Self(if micros < EXACT_MAX { micros } else { EXACT_MAX })
    }

    /// Microseconds since the epoch.
    #[inline]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The stretch from `earlier` to `self`; nothing if the clock went back.
    #[inline]
    pub const fn since(self, earlier: Self) -> Micros {
        Micros(self.0.saturating_sub(earlier.0))
    }

    /// How long until `wait` has passed since `start`; nothing if it has. Right to the end of time,
    /// where `start.plus(wait)` is not.
    pub(crate) const fn until_passed(self, wait: Micros, start: Self) -> Micros {
        Micros(start.0.saturating_add(wait.0).saturating_sub(self.0))
    }

    /// The moment `wait` later, stopping at [`Timestamp::END`].
    #[inline]
    pub const fn plus(self, wait: Micros) -> Self {
        Self::from_micros(self.0.saturating_add(wait.0))
    }
}

/// A stretch of time in whole microseconds.
///
/// ```
/// use tollgate_core::Micros;
/// let window: Micros = "90s".parse()?;
/// assert_eq!(window.as_micros(), 90_000_000);
/// # Ok::<(), tollgate_core::TimeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(u64);

impl Micros {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// A stretch of `micros` microseconds.
    #[inline]
    pub const fn new(micros: u64) -> Self {
        Self(micros)
    }

    /// A stretch of `millis` milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000))
    }

    /// A stretch of `secs` seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000))
    }

    /// How many microseconds.
    #[inline]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Whole milliseconds, rounded up, so that a wait told is a wait that works.
    pub const fn as_millis_up(self) -> u64 {
        self.0.div_ceil(1_000)
    }

    /// Whole seconds, rounded up, so that a wait told is a wait that works.
    pub const fn as_secs_up(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// Whether this is no time at all.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Both, one after the other; no wait is longer than all of time.
    #[inline]
    pub(crate) const fn plus(self, other: Self) -> Self {
        let sum = self.0.saturating_add(other.0);
        Self(if sum < EXACT_MAX { sum } else { EXACT_MAX })
    }
}

impl From<Micros> for Duration {
    fn from(micros: Micros) -> Self {
        Duration::from_micros(micros.0)
    }
}

impl From<Duration> for Micros {
    /// Rounds down to whole microseconds; saturates.
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
    }
}

/// The units a stretch of time is written in: short name, long name, microseconds.
const UNITS: [(&str, &str, u64); 9] = [
    ("us", "microsecond", 1),
    ("ms", "millisecond", 1_000),
    ("s", "second", 1_000_000),
    ("m", "minute", 60_000_000),
    ("h", "hour", 3_600_000_000),
    ("d", "day", 86_400_000_000),
    ("w", "week", 7 * 86_400_000_000),
    ("mo", "month", 30 * 86_400_000_000),
    ("y", "year", 365 * 86_400_000_000),
];

impl FromStr for Micros {
    type Err = TimeError;

    /// Reads `10ms`, `90s`, `5m`, `2 hours`, `day`: a whole number, 1 if absent, and a unit.
    fn from_str(text: &str) -> Result<Self, TimeError> {
        let error = || TimeError { text: text.to_owned() };
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let unit = unit.strip_prefix(' ').unwrap_or(unit);
        let number: u64 =
            if number.is_empty() { 1 } else { number.parse().map_err(|_| error())? };
        let singular = unit.strip_suffix('s').unwrap_or(unit);
        let (_, _, micros) = UNITS
            .iter()
            .find(|(short, long, _)| *short == unit || *long == unit || *long == singular)
            .ok_or_else(error)?;
        number.checked_mul(*micros).map(Self).ok_or_else(error)
    }
}

impl fmt::Display for Micros {
    /// The largest unit that divides it: `90s`, `2h`, `1500ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        // Months and years are written, but not read back to people: 30d says what it is.
        let exact = UNITS[..6].iter().rev().find(|(_, _, micros)| self.0.is_multiple_of(*micros));
        let (short, _, micros) = exact.expect("every number is divisible by one microsecond");
        write!(f, "{}{short}", self.0 / micros)
    }
}

/// The long name of the unit that is exactly `micros` long.
pub(crate) fn unit_name(micros: u64) -> Option<&'static str> {
    UNITS[2..].iter().find(|(_, _, unit)| *unit == micros).map(|(_, long, _)| *long)
}

/// Text that is not a stretch of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeError {
    text: String,
}

impl fmt::Display for TimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a time; write for example 10ms, 90s, 5m or 1h", self.text)
    }
}

impl std::error::Error for TimeError {}
