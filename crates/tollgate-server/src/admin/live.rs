//! Everything that a view of a running server shows, made to be asked for once a second.
//!
//! What was counted is told as of the last whole second: it is looked at once a second, however many
//! ask.

use std::collections::HashSet;

use http::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};
use tollgate::metrics::{LimitCount, OTHER_LIMITS};
use tollgate::observe::Storm;
use tollgate::{Limiter, Mode, Timestamp};

use super::query::{self, Query};
use crate::connection::Visitor;
use crate::gate::Gate;
use crate::history::{Second, Track};
use crate::http1::{self, Answer};

#[derive(Serialize)]
struct Live<'a> {
    now_ms: u64,
    started_ms: u64,
    version: &'static str,
    second: u64,
    seconds: Vec<Second>,
    limits: Vec<Limit<'a>>,
    storm: Value,
    advice: Vec<Value>,
    memory: Value,
    redis: Value,
    doors: Vec<Value>,
    held: Value,
    policy: Value,
}

#[derive(Serialize)]
struct Limit<'a> {
    limit: &'a str,
    tier: &'a str,
    mode: &'static str,
    allowed: u64,
    denied: u64,
    shadow_denied: u64,
    store_failed: u64,
    used: Option<f64>,
    spark: Vec<[u64; 2]>,
}

/// Answers to `?after=N`: with the seconds that the asker does not know.
pub(super) fn answer(visitor: &Visitor, query: &str) -> Answer {
    let after = Query::read(query, &["after"]).and_then(|query| match query.get("after") {
        None => Ok(0),
        Some(after) => after.parse().map_err(|_| query::not("after", after, "a whole number")),
    });
    match after {
        Ok(after) => http1::json(StatusCode::OK, live(visitor, after)),
        Err(sentence) => http1::problem(StatusCode::BAD_REQUEST, &sentence),
    }
}

fn live(visitor: &Visitor, after: u64) -> Vec<u8> {
    let gate = &*visitor.gate;
    let limiter = &gate.limiter;
    let in_shadow: HashSet<String> = limiter.with_policy(|policy| {
        let shadows = policy.rules().iter().filter(|rule| rule.mode() == Mode::Shadow);
        shadows.map(|rule| rule.name().to_string()).collect()
    });
    let (second, seconds, totals, tracks) = {
        let history = gate.history.lock();
        let tracks: Vec<_> = history.limits().iter().map(told).collect();
        (history.second(), history.seconds_after(after), history.totals(), tracks)
    };
    let tracks = tracks.into_iter().chain(std::iter::repeat_with(|| (None, Vec::new())));
    let limits = totals.limits.iter().zip(tracks).map(|(count, (used, spark))| Limit {
        limit: &count.limit,
        tier: &count.tier,
        mode: mode(count, &in_shadow),
        allowed: count.allowed,
        denied: count.denied,
        shadow_denied: count.shadow_denied,
        store_failed: count.store_failed,
        used,
        spark,
    });
    let held = gate.layer.held();
    let doors = gate
        .open
        .get()
        .into_iter()
        .flatten()
        .map(|door| json!({"door": door.name(), "open": gate.doors.of(*door).open.count()}));
    let live = Live {
        now_ms: millis(limiter.now()),
        started_ms: millis(gate.started_at),
        version: env!("CARGO_PKG_VERSION"),
        second,
        seconds,
        limits: limits.collect(),
        storm: storm(limiter),
        advice: advice(gate),
        memory: memory(gate),
        redis: super::store(visitor),
        doors: doors.collect(),
        held: json!({"now": held.now, "shed": held.shed}),
        policy: policy(gate),
    };
    serde_json::to_vec(&live).expect("it has only names and numbers")
}

/// What is in use of a limit, and what it said of late.
fn told(track: &Track) -> (Option<f64>, Vec<[u64; 2]>) {
    let used = track.used().map(|used| (used * 1e3).round() / 1e3);
    (used, track.steps.iter().copied().collect())
}

/// What is done about what a limit says. Limits that are counted together may each have their own.
fn mode(count: &LimitCount, in_shadow: &HashSet<String>) -> &'static str {
    match &*count.limit {
        OTHER_LIMITS => "mixed",
        name if name.starts_with("envoy:") => "mixed",
        name if in_shadow.contains(name) => "shadow",
        _ => "enforce",
    }
}

fn storm(limiter: &Limiter) -> Value {
    let Storm { is_storm, denied, early, keys } = limiter.storm();
    json!({"is_storm": is_storm, "denied": denied, "early": early, "keys": keys})
}

fn advice(gate: &Gate) -> Vec<Value> {
    let told = gate.history.advice(&gate.limiter);
    told.iter().map(|it| json!({"kind": it.kind(), "sentence": it.to_string()})).collect()
}

fn memory(gate: &Gate) -> Value {
    let Some(memory) = gate.memory() else { return Value::Null };
    json!({
        "keys": memory.keys(),
        "bytes": memory.bytes(),
        "max_bytes": memory.max_bytes(),
        "evictions": memory.evicted(),
    })
}

fn policy(gate: &Gate) -> Value {
    let mut told = super::loads(gate);
    let warnings = |policy: &tollgate::Policy| {
        policy.warnings().iter().map(|warning| Value::from(warning.to_string())).collect()
    };
    told["warnings"] = Value::Array(gate.limiter.with_policy(warnings));
    told
}

/// Milliseconds since 1970.
pub(super) fn millis(at: Timestamp) -> u64 {
    at.as_micros() / 1_000
}
