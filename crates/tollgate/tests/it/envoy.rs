//! Answers as Envoy's rate limit service gives them.

use std::sync::Arc;

use tollgate::envoy::{Call, CallError, Charging, CurrentLimit, Descriptor, DescriptorSettings};
use tollgate::envoy::{Descriptors, Override, Response, ResponseHeaders, Status, Unit, Value};
use tollgate::{Clock, Limiter, MemoryStore, Micros, Policy, Timestamp};

/// Twelve seconds into a minute.
const START: Timestamp = Timestamp::from_micros(1_760_000_052_000_000);

struct Subject {
    limiter: Limiter,
    clock: Clock,
}

impl Subject {
    fn new(files: &str) -> Self {
        Self::with(files, |_| {})
    }

    fn with(files: &str, change: impl FnOnce(&mut DescriptorSettings)) -> Self {
        let clock = Clock::manual(START);
        let store = MemoryStore::with_max_bytes(clock.clone(), 1 << 20).expect("a megabyte");
        let mut no_files = |_: &str| Err(String::new());
        let policy = Policy::parse("policy", "limits: []", &mut no_files).expect("a policy");
        let limiter = Limiter::new(policy, Arc::new(store)).expect("no limits");
        let subject = Self { limiter, clock };
        let mut settings = DescriptorSettings::default();
        change(&mut settings);
        subject.load(files, &settings);
        subject
    }

    fn load(&self, files: &str, settings: &DescriptorSettings) {
        let descriptors = Descriptors::parse(&[("d.yaml", files)], false);
        let descriptors = descriptors.unwrap_or_else(|mistakes| panic!("{mistakes}"));
        self.limiter.replace_descriptors(descriptors, settings).expect("a few limits");
    }

    fn call(&self, descriptors: &[Descriptor<'_>]) -> Response {
        self.limiter.rate_limit(&Call { domain: "d", descriptors, hits: 0 }).expect("a call").wait()
    }

    /// One word for each descriptor: `ok` or `over` with what remains, `free` without a limit; then
    /// the word of the call.
    fn ask(&self, descriptors: &[Descriptor<'_>]) -> String {
        let response = self.call(descriptors);
        let mut words: Vec<String> = response.statuses.iter().map(word).collect();
        words.push(if response.is_over { "OVER" } else { "OK" }.to_owned());
        words.join(" ")
    }

    fn ask_of(&self, entries: &[(&str, &str)]) -> String {
        self.ask(&[of(entries)])
    }
}

fn word(status: &Status) -> String {
    let left = status.limit_remaining;
    match (status.is_over, &status.current_limit) {
        (true, _) => "over".to_owned(),
        (false, Some(_)) => format!("ok{left}"),
        (false, None) if left == u32::MAX => "unlimited".to_owned(),
        (false, None) => "free".to_owned(),
    }
}

fn of<'a>(entries: &'a [(&'a str, &'a str)]) -> Descriptor<'a> {
    Descriptor { entries, ..Descriptor::default() }
}

fn hits<'a>(entries: &'a [(&'a str, &'a str)], hits: u64) -> Descriptor<'a> {
    Descriptor { hits: Some(hits), ..of(entries) }
}

fn back<'a>(entries: &'a [(&'a str, &'a str)], units: u64) -> Descriptor<'a> {
    Descriptor { is_negative_hits: true, ..hits(entries, units) }
}

const TWO: &str = "
domain: d
descriptors:
  - { key: a, rate_limit: { unit: minute, requests_per_unit: 3 } }
  - { key: b, rate_limit: { unit: minute, requests_per_unit: 1 } }
";
const A: &[(&str, &str)] = &[("a", "1")];
const B: &[(&str, &str)] = &[("b", "1")];

mod answers {
    use super::*;

