//! What is told of the client's doings: events for people (`tracing`), and numbers for charts
//! (`metrics`, with the feature of that name).
//!
//! Events name whom it is about, if that is known and no secret: a host, or what circuits go by. Numbers do not: there may be
//! many of them.

use std::time::Duration;

use crate::breaker::{Change, State};
use crate::retry::{Cause, GaveUp};

#[cfg(feature = "metrics")]
macro_rules! count {
    ($name:literal $(, $label:literal => $value:expr)*) => {
        metrics::counter!($name $(, $label => $value)*).increment(1)
    };
}
#[cfg(not(feature = "metrics"))]
macro_rules! count {
    ($name:literal $(, $label:literal => $value:expr)*) => {{ $(let _: &'static str = $value;)* }};
}

/// So many more there are, or fewer.
#[cfg(feature = "metrics")]
macro_rules! weigh {
    ($name:literal, $more:expr, $label:literal => $value:expr) => {
        metrics::gauge!($name, $label => $value).increment($more)
    };
}
#[cfg(not(feature = "metrics"))]
macro_rules! weigh {
    ($name:literal, $more:expr, $label:literal => $value:expr) => {{
        let _: (f64, &'static str) = ($more, $value);
    }};
}

/// So many seconds were waited.
#[cfg(feature = "metrics")]
macro_rules! spend {
    ($name:literal, $time:expr) => {
        metrics::histogram!($name).record($time.as_secs_f64())
    };
}
#[cfg(not(feature = "metrics"))]
macro_rules! spend {
    ($name:literal, $time:expr) => {{
        let _: Duration = $time;
    }};
}

pub(crate) fn retry(key: Option<&str>, number: u32, wait: Duration, cause: Cause) {
    let cause = match cause {
        Cause::Refused(_) => "refused",
        Cause::Failed(_) => "failed",
    };
    tracing::debug!(key, number, wait_ms = wait.as_millis() as u64, cause, "tries again");
    count!("tollgate_client_retries_total", "cause" => cause);
    spend!("tollgate_client_retry_wait_seconds", wait);
}

pub(crate) fn gave_up(key: Option<&str>, retries: u32, why: GaveUp) {
    let why = match why {
        GaveUp::Retries => "retries",
        GaveUp::Deadline => "deadline",
        GaveUp::Circuit => "circuit",
        GaveUp::Share => "share",
    };
    tracing::debug!(key, retries, why, "does not try again");
    count!("tollgate_client_given_up_total", "why" => why);
}

pub(crate) fn circuit(change: &Change) {
    let (from, to) = (name(change.from), name(change.to));
    let Change { key, reason, .. } = change;
    tracing::info!(%key, from, to, ?reason, "a circuit changed");
    count!("tollgate_client_circuit_changes_total", "to" => to);
    circuit_gone(change.from);
    circuit_is(change.to, 1.0);
}

/// A circuit is not in that state any more.
pub(crate) fn circuit_gone(from: State) {
    circuit_is(from, -1.0);
}

/// Circuits that are not closed are counted: of closed ones there is one for each host, and nobody wants to know.
fn circuit_is(state: State, more: f64) {
    if state != State::Closed {
        weigh!("tollgate_client_circuits", more, "state" => name(state));
    }
}

fn name(state: State) -> &'static str {
    match state {
        State::Closed => "closed",
        State::Open => "open",
        State::HalfOpen => "half_open",
        State::ForcedOpen => "forced_open",
    }
}

/// A call was not made.
pub(crate) fn not_made(key: Option<&str>, why: &'static str) {
    tracing::debug!(key, why, "was not made");
    count!("tollgate_client_not_made_total", "why" => why);
}

pub(crate) fn throttled(key: Option<&str>, waited: Duration, has_passed: bool) {
    tracing::debug!(
        key,
        waited_ms = waited.as_millis() as u64,
        has_passed,
        "waited for its budget"
    );
    spend!("tollgate_client_throttled_seconds", waited);
}

/// The server did not decide; it is news if that was not said aloud of late.
#[cfg(feature = "server")]
pub(crate) fn server_away(why: &str, is_news: bool) {
    if is_news {
        tracing::warn!(why, "the server did not decide, the fallback does");
    } else {
        tracing::debug!(why, "the server did not decide, the fallback does");
    }
    count!("tollgate_client_fallbacks_total");
}
