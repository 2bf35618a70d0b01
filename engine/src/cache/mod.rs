//! Cache bookkeeping, without any device memory: which pages and slots a sequence holds.
//!
//! Three groups: pages of keys and values (16 tokens), anchor states with open-block pages (64 tokens), and rings of
//! convolution history. A [`Sequence`] changes only through [`Caches::reserve`] and [`Sequence::commit`]; a dropped
//! [`Reservation`] rolls everything back, because committed pages, anchors and rows are never overwritten by it.

mod pool;

pub use pool::{Pool, Slot};

use std::sync::Arc;
use thiserror::Error;

/// Tokens in a page of keys and values.
pub const PAGE: usize = atlas_kernels::PAGE;
/// Tokens in a block of a recurrence: anchors stand at its multiples (NUMERICS N5).
pub const BLOCK: usize = atlas_kernels::BLOCK;
/// The anchor slot that always holds the zero state.
pub const ZERO_ANCHOR: u32 = 0;

/// How much of everything a device holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheSizes {
    /// KV pages of 16 tokens.
    pub pages: usize,
    /// Anchor states, the zero state not counted. Every sequence needs two: the current and the next.
    pub anchors: usize,
    /// Open-block pages. Every sequence needs two.
    pub open_pages: usize,
    /// Convolution rings: one a sequence.
    pub rings: usize,
    /// Rows of a ring: at least `taps - 1` plus the rows of the largest verify group.
    pub ring_rows: usize,
}

impl CacheSizes {
    /// Room for `sequences` sequences of up to `context` tokens each, all at once, and verify groups of
    /// `verify_rows` rows.
    pub fn for_sequences(sequences: usize, context: usize, conv_taps: usize, verify_rows: usize) -> Self {
        Self {
            pages: sequences * context.div_ceil(PAGE),
            anchors: 2 * sequences,
            open_pages: 2 * sequences,
            rings: sequences,
            ring_rows: (conv_taps.saturating_sub(1) + verify_rows).next_power_of_two(),
        }
    }
}

/// There is no room for what was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the {group} cache is full")]
pub struct OutOfCache {
    /// The group that has no room.
    pub group: &'static str,
}

/// The free lists of all groups.
#[derive(Debug)]
pub struct Caches {
    pages: Pool,
    anchors: Pool,
    open_pages: Pool,
    rings: Pool,
    recurrent: bool,
}

impl Caches {
    /// Everything free. `recurrent` says whether the model has state layers.
    pub fn new(sizes: &CacheSizes, recurrent: bool) -> Self {
        Self {
            pages: Pool::new("KV", 0, sizes.pages),
            anchors: Pool::new("state", ZERO_ANCHOR + 1, sizes.anchors),
            open_pages: Pool::new("open-block", 0, sizes.open_pages),
            rings: Pool::new("convolution", 0, sizes.rings),
            recurrent,
        }
    }

    /// Free and total KV pages.
    pub fn pages(&self) -> (usize, usize) {
        (self.pages.free(), self.pages.capacity())
    }

    /// Whether every page and slot is free: the integrity check of an idle engine.
    pub fn is_idle(&self) -> bool {
        [&self.pages, &self.anchors, &self.open_pages, &self.rings].iter().all(|pool| pool.free() == pool.capacity())
    }

    /// Room for a new, empty sequence.
    pub fn sequence(&self) -> Result<Sequence, OutOfCache> {
        let state = match self.recurrent {
            true => Some(State { anchor: None, open: Arc::new(self.open_pages.take()?), ring: self.rings.take()? }),
            false => None,
        };
        Ok(Sequence { len: 0, pages: Vec::new(), state })
    }

    /// Room for `rows` more tokens of `sequence`.
    pub fn reserve(&self, sequence: &Sequence, rows: usize) -> Result<Reservation, OutOfCache> {
        let end = sequence.len + rows;
        let missing = end.div_ceil(PAGE).saturating_sub(sequence.pages.len());
        let pages = (0..missing).map(|_| self.pages.take().map(Arc::new)).collect::<Result<Vec<_>, _>>()?;
        let (mut next_anchor, mut next_open) = (None, None);
        if sequence.state.is_some() && rows > 0 {
            if end / BLOCK > sequence.len / BLOCK {
                next_anchor = Some(Arc::new(self.anchors.take()?));
            }
            if (end - 1) / BLOCK > sequence.len / BLOCK {
                next_open = Some(Arc::new(self.open_pages.take()?));
            }
        }
        Ok(Reservation { start: sequence.len, rows, pages, next_anchor, next_open })
    }
}

#[derive(Debug)]
struct State {
    anchor: Option<Arc<Slot>>,
    open: Arc<Slot>,
    ring: Slot,
}

/// What one sequence holds. Dropping it frees everything.
#[derive(Debug)]
pub struct Sequence {
    len: usize,
    pages: Vec<Arc<Slot>>,
    state: Option<State>,
}

/// Room for more rows, not yet part of the sequence.
#[derive(Debug)]
#[must_use = "a dropped reservation is rolled back"]
pub struct Reservation {
    start: usize,
    rows: usize,
    pages: Vec<Arc<Slot>>,
    next_anchor: Option<Arc<Slot>>,
    next_open: Option<Arc<Slot>>,
}

/// Device indices for one step of one sequence.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tables {
    /// KV block table from position 0.
    pub pages: Vec<u32>,
    /// Anchor slot at the start of each block touched, and of the next if the last one is completed.
    pub anchors: Vec<u32>,
    /// Open-block page of each block touched.
    pub open_pages: Vec<u32>,
    /// Convolution ring.
    pub ring: u32,
}

