//! Policies that are right, and policies that have one mistake each.
//!
//! A file under `accepted` says in a comment at its top which warnings it gets (`# warns: a, b`);
//! a file under `refused` says the first line of its only mistake (`# expect: …`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tollgate_policy::{Descriptors, Mistakes, Policy, WarningCode};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(name)
}

pub(crate) fn files(name: &str) -> Vec<(String, String)> {
    let entries = std::fs::read_dir(folder(name)).expect("the corpus is part of the crate");
    let mut files: Vec<(String, String)> = entries
        .map(|entry| {
            let path = entry.expect("its files can be listed").path();
            let name = path.file_name().and_then(|name| name.to_str()).expect("names are text");
            (name.to_owned(), std::fs::read_to_string(&path).expect("its files can be read"))
        })
        .collect();
    files.sort();
    files
}

pub(crate) fn parse(name: &str, text: &str) -> Result<Policy, Mistakes> {
    Policy::parse(name, text, &mut |file| {
        std::fs::read_to_string(folder("tenants").join(file))
            .map_err(|_| "there is no such file".to_owned())
    })
}

/// What the comments at the top of a file say under a heading.
pub(crate) fn said<'t>(text: &'t str, heading: &str) -> Vec<&'t str> {
    let comments = text.lines().take_while(|line| line.starts_with('#'));
    comments.filter_map(|line| line.strip_prefix("# ")?.strip_prefix(heading)).collect()
}

#[test]
fn every_accepted_policy_is_read_with_the_warnings_it_names() {
    for (name, text) in files("accepted") {
        let policy = parse(&name, &text).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let expected: Vec<&str> =
            said(&text, "warns: ").iter().flat_map(|codes| codes.split(", ")).collect();
        let warnings: Vec<&str> =
            policy.warnings().iter().map(|warning| warning.code().name()).collect();
        assert_eq!(warnings, expected, "{name}: {:#?}", policy.warnings());
    }
}

#[test]
fn every_refused_policy_has_the_one_mistake_it_names() {
    let mut wrong = Vec::new();
    for (name, text) in files("refused") {
        let expected = said(&text, "expect: ");
        let Err(mistakes) = parse(&name, &text) else { panic!("{name} was accepted") };
        let found: Vec<String> = mistakes
            .iter()
            .map(|mistake| format!("{}: {}", mistake.place(), mistake.sentence()))
            .collect();
        let shown = mistakes.to_string();
        if found != expected || shown.lines().next() != Some(expected[0]) {
            wrong.push((found, expected[0].to_owned()));
        }
    }
    assert!(wrong.is_empty(), "found, expected: {wrong:#?}");
}

#[test]
fn every_warning_is_told_by_some_accepted_policy() {
    let mut told = BTreeSet::new();
    for (name, text) in files("accepted") {
        let policy = parse(&name, &text).unwrap();
        told.extend(policy.warnings().iter().map(|warning| warning.code().name()));
    }
    for (name, text) in files("descriptors/accepted") {
        let descriptors = Descriptors::parse(&[(&name, &text)], false).unwrap();
        told.extend(descriptors.warnings().iter().map(|warning| warning.code().name()));
    }
    let all: BTreeSet<&str> = WarningCode::ALL.iter().map(|code| code.name()).collect();
    assert_eq!(told, all);
}

#[test]
fn a_file_with_many_mistakes_is_told_of_all_of_them_in_order() {
    let text = "\
limits:
  - name: login
    rate: 5/minuet
    brust: 10
  - name: api
    rate: 60/minute
    algorithm: tocken_bucket
    per: client_ip
store: mermory
";
    let mistakes = crate::parse(text).unwrap_err();
    let places: Vec<(usize, usize)> =
        mistakes.iter().map(|mistake| (mistake.place().line, mistake.place().column)).collect();
    assert_eq!(places, [(3, 11), (4, 5), (7, 16), (8, 10), (9, 8)], "{mistakes}");
}

#[test]
fn a_name_given_twice_is_told_whatever_else_is_wrong_with_its_limits() {
    let told = |first: &str, second: &str| {
        let text =
            format!("limits:\n  - {{ name: api, {first} }}\n  - {{ name: api, {second} }}\n");
        let mistakes = crate::parse(&text).unwrap_err();
        let told = mistakes.iter().filter(|it| it.sentence().contains("another limit has this"));
        told.map(|it| (it.place().line, it.place().column)).collect::<Vec<_>>()
    };
    for (first, second) in
        [("rate: 5/minuet", "rate: 5/minute"), ("rate: 5/minute", "cost: 1"), ("", "mode: odd")]
    {
        assert_eq!(told(first, second), [(3, 13)], "{first}, {second}");
    }
}

