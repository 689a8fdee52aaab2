//! When a server is left alone, and when it is looked at again.
//!
//! A server that failed several times in a row gets no more calls: it is *open*, as a circuit is.
//! Looks at it in the background, a dial if there is no connection and then a probe, tell when it is
//! well again; nobody's request is ever the probe. Between looks lies a random part of a pause that
//! doubles, so that many of us do not come back together.

use tokio::time::Instant;

use super::bounds::{FAILURES_MAX, PAUSE_BASE, PAUSE_MAX, PAUSE_MIN};

/// The state of one server, as far as it is known.
#[derive(Debug)]
pub(super) struct Breaker {
    is_open: bool,
    /// Failures since the last success.
    failures: u32,
    /// Looks in vain since it was last well.
    vain: u32,
    looked_at: Option<Instant>,
    /// When to look, if there is a reason to.
    due: Option<Instant>,
}

impl Breaker {
    /// Nothing is known yet, and a look is due.
    pub(super) fn new(now: Instant) -> Self {
        Self { is_open: false, failures: 0, vain: 0, looked_at: None, due: Some(now) }
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// When to look at the server; `None` while it is well, or while somebody looks.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// A call was answered.
    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// A call was not answered, or with an error that means the server is unwell. True if that was
    /// once too often.
    pub(super) fn failed(&mut self, now: Instant, random: u64) -> bool {
        self.failures = self.failures.saturating_add(1);
        self.failures >= FAILURES_MAX && self.open(now, random)
    }

    /// The connection is gone. True if that was one failure too many.
    pub(super) fn disconnected(&mut self, now: Instant, random: u64) -> bool {
        let opened = self.failed(now, random);
        self.look_soon(now);
        opened
    }

    /// There is no connection: it is dialled at once, since most often that is all it takes.
    pub(super) fn look_soon(&mut self, now: Instant) {
        self.due.get_or_insert_with(|| no_sooner(now, self.looked_at));
    }

    /// No more calls from now on; true unless that was so already.
    pub(super) fn open(&mut self, now: Instant, random: u64) -> bool {
        if self.is_open {
            return false;
        }
        self.is_open = true;
        self.due = Some(self.next_look(now, random));
        true
    }

    /// Somebody looks; one look at a time.
    pub(super) fn look_started(&mut self, now: Instant) {
        self.looked_at = Some(now);
        self.due = None;
    }

    /// True if the server was thought well until now.
    pub(super) fn look_failed(&mut self, now: Instant, random: u64) -> bool {
        self.vain = self.vain.saturating_add(1);
        self.due = Some(self.next_look(now, random));
        !std::mem::replace(&mut self.is_open, true)
    }

    /// True if the server was thought unwell until now.
    pub(super) fn look_passed(&mut self) -> bool {
        self.vain = 0;
        self.due = None;
        let was_open = std::mem::replace(&mut self.is_open, false);
        if was_open {
            self.failures = 0;
        }
        was_open
    }

    fn next_look(&self, now: Instant, random: u64) -> Instant {
        let longest = PAUSE_BASE.saturating_mul(1 << self.vain.min(16)).min(PAUSE_MAX);
        let micros = random % (longest.as_micros() as u64 + 1);
        no_sooner(now + std::time::Duration::from_micros(micros), self.looked_at)
    }
}

/// Keeps the distance between two looks.
fn no_sooner(at: Instant, looked_at: Option<Instant>) -> Instant {
    looked_at.map_or(at, |looked_at| at.max(looked_at + PAUSE_MIN))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock;

    /// A breaker that was found well, and the time.
    fn well() -> (Breaker, Instant) {
        let now = clock::moment();
        let mut breaker = Breaker::new(now);
        breaker.look_started(now);
        assert!(!breaker.look_passed());
        (breaker, now + Duration::from_secs(1))
    }

    #[test]
    fn a_server_that_nothing_is_known_of_is_looked_at_and_thought_well() {
        let now = clock::moment();
        let breaker = Breaker::new(now);
        assert_eq!(breaker.due(), Some(now));
        assert!(!breaker.is_open());
    }

    #[test]
    fn failures_in_a_row_open_it_once() {
        let (mut breaker, now) = well();
        assert!((1..FAILURES_MAX).all(|_| !breaker.failed(now, 0)));
        assert!(breaker.failed(now, 0));
        assert!(breaker.is_open());
        assert!(!breaker.failed(now, 0), "it was open already");
    }

    #[test]
    fn a_success_between_failures_forgives_them() {
        let (mut breaker, now) = well();
        for _ in 0..100 {
            assert!((1..FAILURES_MAX).all(|_| !breaker.failed(now, 0)));
            breaker.succeeded();
        }
        assert_eq!(breaker.due(), None);
    }

    #[test]
    fn a_look_that_passes_closes_it_and_one_that_fails_opens_it() {
        let (mut breaker, now) = well();
        assert!(breaker.look_failed(now, 0), "it was thought well");
        assert!(!breaker.look_failed(now, 0));
        assert!(breaker.look_passed(), "it was thought unwell");
        assert!(!breaker.is_open());
        assert!(!breaker.failed(now, 0), "old failures do not count");
    }

    #[test]
    fn a_lost_connection_is_dialled_at_once_and_opens_nothing() {
        let (mut breaker, now) = well();
        assert!(!breaker.disconnected(now, u64::MAX));
        assert!(!breaker.is_open());
        assert_eq!(breaker.due(), Some(now));
    }

    #[test]
    fn pauses_are_random_and_double_up_to_a_bound() {
        let (mut breaker, now) = well();
        let mut longest = PAUSE_BASE;
        assert!(breaker.open(now, longest.as_micros() as u64));
        for _ in 0..10 {
            assert_eq!(breaker.due(), Some(now + longest));
            longest = (longest * 2).min(PAUSE_MAX);
            breaker.look_failed(now, longest.as_micros() as u64);
        }
        for random in [0, 1, 399_999] {
            breaker.look_failed(now, random);
            assert_eq!(breaker.due(), Some(now + Duration::from_micros(random)));
        }
    }

    #[test]
    fn there_is_a_distance_between_looks_whatever_happens() {
        let (mut breaker, start) = well();
        let mut now = start;
        let mut looks = 0;
        while now < start + PAUSE_MIN * 80 {
            if looks % 2 == 0 {
                breaker.disconnected(now, 0);
            } else {
                breaker.look_failed(now, 0);
            }
            now = breaker.due().expect("there is a reason to look");
            breaker.look_started(now);
            looks += 1;
        }
        assert_eq!(looks, 81);
    }
}
