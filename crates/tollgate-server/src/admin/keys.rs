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
use super::{Done, noted, sentences, throttled};
use crate::audit::{Action, Effect};
use crate::connection::Visitor;
use crate::gate::Gate;
use crate::http1::{self, Answer};
use crate::overrides::{self, NotPut, NotShared};

/// What is asked about. A key is the text that names it.
enum Subject {
    Keys,
    Key(KeyBuf),
    Overrides,
    OverrideOf(KeyBuf),
}

/// A key that somebody names, and the one that is meant by it.
struct Meant {
    named: KeyBuf,
    key: KeyBuf,
}

impl Meant {
    fn new(named: KeyBuf, limiter: &Limiter) -> Self {
        Self { key: limiter.meant(&named), named }
    }
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
        (Subject::Key(named), &Method::GET | &Method::HEAD) => {
            let meant = Meant::new(named, limiter);
            overrides::hear_of(gate, &meant.key).await;
            look(&meant, gate).await
        }
        (Subject::Key(named), &Method::DELETE) => {
            let meant = Meant::new(named, limiter);
            let done = reset(&meant, gate).await;
            noted(visitor, &Action::Reset(&meant.key), done)
        }
        (Subject::Key(_), _) => http1::wrong_method("GET, HEAD, DELETE"),
        (Subject::Overrides, &Method::GET | &Method::HEAD) => list_overrides(limiter),
        (Subject::Overrides, _) => http1::wrong_method("GET, HEAD"),
        (Subject::OverrideOf(named), &Method::PUT) => match http1::body(request, gate).await {
            Ok(body) => {
                let meant = Meant::new(named, limiter);
                let done = put(&meant, &body, gate).await;
                let action = if asks_for_ban(&body) { Action::Ban } else { Action::Override };
                noted(visitor, &action(&meant.key), done)
            }
            Err(refusal) => refusal,
        },
        (Subject::OverrideOf(named), &Method::DELETE) => {
            let meant = Meant::new(named, limiter);
            overrides::hear_of(gate, &meant.key).await;
            let is_banned = limiter.override_of(&meant.key).is_some_and(|it| it.change.is_ban);
            let done = remove(&meant, gate).await;
            let action = if is_banned { Action::Unban } else { Action::RemoveOverride };
            noted(visitor, &action(&meant.key), done)
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
    let bytes = decoded(part);
    if let Ok(text) = str::from_utf8(&bytes) {
        return text.parse();
    }
    // A key is plain text in which other bytes are escaped, so this is none; but it tells which is meant.
    let escaped = |byte: &u8| match byte.is_ascii() {
        true => char::from(*byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    let right: KeyBuf = bytes.iter().map(escaped).collect::<String>().parse()?;
    Err(KeyError::Spelling { right: right.to_string() })
}

fn no_key(error: &KeyError) -> Answer {
    let sentence = match error {
        KeyError::Name => error.to_string(),
        _ => format!("{error}; in a path, each % of a key is written %25"),
    };
    http1::problem(StatusCode::BAD_REQUEST, &sentence)
}

/// Whether a body, also one that is refused, is about a ban.
fn asks_for_ban(body: &[u8]) -> bool {
    match Change::parse(&String::from_utf8_lossy(body), "ttl_ms") {
        Ok((change, _)) => change.is_ban,
        Err(_) => {
            serde_json::from_slice::<Value>(body).is_ok_and(|asked| asked.get("ban").is_some())
        }
    }
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

async fn look(Meant { named, key }: &Meant, gate: &Gate) -> Answer {
    if throttled::is_one(key) {
        return match throttled::look(key, gate) {
            Ok(asked) => asked
                .await
                .map_or_else(no_answer, |told| http1::json(StatusCode::OK, told.to_string())),
            Err(refused) => refusal(&refused),
        };
    }
    match gate.limiter.look(key) {
        Ok(asked) => asked.await.map_or_else(no_answer, |look| {
            let mut body = Vec::with_capacity(512);
            write_look(&mut body, &look, &named.to_string());
            http1::json(StatusCode::OK, body)
        }),
        Err(refused) => refusal(&refused),
    }
}

async fn reset(Meant { named, key }: &Meant, gate: &Gate) -> Done {
    let limiter = &gate.limiter;
    let asked = match throttled::is_one(key) {
        true => throttled::reset(key, gate),
        false => limiter.reset(key),
    };
    match asked {
        Ok(asked) => {
            let Some(was_known) = asked.await else { return unchanged(no_answer()) };
            tracing::info!(key = %limiter.shown_key(key), was_known, "a key was reset");
            let body = json!({"key": named.to_string(), "was_known": was_known});
            (http1::json(StatusCode::OK, body.to_string()), Effect::of(was_known))
        }
        Err(refused) => unchanged(refusal(&refused)),
    }
}

fn unchanged(answer: Answer) -> Done {
    (answer, Effect::Nothing)
}

fn list_overrides(limiter: &Limiter) -> Answer {
    let overrides = limiter.overrides().into_iter().map(|one| {
        let mut shown: Value = serde_json::from_str(&one.to_string()).unwrap_or_default();
        shown["key"] = limiter.shown_key(&one.key).into();
        shown
    });
    let overrides: Vec<Value> = overrides.collect();
    http1::json(StatusCode::OK, json!({"overrides": overrides}).to_string())
}

async fn put(meant: &Meant, body: &[u8], gate: &Gate) -> Done {
    let (limiter, Meant { named, key }) = (&gate.limiter, meant);
    if throttled::is_one(key) {
        return unchanged(refusal(&throttled::no_override()));
    }
    let (change, millis) = match Change::parse(&String::from_utf8_lossy(body), "ttl_ms") {
        Ok(read) => read,
        Err(mistakes) => {
            return unchanged(http1::problem(StatusCode::BAD_REQUEST, &sentences(&mistakes)));
        }
    };
    if millis == Some(0) {
        let sentence = "override: ttl_ms is 0, so it would end before it began";
        return unchanged(http1::problem(StatusCode::BAD_REQUEST, sentence));
    }
    let until = millis.map(|millis| limiter.store().shared_now().plus(Micros::from_millis(millis)));
    let one = Override { key: key.clone(), change, until };
    let (told, before) = (one.to_string(), limiter.override_of(key));
    let effect = Effect::of(before.as_ref() != Some(&one));
    match overrides::put(gate, one).await {
        Ok(()) => {
            tracing::info!(key = %limiter.shown_key(key), "an override was put: {told}");
            // Should nobody tell what is left, the change was made all the same.
            let look = look(meant, gate).await;
            let shown = format!(
                r#"{{"key":{},"limits":[],"override":{told},"recent":[]}}"#,
                json!(named.to_string())
            );
            let is_told = look.status().is_success();
            (if is_told { look } else { http1::json(StatusCode::OK, shown) }, effect)
        }
        Err(NotPut::Refused(refused)) => unchanged(refusal(&refused)),
        // It may have been changed all the same.
        Err(NotPut::NotShared(why)) => (not_shared(why), Effect::of(why == NotShared::Unknown)),
    }
}

async fn remove(Meant { named, key }: &Meant, gate: &Gate) -> Done {
    match overrides::remove(gate, key).await {
        Ok(true) => {}
        Ok(false) => {
            let sentence = format!("{named} has no override");
            return unchanged(http1::problem(StatusCode::NOT_FOUND, &sentence));
        }
        Err(why) => return (not_shared(why), Effect::of(why == NotShared::Unknown)),
    }
    tracing::info!(key = %gate.limiter.shown_key(key), "an override was removed");
    let body = json!({"key": named.to_string(), "removed": true});
    (http1::json(StatusCode::OK, body.to_string()), Effect::Changed)
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
