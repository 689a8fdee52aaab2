//! A policy from a file, a few requests, and what they are told.
//!
//! Run it with `cargo run -p tollgate --example embed`.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use tollgate::{Clock, Limiter, MemoryStore, Policy, Request};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/policies");
    let text = fs::read_to_string(folder.join("login.yaml"))?;
    // Called for each file that the policy names, such as its tenants; this one names none.
    let mut read =
        |file: &str| fs::read_to_string(folder.join(file)).map_err(|error| error.to_string());
    let policy = Policy::parse("login.yaml", &text, &mut read)?;
    let limiter = Limiter::new(policy, Arc::new(MemoryStore::new(Clock::system())?))?;

    for address in ["203.0.113.7", "10.0.0.1"] {
        for attempt in 1..=6 {
            let attributes: [(&str, &[u8]); 3] =
                [("method", b"POST"), ("path", b"/login"), ("client_ip", address.as_bytes())];
            let verdict = limiter.check(&Request::new(&attributes));
            let left = verdict.tightest().and_then(|answer| answer.decision());
            print!("{address}, attempt {attempt}: {:?}", verdict.ruling());
            match (verdict.retry_after(), left) {
                (Some(wait), _) => println!(", come back in {} s", wait.as_secs_up()),
                (None, Some(decision)) => println!(", {} left", decision.remaining),
                (None, None) => println!(),
            }
        }
    }
    Ok(())
}
