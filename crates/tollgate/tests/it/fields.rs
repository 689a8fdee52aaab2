//! The fields of a response.

use std::collections::BTreeSet;

use http::{HeaderMap, StatusCode};
use sfv::{Item, List, ListEntry, Parser};
use tollgate::http::{fields, status};
use tollgate::{Change, HeaderGeneration, Micros, Override, Ruling, Verdict};

use crate::{Gate, MIDNIGHT, parse, time};

/// The fields of an answer to a client of this hash.
fn fields_of(gate: &Gate, verdict: &Verdict, spread: u64) -> HeaderMap {
    let mut headers = HeaderMap::new();
    fields::insert(&mut headers, verdict, gate.limiter.now(), spread);
    headers
}

/// The fields of the `number`th request of a client, under a policy of its own.
fn fields_after(number: u32, policy: &str) -> HeaderMap {
    let gate = Gate::new(policy);
    gate.admitted(number - 1, &[]);
    fields_of(&gate, &gate.check(&[]), 0)
}

/// All fields, in the order of their names.
fn lines(headers: &HeaderMap) -> Vec<String> {
    let mut pairs: Vec<(&str, &str)> = headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.to_str().expect("ASCII")))
        .collect();
    pairs.sort_unstable();
    pairs.into_iter().map(|(name, value)| format!("{name}: {value}")).collect()
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    Some(headers.get(name)?.to_str().ok()?.parse().expect("a number"))
}

/// A list field as a parser of structured fields reads it: each name with its whole numbers.
fn list(headers: &HeaderMap, name: &str) -> Vec<(String, Vec<(String, i64)>)> {
    let list: List = Parser::new(headers[name].as_bytes()).parse().expect("a list");
    let entry = |entry: ListEntry| {
        let ListEntry::Item(Item { bare_item, params }) = entry else { panic!("no lists inside") };
        let parameters = params.into_iter().filter_map(|(name, value)| {
            Some((name.as_str().to_owned(), i64::from(value.as_integer()?)))
        });
        (bare_item.as_string().expect("a string").as_str().to_owned(), parameters.collect())
    };
    list.into_iter().map(entry).collect()
}

/// What the newest generation says of one limit.
fn parameter(headers: &HeaderMap, field: &str, limit: &str, name: &str) -> Option<i64> {
    let list = list(headers, field);
    let (_, parameters) = list.iter().find(|(known, _)| known == limit)?;
    parameters.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
}

#[test]
fn whoever_is_banned_without_an_end_is_told_no_moment_to_come_back() {
    let gate = Gate::new("limits: [{name: api, per: [user], rate: 10/second}]");
    let told = |until| {
        let (change, _) = Change::parse("{ban: true}", "ttl_ms").expect("a change");
        let one = Override { key: "api:anna".parse().expect("a key"), change, until };
        gate.limiter.put_override(one).expect("it is put");
        let headers = fields_of(&gate, &gate.check(&[("user", "anna")]), 0);
        ["retry-after", "retry-after-ms", "x-ratelimit-reset"].map(|name| number(&headers, name))
    };
    let end = MIDNIGHT.plus(time("1h"));
    let ends = [Some(3_600), Some(3_600_000), Some(end.as_micros() / 1_000_000)];
    assert_eq!(told(Some(end)), ends);
    assert_eq!(told(None), [None, None, None]);
}

const TWO: &str = "limits: [{name: pace, rate: 10/second, algorithm: fixed_window}, \
                   {name: daily, rate: 1000/day, algorithm: fixed_window}]";

fn with_headers(headers: &str, limits: &str) -> String {
    format!("headers: {headers}\n{limits}")
}

// What is left.

#[test]
fn every_rate_limit_that_applied_is_told() {
    let headers = fields_after(3, &with_headers("[draft-11]", TWO));
    assert_eq!(
        lines(&headers),
        [
            "ratelimit: \"pace\";r=7;t=1, \"daily\";r=997;t=86400",
            "ratelimit-policy: \"pace\";q=10;w=1, \"daily\";q=1000;w=86400",
        ]
    );
}

