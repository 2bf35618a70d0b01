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
/// The memory comes zeroed from the allocator, so a large cache costs no page before it is written.
pub(crate) struct Aligned<T: Pod> {
    start: NonNull<T>,
    len: usize,
}

// SAFETY: `Aligned` owns its memory like a `Vec<T>` and `T` is `Send`.
unsafe impl<T: Pod> Send for Aligned<T> {}
// SAFETY: shared access gives only `&[T]` and `T` is `Sync`.
unsafe impl<T: Pod> Sync for Aligned<T> {}

impl<T: Pod> Aligned<T> {
    const ALIGN: usize = 64;

    pub(crate) fn zeroed(len: usize) -> Self {
        let layout = Self::layout(len);
        if layout.size() == 0 {
            return Self { start: NonNull::dangling(), len };
        }
        // SAFETY: the layout has a size above zero.
        let memory = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(memory.cast::<T>()).unwrap_or_else(|| handle_alloc_error(layout));
        Self { start, len }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    fn layout(len: usize) -> Layout {
        let bytes = len.checked_mul(size_of::<T>()).expect("buffer size fits the address space");
        Layout::from_size_align(bytes, Self::ALIGN).expect("buffer size fits the address space")
    }
}

impl<T: Pod> Drop for Aligned<T> {
    fn drop(&mut self) {
        let layout = Self::layout(self.len);
        if layout.size() > 0 {
            // SAFETY: allocated in `zeroed` with this very layout.
            unsafe { dealloc(self.start.as_ptr().cast(), layout) }
        }
    }
}

impl<T: Pod> Deref for Aligned<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `len` initialised (zeroed) values start here, aligned to 64 ≥ align_of::<T>(); a dangling start
        // goes with a size of zero.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Pod> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}
