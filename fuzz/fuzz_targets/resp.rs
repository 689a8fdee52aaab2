//! Any bytes are answered or closed, and alike however they are cut; never a panic.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use tollgate::{Clock, Limiter, MemoryStore, Policy, Timestamp};
use tollgate_server::conversation;

const POLICY: &str = "limits: [{name: api, per: [user], rate: 5/minute}]";

fn replies(pieces: &[&[u8]]) -> Vec<u8> {
    let no_files = |_: &str| Err(String::new());
    let policy = Policy::parse("policy.yaml", POLICY, &mut { no_files }).unwrap();
    let clock = Clock::manual(Timestamp::from_micros(1_760_000_000_000_000));
    let store = MemoryStore::with_max_bytes(clock, 64 << 10).unwrap();
    conversation(&Limiter::new(policy, Arc::new(store)).unwrap(), None, pieces)
}

fuzz_target!(|input: (Vec<u8>, usize)| {
    let (bytes, cut) = input;
    let (first, second) = bytes.split_at(cut.min(bytes.len()));
    assert_eq!(replies(&[first, second]), replies(&[&bytes]));
});
