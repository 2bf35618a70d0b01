//! The scheduler and its caches over a device that remembers whose tokens stand where.

mod bench;

use super::*;
use crate::schedule::PATIENCE;
use bench::{Bench, Shape, prompt};
use proptest::prelude::*;

fn limits(policy: Policy) -> Limits {
    Limits {
        max_sequences: 3,
        step_tokens: 40,
        vocab: bench::VOCAB,
        policy,
        between_tokens: Duration::from_millis(100),
        prefix_caching: true,
        checkpoint_interval: 64,
    }
}

const SHAPE: Shape = Shape { pages: 40, checkpoints: 4, recurrent: true };

/// Prompts that begin alike within a family and part at different points.
fn request() -> impl Strategy<Value = (u32, usize, usize, usize, Option<usize>)> {
    (0..3u32, 0..200usize, 1..200usize, 1..90usize, prop::option::weighted(0.2, 0..60usize))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// Nothing is leaked, shared by mistake or written while shared (the device would notice), and everything that is
    /// not cancelled ends with the tokens that it has alone.
    #[test]
    fn all_that_is_admitted_ends_with_its_own_tokens(
        requests in prop::collection::vec((request(), 0..12usize), 1..24),
        slai in any::<bool>(),
        recurrent in any::<bool>(),
        prefix_caching in any::<bool>(),
        pages in 20..60usize,
        checkpoints in 0..7usize,
        step_tokens in 3..150usize,
    ) {
        let policy = if slai { Policy::Slai } else { Policy::Fifo };
        let limits = Limits { step_tokens, prefix_caching, ..limits(policy) };
        let mut bench = Bench::new(limits, Shape { pages, checkpoints, recurrent });
        let mut cancellations = Vec::new();
        let mut step = 0;
        for ((family, common, len, max_tokens, cancel), pause) in requests {
            let max_tokens = max_tokens.min(pages * PAGE - len).max(1);
            let id = bench.submit(&prompt(family, common, len), max_tokens);
            cancellations.extend(cancel.map(|after| (step + after, id)));
            for _ in 0..pause {
                cancellations.retain(|(at, id)| { if *at <= step { bench.cancel(*id) }; *at > step });
                bench.step();
                step += 1;
            }
        }
        while !bench.is_idle() {
            cancellations.retain(|(at, id)| { if *at <= step { bench.cancel(*id) }; *at > step });
            bench.step();
            step += 1;
            prop_assert!(step < 20_000, "it does not end");
        }
        bench.check_ends();
        bench.scheduler.check_idle().unwrap();
    }
}

#[test]
fn what_outgrows_the_memory_is_preempted_and_loses_nothing() {
    for recurrent in [false, true] {
        let mut bench = Bench::new(limits(Policy::Fifo), Shape { pages: 24, recurrent, ..SHAPE });
        for family in 0..3 {
            bench.submit(&prompt(family, 100, 100), 180);
        }
        bench.run();
        bench.check_ends();
        assert!(bench.scheduler.preemptions() > 0);
        bench.scheduler.check_idle().unwrap();
    }
}

#[test]
fn short_prompts_go_first_but_no_prompt_starves() {
    let order = |policy: Policy| {
        let mut bench = Bench::new(limits(policy), Shape { pages: 400, ..SHAPE });
        let long = bench.submit(&prompt(1, 600, 600), 1);
        let short = bench.submit(&prompt(2, 20, 20), 1);
        bench.run();
        (bench.first_token(long), bench.first_token(short))
    };
    let (long, short) = order(Policy::Slai);
    assert!(short < long && short == 1, "{short} {long}");
    let (long, short) = order(Policy::Fifo);
    assert!(long <= short, "{short} {long}");

    // Short prompts come without end, more than the steps can take.
    let mut bench = Bench::new(limits(Policy::Slai), Shape { pages: 400, ..SHAPE });
    let long = bench.submit(&prompt(1, 600, 600), 1);
    let mut seed = 10;
    while !bench.has_token(long) {
        for _ in 0..3 {
            seed += 1;
            bench.submit(&prompt(seed, 30, 30), 1);
        }
        bench.step();
    }
    let own = 600;
    let later = bench.prompt_rows - own;
    assert!(later <= PATIENCE * own + 2 * 40, "{later} rows of later arrivals went before it");
    assert!(later >= PATIENCE * own / 2, "it waited a while: {later}");
}

#[test]
fn prompts_leave_time_for_the_sequences_that_decode() {
    let mut bench = Bench::new(Limits { step_tokens: 200, ..limits(Policy::Slai) }, Shape { pages: 400, ..SHAPE });
    bench.submit(&prompt(1, 10, 10), 100);
    bench.step();
    bench.submit(&prompt(2, 900, 900), 1);
    bench.scheduler.admit();
    let now = Instant::now();
    let rows = |bench: &mut Bench, at: Instant| bench.scheduler.schedule(at).unwrap().prompt_rows;
    assert_eq!(rows(&mut bench, now), 199, "nothing is known yet");
    for _ in 0..50 {
        bench.scheduler.observe(0, Duration::from_millis(10));
        bench.scheduler.observe(100, Duration::from_millis(110));
    }
    // The next token is due within 100 ms; a row takes one.
    let soon = rows(&mut bench, now);
    assert!((70..=90).contains(&soon), "{soon}");
    assert_eq!(rows(&mut bench, now + Duration::from_secs(1)), 12, "late already: the least share");
    // What is held back counts as passed over; in the end nothing is held back any more.
    let mut least = 0;
    while rows(&mut bench, now + Duration::from_secs(1)) < 199 {
        least += 1;
        assert!(least < 25, "the prompt starves");
    }
    assert!(least > 10, "{least}");
    let mut fifo = Bench::new(Limits { step_tokens: 200, ..limits(Policy::Fifo) }, Shape { pages: 400, ..SHAPE });
    fifo.submit(&prompt(1, 10, 10), 100);
    fifo.step();
    fifo.submit(&prompt(2, 900, 900), 1);
    fifo.scheduler.admit();
    assert_eq!(rows(&mut fifo, now + Duration::from_secs(1)), 199);
}

