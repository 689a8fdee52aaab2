//! Calls of the last while, in parts that are forgotten one by one.

use std::time::Duration;

use tokio::time::Instant;

use crate::bounds::WINDOW_PARTS;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) calls: u32,
    pub(super) failures: u32,
    pub(super) slow: u32,
}

#[derive(Debug)]
pub(super) struct Window {
    part: Duration,
    start: Instant,
    /// The number of the part that is counted in, from the start on.
    number: u64,
    parts: [Counts; WINDOW_PARTS],
}

impl Window {
    pub(super) fn new(length: Duration, now: Instant) -> Self {
        let part = (length / WINDOW_PARTS as u32).max(Duration::from_millis(1));
        Self { part, start: now, number: 0, parts: Default::default() }
    }

    pub(super) fn count(&mut self, now: Instant, is_failure: bool, is_slow: bool) {
        self.turn(now);
        let part = &mut self.parts[(self.number % WINDOW_PARTS as u64) as usize];
        part.calls = part.calls.saturating_add(1);
        part.failures += u32::from(is_failure);
        part.slow += u32::from(is_slow);
    }

    pub(super) fn counts(&mut self, now: Instant) -> Counts {
        self.turn(now);
        self.parts.iter().fold(Counts::default(), |sum, part| Counts {
            calls: sum.calls.saturating_add(part.calls),
            failures: sum.failures.saturating_add(part.failures),
            slow: sum.slow.saturating_add(part.slow),
        })
    }

    /// Forgets what is older than the window.
    fn turn(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.start);
        // In 64 bits, which last for centuries and are divided at once.
        let number = passed.as_nanos() as u64 / self.part.as_nanos() as u64;
        // After as many parts as there are, nothing is left to forget.
        for next in (self.number + 1..=number).take(WINDOW_PARTS) {
            self.parts[(next % WINDOW_PARTS as u64) as usize] = Counts::default();
        }
        self.number = self.number.max(number);
    }
}
