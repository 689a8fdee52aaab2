//! Who sends most, who is denied most and does not wait, and what is said about it.
//!
//! Each test has a thread of its own, which looks at every request as long as they come slowly.

use std::thread;

use tollgate::bounds::{KEY_TEXT_BYTES_MAX, RECENT_DECISIONS, STORM_KEYS_MAX, SUMMARY_KEYS};
use tollgate::envoy::{Call, Descriptor, Descriptors};
use tollgate::observe::{Advice, Frequent, FrequentKey, Span};
use tollgate::{
    Change, Charge, Key, KeyBuf, Layer, Limit, Micros, Override, Quota, Request, Timestamp, Value,
};

use crate::{Gate, MIDNIGHT, parse, time};

/// Runs a test on a thread that has looked at nothing.
fn alone(test: impl FnOnce() + Send) {
    thread::scope(|scope| scope.spawn(test).join().expect("no panic"));
}

/// Sends requests of a user, a moment apart.
fn send(gate: &Gate, user: &str, requests: u64, apart: &str) {
    for _ in 0..requests {
        gate.advance(apart);
        gate.check(&[("user", user)]);
    }
}

fn names(told: &Frequent) -> Vec<&str> {
    told.keys.iter().map(|told| &*told.key).collect()
}

fn find<'t>(told: &'t Frequent, key: &str) -> &'t FrequentKey {
    let found = told.keys.iter().find(|told| told.key == key);
    found.unwrap_or_else(|| panic!("{key} is not in {:?}", names(told)))
}

fn secs(secs: u64) -> Micros {
    Micros::from_secs(secs)
}

mod who {
    use super::*;

    const POLICY: &str = "limits: [{name: api, per: [user], rate: 10/minute}, \
                          {name: daily, per: [user], rate: 1000/day}]";

    #[test]
    fn the_keys_that_are_denied_most_are_told_first_and_those_that_are_not_never() {
        alone(|| {
            let gate = Gate::new(POLICY);
            send(&gate, "anna", 12, "10ms");
            send(&gate, "ben:b", 15, "10ms");
            send(&gate, "carl", 10, "10ms");
            let told = gate.limiter.most_denied(Span::Minute);
            assert_eq!(names(&told), ["api:ben%3Ab", "api:anna"]);
            assert_eq!((told.requests, told.denied, told.period), (37, 7, time("370ms")));
            let ben = &told.keys[0];
            assert_eq!((ben.denied, ben.error), (5, 0));
            assert_eq!(ben.first_seen, MIDNIGHT.plus(time("230ms")), "denied at first");
            assert_eq!(ben.limits, ["api", "daily"]);
        });
    }

    #[test]
    fn the_busiest_keys_are_told_under_each_of_their_limits() {
        alone(|| {
            let gate = Gate::new(POLICY);
            send(&gate, "anna", 12, "10ms");
            send(&gate, "ben", 3, "10ms");
            let told = gate.limiter.busiest(Span::Hour);
            assert_eq!(names(&told), ["api:anna", "daily:anna", "api:ben", "daily:ben"]);
            assert_eq!((told.requests, told.denied), (15, 2));
            let figures = |told: &FrequentKey| (told.requests, told.denied, told.error);
            assert_eq!(figures(&told.keys[0]), (12, 2, 0));
            assert_eq!(figures(&told.keys[1]), (12, 0, 0), "what another limit denied it did not");
            assert_eq!(told.keys[0].first_seen, MIDNIGHT.plus(time("10ms")));
        });
    }

