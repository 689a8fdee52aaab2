//! Any text is a policy or a list of mistakes, each at a place of the text. What is a policy finds the limits of a
//! request as asking each of its limits does, and every limit of it can be written down, read again and decided on.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_core::{ChargeId, Cost, Limit, Log, Timestamp, Word};
use tollgate_policy::{Admission, Charges, Missing, Place, Policy, Request, Scratch};

const NOW: Timestamp = Timestamp::from_micros(1_760_000_000_000_000);

/// What seeds and their mutants ask about.
const REQUESTS: [&[(&str, &[u8])]; 3] = [
    &[],
    &[("method", b"POST"), ("path", b"/login"), ("client_ip", b"203.0.113.7"), ("user", b"42")],
    &[
        ("method", b"GET"),
        ("path", b"/api/v1/users/42/"),
        ("host", b"api.example.com"),
        ("client_ip", b"2001:db8::1"),
        ("header:x-api-key", b"key"),
        ("tier", b"free"),
        ("plan", b"pro"),
    ],
];

fuzz_target!(|text: &str| {
    let read = || Policy::parse("fuzz.yaml", text, &mut |_| Ok(text.to_owned()));
    let policy = match read() {
        Ok(policy) => policy,
        Err(mistakes) => {
            mistakes.iter().for_each(|mistake| check_place(mistake.place(), text));
            assert!(!mistakes.to_string().contains(|it: char| it.is_control() && it != '\n'));
            assert_eq!(read().err(), Some(mistakes), "read twice, it is wrong in the same way");
            return;
        }
    };
    policy.warnings().iter().for_each(|warning| check_place(warning.place(), text));
    policy.limits().iter().for_each(check_limit);
    for attributes in REQUESTS {
        for missing in [Missing::Shared, Missing::Skip] {
            check_request(&policy, &Request { missing, ..Request::new(attributes) });
        }
    }
});

fn check_place(place: &Place, text: &str) {
    let lines = 1..=text.split('\n').count();
    assert!(lines.contains(&place.line) && place.column > 0, "{place}");
}

fn check_request(policy: &Policy, request: &Request<'_>) {
    let (mut scratch, mut charges) = (Scratch::default(), Charges::new());
    if let Admission::Charged = policy.admit(request, &mut scratch, &mut charges) {
        let found: Vec<usize> = charges.iter().map(|charge| charge.rule_index).collect();
        assert_eq!(found, policy.rules_by_asking_each(request));
    }
}

fn check_limit(limit: &Limit) {
    assert_eq!(Limit::from_numbers(limit.algorithm(), limit.numbers()), Some(*limit));
    let is_allowed = match limit {
        Limit::Counter(limit) => limit.decide(Word::VACANT, NOW, Cost::ONE).decision.is_allowed(),
        Limit::Logged(limit) => {
            limit.decide(&Log::default(), NOW, Cost::ONE, ChargeId(1)).decision.is_allowed()
        }
    };
    assert_eq!(is_allowed, limit.capacity() > 0, "of a limit that nobody has used");
}