#[test]
fn an_entry_that_holds_for_everybody_is_told_whatever_came_before() {
    for before in ["", "{client_ip: nowhere}, ", "{plan: }, 7, ", "{per haps: x}, "] {
        let text = format!("store: mermory\nexempt: [{before}{{}}]\ndeny: [{before}{{}}]\n");
        let mistakes = crate::parse(&text).unwrap_err();
        let told = mistakes.iter().filter(|it| it.sentence().contains("hold for every request"));
        let lines: Vec<usize> = told.map(|it| it.place().line).collect();
        assert_eq!(lines, [2, 3], "{mistakes}");
    }
}

/// The sentences of the warnings of one limit.
fn warnings_of(limit: &str) -> Vec<String> {
    let policy = crate::policy(&format!("listen: {{}}\nlimits:\n  - {{ name: it, {limit} }}\n"));
    policy.warnings().iter().map(|warning| warning.sentence().to_owned()).collect()
}

#[test]
fn who_is_always_denied_is_said() {
    let check = |limit: &str, sentences: &[&str]| assert_eq!(warnings_of(limit), sentences);
    check(
        "rate: 0/minute",
        &["limit \"it\" allows nothing: every request it applies to is denied"],
    );
    check(
        "rate: 0/minute, mode: shadow",
        &["limit \"it\" allows nothing: every request it applies to would be denied"],
    );
    check(
        "rate: { free: 0/minute, default: 5/minute }",
        &["limit \"it\" allows nothing for tier \"free\": every such request is denied"],
    );
    check(
        "rate: { by: header:x-api-key, values: { KEY: 0/minute }, default: 5/minute }",
        &["limit \"it\" allows nothing for header:x-api-key …: every such request is denied"],
    );
    check(
        "concurrency: { by: plan, values: { a: 5 }, default: 0 }",
        &["limit \"it\" allows nothing for any other plan: every such request is denied"],
    );
    check(
        "rate: 5/minute, cost: 6",
        &[
            "limit \"it\" never holds the 6 units that a request costs: every request it applies to \
           is denied",
        ],
    );
    check(
        "rate: { free: 5/minute, default: 60/minute }, cost: 6",
        &[
            "limit \"it\" never holds the 6 units that a request costs for tier \"free\": every such \
           request is denied",
        ],
    );
    check(
        "rate: { a: 4/minute, b: 5/minute, c: 6/minute, default: 1/minute }, cost: 6",
        &["limit \"it\" never holds the 6 units that a request costs for tier \"a\" and 2 more: \
           every such request is denied"],
    );
    check(
        "rate: [5/second, { free: 5/minute, default: 60/minute }], cost: 6",
        &[
            "limit \"it\" never holds the 6 units that a request costs: every request it applies to \
           is denied",
        ],
    );
}

#[test]
fn what_is_of_use_with_redis_only_is_said() {
    let told = warnings_of("rate: 50/minute, algorithm: fixed_window, sync: leased");
    assert_eq!(
        told,
        [
            "limit \"it\" has sync: leased, which does nothing with store: memory: there every request \
          is decided here"
        ]
    );
    let told = warnings_of("rate: 50/minute, shards: { count: 10, by: client_ip }");
    assert_eq!(
        told,
        [
            "limit \"it\" is split into shards, which is of no use with store: memory: it only denies \
          some callers too early"
        ]
    );
    let policy = crate::policy("nodes: 3\nlimits: [{ name: it, rate: 5/minute }]");
    assert_eq!(
        policy.warnings()[0].to_string(),
        "policy.yaml:1:1: warning[counts-apart]: each of the 3 nodes counts in its own memory, so \
         together they allow 3 times every limit; let them share a store, as in store: \
         redis://127.0.0.1:6379"
    );
}

