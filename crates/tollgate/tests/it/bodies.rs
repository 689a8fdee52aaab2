//! The bodies of answers: the decision API's, and those of refusals.

use http::header::ACCEPT;
use http::{HeaderMap, HeaderValue, StatusCode};
use serde_json::{Value, json};
use tollgate::bounds::KEYS_BYTES_MAX;
use tollgate::http::problem::{self, Form};
use tollgate::http::{json, status};
use tollgate::{End, Keys, Request, Ruling, Verdict};

use crate::{Gate, parse_with};

/// Asks, and reads the answer of the decision API.
fn answered(gate: &Gate, attributes: &[(&str, &str)], lease: Option<&str>) -> Value {
    let attributes: Vec<(&str, &[u8])> =
        attributes.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
    let mut keys = Keys::default();
    let verdict = gate.limiter.ask_showing(&Request::new(&attributes), &mut keys).wait();
    written(&verdict, &keys, lease)
}

fn written(verdict: &Verdict, keys: &Keys, lease: Option<&str>) -> Value {
    let mut out = Vec::new();
    json::write(&mut out, verdict, keys, lease);
    serde_json::from_slice(&out).expect("JSON")
}

fn problem_of(verdict: &Verdict) -> Value {
    serde_json::from_slice(&refused(verdict, Form::Problem)).expect("JSON")
}

fn refused(verdict: &Verdict, form: Form) -> Vec<u8> {
    let mut out = Vec::new();
    problem::write(&mut out, verdict, form);
    out
}

/// A gate that is too full to count, and must not let anybody through uncounted.
fn full() -> (Gate, Verdict) {
    let policy = "limits: [{name: login, per: [user], rate: 1/hour, on_store_failure: deny}]";
    let gate = Gate::new(policy);
    let refused = (0..1_000_000)
        .map(|user| gate.check(&[("user", &user.to_string())]))
        .find(|verdict| !verdict.is_allowed());
    let verdict = refused.expect("a megabyte does not hold a million keys at their limit");
    (gate, verdict)
}

// The decision API.

#[test]
fn of_very_many_long_keys_no_more_is_shown_than_anybody_reads() {
    let limit = |number| format!("{{name: l{number}, per: [user], rate: 9/minute}}");
    let limits: Vec<String> = (0..50).map(limit).collect();
    let gate = Gate::new(&format!("limits: [{}]", limits.join(", ")));
    // Three bytes each where keys are shown.
    let user = vec![0; 60_000];
    let attributes: [(&str, &[u8]); 1] = [("user", &user)];
    let request = Request::new(&attributes);
    let mut shown = Keys::default();
    drop(gate.limiter.ask_showing(&request, &mut shown).wait());
    for keys in [gate.limiter.keys(&request), shown.iter().map(str::to_owned).collect()] {
        assert_eq!((keys.len(), &*keys[49]), (50, "…"));
        assert!(keys[0].starts_with("l0:%00%00") && keys[0].len() > 180_000);
        assert!(keys.iter().map(String::len).sum::<usize>() < KEYS_BYTES_MAX + 200_000);
    }
}

#[test]
fn an_answer_has_the_figures_of_every_limit() {
    let gate = Gate::new(
        "limits: [{name: login, per: [client_ip], rate: 5/minute, algorithm: sliding_log}]",
    );
    let attributes = [("client_ip", "203.0.113.7")];
    gate.admitted(4, &attributes);
    gate.advance("12s");
    assert!(gate.allows(&attributes));
    assert_eq!(
        answered(&gate, &attributes, None),
        json!({
            "allowed": false, "retry_after_ms": 48000, "delay_ms": 0,
            "limits": [{
                "name": "login", "key": "login:203.0.113.7", "allowed": false, "limit": 5,
                "remaining": 0, "retry_after_ms": 48000, "reset_after_ms": 60000,
                "next_after_ms": 48000, "algorithm": "sliding_log", "rate": "5/minute",
                "shadow": false,
            }],
        })
    );
}

#[test]
fn waits_are_whole_milliseconds_rounded_up() {
    let gate = Gate::new("limits: [{name: a, rate: 3/s, burst: 1, algorithm: token_bucket}]");
    assert!(gate.allows(&[]));
    let answer = answered(&gate, &[], None);
    assert_eq!(answer["retry_after_ms"], 334);
    assert_eq!(answer["limits"][0]["next_after_ms"], 334);
}

