//! One limit, one key, one store: the least there is to rate limiting.
//!
//! ```text
//! cargo run --example first_charge
//! ```

use tollgate_core::{Key, Limit, Quota, Value};
use tollgate_store::{Charge, Clock, MemoryStore};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = MemoryStore::new(Clock::system())?;
    let limit = store.enroll(Limit::token_bucket(Quota::per_minute(60), 3)?)?;
    let address = [Value::new(b"203.0.113.7")];
    let charge = Charge::new(Key { limit: "login", values: &address }, &limit);

    for attempt in 1..=5 {
        let Some(decision) = store.take_one(&charge).decision() else { continue };
        match decision.retry_after() {
            None => println!("attempt {attempt}: allowed, {} left", decision.remaining),
            Some(wait) => println!("attempt {attempt}: denied, try again in {wait}"),
        }
    }
    Ok(())
}
