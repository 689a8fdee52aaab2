//! The states of a circuit, without clock, lock or listener.
//!
//! A ticket is of the state in which it was given out. When that has ended, how its call ends tells
//! nothing about the present one, and its place is not there any more.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::window::{Counts, Window};
use super::{Reason, Settings, State};
use crate::bounds::{CHANGES_UNTOLD_MAX, PROBE_LASTS, REFUSALS_MIN};

#[derive(Debug)]
pub(super) struct Machine {
    settings: Settings,
    phase: Phase,
    /// How often the phase has changed.
    generation: u64,
    /// Changes of which nobody was told yet.
    turns: VecDeque<Turn>,
    /// When somebody last came or went.
    used_at: Option<Instant>,
}

#[derive(Debug)]
enum Phase {
    Closed(Calls),
    Open { until: Instant, reason: Reason },
    HalfOpen(Trial),
    Forced,
}

/// Calls of a closed circuit.
#[derive(Debug)]
struct Calls {
    /// In a row.
    failures: u32,
    refusals: Option<Refusals>,
    window: Window,
}

/// Nothing but refusals since then.
#[derive(Clone, Copy, Debug)]
struct Refusals {
    since: Instant,
    count: u32,
}

/// Calls that are to see.
#[derive(Debug, Default)]
struct Trial {
    /// When each of those under way began, that have not lost their place.
    probes: Vec<Instant>,
    successes: u32,
    slow: u32,
    by_refusals: bool,
}

/// Names a call that was let through.
#[derive(Debug)]
pub(super) struct Ticket {
    generation: u64,
    began: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Success,
    Failure,
    Refusal,
    /// It was refused, and that is a matter of who called: the other side works.
    RefusedCaller,
    /// Nobody waited for its end.
    Dropped,
    /// It did not reach the other side, however long that took.
    NotMade,
}

/// Why there is no ticket, and how long until there may be one, if that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shut {
    pub(super) reason: Reason,
    pub(super) retry_after: Option<Duration>,
}

/// From one state to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) from: State,
    pub(super) to: State,
    pub(super) reason: Reason,
}

impl Machine {
    pub(super) fn new(settings: Settings, now: Instant) -> Self {
        let phase = Phase::closed(&settings, now);
        Self { settings, phase, generation: 0, turns: VecDeque::new(), used_at: None }
    }

    pub(super) fn state(&self, now: Instant) -> State {
        match self.phase {
            Phase::Open { until, .. } if until <= now => State::HalfOpen,
            _ => self.phase.state(),
        }
    }

    /// The state of the last change that was told: that an open circuit has rested is told when somebody comes.
    pub(super) fn state_as_told(&self) -> State {
        self.turns.front().map_or(self.phase.state(), |turn| turn.from)
    }

    /// Whether a new one would do: what is older than all that it counts and waits for need not be remembered.
    pub(super) fn is_fresh(&self, now: Instant) -> bool {
        let Settings { open_for, window, refused_for, .. } = self.settings;
        let lasts = open_for.max(window).max(refused_for);
        !matches!(self.phase, Phase::Forced) && self.used_at.is_none_or(|at| at + lasts <= now)
    }

    /// Why nobody gets a ticket, if so.
    pub(super) fn shut(&self, now: Instant) -> Option<Shut> {
        match self.phase {
            Phase::Open { until, reason } if now < until => {
                Some(Shut { reason, retry_after: Some(until - now) })
            }
            Phase::Forced => Some(Shut { reason: Reason::Forced, retry_after: None }),
            _ => None,
        }
    }

    /// A ticket, or why there is none.
    pub(super) fn enter(&mut self, now: Instant) -> Result<Ticket, Shut> {
        self.used_at = Some(now);
        if let Some(shut) = self.shut(now) {
            return Err(shut);
        }
        if let Phase::Open { reason, .. } = self.phase {
            let trial = Trial { by_refusals: reason == Reason::Refusals, ..Trial::default() };
            self.turn(Phase::HalfOpen(trial), Reason::Rested);
        }
        if let Phase::HalfOpen(trial) = &mut self.phase
            && !trial.enter(&self.settings, now)
        {
            return Err(Shut { reason: Reason::Rested, retry_after: None });
        }
        Ok(Ticket { generation: self.generation, began: now })
    }

    #[expect(clippy::needless_pass_by_value, reason = "a ticket is used once")]
    pub(super) fn leave(&mut self, ticket: Ticket, outcome: Outcome, now: Instant) {
        self.used_at = Some(now);
        if ticket.generation != self.generation {
            return;
        }
        let settings = &self.settings;
        let is_slower = |(longest, _)| now.saturating_duration_since(ticket.began) > longest;
        let is_slow = outcome != Outcome::NotMade && settings.slow.is_some_and(is_slower);
        let reason = match &mut self.phase {
            Phase::Closed(calls) => calls.leave(settings, outcome, is_slow, now),
            Phase::HalfOpen(trial) => trial.leave(settings, ticket.began, outcome, is_slow),
            Phase::Open { .. } | Phase::Forced => None,
        };
        let Some(reason) = reason else { return };
        let next = match reason {
            Reason::Recovered => Phase::closed(settings, now),
            _ => Phase::Open { until: now + settings.open_for, reason },
        };
        self.turn(next, reason);
    }

