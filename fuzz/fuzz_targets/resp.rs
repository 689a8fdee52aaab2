//! Any bytes are answered or closed, and alike however they are cut; never a panic.
//!
//! The first byte says how they are cut.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use tollgate::{Clock, Limiter, MemoryStore, Policy, Timestamp};
use tollgate_server::conversation;

const POLICY: &str = "limits: [{name: api, per: [user], rate: 5/minute}]";

fn replies(pieces: &[&[u8]]) -> Vec<u8> {
    let no_files = |_: &str| Err(String::new());
    let policy = Policy::parse("policy.yaml", POLICY, &mut { no_files }).expect("it is right");
    let clock = Clock::manual(Timestamp::from_micros(1_760_000_000_000_000));
    let store = MemoryStore::with_max_bytes(clock, 64 << 10).expect("a few pages");
    conversation(&Limiter::new(policy, Arc::new(store)).expect("one limit"), None, pieces)
}

fuzz_target!(|input: &[u8]| {
    let Some((&size, bytes)) = input.split_first() else { return };
    let whole = replies(&[bytes]);
    let pieces: Vec<&[u8]> = bytes.chunks(usize::from(size).max(1)).collect();
    assert_eq!(replies(&pieces), whole, "in pieces of {size}");
    let (first, second) = bytes.split_at(usize::from(size).min(bytes.len()));
    assert_eq!(replies(&[first, second]), whole, "cut after {size}");
});