    #[test]
    fn each_span_tells_of_its_own_time() {
        alone(|| {
            let gate = Gate::new("limits: [{name: api, per: [user], rate: 1/day}]");
            send(&gate, "anna", 3, "10ms");
            gate.advance("2m");
            send(&gate, "ben", 3, "10ms");
            let told = |span| names(&gate.limiter.most_denied(span)).join(" ");
            assert_eq!(told(Span::Minute), "api:ben");
            assert_eq!(told(Span::Hour), "api:anna api:ben");
            gate.advance("2h");
            assert_eq!((&*told(Span::Minute), &*told(Span::Hour)), ("", ""));
            assert_eq!(told(Span::Day), "api:anna api:ben");
            assert_eq!(gate.limiter.busiest(Span::Day).requests, 6);
            gate.advance("1d");
            assert_eq!(told(Span::Day), "");
        });
    }

    #[test]
    fn what_only_reports_is_not_denied() {
        alone(|| {
            let gate = Gate::new("limits: [{name: api, per: [user], rate: 1/day, mode: shadow}]");
            send(&gate, "anna", 9, "10ms");
            let told = gate.limiter.most_denied(Span::Day);
            assert_eq!((told.keys.len(), told.denied, told.requests), (0, 0, 9));
            assert_eq!(find(&gate.limiter.busiest(Span::Day), "api:anna").denied, 0);
        });
    }

    #[test]
    fn a_limit_that_counts_everybody_together_has_one_key() {
        alone(|| {
            let gate = Gate::new("limits: [{name: all, rate: 2/day}]");
            send(&gate, "anna", 3, "10ms");
            let told = gate.limiter.most_denied(Span::Minute);
            assert_eq!(
                (names(&told), &*told.keys[0].limits),
                (vec!["all"], &["all".to_owned()][..])
            );
        });
    }

    #[test]
    fn a_denied_key_is_told_while_very_many_requests_come() {
        alone(|| {
            let gate = Gate::new("limits: [{name: api, per: [user], rate: 1/day}]");
            for number in 0..20_000 {
                gate.check(&[("user", &number.to_string())]);
            }
            gate.check(&[("user", "7")]);
            assert_eq!(names(&gate.limiter.most_denied(Span::Minute)), ["api:7"]);
        });
    }

    #[test]
    fn a_handful_that_comes_at_once_is_counted_one_by_one() {
        alone(|| {
            let gate = Gate::new(POLICY);
            for number in 0..20 {
                gate.check(&[("user", ["a", "b", "c", "d"][number % 4])]);
            }
            let told = gate.limiter.busiest(Span::Minute);
            for user in ["a", "b", "c", "d"] {
                let key = find(&told, &format!("api:{user}"));
                assert_eq!((key.requests, key.error), (5, 0), "{user}");
            }
            assert_eq!(told.requests, 20);
        });
    }

    #[test]
    fn who_connects_has_not_sent_a_request_unless_that_is_limited() {
        alone(|| {
            let policy = "limits: [{name: api, per: [user], rate: 10/minute}, \
                          {name: door, when: {layer: connection}, per: [client_ip], rate: 10/minute}]";
            for (policy, requests) in [(POLICY, 0), (policy, 1)] {
                let gate = Gate::new(policy);
                let attributes: [(&str, &[u8]); 1] = [("client_ip", b"192.0.2.1")];
                let connection = Layer::Connection;
                gate.limiter.check(&Request { layer: connection, ..Request::new(&attributes) });
                assert_eq!(gate.limiter.busiest(Span::Minute).requests, requests);
            }
        });
    }

