//! What an operator asks and changes while requests are decided.

use serde_json::{Value, json};
use tollgate::bounds::KEY_OVERRIDES_MAX;
use tollgate::explain::{Explained, Stands};
use tollgate::http::json;
use tollgate::{Change, KeyBuf, KeyRefused, Keys, Micros, Override, Request, Ruling, Timestamp};

use crate::{Gate, MIDNIGHT, parse, time};

const POLICY: &str = "
limits:
  - { name: api, per: [user], rate: 60/minute, algorithm: token_bucket, burst: 10 }
  - { name: daily, per: [user], rate: 1000/day, algorithm: fixed_window }
";

const ANNA: [(&str, &str); 1] = [("user", "anna")];

fn key(text: &str) -> KeyBuf {
    text.parse().expect("a key")
}

fn look(gate: &Gate, text: &str) -> Value {
    let look = gate.limiter.look(&key(text)).expect("a key of the policy").wait();
    let look = look.expect("memory answers");
    let mut out = Vec::new();
    json::write_look(&mut out, &look, text);
    serde_json::from_slice(&out).expect("JSON")
}

/// What is left of each limit that a key may be under.
fn left(gate: &Gate, text: &str) -> Vec<u64> {
    let look = look(gate, text);
    let limits = look["limits"].as_array().expect("a list");
    limits.iter().map(|limit| limit["remaining"].as_u64().expect("a number")).collect()
}

fn change(text: &str) -> Change {
    Change::parse(text, "ttl_ms").unwrap_or_else(|mistakes| panic!("{mistakes}")).0
}

fn put(gate: &Gate, text: &str, changed: &str, until: Option<Timestamp>) -> Result<(), KeyRefused> {
    gate.limiter.put_override(Override { key: key(text), change: change(changed), until })
}

mod keys {
    use super::*;

    #[test]
    fn a_look_tells_what_a_check_would_and_changes_nothing() {
        let gate = Gate::new(POLICY);
        assert_eq!(gate.admitted(3, &ANNA), 3);
        for _ in 0..3 {
            let mut told = look(&gate, "api:anna");
            // Of requests that come at one moment some are remembered.
            assert_eq!(told["recent"][0]["allowed"].take(), true);
            told["recent"].take();
            assert_eq!(
                told,
                json!({
                    "key": "api:anna",
                    "limits": [{
                        "name": "api", "key": "api:anna", "allowed": true, "limit": 10, "remaining": 7,
                        "retry_after_ms": null, "reset_after_ms": 3_000, "next_after_ms": 1_000,
                        "algorithm": "token_bucket", "rate": "60/minute", "shadow": false,
                    }],
                    "override": null,
                    "recent": null,
                })
            );
        }
        assert_eq!(left(&gate, "daily:anna"), [997]);
        assert_eq!(left(&gate, "api:nobody"), [10], "a key never seen is whole");
    }

    #[test]
    fn a_key_whose_limit_goes_by_tier_is_told_under_each() {
        let gate = Gate::new(
            "limits: [{name: api, per: [user], rate: {free: 5/minute, default: 50/minute}}]",
        );
        let request = [("user", "anna"), ("tier", "pro")];
        assert_eq!(gate.admitted(4, &request), 4);
        assert_eq!(left(&gate, "api:anna"), [1, 46]);
        assert_eq!(gate.left(&request), [46], "a look under another quota changes nothing");
    }

    #[test]
    fn a_reset_key_begins_anew_and_no_other_does() {
        let gate = Gate::new(POLICY);
        assert_eq!(gate.admitted(20, &ANNA), 10);
        assert!(gate.limiter.reset(&key("api:anna")).unwrap().wait() == Some(true));
        assert!(gate.limiter.reset(&key("api:nobody")).unwrap().wait() == Some(false));
        assert_eq!(gate.left(&ANNA), [10, 990]);
    }

    #[test]
    fn the_key_of_a_secret_value_is_found_by_what_is_shown_of_it() {
        let gate = Gate::new("limits: [{name: key, per: [header:x-api-key], rate: 5/minute}]");
        let request = [("header:x-api-key", "s3cret")];
        assert_eq!(gate.admitted(2, &request), 2);
        let attributes = [("header:x-api-key", &b"s3cret"[..])];
        let shown = gate.limiter.keys(&tollgate::Request::new(&attributes)).remove(0);
        assert!(!shown.contains("s3cret"), "{shown}");
        assert_eq!(left(&gate, &shown), [3]);
        assert!(gate.limiter.reset(&key(&shown)).unwrap().wait() == Some(true));
        assert_eq!(gate.left(&request), [5]);
    }

