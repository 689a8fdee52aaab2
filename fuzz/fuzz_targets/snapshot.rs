//! Any bytes are a snapshot or are refused; never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_core::Timestamp;
use tollgate_store::{Clock, snapshot};

fuzz_target!(|bytes: &[u8]| {
    let clock = Clock::manual(Timestamp::from_micros(1_760_000_000_000_000));
    let _ = snapshot::read(bytes, clock, 64 << 10);
});