#[test]
fn an_allowed_request_has_no_wait_and_says_how_long_to_hold_it() {
    let gate = Gate::new("limits: [{name: a, rate: 2/s, queue: 5, algorithm: leaky_bucket}]");
    assert!(gate.allows(&[]));
    let answer = answered(&gate, &[], None);
    assert_eq!(answer["allowed"], true);
    assert_eq!(answer["retry_after_ms"], Value::Null);
    assert_eq!(answer["delay_ms"], 500);
}

#[test]
fn a_cost_that_no_wait_helps_has_no_wait() {
    let gate = Gate::new("limits: [{name: a, rate: 5/minute}]");
    let mut keys = Keys::default();
    let request = Request { cost: tollgate::Cost::new(6), ..Request::new(&[]) };
    let verdict = gate.limiter.ask_showing(&request, &mut keys).wait();
    let answer = written(&verdict, &keys, None);
    assert_eq!((&answer["allowed"], &answer["retry_after_ms"]), (&json!(false), &Value::Null));
    assert_eq!(answer["limits"][0]["retry_after_ms"], Value::Null);
}

#[test]
fn a_concurrency_limit_has_neither_rate_nor_wait_and_a_lease_is_told() {
    let gate = Gate::new("limits: [{name: slots, concurrency: 1}]");
    let allowed = answered(&gate, &[], Some("lease \"1\""));
    assert_eq!(allowed["lease"], "lease \"1\"");
    let denied = answered(&gate, &[], None);
    assert!(denied.get("lease").is_none());
    let slots = &denied["limits"][0];
    for member in ["rate", "retry_after_ms", "next_after_ms"] {
        assert_eq!(slots[member], Value::Null, "{member}");
    }
    assert_eq!(denied["retry_after_ms"], Value::Null);
}

#[test]
fn a_limit_in_shadow_is_told_to_callers_as_what_it_is() {
    let gate = Gate::new("limits: [{name: trial, rate: 1/hour, mode: shadow}]");
    assert!(gate.allows(&[]));
    let answer = answered(&gate, &[], None);
    assert_eq!((&answer["allowed"], &answer["retry_after_ms"]), (&json!(true), &Value::Null));
    let trial = &answer["limits"][0];
    assert_eq!((&trial["allowed"], &trial["shadow"]), (&json!(false), &json!(true)));
}

#[test]
fn whoever_is_refused_for_another_reason_is_told_which() {
    let policy = "limits: [{name: a, rate: 5/minute, cost: {attribute: tokens}}]\n\
                  deny: [{user: [evil]}]\nexempt: [{user: [friend]}]";
    let gate = Gate::new(policy);
    let reasons = [
        ([("user", "somebody")], StatusCode::OK, Value::Null),
        ([("user", "friend")], StatusCode::OK, Value::Null),
        ([("user", "evil")], StatusCode::FORBIDDEN, json!("blocked")),
        ([("tokens", "-1")], StatusCode::BAD_REQUEST, json!("bad_cost")),
    ];
    for (attributes, code, reason) in reasons {
        assert_eq!(status(&gate.check(&attributes)), code);
        let answer = answered(&gate, &attributes, None);
        assert_eq!(answer["allowed"], json!(code.is_success()));
        assert_eq!(answer.get("reason").unwrap_or(&Value::Null), &reason);
    }
    let tenants = "tenants: {from: 'header:x-api-key', file: t, unknown: refuse}\n\
                   limits: [{name: a, per: [tenant], rate: 5/minute}]";
    let gate = Gate::under(parse_with(tenants, "keys: {k: {tenant: acme}}"));
    assert_eq!(status(&gate.check(&[])), StatusCode::UNAUTHORIZED);
    assert_eq!(
        answered(&gate, &[], None),
        json!({"allowed": false, "reason": "unknown_key", "retry_after_ms": null, "delay_ms": 0,
               "limits": []})
    );
}

#[test]
fn what_could_not_be_counted_has_no_figures() {
    let (_gate, verdict) = full();
    let answer = written(&verdict, &Keys::default(), None);
    assert_eq!(answer["reason"], "uncounted");
    let login = &answer["limits"][0];
    for member in ["limit", "remaining", "retry_after_ms", "reset_after_ms", "next_after_ms"] {
        assert_eq!(login[member], Value::Null, "{member}");
    }
}

