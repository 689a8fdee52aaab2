//! What the harness promises to those who test with it.

mod clock;
mod cluster;
mod proxy;
mod sentinel;
mod server;

use std::path::Path;
use std::thread;

use tollgate_harness::{Flavour, Reply, Text};

fn text(text: &str) -> Reply {
    Reply::Text(Text(text.into()))
}

fn is_there(process_id: u32) -> bool {
    Path::new(&format!("/proc/{process_id}")).exists()
}

/// Runs a test of many servers on Redis and Valkey at once.
fn on_both(test: impl Fn(Flavour) + Sync) {
    thread::scope(|scope| {
        for flavour in Flavour::ALL {
            let test = &test;
            scope.spawn(move || test(flavour));
        }
    });
}