    #[test]
    fn of_traffic_that_comes_too_fast_for_all_to_be_looked_at_what_is_told_is_right_on_average() {
        alone(|| {
            const REQUESTS: u64 = 200_000;
            let gate = Gate::new("limits: [{name: api, per: [user], rate: 10000/day}]");
            // Half of them from one, a quarter from the next, and so on, in no order.
            let mut random = 1_u64;
            let mut sent = [0_u64; 5];
            for _ in 0..REQUESTS {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let user = (random.leading_ones() as usize).min(4);
                sent[user] += 1;
                gate.check(&[("user", ["a", "b", "c", "d", "e"][user])]);
            }
            let (busiest, denied) =
                (gate.limiter.busiest(Span::Minute), gate.limiter.most_denied(Span::Minute));
            for (user, sent) in ["a", "b", "c", "d", "e"].into_iter().zip(sent) {
                // One in 64 for 64: the square of the error is 64 times the figure on average, and one
                // in a million is off by five times that. Of requests it is one in 256.
                let most = |figure: u64, one_in: u64| 5 * ((figure * one_in) as f64).sqrt() as u64;
                let key = format!("api:{user}");
                let told = find(&busiest, &key).requests;
                assert!(told.abs_diff(sent) < most(sent, 256), "{told} of {sent} from {user}");
                let (told, denied) = (find(&denied, &key).denied, sent - 10_000);
                assert!(told.abs_diff(denied) < most(denied, 64), "{told} of {denied} to {user}");
            }
            assert!(busiest.requests.abs_diff(REQUESTS) < 5 * 7_200, "{}", busiest.requests);
        });
    }

    #[test]
    fn many_keys_make_nothing_more_to_tell() {
        alone(|| {
            let gate = Gate::new("limits: [{name: api, per: [user], rate: 1/minute}]");
            for number in 0..2_000 {
                send(&gate, &number.to_string(), 2, "1ms");
            }
            for span in [Span::Minute, Span::Hour, Span::Day] {
                assert_eq!(gate.limiter.busiest(span).keys.len(), SUMMARY_KEYS);
                assert_eq!(gate.limiter.most_denied(span).keys.len(), SUMMARY_KEYS);
            }
        });
    }

    #[test]
    fn what_a_caller_sends_is_shown_as_text_and_cut_if_it_is_very_long() {
        alone(|| {
            let gate = Gate::new("limits: [{name: api, per: [user], rate: 1/minute}]");
            let long = "a".repeat(KEY_TEXT_BYTES_MAX);
            for user in ["\x1b[31m\r\n\0", "<script>alert(1)</script>", &long] {
                send(&gate, user, 2, "10ms");
            }
            let told = gate.limiter.most_denied(Span::Minute);
            let cut = format!("{}…", &format!("api:{long}")[..KEY_TEXT_BYTES_MAX]);
            let escaped = "api:%3Cscript%3Ealert%281%29%3C%2Fscript%3E";
            assert_eq!(names(&told), ["api:%1B%5B31m%0D%0A%00", escaped, &cut]);
        });
    }

    #[test]
    fn values_are_shown_as_hashes_if_the_policy_says_so() {
        alone(|| {
            let gate = Gate::new(
                "observe: {keys: hashed}\nlimits: [{name: api, per: [user, path], rate: 1/minute}]",
            );
            for _ in 0..3 {
                gate.advance("10ms");
                gate.check(&[("user", "anna"), ("path", "/search")]);
            }
            let told = gate.limiter.most_denied(Span::Minute);
            let (key, limits) = (&told.keys[0].key, &told.keys[0].limits);
            assert!(key.starts_with("api:%h") && key.matches("%h").count() == 2, "{key}");
            assert!(!key.contains("anna") && !key.contains("search"), "{key}");
            assert_eq!((told.keys[0].denied, &limits[..]), (2, &["api".to_owned()][..]));
        });
    }