#[test]
fn a_cost_that_some_share_of_a_limit_never_holds_is_said() {
    let told = |cost: u32| {
        let policy = crate::policy(&format!(
            "store: redis://h\nlimits: [{{ name: it, rate: {{ pro: 35/minute, default: 29/minute }}, \
             cost: {cost}, shards: {{ count: 10, by: client_ip }} }}]"
        ));
        let warnings = policy.warnings().iter();
        warnings.map(|warning| warning.sentence().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(told(2), [""; 0]);
    assert_eq!(
        told(3),
        ["limit \"it\" has shards that never hold the 3 units that a request costs for any other \
          tier: callers on those are always denied"]
    );
}

#[test]
fn only_doors_that_are_open_are_warned_of() {
    let check = |listen: &str, sentences: &[&str]| {
        let limits = "limits: [{ name: slots, concurrency: 5 }, \
                      { name: leaky, rate: 5/minute, algorithm: leaky_bucket }]";
        let policy = crate::policy(&format!("{listen}\n{limits}\n"));
        let told = policy.warnings().iter().map(tollgate_policy::Warning::sentence);
        assert_eq!(told.collect::<Vec<_>>(), sentences, "{listen}");
    };
    check("listen: {}", &[]);
    check("listen: { admin: 127.0.0.1:8082 }", &[]);
    check(
        "listen: { http: 127.0.0.1:8080 }",
        &[
            "limit \"slots\" is skipped at these doors, which never learn when a request ends: http \
             (forward-auth)",
            "limit \"leaky\" cannot hold requests at these doors, only say for how long to: http",
        ],
    );
    check(
        "",
        &[
            "limit \"slots\" is skipped at these doors, which never learn when a request ends: http \
             (forward-auth), grpc; both are open unless listen is written",
            "limit \"leaky\" cannot hold requests at these doors, only say for how long to: http, \
             grpc; both are open unless listen is written",
        ],
    );
}

#[test]
fn what_a_tier_without_an_entry_gets_is_said() {
    let text = "\
tenants: { from: header:x-api-key, file: t, unknown: { tier: free } }
limits:
  - { name: it, rate: 60/minute, algorithm: token_bucket, burst: { free: 5 }, cost: { by: tier, values: { free: 2 } } }
";
    let policy = crate::policy_with(text, "keys: { KEY: { tenant: acme, tier: pro } }");
    let sentences: Vec<&str> =
        policy.warnings().iter().map(tollgate_policy::Warning::sentence).collect();
    assert_eq!(
        sentences,
        [
            "limit \"it\": burst has nothing for tier \"pro\" of the tenants file, which gets what \
             tier \"free\" gets",
            "limit \"it\": cost has nothing for tier \"pro\" of the tenants file, which costs 1",
        ]
    );
}

#[test]
fn a_tenants_file_given_as_a_policy_shows_no_key() {
    let sentence = "this is a tenants file; name it under tenants.file of a policy";
    for text in [
        "keys: { s3cret: { tenant: acme } }",
        "# keys\nkeys:\n  s3cret: { tenant: acme }\n  s3cret: { tenant: acme }\n",
        "{\"keys\": {\"s3cret\": {\"tenant\": \"acme\"}}}",
        "{limits: {s3cret: 1, s3cret: 2}, keys: {s3cret: {tenant: acme}}}",
    ] {
        let mistakes = crate::parse(text).unwrap_err();
        let told: Vec<&str> = mistakes.iter().map(tollgate_policy::Mistake::sentence).collect();
        assert_eq!(told, [sentence], "{text}");
        assert!(!mistakes.to_string().contains("s3cret"), "{mistakes}");
    }
    for text in [
        "keys:\n  s3cret: { tenant: acme\n",
        "\u{FEFF}'keys' : {s3cret: *alias}\n",
        "{\n  \"keys\": {\"s3cret\": {\"tenant\": \"acme\"}\n",
    ] {
        let mistakes = crate::parse(text).unwrap_err().to_string();
        assert!(!mistakes.contains("s3cret"), "{mistakes}");
    }
}

#[test]
fn a_mistake_is_shown_with_its_line_and_a_caret() {
    let text = "limits:\n  - name: login\n    rate: 5/minuet\n";
    let expected = "\
policy.yaml:3:11: limit \"login\": rate \"5/minuet\" is not a rate; write for example 5/minute or 1000/90s
  |
3 |     rate: 5/minuet
  |           ^^^^^^^^";
    assert_eq!(crate::parse(text).unwrap_err().to_string(), expected);
}

#[test]
fn a_mistake_in_a_tenants_file_does_not_show_the_key() {
    for (name, text) in
        files("refused").iter().filter(|(name, _)| name.starts_with("tenants-file-"))
    {
        let mistakes = parse(name, text).unwrap_err().to_string();
        assert!(!mistakes.contains("secret-key"), "{mistakes}");
        assert!(!mistakes.contains("   |"), "no line of a file of keys is shown: {mistakes}");
    }
}

#[test]
fn a_mistake_does_not_show_a_password() {
    let files = files("refused");
    let with_password: Vec<_> = files.iter().filter(|(_, text)| text.contains("s3")).collect();
    assert!(with_password.len() > 8, "{}", with_password.len());
    for (name, text) in with_password {
        let mistakes = parse(name, text).unwrap_err().to_string();
        assert!(!mistakes.contains("s3") && !mistakes.contains("cret"), "{mistakes}");
    }
}

#[test]
fn escapes_written_in_a_policy_do_not_reach_the_terminal() {
    let text =
        "limits:\n  - { name: \"\\e[31mred\\x07\", rate: \"\\e]0;title\\a\" , per: \"\\u202e\" }\n";
    let shown = crate::parse(text).unwrap_err().to_string();
    assert!(!shown.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{shown:?}");
}
