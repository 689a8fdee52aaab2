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

/// Writes the word of a lock that is taken by exchanging it for `mark`, for the next to find.
///
/// An exchange follows at once what it read, in every order of writes that there can be: so one that found
/// the lock taken is before this. Loom does not know that of a mere store, and would have it last; so models
/// let go by an exchange too, and see that nothing but the mark was written meanwhile.
#[inline(always)]
pub(crate) fn let_go(word: &AtomicU64, value: u64, mark: u64) {
    let order = Ordering::Release;
    #[cfg(loom)]
    assert_eq!(word.swap(value, order), mark);
    #[cfg(not(loom))]
    {
        let _ = mark;
        word.store(value, order);
    }
}