    #[test]
    fn a_status_tells_the_limit_what_is_left_and_when_the_window_ends() {
        let subject = Subject::new(
            "
domain: d
descriptors:
  - { key: a, rate_limit: { name: mine, unit: minute, requests_per_unit: 2 } }
  - { key: b, rate_limit: { unit: minute, unit_multiplier: 5, requests_per_unit: 2 } }
",
        );
        let told = |name: Option<&str>, unit_multiplier, left, seconds| Status {
            is_over: false,
            current_limit: Some(CurrentLimit {
                name: name.map(Arc::from),
                requests_per_unit: 2,
                unit: Unit::Minute,
                unit_multiplier,
            }),
            limit_remaining: left,
            seconds_until_reset: Some(seconds),
        };
        let response = subject.call(&[of(A), of(B)]);
        assert!(!response.is_over);
        // The store began twelve seconds into a minute, and that many and two minutes into five.
        let five = 300 - START.as_micros() / 1_000_000 % 300;
        assert_eq!(response.statuses[0], told(Some("mine"), None, 1, 48));
        assert_eq!(response.statuses[1], told(None, Some(5), 1, five));
        subject.call(&[of(A)]);
        let over = subject.call(&[of(A)]);
        let status = Status { is_over: true, ..told(Some("mine"), None, 0, 48) };
        assert_eq!(over.statuses[0], status);
        subject.clock.advance(Micros::from_secs(48));
        assert_eq!(subject.call(&[of(A)]).statuses[0], told(Some("mine"), None, 1, 60));
    }

    #[test]
    fn statuses_come_in_the_order_of_the_call_and_one_that_is_over_makes_it_over() {
        let subject = Subject::new(TWO);
        assert_eq!(subject.ask(&[of(B), of(A)]), "ok0 ok2 OK");
        assert_eq!(subject.ask(&[of(A), of(B)]), "ok1 over OVER");
        assert_eq!(subject.ask(&[of(&[("c", "1")]), of(A)]), "free ok0 OK");
    }

    #[test]
    fn what_no_descriptor_fits_and_what_no_domain_knows_is_free() {
        let subject = Subject::new(TWO);
        assert_eq!(subject.ask_of(&[("a", "1"), ("b", "1")]), "free OK");
        assert_eq!(subject.ask_of(&[]), "free OK");
        let brought = Override { requests_per_unit: 0, unit: Unit::Day, unit_multiplier: 0 };
        let descriptors = [Descriptor { limit: Some(brought), ..of(A) }];
        let call = Call { domain: "unknown", descriptors: &descriptors, hits: 1 };
        let response = subject.limiter.rate_limit(&call).unwrap().wait();
        assert_eq!(response.statuses[..], [Status::default()]);
        assert!(!response.is_over);
    }

    #[test]
    fn unlimited_is_ok_with_as_much_as_can_be_told() {
        let subject =
            Subject::new("domain: d\ndescriptors: [{ key: a, rate_limit: { unlimited: true } }]");
        let response = subject.call(&[of(A)]);
        let unlimited = Status { limit_remaining: u32::MAX, ..Status::default() };
        assert_eq!(response.statuses[..], [unlimited]);
    }

    #[test]
    fn a_limit_of_nothing_is_always_over_and_tells_when_its_window_ends() {
        let subject = Subject::new(
            "domain: d\ndescriptors: [{ key: a, rate_limit: { unit: minute, requests_per_unit: 0 } }]",
        );
        let response = subject.call(&[of(A)]);
        assert!(response.is_over);
        assert_eq!(response.statuses[0].seconds_until_reset, Some(48));
    }

    #[test]
    fn a_call_without_domain_or_descriptors_or_with_too_many_is_an_error() {
        let subject = Subject::new(TWO);
        let ask = |domain, descriptors: &[Descriptor<'_>]| {
            subject.limiter.rate_limit(&Call { domain, descriptors, hits: 1 }).unwrap_err()
        };
        assert_eq!(ask("", &[of(A)]), CallError::EmptyDomain);
        assert_eq!(ask("d", &[]), CallError::NoDescriptors);
        assert_eq!(ask("d", &vec![of(A); 129]), CallError::TooManyDescriptors);
        assert_eq!(ask("d", &[of(&[("a", "1"); 65])]), CallError::TooManyEntries);
        assert_eq!(subject.ask(&vec![of(&[("c", "1"); 64]); 128]).split(' ').count(), 129);
    }

    #[test]
    fn a_limiter_without_descriptors_limits_nothing() {
        let limiter = Limiter::from_yaml("limits: []").unwrap();
        let call = Call { domain: "d", descriptors: &[of(A)], hits: 1 };
        assert_eq!(limiter.rate_limit(&call).unwrap().wait().statuses[..], [Status::default()]);
    }
}

mod hits {
    use super::*;