#[test]
fn the_newest_generation_is_what_a_parser_of_structured_fields_reads() {
    let headers = fields_after(3, &with_headers("[draft-11]", TWO));
    let numbers = |pairs: &[(&str, i64)]| -> Vec<(String, i64)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    };
    assert_eq!(
        list(&headers, "ratelimit-policy"),
        [
            ("pace".to_owned(), numbers(&[("q", 10), ("w", 1)])),
            ("daily".to_owned(), numbers(&[("q", 1000), ("w", 86_400)])),
        ]
    );
    assert_eq!(
        list(&headers, "ratelimit"),
        [
            ("pace".to_owned(), numbers(&[("r", 7), ("t", 1)])),
            ("daily".to_owned(), numbers(&[("r", 997), ("t", 86_400)])),
        ]
    );
}

#[test]
fn several_rates_of_one_limit_have_names_of_their_own() {
    let headers = fields_after(1, "limits: [{name: api, rate: [5/second, 60/minute]}]");
    assert_eq!(headers["ratelimit-policy"], "\"api\";q=5;w=1, \"api#2\";q=60;w=60");
}

#[test]
fn a_buckets_burst_stands_beside_its_rate() {
    let policy = "limits: [{name: api, rate: 60/minute, burst: 10, algorithm: token_bucket}]";
    let headers = fields_after(1, policy);
    assert_eq!(headers["ratelimit-policy"], "\"api\";q=60;w=60;tollgate-burst=10");
    assert_eq!(headers["x-ratelimit-limit"], "10");
    assert_eq!(headers["x-ratelimit-remaining"], "9");
}

#[test]
fn a_window_that_is_not_whole_seconds_is_left_out() {
    let policy =
        "limits: [{name: a, rate: 5/500ms}, {name: b, rate: 5/1500ms}, {name: c, rate: 5/2s}]";
    assert_eq!(fields_after(1, policy)["ratelimit-policy"], "\"a\";q=5, \"b\";q=5, \"c\";q=5;w=2");
    for generation in ["draft-07", "draft-06"] {
        let headers = fields_after(1, &with_headers(&format!("[{generation}]"), policy));
        assert_eq!(headers["ratelimit-policy"], "5;w=2", "{generation}");
        let only = "limits: [{name: a, rate: 5/500ms}]";
        let headers = fields_after(1, &with_headers(&format!("[{generation}]"), only));
        assert!(!headers.contains_key("ratelimit-policy"), "{generation}");
    }
}

#[test]
fn seconds_until_more_can_be_taken_are_rounded_up_and_not_told_of_a_limit_that_is_whole() {
    let gate =
        Gate::new("limits: [{name: a, rate: 60/minute, burst: 10, algorithm: token_bucket}]");
    let peek = gate.check_costing(0, &[]);
    assert_eq!(fields_of(&gate, &peek, 0)["ratelimit"], "\"a\";r=10");
    assert!(gate.allows(&[]));
    gate.advance("999ms");
    let peek = gate.check_costing(0, &[]);
    assert_eq!(fields_of(&gate, &peek, 0)["ratelimit"], "\"a\";r=9;t=1");
}

#[test]
fn the_tightest_limit_is_told_with_the_moment_it_is_whole_again() {
    let policy = with_headers("[x-ratelimit]", TWO);
    let gate = Gate::new(&policy);
    gate.advance("250ms");
    gate.admitted(2, &[]);
    let headers = fields_of(&gate, &gate.check(&[]), 0);
    let reset = MIDNIGHT.as_micros() / 1_000_000 + 1;
    assert_eq!(
        lines(&headers),
        [
            "x-ratelimit-limit: 10".to_owned(),
            "x-ratelimit-remaining: 7".to_owned(),
            format!("x-ratelimit-reset: {reset}"),
        ]
    );
}

#[test]
fn whoever_tells_it_later_than_it_was_decided_tells_the_same_moment() {
    let policy = with_headers("[x-ratelimit]", TWO);
    let gate = Gate::new(&policy);
    gate.advance("250ms");
    let verdict = gate.check(&[]);
    let reset = || number(&fields_of(&gate, &verdict, 0), "x-ratelimit-reset");
    let told = reset();
    assert!(told.is_some());
    gate.advance("20us");
    assert_eq!(reset(), told);
}