#[test]
fn keys_are_shown_in_the_order_of_the_answers_and_those_of_the_last_request_only() {
    let gate = Gate::new(
        "limits: [{name: one, per: [user], rate: 5/minute}, {name: two, when: {path: /a}, \
         per: [user, path], rate: 5/minute}]",
    );
    let mut keys = Keys::default();
    let long: [(&str, &[u8]); 2] = [("user", b"a:b"), ("path", b"/a")];
    gate.limiter.ask_showing(&Request::new(&long), &mut keys).wait();
    assert_eq!(keys.iter().collect::<Vec<_>>(), ["one:a%3Ab", "two:a%3Ab:%2Fa"]);
    assert_eq!(keys.iter().collect::<Vec<_>>(), gate.limiter.keys(&Request::new(&long)));
    let verdict = gate.limiter.ask_showing(&Request::new(&long[..1]), &mut keys).wait();
    assert_eq!(verdict.answers().len(), 1);
    assert_eq!((keys.get(0), keys.get(1)), (Some("one:a%3Ab"), None));
    gate.limiter.ask_showing(&Request::new(&[]), &mut keys).wait();
    assert_eq!(keys.get(0), None);
}

// Requests whose end is not told.

#[test]
fn a_door_that_never_learns_of_the_end_takes_no_slots() {
    let gate = Gate::new("limits: [{name: slots, concurrency: 1}, {name: a, rate: 9/minute}]");
    let request = Request { end: End::Unknown, ..Request::new(&[]) };
    for left in (0..9).rev() {
        let verdict = gate.limiter.check(&request);
        assert_eq!((verdict.is_allowed(), crate::left(&verdict)), (true, vec![left]));
    }
    let explained = gate.limiter.with_policy(|policy| format!("{:?}", policy.explain(&request)));
    assert!(explained.contains("never learns when a request ends"), "{explained}");
    let told = gate.limiter.check(&Request { cost: tollgate::Cost::PEEK, ..Request::new(&[]) });
    assert_eq!(crate::left(&told), [1, 0], "a door that is told of the end finds the slot free");
}

// A policy that stays.

#[test]
fn a_pinned_policy_is_asked_and_enforced_as_one_while_another_is_put_in_force() {
    let gate = Gate::new("limits: [{name: old, per: [user], rate: 1/minute}]");
    let pinned = gate.limiter.pin();
    gate.limiter.replace_policy(crate::parse("limits: [{name: new, rate: 9/minute}]")).unwrap();
    assert_eq!(pinned.policy().attributes().collect::<Vec<_>>(), ["user"]);
    let attributes: [(&str, &[u8]); 1] = [("user", b"1")];
    let mut keys = Keys::default();
    let request = Request::new(&attributes);
    assert!(pinned.ask(&request).wait().is_allowed());
    assert!(!pinned.ask_showing(&request, &mut keys).wait().is_allowed());
    assert_eq!(keys.get(0), Some("old:1"));
    assert_eq!(crate::left(&gate.check(&[("user", "1")])), [8]);
}

// Refusals.

#[test]
fn a_denial_is_a_problem_with_the_limits_that_were_violated() {
    let gate = Gate::new(
        "limits: [{name: login, rate: 2/minute, algorithm: fixed_window}, \
         {name: daily, rate: 100/day, algorithm: fixed_window}, \
         {name: trial, rate: 1/hour, mode: shadow}]",
    );
    gate.admitted(2, &[]);
    gate.advance("47500ms");
    let denied = gate.check(&[]);
    assert_eq!(
        problem_of(&denied),
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Quota exceeded",
            "status": 429,
            "detail": "limit \"login\" allows 2/minute; try again in 13 seconds",
            "violated-policies": ["login"],
            "code": "denied",
            "message": "limit \"login\" allows 2/minute; try again in 13 seconds",
            "retry_after": 13,
            "limits": [
                {"name": "login", "exceeded": true, "limit": 2, "remaining": 0,
                 "retry_after_ms": 12500, "reset_after_ms": 12500, "next_after_ms": 12500,
                 "rate": "2/minute"},
                {"name": "daily", "exceeded": false, "limit": 100, "remaining": 98,
                 "retry_after_ms": null, "reset_after_ms": 86_352_500, "next_after_ms": 86_352_500,
                 "rate": "100/day"},
            ],
        })
    );
}