    #[test]
    fn hits_of_the_call_count_once_if_unset_and_a_descriptor_has_its_own() {
        let subject = Subject::new(TWO.replace("3", "10").as_str());
        let ask = |hits: u32, descriptors: &[Descriptor<'_>]| {
            let call = Call { domain: "d", descriptors, hits };
            subject.limiter.rate_limit(&call).unwrap().wait().statuses[0].limit_remaining
        };
        assert_eq!(ask(0, &[of(A)]), 9);
        assert_eq!(ask(2, &[of(A)]), 7);
        assert_eq!(ask(2, &[super::hits(A, 3)]), 4);
    }

    #[test]
    fn no_hits_ask_without_taking_and_tell_a_limit_that_was_passed_from_one_used_up() {
        let subject = Subject::new(TWO);
        assert_eq!(subject.ask(&[super::hits(A, 0)]), "ok3 OK");
        assert_eq!(subject.ask(&[super::hits(A, 3)]), "ok0 OK");
        assert_eq!(subject.ask(&[super::hits(A, 0)]), "ok0 OK");
        assert_eq!(subject.ask(&[of(A)]), "over OVER");
        assert_eq!(subject.ask(&[super::hits(A, 0)]), "over OVER");
    }

    #[test]
    fn more_than_the_limit_holds_is_over_and_counted() {
        let subject = Subject::new(TWO);
        for cost in [4, u64::MAX] {
            assert_eq!(subject.ask(&[super::hits(A, cost)]), "over OVER");
            assert_eq!(subject.ask(&[super::hits(A, 0)]), "over OVER");
            subject.clock.advance(Micros::from_secs(60));
            assert_eq!(subject.ask(&[super::hits(A, 0)]), "ok3 OK");
        }
    }

    #[test]
    fn negative_hits_give_back_and_never_more_than_was_taken() {
        let subject = Subject::new(TWO);
        assert_eq!(subject.ask(&[back(A, 1)]), "ok3 OK");
        subject.ask(&[super::hits(A, 3)]);
        assert_eq!(subject.ask(&[back(A, 2)]), "ok2 OK");
        assert_eq!(subject.ask(&[back(A, 100)]), "ok3 OK");
        assert_eq!(subject.ask(&[of(A)]), "ok2 OK");
        // What was taken past the limit has to be given back first, and that is never too much.
        subject.ask(&[super::hits(A, 2)]);
        subject.ask(&[of(A)]);
        subject.ask(&[of(A)]);
        assert_eq!(subject.ask(&[back(A, 1)]), "ok0 OK");
        assert_eq!(subject.ask(&[back(A, 1)]), "ok0 OK");
        assert_eq!(subject.ask(&[back(A, 1)]), "ok1 OK");
        // A call that says nothing of hits gives back one.
        let one = Descriptor { is_negative_hits: true, ..of(A) };
        assert_eq!(subject.ask(&[one]), "ok2 OK");
    }
}

mod rules {
    use super::*;

    #[test]
    fn shadow_mode_counts_and_is_never_over() {
        let subject = Subject::new(
            "
domain: d
descriptors:
  - { key: a, shadow_mode: true, rate_limit: { unit: minute, requests_per_unit: 1 } }
",
        );
        assert_eq!(subject.ask_of(A), "ok0 OK");
        assert_eq!(subject.ask_of(A), "ok0 OK");
    }

    #[test]
    fn shadow_for_all_tells_what_is_over_and_lets_the_call_go() {
        let subject = Subject::with(TWO, |settings| settings.shadow = true);
        assert_eq!(subject.ask_of(B), "ok0 OK");
        assert_eq!(subject.ask_of(B), "over OK");
    }

    const QUOTAS: &str = "
domain: d
descriptors:
  - { key: a, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: b, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 2 } }
  - { key: c, rate_limit: { unit: minute, requests_per_unit: 3 } }
