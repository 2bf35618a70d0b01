//! Zero-initialised memory on cache-line boundaries for weights, pages and states.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Plain numbers: every bit pattern, all zeros included, is a value.
///
/// # Safety
/// Only for types without padding, without invalid bit patterns and without drop glue.
pub(crate) unsafe trait Pod: Copy + Send + Sync + 'static {}

// SAFETY: primitive numbers have neither padding nor invalid bit patterns.
unsafe impl Pod for u8 {}
// SAFETY: as above.
unsafe impl Pod for u16 {}
// SAFETY: as above.
unsafe impl Pod for u32 {}
// SAFETY: as above.
unsafe impl Pod for f32 {}

/// A fixed-length slice of `T` that starts on a 64-byte boundary.
///
/// The memory comes zeroed from the system, so a large cache costs nothing before it is written.
pub(crate) struct Aligned<T: Pod> {
    start: NonNull<T>,
    len: usize,
    /// What the allocator gave: 64 bytes longer, and aligned for no more than it can zero lazily.
    memory: NonNull<u8>,
    layout: Layout,
}

// SAFETY: `Aligned` owns its memory like a `Vec<T>` and `T` is `Send`.
unsafe impl<T: Pod> Send for Aligned<T> {}
// SAFETY: shared access gives only `&[T]` and `T` is `Sync`.
unsafe impl<T: Pod> Sync for Aligned<T> {}

impl<T: Pod> Aligned<T> {
    const ALIGN: usize = 64;

    /// # Panics
    /// If the size exceeds the address space.
    pub(crate) fn zeroed(len: usize) -> Self {
        let bytes = len.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_add(Self::ALIGN));
        let layout = bytes.and_then(|bytes| Layout::from_size_align(bytes, align_of::<u64>()).ok());
        let layout = layout.expect("the buffer fits the address space");
        // SAFETY: the layout has a size above zero.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        // SAFETY: at most 63 bytes into an allocation with 64 to spare.
        let start = unsafe { memory.add(memory.align_offset(Self::ALIGN)).cast::<T>() };
        prefer_huge_pages(memory, layout.size());
        Self { start, len, memory, layout }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }
}

impl<T: Pod> Drop for Aligned<T> {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this very layout.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) }
    }
}

/// Asks Linux to back large memory with huge pages, which spares a stream of weights its TLB misses.
#[cfg(target_os = "linux")]
fn prefer_huge_pages(memory: NonNull<u8>, bytes: usize) {
    unsafe extern "C" {
        fn madvise(address: *mut u8, bytes: usize, advice: i32) -> i32;
    }
    const MADV_HUGEPAGE: i32 = 14;
    /// Largest base page of the architectures.
    const PAGE: usize = 64 << 10;
    if bytes < 4 << 20 {
        return;
    }
    let skip = memory.align_offset(PAGE);
    // SAFETY: whole pages inside the allocation; the advice changes no content, and being refused is fine.
    unsafe { madvise(memory.as_ptr().add(skip), (bytes - skip) / PAGE * PAGE, MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn prefer_huge_pages(_: NonNull<u8>, _: usize) {}

impl<T: Pod> Deref for Aligned<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `len` initialised (zeroed) values start here, aligned to 64 ≥ align_of::<T>().
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Pod> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zero_aligned_and_as_long_as_asked() {
        for len in [0, 1, 63, 5000, 3 << 20] {
            let mut memory = Aligned::<f32>::zeroed(len);
            assert_eq!(memory.len(), len);
            assert_eq!(memory.bytes(), 4 * len);
            assert_eq!(memory.as_ptr().addr() % 64, 0);
            assert!(memory.iter().all(|&value| value == 0.0));
            memory.fill(1.0);
        }
    }
}
