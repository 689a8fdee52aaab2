//! The answer of the decision API.
//!
//! ```json
//! {"allowed": false, "retry_after_ms": 12000, "delay_ms": 0,
//!  "limits": [{"name": "login", "key": "login:203.0.113.7", "allowed": false, "limit": 5,
//!              "remaining": 0, "retry_after_ms": 12000, "reset_after_ms": 48000,
//!              "next_after_ms": 12000, "algorithm": "sliding_log", "rate": "5/minute",
//!              "shadow": false}]}
//! ```
//!
//! Waits are exact, in milliseconds rounded up, and not spread as those of the header fields are: who
//! asks this way decides for others. A wait is `null` where there is none to tell: `retry_after_ms`
//! of what is allowed, of a cost above the limit, of a concurrency limit; `next_after_ms` of a
//! concurrency limit; all three of a key that is banned without an end. `rate` is `null` of a concurrency
//! limit. A limit that could not count has `null` for every figure.
//!
//! Every limit that applied is listed, also those in shadow: of them `allowed` is what they would
//! have said.
//!
//! A request that was refused for another reason than a limit has the member `reason`: `uncounted`
//! (a limit that must not be passed uncounted could not count: try again later), `blocked` (it is on
//! the deny list), `unknown_key` (it has no API key that is known) or `bad_cost` (what it says it
//! costs is not a cost). A request that holds concurrency slots has the member `lease`, one whose cost
//! is still to be settled the member `reservation`.

use tollgate_policy::SyncMode;

use super::text::{json_string, number};
use crate::explain::{Explained, ExplainedLimit, Stands};
use crate::{Answer, Keys, Look, Micros, Override, Ruling, Verdict};

/// Writes the answer to the end of `out`. `keys` are those that were shown with the verdict, `lease`
/// is the name under which the slots of the request can be given back.
pub fn write(out: &mut Vec<u8>, verdict: &Verdict, keys: &Keys, lease: Option<&str>) {
    write_named(out, verdict, keys, &[("lease", lease)]);
}

/// Writes the answer to a request that is to be settled, by the name `reservation`.
pub fn write_reserved(
    out: &mut Vec<u8>,
    verdict: &Verdict,
    keys: &Keys,
    lease: Option<&str>,
    reservation: &str,
) {
    write_named(out, verdict, keys, &[("lease", lease), ("reservation", Some(reservation))]);
}

/// Writes what is left after a settlement: `limits` as above, as they would answer to a check that
/// only looks.
pub fn write_settled(out: &mut Vec<u8>, verdict: &Verdict, keys: &Keys) {
    out.extend_from_slice(b"{\"settled\":true");
    limits(out, verdict, |number| keys.get(number).unwrap_or_default());
    out.push(b'}');
}

fn write_named(out: &mut Vec<u8>, verdict: &Verdict, keys: &Keys, names: &[(&str, Option<&str>)]) {
    out.extend_from_slice(b"{\"allowed\":");
    boolean(out, verdict.is_allowed());
    if let Some(reason) = reason(verdict.ruling()) {
        out.extend_from_slice(b",\"reason\":\"");
        out.extend_from_slice(reason.as_bytes());
        out.push(b'"');
    }
    out.extend_from_slice(b",\"retry_after_ms\":");
    millis(out, verdict.retry_after());
    out.extend_from_slice(b",\"delay_ms\":");
    number(out, verdict.delay().as_millis_up());
    limits(out, verdict, |number| keys.get(number).unwrap_or_default());
    for (member, name) in names {
        if let Some(name) = name {
            out.push(b',');
            json_string(out, member);
            out.push(b':');
            json_string(out, name);
        }
    }
    out.push(b'}');
}

