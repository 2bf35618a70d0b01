//! What the tree keeps and what it gives up first.

use super::super::Caches;
use super::*;

struct Bench {
    caches: Caches,
    prefix: PrefixCache,
}

impl Bench {
    fn new(pages: usize, checkpoints: usize, recurrent: bool) -> Self {
        let sizes = CacheSizes::for_sequences(2, 0, 4, 8).with_checkpoints(checkpoints);
        let sizes = CacheSizes { pages, ..sizes };
        Self { caches: Caches::new(&sizes, recurrent), prefix: PrefixCache::new(&sizes, recurrent, true) }
    }

    /// Computes `tokens`, with checkpoints, and returns how many of them were cached.
    fn run(&mut self, tokens: &[u32], checkpoints: &[usize]) -> usize {
        let hit = self.prefix.find(0, tokens, tokens.len() - 1);
        let (mut lease, len) = (hit.lease, hit.len);
        let mut sequence = self.caches.resume(hit).unwrap();
        let kept: Vec<usize> = checkpoints.iter().copied().filter(|position| *position > len).collect();
        let missing = tokens.len().div_ceil(PAGE) - len / PAGE;
        self.prefix.evict_pages(missing.saturating_sub(self.caches.pages().0));
        self.prefix.make_room(kept.len());
        let reservation = self.caches.reserve_keeping(&sequence, tokens.len() - len, &kept).unwrap();
        let made = sequence.commit(reservation, tokens.len() - len);
        assert_eq!(made.iter().map(Checkpoint::position).collect::<Vec<_>>(), kept);
        let made = made.into_iter().map(|checkpoint| (Rank::TurnEnd, checkpoint)).collect();
        self.prefix.insert(&mut lease, &mut sequence, tokens, made);
        self.prefix.check(false).unwrap();
        self.prefix.release(lease);
        drop(sequence);
        self.prefix.check(true).unwrap();
        assert!(self.caches.is_idle_but(self.prefix.pages(), self.prefix.checkpoints()));
        len
    }
}

fn tokens(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|index| seed * 10_000 + index).collect()
}

#[test]
fn full_pages_are_shared_and_the_last_token_is_left() {
    let mut bench = Bench::new(20, 0, false);
    assert_eq!(bench.run(&tokens(1, 70), &[]), 0);
    assert_eq!(bench.prefix.pages(), 4);
    assert_eq!(bench.run(&tokens(1, 70), &[]), 64);
    assert_eq!(bench.run(&tokens(1, 64), &[]), 48);
    assert_eq!(bench.run(&tokens(1, 63), &[]), 48);
    assert_eq!(bench.run(&tokens(2, 70), &[]), 0);
    assert_eq!(bench.prefix.pages(), 8);
    // Another salt shares nothing.
    let hit = bench.prefix.find(7, &tokens(1, 70), 69);
    assert_eq!((hit.len, hit.known), (0, 0));
}

#[test]
fn states_decide_where_a_recurrent_model_begins() {
    let mut bench = Bench::new(40, 4, true);
    bench.run(&tokens(1, 300), &[128, 256]);
    assert_eq!((bench.prefix.pages(), bench.prefix.checkpoints()), (16, 2), "pages behind the last state are useless");
    assert_eq!(bench.run(&tokens(1, 300), &[]), 256);
    assert_eq!(bench.run(&tokens(1, 256), &[]), 128);
    assert_eq!(bench.run(&tokens(1, 100), &[]), 0);
    let hit = bench.prefix.find(0, &tokens(1, 250), 249);
    assert_eq!((hit.len, hit.known), (128, 240));
    bench.prefix.release(hit.lease);
}

#[test]
fn the_least_recently_used_leaf_goes_first_and_pins_hold() {
    let mut bench = Bench::new(9, 0, false);
    bench.run(&tokens(1, 64), &[]);
    bench.run(&tokens(2, 64), &[]);
    // The third needs three pages beyond the free one: the first one's tail goes.
    bench.run(&tokens(3, 64), &[]);
    assert_eq!(bench.prefix.pages(), 9);
    assert_eq!(bench.run(&tokens(1, 30), &[]), 16);
    let hit = bench.prefix.find(0, &tokens(3, 65), 64);
    assert_eq!(hit.len, 64);
    assert_eq!(bench.prefix.evict_pages(100), 4, "what is pinned stays");
    assert_eq!((bench.prefix.pages(), bench.prefix.evictable()), (4, 0));
    let lease = hit.lease;
    drop(hit);
    bench.prefix.release(lease);
    assert_eq!(bench.prefix.evict_pages(100), 4);
    bench.prefix.check(true).unwrap();
}

#[test]
fn what_was_hit_outlives_a_flood_but_not_for_ever() {
    let mut bench = Bench::new(4_000, 8, true);
    let run = |bench: &mut Bench, seed: u32| bench.run(&tokens(seed, 100), &[64]);
    run(&mut bench, 1);
    assert_eq!(run(&mut bench, 1), 64);
    (100..300).for_each(|seed| assert_eq!(run(&mut bench, seed), 0));
    assert_eq!(run(&mut bench, 1), 64, "hit before, so two hundred strangers do not evict it");
    // Others are hit as well: three quarters are favoured, the longest unused loses its favour.
    for seed in 2..9 {
        run(&mut bench, seed);
        assert_eq!(run(&mut bench, seed), 64);
    }
    (300..320).for_each(|seed| assert_eq!(run(&mut bench, seed), 0));
    assert_eq!(run(&mut bench, 1), 0);
    assert_eq!(run(&mut bench, 8), 64);
    assert_eq!(bench.prefix.checkpoints(), 8);
}

#[test]
fn states_inside_a_prompt_go_before_those_at_its_end() {
    let mut bench = Bench::new(4_000, 4, true);
    let sequence = |bench: &mut Bench, seed: u32, ranks: [Rank; 2]| {
        let tokens = tokens(seed, 200);
        let hit = bench.prefix.find(0, &tokens, 199);
        let mut lease = hit.lease;
        let mut sequence = bench.caches.resume(hit).unwrap();
        bench.prefix.make_room(2);
        let reservation = bench.caches.reserve_keeping(&sequence, 200, &[64, 192]).unwrap();
        let made = ranks.into_iter().zip(sequence.commit(reservation, 200)).collect();
        bench.prefix.insert(&mut lease, &mut sequence, &tokens, made);
        bench.prefix.release(lease);
    };
    sequence(&mut bench, 1, [Rank::Inside, Rank::TurnEnd]);
    sequence(&mut bench, 2, [Rank::Inside, Rank::TurnEnd]);
    bench.run(&tokens(3, 100), &[64]);
    bench.run(&tokens(4, 100), &[64]);
    let lens = [(1, 190), (1, 200), (2, 190), (2, 200), (3, 100), (4, 100)].map(|(seed, len)| {
        let hit = bench.prefix.find(0, &tokens(seed, len), len - 1);
        bench.prefix.release(hit.lease);
        hit.len
    });
    assert_eq!(lens, [0, 192, 0, 192, 64, 64]);
    bench.prefix.check(false).unwrap();
}