    #[test]
    fn a_key_that_no_request_has_is_refused() {
        let gate = Gate::new(POLICY);
        for text in ["nothing:anna", "api", "api:anna:b", "api:%s0"] {
            let unknown = |refused| matches!(refused, KeyRefused::Unknown { .. });
            assert!(gate.limiter.look(&key(text)).is_err_and(unknown), "{text}");
            assert!(gate.limiter.reset(&key(text)).is_err_and(unknown), "{text}");
            assert!(put(&gate, text, "{rate: 1/day}", None).is_err_and(unknown), "{text}");
        }
    }
}

mod overrides {
    use super::*;

    #[test]
    fn an_override_changes_one_key_and_keeps_what_was_consumed() {
        let gate = Gate::new(POLICY);
        assert_eq!(gate.admitted(20, &ANNA), 10);
        put(&gate, "api:anna", "{burst: 15}", None).unwrap();
        assert_eq!(gate.left(&ANNA), [5, 990]);
        assert_eq!(gate.left(&[("user", "ben")]), [10, 1000]);
        let verdict = gate.check(&ANNA);
        let answer = verdict.answers().next().unwrap();
        assert_eq!(answer.limit().capacity(), 15);
        assert_eq!(answer.rate().unwrap().to_string(), "60/minute");
        let look = look(&gate, "api:anna");
        assert_eq!(look["override"], json!({"burst": 15}));
        assert_eq!(
            (&look["limits"][0]["limit"], &look["limits"][0]["remaining"]),
            (&json!(15), &json!(4))
        );
        assert!(gate.limiter.remove_override(&key("api:anna")));
        assert!(!gate.limiter.remove_override(&key("api:anna")));
        assert_eq!(gate.left(&ANNA), [0, 989]);
    }

    #[test]
    fn a_rate_of_an_override_is_told_as_it_is_written() {
        let gate = Gate::new(POLICY);
        put(&gate, "daily:anna", "{rate: 7/90s}", None).unwrap();
        let verdict = gate.check(&ANNA);
        let rates: Vec<String> =
            verdict.answers().filter_map(|answer| Some(answer.rate()?.to_string())).collect();
        assert_eq!(rates, ["60/minute", "7/90s"]);
        assert_eq!(gate.admitted(10, &ANNA), 6);
    }

    #[test]
    fn an_override_ends_at_its_time() {
        let gate = Gate::new(POLICY);
        put(&gate, "api:anna", "{burst: 20}", Some(MIDNIGHT.plus(time("1h")))).unwrap();
        gate.advance("59m");
        assert_eq!(gate.left(&ANNA)[0], 20);
        gate.advance("1m");
        assert_eq!(gate.left(&ANNA)[0], 10);
        assert_eq!(look(&gate, "api:anna")["override"], Value::Null);
        assert_eq!(gate.limiter.overrides(), []);
        assert!(!gate.limiter.remove_override(&key("api:anna")));
    }

    #[test]
    fn an_override_outlives_a_reload_and_waits_for_a_limit_that_is_gone() {
        let gate = Gate::new(POLICY);
        put(&gate, "api:anna", "{burst: 20}", None).unwrap();
        gate.limiter.replace_policy(parse(&POLICY.replace("60/minute", "61/minute"))).unwrap();
        assert_eq!(gate.left(&ANNA)[0], 20);
        gate.limiter
            .replace_policy(parse("limits: [{name: other, per: [user], rate: 1/day}]"))
            .unwrap();
        assert_eq!(gate.left(&ANNA), [1]);
        assert_eq!(gate.limiter.overrides().len(), 1);
        gate.limiter.replace_policy(parse(POLICY)).unwrap();
        assert_eq!(gate.left(&ANNA)[0], 20);
    }