";

    #[test]
    fn a_call_is_over_its_quotas_when_all_of_them_are_used_up() {
        for charging in [Charging::Every, Charging::UnlessOver, Charging::AllOrNothing] {
            let subject = Subject::with(QUOTAS, |settings| settings.charging = charging);
            assert_eq!(subject.ask(&[of(A), of(B)]), "ok0 ok1 OK", "{charging:?}");
            assert_eq!(subject.ask(&[of(A), of(B)]), "over ok0 OK", "{charging:?}");
            assert_eq!(subject.ask(&[of(A), of(B)]), "over over OVER", "{charging:?}");
            assert_eq!(subject.ask(&[of(A)]), "over OVER", "{charging:?}");
        }
    }

    #[test]
    fn a_limit_beside_quotas_is_over_by_itself() {
        let subject = Subject::new(QUOTAS);
        let c: &[(&str, &str)] = &[("c", "1")];
        for expected in ["ok0 ok2 OK", "over ok1 OVER", "over ok0 OVER", "over over OVER"] {
            assert_eq!(subject.ask(&[of(A), of(c)]), expected);
        }
    }

    #[test]
    fn quotas_that_are_all_used_up_charge_nothing_else_when_all_or_nothing_is_charged() {
        let subject = Subject::with(QUOTAS, |settings| settings.charging = Charging::AllOrNothing);
        let c: &[(&str, &str)] = &[("c", "1")];
        subject.ask(&[of(A), of(B)]);
        subject.ask(&[of(A), of(B)]);
        assert!(subject.call(&[of(A), of(B), of(c)]).is_over);
        assert_eq!(subject.ask(&[super::hits(c, 0)]), "ok3 OK");
    }

    #[test]
    fn quota_for_all_makes_a_quota_of_every_limit() {
        let subject = Subject::with(TWO, |settings| settings.quota = true);
        subject.ask(&[of(A), of(B)]);
        assert_eq!(subject.ask(&[of(A), of(B)]), "ok1 over OK");
        assert_eq!(subject.ask(&[of(B)]), "over OVER");
    }

    #[test]
    fn a_limit_that_another_replaces_is_neither_charged_nor_told() {
        let subject = Subject::new(
            "
domain: d
descriptors:
  - { key: a, rate_limit: { name: small, unit: minute, requests_per_unit: 1 } }
  - { key: b, rate_limit: { replaces: [{ name: small }], unit: minute, requests_per_unit: 5 } }
  - { key: c, rate_limit: { replaces: [{ name: small }], unlimited: true } }
",
        );
        assert_eq!(subject.ask(&[of(A), of(B)]), "free ok4 OK");
        assert_eq!(subject.ask(&[of(B), of(A)]), "ok3 free OK");
        assert_eq!(subject.ask(&[of(A), of(&[("c", "1")])]), "free unlimited OK");
        assert_eq!(subject.ask(&[of(A)]), "ok0 OK");
        assert_eq!(subject.ask(&[of(A)]), "over OVER");
    }

    #[test]
    fn a_wildcard_counts_each_value_unless_they_share() {
        let subject = Subject::new(
            "
domain: d
descriptors:
  - { key: own, value: 'f/*', rate_limit: { unit: minute, requests_per_unit: 1 } }
  - key: one
    value: 'f/*'
    share_threshold: true
    rate_limit: { unit: minute, requests_per_unit: 2 }
    descriptors:
      - { key: user, rate_limit: { unit: minute, requests_per_unit: 1 } }
",
        );
        assert_eq!(subject.ask_of(&[("own", "f/1")]), "ok0 OK");
        assert_eq!(subject.ask_of(&[("own", "f/2")]), "ok0 OK");
        assert_eq!(subject.ask_of(&[("one", "f/1")]), "ok1 OK");
        assert_eq!(subject.ask_of(&[("one", "f/2")]), "ok0 OK");
        assert_eq!(subject.ask_of(&[("one", "f/*")]), "over OVER");
        assert_eq!(subject.ask_of(&[("one", "f/1"), ("user", "x")]), "ok0 OK");
        assert_eq!(subject.ask_of(&[("one", "f/2"), ("user", "x")]), "over OVER");
        assert_eq!(subject.ask_of(&[("one", "f/2"), ("user", "y")]), "ok0 OK");
    }

    #[test]
    fn several_limits_of_one_descriptor_are_all_counted_and_the_one_most_in_the_way_is_told() {
        let subject = Subject::new(
            "
domain: d
descriptors:
  - key: a
    rate_limit:
      - { unit: second, requests_per_unit: 2, name: fast }
      - { unit: hour, requests_per_unit: 3, name: slow }
",
        );
        let names: Vec<(String, String)> = (0..4)
            .map(|_| {
                let response = subject.call(&[of(A)]);
                let status = &response.statuses[0];
                let name = status.current_limit.as_ref().unwrap().name.clone().unwrap();
                subject.clock.advance(Micros::from_millis(400));
                (name.to_string(), word(status))
            })
            .collect();
        let expected = [("fast", "ok1"), ("fast", "ok0"), ("fast", "over"), ("slow", "over")];
        let names: Vec<(&str, &str)> = names.iter().map(|(a, b)| (&**a, &**b)).collect();
        assert_eq!(names, expected);
    }

    #[test]
    fn algorithms_of_ours_work_under_these_files() {
        let subject = Subject::new(
            "
domain: d
descriptors:
  - { key: a, rate_limit: { unit: minute, requests_per_unit: 60, algorithm: token_bucket, burst: 2 } }
  - { key: b, rate_limit: { every: 10s, requests_per_unit: 1, algorithm: sliding_log } }
",
        );
        assert_eq!(subject.ask_of(A), "ok1 OK");
        assert_eq!(subject.ask_of(A), "ok0 OK");
        let over = subject.call(&[of(A)]);
        // The wait that works, not the one until the bucket is full.
        assert_eq!(over.statuses[0].seconds_until_reset, Some(1));
        subject.clock.advance(Micros::from_secs(1));
        assert_eq!(subject.ask_of(A), "ok0 OK");
        assert_eq!(subject.ask_of(B), "ok0 OK");
        assert_eq!(subject.ask_of(B), "over OVER");
        assert_eq!(subject.ask(&[back(B, 1)]), "ok1 OK");
    }
}