#[test]
fn a_concurrency_limit_is_announced_and_what_is_left_of_it_is_not() {
    let gate = Gate::new("limits: [{name: slots, concurrency: 2}, {name: api, rate: 9/minute}]");
    let headers = fields_of(&gate, &gate.check(&[]), 0);
    assert_eq!(
        headers["ratelimit-policy"],
        "\"slots\";q=2;qu=\"concurrent-requests\", \"api\";q=9;w=60"
    );
    assert_eq!(list(&headers, "ratelimit").len(), 1);
    assert_eq!(parameter(&headers, "ratelimit", "api", "r"), Some(8));
    assert_eq!(headers["x-ratelimit-limit"], "9", "the tightest is a rate limit");

    let alone = Gate::new("limits: [{name: slots, concurrency: 2}]");
    let headers = fields_of(&alone, &alone.check(&[]), 0);
    assert_eq!(lines(&headers), ["ratelimit-policy: \"slots\";q=2;qu=\"concurrent-requests\""]);
}

#[test]
fn a_limit_in_shadow_is_told_to_no_client() {
    let limits =
        "limits: [{name: trial, rate: 1/hour, mode: shadow}, {name: real, rate: 9/minute}]";
    for generation in HeaderGeneration::ALL.map(HeaderGeneration::name) {
        let of_both = fields_after(3, &with_headers(&format!("[{generation}]"), limits));
        let only = "limits: [{name: real, rate: 9/minute}]";
        let of_one = fields_after(3, &with_headers(&format!("[{generation}]"), only));
        assert_eq!(lines(&of_both), lines(&of_one), "{generation}");
        assert!(!of_both.is_empty() && !of_both.contains_key("retry-after"), "{generation}");
    }
}

#[test]
fn a_request_that_no_limit_applies_to_has_no_fields() {
    for generation in HeaderGeneration::ALL.map(HeaderGeneration::name) {
        let policy = with_headers(&format!("[{generation}]"), "limits: []");
        assert_eq!(lines(&fields_after(1, &policy)), [""; 0], "{generation}");
    }
}

#[test]
fn lines_are_the_fields_that_are_inserted_in_their_order() {
    let names = HeaderGeneration::ALL.map(HeaderGeneration::name);
    let pairs = names.iter().flat_map(|one| names.iter().map(move |other| (one, other)));
    let two =
        pairs.filter(|(one, other)| one != other).map(|(one, other)| format!("[{one}, {other}]"));
    let more = [format!("[{}]", names.join(", ")), "off".to_owned()];
    for headers in names.map(|name| format!("[{name}]")).into_iter().chain(two).chain(more) {
        let gate = Gate::new(&with_headers(&headers, TWO));
        for number in 1..=11 {
            let (verdict, spread) = (gate.check(&[]), u64::MAX / number);
            let inserted = fields_of(&gate, &verdict, spread);
            let inserted = inserted
                .iter()
                .map(|(name, value)| format!("{name}: {}\r\n", value.to_str().expect("ASCII")));
            let mut lines = b"before".to_vec();
            fields::write(&mut lines, &verdict, gate.limiter.now(), spread);
            let lines = String::from_utf8(lines).expect("ASCII");
            assert_eq!(lines, format!("before{}", inserted.collect::<String>()), "{headers}");
        }
    }
}

// The older generations.

#[test]
fn draft_07_is_one_dictionary_and_the_windows() {
    let headers = fields_after(3, &with_headers("[draft-07]", TWO));
    assert_eq!(
        lines(&headers),
        ["ratelimit: limit=10, remaining=7, reset=1", "ratelimit-policy: 10;w=1, 1000;w=86400"]
    );
    let dictionary: sfv::Dictionary = Parser::new(headers["ratelimit"].as_bytes()).parse().unwrap();
    assert_eq!(dictionary.len(), 3);
    let windows: List = Parser::new(headers["ratelimit-policy"].as_bytes()).parse().unwrap();
    assert_eq!(windows.len(), 2);
}