impl Sequence {
    /// Committed tokens.
    #[expect(clippy::len_without_is_empty, reason = "a length in tokens, not a collection")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The device indices for a step that computes the reserved rows.
    pub fn tables(&self, reservation: &Reservation) -> Tables {
        let pages = self.pages.iter().chain(&reservation.pages).map(|page| page.id()).collect();
        let Some(state) = &self.state else { return Tables { pages, ..Tables::default() } };
        let end = reservation.start + reservation.rows;
        let first = reservation.start / BLOCK;
        let completed = end / BLOCK - first;
        let touched = end.saturating_sub(1) / BLOCK - first + 1;
        let anchor = state.anchor.as_ref().map_or(ZERO_ANCHOR, |slot| slot.id());
        let next = reservation.next_anchor.as_ref().map(|slot| slot.id());
        let next_open = reservation.next_open.as_ref().map(|slot| slot.id());
        Tables {
            pages,
            anchors: std::iter::once(anchor).chain((0..completed).filter_map(|_| next)).collect(),
            open_pages: std::iter::once(state.open.id()).chain((1..touched).filter_map(|_| next_open)).collect(),
            ring: state.ring.id(),
        }
    }

    /// Makes the first `accepted` reserved rows part of the sequence and rolls back the rest.
    ///
    /// A reservation of more than 64 rows (a prefill chunk) is accepted whole or not at all: its anchors are folded in
    /// place.
    pub fn commit(&mut self, reservation: Reservation, accepted: usize) {
        assert!(reservation.start == self.len && accepted <= reservation.rows, "a reservation is committed once");
        assert!(
            reservation.rows <= BLOCK || accepted == reservation.rows || accepted == 0,
            "a prefill chunk is accepted whole"
        );
        let end = self.len + accepted;
        let keep = end.div_ceil(PAGE) - self.pages.len().min(end.div_ceil(PAGE));
        self.pages.extend(reservation.pages.into_iter().take(keep));
        if let Some(state) = &mut self.state {
            if end / BLOCK > self.len / BLOCK {
                state.anchor = reservation.next_anchor;
            }
            // A block that is exactly full leaves its page to the next one.
            if accepted > 0
                && (end - 1) / BLOCK > self.len / BLOCK
                && let Some(open) = reservation.next_open
            {
                state.open = open;
            }
        }
        self.len = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn caches() -> Caches {
        Caches::new(&CacheSizes::for_sequences(3, 512, 4, 8), true)
    }

    #[test]
    fn a_dropped_reservation_frees_everything() {
        let caches = caches();
        let mut sequence = caches.sequence().unwrap();
        let reservation = caches.reserve(&sequence, 60).unwrap();
        sequence.commit(reservation, 60);
        let before = (sequence.tables(&caches.reserve(&sequence, 1).unwrap()), caches.pages());
        drop(caches.reserve(&sequence, 20).unwrap());
        assert_eq!((sequence.tables(&caches.reserve(&sequence, 1).unwrap()), caches.pages()), before);
        drop(sequence);
        assert!(caches.is_idle());
    }

    #[test]
    fn crossing_a_block_keeps_the_old_anchor_until_commit() {
        let caches = caches();
        let mut sequence = caches.sequence().unwrap();
        sequence.commit(caches.reserve(&sequence, 62).unwrap(), 62);
        let group = caches.reserve(&sequence, 4).unwrap();
        let tables = sequence.tables(&group);
        assert_eq!((tables.anchors.len(), tables.open_pages.len()), (2, 2));
        assert_eq!(tables.anchors[0], ZERO_ANCHOR);
        assert_ne!(tables.open_pages[0], tables.open_pages[1]);
        sequence.commit(group, 1);
        let again = sequence.tables(&caches.reserve(&sequence, 1).unwrap());
        assert_eq!((again.anchors[0], again.open_pages[0]), (ZERO_ANCHOR, tables.open_pages[0]));
        assert_eq!(again.anchors.len(), 2, "row 63 completes the block");
    }

    proptest! {
        #[test]
        fn no_page_is_leaked_or_shared(steps in prop::collection::vec((0..3usize, 1..90usize, any::<u8>()), 1..80)) {
            let caches = caches();
            let mut sequences: Vec<Option<Sequence>> = vec![None, None, None];
            for (who, rows, accept) in steps {
                let sequence = sequences[who].get_or_insert_with(|| caches.sequence().unwrap());
                let Ok(reservation) = caches.reserve(sequence, rows) else { sequences[who] = None; continue };
                let tables = sequence.tables(&reservation);
                prop_assert_eq!(tables.pages.len(), (sequence.len() + rows).div_ceil(PAGE));
                prop_assert_eq!(tables.open_pages.len(), (sequence.len() + rows - 1) / BLOCK - sequence.len() / BLOCK + 1);
                prop_assert_eq!(tables.anchors.len(), (sequence.len() + rows) / BLOCK - sequence.len() / BLOCK + 1);
                let accepted = if rows > BLOCK { rows } else { accept as usize % (rows + 1) };
                sequence.commit(reservation, accepted);
                if sequence.len() > 400 { sequences[who] = None; }
                let mut held: Vec<u32> = sequences.iter().flatten().flat_map(|s| s.pages.iter().map(|p| p.id())).collect();
                let count = held.len();
                held.sort_unstable();
                held.dedup();
                prop_assert_eq!(held.len(), count);
                prop_assert_eq!(caches.pages().0 + count, caches.pages().1);
            }
            sequences.clear();
            prop_assert!(caches.is_idle());
        }
    }
}
