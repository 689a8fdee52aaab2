//! What the policies in `examples/policies` promise, each read from disk and held to it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use tollgate::{Layer, Micros, Missing, Policy, Request, Ruling, Timestamp, Verdict};

use crate::{Gate, MIDNIGHT, check_ruled_out, deniers, left, time};

/// Every file of the folder, with those that another one names.
const FILES: [&str; 10] = [
    "four-layers.yaml",
    "gateway.yaml",
    "llm-tokens.yaml",
    "login.yaml",
    "many-nodes.yaml",
    "several-rates.yaml",
    "social.yaml",
    "tenants.yaml",
    "usage-plans-tenants.yaml",
    "usage-plans.yaml",
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/policies")
}

/// A gate under one of the examples.
fn gate(file: &str) -> Gate {
    assert!(FILES.contains(&file), "name {file} among the files that are tested");
    let text_of = |file: &str| fs::read_to_string(folder().join(file));
    let read = &mut |file: &str| text_of(file).map_err(|error| error.to_string());
    let text = text_of(file).unwrap_or_else(|error| panic!("{file}: {error}"));
    Gate::under(Policy::parse(file, &text, read).unwrap_or_else(|mistakes| panic!("{mistakes}")))
}

/// A client that sends as soon as it may, and waits as long as it is told, until `end`: when its
/// requests were allowed, after midnight.
fn greedy(gate: &Gate, end: &str, attributes: &[(&str, &str)]) -> Vec<Micros> {
    let end = MIDNIGHT.plus(time(end));
    let mut allowed = Vec::new();
    while gate.clock.now() < end {
        let verdict = gate.check(attributes);
        if verdict.is_allowed() {
            allowed.push(gate.clock.now().since(MIDNIGHT));
        } else {
            gate.clock.advance(verdict.retry_after().expect("some wait helps"));
        }
    }
    allowed
}

/// A client that comes back every other second until `end` and each time sends as much as it may.
fn steady(gate: &Gate, end: &str, attributes: &[(&str, &str)]) -> Vec<Micros> {
    let end = MIDNIGHT.plus(time(end));
    let mut allowed = Vec::new();
    while gate.clock.now() < end {
        let most = gate.left(attributes).into_iter().min().unwrap_or(0);
        assert!(gate.check_costing(most, attributes).is_allowed());
        allowed.extend((0..most).map(|_| gate.clock.now().since(MIDNIGHT)));
        gate.advance("2s");
    }
    allowed
}

/// The most that were allowed in one window of the clock, and the least in one that is not the
/// last.
fn most_and_least(allowed: &[Micros], window: &str) -> (usize, usize) {
    let window = time(window).as_micros();
    let number = |at: &Micros| at.as_micros() / window;
    let counts: Vec<usize> =
        allowed.chunk_by(|a, b| number(a) == number(b)).map(<[_]>::len).collect();
    let most = counts.iter().max().copied().unwrap_or(0);
    let least = counts[..counts.len() - 1].iter().min().copied().unwrap_or(most);
    (most, least)
}

#[test]
fn no_file_of_the_folder_is_forgotten() {
    let entries = fs::read_dir(folder()).unwrap();
    let there: BTreeSet<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let tested: BTreeSet<String> = FILES.iter().map(ToString::to_string).collect();
    assert_eq!(there, tested, "write a test for it, and name it here");
}

// social.yaml

fn act<'a>(action: &'a str, user: &'a str) -> [(&'a str, &'a str); 2] {
    [("action", action), ("user", user)]
}

#[test]
fn social_a_user_posts_once_a_second() {
    let gate = gate("social.yaml");
    let ada = act("post", "ada");
    assert!(gate.allows(&ada));
    let too_soon = gate.check(&ada);
    assert_eq!(too_soon.retry_after(), Some(time("1s")));
    assert!(gate.allows(&act("post", "bob")), "bob has a second of his own");
    gate.advance("1s");
    assert_eq!(gate.admitted(5, &ada), 1, "who waited does not get more at once");
    gate.advance("1h");
    assert_eq!(gate.admitted(5, &ada), 1, "nor who waited long");
}

