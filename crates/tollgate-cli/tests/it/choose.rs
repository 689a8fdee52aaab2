//! `tollgate choose`

use serde_json::Value;

use crate::{Folder, tollgate, tollgate_reading};

fn check(arguments: &[&str], input: &str, policy: &str, reason: &str) {
    let run = tollgate_reading(&[&["choose"], arguments].concat(), input);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(run.stdout, policy);
    assert!(run.stderr.contains(reason), "{}", run.stderr);
}

const ALL_NO: [&str; 8] = ["--exact", "no", "--fragile", "no", "--reset", "no", "--bursty", "no"];

#[test]
fn flags_answer_every_question() {
    let flags = [&["--rate", "60/minute"], &ALL_NO[..]].concat();
    check(
        &flags,
        "",
        "limits:\n  - name: api\n    per: [client_ip]\n    rate: 60/minute\n    \
         algorithm: sliding_window\n",
        "sliding_window: about 60 in any 1m",
    );
}

#[test]
fn each_answer_leads_to_its_algorithm() {
    let check_end = |answers: &str, end: &str, reason: &str| {
        let policy = format!("limits:\n  - name: api\n    per: [client_ip]\n    {end}\n");
        check(&[], answers, &policy, reason);
    };
    check_end("yes\n10\n", "concurrency: 10", "concurrency: at most 10");
    check_end(
        "no\n5/minute\nyes\n",
        "rate: 5/minute\n    algorithm: sliding_log",
        "sliding_log: never more than 5 in any 1m",
    );
    check_end(
        "no\n60/minute\nno\nyes\n",
        "rate: 60/minute\n    algorithm: leaky_bucket\n    queue: 5",
        "leaky_bucket: requests go on one by one",
    );
    check_end(
        "n\n1000/day\nn\nn\ny\n",
        "rate: 1000/day\n    algorithm: fixed_window",
        "fixed_window: 1000 in each 1d",
    );
    check_end(
        "No\n60/minute\nNO\nno\nno\nYes\n",
        "rate: 60/minute\n    algorithm: token_bucket\n    burst: 60",
        "token_bucket: who was idle",
    );
    check_end(
        "no\n1000/90s\nno\nno\nno\nno\n",
        "rate: 1000/90s\n    algorithm: sliding_window",
        "sliding_window: about 1000",
    );
}

#[test]
fn flags_and_answers_go_together() {
    check(
        &["--rate", "100/second", "--exact", "no", "--per", "header:x-api-key", "--name", "search"],
        "yes\n",
        "limits:\n  - name: search\n    per: [header:x-api-key]\n    rate: 100/second\n    \
         algorithm: leaky_bucket\n    queue: 100\n",
        "Is what lies behind fragile",
    );
}

#[test]
fn a_name_that_yaml_would_misread_is_quoted() {
    check(
        &["--concurrency", "3", "--name", "no", "--per", "tenant"],
        "",
        "limits:\n  - name: \"no\"\n    per: [tenant]\n    concurrency: 3\n",
        "concurrency",
    );
}

#[test]
fn the_limit_can_be_pasted_below_those_of_a_policy() {
    let check = |arguments: &[&str], name: &str, per: &str, rate: Option<&str>| {
        let named = [&["choose", "--name", name, "--per", per], arguments].concat();
        let chosen = tollgate(&named);
        assert_eq!(chosen.code, Some(0), "{}", chosen.stderr);
        let limit = chosen.stdout.strip_prefix("limits:\n").expect("it is a policy");
        let policy = format!("limits:\n  - name: before\n    rate: 1/second\n{limit}");
        let folder = Folder::with(&[("policy.yaml", &policy)]);
        let said = format!("{per}=it");
        let run = folder.tollgate(&["explain", "-c", "policy.yaml", "--output", "json", &said]);
        assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""), "{policy}");
        let told: Value = serde_json::from_str(&run.stdout).expect("the output is JSON");
        let limit = &told["limits"][1];
        assert_eq!((limit["name"].as_str(), limit["rate"].as_str()), (Some(name), rate));
        let key = limit["key"].as_str().expect("it applies");
        assert!(key.starts_with(&format!("{name}:")), "{key}");
    };
    check(&["--concurrency", "10"], "in-flight", "tenant", None);
    check(&["--rate", "5/2 weeks", "--exact", "yes"], "null", "header:x-user", Some("5/14d"));
    check(&["--rate", "60/m", "--exact", "no", "--fragile", "yes"], "a~b", "no", Some("60/minute"));
    check(&[&["--rate", "1/1500ms"], &ALL_NO[..]].concat(), "1.5", "a:b", Some("1/1500ms"));
}

fn check_refused(arguments: &[&str], input: &str, sentence: &str) {
    let run = tollgate_reading(&[&["choose"], arguments].concat(), input);
    assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{arguments:?}");
    assert!(run.stderr.contains(sentence), "{}", run.stderr);
}

#[test]
fn input_that_ends_too_early_is_said_with_the_flag_that_helps() {
    check_refused(&[], "", "the input ended before this was answered; give --in-flight");
    check_refused(&[], "no\n", "give --rate");
    check_refused(&["--rate", "5/s"], "no\nno\n", "give --reset");
}

#[test]
fn an_answer_that_is_none_is_a_mistake() {
    check_refused(&[], "perhaps\n", "\"perhaps\" is no answer; write yes or no");
    check_refused(&[], "no\nfive\n", "\"five\" is not a rate");
    check_refused(&[], "yes\nfive\n", "\"five\" is not a whole number");
    check_refused(&["--bursty", "perhaps"], "", "perhaps");
}

#[test]
fn what_the_engine_cannot_serve_is_not_recommended() {
    check_refused(
        &["--rate", "200000/minute", "--exact", "yes"],
        "",
        "200000 entries a key are more than a log holds",
    );
    check_refused(
        &["--concurrency", "100001"],
        "",
        "100001 at a time are more than are told apart",
    );
}

#[test]
fn names_that_a_policy_does_not_take_are_not_recommended() {
    let slots = ["--concurrency", "3"];
    check_refused(&[&slots[..], &["--name", "a:b"]].concat(), "", "name \"a:b\" is not 1 to 64");
    check_refused(
        &[&slots[..], &["--per", "header:"]].concat(),
        "",
        "names nothing after the colon",
    );
}

#[test]
fn answers_that_contradict_each_other_are_a_mistake() {
    check_refused(&["--rate", "5/s", "--concurrency", "5"], "", "cannot be used with");
    check_refused(&["--in-flight", "yes", "--rate", "5/s"], "", "give --concurrency instead");
    check_refused(&["--in-flight", "no", "--concurrency", "5"], "", "give --rate instead");
    check_refused(&["--name", "a b"], "", "is not a name");
}

#[test]
fn nothing_but_the_policy_goes_to_standard_output() {
    let flags = [&["choose", "--rate", "60/minute"], &ALL_NO[..]].concat();
    let run = tollgate(&flags);
    assert!(run.stdout.starts_with("limits:\n"));
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
}
