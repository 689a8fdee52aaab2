//! Reservations: checks whose real cost is told later.

use std::sync::Arc;

use http::StatusCode;
use serde::Deserialize;
use serde::de::{Deserializer, Error};
use tollgate::http::{fields, json, status};
use tollgate::{Asked, Keys, Micros, Verdict};

use super::check::{self, Attributes, Check, Units};
use super::object::Object;
use crate::bounds::{RESERVATION_TTL, RESERVATION_TTL_MAX};
use crate::delivery::giving;
use crate::gate::Gate;
use crate::http1::{self, Answer};
use crate::leases::Given;

/// What is sent to reserve: a check, and for how long.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reserve<'a> {
    #[serde(borrow, default)]
    attributes: Attributes<'a>,
    #[serde(default)]
    cost: Units,
    #[serde(default)]
    ttl_ms: Ttl,
}

/// How long a reservation may be settled.
struct Ttl(Micros);

impl Default for Ttl {
    fn default() -> Self {
        Self(RESERVATION_TTL)
    }
}

impl<'de> Deserialize<'de> for Ttl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let most = RESERVATION_TTL_MAX.as_millis_up();
        match u64::deserialize(deserializer)? {
            millis if (1..=most).contains(&millis) => Ok(Self(Micros::new(millis * 1_000))),
            millis => {
                let sentence = format!("ttl_ms is from 1 to {most}, and this is {millis}");
                Err(D::Error::custom(sentence))
            }
        }
    }
}

/// What is sent to settle.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settle {
    reservation: String,
    cost: Units,
}

/// `POST /v1/reserve`.
pub(super) fn reserve(body: &[u8], gate: &Arc<Gate>) -> Asked<Answer> {
    let (check, ttl) = match serde_json::from_slice::<Object<Reserve<'_>>>(body) {
        Ok(Object(Reserve { attributes, cost, ttl_ms })) => (Check { attributes, cost }, ttl_ms.0),
        Err(error) => {
            let example = r#"{"attributes": {"user": "42"}, "cost": 1000, "ttl_ms": 60000}"#;
            return refused(&format!("{error}; send for example {example}"));
        }
    };
    let mut keys = Keys::default();
    let spread = gate.spread(&check.attributes.0);
    let asked = check.ask(|request| gate.limiter.ask_showing(request, &mut keys));
    match asked {
        Asked::Ready(verdict) => Asked::Ready(reserved(verdict, keys, ttl, spread, gate)),
        Asked::Waiting(waiting) => {
            let gate = Arc::clone(gate);
            Asked::later(async move { reserved(waiting.await, keys, ttl, spread, &gate) })
        }
    }
}

/// The answer to a reservation. Of a request that may not go on there is nothing to settle.
fn reserved(
    mut verdict: Verdict,
    keys: Keys,
    ttl: Micros,
    spread: u64,
    gate: &Arc<Gate>,
) -> Answer {
    if !verdict.is_allowed() {
        return check::told(&mut verdict, &keys, spread, gate);
    }
    let Some(room) = gate.reservations.room(&verdict, &keys, &gate.limiter) else {
        gate.limiter.refund(verdict);
        let sentence = "too many reservations are open; nothing was charged";
        return http1::problem(StatusCode::SERVICE_UNAVAILABLE, sentence);
    };
    let given = verdict.take_lease().map(|lease| Given::new(lease, gate));
    let mut answer = http1::json(status(&verdict), "");
    fields::insert(answer.headers_mut(), &verdict, gate.limiter.now(), spread);
    let mut body = Vec::with_capacity(512);
    gate.reservations.keep(verdict, keys, room, ttl, &gate.limiter, |verdict, keys, name| {
        json::write_reserved(&mut body, verdict, keys, given.as_ref().map(Given::name), name);
    });
    giving(answer.map(|_| body.into()), Vec::from_iter(given))
}

/// `POST /v1/settle`.
pub(super) fn settle(body: &[u8], gate: &Arc<Gate>) -> Asked<Answer> {
    let Settle { reservation, cost } = match serde_json::from_slice::<Object<Settle>>(body) {
        Ok(Object(settle)) => settle,
        Err(error) => {
            let example = r#"{"reservation": "…", "cost": 1500}"#;
            return refused(&format!("{error}; send for example {example}"));
        }
    };
    gate.reservations.settle(&reservation, cost.0, &gate.limiter).map(|told| match told {
        Some(body) => http1::json(StatusCode::OK, body),
        None => {
            let sentence = "no such reservation is known: it has ended, or was made elsewhere";
            http1::problem(StatusCode::NOT_FOUND, sentence)
        }
    })
}

fn refused(sentence: &str) -> Asked<Answer> {
    Asked::Ready(http1::problem(StatusCode::BAD_REQUEST, sentence))
}