#[test]
fn social_a_user_makes_150_friend_requests_a_day() {
    let gate = gate("social.yaml");
    let ada = act("friend_request", "ada");
    gate.advance("20h");
    assert_eq!(gate.admitted(200, &ada), 150);
    assert_eq!(gate.check(&ada).retry_after(), Some(time("4h")), "the day ends at midnight");
    assert!(gate.allows(&act("friend_request", "bob")));
    assert!(gate.allows(&act("post", "ada")), "posts are counted apart");
    gate.advance("4h");
    assert_eq!(gate.admitted(200, &ada), 150);
}

#[test]
fn social_a_user_likes_5_times_a_second() {
    let gate = gate("social.yaml");
    assert_eq!(gate.admitted(20, &act("like", "ada")), 5);
    assert_eq!(gate.admitted(20, &act("like", "bob")), 5);
    gate.advance("1m");
    gate.clock.set(MIDNIGHT);
    let busy = greedy(&gate, "10m", &act("like", "eve"));
    let (most, least) = most_and_least(&busy, "1s");
    assert_eq!(most, 5);
    assert!(least >= 4, "{least}");
}

#[test]
fn social_what_nobody_limited_passes() {
    let gate = gate("social.yaml");
    let verdict = gate.check(&act("read", "ada"));
    assert_eq!((verdict.ruling(), verdict.answers().len()), (Ruling::Allowed, 0));
}

// several-rates.yaml

#[test]
fn several_rates_all_hold_on_every_second_minute_and_hour_of_a_day() {
    let gate = gate("several-rates.yaml");
    let day = steady(&gate, "1d", &[("user", "ada")]);
    let (a_second, _) = most_and_least(&day, "1s");
    let (a_minute, _) = most_and_least(&day, "1m");
    let (an_hour, least_an_hour) = most_and_least(&day, "1h");
    assert_eq!((a_second, an_hour), (10, 10_000));
    assert!(a_minute <= 500, "{a_minute}");
    assert!(least_an_hour >= 9_900, "what was promised can be had: {least_an_hour} in an hour");
    assert!(day.len() <= 240_000, "{}", day.len());
}

#[test]
fn several_rates_all_hold_for_who_comes_back_at_the_first_moment_it_may() {
    let gate = gate("several-rates.yaml");
    let hours = greedy(&gate, "2h", &[("user", "ada")]);
    let most = ["1s", "1m", "1h"].map(|window| most_and_least(&hours, window).0);
    assert_eq!(most, [10, 500, 10_000]);
}

#[test]
fn several_rates_are_told_apart_in_the_answer() {
    let gate = gate("several-rates.yaml");
    let denied =
        (0..20).map(|_| gate.check(&[("user", "ada")])).find(|verdict| !verdict.is_allowed());
    let denied = denied.expect("ten are allowed at once");
    assert_eq!(deniers(&denied), ["api"]);
    assert_eq!(left(&denied), [0, 490, 9_990]);
    let rates: Vec<String> =
        denied.answers().filter_map(|answer| answer.rate()).map(|rate| rate.to_string()).collect();
    assert_eq!(rates, ["10/second", "500/minute", "10000/hour"]);
}

// many-nodes.yaml

#[test]
fn many_nodes_have_one_limit_over_everybody_and_each_caller_a_shard_of_it() {
    let gate = gate("many-nodes.yaml");
    let (ada, bob) = ([("client_ip", "203.0.113.7")], [("client_ip", "203.0.113.8")]);
    assert!(gate.check_costing(5_000, &ada).is_allowed());
    assert_eq!((gate.left(&ada), gate.left(&bob)), (vec![0], vec![5_000]));
    let addresses: Vec<String> = (0..100).map(|number| format!("198.51.100.{number}")).collect();
    let took = addresses.iter().map(|address| {
        let caller = [("client_ip", address.as_str())];
        let most = gate.left(&caller)[0];
        assert!(gate.check_costing(most, &caller).is_allowed());
        most
    });
    assert_eq!(took.sum::<u32>(), 45_000, "all shards together are the limit");
}