mod overrides {
    use super::*;

    fn brought(requests_per_unit: u32, unit: Unit, unit_multiplier: u32) -> Descriptor<'static> {
        Descriptor { limit: Some(Override { requests_per_unit, unit, unit_multiplier }), ..of(A) }
    }

    #[test]
    fn a_limit_that_comes_with_the_call_counts_instead_of_the_files() {
        let subject = Subject::new(TWO);
        let response = subject.call(&[brought(5, Unit::Hour, 2)]);
        let limit = CurrentLimit {
            name: None,
            requests_per_unit: 5,
            unit: Unit::Hour,
            unit_multiplier: Some(2),
        };
        assert_eq!(response.statuses[0].current_limit, Some(limit));
        assert_eq!(response.statuses[0].limit_remaining, 4);
        assert_eq!(subject.ask(&[brought(0, Unit::Day, 0)]), "over OVER");
        // It also holds for what the files know nothing of.
        let other = Descriptor { entries: &[("z", "1")], ..brought(1, Unit::Day, 1) };
        assert_eq!(subject.ask(&[other]), "ok0 OK");
        assert_eq!(subject.ask(&[other]), "over OVER");
    }

    #[test]
    fn what_was_used_under_the_files_stays_used_under_a_limit_brought_along() {
        let subject = Subject::new(TWO);
        subject.ask(&[super::hits(A, 2)]);
        assert_eq!(subject.ask(&[brought(5, Unit::Minute, 1)]), "ok2 OK");
    }

    #[test]
    fn nobody_gets_a_fresh_budget_by_bringing_a_limit_along() {
        for algorithm in ["fixed_window", "sliding_window", "sliding_log", "token_bucket"] {
            let subject = Subject::new(&format!(
                "domain: d\ndescriptors: [{{key: a, rate_limit: {{unit: day, \
                 requests_per_unit: 3, algorithm: {algorithm}}}}}]"
            ));
            let calls = (0..20).map(|n| match n % 2 {
                0 => subject.call(&[of(A)]),
                _ => subject.call(&[brought(1, Unit::Day, 1)]),
            });
            let allowed = calls.filter(|response| !response.is_over).count();
            assert!(allowed <= 3, "{algorithm}: {allowed}");
        }
    }

    #[test]
    fn values_that_share_a_counter_share_it_under_a_limit_brought_along() {
        let subject = Subject::new(
            "domain: d\ndescriptors: [{key: f, value: 'files/*', share_threshold: true, \
             rate_limit: {unit: day, requests_per_unit: 3}}]",
        );
        let limit = brought(1, Unit::Day, 1).limit;
        let of_file = |entries| Descriptor { limit, ..of(entries) };
        assert_eq!(subject.ask(&[of_file(&[("f", "files/a")])]), "ok0 OK");
        assert_eq!(subject.ask(&[of_file(&[("f", "files/b")])]), "over OVER");
    }

    #[test]
    fn a_limit_that_cannot_be_counted_leaves_it_to_the_files() {
        let subject = Subject::new(TWO);
        assert_eq!(subject.ask(&[brought(5, Unit::Year, 2)]), "ok2 OK");
        assert_eq!(subject.ask(&[brought(5, Unit::Year, u32::MAX)]), "ok1 OK");
    }

    #[test]
    fn past_their_bound_new_limits_are_left_to_the_files_and_known_ones_go_on() {
        let subject = Subject::new(TWO);
        let most = tollgate::bounds::OVERRIDES_MAX as u32;
        for count in 0..most {
            let entries = [("z", "1")];
            let limit = brought(count, Unit::Minute, 1).limit;
            subject.call(&[Descriptor { limit, hits: Some(0), ..of(&entries) }]);
        }
        assert_eq!(subject.ask(&[brought(most, Unit::Minute, 1)]), "ok2 OK");
        assert_eq!(subject.ask(&[brought(7, Unit::Minute, 1)]), "ok5 OK");
    }
}

