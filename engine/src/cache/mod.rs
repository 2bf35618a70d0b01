//! Cache bookkeeping, without any device memory: which pages and slots a sequence holds.
//!
//! Three groups: pages of keys and values (16 tokens), anchor states with open-block pages (64 tokens), and rings of
//! convolution history. A [`Sequence`] changes only through [`Caches::reserve`] and [`Sequence::commit`]; a dropped
//! [`Reservation`] rolls everything back, because committed pages, anchors and rows are never overwritten by it. That
//! also lets sequences share full pages and anchors: [`PrefixCache`] keeps them for later requests.

mod pool;
mod prefix;

pub use pool::{Pool, Slot};
pub use prefix::{Hit, Lease, PrefixCache, Rank};

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
    /// How many of the anchor states are there for the prefix cache.
    pub checkpoints: usize,
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
            checkpoints: 0,
            open_pages: 2 * sequences,
            rings: sequences,
            ring_rows: (conv_taps.saturating_sub(1) + verify_rows).next_power_of_two(),
        }
    }

    /// The same with room for `checkpoints` states in the prefix cache.
    pub fn with_checkpoints(self, checkpoints: usize) -> Self {
        Self { anchors: self.anchors - self.checkpoints + checkpoints, checkpoints, ..self }
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
        self.is_idle_but(0, 0)
    }

    /// Whether all but so many pages and anchors are free.
    pub fn is_idle_but(&self, pages: usize, anchors: usize) -> bool {
        let held = [(&self.pages, pages), (&self.anchors, anchors), (&self.open_pages, 0), (&self.rings, 0)];
        held.iter().all(|(pool, held)| pool.free() + held == pool.capacity())
    }

    /// Room for a new, empty sequence.
    pub fn sequence(&self) -> Result<Sequence, OutOfCache> {
        let state = match self.recurrent {
            true => Some(State { anchor: None, open: Arc::new(self.open_pages.take()?), ring: self.rings.take()? }),
            false => None,
        };
        Ok(Sequence { len: 0, pages: Vec::new(), state })
    }

    /// A sequence that begins with what `hit` found in the prefix cache.
    pub fn resume(&self, hit: Hit) -> Result<Sequence, OutOfCache> {
        let mut sequence = self.sequence()?;
        if let Some(state) = &mut sequence.state {
            state.anchor = hit.anchor;
        }
        Ok(Sequence { len: hit.len, pages: hit.pages, state: sequence.state })
    }

    /// Room for `rows` more tokens of `sequence`.
    pub fn reserve(&self, sequence: &Sequence, rows: usize) -> Result<Reservation, OutOfCache> {
        self.reserve_keeping(sequence, rows, &[])
    }

    /// Room for `rows` more tokens, with states at `checkpoints` (ascending multiples of [`BLOCK`] behind the
    /// sequence's end and not behind the rows') that [`Sequence::commit`] hands out.
    pub fn reserve_keeping(
        &self,
        sequence: &Sequence,
        rows: usize,
        checkpoints: &[usize],
    ) -> Result<Reservation, OutOfCache> {
        let end = sequence.len + rows;
        let missing = end.div_ceil(PAGE).saturating_sub(sequence.pages.len());
        let pages = (0..missing).map(|_| self.pages.take().map(Arc::new)).collect::<Result<Vec<_>, _>>()?;
        let (mut anchors, mut next_open) = (Vec::new(), None);
        if sequence.state.is_some() && rows > 0 {
            // The states on the way to a checkpoint are folded into its slot, those behind the last into one more.
            let mut until = 0;
            for block in sequence.len / BLOCK + 1..=end / BLOCK {
                let position = block * BLOCK;
                if position > until {
                    until = checkpoints.iter().copied().find(|kept| *kept >= position).unwrap_or(usize::MAX);
                    anchors.push(Arc::new(self.anchors.take()?));
                } else if let Some(slot) = anchors.last().cloned() {
                    anchors.push(slot);
                }
            }
            if (end - 1) / BLOCK > sequence.len / BLOCK {
                next_open = Some(Arc::new(self.open_pages.take()?));
            }
        }
        let checkpoints = if anchors.is_empty() { Vec::new() } else { checkpoints.to_vec() };
        Ok(Reservation { start: sequence.len, rows, pages, anchors, checkpoints, next_open })
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
    /// The state after each completed block. Neighbours may share a slot: then only the last of them stays.
    anchors: Vec<Arc<Slot>>,
    /// Positions whose states are handed out.
    checkpoints: Vec<usize>,
    next_open: Option<Arc<Slot>>,
}

/// A state that sequences may begin from.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    position: usize,
    slot: Arc<Slot>,
}

impl Checkpoint {
    /// Tokens before it, a multiple of [`BLOCK`].
    pub fn position(&self) -> usize {
        self.position
    }
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

    /// The state at the start of the open block, unless it is the zero state.
    pub fn checkpoint(&self) -> Option<Checkpoint> {
        let slot = self.state.as_ref()?.anchor.clone()?;
        Some(Checkpoint { position: self.len / BLOCK * BLOCK, slot })
    }

    /// KV pages held, those shared with others included.
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// The device indices for a step that computes the reserved rows.
    pub fn tables(&self, reservation: &Reservation) -> Tables {
        let pages = self.pages.iter().chain(&reservation.pages).map(|page| page.id()).collect();
        let Some(state) = &self.state else { return Tables { pages, ..Tables::default() } };
        let end = reservation.start + reservation.rows;
        let touched = end.saturating_sub(1) / BLOCK - reservation.start / BLOCK + 1;
        let anchor = state.anchor.as_ref().map_or(ZERO_ANCHOR, |slot| slot.id());
        let next_open = reservation.next_open.as_ref().map(|slot| slot.id());
        Tables {
            pages,
            anchors: std::iter::once(anchor).chain(reservation.anchors.iter().map(|slot| slot.id())).collect(),
            open_pages: std::iter::once(state.open.id()).chain((1..touched).filter_map(|_| next_open)).collect(),
            ring: state.ring.id(),
        }
    }

    /// Makes the first `accepted` reserved rows part of the sequence, rolls back the rest, and returns the checkpoints
    /// that the reservation was to keep.
    ///
    /// A reservation of more than 64 rows (a prefill chunk) is accepted whole or not at all: its anchors are folded in
    /// place.
    pub fn commit(&mut self, reservation: Reservation, accepted: usize) -> Vec<Checkpoint> {
        assert!(reservation.start == self.len && accepted <= reservation.rows, "a reservation is committed once");
        assert!(
            reservation.rows <= BLOCK || accepted == reservation.rows || accepted == 0,
            "a prefill chunk is accepted whole"
        );
        let end = self.len + accepted;
        let keep = end.div_ceil(PAGE) - self.pages.len().min(end.div_ceil(PAGE));
        self.pages.extend(reservation.pages.into_iter().take(keep));
        let completed = |position: usize| position / BLOCK - self.len / BLOCK;
        let checkpoints = (reservation.checkpoints.iter().filter(|position| **position <= end))
            .filter_map(|&position| {
                let slot = reservation.anchors.get(completed(position).checked_sub(1)?)?.clone();
                Some(Checkpoint { position, slot })
            })
            .collect();
        if let Some(state) = &mut self.state {
            if let Some(last) = completed(end).checked_sub(1) {
                state.anchor = reservation.anchors.get(last).cloned();
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
        checkpoints
    }
}

#[cfg(test)]
impl Sequence {
    pub(crate) fn page_ids(&self) -> Vec<u32> {
        self.pages.iter().map(|page| page.id()).collect()
    }
}

#[cfg(test)]
mod tests;