#[test]
fn many_nodes_limit_each_user_and_each_sign_in_as_one_node_does() {
    let gate = gate("many-nodes.yaml");
    let api = [("path", "/api/items"), ("user", "ada"), ("client_ip", "203.0.113.7")];
    assert_eq!(gate.admitted(100, &api), 60);
    let login = [("method", "POST"), ("path", "/login"), ("client_ip", "203.0.113.7")];
    assert_eq!(gate.admitted(10, &login), 5);
}

// usage-plans.yaml, usage-plans-tenants.yaml

fn with_key(key: &str) -> [(&str, &str); 1] {
    [("header:x-api-key", key)]
}

#[test]
fn usage_plans_give_each_plan_its_burst_its_rate_and_its_day() {
    let check = |key: &str, burst: u32, rate: u32, day: u32| {
        let gate = gate("usage-plans.yaml");
        let key = with_key(key);
        assert_eq!(gate.left(&key), [burst, day]);
        assert_eq!(gate.admitted(burst + 10, &key), burst);
        gate.advance("1s");
        assert_eq!(gate.admitted(rate + 10, &key), rate);
        assert_eq!(gate.left(&key), [0, day - burst - rate]);
    };
    check("key-of-basic", 10, 5, 1_000);
    check("key-of-standard", 100, 50, 50_000);
    check("key-of-premium", 1_000, 500, 1_000_000);
}

#[test]
fn usage_plans_end_with_the_day_and_begin_anew_with_the_next() {
    let gate = gate("usage-plans.yaml");
    let key = with_key("key-of-basic");
    let used = greedy(&gate, "2d", &key);
    assert_eq!(used.len(), 2_000, "a thousand each day, and not one more");
    let (most, least) = most_and_least(&used, "1d");
    assert_eq!((most, least), (1_000, 1_000));
    let last_of_the_first_day = used[999];
    assert_eq!(last_of_the_first_day, time("198s"), "ten at once, and then five a second");
    assert!(used[1_000] >= time("1d"));
}

#[test]
fn usage_plans_refuse_who_has_no_key() {
    let gate = gate("usage-plans.yaml");
    check_ruled_out(&gate.check(&[]), Ruling::UnknownKey);
    check_ruled_out(&gate.check(&with_key("key-of-nobody")), Ruling::UnknownKey);
    let hash = "sha256:fd69a65c14e277dbc83f8aa744b86ba68f7c380d7e0e9aca36999eff102e69f6";
    check_ruled_out(&gate.check(&with_key(hash)), Ruling::UnknownKey);
    let claim = [("tenant", "marketplace"), ("tier", "premium")];
    check_ruled_out(&gate.check(&claim), Ruling::UnknownKey);
}

// login.yaml

fn login<'a>(address: &'a str, account: &'a str) -> [(&'a str, &'a str); 4] {
    [("method", "POST"), ("path", "/login"), ("client_ip", address), ("account", account)]
}

#[test]
fn login_an_address_has_five_tries_in_any_minute() {
    let gate = gate("login.yaml");
    let tries = (0..7).map(|second| {
        gate.clock.set(MIDNIGHT.plus(Micros::from_secs(second)));
        gate.allows(&login("192.0.2.1", &format!("account-{second}")))
    });
    assert_eq!(tries.collect::<Vec<bool>>(), [true, true, true, true, true, false, false]);
    gate.clock.set(Timestamp::from_micros(MIDNIGHT.as_micros() + 59_999_999));
    assert!(!gate.allows(&login("192.0.2.1", "another")));
    gate.clock.set(MIDNIGHT.plus(time("1m")));
    assert!(gate.allows(&login("192.0.2.1", "another")), "the first try is a minute ago");
    assert!(!gate.allows(&login("192.0.2.1", "another")), "the second is not");
}

#[test]
fn login_an_account_has_ten_tries_a_minute_however_many_addresses_try() {
    let gate = gate("login.yaml");
    let address = |number| format!("198.51.100.{number}");
    let allowed: usize =
        (0..20).filter(|number| gate.allows(&login(&address(*number), "ada"))).count();
    assert_eq!(allowed, 10);
    assert!(gate.allows(&login("203.0.113.1", "bob")), "bob's account is another");
}

