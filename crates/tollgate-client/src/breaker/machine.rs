//! The states of a circuit, without clock, lock or listener.
//!
//! A ticket is of the state in which it was given out. When that has ended, how its call ends tells
//! nothing about the present one, and its place is not there any more.

use std::time::Duration;

use tokio::time::Instant;

use super::window::{Counts, Window};
use super::{Reason, Settings, State};
use crate::bounds::REFUSALS_MIN;

#[derive(Debug)]
pub(super) struct Machine {
    settings: Settings,
    phase: Phase,
    /// How often the phase has changed.
    generation: u64,
}

#[derive(Debug)]
enum Phase {
    Closed { failures: u32, refusals: Option<Refusals>, window: Window },
    Open { until: Instant },
    HalfOpen { probes: u32, successes: u32, since: Instant },
    Forced,
}

/// Nothing but refusals since then.
#[derive(Clone, Copy, Debug)]
struct Refusals {
    since: Instant,
    count: u32,
}

/// Names a call that was let through.
#[derive(Debug)]
pub(super) struct Ticket {
    generation: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Success,
    Failure,
    Refusal,
}

/// From one state to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) from: State,
    pub(super) to: State,
    pub(super) reason: Reason,
}

/// A ticket, or how long until there may be one.
type Entrance = Result<Ticket, Option<Duration>>;

impl Machine {
    pub(super) fn new(settings: Settings, now: Instant) -> Self {
        Self { settings, phase: Phase::closed(&settings, now), generation: 0 }
    }

    pub(super) fn state(&self, now: Instant) -> State {
        match self.phase {
            Phase::Open { until } if until <= now => State::HalfOpen,
            _ => self.phase.state(),
        }
    }

    /// Whether it behaves as a new one would.
    pub(super) fn is_fresh(&self, now: Instant) -> bool {
        match &self.phase {
            Phase::Closed { failures: 0, refusals: None, window } => {
                window.clone().counts(now).calls == 0
            }
            _ => false,
        }
    }

    /// If nobody gets a ticket, how long until somebody may.
    pub(super) fn refusal(&self, now: Instant) -> Option<Option<Duration>> {
        match self.phase {
            Phase::Open { until } if now < until => Some(Some(until - now)),
            Phase::Forced => Some(None),
            _ => None,
        }
    }

    pub(super) fn enter(&mut self, now: Instant) -> (Entrance, Option<Turn>) {
        let open_for = self.settings.open_for;
        let turn = match self.phase {
            Phase::Open { until } if until <= now => {
                let half_open = Phase::HalfOpen { probes: 0, successes: 0, since: now };
                Some(self.turn(half_open, Reason::Rested))
            }
            // Calls that never end must not keep everybody out.
            Phase::HalfOpen { probes, since, .. } if probes > 0 && since + open_for < now => {
                Some(self.turn(Phase::Open { until: now + open_for }, Reason::Stuck))
            }
            _ => None,
        };
        let entrance = match &mut self.phase {
            Phase::Closed { .. } => Ok(()),
            Phase::Open { until } => Err(Some(until.saturating_duration_since(now))),
            Phase::HalfOpen { probes, successes, .. } => {
                let is_free = *probes + *successes < self.settings.successes;
                *probes += u32::from(is_free);
                if is_free { Ok(()) } else { Err(None) }
            }
            Phase::Forced => Err(None),
        };
        (entrance.map(|()| Ticket { generation: self.generation }), turn)
    }