#[test]
fn a_denial_without_a_wait_says_why() {
    let gate = Gate::new("limits: [{name: slots, concurrency: 2}, {name: a, rate: 5/minute}]");
    let costly = problem_of(&gate.check_costing(6, &[]));
    assert_eq!(costly["retry_after"], Value::Null);
    assert_eq!(costly["violated-policies"], json!(["slots", "a"]));
    let _held = [gate.check(&[]), gate.check(&[])];
    let full = problem_of(&gate.check(&[]));
    assert_eq!(full["detail"], "limit \"slots\" allows 2 at a time");
    assert_eq!(full["retry_after"], Value::Null);
    let gate = Gate::new("limits: [{name: a, rate: 5/minute}]");
    let costly = problem_of(&gate.check_costing(6, &[]));
    assert_eq!(costly["detail"], "the request costs more than limit \"a\" ever allows");
}

#[test]
fn we_being_unwell_is_never_told_as_the_client_sending_too_much() {
    let (_gate, verdict) = full();
    assert_eq!(verdict.ruling(), Ruling::Uncounted);
    assert_eq!(status(&verdict), StatusCode::SERVICE_UNAVAILABLE);
    let problem = problem_of(&verdict);
    let kind = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
    assert_eq!((&problem["type"], &problem["status"]), (&json!(kind), &json!(503)));
    assert_eq!(
        (&problem["code"], &problem["violated-policies"]),
        (&json!("uncounted"), &json!(["login"]))
    );
}

#[test]
fn who_is_refused_without_a_limit_is_told_by_the_status() {
    let gate = Gate::new("limits: []\ndeny: [{user: [evil]}]");
    let problem = problem_of(&gate.check(&[("user", "evil")]));
    assert_eq!(problem["type"], "about:blank");
    assert_eq!((&problem["title"], &problem["status"]), (&json!("Forbidden"), &json!(403)));
    assert_eq!((&problem["code"], &problem["limits"]), (&json!("blocked"), &json!([])));
}

#[test]
fn plain_json_is_the_same_document_and_text_is_its_message() {
    let gate = Gate::new("limits: [{name: a, rate: 1/minute, algorithm: fixed_window}]");
    assert!(gate.allows(&[]));
    let denied = gate.check(&[]);
    assert_eq!(refused(&denied, Form::Json), refused(&denied, Form::Problem));
    let text = b"limit \"a\" allows 1/minute; try again in 60 seconds\n";
    assert_eq!(refused(&denied, Form::Text), text);
}

#[test]
fn the_form_of_a_refusal_is_what_the_client_likes_best() {
    let preferred = |lines: &[&str]| {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(ACCEPT, HeaderValue::from_bytes(line.as_bytes()).unwrap());
        }
        Form::preferred(&headers)
    };
    let cases: [(&[&str], Form); 24] = [
        (&[], Form::Problem),
        (&[""], Form::Problem),
        (&["*/*"], Form::Problem),
        (&["application/*"], Form::Problem),
        (&["application/problem+json"], Form::Problem),
        (&["application/json"], Form::Json),
        (&["Application/JSON; charset=utf-8"], Form::Json),
        (&["text/plain"], Form::Text),
        (&["text/*"], Form::Text),
        (&["text/html"], Form::Problem),
        (&["text/html, text/plain;q=0.1"], Form::Text),
        (&["text/html", "application/json"], Form::Json),
        (&["text/plain, application/json"], Form::Json),
        (&["text/plain;q=0.9, application/json;q=0.8"], Form::Text),
        (&["text/plain;q=0.8, application/json;Q=0.80"], Form::Json),
        (&["application/json;q=0, */*"], Form::Problem),
        (&["application/problem+json;q=0, application/*"], Form::Json),
        (&["application/*;q=0, */*;q=0.001"], Form::Text),
        (&["*/*;q=0"], Form::Problem),
        (&["text/plain;q=2"], Form::Problem),
        (&["text/plain;q=0.1234"], Form::Problem),
        (&["text/plain;q=nan, application/json"], Form::Problem),
        (&["*/plain"], Form::Problem),
        (&["text/plain, \u{fc}"], Form::Problem),
    ];
    for (lines, form) in cases {
        assert_eq!(preferred(lines), form, "{lines:?}");
    }
    assert_eq!(Form::Problem.content_type(), "application/problem+json");
    assert_eq!(Form::Json.content_type(), "application/json");
    assert_eq!(Form::Text.content_type(), "text/plain; charset=utf-8");
}