#[test]
fn login_tries_that_are_denied_count_so_that_hammering_does_not_pay() {
    let from = |number: u32| format!("198.51.100.{number}");
    let allowed_after = |tries: u32| {
        let gate = gate("login.yaml");
        for number in 0..tries {
            gate.check(&login(&from(number % 250), "ada"));
        }
        gate.advance("2m");
        gate.allows(&login("203.0.113.1", "ada"))
    };
    assert!(allowed_after(20), "ten tries were denied, and the minute is over");
    assert!(!allowed_after(60), "fifty tries are all there are in an hour, denied or not");
}

#[test]
fn login_the_account_is_charged_also_when_the_address_is_denied() {
    let gate = gate("login.yaml");
    assert_eq!(gate.admitted(8, &login("192.0.2.1", "ada")), 5);
    let verdict = gate.check(&login("203.0.113.9", "ada"));
    assert_eq!((verdict.ruling(), left(&verdict)), (Ruling::Allowed, vec![4, 1, 41]));
}

#[test]
fn login_from_the_own_network_is_not_limited() {
    let gate = gate("login.yaml");
    for _ in 0..100 {
        check_ruled_out(&gate.check(&login("10.20.30.40", "ada")), Ruling::Exempt);
    }
    assert!(gate.allows(&login("192.0.2.1", "ada")), "and was not counted");
    assert_eq!(gate.admitted(10, &login("11.20.30.40", "bob")), 5, "the next network is");
}

#[test]
fn login_a_password_is_reset_three_times_an_hour_by_whichever_page() {
    let gate = gate("login.yaml");
    let page = |path| [("method", "POST"), ("path", path), ("client_ip", "192.0.2.1")];
    assert_eq!(gate.admitted(2, &page("/password/forgot")), 2);
    assert_eq!(gate.admitted(5, &page("/password/reset")), 1);
    assert_eq!(gate.check(&page("/password/forgot")).retry_after(), Some(time("1h")));
}

#[test]
fn login_by_get_only_shows_the_form() {
    let gate = gate("login.yaml");
    let form = [("method", "GET"), ("path", "/login"), ("client_ip", "192.0.2.1")];
    assert_eq!(gate.admitted(50, &form), 50);
    let post = [("method", "post"), ("path", "/login"), ("client_ip", "192.0.2.1")];
    assert_eq!(gate.admitted(50, &post), 5, "small letters are no way around");
}

// llm-tokens.yaml

fn completion<'a>(model: &'a str, tokens: &'a str) -> [(&'a str, &'a str); 4] {
    [("path", "/v1/chat/completions"), ("tenant", "acme"), ("model", model), ("tokens", tokens)]
}

#[test]
fn llm_tokens_are_counted_and_not_only_requests() {
    let gate = gate("llm-tokens.yaml");
    assert_eq!(left(&gate.check(&completion("large", "30000"))), [10_000, 499, 19]);
    let denied = gate.check(&completion("large", "20000"));
    assert_eq!(deniers(&denied), ["tokens"]);
    assert_eq!(denied.retry_after(), Some(time("15s")), "10,000 tokens come back in 15 seconds");
    assert!(gate.allows(&completion("large", "10000")));
}

#[test]
fn llm_tokens_go_by_model_and_one_that_is_not_named_has_the_least() {
    let holds = |model: &str| {
        let gate = gate("llm-tokens.yaml");
        let verdict = gate.check(&completion(model, "1"));
        verdict.answers().next().map(|answer| answer.limit().capacity())
    };
    assert_eq!(holds("small"), Some(200_000));
    assert_eq!(holds("large"), Some(40_000));
    assert_eq!(holds("huge"), Some(10_000));
}

#[test]
fn llm_tokens_used_on_one_model_are_not_there_for_another() {
    let gate = gate("llm-tokens.yaml");
    assert!(gate.allows(&completion("small", "35000")));
    assert_eq!(gate.left(&completion("large", "1"))[0], 5_000);
}

