//! Working memory of an operation or task, kept by its thread for the next one.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
}

/// A borrowed buffer; it goes back to its thread when dropped.
pub(crate) struct Scratch {
    buffer: Vec<f32>,
    len: usize,
}

/// `len` values of unspecified content.
pub(crate) fn take(len: usize) -> Scratch {
    let mut buffer = BUFFERS.with_borrow_mut(Vec::pop).unwrap_or_default();
    if buffer.len() < len {
        buffer = vec![0.0; len];
    }
    Scratch { buffer, len }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        BUFFERS.with_borrow_mut(|buffers| buffers.push(buffer));
    }
}

impl Deref for Scratch {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.buffer[..self.len]
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.buffer[..self.len]
    }
}
