//! Single keys: what is left to them, who is denied most, and who is allowed something else.
//!
//! A key in a path is its text as answers show it, percent-encoded once more like any part of a path:
//! `api:a%3Ab` is asked for as `/v1/keys/api:a%253Ab`.

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tollgate::http::json::write_look;
use tollgate::observe::{Frequent, FrequentKey, Span};
use tollgate::{Change, KeyBuf, KeyError, KeyRefused, Limiter, Micros, Override};

use super::live::millis;
use super::query::{Query, not};
use super::{noted, sentences};
use crate::audit::{Action, as_shown};
use crate::connection::Visitor;
use crate::gate::Gate;
use crate::http1::{self, Answer};
use crate::overrides::{self, NotPut, NotShared};

/// What is asked about.
enum Subject {
    Keys,
    Key(KeyBuf),
    Overrides,
    OverrideOf(KeyBuf),
}

/// Whether a path is one of those here.
pub(super) fn is_asked(path: &str) -> bool {
    let within = |folder: &str| {
        let rest = path.strip_prefix(folder);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    within("/v1/keys") || within("/v1/overrides")
}

pub(super) async fn answer(request: Request<Incoming>, visitor: &Visitor) -> Answer {
    let subject = match Subject::of(request.uri().path()) {
        Ok(subject) => subject,
        Err(error) => return no_key(&error),
    };
    let gate = &visitor.gate;
    let limiter = &gate.limiter;
    match (subject, request.method()) {
        (Subject::Keys, &Method::GET | &Method::HEAD) => {
            list(request.uri().query().unwrap_or_default(), limiter)
        }
        (Subject::Keys, _) => http1::wrong_method("GET, HEAD"),
        (Subject::Key(key), &Method::GET | &Method::HEAD) => look(&key, limiter).await,
        (Subject::Key(key), &Method::DELETE) => {
            let answer = reset(&key, limiter).await;
            noted(visitor, &Action::Reset(&key), answer)
        }
        (Subject::Key(_), _) => http1::wrong_method("GET, HEAD, DELETE"),
        (Subject::Overrides, &Method::GET | &Method::HEAD) => list_overrides(limiter),
        (Subject::Overrides, _) => http1::wrong_method("GET, HEAD"),
        (Subject::OverrideOf(key), &Method::PUT) => match http1::body(request, gate).await {
            Ok(body) => {
                let answer = put(key.clone(), &body, gate).await;
                noted(visitor, &Action::Override(&key), answer)
            }
            Err(refusal) => refusal,
        },
        (Subject::OverrideOf(key), &Method::DELETE) => {
            let answer = remove(&key, gate).await;
            noted(visitor, &Action::RemoveOverride(&key), answer)
        }
        (Subject::OverrideOf(_), _) => http1::wrong_method("PUT, DELETE"),
    }
}

impl Subject {
    fn of(path: &str) -> Result<Self, KeyError> {
        match (path.strip_prefix("/v1/keys/"), path.strip_prefix("/v1/overrides/")) {
            (Some(key), _) => Ok(Self::Key(read(key)?)),
            (None, Some(key)) => Ok(Self::OverrideOf(read(key)?)),
            (None, None) if path == "/v1/overrides" => Ok(Self::Overrides),
            (None, None) => Ok(Self::Keys),
        }
    }
}

fn read(part: &str) -> Result<KeyBuf, KeyError> {
    String::from_utf8_lossy(&decoded(part)).parse()
}

fn no_key(error: &KeyError) -> Answer {
    let sentence = format!("{error}; in a path, each % of a key is written %25");
    http1::problem(StatusCode::BAD_REQUEST, &sentence)
}

/// A part of a path without its escapes. A percent sign that begins none stands for itself: the marks
/// of a key are none, and people copy keys as they see them.
fn decoded(part: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    while let [first, after @ ..] = rest {
        let pair = match (first, after) {
            (b'%', [high, low, ..]) => digit(*high).zip(digit(*low)),
            _ => None,
        };
        let (byte, length) = pair.map_or((*first, 1), |(high, low)| (high << 4 | low, 3));
        bytes.push(byte);
        rest = &rest[length..];
    }
    bytes
}

/// Answers to `?denied=1` and `?busy=1`, each with `&over=minute`, `hour` or `day`.
fn list(query: &str, limiter: &Limiter) -> Answer {
    match listed(query, limiter) {
        Ok(told) => http1::json(StatusCode::OK, frequent(&told).to_string()),
        Err(sentence) => http1::problem(StatusCode::BAD_REQUEST, &sentence),
    }
}

fn listed(query: &str, limiter: &Limiter) -> Result<Frequent, String> {
    let query = Query::read(query, &["denied", "busy", "over"])?;
    let over = match query.get("over") {
        Some("minute") => Span::Minute,
        Some("hour") | None => Span::Hour,
        Some("day") => Span::Day,
        Some(other) => return Err(not("over", other, "minute, hour or day")),
    };
    match (query.get("denied"), query.get("busy")) {
        (Some("1"), None) => Ok(limiter.most_denied(over)),
        (None, Some("1")) => Ok(limiter.busiest(over)),
        _ => Err("not every key is remembered; ask for /v1/keys?denied=1, those denied most, or \
                  /v1/keys?busy=1, those that send most, over=minute, hour or day"
            .to_owned()),
    }
}

fn frequent(told: &Frequent) -> Value {
    let seconds = told.period.as_micros() as f64 / 1e6;
    // In thousandths: nobody reads more digits of an estimate.
    let rate = |count: u64| match seconds > 0.0 {
        true => (count as f64 / seconds * 1e3).round() / 1e3,
        false => 0.0,
    };
    let key = |key: &FrequentKey| {
        json!({
            "key": key.key,
            "requests": key.requests,
            "denied": key.denied,
            "error": key.error,
            "rate": rate(key.requests),
            "denied_rate": rate(key.denied),
            "first_seen_ms": millis(key.first_seen),
            "limits": key.limits,
            "early": key.early,
            "obeys": key.obeys,
        })
    };
    json!({
        "period_ms": told.period.as_millis_up(),
        "requests": told.requests,
        "denied": told.denied,
        "keys": told.keys.iter().map(key).collect::<Vec<_>>(),
    })
}

async fn look(key: &KeyBuf, limiter: &Limiter) -> Answer {
    match limiter.look(key) {
        Ok(asked) => asked.await.map_or_else(no_answer, |look| {
            let mut body = Vec::with_capacity(512);
            write_look(&mut body, &look, &key.to_string());
            http1::json(StatusCode::OK, body)
        }),
        Err(refused) => refusal(&refused),
    }
}

async fn reset(key: &KeyBuf, limiter: &Limiter) -> Answer {
    match limiter.reset(key) {
        Ok(asked) => {
            let Some(was_known) = asked.await else { return no_answer() };
            tracing::info!(key = %as_shown(limiter, key), was_known, "a key was reset");
            let body = json!({"key": key.to_string(), "was_known": was_known});
            http1::json(StatusCode::OK, body.to_string())
        }
        Err(refused) => refusal(&refused),
    }
}

fn list_overrides(limiter: &Limiter) -> Answer {
    let overrides = limiter.overrides().into_iter().map(|one| {
        let mut shown: Value = serde_json::from_str(&one.to_string()).unwrap_or_default();
        shown["key"] = one.key.to_string().into();
        shown
    });
    let overrides: Vec<Value> = overrides.collect();
    http1::json(StatusCode::OK, json!({"overrides": overrides}).to_string())
}

async fn put(key: KeyBuf, body: &[u8], gate: &Gate) -> Answer {
    let (change, millis) = match Change::parse(&String::from_utf8_lossy(body), "ttl_ms") {
        Ok(read) => read,
        Err(mistakes) => return http1::problem(StatusCode::BAD_REQUEST, &sentences(&mistakes)),
    };
    if millis == Some(0) {
        let sentence = "override: ttl_ms is 0, so it would end before it began";
        return http1::problem(StatusCode::BAD_REQUEST, sentence);
    }
    let until =
        millis.map(|millis| gate.limiter.store().shared_now().plus(Micros::from_millis(millis)));
    let one = Override { key: key.clone(), change, until };
    let told = one.to_string();
    match overrides::put(gate, one).await {
        Ok(()) => {
            tracing::info!(key = %as_shown(&gate.limiter, &key), "an override was put: {told}");
            // Should nobody tell what is left, the change was made all the same.
            let look = look(&key, &gate.limiter).await;
            let shown = format!(
                r#"{{"key":{},"limits":[],"override":{told},"recent":[]}}"#,
                json!(key.to_string())
            );
            if look.status().is_success() { look } else { http1::json(StatusCode::OK, shown) }
        }
        Err(NotPut::Refused(refused)) => refusal(&refused),
        Err(NotPut::NotShared(why)) => not_shared(why),
    }
}

async fn remove(key: &KeyBuf, gate: &Gate) -> Answer {
    match overrides::remove(gate, key).await {
        Ok(true) => {}
        Ok(false) => {
            let sentence = format!("{key} has no override");
            return http1::problem(StatusCode::NOT_FOUND, &sentence);
        }
        Err(why) => return not_shared(why),
    }
    tracing::info!(key = %as_shown(&gate.limiter, key), "an override was removed");
    let body = json!({"key": key.to_string(), "removed": true});
    http1::json(StatusCode::OK, body.to_string())
}

/// What a key has consumed is in Redis, and this node cannot tell.
fn no_answer() -> Answer {
    let sentence = "Redis does not answer, and what keys have consumed is kept there; ask again";
    http1::problem(StatusCode::SERVICE_UNAVAILABLE, sentence)
}

/// Overrides are shared by way of Redis, and nothing is changed on one node only.
fn not_shared(why: NotShared) -> Answer {
    let sentence = match why {
        NotShared::NotMade => {
            "Redis is away or refuses, and overrides are kept there; nothing was changed"
        }
        NotShared::Unknown => {
            "Redis did not answer in time, and overrides are kept there; this one may have been \
             changed or not, so look at it and ask again"
        }
    };
    http1::problem(StatusCode::SERVICE_UNAVAILABLE, sentence)
}

fn refusal(refused: &KeyRefused) -> Answer {
    let status = match refused {
        KeyRefused::Unknown { .. } => StatusCode::NOT_FOUND,
        KeyRefused::Change { .. } => StatusCode::UNPROCESSABLE_ENTITY,
        _ => StatusCode::CONFLICT,
    };
    http1::problem(status, &refused.to_string())
}
