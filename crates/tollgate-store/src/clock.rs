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
    System { clock: quanta::Clock, read_at: u64, wall_micros: u64 },
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The machine's time.
    pub fn system() -> Self {
        let clock = quanta::Clock::new();
        let read_at = clock.raw();
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall_micros = u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX);
        Self(Source::System { clock, read_at, wall_micros })
    }

    /// A clock that stands at `now` until it is moved; its clones move with it.
    pub fn manual(now: Timestamp) -> Self {
        Self(Source::Manual(Arc::new(AtomicU64::new(now.as_micros()))))
    }

    /// What time it is.
    #[inline]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System { clock, read_at, wall_micros } => {
                let nanos = clock.delta_as_nanos(*read_at, clock.raw());
                Timestamp::from_micros(wall_micros + nanos / 1_000)
            }
            Source::Manual(micros) => Timestamp::from_micros(micros.load(Ordering::Relaxed)),
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