    #[test]
    fn keys_that_were_counted_before_values_were_hashed_are_told_as_those_after() {
        alone(|| {
            let policy = "limits: [{name: api, per: [user, item], rate: 1/day}]";
            let gate = Gate::new(policy);
            let long = "item".repeat(KEY_TEXT_BYTES_MAX);
            let come = |user: &str, item: &str, requests: u32| {
                for _ in 0..requests {
                    gate.advance("1ms");
                    gate.check(&[("user", user), ("item", item)]);
                }
            };
            come("anna", "a:b", 130);
            come("ben", &long, 120);
            let is_plain = |text: &str| text.contains("anna") || text.contains("item");
            assert!(names(&gate.limiter.busiest(Span::Day)).iter().any(|key| is_plain(key)));
            let policy = parse(&format!("observe: {{keys: hashed}}\n{policy}"));
            gate.limiter.replace_policy(policy).unwrap();
            let told = || [gate.limiter.busiest(Span::Hour), gate.limiter.most_denied(Span::Hour)];
            let before = told();
            for told in &before {
                let [anna, ben] = &names(told)[..] else { panic!("two keys: {told:?}") };
                assert!(anna.starts_with("api:%h") && anna.matches(":%h").count() == 2, "{anna}");
                assert!(ben.starts_with("api:%h") && ben.ends_with(":…"), "what was cut: {ben}");
            }
            let storm = gate.limiter.storm();
            assert!(storm.is_storm && storm.keys.iter().all(|key| !is_plain(key)), "{storm:?}");
            gate.advance("10s");
            come("anna", "a:b", 1);
            let [_, after] = told();
            assert_eq!(after.keys[0].key, before[1].keys[0].key, "the same hashes");
        });
    }

    #[test]
    fn of_a_denied_key_all_requests_are_told_not_only_those_since_it_was_denied() {
        alone(|| {
            let gate = Gate::new(POLICY);
            send(&gate, "anna", 12, "10ms");
            let told = gate.limiter.most_denied(Span::Minute);
            assert_eq!((told.keys[0].requests, told.keys[0].denied), (12, 2));
        });
    }

    #[test]
    fn descriptors_and_limits_that_callers_bring_along_are_told_too() {
        alone(|| {
            let gate = Gate::new("limits: []");
            let files = "{domain: shop, descriptors: [{key: user, \
                         rate_limit: {unit: hour, requests_per_unit: 1}}]}";
            let descriptors = Descriptors::parse(&[("shop.yaml", files)], false).unwrap();
            gate.limiter.replace_descriptors(descriptors, &Default::default()).unwrap();
            let entries = [Descriptor { entries: &[("user", "anna")], ..Descriptor::default() }];
            let call = Call { domain: "shop", descriptors: &entries, hits: 1 };
            for _ in 0..3 {
                gate.advance("60ms");
                gate.limiter.rate_limit(&call).unwrap().wait();
            }
            let limit = Limit::sliding_window(Quota::per_minute(1));
            let limit = gate.limiter.store().enroll(limit).unwrap();
            let key = Key { limit: "cell", values: &[Value::new(b"ben")] };
            for _ in 0..2 {
                gate.advance("60ms");
                let taken = gate.store.take_one(&Charge::new(key, &limit));
                gate.limiter.tally().count(&key, &taken);
            }
            let told = gate.limiter.most_denied(Span::Minute);
            let figures = |key: &FrequentKey| (key.key.clone(), key.requests, key.denied);
            let told: Vec<_> = told.keys.iter().map(figures).collect();
            let anna = ("envoy%3A1:shop:user:anna".to_owned(), 3, 2);
            assert_eq!(told, [anna, ("cell:ben".to_owned(), 2, 1)]);
            let limits = gate.limiter.metrics().limits;
            let early: Vec<_> = limits.iter().map(|count| (&*count.limit, count.early)).collect();
            assert_eq!(early, [("envoy:shop", 1), ("#callers", 0), ("#others", 0)]);
        });
    }

