//! A pool of numbered slots. A taken slot returns by itself when it is dropped.

use super::OutOfCache;
use std::sync::{Arc, Mutex, PoisonError};

/// Numbered slots, each free or taken.
#[derive(Debug)]
pub struct Pool {
    group: &'static str,
    capacity: usize,
    free: Arc<Mutex<Vec<u32>>>,
}

impl Pool {
    /// Slots `first..first + capacity`, all free.
    pub fn new(group: &'static str, first: u32, capacity: usize) -> Self {
        let free = (first..first + capacity as u32).rev().collect();
        Self { group, capacity, free: Arc::new(Mutex::new(free)) }
    }

    /// Takes a free slot.
    pub fn take(&self) -> Result<Slot, OutOfCache> {
        let id = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        id.map(|id| Slot { id, free: self.free.clone() }).ok_or(OutOfCache { group: self.group })
    }

    /// Number of free slots.
    pub fn free(&self) -> usize {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Number of slots.
    pub fn capacity(&self) -> usize {
        self.capacity
    }
}

/// A taken slot.
#[derive(Debug)]
pub struct Slot {
    id: u32,
    free: Arc<Mutex<Vec<u32>>>,
}

impl Slot {
    /// Its number on the device.
    pub fn id(&self) -> u32 {
        self.id
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.id);
    }
}