/// Writes what is known of a key to the end of `out`: `limits` as above, one for each rate that the key
/// may be under, `override`, what it is allowed instead of what the policy says, or `null`, and `recent`,
/// what it was told last: `[{"at_ms": 1760000000000, "allowed": true, "remaining": 4}]`.
pub fn write_look(out: &mut Vec<u8>, look: &Look, key: &str) {
    out.extend_from_slice(b"{\"key\":");
    json_string(out, key);
    limits(out, look.verdict(), |_| key);
    write_override(out, look.changed.as_ref());
    out.extend_from_slice(b",\"recent\":[");
    for (place, one) in look.recent.iter().enumerate() {
        if place > 0 {
            out.push(b',');
        }
        out.extend_from_slice(b"{\"at_ms\":");
        number(out, one.at.as_micros() / 1_000);
        out.extend_from_slice(b",\"allowed\":");
        boolean(out, one.is_allowed);
        out.extend_from_slice(b",\"remaining\":");
        number(out, one.remaining.into());
        out.push(b'}');
    }
    out.extend_from_slice(b"]}");
}

/// Writes everything there is to say about a request to the end of `out`:
///
/// ```json
/// {"allowed": true, "ruling": "allowed", "retry_after_ms": null, "delay_ms": 0, "tenant": "acme",
///  "tier": "pro", "limits": [{"name": "api", "applies": true, "key": "api:acme", "note": null},
///                            {"name": "login", "applies": false, "why": "…"}]}
/// ```
///
/// A limit that applies and was asked has the figures of an answer too, one whose key is allowed something
/// else than the policy says has `override`, one that nodes share in another way than usual has `sync`, and
/// one that is split has `shard`.
pub fn write_explained(out: &mut Vec<u8>, explained: &Explained) {
    let verdict = &explained.verdict;
    out.extend_from_slice(b"{\"allowed\":");
    boolean(out, verdict.is_allowed());
    out.extend_from_slice(b",\"ruling\":");
    json_string(out, verdict.ruling().name());
    out.extend_from_slice(b",\"retry_after_ms\":");
    millis(out, verdict.retry_after());
    out.extend_from_slice(b",\"delay_ms\":");
    number(out, verdict.delay().as_millis_up());
    for (member, name) in [("tenant", &explained.tenant), ("tier", &explained.tier)] {
        text_member(out, member, name.as_deref());
    }
    out.extend_from_slice(b",\"limits\":[");
    for (number, limit) in explained.limits.iter().enumerate() {
        if number > 0 {
            out.push(b',');
        }
        write_explained_limit(out, explained, limit);
    }
    out.extend_from_slice(b"]}");
}

fn write_explained_limit(out: &mut Vec<u8>, explained: &Explained, limit: &ExplainedLimit) {
    out.extend_from_slice(b"{\"name\":");
    json_string(out, &limit.name);
    out.extend_from_slice(b",\"applies\":");
    let applied = match &limit.standing {
        Stands::Applies(applied) => applied,
        Stands::DoesNotApply(why) => {
            out.extend_from_slice(b"false");
            text_member(out, "why", Some(why));
            return out.push(b'}');
        }
    };
    out.extend_from_slice(b"true");
    text_member(out, "key", applied.key.as_deref());
    text_member(out, "note", applied.note);
    if applied.changed.is_some() {
        write_override(out, applied.changed.as_ref());
    }
    if applied.sync == SyncMode::Leased {
        text_member(out, "sync", Some(applied.sync.name()));
    }
    if let Some(shard) = applied.shard {
        out.extend_from_slice(b",\"shard\":");
        number(out, shard.into());
    }
    if let Some(answer) = explained.answer(applied) {
        out.extend_from_slice(b",\"allowed\":");
        boolean(out, answer.is_allowed());
        figures(out, &answer);
        out.extend_from_slice(b",\"delay_ms\":");
        millis(out, answer.decision().map(|decision| decision.delay()));
        terms(out, &answer);
    }
    out.push(b'}');
}

