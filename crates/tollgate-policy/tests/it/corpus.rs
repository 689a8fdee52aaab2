//! Policies that are right, and policies that have one mistake each.
//!
//! A file under `accepted` says in a comment at its top which warnings it gets (`# warns: a, b`);
//! a file under `refused` says the first line of its only mistake (`# expect: …`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tollgate_policy::{Mistakes, Policy, WarningCode};

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
fn said<'t>(text: &'t str, heading: &str) -> Vec<&'t str> {
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
    for (name, text) in files("refused") {
        let expected = said(&text, "expect: ");
        let Err(mistakes) = parse(&name, &text) else { panic!("{name} was accepted") };
        let found: Vec<String> = mistakes
            .iter()
            .map(|mistake| format!("{}: {}", mistake.place(), mistake.sentence()))
            .collect();
        assert_eq!(found, expected, "{name}");
        let shown = mistakes.to_string();
        assert_eq!(shown.lines().next(), Some(expected[0]), "{name}");
    }
}

#[test]
fn every_warning_is_told_by_some_accepted_policy() {
    let mut told = BTreeSet::new();
    for (name, text) in files("accepted") {
        let policy = parse(&name, &text).unwrap();
        told.extend(policy.warnings().iter().map(|warning| warning.code().name()));
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
fn escapes_written_in_a_policy_do_not_reach_the_terminal() {
    let text =
        "limits:\n  - { name: \"\\e[31mred\\x07\", rate: \"\\e]0;title\\a\" , per: \"\\u202e\" }\n";
    let shown = crate::parse(text).unwrap_err().to_string();
    assert!(!shown.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{shown:?}");
}