mod charging {
    use super::*;

    /// What a call of both does to `a` when `b` is over, and what then a peek at each says.
    fn check(charging: Charging, expected: [&str; 3]) {
        let subject = Subject::with(TWO, |settings| settings.charging = charging);
        assert_eq!(subject.ask(&[of(A), of(B)]), "ok2 ok0 OK");
        let both = subject.ask(&[of(A), of(B)]);
        let peeks = [super::hits(A, 0), super::hits(B, 0)].map(|it| subject.ask(&[it]));
        assert_eq!([both.as_str(), &peeks[0], &peeks[1]], expected, "{charging:?}");
    }

    #[test]
    fn every_descriptor_is_charged_also_when_another_is_over() {
        check(Charging::Every, ["ok1 over OVER", "ok1 OK", "over OVER"]);
    }

    #[test]
    fn unless_over_charges_those_that_are_over_only() {
        check(Charging::UnlessOver, ["ok2 over OVER", "ok2 OK", "over OVER"]);
    }

    #[test]
    fn all_or_nothing_charges_nothing() {
        check(Charging::AllOrNothing, ["ok2 over OVER", "ok2 OK", "ok0 OK"]);
    }

    #[test]
    fn a_refund_beside_what_is_over_is_made_unless_nothing_is_charged() {
        for (charging, left) in [(Charging::Every, "ok2 OK"), (Charging::AllOrNothing, "ok1 OK")] {
            let subject = Subject::with(TWO, |settings| settings.charging = charging);
            subject.ask(&[super::hits(A, 2), of(B)]);
            subject.ask(&[back(A, 1), of(B)]);
            assert_eq!(subject.ask(&[super::hits(A, 0)]), left, "{charging:?}");
        }
    }

    #[test]
    fn a_descriptor_named_twice_in_a_call_is_charged_twice() {
        for charging in [Charging::Every, Charging::UnlessOver, Charging::AllOrNothing] {
            let subject = Subject::with(TWO, |settings| settings.charging = charging);
            assert_eq!(subject.ask(&[of(A), of(A)]), "ok2 ok1 OK", "{charging:?}");
        }
    }

    #[test]
    fn under_algorithms_of_ours_what_is_over_changes_nothing() {
        let subject = Subject::new(
            "
domain: d
descriptors:
  - { key: a, rate_limit: { unit: second, requests_per_unit: 1, algorithm: token_bucket } }
",
        );
        subject.ask_of(A);
        for _ in 0..10 {
            assert_eq!(subject.ask_of(A), "over OVER");
        }
        subject.clock.advance(Micros::from_secs(1));
        assert_eq!(subject.ask_of(A), "ok0 OK");
    }
}

mod keys {
    use super::*;

