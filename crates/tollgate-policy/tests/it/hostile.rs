//! What the world does to a policy file. Each is refused with a sentence, or read right; nothing
//! panics, hangs or takes more memory than a policy may.

use tollgate_policy::bounds::{DEPTH_MAX, LIMITS_MAX, MISTAKES_MAX, POLICY_BYTES_MAX};

use crate::{corpus, parse, policy};

/// The sentence of the only mistake.
fn refusal(text: &str) -> String {
    let Err(mistakes) = parse(text) else { panic!("was accepted") };
    assert_eq!(mistakes.iter().count(), 1, "{mistakes}");
    mistakes.iter().map(tollgate_policy::Mistake::sentence).collect()
}

#[test]
fn a_half_written_file_is_refused_or_means_what_it_says_so_far() {
    for (name, text) in corpus::files("accepted") {
        for (end, _) in text.char_indices().step_by(7) {
            let _ = corpus::parse(&name, &text[..end]);
        }
    }
    let text = "limits:\n  - name: api\n    rate: 5/min";
    assert!(refusal(text).contains("is not a rate"));
    let text = "limits:\n  - name: api\n    rate: 5/minute\n    when: { path: /a";
    assert!(refusal(text).starts_with("this { is not closed"));
    let text = "limits:\n  - name: api\n";
    assert!(refusal(text).contains("rate is missing"));
    let text = "limi";
    assert!(refusal(text).contains("a map is expected"));
    assert_eq!(refusal(""), "the file is empty");
}

#[test]
fn a_mistake_in_a_last_line_without_an_end_is_told_of_that_line() {
    let mistakes = parse("limits: []\nlimi").unwrap_err();
    let places: Vec<(usize, usize)> =
        mistakes.iter().map(|it| (it.place().line, it.place().column)).collect();
    assert_eq!(places, [(2, 5)], "{mistakes}");
}

#[test]
fn a_file_beyond_the_bound_is_refused_unread() {
    let text = "# ".to_owned() + &"x".repeat(POLICY_BYTES_MAX);
    assert_eq!(refusal(&text), "the policy is 33 MiB long; the most is 32 MiB");
}

#[test]
fn a_million_limits_are_refused() {
    let limits: String =
        (0..1_000_000).map(|number| format!("- {{name: l{number}, rate: 5/minute}}\n")).collect();
    assert_eq!(
        refusal(&format!("limits:\n{limits}")),
        "the policy is 33 MiB long; the most is 32 MiB"
    );
    // Written as shortly as can be, they fit the file but not the policy.
    let limits = "- 1\n".repeat(LIMITS_MAX + 1);
    let sentence = refusal(&format!("limits:\n{limits}"));
    assert_eq!(sentence, format!("limits: 100001 limits are more than {LIMITS_MAX}, the most"));
}

#[test]
fn an_alias_bomb_is_refused_at_its_first_alias() {
    let mut text = String::from("a: &a [x, x, x, x, x, x, x, x, x]\n");
    for (one, next) in ('a'..='y').zip('b'..='z') {
        text +=
            &format!("{next}: &{next} [*{one}, *{one}, *{one}, *{one}, *{one}, *{one}, *{one}]\n");
    }
    assert_eq!(refusal(&text), "an alias (*…) is written here; write its value out");
}

#[test]
fn nul_and_other_controls_are_refused_where_they_are() {
    for control in ['\0', '\u{1}', '\u{1b}', '\u{7f}', '\u{c}'] {
        let text = format!("limits:\n  # é{control}\n");
        let mistakes = parse(&text).unwrap_err();
        let mistake = mistakes.iter().next().unwrap();
        assert_eq!((mistake.place().line, mistake.place().column), (2, 6), "{mistakes}");
        assert!(!mistakes.to_string().contains(control));
    }
}