    #[expect(clippy::needless_pass_by_value, reason = "a ticket is used once")]
    pub(super) fn leave(
        &mut self,
        ticket: Ticket,
        outcome: Outcome,
        took: Duration,
        now: Instant,
    ) -> Option<Turn> {
        if ticket.generation != self.generation {
            return None;
        }
        let settings = &self.settings;
        let open = || Phase::Open { until: now + settings.open_for };
        match &mut self.phase {
            Phase::Closed { failures, refusals, window } => {
                *failures = if outcome == Outcome::Failure { *failures + 1 } else { 0 };
                *refusals = (outcome == Outcome::Refusal).then(|| {
                    let so_far = refusals.unwrap_or(Refusals { since: now, count: 0 });
                    Refusals { count: so_far.count.saturating_add(1), ..so_far }
                });
                let is_slow = settings.slow.is_some_and(|(longest, _)| took > longest);
                if outcome != Outcome::Refusal {
                    window.count(now, outcome == Outcome::Failure, is_slow);
                }
                // Only what went wrong opens it: a call that went well is no news of that kind.
                let reason = match outcome {
                    Outcome::Failure if *failures >= settings.failures => Some(Reason::Failures),
                    Outcome::Refusal => refusals
                        .is_some_and(|it| it.is_persistent(settings, now))
                        .then_some(Reason::Refusals),
                    Outcome::Success if !is_slow => None,
                    Outcome::Failure | Outcome::Success => too_many(settings, window.counts(now)),
                };
                let next = reason.map(|reason| (open(), reason));
                next.map(|(open, reason)| self.turn(open, reason))
            }
            Phase::HalfOpen { probes, successes, .. } => {
                *probes -= 1;
                let next = match outcome {
                    Outcome::Failure => Some((open(), Reason::Failures)),
                    Outcome::Refusal => Some((open(), Reason::Refusals)),
                    Outcome::Success => {
                        *successes += 1;
                        let is_enough = *successes >= settings.successes;
                        is_enough.then(|| (Phase::closed(settings, now), Reason::Recovered))
                    }
                };
                next.map(|(next, reason)| self.turn(next, reason))
            }
            Phase::Open { .. } | Phase::Forced => None,
        }
    }

    /// The call did not end; its place is free.
    #[expect(clippy::needless_pass_by_value, reason = "a ticket is used once")]
    pub(super) fn abandon(&mut self, ticket: Ticket) {
        if let Phase::HalfOpen { probes, .. } = &mut self.phase
            && ticket.generation == self.generation
        {
            *probes -= 1;
        }
    }

    pub(super) fn force(&mut self, is_forced: bool, now: Instant) -> Option<Turn> {
        match (&self.phase, is_forced) {
            (Phase::Forced, false) => {
                let half_open = Phase::HalfOpen { probes: 0, successes: 0, since: now };
                Some(self.turn(half_open, Reason::Forced))
            }
            (Phase::Forced, true) | (_, false) => None,
            (_, true) => Some(self.turn(Phase::Forced, Reason::Forced)),
        }
    }

    fn turn(&mut self, to: Phase, reason: Reason) -> Turn {
        let from = self.phase.state();
        self.phase = to;
        self.generation += 1;
        Turn { from, to: self.phase.state(), reason }
    }
}

impl Phase {
    fn closed(settings: &Settings, now: Instant) -> Self {
        Self::Closed { failures: 0, refusals: None, window: Window::new(settings.window, now) }
    }

    fn state(&self) -> State {
        match self {
            Self::Closed { .. } => State::Closed,
            Self::Open { .. } => State::Open,
            Self::HalfOpen { .. } => State::HalfOpen,
            Self::Forced => State::ForcedOpen,
        }
    }
}

impl Refusals {
    fn is_persistent(&self, settings: &Settings, now: Instant) -> bool {
        self.count >= REFUSALS_MIN && self.since + settings.refused_for <= now
    }
}

/// Whether too large a part of the calls fails or is slow.
fn too_many(settings: &Settings, counts: Counts) -> Option<Reason> {
    if counts.calls < settings.calls_min {
        return None;
    }
    let is_reached = |part: u32, percent: u32| {
        part > 0 && u64::from(part) * 100 >= u64::from(counts.calls) * u64::from(percent)
    };
    if is_reached(counts.failures, settings.failure_percent) {
        return Some(Reason::FailureRate);
    }
    let is_slow = settings.slow.is_some_and(|(_, percent)| is_reached(counts.slow, percent));
    is_slow.then_some(Reason::SlowCalls)
}
