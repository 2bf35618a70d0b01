//! One step's rows on the device (`cuda/step.cuh`).
//!
//! All arrays stand in one piece of memory whose layout depends on the row capacity alone, so that a graph captured for
//! a capacity can be replayed with any step that fits, after one copy.

use super::device::{Device, Memory, Pinned, Plain};
use super::error::CudaError;

/// The most rows of a segment that the kernels for decode compute.
pub const FEW_ROWS: usize = 8;
/// Rows of a prefill tile.
pub const TILE_ROWS: usize = 64;

/// Consecutive rows of one sequence; offsets are into the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct DeviceSegment {
    /// First row in the step.
    pub first_row: u32,
    /// Number of rows.
    pub rows: u32,
    /// Position of the first row.
    pub start: u32,
    /// KV block table from position 0.
    pub pages: u32,
    /// Anchor slots.
    pub anchors: u32,
    /// Open-block pages.
    pub open_pages: u32,
    /// Convolution ring.
    pub ring: u32,
    /// Zero.
    pub reserved: u32,
}

/// Up to [`TILE_ROWS`] rows of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Tile {
    /// The segment.
    pub segment: u32,
    /// First row, counted from the segment's first.
    pub row: u32,
}

// SAFETY: all fields are u32.
unsafe impl Plain for DeviceSegment {}
// SAFETY: as above.
unsafe impl Plain for Tile {}

/// What kernels are given: device addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct StepArgs {
    tokens: u64,
    positions: u64,
    row_segment: u64,
    logit_rows: u64,
    segments: u64,
    few: u64,
    tiles: u64,
    tables: u64,
    counts: u64,
}

impl StepArgs {
    /// Address of the number of rows.
    pub(super) fn row_count(&self) -> u64 {
        self.counts
    }

    /// Address of the number of rows whose logits are wanted.
    pub(super) fn logit_row_count(&self) -> u64 {
        self.counts + 8
    }
}

/// The arrays of one step, on the host.
#[derive(Debug, Clone, Default)]
pub struct StepRows {
    /// Token ids, one a row.
    pub tokens: Vec<u32>,
    /// Positions, one a row.
    pub positions: Vec<u32>,
    /// Segment of each row.
    pub row_segment: Vec<u32>,
    /// Rows whose logits are wanted.
    pub logit_rows: Vec<u32>,
    /// Segments, in row order.
    pub segments: Vec<DeviceSegment>,
    /// Indices of segments of at most [`FEW_ROWS`] rows.
    pub few: Vec<u32>,
    /// Tiles of the others.
    pub tiles: Vec<Tile>,
    /// Block tables and slots.
    pub tables: Vec<u32>,
}

impl StepRows {
    /// Empties every array and keeps their memory.
    pub fn clear(&mut self) {
        let Self { tokens, positions, row_segment, logit_rows, segments, few, tiles, tables } = self;
        [tokens, positions, row_segment, logit_rows, few, tables].into_iter().for_each(Vec::clear);
        segments.clear();
        tiles.clear();
    }

    /// Appends a segment whose tokens, positions and logit rows are already there.
    pub fn push_segment(&mut self, segment: DeviceSegment) {
        let index = self.segments.len() as u32;
        self.row_segment.extend((0..segment.rows).map(|_| index));
        match segment.rows as usize {
            rows if rows <= FEW_ROWS => self.few.push(index),
            rows => self.tiles.extend((0..rows).step_by(TILE_ROWS).map(|row| Tile { segment: index, row: row as u32 })),
        }
        self.segments.push(segment);
    }
}

/// Words of the arrays before the tables, for a row capacity. Each begins at a multiple of 16 bytes.
struct Layout {
    at: [usize; 8],
    tables: usize,
}

impl Layout {
    fn new(capacity: usize) -> Self {
        let rows = capacity.next_multiple_of(4);
        // Counts, tokens, positions, row_segment, logit_rows, segments, few, tiles
        let words = [8, rows, rows, rows, rows, 8 * rows, rows, 2 * rows];
        let mut at = [0; 8];
        for i in 1..8 {
            at[i] = at[i - 1] + words[i - 1];
        }
        Self { at, tables: at[7] + words[7] }
    }
}

/// Device memory for the arrays of one step at a time.
pub struct StepArena {
    device: Device,
    memory: Memory,
    staging: Pinned,
    max_rows: usize,
    max_tables: usize,
}

