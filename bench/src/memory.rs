//! Bytes per key.
//!
//! Each figure comes from a fresh process, since a process that has freed memory does not give all of it back.

use std::time::Instant;

use crate::again;
use crate::allocator;
use crate::contender::{Entrant, KEYED};
use crate::traffic;
use tollgate_bench::report::kibibytes;

/// The hidden argument with which this program runs itself.
pub const ARGUMENT: &str = "--measure-memory";

/// What holding some number of keys costs.
#[derive(Debug, Clone, Copy)]
pub struct Footprint {
    /// Asked of the allocator and not given back.
    pub heap_bytes: f64,
    /// Growth of the resident set: with the allocator's overhead, and without pages nobody has touched.
    pub resident_bytes: f64,
    pub build_seconds: f64,
}

/// Measures in a child process.
pub fn measure(entrant: &Entrant, keys: usize) -> Footprint {
    let numbers = again::numbers(&[ARGUMENT, entrant.name, &keys.to_string()]);
    let [heap_bytes, resident_bytes, build_seconds] = numbers[..] else {
        panic!("measuring the memory of {}: {numbers:?}", entrant.name);
    };
    Footprint { heap_bytes, resident_bytes, build_seconds }
}

/// The child's side: prints the three numbers of a `Footprint`.
pub fn run_child(name: &str, keys: &str) {
    let entrant = KEYED.iter().find(|entrant| entrant.name == name).expect("the parent knows it");
    let keys = traffic::keys(keys.parse().expect("the parent passed a number"));
    let (before, start) = (kibibytes("/proc/self/status", "VmRSS:"), Instant::now());
    let (contender, count) = allocator::count(|| (entrant.build)(&keys));
    let seconds = start.elapsed().as_secs_f64();
    let resident_bytes = (kibibytes("/proc/self/status", "VmRSS:") - before) * 1024.0;
    println!("{} {resident_bytes} {seconds}", count.live_bytes);
    // Taking millions of entries apart would only take time.
    std::mem::forget(contender);
}
