//! A limit to try out: what it says to requests that are sent at some moments.
//!
//! Nothing of it is in force, and nothing is kept. It is decided by the same functions as everything
//! else, so that what is seen here is what will happen.

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tollgate::play::Played;
use tollgate::{Decision, Micros, Policy, Timestamp};

use crate::bounds::{PLAY_BYTES_MAX, PLAY_LIMIT_BYTES_MAX, PLAY_MILLIS_MAX, PLAY_SENT_MAX};
use crate::http::{Object, Units};
use crate::http1::{self, Answer};

/// What is sent to play.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Play {
    /// As a policy writes it.
    limit: Map<String, Value>,
    sent: Vec<Object<Sent>>,
    now_ms: u64,
}

/// One request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sent {
    at_ms: u64,
    #[serde(default)]
    cost: Units,
}

/// When it begins: at the beginning of a day, so that windows that go by the clock begin with it.
const START: Timestamp = Timestamp::from_micros(20_000 * 86_400 * 1_000_000);

/// `POST /v1/play`.
pub(super) fn answer(body: &[u8]) -> Answer {
    if body.len() > PLAY_BYTES_MAX {
        let sentence = format!("a play has {} bytes; {PLAY_BYTES_MAX} are the most", body.len());
        return http1::problem(StatusCode::PAYLOAD_TOO_LARGE, &sentence);
    }
    match serde_json::from_slice(body) {
        Ok(Object(play)) => match played(play) {
            Ok(told) => http1::json(StatusCode::OK, told.to_string()),
            Err(sentence) => http1::problem(StatusCode::BAD_REQUEST, &sentence),
        },
        Err(error) => {
            let example =
                r#"{"limit": {"rate": "10/second"}, "sent": [{"at_ms": 0}], "now_ms": 5}"#;
            let sentence = format!("{error}; send for example {example}");
            http1::problem(StatusCode::BAD_REQUEST, &sentence)
        }
    }
}

fn played(play: Play) -> Result<Value, String> {
    let Play { limit, sent, now_ms } = play;
    if sent.len() > PLAY_SENT_MAX {
        return Err(format!("there are {} sent; {PLAY_SENT_MAX} may be", sent.len()));
    }
    if now_ms > PLAY_MILLIS_MAX {
        return Err(format!("now_ms is {now_ms}; {PLAY_MILLIS_MAX} is the most"));
    }
    let times = || sent.iter().map(|Object(sent)| sent.at_ms);
    if !times().chain([now_ms]).is_sorted() {
        return Err("each at_ms is as late as the one before or later, and now_ms is last".into());
    }
    let mut played = read(limit)?;
    let mut answers = Vec::with_capacity(sent.len());
    for Object(Sent { at_ms, cost }) in &sent {
        let decision = played.send(at(*at_ms), cost.0);
        answers.push(json!({
            "allowed": decision.is_allowed(),
            "remaining": decision.remaining,
            "retry_after_ms": decision.retry_after().map(Micros::as_millis_up),
            "delay_ms": decision.delay().as_millis_up(),
        }));
    }
    let Decision { limit, remaining, reset_after, next_after, .. } = played.look(at(now_ms));
    let now = json!({
        "limit": limit,
        "remaining": remaining,
        "reset_after_ms": reset_after.as_millis_up(),
        "next_after_ms": next_after.map(Micros::as_millis_up),
    });
    Ok(json!({"answers": answers, "now": now}))
}

fn at(millis: u64) -> Timestamp {
    START.plus(Micros::from_millis(millis))
}

/// Reads a limit as the policy that has it alone would be read.
fn read(mut limit: Map<String, Value>) -> Result<Played, String> {
    limit.insert("name".to_owned(), "play".into());
    let text = json!({"limits": [limit]}).to_string();
    if text.len() > PLAY_LIMIT_BYTES_MAX {
        return Err(format!("limit: it has more than {PLAY_LIMIT_BYTES_MAX} bytes"));
    }
    let no_files = |_: &str| Err("nothing is read for it".to_owned());
    let policy = Policy::parse("play", &text, &mut { no_files });
    let policy = policy.map_err(|mistakes| super::sentences(&mistakes))?;
    let [rule] = policy.rules() else {
        return Err("limit: it has several rates; play one at a time".to_owned());
    };
    match rule.limits()[..] {
        [limit] if rule.shards().is_none() => {
            Ok(Played::new(policy.limits()[limit]).counting_denied(rule.count_denied()))
        }
        _ => Err("limit: it allows not the same to everybody; say one amount".to_owned()),
    }
}