    #[test]
    fn different_entries_never_share_a_counter() {
        let subject = Subject::new(
            "
domain: d
descriptors:
  - key: a
    rate_limit: { unit: hour, requests_per_unit: 1 }
    descriptors:
      - { key: b, rate_limit: { unit: hour, requests_per_unit: 1 } }
  - { key: a_b, rate_limit: { unit: hour, requests_per_unit: 1 } }
---
domain: d_a
descriptors:
  - { key: a, rate_limit: { unit: hour, requests_per_unit: 1 } }
  - { key: b, rate_limit: { unit: hour, requests_per_unit: 1 } }
",
        );
        let cases: [(&str, &[(&str, &str)]); 8] = [
            ("d", &[("a", "b_c")]),
            ("d", &[("a_b", "c")]),
            ("d", &[("a", "b"), ("b", "c")]),
            ("d", &[("a", "")]),
            ("d", &[("a", "b:c")]),
            ("d", &[("a", "b\0c")]),
            ("d_a", &[("a", "b_c")]),
            ("d_a", &[("b", "b_c")]),
        ];
        for (domain, entries) in cases {
            let call = Call { domain, descriptors: &[of(entries)], hits: 1 };
            assert!(
                !subject.limiter.rate_limit(&call).unwrap().wait().is_over,
                "{domain} {entries:?}"
            );
            assert!(
                subject.limiter.rate_limit(&call).unwrap().wait().is_over,
                "{domain} {entries:?}"
            );
        }
    }
}

mod told {
    use super::*;

    fn fields(response: &Response) -> Vec<(&str, &str)> {
        response.headers.iter().map(|(name, value)| (&**name, &**value)).collect()
    }

    #[test]
    fn fields_tell_the_limit_with_the_least_left_or_the_one_that_is_over() {
        let subject = Subject::with(TWO, |settings| {
            settings.response_headers = Some(ResponseHeaders::default());
        });
        let expect = |limit, remaining| {
            [
                ("RateLimit-Limit", limit),
                ("RateLimit-Remaining", remaining),
                ("RateLimit-Reset", "48"),
            ]
        };
        assert_eq!(fields(&subject.call(&[of(A)])), expect("3", "2"));
        assert_eq!(fields(&subject.call(&[of(A), of(B)])), expect("1", "0"));
        assert_eq!(fields(&subject.call(&[of(B), of(A)])), expect("1", "0"));
        assert_eq!(fields(&subject.call(&[of(&[("c", "")])])), []);
        let names = ["x-limit", "x-left", "x-reset"];
        let subject = Subject::with(TWO, |settings| {
            let [limit, remaining, reset] = names.map(str::to_owned);
            settings.response_headers = Some(ResponseHeaders { limit, remaining, reset });
        });
        let response = subject.call(&[of(A)]);
        let sent: Vec<&str> = fields(&response).iter().map(|(name, _)| *name).collect();
        assert_eq!(sent, names);
        assert_eq!(fields(&Subject::new(TWO).call(&[of(A)])), []);
    }

    #[test]
    fn metadata_tells_what_was_asked_and_which_quotas_are_used_up() {
        let files = TWO.replace("{ key: b,", "{ key: b, quota_mode: true,");
        let subject = Subject::with(&files, |settings| settings.dynamic_metadata = true);
        subject.call(&[of(B)]);
        let limit = Override { requests_per_unit: 9, unit: Unit::Day, unit_multiplier: 0 };
        let asked = [Descriptor { limit: Some(limit), ..super::hits(A, 2) }, of(B)];
        let call = Call { domain: "d", descriptors: &asked, hits: 5 };
        let response = subject.limiter.rate_limit(&call).unwrap().wait();
        let text = |text: &str| Value::Text(text.to_owned());
        let expected = vec![
            ("domain", text("d")),
            (
                "descriptors",
                Value::List(vec![
                    Value::Map(vec![
                        ("entries", Value::List(vec![text("a=1")])),
                        ("limit", text("requests_per_unit:9 unit:DAY")),
                        ("hitsAddend", Value::Number(2.0)),
                    ]),
                    Value::Map(vec![("entries", Value::List(vec![text("b=1")]))]),
                ]),
            ),
            ("hitsAddend", Value::Number(5.0)),
            ("quotaModeEnabled", Value::Bool(true)),
            ("quotaModeViolations", Value::List(vec![Value::Number(1.0)])),
        ];
        assert_eq!(response.metadata, Some(expected));
        assert_eq!(Subject::new(TWO).call(&[of(A)]).metadata, None);
    }
}

mod reload {
    use super::*;

    #[test]
    fn what_was_consumed_stays_consumed_under_new_files() {
        let subject = Subject::new(TWO);
        subject.ask(&[super::hits(A, 3)]);
        let settings = DescriptorSettings::default();
        subject.load(&TWO.replace("requests_per_unit: 3", "requests_per_unit: 5"), &settings);
        assert_eq!(subject.ask_of(A), "ok1 OK");
    }

