//! Reads a policy and says what is in it: its limits, its warnings, or every mistake it has.
//!
//! ```sh
//! cargo run -p tollgate-policy --example read_policy -- policy.yaml
//! ```

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tollgate_policy::Policy;

fn main() -> ExitCode {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/policies/four-layers.yaml");
    let path = std::env::args_os().nth(1).map_or_else(|| example.into(), PathBuf::from);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) => {
            eprintln!("{}: {error}", path.display());
            return ExitCode::FAILURE;
        }
    };
    // Files that a policy names are found beside it.
    let folder = path.parent().unwrap_or(Path::new("")).to_owned();
    let mut read =
        |name: &str| std::fs::read_to_string(folder.join(name)).map_err(|error| error.to_string());
    match Policy::parse(&path.display().to_string(), &text, &mut read) {
        Ok(policy) => {
            show(&policy);
            ExitCode::SUCCESS
        }
        Err(mistakes) => {
            eprintln!("{mistakes}");
            ExitCode::FAILURE
        }
    }
}

fn show(policy: &Policy) {
    for rule in policy.rules() {
        let rates: Vec<String> = rule
            .limits()
            .into_iter()
            .map(|limit| match policy.rate(limit) {
                Some(rate) => rate.to_string(),
                None => format!("{} at a time", policy.limits()[limit].capacity()),
            })
            .collect();
        println!("{:16} {:16} {}", rule.name(), rule.algorithm(), rates.join(", "));
    }
    for warning in policy.warnings() {
        println!("{warning}");
    }
}
