//! The index finds the limits that asking each of them finds, for any patterns and any path.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_policy::{Admission, Charges, Policy, Request, Scratch};

fuzz_target!(|input: (Vec<String>, Vec<u8>)| {
    let (patterns, path) = input;
    let mut yaml = String::from("limits:\n");
    for (number, pattern) in patterns.iter().take(16).enumerate() {
        let quoted = pattern.replace('\'', "''").replace(['\n', '\r'], "");
        yaml += &format!("  - {{name: l{number}, when: {{path: '{quoted}'}}, rate: 1/s}}\n");
    }
    let no_files = |_: &str| Err(String::new());
    let Ok(policy) = Policy::parse("fuzz.yaml", &yaml, &mut { no_files }) else { return };
    let attributes: [(&str, &[u8]); 1] = [("path", &path)];
    let request = Request::new(&attributes);
    let mut scratch = Scratch::default();
    let mut charges = Charges::new();
    let Admission::Charged = policy.admit(&request, &mut scratch, &mut charges) else { return };
    let found: Vec<usize> = charges.iter().map(|charge| charge.rule_index).collect();
    assert_eq!(found, policy.rules_by_asking_each(&request));
});