    #[test]
    fn banned_keys_are_told_apart() {
        alone(|| {
            let gate = Gate::new(POLICY);
            let keys = ["anna", "ben"].map(|user| format!("api:{user}").parse::<KeyBuf>().unwrap());
            for key in &keys {
                let until = Some(MIDNIGHT.plus(time("1h")));
                let one = Override::from_json(key.clone(), r#"{"ban":true}"#).unwrap();
                gate.limiter.put_override(Override { until, ..one }).unwrap();
            }
            send(&gate, "anna", 2, "60ms");
            send(&gate, "ben", 3, "60ms");
            let told = gate.limiter.most_denied(Span::Minute);
            let figures = |it: &FrequentKey| (it.key.clone(), it.denied, it.early);
            let told: Vec<_> = told.keys.iter().map(figures).collect();
            assert_eq!(told, [("api:ben".to_owned(), 3, 2), ("api:anna".to_owned(), 2, 1)]);
            let recent = keys.map(|key| gate.limiter.recent(&key).len());
            assert_eq!(recent, [2, 3]);
        });
    }

    #[test]
    fn a_clock_that_steps_back_loses_nothing_and_tells_nothing_twice() {
        alone(|| {
            let gate = Gate::new("limits: [{name: api, per: [user], rate: 1/year}]");
            send(&gate, "anna", 3, "1h");
            gate.clock.set(MIDNIGHT);
            send(&gate, "anna", 3, "10ms");
            assert_eq!(find(&gate.limiter.busiest(Span::Day), "api:anna").requests, 6);
            assert_eq!(find(&gate.limiter.busiest(Span::Minute), "api:anna").requests, 4);
        });
    }
}

mod early_returns {
    use super::*;

    /// One request a minute.
    const POLICY: &str = "limits: [{name: api, per: [user], rate: 1/minute, \
                          algorithm: token_bucket}]";

    fn obeys(gate: &Gate, user: &str) -> Option<bool> {
        let told = [gate.limiter.most_denied(Span::Hour), gate.limiter.busiest(Span::Hour)];
        let key = format!("api:{user}");
        let obeys = told.map(|told| {
            told.keys.into_iter().find(|told| told.key == key).and_then(|told| told.obeys)
        });
        obeys[0].or(obeys[1])
    }

    #[test]
    fn who_comes_back_before_the_wait_is_over_is_early_and_does_not_obey() {
        alone(|| {
            let gate = Gate::new(POLICY);
            send(&gate, "hasty", 6, "1s");
            let told = gate.limiter.most_denied(Span::Minute);
            let hasty = find(&told, "api:hasty");
            assert_eq!((hasty.denied, hasty.early, hasty.obeys), (5, 4, Some(false)));
            assert_eq!(gate.limiter.metrics().limits[0].early, 4);
            let busy = gate.limiter.busiest(Span::Minute);
            assert_eq!(find(&busy, "api:hasty").early, 4, "also among the busiest");
        });
    }

    #[test]
    fn who_waits_as_told_obeys_and_of_who_was_not_told_or_never_came_back_nobody_knows() {
        alone(|| {
            let gate = Gate::new(POLICY);
            send(&gate, "new", 1, "1s");
            send(&gate, "gone", 2, "1s");
            send(&gate, "patient", 2, "1s");
            let wait = gate.check(&[("user", "patient")]).retry_after().expect("denied");
            assert_eq!(wait, secs(59));
            gate.clock.advance(wait);
            assert!(gate.allows(&[("user", "patient")]));
            assert_eq!(obeys(&gate, "new"), None);
            assert_eq!(obeys(&gate, "gone"), None);
            assert_eq!(obeys(&gate, "patient"), Some(true), "once too early is forgiven");
        });
    }

    #[test]
    fn a_tenth_of_its_denials_may_be_early() {
        alone(|| {
            let gate = Gate::new(POLICY);
            send(&gate, "u", 1, "1s");
            // Denied, and back when the wait is over: 27 times. Then early, three times.
            for _ in 0..27 {
                assert!(!gate.allows(&[("user", "u")]));
                gate.advance("1m");
                assert!(gate.allows(&[("user", "u")]));
            }
            gate.check(&[("user", "u")]);
            send(&gate, "u", 2, "1s");
            assert_eq!(obeys(&gate, "u"), Some(true), "2 of 30");
            send(&gate, "u", 1, "1s");
            assert_eq!(obeys(&gate, "u"), Some(true), "3 of 31");
            send(&gate, "u", 1, "1s");
            assert_eq!(obeys(&gate, "u"), Some(false), "4 of 32");
        });
    }

