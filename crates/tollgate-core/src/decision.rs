//! What a limit says about one request.

use crate::Micros;

/// One limit's answer to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request may go on.
    pub outcome: Outcome,
    /// Units an idle caller could take at once: the count of a window, the burst of a bucket.
    pub limit: u32,
    /// Units that can be taken now, after this decision.
    pub remaining: u32,
    /// How long until the limit is whole again, if nothing more is taken. Of a concurrency limit:
    /// at the latest.
    pub reset_after: Micros,
    /// How long until one more unit than `remaining` can be taken; zero when the limit is whole,
    /// `None` when nobody can know.
    pub next_after: Option<Micros>,
}

/// Whether a request may go on, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It may, after `delay`: zero except under a leaky bucket.
    Allowed {
        /// How long the request should be held first.
        delay: Micros,
    },
    /// It may not. The same request alone would be allowed after `retry_after`, and not a
    /// microsecond earlier; `None` when no wait is known (a concurrency limit).
    Denied {
        /// The shortest wait that works; one that works, where more entries of a log must end than
        /// [`LOG_WALK_MAX`](crate::bounds::LOG_WALK_MAX) and they do not hold one unit each.
        retry_after: Option<Micros>,
    },
    /// It may not, and no wait helps: it costs more than the limit ever holds.
    TooCostly,
}

impl Outcome {
    pub(crate) const ALLOWED: Self = Self::Allowed { delay: Micros::ZERO };

    /// Whether the request may go on, at once or after a delay.
    #[inline]
    pub const fn is_allowed(&self) -> bool {
        matches!(self, Self::Allowed { .. })
    }
}

impl Decision {
    /// Whether the request may go on, at once or after a delay.
    pub const fn is_allowed(&self) -> bool {
        self.outcome.is_allowed()
    }

    /// The shortest wait after which the same request would be allowed, if one is known.
    pub const fn retry_after(&self) -> Option<Micros> {
        match self.outcome {
            Outcome::Denied { retry_after } => retry_after,
            Outcome::Allowed { .. } | Outcome::TooCostly => None,
        }
    }

    /// How long to hold an allowed request before letting it go.
    pub const fn delay(&self) -> Micros {
        match self.outcome {
            Outcome::Allowed { delay } => delay,
            Outcome::Denied { .. } | Outcome::TooCostly => Micros::ZERO,
        }
    }
}
