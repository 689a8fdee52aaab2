//! A limit and one caller of it, in a time of their own.

use tollgate_core::{ChargeId, Cost, Decision, Limit, Log, Outcome, Timestamp, Word};

/// What a limit remembers of a caller who has just come, and of what they send from then on. It is
/// decided as in any store, and nothing is kept anywhere else.
///
/// ```
/// use tollgate::play::Played;
/// use tollgate::{Cost, Limit, Quota, Timestamp};
///
/// let mut played = Played::new(Limit::token_bucket(Quota::per_second(1), 2)?);
/// let sent = [0, 0, 0, 1_000_000].map(|at| played.send(Timestamp::from_micros(at), Cost::ONE));
/// assert_eq!(sent.map(|decision| decision.is_allowed()), [true, true, false, true]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Played {
    limit: Limit,
    counts_denied: bool,
    /// What a counter remembers, or a log; the other stays empty.
    word: Word,
    log: Log,
    sent: u64,
}

impl Played {
    /// Nobody has sent anything yet.
    pub fn new(limit: Limit) -> Self {
        Self { limit, counts_denied: false, word: Word::VACANT, log: Log::default(), sent: 0 }
    }

    /// Charges what is denied too.
    pub fn counting_denied(self, counts_denied: bool) -> Self {
        Self { counts_denied, ..self }
    }

    /// Sends a request.
    pub fn send(&mut self, now: Timestamp, cost: Cost) -> Decision {
        self.sent += 1;
        match &self.limit {
            Limit::Counter(counter) => {
                let done = counter.decide(self.word, now, cost);
                self.word = done.word;
                // As a store does it: what costs more than there is at all is not charged.
                let is_denied = matches!(done.decision.outcome, Outcome::Denied { .. });
                if !(self.counts_denied && is_denied) || cost == Cost::PEEK {
                    return done.decision;
                }
                self.word = counter.punish(done.word, now, cost);
                counter.decide(self.word, now, cost).decision
            }
            Limit::Logged(logged) => {
                let done = logged.decide(&self.log, now, cost, ChargeId(self.sent));
                self.log.apply(done.change);
                done.decision
            }
        }
    }

    /// What is left, with nothing sent.
    pub fn look(&self, now: Timestamp) -> Decision {
        self.clone().send(now, Cost::PEEK)
    }
}
