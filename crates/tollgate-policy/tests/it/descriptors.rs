//! The files of Envoy's rate limit service: what is read, what is refused, and what is chosen.

use tollgate_core::Limit;
use tollgate_policy::{Descriptors, Mistakes, Unit};

use crate::corpus::{files, said};

fn parse(text: &str) -> Result<Descriptors, Mistakes> {
    Descriptors::parse(&[("d.yaml", text)], false)
}

fn read(text: &str) -> Descriptors {
    parse(text).unwrap_or_else(|mistakes| panic!("{mistakes}"))
}

/// The requests per unit of what is chosen for some entries; `free` if nothing limits them.
fn chosen(descriptors: &Descriptors, entries: &[(&str, &str)]) -> String {
    let domain = descriptors.domain("d").expect("the domain is described");
    match domain.find(entries) {
        None => "free".to_owned(),
        Some(rule) if rule.is_unlimited() => "unlimited".to_owned(),
        Some(rule) => {
            let counts = rule.limits().iter().map(|limit| limit.requests_per_unit().to_string());
            counts.collect::<Vec<_>>().join("+")
        }
    }
}

#[test]
fn every_accepted_file_is_read_with_the_warnings_it_names() {
    for (name, text) in files("descriptors/accepted") {
        let read = Descriptors::parse(&[(&name, &text)], false);
        let read = read.unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let expected: Vec<&str> =
            said(&text, "warns: ").iter().flat_map(|codes| codes.split(", ")).collect();
        let warnings: Vec<&str> = read.warnings().iter().map(|it| it.code().name()).collect();
        assert_eq!(warnings, expected, "{name}: {:#?}", read.warnings());
    }
}

