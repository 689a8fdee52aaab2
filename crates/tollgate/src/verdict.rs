//! The answer to a request over all limits that apply to it.

use std::fmt;
use std::sync::Arc;

use arc_swap::Guard;
use smallvec::SmallVec;
use tollgate_core::{Decision, Limit, Micros, Outcome, Quota, Timestamp};
use tollgate_policy::{Mode, Rule};
use tollgate_store::{Origin, Taken};

use crate::http::fields::Spelled;
use crate::limiter::InForce;
use crate::overrides::NEVER;

/// Whether a request may go on, and what every limit that applied had to say.
pub struct Verdict {
    pub(crate) ruling: Ruling,
    pub(crate) taken: SmallVec<[Entry; 4]>,
    /// See [`Claim`](tollgate_store::Claim).
    pub(crate) origin: Option<Arc<Origin>>,
    pub(crate) policy: Guard<Arc<InForce>>,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// Every limit that is enforced allows it, or none applies.
    Allowed,
    /// A limit denies it: it sends too much.
    Denied,
    /// A limit that must not be passed uncounted could not count it: we are unwell.
    Uncounted,
    /// It is on the policy's `exempt` list.
    Exempt,
    /// It is on the policy's `deny` list.
    Blocked,
    /// It has no API key that the policy knows, and the policy refuses those.
    UnknownKey,
    /// What it says it costs is not a cost.
    BadCost,
}

impl Ruling {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::Allowed,
        Self::Denied,
        Self::Uncounted,
        Self::Exempt,
        Self::Blocked,
        Self::UnknownKey,
        Self::BadCost,
    ];

    /// Its name, for programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Uncounted => "uncounted",
            Self::Exempt => "exempt",
            Self::Blocked => "blocked",
            Self::UnknownKey => "unknown_key",
            Self::BadCost => "bad_cost",
        }
    }
}

/// How long a denied client should stay away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absence {
    /// So long: then every limit of which that is known lets it through.
    For(Micros),
    /// Nobody knows: slots come back when others are done.
    Guessed,
}

/// What one limit said, and what was charged for it.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) rule: u32,
    pub(crate) limit: u32,
    pub(crate) taken: Taken,
}

/// When a request was decided, if an answer says so.
pub(crate) fn decided_at(entries: &[Entry]) -> Option<Timestamp> {
    entries.first().and_then(|entry| entry.taken.counted_at())
}

impl Verdict {
    /// That of a request to which no limit has said anything yet.
    pub(crate) fn begin(policy: Guard<Arc<InForce>>) -> Self {
        Self { ruling: Ruling::Allowed, taken: SmallVec::new(), origin: None, policy }
    }

    /// Whether the request may go on, after [`Verdict::delay`].
    pub fn is_allowed(&self) -> bool {
        matches!(self.ruling, Ruling::Allowed | Ruling::Exempt)
    }

    /// The same, to be kept for longer than it takes to answer: as it comes, it makes it slower for
    /// others to look at the policy.
    pub fn kept(self) -> Self {
        Self { policy: Guard::from_inner(Guard::into_inner(self.policy)), ..self }
    }

    /// What became of the request.
    pub fn ruling(&self) -> Ruling {
        self.ruling
    }

    /// What each limit that applied said, in the order of the policy.
    pub fn answers(&self) -> impl ExactSizeIterator<Item = Answer<'_>> + Clone {
        self.taken.iter().map(|entry| Answer { entry, policy: &self.policy })
    }

    /// How long an allowed request should be held before it goes on.
    pub fn delay(&self) -> Micros {
        let enforced = self.answers().filter(Answer::is_enforced);
        let delays = enforced.map(|answer| answer.entry.taken.delay());
        if self.is_allowed() { delays.max().unwrap_or_default() } else { Micros::ZERO }
    }

    /// The shortest wait after which the same request alone would be allowed; nothing if it is
    /// allowed, if no wait helps, or if none is known.
    pub fn retry_after(&self) -> Option<Micros> {
        if self.ruling != Ruling::Denied {
            return None;
        }
        let waits = self.answers().filter_map(|answer| answer.refusal());
        waits.map(wait_of).collect::<Option<SmallVec<[Micros; 4]>>>()?.into_iter().max()
    }

    /// How long a denied client should stay away; nothing if that is no help.
    pub(crate) fn absence(&self) -> Option<Absence> {
        if self.ruling != Ruling::Denied {
            return None;
        }
        let mut absence = Absence::Guessed;
        for answer in self.answers() {
            let Some(refusal) = answer.refusal() else { continue };
            match (refusal, absence) {
                (Outcome::TooCostly, _) => return None,
                // Slots come back when others are done; who is banned without an end waits for nothing.
                (Outcome::Denied { retry_after: None }, _)
                    if answer.rate().is_some() || answer.is_barred() =>
                {
                    return None;
                }
                (Outcome::Denied { retry_after: Some(wait) }, Absence::For(longest)) => {
                    absence = Absence::For(wait.max(longest));
                }
                (Outcome::Denied { retry_after: Some(wait) }, Absence::Guessed) => {
                    absence = Absence::For(wait);
                }
                (Outcome::Denied { retry_after: None } | Outcome::Allowed { .. }, _) => {}
            }
        }
        Some(absence)
    }

    /// The limit with the smallest share left, which is the one to tell a client of. Concurrency
    /// limits never are: what is left of them says nothing about the next minute.
    pub fn tightest(&self) -> Option<Answer<'_>> {
        let mut rates = self.answers().filter(|answer| {
            answer.rate().is_some() && answer.is_enforced() && answer.is_counted()
        });
        let first = rates.next()?;
        let Some(second) = rates.next() else { return Some(first) };
        [first, second]
            .into_iter()
            .chain(rates)
            .filter_map(|answer| Some((share_left(&answer.decision()?), answer)))
            .min_by_key(|(share, _)| *share)
            .map(|(_, answer)| answer)
    }
}