#[test]
fn deep_nesting_is_refused() {
    let sentence = format!("lists and maps nest deeper than {DEPTH_MAX} here");
    let brackets = |depth: usize| format!("limits: {}{}\n", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(refusal(&brackets(200)), sentence);
    assert!(refusal(&brackets(1_000_000)).starts_with("this does not read as YAML"));
    let block: String = (0..100).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
    assert_eq!(refusal(&block), sentence);
    let dashes = format!("limits:\n  {}x\n", "- ".repeat(100_000));
    assert_eq!(refusal(&dashes), sentence);
}

#[test]
fn a_file_of_nothing_but_brackets_and_commas_is_refused() {
    let text = format!("limits: [{}]", ",".repeat(9_000_000));
    assert!(refusal(&text).contains("commas, colons, brackets and lines"));
}

#[test]
fn values_of_any_length_are_read_or_refused_shortly() {
    let long = "x".repeat(300_000);
    for text in [
        format!("limits:\n  - {{ name: {long}, rate: 5/minute }}\n"),
        format!("limits:\n  - {{ name: a, rate: {long} }}\n"),
        format!("limits:\n  - {{ name: a, rate: 5/minute, {long}: 1 }}\n"),
        format!("limits:\n  - {{ name: a, rate: 5/minute, when: {{ {long}: 1 }} }}\n"),
        format!("limits:\n  - {{ name: a, rate: 5/minute, when: {{ path: {long} }} }}\n"),
        format!("limits:\n  - {{ name: a, rate: 5/minute, per: {long} }}\n"),
        format!("store: {long}\n"),
        format!("{long}\n"),
    ] {
        let shown = parse(&text).unwrap_err().to_string();
        assert!(shown.len() < 2_000, "{} bytes: {}…", shown.len(), &shown[..200]);
    }
    policy(&format!("limits:\n  - {{ name: a, rate: 5/minute, when: {{ plan: {long} }} }}\n"));
}

#[test]
fn a_file_that_is_wrong_from_end_to_end_is_told_of_only_so_far() {
    let limits = "  - { name: \"?\", rate: 5/minuet }\n".repeat(10_000);
    let mistakes = parse(&format!("limits:\n{limits}")).unwrap_err();
    assert_eq!(mistakes.iter().count(), MISTAKES_MAX);
    assert_eq!(mistakes.untold(), 20_000 - MISTAKES_MAX);
    assert!(mistakes.to_string().ends_with("and 19000 more mistakes"));
}

#[test]
fn long_maps_are_searched_for_duplicates_in_good_time() {
    let values: String =
        (0..20_000).map(|number| format!("      v{number}: {number}/minute\n")).collect();
    let text = |values: &str| {
        format!(
            "limits:\n  - name: a\n    rate:\n      by: plan\n      default: 1/minute\n      values:\n{values}"
        )
    };
    let indented = values.replace("      v", "        v");
    let policy = policy(&text(&indented));
    assert_eq!(crate::ask_api(&policy, &[("plan", b"v19999")]), "a 19999/minute [] 1");
    let twice = indented + "        v5: 1/minute\n";
    assert_eq!(refusal(&text(&twice)), "\"v5\" is written twice; the first is in line 12");
}

#[test]
fn a_tenants_file_that_is_not_one_is_refused_without_its_text() {
    let text = "tenants: { from: header:x-api-key, file: t.yaml }\nlimits: []\n";
    for tenants in [
        "secret: a\n",
        "secret",
        "[secret]",
        "keys: secret",
        "keys: { a: secret }",
        "secret: [",
        "keys:\n  secret\n",
        "keys: { ? [secret] : b }",
        "keys:\n  a: { secret: 1, secret: 2 }\n",
        "\u{0}secret",
    ] {
        let result = tollgate_policy::Policy::parse("p", text, &mut |_| Ok(tenants.to_owned()));
        let shown = result.unwrap_err().to_string();
        assert!(!shown.contains("secret"), "{tenants:?}: {shown}");
    }
}

#[test]
fn a_password_in_a_url_is_not_repeated() {
    for text in [
        "store: redis://user:hunter2@\nlimits: []\n",
        "store: rediss://user:hunter2@host:99999\nlimits: []\n",
        "store: { redis: { url: \"redis://:hunter2@h:x\", timeout: never } }\nlimits: []\n",
        "upstream: http://user:hunter2@\nlimits: []\n",
        "store: { redis: { cluster: [redis://a, \"http://u:hunter2@b\"] } }\nlimits: []\n",
    ] {
        let shown = parse(text).unwrap_err().to_string();
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
