//! Memory for the table: reserved at once, committed as it is touched, in large pages where the
//! operating system has them.
//!
//! A table is read at random places, and in small pages finding the memory takes as long as
//! reading it. This is the one file of the workspace with `unsafe` code: a mapping has no type, and
//! somebody has to say that it is words.

#![allow(unsafe_code)]

use std::io;
use std::ops::Range;

use memmap2::{MmapMut, MmapRaw};

use crate::sync::AtomicU64;

/// Words that are zero until they are written.
pub(crate) struct Pages {
    mapping: MmapRaw,
    words: usize,
}

/// On x86-64 and most others.
const LARGE_PAGE: usize = 2 << 20;

impl Pages {
    /// Reserves memory for `words`.
    pub(crate) fn reserve(words: usize) -> io::Result<Self> {
        let bytes = words.checked_mul(size_of::<AtomicU64>());
        // Linux lets a mapping begin with a large page if it is as long as some of them.
        let bytes = bytes.and_then(|bytes| bytes.checked_next_multiple_of(LARGE_PAGE));
        let bytes = bytes.ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = MmapRaw::from(MmapMut::map_anon(bytes)?);
        // Large pages are a wish: without them everything works, only slower.
        #[cfg(target_os = "linux")]
        let _ = mapping.advise(memmap2::Advice::HugePage);
        Ok(Self { mapping, words })
    }

    /// All of them.
    #[inline]
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: The mapping is private to this value, at least `words` words long, aligned to a
        // page and zeroed by the operating system, and every bit pattern is an `AtomicU64`. It is
        // unmapped only when `self` is dropped, which the lifetime of the result forbids before.
        // Nothing else reads or writes it: the pointer leaves this file only as these atomics.
        unsafe { std::slice::from_raw_parts(self.mapping.as_mut_ptr().cast(), self.words) }
    }
}

/// Asks for the memory that lies so many bytes after a word, without waiting for it, where the
/// processor can be asked.
#[inline(always)]
pub(crate) fn fetch(word: &AtomicU64, bytes: Range<usize>) {
    #[cfg(target_arch = "x86_64")]
    for line in lines(word, bytes) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: It changes nothing that a program can see, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (word, bytes);
}

/// The same for memory that is about to be written: it comes to this core alone. Otherwise it would
/// be shared with a core that wrote it before, and have to be asked for again.
#[inline(always)]
pub(crate) fn fetch_to_write(word: &AtomicU64, bytes: Range<usize>) {
    #[cfg(target_arch = "x86_64")]
    for line in lines(word, bytes) {
        // The intrinsic for this is compiled to a fetch for reading, unless the whole program is for
        // processors that surely have the instruction. On others it does nothing.
        //
        // SAFETY: It changes nothing that a program can see, whatever the address.
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (word, bytes);
}

/// The cache lines that lie so many bytes after a word.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn lines(word: &AtomicU64, bytes: Range<usize>) -> impl Iterator<Item = *const AtomicU64> {
    const LINE_BYTES: usize = 64;
    bytes.step_by(LINE_BYTES).map(|offset| std::ptr::from_ref(word).wrapping_byte_add(offset))
}