impl fmt::Debug for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answers: Vec<_> = self.answers().collect();
        f.debug_struct("Verdict")
            .field("ruling", &self.ruling)
            .field("answers", &answers)
            .finish_non_exhaustive()
    }
}

/// What one limit said of a request.
#[derive(Clone, Copy)]
pub struct Answer<'v> {
    entry: &'v Entry,
    policy: &'v InForce,
}

impl<'v> Answer<'v> {
    /// The limit, as the policy has it.
    pub fn rule(&self) -> &'v Rule {
        &self.policy.policy.rules()[self.entry.rule as usize]
    }

    /// Which of the policy's rules that is.
    pub(crate) fn rule_number(&self) -> usize {
        self.entry.rule as usize
    }

    /// Which of the limits in force it put to the request.
    pub(crate) fn limit_number(&self) -> usize {
        self.entry.limit as usize
    }

    /// How much it allows to this request's caller.
    pub fn limit(&self) -> &'v Limit {
        self.policy.enrolled[self.entry.limit as usize].limit()
    }

    /// The rate as it is written; none of a concurrency limit.
    pub fn rate(&self) -> Option<Quota> {
        self.policy.rate(self.entry.limit as usize)
    }

    /// What of it is the same for every request, spelled out.
    pub(crate) fn spelled(&self) -> &'v Spelled {
        &self.policy.spelled
    }

    /// What it said; nothing if it could not count.
    pub fn decision(&self) -> Option<Decision> {
        self.entry.taken.decision()
    }

    /// How long until all of it can be taken; nothing if it could not count, or if its key is banned
    /// without an end.
    pub fn reset_after(&self) -> Option<Micros> {
        self.decision().and_then(|decision| Self::reset_of(&decision))
    }

    /// The same, for whoever has the decision already: to work out its figures takes longer than to
    /// decide.
    pub fn reset_of(decision: &Decision) -> Option<Micros> {
        (decision.reset_after != NEVER).then_some(decision.reset_after)
    }

    /// Whether its key is banned without an end.
    fn is_barred(&self) -> bool {
        self.decision().is_some_and(|decision| Self::reset_of(&decision).is_none())
    }

    /// Whether it lets the request go on.
    pub fn is_allowed(&self) -> bool {
        self.entry.taken.is_allowed()
    }

    /// Whether it could count the request, and so has a [`decision`](Self::decision).
    fn is_counted(&self) -> bool {
        !matches!(self.entry.taken, Taken::Uncounted { .. })
    }

    /// Whether its denial counts, or is only reported.
    pub fn is_enforced(&self) -> bool {
        self.rule().mode() == Mode::Enforce
    }

    /// What this limit has against the same request once more, if it has something.
    fn refusal(&self) -> Option<Outcome> {
        if !self.is_enforced() {
            return None;
        }
        if !self.is_allowed() {
            // Of a limit that could not count nobody knows when it can.
            let uncounted = Outcome::Denied { retry_after: None };
            return Some(self.decision().map_or(uncounted, |decision| decision.outcome));
        }
        // It allowed the request and was charged for it all the same, so it may be in the way of
        // the next.
        if !self.rule().count_denied() {
            return None;
        }
        let next = self.entry.taken.repeated()?;
        (!next.is_allowed()).then_some(next.outcome)
    }
}

/// How much of a limit is left, to be compared with how much is of others.
pub(crate) fn share_left(decision: &Decision) -> u64 {
    (u64::from(decision.remaining) << 32) / u64::from(decision.limit).max(1)
}

pub(crate) fn wait_of(outcome: Outcome) -> Option<Micros> {
    match outcome {
        Outcome::Denied { retry_after } => retry_after,
        Outcome::Allowed { .. } | Outcome::TooCostly => None,
    }
}

impl fmt::Debug for Answer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer")
            .field("rule", &self.rule().name())
            .field("decision", &self.decision())
            .finish_non_exhaustive()
    }
}
