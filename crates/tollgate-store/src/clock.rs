//! The one place that reads a clock.
//!
//! The wall clock is read once, when the clock is made; from there it goes on by the monotonic
//! one. A wall clock that is set back or forth later changes nothing.

#![allow(clippy::disallowed_methods)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use tollgate_core::{Micros, Timestamp};

/// Where a store's time comes from.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System { clock: quanta::Clock, read_at: u64, wall_micros: u64, micros_per_lap: u64 },
    Manual(Arc<AtomicU64>),
}

/// When something began that is measured by a clock, in its own ticks.
#[derive(Clone, Copy, Debug)]
pub struct Started(u64);

impl Clock {
    /// The machine's time.
    pub fn system() -> Self {
        let clock = quanta::Clock::new();
        let read_at = clock.raw();
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall_micros = u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX);
        let micros_per_lap = micros_per_lap(&clock);
        // Counters of two cores may differ by a little. None is behind a second ago or so, from where we count.
        let before = read_at.min(1 << 31);
        let wall_micros = wall_micros.saturating_sub(micros(before, micros_per_lap));
        Self(Source::System { clock, read_at: read_at - before, wall_micros, micros_per_lap })
    }

    /// A clock that stands at `now` until it is moved; its clones move with it.
    pub fn manual(now: Timestamp) -> Self {
        Self(Source::Manual(Arc::new(AtomicU64::new(now.as_micros()))))
    }

    /// What time it is.
    #[inline]
    pub fn now(&self) -> Timestamp {
        self.at(self.start())
    }

    /// Begins to measure how long something takes, more finely than time is told.
    #[inline]
    pub fn start(&self) -> Started {
        match &self.0 {
            Source::System { clock, .. } => Started(clock.raw()),
            Source::Manual(micros) => Started(micros.load(Ordering::Relaxed)),
        }
    }

    /// What time it was when that began.
    #[inline]
    pub fn at(&self, Started(started): Started) -> Timestamp {
        match &self.0 {
            Source::System { read_at, wall_micros, micros_per_lap, .. } => {
                let ticks = started.wrapping_sub(*read_at);
                Timestamp::from_micros(wall_micros + micros(ticks, *micros_per_lap))
            }
            Source::Manual(_) => Timestamp::from_micros(started),
        }
    }

    /// How long that was, in nanoseconds.
    pub fn nanos_since(&self, Started(started): Started) -> u64 {
        match &self.0 {
            Source::System { clock, .. } => clock.delta_as_nanos(started, clock.raw()),
            Source::Manual(micros) => {
                micros.load(Ordering::Relaxed).saturating_sub(started).saturating_mul(1_000)
            }
        }
    }

    /// Sets a manual clock, forth or back.
    ///
    /// # Panics
    ///
    /// If this is the machine's clock, which nobody sets.
    pub fn set(&self, now: Timestamp) {
        let Source::Manual(micros) = &self.0 else { panic!("only a manual clock is set") };
        micros.store(now.as_micros(), Ordering::Relaxed);
    }

    /// Moves a manual clock forth.
    ///
    /// # Panics
    ///
    /// If this is the machine's clock, which moves by itself.
    pub fn advance(&self, by: Micros) {
        self.set(self.now().plus(by));
    }
}

/// Now, as the timers of the I/O thread count it. Deadlines and pauses are measured by it, never
/// states.
#[cfg(feature = "redis")]
pub(crate) fn moment() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

/// How long so many ticks take, of a clock of which 2^64 take so many microseconds.
#[inline]
fn micros(ticks: u64, micros_per_lap: u64) -> u64 {
    ((u128::from(ticks) * u128::from(micros_per_lap)) >> 64) as u64
}

/// How long 2^64 ticks of a clock take: ticks become microseconds in one multiplication, where the
/// clock's own way takes two and some branches. Told from 2^50 ticks, five days or more, so it is off
/// by less than a microsecond in a year.
fn micros_per_lap(clock: &quanta::Clock) -> u64 {
    const TICKS: u64 = 1 << 50;
    let nanos = u128::from(clock.delta_as_nanos(0, TICKS));
    let micros = (nanos << 64) / u128::from(TICKS) / 1_000;
    u64::try_from(micros).expect("a tick is no longer than a nanosecond or two")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_by_a_manual_clock_takes_as_long_as_it_is_moved() {
        let clock = Clock::manual(Timestamp::from_micros(1_000));
        let started = clock.start();
        assert_eq!(clock.nanos_since(started), 0);
        clock.advance(Micros::new(7));
        assert_eq!(clock.nanos_since(started), 7_000);
        clock.set(Timestamp::EPOCH);
        assert_eq!(clock.nanos_since(started), 0, "never less than nothing");
    }

    #[test]
    fn a_core_whose_counter_is_a_little_behind_tells_a_time_a_little_before() {
        let clock = Clock::system();
        let Started(now) = clock.start();
        let (told, behind) = (clock.at(Started(now)), clock.at(Started(now - 100_000_000)));
        let off = told.since(behind).as_micros();
        assert!((10_000..=200_000).contains(&off), "100 million ticks are {off} µs");
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
        assert!(wall.abs_diff(told.as_micros()) < 60_000_000, "it is the wall clock's time");
    }

    #[test]
    fn ticks_are_as_long_as_the_clock_says() {
        let clock = quanta::Clock::new();
        let micros_per_lap = micros_per_lap(&clock);
        for ticks in [1, 999, 1 << 20, 1 << 40, 1 << 56_u64] {
            let micros = micros(ticks, micros_per_lap);
            let told = clock.delta_as_nanos(0, ticks) / 1_000;
            let off = told.abs_diff(micros);
            // A year is 2^45 microseconds, and a clock is never right to that.
            assert!(off <= 1 + (told >> 44), "{ticks} ticks: {micros} and not {told}");
        }
    }
}
