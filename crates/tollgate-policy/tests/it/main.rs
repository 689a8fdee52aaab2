//! The policy crate from the outside.

mod clients;
mod corpus;
mod descriptors;
mod docs;
mod hostile;
mod index;
mod keys;
mod layers;
mod matching;
mod plain;
mod random;
mod settings;
mod shards;
mod tenants;
mod upstream;

use tollgate_policy::{Admission, Charges, Missing, Mistakes, Policy, Request, Scratch};

/// Reads a policy that names no other file.
fn parse(text: &str) -> Result<Policy, Mistakes> {
    Policy::parse("policy.yaml", text, &mut |_| Err("there is no such file".to_owned()))
}

/// Reads a policy that must be right.
fn policy(text: &str) -> Policy {
    parse(text).unwrap_or_else(|mistakes| panic!("{mistakes}"))
}

/// Reads a policy that must be right, with its tenants file.
fn policy_with(text: &str, tenants: &str) -> Policy {
    let read = &mut |_: &str| Ok(tenants.to_owned());
    Policy::parse("policy.yaml", text, read).unwrap_or_else(|mistakes| panic!("{mistakes}"))
}

type Attributes<'r> = [(&'r str, &'r [u8])];

/// What a policy says of a request in one line: `exempt`, `blocked`, `unknown key`, `bad cost`, or
/// the limits that apply with rate, values and cost: `api 60/minute [acme] 1`. A missing value is
/// `-`, one from a later source has its number before it, and a secret one a star.
fn ask(policy: &Policy, request: &Request<'_>) -> String {
    let mut scratch = Scratch::default();
    let mut charges = Charges::new();
    match policy.admit(request, &mut scratch, &mut charges) {
        Admission::Exempt(_) => "exempt".to_owned(),
        Admission::Blocked(_) => "blocked".to_owned(),
        Admission::UnknownKey => "unknown key".to_owned(),
        Admission::BadCost { .. } => "bad cost".to_owned(),
        Admission::Charged => {
            let lines = charges.iter().map(|charge| {
                let values = charge.values.iter().map(|value| {
                    let bytes =
                        value.bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
                    let source =
                        if value.source == 0 { String::new() } else { value.source.to_string() };
                    let secret = if value.is_secret() { "*" } else { "" };
                    format!("{source}{secret}{}", bytes.unwrap_or("-".to_owned()))
                });
                let values: Vec<String> = values.collect();
                let rate =
                    policy.rate(charge.limit).map_or("slots".to_owned(), |rate| rate.to_string());
                assert!(std::ptr::eq(charge.rule, &policy.rules()[charge.rule_index]));
                let (name, cost) = (charge.rule.name(), charge.cost.units());
                format!("{name} {rate} [{}] {cost}", values.join(", "))
            });
            lines.collect::<Vec<_>>().join("; ")
        }
    }
}

/// The same of a request over the API that costs one.
fn ask_api(policy: &Policy, attributes: &Attributes<'_>) -> String {
    ask(policy, &Request::new(attributes))
}

/// The same of a request that a client sent over HTTP.
fn ask_http(policy: &Policy, attributes: &Attributes<'_>) -> String {
    ask(policy, &Request { missing: Missing::Shared, ..Request::new(attributes) })
}

/// The names of the rules that apply.
fn names(policy: &Policy, attributes: &Attributes<'_>) -> Vec<String> {
    let mut scratch = Scratch::default();
    let request = Request { missing: Missing::Shared, ..Request::new(attributes) };
    let mut charges = Charges::new();
    match policy.admit(&request, &mut scratch, &mut charges) {
        Admission::Charged => charges.iter().map(|charge| charge.rule.name().to_string()).collect(),
        other => panic!("{other:?}"),
    }
}

/// Random numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn one_of<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.below(choices.len())]
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}