impl StepArena {
    /// Room for steps of `max_rows` rows and `max_tables` table entries.
    pub fn new(device: &Device, max_rows: usize, max_tables: usize) -> Result<Self, CudaError> {
        let bytes = 4 * (Layout::new(max_rows).tables + max_tables);
        Ok(Self {
            device: device.clone(),
            memory: device.zeros(bytes)?,
            staging: device.pinned(bytes)?,
            max_rows,
            max_tables,
        })
    }

    /// Rows of the largest step.
    pub fn max_rows(&self) -> usize {
        self.max_rows
    }

    /// Addresses for steps of up to `capacity` rows.
    pub fn args(&self, capacity: usize) -> StepArgs {
        let layout = Layout::new(capacity);
        let at = |word: usize| self.memory.address() + 4 * word as u64;
        let [counts, tokens, positions, row_segment, logit_rows, segments, few, tiles] = layout.at.map(at);
        let tables = at(layout.tables);
        StepArgs { tokens, positions, row_segment, logit_rows, segments, few, tiles, tables, counts }
    }

    /// Starts the copy of a step of at most `capacity` rows. The step before must be done.
    ///
    /// # Errors
    /// [`CudaError::Unsupported`] if the step is larger than the arena.
    pub fn upload(&mut self, rows: &StepRows, capacity: usize) -> Result<(), CudaError> {
        let count = rows.tokens.len();
        if count > capacity || capacity > self.max_rows || rows.tables.len() > self.max_tables {
            return Err(CudaError::Unsupported(format!(
                "a step of {count} rows and {} table entries in room for {} and {}",
                rows.tables.len(),
                capacity.min(self.max_rows),
                self.max_tables
            )));
        }
        let layout = Layout::new(capacity);
        let words = layout.tables + rows.tables.len();
        let staging = self.staging.as_mut_slice::<u32>(words);
        let counts = [count, rows.segments.len(), rows.logit_rows.len(), rows.few.len(), rows.tiles.len(), 0, 0, 0];
        let segments: Vec<u32> = rows.segments.iter().flat_map(DeviceSegment::words).collect();
        let tiles: Vec<u32> = rows.tiles.iter().flat_map(|tile| [tile.segment, tile.row]).collect();
        let arrays = [
            &counts.map(|count| count as u32)[..],
            &rows.tokens,
            &rows.positions,
            &rows.row_segment,
            &rows.logit_rows,
            &segments,
            &rows.few,
            &tiles,
        ];
        for (at, array) in layout.at.into_iter().zip(arrays) {
            staging[at..at + array.len()].copy_from_slice(array);
        }
        staging[layout.tables..].copy_from_slice(&rows.tables);
        self.device.write_async(&self.memory, &self.staging, 4 * words)
    }
}

impl DeviceSegment {
    fn words(&self) -> [u32; 8] {
        let Self { first_row, rows, start, pages, anchors, open_pages, ring, reserved } = *self;
        [first_row, rows, start, pages, anchors, open_pages, ring, reserved]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_segments_become_tiles_and_short_ones_do_not() {
        let mut rows = StepRows::default();
        rows.push_segment(DeviceSegment { rows: 8, ..Default::default() });
        rows.push_segment(DeviceSegment { first_row: 8, rows: 130, ..Default::default() });
        rows.push_segment(DeviceSegment { first_row: 138, rows: 1, ..Default::default() });
        assert_eq!(rows.few, [0, 2]);
        let tiles: Vec<(u32, u32)> = rows.tiles.iter().map(|tile| (tile.segment, tile.row)).collect();
        assert_eq!(tiles, [(1, 0), (1, 64), (1, 128)]);
        assert_eq!((rows.row_segment.len(), rows.row_segment[7], rows.row_segment[138]), (139, 0, 2));
        rows.clear();
        assert!(rows.row_segment.is_empty() && rows.segments.is_empty() && rows.tiles.is_empty());
    }

    #[test]
    fn arrays_do_not_overlap_and_are_aligned() {
        for capacity in [1, 2, 5, 64, 8191] {
            let layout = Layout::new(capacity);
            let ends = layout.at[1..].iter().chain([&layout.tables]);
            let words = [8, capacity, capacity, capacity, capacity, 8 * capacity, capacity, 2 * capacity];
            for ((at, end), words) in layout.at.iter().zip(ends).zip(words) {
                assert!(at % 4 == 0 && end - at >= words, "{capacity} rows");
            }
        }
    }
}
