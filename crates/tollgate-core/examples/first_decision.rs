//! One key, one limit, a handful of requests: what a decision says.
//!
//! Run it with `cargo run -p tollgate-core --example first_decision`.

use tollgate_core::{Cost, Limit, Micros, Outcome, Quota, QuotaError, Timestamp, Word};

fn main() -> Result<(), QuotaError> {
    // Thirty a minute, and never more than three at once.
    let Limit::Counter(limit) = Limit::token_bucket(Quota::per_minute(30), 3)? else {
        unreachable!("a token bucket is a counter")
    };

    // The core keeps nothing and reads no clock: the state and the time are yours.
    let mut state = Word::VACANT;
    let start = Timestamp::from_micros(1_760_000_000_000_000);

    for millis in [0, 100, 200, 300, 2_100, 2_200] {
        let now = start.plus(Micros::from_millis(millis));
        let transition = limit.decide(state, now, Cost::ONE);
        state = transition.word;

        let decision = transition.decision;
        let answer = match decision.outcome {
            Outcome::Allowed { .. } => "allowed".to_owned(),
            Outcome::Denied { retry_after: Some(wait) } => format!("denied, try again in {wait}"),
            Outcome::Denied { retry_after: None } => "denied, nobody knows for how long".to_owned(),
            Outcome::TooCostly => "denied for ever: it costs more than the limit holds".to_owned(),
        };
        println!("{millis:>5} ms: {answer}; {} of {} left", decision.remaining, decision.limit);
    }
    Ok(())
}