    #[test]
    fn one_bad_file_refuses_the_whole_set_and_the_old_one_stays() {
        let subject = Subject::new(TWO);
        let files = [("good.yaml", "domain: e"), ("bad.yaml", "domain: ''")];
        assert!(Descriptors::parse(&files, false).is_err());
        assert_eq!(subject.ask_of(A), "ok2 OK");
    }

    #[test]
    fn an_empty_set_limits_nothing_from_then_on() {
        let subject = Subject::new(TWO);
        let none = Descriptors::parse(&[], false).unwrap();
        subject.limiter.replace_descriptors(none, &DescriptorSettings::default()).unwrap();
        assert_eq!(subject.ask_of(A), "free OK");
    }

    #[test]
    fn other_settings_hold_from_the_next_call() {
        let subject = Subject::new(TWO);
        subject.ask(&[of(B)]);
        let mut settings = DescriptorSettings::default();
        settings.shadow = true;
        subject.load(TWO, &settings);
        assert_eq!(subject.ask(&[of(B)]), "over OK");
    }
}

mod page {
    use super::*;

    const PAGE: &str = include_str!("../../../../docs/envoy.md");

    /// The fenced blocks of the page, each with its language.
    fn blocks() -> Vec<(&'static str, &'static str)> {
        let mut parts = PAGE.split("\n```");
        parts.next();
        let blocks = parts.step_by(2).filter_map(|block| block.split_once('\n'));
        blocks.collect()
    }

    /// `a=1, b=2 | c=3`
    fn asked(text: &str) -> Vec<Vec<(&str, &str)>> {
        text.split(" | ").map(entries).collect()
    }

    fn entries(text: &str) -> Vec<(&str, &str)> {
        let entries = text.split(", ").map(|entry| entry.trim().split_once('='));
        entries.map(|entry| entry.expect("a key and a value")).collect()
    }

    fn told(status: &Status) -> String {
        let left = status.limit_remaining;
        let is_limited = status.current_limit.is_some() || left > 0;
        match (status.is_over, is_limited) {
            (true, _) => "OVER_LIMIT".to_owned(),
            (false, true) => format!("OK, {left} left"),
            (false, false) => "OK".to_owned(),
        }
    }

    #[test]
    fn every_example_of_the_page_is_read_and_answered_as_it_says() {
        let mut subject = None;
        let (mut files, mut policies, mut calls) = (0, 0, 0);
        for (language, text) in blocks() {
            if language == "yaml" && text.starts_with("domain: ") {
                let domain = text.lines().next().unwrap().trim_start_matches("domain: ");
                subject = Some((Subject::new(text), domain));
                files += 1;
            } else if language == "yaml" {
                let policy = Policy::parse("policy", text, &mut |_| Err(String::new()));
                let settings = policy.unwrap_or_else(|it| panic!("{it}")).settings().clone();
                assert_eq!(settings.descriptors.unwrap().path, "./envoy/");
                policies += 1;
            } else {
                assert_eq!(language, "text");
                let (subject, domain) = subject.as_ref().unwrap();
                for line in text.lines() {
                    let (call, answer) = line.split_once('→').unwrap();
                    let entries = asked(call.trim());
                    let descriptors: Vec<_> = entries.iter().map(|it| of(it)).collect();
                    let call = Call { domain, descriptors: &descriptors, hits: 1 };
                    let response = subject.limiter.rate_limit(&call).unwrap().wait();
                    let found: Vec<String> = response.statuses.iter().map(told).collect();
                    assert_eq!(found.join(" | "), answer.trim(), "{line}");
                    calls += 1;
                }
            }
        }
        assert_eq!((files, policies, calls), (3, 2, 15));
    }

    #[test]
    fn the_bounds_of_the_page_are_those_of_the_code() {
        use tollgate::bounds::{DESCRIPTORS_MAX, ENTRIES_MAX, OVERRIDES_MAX};
        assert_eq!((DESCRIPTORS_MAX, ENTRIES_MAX, OVERRIDES_MAX), (128, 64, 16_384));
        assert!(PAGE.contains("At most 128 descriptors of 64 entries"));
        assert!(PAGE.contains("Of such limits 16,384"));
    }
}
