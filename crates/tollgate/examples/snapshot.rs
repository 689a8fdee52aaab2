//! What was consumed, kept across a restart.
//!
//! Run it with `cargo run -p tollgate --example snapshot`. `docs/memory.md` quotes it.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{env, fs, process};

use tollgate::snapshot::{Keeper, Restored};
use tollgate::{Clock, Limiter, MemoryStore, Policy, Request};

const POLICY: &str = "limits: [{name: api, per: [user], rate: 5/day}]";
const MAX_BYTES: usize = 64 << 20;

/// One life of a service: it goes on from the snapshot, serves, and leaves one behind.
fn serve(file: &Path) -> Result<(), Box<dyn Error>> {
    let (store, restored) = MemoryStore::restore(file, Clock::system(), MAX_BYTES)?;
    match restored {
        Restored::Nothing => println!("starting empty"),
        Restored::Keys(keys) => println!("going on where it was, keys known: {keys}"),
        Restored::SetAside { why, to } => println!("starting empty: {why}; it is now {to:?}"),
    }
    let store = Arc::new(store);
    let report = |saved| {
        if let Err(error) = saved {
            eprintln!("no snapshot: {error}");
        }
    };
    // Saves every minute, and once more when it is dropped.
    let _keeper = Keeper::start(store.clone(), file.to_owned(), Duration::from_secs(60), report)?;

    let policy = Policy::parse("policy", POLICY, &mut |_| Err("no other files".to_owned()))?;
    let limiter = Limiter::new(policy, store)?;
    let request = Request::new(&[("user", b"42")]);
    let allowed = (0..3).filter(|_| limiter.check(&request).is_allowed()).count();
    println!("{allowed} of 3 requests are allowed");
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let file = env::temp_dir().join(format!("tollgate-example-{}.snapshot", process::id()));
    serve(&file)?;
    serve(&file)?;
    fs::remove_file(&file)?;
    Ok(())
}