/// What a key is allowed instead of what the policy says, or `null`, after a comma.
fn write_override(out: &mut Vec<u8>, changed: Option<&Override>) {
    out.extend_from_slice(b",\"override\":");
    let changed = changed.map_or("null".to_owned(), ToString::to_string);
    out.extend_from_slice(changed.as_bytes());
}

/// A text or `null`, after a comma.
fn text_member(out: &mut Vec<u8>, member: &str, text: Option<&str>) {
    out.push(b',');
    json_string(out, member);
    out.push(b':');
    match text {
        Some(text) => json_string(out, text),
        None => out.extend_from_slice(b"null"),
    }
}

/// What every limit said, after a comma.
fn limits<'k>(out: &mut Vec<u8>, verdict: &Verdict, key: impl Fn(usize) -> &'k str) {
    out.extend_from_slice(b",\"limits\":[");
    for (number, answer) in verdict.answers().enumerate() {
        if number > 0 {
            out.push(b',');
        }
        write_answer(out, &answer, key(number));
    }
    out.push(b']');
}

fn write_answer(out: &mut Vec<u8>, answer: &Answer<'_>, key: &str) {
    out.extend_from_slice(b"{\"name\":");
    json_string(out, answer.rule().name());
    out.extend_from_slice(b",\"key\":");
    json_string(out, key);
    out.extend_from_slice(b",\"allowed\":");
    boolean(out, answer.is_allowed());
    figures(out, answer);
    terms(out, answer);
    out.push(b'}');
}

/// How a limit counts, how much, and whether that is enforced, each after a comma.
fn terms(out: &mut Vec<u8>, answer: &Answer<'_>) {
    out.extend_from_slice(b",\"algorithm\":\"");
    out.extend_from_slice(answer.rule().algorithm().name().as_bytes());
    out.push(b'"');
    rate(out, answer);
    out.extend_from_slice(b",\"shadow\":");
    boolean(out, !answer.is_enforced());
}

/// The figures of one limit, each after a comma.
pub(super) fn figures(out: &mut Vec<u8>, answer: &Answer<'_>) {
    let decision = answer.decision();
    out.extend_from_slice(b",\"limit\":");
    optional(out, decision.map(|decision| u64::from(decision.limit)));
    out.extend_from_slice(b",\"remaining\":");
    optional(out, decision.map(|decision| u64::from(decision.remaining)));
    out.extend_from_slice(b",\"retry_after_ms\":");
    millis(out, decision.and_then(|decision| decision.retry_after()));
    out.extend_from_slice(b",\"reset_after_ms\":");
    millis(out, decision.and_then(|decision| Answer::reset_of(&decision)));
    out.extend_from_slice(b",\"next_after_ms\":");
    millis(out, decision.and_then(|decision| decision.next_after));
}

/// The rate as the policy writes it, after a comma.
pub(super) fn rate(out: &mut Vec<u8>, answer: &Answer<'_>) {
    out.extend_from_slice(b",\"rate\":");
    match answer.spelled().rate(*answer) {
        Some(rate) => json_string(out, rate),
        None => out.extend_from_slice(b"null"),
    }
}

/// Why a request was refused, if it was not a limit that denied it.
const fn reason(ruling: Ruling) -> Option<&'static str> {
    match ruling {
        Ruling::Allowed | Ruling::Exempt | Ruling::Denied => None,
        Ruling::Uncounted | Ruling::Blocked | Ruling::UnknownKey | Ruling::BadCost => {
            Some(ruling.name())
        }
    }
}

fn millis(out: &mut Vec<u8>, wait: Option<Micros>) {
    optional(out, wait.map(Micros::as_millis_up));
}

pub(super) fn optional(out: &mut Vec<u8>, value: Option<u64>) {
    match value {
        Some(value) => number(out, value),
        None => out.extend_from_slice(b"null"),
    }
}

pub(super) fn boolean(out: &mut Vec<u8>, value: bool) {
    out.extend_from_slice(if value { b"true" } else { b"false" });
}