    pub(super) fn force(&mut self, is_forced: bool) {
        match (&self.phase, is_forced) {
            (Phase::Forced, false) => {
                self.turn(Phase::HalfOpen(Trial::default()), Reason::Forced);
            }
            (Phase::Forced, true) | (_, false) => {}
            (_, true) => self.turn(Phase::Forced, Reason::Forced),
        }
    }

    /// Whether there is a change of which nobody was told.
    pub(super) fn has_turned(&self) -> bool {
        !self.turns.is_empty()
    }

    pub(super) fn next_turn(&mut self) -> Option<Turn> {
        self.turns.pop_front()
    }

    fn turn(&mut self, to: Phase, reason: Reason) {
        let from = self.phase.state();
        self.phase = to;
        self.generation += 1;
        let to = self.phase.state();
        let is_full = self.turns.len() >= CHANGES_UNTOLD_MAX;
        match self.turns.back_mut() {
            // Every state that is told to begin is told to end, so that whoever counts them counts right.
            Some(last) if is_full => (last.to, last.reason) = (to, reason),
            _ => self.turns.push_back(Turn { from, to, reason }),
        }
    }
}

impl Phase {
    fn closed(settings: &Settings, now: Instant) -> Self {
        let window = Window::new(settings.window, now);
        Self::Closed(Calls { failures: 0, refusals: None, window })
    }

    fn state(&self) -> State {
        match self {
            Self::Closed(_) => State::Closed,
            Self::Open { .. } => State::Open,
            Self::HalfOpen(_) => State::HalfOpen,
            Self::Forced => State::ForcedOpen,
        }
    }
}

impl Calls {
    /// A call has ended; why that opens the circuit, if it does.
    fn leave(
        &mut self,
        settings: &Settings,
        outcome: Outcome,
        is_slow: bool,
        now: Instant,
    ) -> Option<Reason> {
        if matches!(outcome, Outcome::Dropped | Outcome::NotMade) {
            // Whoever went away tells nothing, unless it had waited for long.
            if !is_slow {
                return None;
            }
        } else if outcome == Outcome::RefusedCaller {
            self.failures = 0;
            return None;
        } else {
            self.failures = if outcome == Outcome::Failure { self.failures + 1 } else { 0 };
            self.refusals = (outcome == Outcome::Refusal).then(|| {
                let so_far = self.refusals.unwrap_or(Refusals { since: now, count: 0 });
                Refusals { count: so_far.count.saturating_add(1), ..so_far }
            });
        }
        if outcome != Outcome::Refusal {
            self.window.count(now, outcome == Outcome::Failure, is_slow);
        }
        // Only what went wrong opens it: a call that went well is no news of that kind.
        match outcome {
            Outcome::Failure if self.failures >= settings.failures => Some(Reason::Failures),
            Outcome::Refusal => {
                let is_persistent =
                    self.refusals.is_some_and(|refusals| refusals.is_persistent(settings, now));
                is_persistent.then_some(Reason::Refusals)
            }
            Outcome::Success if !is_slow => None,
            _ => too_many(settings, self.window.counts(now)),
        }
    }
}

impl Trial {
    /// Takes a place, if one is free. A call that does not end has lost its own after a while, so that it does not
    /// keep everybody out; what comes of it counts nevertheless.
    fn enter(&mut self, settings: &Settings, now: Instant) -> bool {
        self.probes.retain(|began| now <= *began + PROBE_LASTS);
        let is_free =
            self.probes.len() as u64 + u64::from(self.successes) < u64::from(settings.successes);
        if is_free {
            self.probes.push(now);
        }
        is_free
    }

    /// The call that began then has ended; why that ends the trial, if it does.
    fn leave(
        &mut self,
        settings: &Settings,
        began: Instant,
        outcome: Outcome,
        is_slow: bool,
    ) -> Option<Reason> {
        // Those that began together lose their places together, so any of them will do.
        if let Some(place) = self.probes.iter().position(|probe| *probe == began) {
            self.probes.swap_remove(place);
        }
        self.slow += u32::from(is_slow);
        let percent = settings.slow.map_or(u32::MAX, |(_, percent)| percent);
        match outcome {
            Outcome::Failure => Some(Reason::Failures),
            Outcome::Refusal if self.by_refusals => Some(Reason::Refusals),
            _ if is_slow && is_reached(self.slow, settings.successes, percent) => {
                Some(Reason::SlowCalls)
            }
            Outcome::Dropped | Outcome::NotMade => None,
            // Whoever refuses works.
            Outcome::Refusal | Outcome::RefusedCaller | Outcome::Success => {
                self.successes += 1;
                (self.successes >= settings.successes).then_some(Reason::Recovered)
            }
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
    if is_reached(counts.failures, counts.calls, settings.failure_percent) {
        return Some(Reason::FailureRate);
    }
    let is_slow =
        settings.slow.is_some_and(|(_, percent)| is_reached(counts.slow, counts.calls, percent));
    is_slow.then_some(Reason::SlowCalls)
}

/// Whether a part is so many of a hundred.
fn is_reached(part: u32, whole: u32, percent: u32) -> bool {
    part > 0 && u64::from(part) * 100 >= u64::from(whole) * u64::from(percent)
}
