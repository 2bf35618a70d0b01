//! A step's rows as the device sees them, and the capacities that launches are made for.

use crate::cache::PAGE;
use crate::schedule::StepBatch;
use atlas_kernels::cuda::{DeviceSegment, FEW_ROWS, StepRows};

/// What the launches of a step are made for. Equal shapes have equal launches, so it names a captured graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    /// Room for rows.
    pub(super) rows: usize,
    /// Room for rows whose logits are wanted.
    pub(super) logit_rows: usize,
    /// Room for segments of at most [`FEW_ROWS`] rows.
    pub(super) few: usize,
    /// Rows of such a segment at most.
    pub(super) few_rows: usize,
    /// Tiles of longer segments; none in a graph.
    pub(super) tiles: usize,
    /// Tokens of the longest context.
    pub(super) context: usize,
}

impl Shape {
    /// The shape of a step. Steps of decode rows and verify groups are rounded up to few shapes.
    pub(super) fn of(batch: &StepBatch) -> Self {
        let context = batch.segments.iter().map(|s| s.start + s.rows).max().unwrap_or(0);
        let few = batch.segments.iter().filter(|segment| segment.rows <= FEW_ROWS).count();
        let most = batch.segments.iter().map(|s| s.rows).filter(|rows| *rows <= FEW_ROWS).max().unwrap_or(1);
        let few_rows = most.next_power_of_two();
        if few == batch.segments.len() {
            let rows = bucket(batch.rows());
            // Every row of such a step may want logits; whether it does is no part of the shape.
            return Self {
                rows,
                logit_rows: rows,
                few: bucket(few),
                few_rows,
                tiles: 0,
                context: context.next_power_of_two().max(256),
            };
        }
        let tiles = batch.segments.iter().filter(|s| s.rows > FEW_ROWS).map(|s| s.rows.div_ceil(64)).sum();
        let logit_rows = batch.logit_rows.len().next_multiple_of(8);
        Self { rows: batch.rows().next_multiple_of(8), logit_rows, few, few_rows, tiles, context }
    }

    /// Whether its launches may be captured: no tiles.
    pub(super) fn is_decode(self) -> bool {
        self.tiles == 0
    }
}

/// Row capacities of decode steps: few enough for a graph each, near enough that little is wasted.
fn bucket(rows: usize) -> usize {
    match rows {
        0..=8 => rows.max(1).next_power_of_two(),
        9..=32 => rows.next_multiple_of(8),
        33..=128 => rows.next_multiple_of(16),
        _ => rows.next_multiple_of(64),
    }
}

/// Lays out `batch` for the device.
pub(super) fn fill(rows: &mut StepRows, batch: &StepBatch) {
    rows.clear();
    rows.tokens.extend_from_slice(&batch.tokens);
    rows.positions.extend_from_slice(&batch.positions);
    rows.logit_rows.extend_from_slice(&batch.logit_rows);
    for segment in &batch.segments {
        let tables = &segment.tables;
        // Pages beyond the rows' own positions are of no use to the device.
        let pages = (segment.start + segment.rows).div_ceil(PAGE);
        let mut place = |entries: &[u32]| {
            let at = rows.tables.len() as u32;
            rows.tables.extend_from_slice(entries);
            at
        };
        let (pages, anchors, open_pages) =
            (place(&tables.pages[..pages.min(tables.pages.len())]), place(&tables.anchors), place(&tables.open_pages));
        rows.push_segment(DeviceSegment {
            first_row: segment.first_row as u32,
            rows: segment.rows as u32,
            start: segment.start as u32,
            pages,
            anchors,
            open_pages,
            ring: tables.ring,
            reserved: 0,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Tables;
    use crate::schedule::batch::Segment;

    fn batch(rows: &[usize]) -> StepBatch {
        let mut batch = StepBatch::default();
        for (index, count) in rows.iter().enumerate() {
            let tables = Tables { pages: vec![index as u32; 4], ..Tables::default() };
            batch.segments.push(Segment { first_row: batch.tokens.len(), rows: *count, start: 17, tables });
            batch.tokens.extend((0..*count).map(|row| row as u32));
            batch.positions.extend((0..*count).map(|row| 17 + row as u32));
        }
        batch
    }

    #[test]
    fn decode_steps_share_shapes() {
        let shapes: Vec<Shape> = (1..=64).map(|rows| Shape::of(&batch(&vec![1; rows]))).collect();
        assert!(shapes.iter().zip(1..).all(|(shape, rows)| shape.rows >= rows && shape.is_decode()));
        let mut distinct = shapes.clone();
        distinct.dedup();
        assert!(distinct.len() <= 12, "{}", distinct.len());
        let (group, wider) = (Shape::of(&batch(&[1, 4])), Shape::of(&batch(&[4, 3])));
        assert_eq!(group, wider, "verify groups share shapes");
        assert_eq!((group.rows, group.few, group.few_rows), (8, 2, 4));
    }

    #[test]
    fn a_prefill_chunk_has_tiles() {
        let shape = Shape::of(&batch(&[1, 130, 3]));
        assert_eq!((shape.rows, shape.few, shape.tiles, shape.context), (136, 2, 3, 147));
        assert!(!shape.is_decode());
    }

    #[test]
    fn tables_follow_each_other() {
        let mut rows = StepRows::default();
        fill(&mut rows, &batch(&[1, 20]));
        // Positions 17 and 17 to 36 lie on two and three pages.
        assert_eq!(rows.tables, [0, 0, 1, 1, 1]);
        assert_eq!(rows.segments.iter().map(|segment| segment.pages).collect::<Vec<_>>(), [0, 2]);
        assert_eq!((rows.few.as_slice(), rows.tiles.len()), (&[0u32][..], 1));
    }
}
