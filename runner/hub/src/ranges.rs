//! Which bytes of a file are there.

use std::ops::Range;

/// Disjoint ranges in order, neighbours merged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<Range<u64>>);

impl Ranges {
    /// Adds a range. Says whether all of it was new.
    pub(crate) fn insert(&mut self, range: Range<u64>) -> bool {
        if range.is_empty() {
            return true;
        }
        let first = self.0.partition_point(|known| known.end < range.start);
        let last = self.0.partition_point(|known| known.start <= range.end);
        let touched = &self.0[first..last];
        let new = touched.iter().all(|known| known.end <= range.start || known.start >= range.end);
        let start = touched.first().map_or(range.start, |known| known.start.min(range.start));
        let end = touched.last().map_or(range.end, |known| known.end.max(range.end));
        self.0.splice(first..last, std::iter::once(start..end));
        new
    }

    /// Forgets everything from `end` on.
    pub(crate) fn truncate(&mut self, end: u64) {
        self.0.retain_mut(|known| {
            known.end = known.end.min(end);
            known.start < known.end
        });
    }

    /// Where the first gap begins.
    pub(crate) fn prefix(&self) -> u64 {
        self.0.first().filter(|known| known.start == 0).map_or(0, |known| known.end)
    }

    /// How many bytes are there.
    pub(crate) fn total(&self) -> u64 {
        self.0.iter().map(|known| known.end - known.start).sum()
    }

    /// What is missing of a file of `size` bytes, in pieces of at most `piece`.
    pub(crate) fn gaps(&self, size: u64, piece: u64) -> Vec<Range<u64>> {
        let ends = self.0.iter().map(|known| known.end);
        let starts = self.0.iter().map(|known| known.start).chain([size]);
        let holes = [0].into_iter().chain(ends).zip(starts);
        let piece = piece.max(1);
        holes
            .flat_map(|(start, end)| {
                let count = end.saturating_sub(start).div_ceil(piece);
                (0..count)
                    .map(move |index| start + index * piece)
                    .map(move |start| start..end.min(start.saturating_add(piece)))
            })
            .collect()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Range<u64>> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_agree_with_a_bitmap() {
        let mut seed = 7u64;
        let mut random = |limit: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % limit
        };
        for _ in 0..300 {
            let (mut ranges, mut bitmap) = (Ranges::default(), [false; 40]);
            for _ in 0..random(12) {
                let start = random(40);
                let end = start + random(41 - start);
                let new = !bitmap[start as usize..end as usize].contains(&true);
                assert_eq!(ranges.insert(start..end), new);
                bitmap[start as usize..end as usize].fill(true);
                if random(6) == 0 {
                    let cut = random(40);
                    ranges.truncate(cut);
                    bitmap[cut as usize..].fill(false);
                }
            }
            assert_eq!(ranges.prefix(), bitmap.iter().take_while(|there| **there).count() as u64);
            assert_eq!(ranges.total(), bitmap.iter().filter(|there| **there).count() as u64);
            let mut gaps = [false; 40];
            let piece = [1, 3, u64::MAX][random(3) as usize];
            for gap in ranges.gaps(40, piece) {
                assert!(!gap.is_empty() && gap.end - gap.start <= piece);
                gaps[gap.start as usize..gap.end as usize].iter_mut().for_each(|gap| {
                    assert!(!*gap);
                    *gap = true;
                });
            }
            assert!(gaps.iter().zip(bitmap).all(|(gap, there)| *gap != there));
            assert!(ranges.iter().zip(ranges.iter().skip(1)).all(|(one, next)| one.end < next.start));
        }
    }
}