    #[test]
    fn a_banned_key_is_denied_until_its_time_is_over_and_charged_nothing() {
        let gate = Gate::new(POLICY);
        assert_eq!(gate.admitted(2, &ANNA), 2);
        put(&gate, "api:anna", "{ban: true}", Some(MIDNIGHT.plus(time("1h")))).unwrap();
        gate.advance("59m");
        let verdict = gate.check(&ANNA);
        assert!(!verdict.is_allowed());
        assert_eq!(verdict.retry_after(), Some(time("1m")));
        let told: Vec<_> = verdict.answers().map(|it| (it.is_allowed(), it.decision())).collect();
        let [(is_allowed, Some(api))] = told[..] else {
            panic!("who bans answers alone: {told:?}")
        };
        assert_eq!((is_allowed, api.limit, api.remaining), (false, 10, 0));
        assert_eq!(gate.left(&[("user", "ben")]), [10, 1000]);
        let shown = look(&gate, "api:anna");
        assert_eq!(shown["limits"][0]["retry_after_ms"], 60_000);
        assert_eq!(shown["override"]["ban"], true);
        assert_eq!(gate.limiter.metrics().limits[0].denied, 1);
        let peeked = gate.limiter.peek(&Request::new(&[("user", b"anna")])).wait();
        assert_eq!((peeked.ruling(), peeked.retry_after()), (Ruling::Denied, Some(time("1m"))));
        gate.advance("1m");
        assert_eq!(gate.left(&ANNA), [10, 998]);
        assert!(gate.check(&ANNA).is_allowed());
    }

    #[test]
    fn a_ban_without_an_end_tells_no_wait_and_is_taken_back() {
        let gate = Gate::new(POLICY);
        put(&gate, "api:anna", "{ban: true}", None).unwrap();
        let verdict = gate.check(&ANNA);
        assert_eq!((verdict.ruling(), verdict.retry_after()), (Ruling::Denied, None));
        let mut keys = Keys::default();
        gate.limiter.ask_showing(&Request::new(&[("user", b"anna")]), &mut keys).wait();
        assert_eq!(keys.iter().collect::<Vec<_>>(), ["api:anna"], "one for each answer");
        assert_eq!(gate.limiter.overrides()[0].to_string(), "{\"ban\":true}");
        assert!(gate.limiter.remove_override(&key("api:anna")));
        assert!(gate.check(&ANNA).is_allowed());
    }

    #[test]
    fn a_banned_key_is_whole_when_both_the_ban_and_its_limit_say_so_and_never_without_an_end() {
        let gate = Gate::new(POLICY);
        assert_eq!(gate.admitted(10, &ANNA), 10);
        let reset = || look(&gate, "api:anna")["limits"][0]["reset_after_ms"].clone();
        assert_eq!(reset(), 10_000);
        put(&gate, "api:anna", "{ban: true}", Some(MIDNIGHT.plus(time("1h")))).unwrap();
        assert_eq!(reset(), 3_600_000, "the ban is longer");
        put(&gate, "api:anna", "{ban: true}", Some(MIDNIGHT.plus(time("4s")))).unwrap();
        assert_eq!(reset(), 10_000, "what was consumed takes longer");
        put(&gate, "api:anna", "{ban: true}", None).unwrap();
        assert_eq!(reset(), Value::Null);
        let mut keys = Keys::default();
        let verdict =
            gate.limiter.ask_showing(&Request::new(&[("user", b"anna")]), &mut keys).wait();
        let mut told = Vec::new();
        json::write(&mut told, &verdict, &keys, None);
        let told: Value = serde_json::from_slice(&told).unwrap();
        assert_eq!(told["limits"][0]["reset_after_ms"], Value::Null, "nor is it in an answer");
    }

    fn explained(gate: &Gate, attributes: &[(&str, &[u8])]) -> Value {
        let request = Request::new(attributes);
        let verdict = gate.limiter.peek(&request).wait();
        let mut told = Vec::new();
        json::write_explained(&mut told, &Explained::new(&gate.limiter, &request, verdict));
        serde_json::from_slice(&told).expect("JSON")
    }