#[test]
fn llm_tokens_that_were_not_used_are_given_back() {
    let gate = gate("llm-tokens.yaml");
    // The caller reserves the most that the answer may take, and settles when it is there.
    let mut reserved = gate.check(&completion("large", "40000"));
    let lease = reserved.take_lease().expect("it is in flight");
    assert!(!gate.allows(&completion("large", "1")));
    gate.limiter.refund(reserved);
    let used = gate.check(&completion("large", "12000"));
    assert_eq!(left(&used), [28_000, 499, 18], "the first slot is still held");
    assert!(gate.limiter.release(lease).wait() == Some(true));
    assert_eq!(gate.left(&completion("large", "1")), [28_000, 499, 19]);
}

#[test]
fn llm_tokens_that_are_no_number_are_refused() {
    let gate = gate("llm-tokens.yaml");
    for tokens in ["-5", "1.5", "many", "99999999999"] {
        check_ruled_out(&gate.check(&completion("large", tokens)), Ruling::BadCost);
    }
    let more_than_ever = gate.check(&completion("large", "40001"));
    assert_eq!((more_than_ever.ruling(), more_than_ever.retry_after()), (Ruling::Denied, None));
    assert_eq!(gate.left(&completion("large", "1")), [40_000, 500, 20]);
}

#[test]
fn llm_twenty_are_in_flight_at_a_time_and_come_back_after_ten_minutes_at_the_latest() {
    let gate = gate("llm-tokens.yaml");
    let models = [("path", "/v1/models"), ("tenant", "acme")];
    assert_eq!(gate.admitted(30, &models), 20);
    assert_eq!(deniers(&gate.check(&models)), ["in-flight"]);
    gate.advance("10m");
    assert_eq!(gate.admitted(30, &models), 20);
}

// four-layers.yaml, tenants.yaml

fn call<'a>(path: &'a str, address: &'a str, key: &'a str) -> [(&'a str, &'a str); 4] {
    [("method", "GET"), ("path", path), ("client_ip", address), ("header:x-api-key", key)]
}

fn names(verdict: &Verdict) -> Vec<&str> {
    verdict.answers().map(|answer| &**answer.rule().name()).collect()
}

#[test]
fn four_layers_meet_a_request_one_after_the_other() {
    let gate = gate("four-layers.yaml");
    let check = |path: &str, expected: &[&str]| {
        assert_eq!(names(&gate.check(&call(path, "192.0.2.1", "key-of-acme"))), expected, "{path}");
    };
    check("/", &["edge"]);
    check("/api/items", &["edge", "tier"]);
    check("/api/search", &["edge", "tier", "search"]);
    check("/api/reports/1", &["edge", "tier", "reports"]);
}

#[test]
fn four_layers_the_edge_stops_an_address_whoever_it_says_it_is() {
    let gate = gate("four-layers.yaml");
    let keys = ["key-of-acme", "key-of-globex", "another", ""];
    let allowed: usize =
        (0..1_000).filter(|n| gate.allows(&call("/", "192.0.2.1", keys[n % keys.len()]))).count();
    assert_eq!(allowed, 200);
    gate.advance("1s");
    assert_eq!(gate.admitted(1_000, &call("/", "192.0.2.1", "another")), 100);
    assert!(gate.allows(&call("/", "192.0.2.2", "another")));
}

#[test]
fn four_layers_the_gateway_gives_each_tier_what_it_paid_for() {
    let check = |key: &str, burst: u32, a_second: u32| {
        let gate = gate("four-layers.yaml");
        let from = |n: u32| format!("192.0.2.{n}");
        let admitted = |round: u32| {
            (0..400).filter(|n| gate.allows(&call("/api/items", &from(round + n % 8), key))).count()
        };
        assert_eq!(admitted(0), burst as usize, "{key}");
        gate.advance("1s");
        assert_eq!(admitted(8), a_second as usize, "{key}");
    };
    check("key-of-a-hobbyist", 10, 1);
    check("key-of-acme", 50, 10);
    check("key-of-globex", 300, 150);
}

#[test]
fn four_layers_strangers_are_counted_by_address_whatever_key_they_guess() {
    let gate = gate("four-layers.yaml");
    let stranger = |address: &str, guess: u32| {
        gate.allows(&call("/api/items", address, &format!("guess-{guess}")))
    };
    assert_eq!((0..50).filter(|guess| stranger("192.0.2.1", *guess)).count(), 10);
    assert!(stranger("192.0.2.2", 1), "another address has a count of its own");
    assert!(
        gate.allows(&call("/api/items", "192.0.2.1", "key-of-a-hobbyist")),
        "and so has who has a key"
    );
}