    #[test]
    fn a_storm_is_a_hundred_early_returns_and_half_of_all_denials() {
        alone(|| {
            let gate = Gate::new(POLICY);
            let storm = || gate.limiter.storm();
            // Twenty clients, denied once each and then five times too early.
            for number in 0..20 {
                send(&gate, &number.to_string(), 1, "10ms");
            }
            for turn in 0..6 {
                for number in 0..20 {
                    if (turn, number) != (5, 19) {
                        send(&gate, &number.to_string(), 1, "10ms");
                    }
                }
            }
            assert_eq!((storm().denied, storm().early, storm().is_storm), (119, 99, false));
            send(&gate, "0", 1, "10ms");
            let told = storm();
            assert_eq!((told.denied, told.early, told.is_storm), (120, 100, true));
            assert_eq!((told.keys.len(), &*told.keys[0]), (STORM_KEYS_MAX, "api:0"));
            // Who is told no wait hides nobody who does not keep to one.
            let (change, _) = Change::parse("{ban: true}", "ttl_ms").unwrap();
            let ban = Override { key: "api:banned".parse().unwrap(), change, until: None };
            gate.limiter.put_override(ban).unwrap();
            send(&gate, "banned", 200, "1ms");
            assert_eq!((storm().denied, storm().early, storm().is_storm), (120, 100, true));
            // More who are denied for the first time: no longer half of them are early.
            for number in 100..181 {
                send(&gate, &number.to_string(), 2, "10ms");
            }
            assert_eq!((storm().denied, storm().early, storm().is_storm), (201, 100, false));
            gate.advance("70s");
            assert_eq!(storm(), Default::default(), "of the last minute");
        });
    }

    #[test]
    fn no_wait_is_early_where_none_was_told() {
        alone(|| {
            let gate = Gate::new("limits: [{name: api, per: [user], rate: 0/minute}]");
            send(&gate, "anna", 5, "10ms");
            let told = gate.limiter.most_denied(Span::Minute);
            assert_eq!((told.keys[0].early, told.keys[0].obeys), (0, None));
        });
    }
}

mod recent {
    use super::*;

    fn recent(gate: &Gate, key: &str) -> Vec<(Timestamp, bool, u32)> {
        let key: KeyBuf = key.parse().expect("a key");
        let told = gate.limiter.recent(&key).into_iter();
        told.map(|it| (it.at, it.is_allowed, it.remaining)).collect()
    }

    #[test]
    fn the_last_decisions_of_a_key_are_told_newest_first() {
        alone(|| {
            let gate = Gate::new("limits: [{name: api, per: [user], rate: 2/minute}]");
            send(&gate, "anna", 3, "1s");
            let at = |secs: u64| MIDNIGHT.plus(Micros::from_secs(secs));
            let anna = [(at(3), false, 0), (at(2), true, 0), (at(1), true, 1)];
            assert_eq!(recent(&gate, "api:anna"), anna);
            assert_eq!(recent(&gate, "api:ben"), []);
            send(&gate, "anna", 20, "1s");
            let told = recent(&gate, "api:anna");
            assert_eq!((told.len(), told[0].0), (RECENT_DECISIONS, at(23)));
            assert!(told.is_sorted_by(|one, other| one.0 > other.0));
        });
    }

    #[test]
    fn the_key_of_a_secret_is_found_by_what_is_shown_of_it() {
        alone(|| {
            let gate = Gate::new("limits: [{name: key, per: [header:x-api-key], rate: 5/minute}]");
            gate.check(&[("header:x-api-key", "s3cret")]);
            let attributes = [("header:x-api-key", &b"s3cret"[..])];
            let shown = gate.limiter.keys(&Request::new(&attributes)).remove(0);
            assert_eq!(recent(&gate, &shown), [(MIDNIGHT, true, 4)]);
        });
    }
}

mod advice {
    use super::*;

