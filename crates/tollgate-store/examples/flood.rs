//! A flood of keys that were never seen before, while one key is at its limit: memory must stay
//! within its bound, and that key must be denied throughout.
//!
//! ```text
//! cargo run --release --example flood -- [KEYS] [MEBIBYTES]
//! ```

use std::fs;

use tollgate_core::{Key, Limit, Quota, Value};
use tollgate_store::{Charge, Clock, MemoryStore};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let keys: u64 = arguments.next().map_or(Ok(100_000), |text| text.parse())?;
    let mebibytes: usize = arguments.next().map_or(Ok(1), |text| text.parse())?;

    let clock = Clock::system();
    let store = MemoryStore::with_max_bytes(clock.clone(), mebibytes << 20)?;
    let limit = store.enroll(Limit::sliding_window(Quota::per_day(5)))?;
    let address = [Value::new(b"203.0.113.7")];
    let limited = Charge::new(Key { limit: "flood", values: &address }, &limit);
    while store.take_one(&limited).is_allowed() {}

    let start = clock.now();
    let (mut asked, mut denied, mut counted, mut most_bytes) = (0_u64, 0_u64, 0_u64, 0);
    for key in 0..keys {
        let value = key.to_le_bytes();
        let values = [Value::new(&value)];
        let newcomer = Charge::new(Key { limit: "flood", values: &values }, &limit);
        counted += u64::from(store.take_one(&newcomer).receipt().is_some());
        if key % 100 == 0 {
            asked += 1;
            denied += u64::from(!store.take_one(&limited).is_allowed());
            most_bytes = most_bytes.max(store.bytes());
        }
    }
    let micros = clock.now().since(start).as_micros().max(1);

    println!("{keys} keys, {} a second", u128::from(keys) * 1_000_000 / u128::from(micros));
    println!("{counted} of them were counted, {} are remembered", store.keys());
    println!("{most_bytes} bytes at most, of {} allowed", mebibytes << 20);
    println!("{} resident", resident().unwrap_or("unknown on this system".to_owned()));
    println!("the limited key was denied {denied} of {asked} times");
    if denied == asked { Ok(()) } else { Err("the limited key got through".into()) }
}

/// Memory that the whole process occupies, as Linux tells it.
fn resident() -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("VmRSS:")).map(|size| size.trim().to_owned())
}
