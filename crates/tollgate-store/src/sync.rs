//! The atomics and locks of the hot path, or their model-checked stand-ins under `--cfg loom`.

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

/// Waits for somebody who holds a lock for a few nanoseconds, unless they were put to sleep.
pub(crate) fn spin(tries: u32) {
    #[cfg(loom)]
    {
        let _ = tries;
        loom::thread::yield_now();
    }
    #[cfg(not(loom))]
    if tries < 64 {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}