    fn said(gate: &Gate, kind: &str) -> Vec<String> {
        let advice = gate.limiter.advice().into_iter();
        advice.filter(|advice| advice.kind() == kind).map(|advice| advice.to_string()).collect()
    }

    #[test]
    fn nothing_is_said_where_there_is_nothing_to_say() {
        alone(|| {
            let gate = Gate::new("limits: [{name: api, per: [user], rate: 10/minute}]");
            assert_eq!(gate.limiter.advice(), Vec::<Advice>::new());
            send(&gate, "anna", 5, "10s");
            assert_eq!(gate.limiter.advice(), Vec::<Advice>::new());
        });
    }

    #[test]
    fn a_limit_that_nobody_comes_near_is_said_to_be() {
        alone(|| {
            let gate = Gate::new("limits: [{name: api, per: [user], rate: 100/minute}]");
            send(&gate, "anna", 9_999, "3s");
            assert_eq!(said(&gate, "never_approached"), Vec::<String>::new());
            send(&gate, "anna", 1, "3s");
            let sentence = "nobody comes near limit api: at most 21 % of it was in use in 10000 \
                            decisions over 8 hours; it may be wider than what it protects can bear";
            assert_eq!(said(&gate, "never_approached"), [sentence]);
            send(&gate, "ben", 50, "10ms");
            assert_eq!(said(&gate, "never_approached"), Vec::<String>::new(), "half of it");
        });
    }

    #[test]
    fn a_limit_that_many_users_of_a_tier_hit_is_said_to_be() {
        alone(|| {
            let rate = "{free: 2/minute, pro: 4/minute}";
            let tenants = "tenants: {from: user, file: t.yaml, unknown: {tier: free}}\n";
            let gate =
                Gate::new(&format!("{tenants}limits: [{{name: api, per: [user], rate: {rate}}}]"));
            let come = |tier: &str, number: u32, requests: u32| {
                let user = format!("{tier}-{number}");
                gate.advance("1s");
                gate.admitted(requests, &[("user", &user), ("tier", tier)]);
            };
            (0..100).for_each(|number| come("free", number, 2 + number % 2));
            (0..100).for_each(|number| come("pro", number, if number < 30 { 5 } else { 4 }));
            let many = said(&gate, "hit_by_many");
            let [sentence] = &many[..] else { panic!("of one tier: {many:?}") };
            assert!(sentence.starts_with("limit api of tier free denied something to about "));
            gate.advance("1d");
            assert_eq!(said(&gate, "hit_by_many"), Vec::<String>::new());
        });
    }

    #[test]
    fn a_limit_in_shadow_that_many_would_hit_is_not_said_to_have_denied_anything() {
        alone(|| {
            let rate = "{free: 1/minute, default: 1/minute}";
            let gate = Gate::new(&format!(
                "limits: [{{name: trial, per: [user], rate: {rate}, mode: shadow}}]"
            ));
            for number in 0..30 {
                gate.advance("1s");
                gate.admitted(2, &[("user", &number.to_string())]);
            }
            let many = said(&gate, "hit_by_many");
            let [sentence] = &many[..] else { panic!("of one limit: {many:?}") };
            let begins = "limit trial of other tiers would have denied something to about ";
            assert!(sentence.starts_with(begins), "{sentence}");
        });
    }

    #[test]
    fn users_are_seen_also_where_their_requests_are_not_looked_at() {
        alone(|| {
            let gate = Gate::new("limits: [{name: api, per: [user], rate: 1/minute}]");
            // The clock stands still: one in 256 is looked at.
            (0..3_000).for_each(|_| drop(gate.check(&[])));
            for number in 0..200 {
                gate.admitted(1 + number % 2, &[("user", &number.to_string())]);
            }
            let advice = gate.limiter.advice();
            let [Advice::HitByMany { users, denied, .. }] = &advice[..] else {
                panic!("{advice:?}")
            };
            assert!((180..=220).contains(users) && (90..=110).contains(denied), "{advice:?}");
        });
    }