    #[test]
    fn a_request_is_explained_by_what_its_keys_are_allowed() {
        let gate = Gate::new(POLICY);
        let user = [("user", &b"anna"[..])];
        assert_eq!(explained(&gate, &user)["limits"][0].get("override"), None);
        put(&gate, "api:anna", "{burst: 15}", Some(MIDNIGHT.plus(time("1h")))).unwrap();
        let told = explained(&gate, &user);
        let [api, daily] = [&told["limits"][0], &told["limits"][1]];
        assert_eq!(api["override"], json!({"burst": 15, "until_ms": 1_760_058_000_000_u64}));
        assert_eq!((&api["limit"], &api["remaining"]), (&json!(15), &json!(15)));
        assert_eq!((daily.get("override"), &daily["limit"]), (None, &json!(1000)));
        let request = Request::new(&user);
        let verdict = gate.limiter.peek(&request).wait();
        let explained = Explained::new(&gate.limiter, &request, verdict);
        let Stands::Applies(applied) = &explained.limits[0].standing else { panic!("it applies") };
        assert_eq!(applied.terms, "60/minute, 15 at once, token_bucket");
        gate.advance("1h");
        assert_eq!(self::explained(&gate, &user)["limits"][0].get("override"), None, "it is over");
    }

    #[test]
    fn a_request_with_a_banned_key_is_explained_as_it_would_be_answered() {
        let gate = Gate::new(POLICY);
        let user = [("user", &b"anna"[..])];
        put(&gate, "daily:anna", "{rate: 1/day}", None).unwrap();
        assert_eq!(gate.admitted(5, &ANNA), 1);
        put(&gate, "api:anna", "{ban: true}", Some(MIDNIGHT.plus(time("1h")))).unwrap();
        let told = explained(&gate, &user);
        let wait = gate.check(&ANNA).retry_after().map(Micros::as_millis_up);
        assert_eq!((&told["ruling"], &told["retry_after_ms"]), (&json!("denied"), &json!(wait)));
        let [api, daily] = [&told["limits"][0], &told["limits"][1]];
        assert_eq!(api["override"], json!({"ban": true, "until_ms": 1_760_058_000_000_u64}));
        assert_eq!((&api["allowed"], &api["retry_after_ms"]), (&json!(false), &json!(3_600_000)));
        assert_eq!((&daily["applies"], &daily["key"]), (&json!(true), &json!("daily:anna")));
        assert_eq!(daily.get("allowed"), None, "it is not asked");
        put(&gate, "api:anna", "{ban: true}", None).unwrap();
        let told = explained(&gate, &user);
        assert_eq!(told["limits"][0]["override"], json!({"ban": true}));
        assert_eq!(told["retry_after_ms"], Value::Null);
    }

