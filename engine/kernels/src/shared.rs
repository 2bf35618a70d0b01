//! A mutable slice that several tasks write in disjoint places.

use std::marker::PhantomData;

/// Pointer and length of an exclusively borrowed slice, to be handed to the tasks of one pool run.
#[derive(Clone, Copy)]
pub(crate) struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: access goes through `at` and `slice`, whose callers promise disjoint ranges per task.
unsafe impl<T: Send> Send for SharedMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// Pointer to `len` elements from `offset`.
    ///
    /// # Safety
    /// No other task touches these elements during the run.
    #[inline(always)]
    pub(crate) unsafe fn at(&self, offset: usize, len: usize) -> *mut T {
        assert!(offset <= self.len && len <= self.len - offset, "range {offset}+{len} exceeds {}", self.len);
        // SAFETY: inside the slice, as just asserted.
        unsafe { self.start.add(offset) }
    }

    /// Mutable view of `len` elements from `offset`.
    ///
    /// # Safety
    /// No other task touches these elements while the view lives.
    #[expect(clippy::mut_from_ref, reason = "tasks of one run share the borrow and promise disjoint ranges")]
    pub(crate) unsafe fn slice(&self, offset: usize, len: usize) -> &mut [T] {
        // SAFETY: inside the slice (asserted in `at`) and exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.at(offset, len), len) }
    }
}