#[test]
fn every_refused_file_has_the_one_mistake_it_names() {
    let mut wrong = Vec::new();
    for (name, text) in files("descriptors/refused") {
        let expected = said(&text, "expect: ");
        let Err(mistakes) = Descriptors::parse(&[(&name, &text)], false) else {
            panic!("{name} was accepted")
        };
        let found: Vec<String> = mistakes
            .iter()
            .map(|mistake| format!("{}: {}", mistake.place(), mistake.sentence()))
            .collect();
        if found != expected {
            wrong.push((name, found));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_mistake_of_every_file_is_told_file_by_file() {
    let one = "domain: a\ndescriptors: [{ key: '' }, { value: x }]\n";
    let two = "domain: b\ndescriptors: [{ key: c, rate_limit: { unit: day } }]\n---\ndomain: a\n";
    let mistakes = Descriptors::parse(&[("one.yaml", one), ("two.yaml", two)], false).unwrap_err();
    let places: Vec<String> = mistakes.iter().map(|it| it.place().to_string()).collect();
    assert_eq!(places, ["one.yaml:2:22", "one.yaml:2:28", "two.yaml:2:37", "two.yaml:4:9"]);
}

#[test]
fn no_file_at_all_is_a_set_that_limits_nothing() {
    let none = Descriptors::parse(&[], false).unwrap();
    assert!(none.domain("d").is_none());
    assert!(none.limits().is_empty());
}

#[test]
fn the_value_comes_before_wildcards_in_file_order_and_the_bare_key_last() {
    let descriptors = read(
        "
domain: d
descriptors:
  - { key: path, rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: path, value: '/a*', rate_limit: { unit: day, requests_per_unit: 2 } }
  - { key: path, value: '*b', rate_limit: { unit: day, requests_per_unit: 3 } }
  - { key: path, value: '/ab', rate_limit: { unit: day, requests_per_unit: 4 } }
  - { key: path, value: /listed }
  - { key: path, value: '/x*/y*z', rate_limit: { unit: day, requests_per_unit: 5 } }
",
    );
    let check = |value: &str, expected: &str| {
        assert_eq!(chosen(&descriptors, &[("path", value)]), expected, "{value}");
    };
    check("/ab", "4");
    check("/axb", "2");
    check("xb", "3");
    check("/c", "1");
    check("", "1");
    check("/listed", "free");
    check("/x1/y2z", "5");
    check("/x1/y2", "1");
    assert_eq!(chosen(&descriptors, &[("paths", "/ab")]), "free");
    assert_eq!(chosen(&descriptors, &[]), "free");
}

#[test]
fn the_depth_must_match_and_there_is_no_way_back() {
    let descriptors = read(
        "
domain: d
descriptors:
  - key: a
    value: x
    rate_limit: { unit: day, requests_per_unit: 1 }
    descriptors:
      - { key: b, rate_limit: { unit: day, requests_per_unit: 2 } }
  - key: a
    descriptors:
      - { key: b, rate_limit: { unit: day, requests_per_unit: 3 } }
      - { key: c, rate_limit: { unit: day, requests_per_unit: 4 } }
",
    );
    let check = |entries: &[(&str, &str)], expected: &str| {
        assert_eq!(chosen(&descriptors, entries), expected, "{entries:?}");
    };
    check(&[("a", "x")], "1");
    check(&[("a", "x"), ("b", "1")], "2");
    check(&[("a", "y")], "free");
    check(&[("a", "y"), ("b", "1")], "3");
    check(&[("a", "y"), ("c", "1")], "4");
    check(&[("a", "x"), ("c", "1")], "free");
    check(&[("a", "x"), ("b", "1"), ("c", "1")], "free");
    check(&[("b", "1"), ("a", "x")], "free");
}

#[test]
fn a_key_and_a_value_are_never_taken_for_another_key() {
    let descriptors = read(
        "
domain: d
descriptors:
  - { key: a_b, rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: a, value: b, rate_limit: { unit: day, requests_per_unit: 2 } }
  - { key: a, value: b_c, rate_limit: { unit: day, requests_per_unit: 3 } }
  - { key: a_b, value: c, rate_limit: { unit: day, requests_per_unit: 4 } }
",
    );
    assert_eq!(chosen(&descriptors, &[("a", "b")]), "2");
    assert_eq!(chosen(&descriptors, &[("a_b", "x")]), "1");
    assert_eq!(chosen(&descriptors, &[("a", "b_c")]), "3");
    assert_eq!(chosen(&descriptors, &[("a_b", "c")]), "4");
}

#[test]
fn two_files_speak_of_one_domain_if_they_may() {
    let one =
        "domain: d\ndescriptors: [{ key: a, rate_limit: { unit: day, requests_per_unit: 1 } }]";
    let two =
        "domain: d\ndescriptors: [{ key: b, rate_limit: { unit: day, requests_per_unit: 2 } }]";
    let files = [("one.yaml", one), ("two.yaml", two)];
    let mistakes = Descriptors::parse(&files, false).unwrap_err();
    assert_eq!(
        mistakes.iter().next().unwrap().sentence(),
        "domain \"d\" is described in one.yaml, line 1, already; write both in one, or set \
         merge_domains of the policy's descriptors"
    );
    let both = Descriptors::parse(&files, true).unwrap();
    assert_eq!(chosen(&both, &[("a", "")]), "1");
    assert_eq!(chosen(&both, &[("b", "")]), "2");
    let again = Descriptors::parse(&[("one.yaml", one), ("three.yaml", one)], true).unwrap_err();
    assert_eq!(again.iter().count(), 1, "{again}");
}

#[test]
fn units_and_multipliers_are_told_as_written_and_times_in_the_longest_unit() {
    let descriptors = read(
        "
domain: d
descriptors:
  - { key: a, rate_limit: { unit: minute, unit_multiplier: 90, requests_per_unit: 1 } }
  - { key: b, rate_limit: { every: 90s, requests_per_unit: 1 } }
  - { key: c, rate_limit: { every: 2h, requests_per_unit: 1 } }
  - { key: e, rate_limit: { every: 14d, requests_per_unit: 1 } }
",
    );
    let domain = descriptors.domain("d").unwrap();
    let told = |key: &str| {
        let limit = &domain.find(&[(key, "")]).unwrap().limits()[0];
        (limit.unit(), limit.unit_multiplier())
    };
    assert_eq!(told("a"), (Unit::Minute, 90));
    assert_eq!(told("b"), (Unit::Second, 90));
    assert_eq!(told("c"), (Unit::Hour, 2));
    assert_eq!(told("e"), (Unit::Week, 2));
}

#[test]
fn equal_limits_are_one_and_windows_are_fixed_unless_said() {
    let descriptors = read(
        "
domain: d
descriptors:
  - { key: a, rate_limit: { unit: minute, requests_per_unit: 7 } }
  - { key: b, rate_limit: { every: 60s, requests_per_unit: 7, algorithm: fixed_window } }
",
    );
    let quota = tollgate_core::Quota::per_minute(7);
    assert_eq!(descriptors.limits(), [Limit::fixed_window(quota, tollgate_core::Align::Clock)]);
}

#[test]
fn what_is_too_deep_too_many_or_too_long_is_refused() {
    let check = |text: &str, expected: &str| {
        let mistakes = parse(text).unwrap_err();
        let told = mistakes.iter().any(|mistake| mistake.sentence().contains(expected));
        assert!(told, "{expected}: {}", mistakes.iter().next().unwrap());
    };
    let deep =
        format!("domain: d\ndescriptors: {}{}", "[{key: a, descriptors: ".repeat(17), "[{key: a}]");
    check(&format!("{deep}{}", "}]".repeat(17)), "nest deeper than 16");
    let many: String = (0..=100_000).map(|number| format!("\n- {{key: k{number}}}")).collect();
    check(&format!("domain: d\ndescriptors:{many}"), "more than 100000 descriptors");
    check(&format!("domain: {}", "d".repeat(1_025)), "the most is 1024");
    check(&format!("domain: d\n#{}", "x".repeat(33 << 20)), "longer than");
    check("domain: d\ndescriptors: &a [*a]", "alias");
}

#[test]
fn ten_thousand_descriptors_are_each_found() {
    let mut text = "domain: d\ndescriptors:\n".to_owned();
    for number in 0..5_000 {
        let limit = format!("rate_limit: {{ unit: day, requests_per_unit: {number} }}");
        text += &format!("- {{ key: user, value: u{number}, {limit} }}\n");
        text += &format!("- {{ key: path, value: /{number}/*, {limit} }}\n");
    }
    let descriptors = read(&text);
    for number in 0..5_000 {
        let (user, path) = (format!("u{number}"), format!("/{number}/x"));
        assert_eq!(chosen(&descriptors, &[("user", &user)]), number.to_string());
        assert_eq!(chosen(&descriptors, &[("path", &path)]), number.to_string());
    }
}