#[test]
fn four_layers_a_search_costs_two_of_ten_a_second() {
    let gate = gate("four-layers.yaml");
    let search = call("/api/search", "192.0.2.1", "key-of-globex");
    assert_eq!(gate.admitted(20, &search), 5);
    assert_eq!(deniers(&gate.check(&search)), ["search"]);
    let left_of_tier = gate.left(&search)[1];
    assert_eq!(left_of_tier, 295, "a search that was denied is not charged to the tier");
}

#[test]
fn four_layers_four_reports_are_made_at_a_time_whoever_asks() {
    let gate = gate("four-layers.yaml");
    let report = |key| call("/api/reports/daily", "192.0.2.1", key);
    let mut leases: Vec<_> = ["key-of-acme", "key-of-globex", "key-of-acme", "key-of-globex"]
        .iter()
        .map(|key| gate.check(&report(key)).take_lease().expect("there is a slot"))
        .collect();
    let fifth = gate.check(&report("key-of-globex"));
    assert_eq!((deniers(&fifth), fifth.retry_after()), (vec!["reports".to_owned()], None));
    assert!(gate.limiter.release(leases.pop().unwrap()).wait() == Some(true));
    let next = gate.check(&report("key-of-globex")).take_lease().expect("one has ended");
    gate.advance("119s");
    assert!(gate.limiter.renew(&next).wait() == Some(true));
    gate.advance("1s");
    assert_eq!(gate.left(&report("key-of-acme"))[2], 3, "three makers have died, one lives");
    assert!(gate.limiter.release(leases.pop().unwrap()).wait() == Some(false));
}

// gateway.yaml

#[test]
fn gateway_what_is_asked_about_meets_limits_of_its_own() {
    let gate = gate("gateway.yaml");
    assert!(gate.limiter.with_policy(|policy| policy.warnings().is_empty()));
    let ask = |layer, attributes: &[(&str, &str)]| {
        let attributes: Vec<(&str, &[u8])> =
            attributes.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        let (missing, request) = (Missing::Shared, Request::new(&attributes));
        gate.limiter.check(&Request { layer, missing, ..request })
    };
    let client = ("client_ip", "192.0.2.1");
    assert_eq!((0..30).filter(|_| ask(Layer::Connection, &[client]).is_allowed()).count(), 20);
    assert_eq!(deniers(&ask(Layer::Connection, &[client])), ["new-connections"]);

    let call = [client, ("path", "/v1/chat/completions"), ("host", "api.example.com")];
    assert_eq!(left(&ask(Layer::Request, &call)), [99, 99_000]);

    let chat = [client, ("host", "chat.example.com"), ("connection", "1"), ("bytes", "900000")];
    assert_eq!(left(&ask(Layer::Socket, &chat)), [4]);
    assert_eq!(left(&ask(Layer::Message, &chat)), [29, 100_000]);
    assert_eq!(deniers(&ask(Layer::Message, &chat)), ["bytes"]);
}

#[test]
fn gateway_requests_go_where_their_path_and_host_say() {
    let gate = gate("gateway.yaml");
    gate.limiter.with_policy(|policy| {
        let sent = |host, path| policy.route(host, path).map(tollgate::Route::number);
        assert_eq!(sent("chat.example.com", "/v1/chat/completions"), Some(0));
        assert_eq!(sent("chat.example.com:8000", "/rooms/1"), Some(1));
        assert_eq!(sent("api.example.com", "/rooms/1"), Some(2));
    });
}

// docs/memory.md

#[test]
fn the_program_that_the_documentation_quotes_is_the_one_that_runs() {
    let page = include_str!("../../../../docs/memory.md");
    let program = include_str!("../../examples/snapshot.rs");
    let quotes: Vec<&str> =
        page.split("```rust\n").skip(1).filter_map(|after| after.split("```").next()).collect();
    assert!(!quotes.is_empty());
    for quote in quotes {
        assert!(program.contains(quote), "this is not in examples/snapshot.rs:\n{quote}");
    }
}
