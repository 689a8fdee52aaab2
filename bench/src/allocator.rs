//! Counting what contenders allocate.
//!
//! Counting is off unless asked for: two threads adding to one counter would slow exactly those contenders
//! that allocate, and the timings would be of the counter.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static ENABLED: AtomicBool = AtomicBool::new(false);
static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// What was allocated while `work` ran.
#[derive(Debug, Clone, Copy)]
pub struct Count {
    /// Bytes still live at the end, as requested: what the allocator adds in headers and rounding is not in it.
    pub live_bytes: i64,
    /// Calls that obtained memory, growing in place included.
    pub allocations: u64,
}

/// Counts the allocations of `work`, on whatever thread they happen. Not for nested use.
pub fn count<T>(work: impl FnOnce() -> T) -> (T, Count) {
    LIVE_BYTES.store(0, Relaxed);
    ALLOCATIONS.store(0, Relaxed);
    ENABLED.store(true, Relaxed);
    let result = work();
    ENABLED.store(false, Relaxed);
    let count =
        Count { live_bytes: LIVE_BYTES.load(Relaxed), allocations: ALLOCATIONS.load(Relaxed) };
    (result, count)
}

struct Counting;

fn obtained(bytes: usize) {
    if ENABLED.load(Relaxed) {
        ALLOCATIONS.fetch_add(1, Relaxed);
        LIVE_BYTES.fetch_add(bytes as i64, Relaxed);
    }
}

fn released(bytes: usize) {
    if ENABLED.load(Relaxed) {
        LIVE_BYTES.fetch_sub(bytes as i64, Relaxed);
    }
}

// SAFETY: every method hands its arguments unchanged to `System`, which upholds the contract, and returns what
// `System` returned; counting touches atomics only, and so neither allocates nor unwinds.
#[expect(unsafe_code, reason = "GlobalAlloc is an unsafe trait")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        obtained(layout.size());
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    // Forwarded rather than defaulted: the default would write the zeros, and commit tables that the operating
    // system would have left untouched.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        obtained(layout.size());
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        released(layout.size());
        // SAFETY: `pointer` came from `System` with this `layout`, since all our memory does.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        released(layout.size());
        obtained(new_size);
        // SAFETY: `pointer` came from `System` with this `layout`; `new_size` is the caller's promise.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}