#[test]
fn cancelled_requests_hold_nothing_after_the_next_step() {
    let mut bench = Bench::new(limits(Policy::Slai), Shape { pages: 100, ..SHAPE });
    let ids: Vec<usize> = (0..6).map(|family| bench.submit(&prompt(family, 90, 90), 50)).collect();
    for id in ids {
        bench.step();
        bench.cancel(id);
    }
    bench.step();
    assert!(bench.is_idle());
    bench.scheduler.check_idle().unwrap();
}

/// Runs a prompt and returns how many of its tokens were computed.
fn computed(bench: &mut Bench, tokens: &[u32], max_tokens: usize) -> usize {
    let before = bench.prompt_rows;
    let id = bench.submit(tokens, max_tokens);
    bench.run();
    let computed = bench.prompt_rows - before;
    assert_eq!(bench.cached(id) + computed, tokens.len());
    computed
}

/// The recipe of the 27B model: 64 states, the first inside a prompt after 16 blocks.
fn recipe() -> Limits {
    Limits { step_tokens: 512, checkpoint_interval: 16 * PAGE, ..limits(Policy::Slai) }
}

#[test]
fn a_warm_prompt_is_recomputed_from_its_last_anchor_on_every_repetition() {
    for recurrent in [true, false] {
        for len in [2000, 1984, 1985, 2047] {
            let mut bench = Bench::new(recipe(), Shape { pages: 20_000, checkpoints: 64, recurrent });
            let base = prompt(1, len, len);
            computed(&mut bench, &base, 5);
            for repetition in 0..4 {
                let tokens = [base.clone(), prompt(50 + repetition, 20, 20)].concat();
                let rows = computed(&mut bench, &tokens, 40);
                assert!(rows <= 64 + 20, "{len} tokens, repetition {repetition}: {rows} rows");
                // The very same prompt again: its last token is always computed.
                assert!(computed(&mut bench, &tokens, 1) <= 64);
                // A hundred other sessions come and go. They leave more states than there is room for.
                for other in 0..100 {
                    let other = 1000 + 100 * repetition + other;
                    computed(&mut bench, &prompt(other, 700, 700), 3);
                }
                assert!(bench.scheduler.prefix().checkpoints() <= 64);
            }
            bench.scheduler.check_idle().unwrap();
        }
    }
}

#[test]
fn a_growing_chat_hits_on_every_turn_among_others() {
    for recurrent in [true, false] {
        let mut bench = Bench::new(recipe(), Shape { pages: 4_000, checkpoints: 64, recurrent });
        let mut chats: Vec<Vec<u32>> = (0..8).map(|chat| prompt(chat, 150, 150)).collect();
        for turn in 0..12 {
            for (index, chat) in chats.iter_mut().enumerate() {
                let known = chat.len();
                if turn > 0 {
                    chat.extend(prompt(100 * turn + index as u32, 33, 33));
                    let rows = {
                        let before = bench.prompt_rows;
                        let id = bench.submit(chat, 50);
                        bench.run();
                        assert!(bench.cached(id) > 0);
                        chat.extend(bench.tokens(id));
                        bench.prompt_rows - before
                    };
                    // The last token of the turn before was never computed.
                    assert!(rows <= 64 + 33 + 1, "turn {turn} of {known} tokens: {rows}");
                } else {
                    let id = bench.submit(chat, 50);
                    bench.run();
                    chat.extend(bench.tokens(id));
                }
            }
        }
        bench.scheduler.check_idle().unwrap();
    }
}

#[test]
fn prompts_that_part_share_a_checkpoint_where_they_part() {
    let mut bench = Bench::new(recipe(), Shape { pages: 2_000, ..SHAPE });
    // 190 tokens of a system prompt, then different users.
    computed(&mut bench, &prompt(1, 190, 240), 1);
    assert_eq!(computed(&mut bench, &prompt(1, 190, 241), 1), 241, "nothing to begin from yet");
    assert_eq!(computed(&mut bench, &prompt(1, 190, 242), 1), 242 - 128, "from where the first two parted");
}

#[test]
fn a_prompt_that_is_to_be_reported_is_computed_whole() {
    let mut bench = Bench::new(recipe(), Shape { pages: 2_000, ..SHAPE });
    computed(&mut bench, &prompt(1, 200, 200), 1);
    let id = bench.submit_reporting(&prompt(1, 200, 200), 1);
    bench.run();
    assert_eq!((bench.cached(id), bench.reported(id)), (0, 199));
    // Preempted in the middle of it, it is reported whole all the same, and once.
    let mut bench = Bench::new(Limits { step_tokens: 2, ..limits(Policy::Fifo) }, Shape { pages: 22, ..SHAPE });
    bench.submit(&prompt(2, 40, 40), 250);
    (0..21).for_each(|_| bench.step());
    let id = bench.submit_reporting(&prompt(1, 200, 200), 20);
    bench.run();
    assert!(bench.scheduler.preemptions() > 0);
    assert_eq!(bench.reported(id), 199);
    bench.check_ends();
}