    /// Ten at once, and one every six seconds.
    const BUCKET: &str =
        "limits: [{name: api, per: [user], rate: 10/minute, algorithm: token_bucket}]";

    #[test]
    fn a_key_that_is_at_the_end_of_its_limit_all_the_time_is_said_to_ride() {
        alone(|| {
            let gate = Gate::new(BUCKET);
            send(&gate, "anna", 10, "10ms");
            send(&gate, "anna", 89, "6s");
            assert_eq!(said(&gate, "riding"), Vec::<String>::new(), "99 requests");
            send(&gate, "anna", 1, "6s");
            let riding = said(&gate, "riding");
            let [sentence] = &riding[..] else { panic!("{riding:?}") };
            assert!(sentence.starts_with("api:anna rides at its limit: 96 % of it was in use"));
            assert!(sentence.ends_with("in 100 requests over 9 minutes; it may need a larger one"));
            gate.advance("1h");
            assert_eq!(said(&gate, "riding"), Vec::<String>::new());
        });
    }

    #[test]
    fn a_key_that_is_denied_most_of_what_it_sends_does_not_ride() {
        alone(|| {
            let gate = Gate::new(BUCKET);
            send(&gate, "anna", 300, "1s");
            assert_eq!(said(&gate, "riding"), Vec::<String>::new());
        });
    }

    #[test]
    fn a_key_that_leaves_a_fifth_of_its_limit_does_not_ride() {
        alone(|| {
            let gate = Gate::new(BUCKET);
            send(&gate, "anna", 8, "10ms");
            send(&gate, "anna", 200, "6s");
            assert_eq!(said(&gate, "riding"), Vec::<String>::new());
        });
    }

    /// An hour of quiet, and then a minute in which some users send so many requests each.
    fn spike(rate: &str, users: &[(&str, u64)]) -> Gate {
        let gate = Gate::new(&format!("limits: [{{name: api, per: [user], rate: {rate}}}]"));
        send(&gate, "quiet", 360, "10s");
        for (user, requests) in users {
            send(&gate, user, *requests, "10ms");
        }
        gate
    }

    #[test]
    fn a_key_that_makes_a_spike_and_is_let_through_is_said_to() {
        alone(|| {
            let gate = spike("2000/minute", &[("bot", 800), ("anna", 150), ("ben", 50)]);
            let passing = said(&gate, "passing_in_spike");
            let [sentence] = &passing[..] else { panic!("{passing:?}") };
            assert!(
                sentence.starts_with("api:bot sent 800 of the 1005 requests of the last 50 sec")
            );
            assert!(sentence.contains("and only 0 of them were denied"), "{sentence}");
        });
    }

    #[test]
    fn there_is_none_where_most_of_it_is_denied_or_many_make_it_or_it_is_small() {
        alone(|| {
            let gate = spike("390/minute", &[("bot", 800)]);
            assert_eq!(said(&gate, "passing_in_spike"), Vec::<String>::new(), "denied");
            let names = ["a", "b", "c", "d", "e", "f"];
            let gate = spike("2000/minute", &names.map(|name| (name, 160)));
            assert_eq!(said(&gate, "passing_in_spike"), Vec::<String>::new(), "many");
            let gate = spike("2000/minute", &[("bot", 590)]);
            assert_eq!(said(&gate, "passing_in_spike"), Vec::<String>::new(), "small");
        });
    }

    #[test]
    fn there_is_none_where_as_many_come_all_the_time() {
        alone(|| {
            let gate = Gate::new("limits: [{name: api, per: [user], rate: 2000/minute}]");
            send(&gate, "bot", 12 * 60, "50ms");
            gate.advance("1m");
            for _ in 0..3 {
                send(&gate, "bot", 12 * 60, "50ms");
            }
            assert_eq!(said(&gate, "passing_in_spike"), Vec::<String>::new());
        });
    }
}
