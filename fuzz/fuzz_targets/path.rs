//! For any patterns and any path, the index and asking each limit find what a matcher finds that is too plain to be
//! wrong. The first line is the path, each other line a pattern.
#![no_main]

#[path = "../../crates/tollgate-policy/tests/it/plain.rs"]
mod plain;

use libfuzzer_sys::fuzz_target;
use tollgate_policy::{Admission, Charges, Policy, Request, Scratch};

const PATTERNS_MAX: usize = 16;

fuzz_target!(|bytes: &[u8]| {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let path = lines.next().unwrap_or_default();
    let patterns: Vec<&str> =
        lines.take(PATTERNS_MAX).filter_map(|line| std::str::from_utf8(line).ok()).collect();
    let mut yaml = String::from("limits:\n");
    for (number, pattern) in patterns.iter().enumerate() {
        let quoted = pattern.replace('\'', "''");
        yaml += &format!("  - {{name: l{number}, when: {{path: '{quoted}'}}, rate: 1/s}}\n");
    }
    let no_files = |_: &str| Err(String::new());
    let Ok(policy) = Policy::parse("fuzz.yaml", &yaml, &mut { no_files }) else { return };
    let attributes: [(&str, &[u8]); 1] = [("path", path)];
    let request = Request::new(&attributes);
    let (mut scratch, mut charges) = (Scratch::default(), Charges::new());
    let admission = policy.admit(&request, &mut scratch, &mut charges);
    assert!(matches!(admission, Admission::Charged));
    let found: Vec<usize> = charges.iter().map(|charge| charge.rule_index).collect();
    let right: Vec<usize> =
        (0..patterns.len()).filter(|number| plain::stands_for(patterns[*number], path)).collect();
    assert_eq!(found, right, "by the index");
    assert_eq!(policy.rules_by_asking_each(&request), right, "by asking each");
});
