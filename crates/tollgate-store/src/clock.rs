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
    /// `origin` is what time it was at no ticks, and may be before 1970: then it has gone around.
    System {
        clock: quanta::Clock,
        origin: u64,
        micros_per_lap: u64,
    },
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
        let origin = wall_micros.wrapping_sub(micros(read_at, micros_per_lap));
        Self(Source::System { clock, origin, micros_per_lap })
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
            // Counters of two cores may differ: one that is behind tells a time before.
            Source::System { origin, micros_per_lap, .. } => {
                Timestamp::from_micros(origin.wrapping_add(micros(started, *micros_per_lap)))
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
    fn a_core_whose_counter_is_behind_tells_a_time_before() {
        let clock = Clock::system();
        let Source::System { clock: counter, .. } = &clock.0 else { unreachable!("it is") };
        let Started(now) = clock.start();
        let told = clock.at(Started(now));
        for ticks in [1_000, now / 2, now] {
            let behind = told.since(clock.at(Started(now - ticks))).as_micros();
            let expected = counter.delta_as_nanos(0, ticks) / 1_000;
            assert!(
                behind.abs_diff(expected) <= 1 + (expected >> 44),
                "{behind} and not {expected}"
            );
        }
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is past 1970");
        let off = u128::from(told.as_micros()).abs_diff(wall.as_micros());
        assert!(off < 60_000_000, "it is the wall clock's time, but for {off} µs");
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