#[test]
fn draft_06_is_three_fields_and_the_windows() {
    assert_eq!(
        lines(&fields_after(3, &with_headers("[draft-06]", TWO))),
        [
            "ratelimit-limit: 10",
            "ratelimit-policy: 10;w=1, 1000;w=86400",
            "ratelimit-remaining: 7",
            "ratelimit-reset: 1",
        ]
    );
}

#[test]
fn draft_03_is_three_fields_with_the_windows_in_the_first() {
    assert_eq!(
        lines(&fields_after(3, &with_headers("[draft-03]", TWO))),
        [
            "ratelimit-limit: 10, 10;w=1, 1000;w=86400",
            "ratelimit-remaining: 7",
            "ratelimit-reset: 1",
        ]
    );
}

#[test]
fn generations_that_agree_are_sent_together_each_field_once() {
    let headers = fields_after(3, &with_headers("[draft-07, draft-06, x-ratelimit]", TWO));
    assert_eq!(headers.len(), headers.keys_len());
    assert_eq!(headers["ratelimit-policy"], "10;w=1, 1000;w=86400");
    assert_eq!(headers["ratelimit"], "limit=10, remaining=7, reset=1");
    assert_eq!(headers["ratelimit-remaining"], "7");
    assert_eq!(headers["x-ratelimit-remaining"], "7");
}

#[test]
fn with_headers_off_only_the_denied_are_told_anything() {
    let policy =
        with_headers("off", "limits: [{name: a, rate: 1/minute, algorithm: fixed_window}]");
    assert_eq!(lines(&fields_after(1, &policy)), [""; 0]);
    assert_eq!(lines(&fields_after(2, &policy)), ["retry-after: 60", "retry-after-ms: 60000"]);
}

