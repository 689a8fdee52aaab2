//! Memory for the table: reserved at once, committed as it is touched, in large pages where the
//! operating system has them.
//!
//! A table is read at random places, and in small pages finding the memory takes as long as
//! reading it. This is the one file of the workspace with `unsafe` code: a mapping has no type, and
//! somebody has to say that it is words.

#![allow(unsafe_code)]

use std::io;

use memmap2::{MmapMut, MmapRaw};

use crate::sync::AtomicU64;

/// Words that are zero until they are written.
pub(crate) struct Pages {
    mapping: MmapRaw,
    words: usize,
}

impl Pages {
    /// Reserves memory for `words`.
    pub(crate) fn reserve(words: usize) -> io::Result<Self> {
        let bytes = words.checked_mul(size_of::<AtomicU64>());
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

/// Asks for so many bytes from a word on without waiting for them, where the processor can be asked.
#[inline(always)]
pub(crate) fn fetch(word: &AtomicU64, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        const LINE_BYTES: usize = 64;
        for offset in (0..bytes).step_by(LINE_BYTES) {
            let line = std::ptr::from_ref(word).wrapping_byte_add(offset);
            // SAFETY: It changes nothing that a program can see, whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (word, bytes);
}
