//! Sequences, reservations and what they hold.

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