/// What was written for a request is written again for others under the same limits, and only for those.
#[test]
fn what_limits_allow_is_told_of_those_that_apply_and_as_they_are_in_force() {
    let policy = |rate: u32| {
        format!(
            "limits:\n  \
             - {{ name: all, rate: {rate}/minute }}\n  \
             - {{ name: a, when: {{ path: /a }}, rate: 2/hour }}\n  \
             - {{ name: b, when: {{ path: /b }}, rate: 3/hour, mode: shadow }}\n"
        )
    };
    let told = |gate: &Gate, path: &str| {
        let headers = fields_of(gate, &gate.check(&[("path", path)]), 0);
        headers["ratelimit-policy"].to_str().expect("ASCII").to_owned()
    };
    let (gate, other) = (Gate::new(&policy(100)), Gate::new(&policy(200)));
    for _ in 0..2 {
        assert_eq!(told(&gate, "/"), r#""all";q=100;w=60"#);
        assert_eq!(told(&gate, "/a"), r#""all";q=100;w=60, "a";q=2;w=3600"#);
        assert_eq!(told(&gate, "/b"), r#""all";q=100;w=60"#, "what is in shadow is not told");
        assert_eq!(told(&other, "/"), r#""all";q=200;w=60"#);
    }
    gate.limiter.replace_policy(parse(&policy(300))).expect("there is room");
    assert_eq!(told(&gate, "/a"), r#""all";q=300;w=60, "a";q=2;w=3600"#);
}

#[test]
fn what_somebody_else_wrote_into_our_fields_is_replaced() {
    let gate = Gate::new(TWO);
    let mut headers = HeaderMap::new();
    for name in fields::ALL {
        headers.append(&name, "9999".parse().unwrap());
        headers.append(&name, "8888".parse().unwrap());
    }
    let verdict = gate.check(&[]);
    fields::insert(&mut headers, &verdict, gate.limiter.now(), 0);
    for (name, value) in &fields_of(&gate, &verdict, 0) {
        assert_eq!(headers.get_all(name).iter().collect::<Vec<_>>(), [value], "{name}");
    }
}

#[test]
fn every_field_that_is_ever_written_is_among_those_a_proxy_removes() {
    let known: BTreeSet<String> = fields::ALL.iter().map(ToString::to_string).collect();
    let mut seen = BTreeSet::new();
    for generation in HeaderGeneration::ALL.map(HeaderGeneration::name) {
        let policy =
            with_headers(&format!("[{generation}]"), "limits: [{name: a, rate: 1/minute}]");
        seen.extend(fields_after(2, &policy).keys().map(ToString::to_string));
    }
    assert_eq!(seen, known);
}

// When to come back.

#[test]
fn a_denied_client_is_told_when_to_come_back() {
    let policy = "limits: [{name: a, rate: 1/minute, algorithm: fixed_window}]";
    let gate = Gate::new(policy);
    gate.advance("1500ms");
    assert!(gate.allows(&[]));
    let denied = gate.check(&[]);
    assert_eq!(status(&denied), StatusCode::TOO_MANY_REQUESTS);
    let headers = fields_of(&gate, &denied, 0);
    assert_eq!(headers["retry-after"], "59");
    assert_eq!(headers["retry-after-ms"], "58500");
    assert_eq!(headers["x-ratelimit-retry-after"], "59");
    assert_eq!(headers["ratelimit"], "\"a\";r=0;t=59");
}

#[test]
fn ten_thousand_clients_denied_together_are_told_different_waits() {
    let gate = Gate::new("limits: [{name: a, rate: 1/minute, algorithm: fixed_window}]");
    assert!(gate.allows(&[]));
    let denied = gate.check(&[]);
    // Hashes of clients: multiples of an odd number, spread over all that there are.
    let hash = |client: u64| client.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut told = Vec::new();
    for client in 0..10_000 {
        let headers = fields_of(&gate, &denied, hash(client));
        let millis = number(&headers, "retry-after-ms").unwrap();
        let seconds = number(&headers, "retry-after").unwrap();
        assert!((60_000..=78_000).contains(&millis), "{millis}");
        assert_eq!(seconds, millis.div_ceil(1_000));
        told.push(millis);
    }
    let different: BTreeSet<u64> = told.iter().copied().collect();
    assert!(different.len() > 9_000, "only {} different waits", different.len());
    let mut arrivals = [0; 18];
    told.iter().for_each(|millis| arrivals[((millis - 60_000) / 1_000).min(17) as usize] += 1);
    assert!(arrivals.iter().all(|second| (500..620).contains(second)), "{arrivals:?}");
}

#[test]
fn a_client_is_told_the_same_wait_as_long_as_its_hash_is_the_same() {
    let gate = Gate::new("limits: [{name: a, rate: 1/minute, algorithm: fixed_window}]");
    assert!(gate.allows(&[]));
    let told = || lines(&fields_of(&gate, &gate.check(&[]), 0x1234_5678_9ABC_DEF0));
    assert_eq!(told(), told());
}

#[test]
fn a_wait_that_was_told_works_for_every_algorithm_and_every_hash() {
    for algorithm in ["sliding_window", "token_bucket", "fixed_window", "sliding_log"] {
        for (rate, spread) in
            [("3/minute", 0), ("7/1500ms", 0), ("5/hour", u64::MAX), ("2/1ms", u64::MAX / 3)]
        {
            let policy = format!("limits: [{{name: a, rate: {rate}, algorithm: {algorithm}}}]");
            let gate = Gate::new(&policy);
            gate.advance("777us");
            let denied = loop {
                let verdict = gate.check(&[]);
                if !verdict.is_allowed() {
                    break verdict;
                }
            };
            let headers = fields_of(&gate, &denied, spread);
            let wait = denied.retry_after().unwrap();
            let millis = number(&headers, "retry-after-ms").unwrap();
            let most = wait.as_micros() * 13 / 10;
            assert!(millis >= wait.as_millis_up() && millis <= most.div_ceil(1_000));
            gate.clock.advance(Micros::from_millis(millis));
            assert!(gate.allows(&[]), "{policy}");
        }
    }
}

#[test]
fn when_no_wait_helps_none_is_told() {
    let gate = Gate::new("limits: [{name: a, rate: 5/minute}]");
    let denied = gate.check_costing(6, &[]);
    assert_eq!(denied.ruling(), Ruling::Denied);
    let headers = fields_of(&gate, &denied, 0);
    for name in ["retry-after", "retry-after-ms", "x-ratelimit-retry-after"] {
        assert!(!headers.contains_key(name), "{name}");
    }
    assert_eq!(headers["ratelimit"], "\"a\";r=5");
}

#[test]
fn one_limit_that_never_allows_it_is_enough_for_no_wait() {
    let gate = Gate::new("limits: [{name: a, rate: 5/minute}, {name: b, rate: 9/minute}]");
    assert!(gate.check_costing(5, &[]).is_allowed());
    let denied = gate.check_costing(6, &[]);
    assert!(!fields_of(&gate, &denied, 0).contains_key("retry-after"));
}

#[test]
fn who_waits_for_a_slot_is_told_a_second() {
    let gate = Gate::new("limits: [{name: slots, concurrency: 1}]");
    let _held = gate.check(&[]);
    let denied = gate.check(&[]);
    for spread in [0, u64::MAX] {
        let headers = fields_of(&gate, &denied, spread);
        assert_eq!(headers["retry-after"], "1");
        assert_eq!(headers["x-ratelimit-retry-after"], "1");
        assert!((1_000..=1_300).contains(&number(&headers, "retry-after-ms").unwrap()));
    }
}

#[test]
fn who_waits_for_a_slot_and_for_a_rate_is_told_the_wait_that_is_known() {
    let gate = Gate::new(
        "limits: [{name: slots, concurrency: 1}, {name: a, rate: 1/minute, algorithm: fixed_window}]",
    );
    let _held = gate.check(&[]);
    assert_eq!(fields_of(&gate, &gate.check(&[]), 0)["retry-after"], "60");
}

#[test]
fn no_limit_is_told_to_have_more_only_after_the_time_to_come_back() {
    let limits = "limits: [{name: slots, concurrency: 1}, \
                  {name: daily, rate: 100/day, algorithm: fixed_window}]";
    let denied_at = |headers: &str| {
        let gate = Gate::new(&with_headers(headers, limits));
        let _held = gate.check(&[]);
        fields_of(&gate, &gate.check(&[]), 0)
    };
    let headers = denied_at("[draft-11]");
    assert_eq!(
        (&headers["retry-after"], &headers["ratelimit"]),
        (&"1".parse().unwrap(), &"\"daily\";r=99".parse().unwrap())
    );
    assert_eq!(denied_at("[draft-07]")["ratelimit"], "limit=100, remaining=99, reset=1");
    for generation in ["[draft-06]", "[draft-03]"] {
        assert_eq!(denied_at(generation)["ratelimit-reset"], "1");
    }
}

#[test]
fn nobody_but_the_denied_is_told_to_come_back() {
    let policy =
        "limits: [{name: a, rate: 5/minute, cost: {attribute: tokens}}]\ndeny: [{user: [evil]}]";
    let gate = Gate::new(policy);
    for (attributes, ruling) in [
        ([("user", "good")], Ruling::Allowed),
        ([("user", "evil")], Ruling::Blocked),
        ([("tokens", "many")], Ruling::BadCost),
    ] {
        let verdict = gate.check(&attributes);
        assert_eq!(verdict.ruling(), ruling);
        assert!(!fields_of(&gate, &verdict, 0).contains_key("retry-after"), "{ruling:?}");
    }
}

#[test]
fn the_longest_wait_there_is_can_be_told() {
    let gate = Gate::new("limits: [{name: a, rate: 1/year, burst: 100, algorithm: token_bucket}]");
    assert!(gate.check_costing(100, &[]).is_allowed());
    let denied = gate.check_costing(100, &[]);
    let headers = fields_of(&gate, &denied, u64::MAX);
    let century = time("365d").as_micros() / 1_000_000 * 100;
    let told = number(&headers, "retry-after").unwrap();
    assert!((century..=century * 13 / 10 + 1).contains(&told), "{told}");
}
