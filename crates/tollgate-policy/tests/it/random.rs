//! Random bytes and random patterns, the same ones in every run.

use tollgate_policy::Policy;

use crate::{Random, corpus, names, plain, policy};

/// What has a meaning in YAML, or never should.
const MARKS: &[u8] = b"{}[]:,-&*!|>'\"%@`#? \n\t\0~";

/// Changes a few places of a text in the ways files get damaged.
fn damaged(text: &str, random: &mut Random) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..1 + random.below(2) {
        let at = random.below(bytes.len().max(1));
        match random.below(5) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at.min(bytes.len()), random.next() as u8),
            2 if at < bytes.len() => bytes[at] = MARKS[random.below(MARKS.len())],
            3 if at < bytes.len() => drop(bytes.remove(at)),
            _ => {
                let end = (at + random.below(40)).min(bytes.len());
                let piece = bytes[at.min(end)..end].to_vec();
                let to = random.below(bytes.len() + 1);
                bytes.splice(to..to, piece);
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn a_damaged_policy_never_panics() {
    let mut random = Random(11);
    let files = [corpus::files("accepted"), corpus::files("refused")].concat();
    let (mut accepted, mut refused) = (0, 0);
    for round in 0..4_000 {
        let (name, text) = &files[round % files.len()];
        let damaged = damaged(text, &mut random);
        match corpus::parse(name, &damaged) {
            Ok(policy) => {
                accepted += 1;
                let _ = crate::ask_http(&policy, &[("path", b"/api/a"), ("client_ip", b"::1")]);
            }
            Err(mistakes) => {
                refused += 1;
                let shown = mistakes.to_string();
                assert!(!shown.is_empty() && !shown.contains(['\0', '\u{1b}']), "{shown:?}");
            }
        }
    }
    assert!(accepted > 50 && refused > 50, "{accepted} accepted, {refused} refused");
}

#[test]
fn a_damaged_tenants_file_never_panics() {
    let mut random = Random(13);
    let text = "tenants: { from: header:x-api-key, file: t.yaml, unknown: { tier: free } }
limits:
  - { name: api, rate: 60/minute, algorithm: token_bucket }
  - { name: slots, concurrency: 10 }
";
    for (_, tenants) in corpus::files("tenants").iter().cycle().take(2_000) {
        let damaged = damaged(tenants, &mut random);
        let result = Policy::parse("policy.yaml", text, &mut |_| Ok(damaged.clone()));
        if let Ok(policy) = result {
            let _ = crate::ask_http(&policy, &[("header:x-api-key", b"one")]);
        }
    }
}

#[test]
fn patterns_stand_for_what_their_plain_meaning_says() {
    let mut random = Random(17);
    let (mut inside, mut outside) = (0, 0);
    for _ in 0..400 {
        let pattern: Vec<&str> = (0..1 + random.below(6))
            .map(|_| random.one_of(&["a", "b", "*", "**", "{x}", "**"]))
            .collect();
        let written = format!("/{}", pattern.join("/"));
        let plain = policy(&format!(
            "limits:\n  - {{ name: it, when: {{ path: \"{written}\" }}, rate: 1/minute }}\n"
        ));
        let negated = policy(&format!(
            "limits:\n  - {{ name: it, when: {{ path: {{ not: \"{written}\" }} }}, rate: 1/minute }}\n"
        ));
        for _ in 0..60 {
            let segments: Vec<&str> =
                (0..1 + random.below(7)).map(|_| random.one_of(&["a", "b", "c", ""])).collect();
            let path = format!("/{}", segments.join("/"));
            let expected = plain::stands_for(&written, path.as_bytes());
            let applies = |policy: &Policy| !names(policy, &[("path", path.as_bytes())]).is_empty();
            // The first is found by the tree, the second is asked.
            assert_eq!(applies(&plain), expected, "{written} {path}");
            assert_eq!(applies(&negated), !expected, "{written} {path}");
            if expected { inside += 1 } else { outside += 1 }
        }
    }
    assert!(inside > 1_000 && outside > 1_000, "{inside} inside, {outside} outside");
}
