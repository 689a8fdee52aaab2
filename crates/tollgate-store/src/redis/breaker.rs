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
