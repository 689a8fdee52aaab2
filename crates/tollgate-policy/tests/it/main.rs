//! The policy crate from the outside.

mod corpus;
mod hostile;
mod index;
mod matching;
mod random;
mod settings;
mod tenants;

use tollgate_policy::{Mistakes, Policy};

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
