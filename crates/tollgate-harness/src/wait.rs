//! Waiting for what another process does.

use std::thread;

use crate::bounds::{WAIT_MAX, WAIT_STEP};

/// Tries until there is a value, or fails the test, saying what was waited for.
pub fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    for _ in 0..WAIT_MAX.as_millis() / WAIT_STEP.as_millis() {
        if let Some(value) = attempt() {
            return value;
        }
        thread::sleep(WAIT_STEP);
    }
    panic!("waited for long, and in vain: {what}")
}