    #[test]
    fn a_ban_needs_no_rate_where_that_goes_by_tier_and_a_limit_that_denies() {
        let policy = "
limits:
  - { name: api, per: [user], rate: { by: tier, values: { free: 1/day }, default: 2/day } }
  - { name: trial, per: [user], rate: 1/day, mode: shadow }
";
        let gate = Gate::new(policy);
        put(&gate, "api:anna", "{ban: true}", None).unwrap();
        assert!(!gate.check(&ANNA).is_allowed());
        let refused = put(&gate, "trial:anna", "{ban: true}", None).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "override of \"trial\": it is in shadow, and denies nobody"
        );
        // A limit that is in shadow from now on bans nobody, and is paid as ever.
        gate.limiter.remove_override(&key("api:anna"));
        gate.limiter
            .replace_policy(parse(&policy.replace("mode: shadow", "mode: enforce")))
            .unwrap();
        put(&gate, "trial:anna", "{ban: true}", None).unwrap();
        gate.limiter.replace_policy(parse(policy)).unwrap();
        assert_eq!((gate.admitted(5, &ANNA), gate.left(&ANNA)), (2, vec![0, 0]));
    }

    #[test]
    fn a_key_with_an_override_is_found_by_the_hash_that_is_shown_of_it() {
        let gate = Gate::new(&format!("observe: {{keys: hashed}}\n{POLICY}"));
        put(&gate, "api:anna", "{burst: 15}", None).unwrap();
        let shown = gate.limiter.shown_key(&key("api:anna"));
        assert!(shown.starts_with("api:%h"), "{shown}");
        assert_eq!(gate.limiter.meant(&key(&shown)), key("api:anna"));
        let other = gate.limiter.shown_key(&key("api:ben"));
        for named in ["api:anna", "api:ben", &other] {
            assert_eq!(gate.limiter.meant(&key(named)), key(named), "nobody knows another");
        }
        assert_eq!(
            gate.limiter.override_of(&key("api:anna")).unwrap().to_string(),
            "{\"burst\":15}"
        );
        assert_eq!(gate.limiter.override_of(&key("api:ben")), None);
    }

    #[test]
    fn an_override_that_means_nothing_changes_nothing() {
        let gate = Gate::new(POLICY);
        let refused = put(&gate, "daily:anna", "{burst: 20}", None).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "override of \"daily\": burst means nothing to it, because it is a fixed_window"
        );
        assert_eq!(gate.limiter.overrides(), []);
    }

    #[test]
    fn the_slots_of_an_overridden_concurrency_limit_are_leased_and_released() {
        let gate = Gate::new("limits: [{name: slots, per: [user], concurrency: 1}]");
        put(&gate, "slots:anna", "{concurrency: 2}", None).unwrap();
        let mut held: Vec<_> = (0..3).map(|_| gate.check(&ANNA)).collect();
        let leases: Vec<_> = held.iter_mut().filter_map(tollgate::Verdict::take_lease).collect();
        assert_eq!((leases.len(), gate.left(&ANNA)), (2, vec![0]));
        for lease in leases {
            assert!(gate.limiter.release(lease).wait() == Some(true));
        }
        assert_eq!(gate.left(&ANNA), [2]);
    }

    #[test]
    fn nodes_that_share_overrides_replace_them_all() {
        let gate = Gate::new(POLICY);
        put(&gate, "api:anna", "{burst: 20}", None).unwrap();
        let saved = [
            ("api:ben", r#"{"burst":30,"until_ms":1760054460000}"#),
            ("gone:x", r#"{"rate":"1/day"}"#),
        ];
        let list: Vec<Override> = saved
            .iter()
            .map(|(text, json)| Override::from_json(key(text), json).unwrap())
            .collect();
        gate.limiter.replace_overrides(list.clone()).unwrap();
        assert_eq!((gate.left(&ANNA)[0], gate.left(&[("user", "ben")])[0]), (10, 30));
        assert_eq!(gate.limiter.overrides(), list);
        let written = list.iter().map(ToString::to_string);
        assert!(written.eq(saved.iter().map(|(_, json)| json.to_string())));
        gate.advance("1m");
        assert_eq!(gate.left(&[("user", "ben")])[0], 10);
    }

    #[test]
    fn there_are_only_so_many_and_those_that_ended_make_room() {
        let gate = Gate::new(POLICY);
        let one = |number: usize| Override {
            key: key(&format!("api:{number}")),
            change: change("{burst: 20}"),
            until: (number > 0).then_some(MIDNIGHT.plus(time("1m"))),
        };
        gate.limiter.replace_overrides((0..KEY_OVERRIDES_MAX).map(one).collect()).unwrap();
        assert_eq!(put(&gate, "api:anna", "{burst: 20}", None), Err(KeyRefused::TooMany));
        gate.advance("1m");
        put(&gate, "api:anna", "{burst: 20}", None).unwrap();
        assert_eq!(gate.limiter.overrides().len(), 2);
        let lasting = |number| Override { until: None, ..one(number) };
        let too_many = (0..=KEY_OVERRIDES_MAX).map(lasting).collect();
        assert_eq!(gate.limiter.replace_overrides(too_many), Err(KeyRefused::TooMany));
        assert_eq!(gate.limiter.overrides().len(), 2);
        let ended = (0..=KEY_OVERRIDES_MAX).map(one).collect();
        gate.limiter.replace_overrides(ended).unwrap();
        assert_eq!(gate.limiter.overrides().len(), 1);
    }

    #[test]
    fn requests_and_changes_go_on_together() {
        let gate = Gate::new(POLICY);
        std::thread::scope(|scope| {
            for user in ["anna", "ben", "carl"] {
                let gate = &gate;
                scope.spawn(move || {
                    let text = format!("api:{user}");
                    for burst in 11..200 {
                        put(gate, &text, &format!("{{burst: {burst}}}"), None).unwrap();
                        let verdict = gate.check_costing(0, &[("user", user)]);
                        let limit = verdict.answers().next().unwrap().limit().capacity();
                        assert_eq!(limit, burst, "nobody else's change takes ours back");
                    }
                });
            }
            for _ in 0..100 {
                gate.limiter.replace_policy(parse(POLICY)).unwrap();
            }
        });
        assert_eq!(gate.limiter.overrides().len(), 3);
    }
}
