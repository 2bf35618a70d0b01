use super::super::Dry;
use super::super::filters::tests::reference as filtered;
use super::*;
use proptest::prelude::*;

fn sampled(temperature: f32) -> SamplingParams {
    SamplingParams { temperature, ..Default::default() }
}

#[test]
fn greedy_takes_the_largest_penalised_logit_and_the_lower_id() {
    let mut greedy = Sampler::new(&SamplingParams::default(), &[], 4);
    assert_eq!(greedy.choose(&[1.0, 3.0, 3.0, 2.0], 0), Ok(1));
    assert_eq!(greedy.choose(&[f32::NEG_INFINITY, -9.0, f32::NEG_INFINITY, -9.0], 0), Ok(1));
    let params = SamplingParams { repetition_penalty: 2.0, ..Default::default() };
    assert_eq!(Sampler::new(&params, &[1], 3).choose(&[1.0, 3.0, 2.0], 0), Ok(2));
    let params = SamplingParams { logit_bias: vec![(0, 100.0)], ..Default::default() };
    assert_eq!(Sampler::new(&params, &[], 3).choose(&[1.0, 3.0, 2.0], 0), Ok(0));
    let params = SamplingParams { frequency_penalty: 0.6, ..Default::default() };
    let mut sampler = Sampler::new(&params, &[1, 1, 1], 2);
    let logits = [1.0, 2.0];
    let mut chosen = Vec::new();
    for position in 0..4 {
        chosen.push(sampler.choose(&logits, position).unwrap());
        sampler.accept(chosen[chosen.len() - 1]);
    }
    assert_eq!(chosen, [1, 1, 0, 1]);
}

#[test]
fn unusable_logits_are_errors() {
    for params in [SamplingParams::default(), sampled(1.0)] {
        let mut sampler = Sampler::new(&params, &[], 3);
        assert_eq!(sampler.choose(&[1.0, f32::NAN, 2.0], 0), Err(SamplingError::NotANumber { id: 1 }));
        assert_eq!(sampler.choose(&[1.0, 2.0, f32::INFINITY], 0), Err(SamplingError::NotANumber { id: 2 }));
        assert_eq!(sampler.choose(&[f32::NEG_INFINITY; 3], 0), Err(SamplingError::NothingAllowed));
        assert_eq!(sampler.choose(&[1.0], 0), Err(SamplingError::WrongLength { got: 1, vocab: 3 }));
        assert!(sampler.choose(&[1.0, 2.0, 3.0], 0).is_ok());
        assert_eq!(Sampler::new(&params, &[], 0).choose(&[], 0), Err(SamplingError::NothingAllowed));
    }
}

#[test]
fn extreme_numbers_are_no_trouble() {
    let logits = [-3e38, 3e38, 0.0, 2.9e38];
    assert_eq!(Sampler::new(&sampled(1e-30), &[], 4).choose(&logits, 0), Ok(1));
    assert_eq!(Sampler::new(&sampled(2.0), &[], 4).choose(&logits, 0), Ok(1));
    let params = SamplingParams { top_p: 0.0, top_k: u32::MAX, min_p: 1.0, ..sampled(1.0) };
    assert_eq!(Sampler::new(&params, &[], 4).choose(&logits, 0), Ok(1));
}

/// Pearson's statistic of `draws` choices against the softmax of `logits` over the ids that pass the filters.
fn chi_square(params: &SamplingParams, logits: &[f32], passing: &[u32], draws: u64) -> f64 {
    let mut sampler = Sampler::new(params, &[], logits.len());
    let mut counts = vec![0u64; logits.len()];
    for position in 0..draws {
        counts[sampler.choose(logits, position).unwrap() as usize] += 1;
    }
    let weight = |id: u32| (f64::from(logits[id as usize]) / f64::from(params.temperature)).exp();
    let total: f64 = passing.iter().map(|&id| weight(id)).sum();
    assert_eq!(passing.iter().map(|&id| counts[id as usize]).sum::<u64>(), draws, "a filtered token was chosen");
    let term = |&id: &u32| {
        let expected = draws as f64 * weight(id) / total;
        (counts[id as usize] as f64 - expected).powi(2) / expected
    };
    passing.iter().map(term).sum()
}

#[test]
fn frequencies_are_the_softmax() {
    let logits = [0.3, 1.7, -0.4, 0.9, 2.2, -1.0, 0.0, 1.1];
    // 0.999 quantiles of chi-square with 7, 2 and 3 degrees of freedom.
    for seed in 0..6 {
        let all: Vec<u32> = (0..8).collect();
        let statistic = chi_square(&SamplingParams { seed, ..sampled(1.0) }, &logits, &all, 40_000);
        assert!(statistic < 24.32, "seed {seed}: {statistic}");
        let statistic = chi_square(&SamplingParams { seed, ..sampled(0.6) }, &logits, &all, 40_000);
        assert!(statistic < 24.32, "seed {seed}, cold: {statistic}");
        let top_k = SamplingParams { seed, top_k: 3, ..sampled(1.3) };
        let statistic = chi_square(&top_k, &logits, &[4, 1, 7], 40_000);
        assert!(statistic < 13.82, "seed {seed}, top-k: {statistic}");
        // Probabilities 0.39, 0.24, 0.13, 0.11, …: 0.8 is reached by the fourth.
        // The deviation is 1.0: those from 0.7 on are within 1.5 of them.
        let top_n_sigma = SamplingParams { seed, top_n_sigma: 1.5, ..sampled(1.0) };
        let statistic = chi_square(&top_n_sigma, &logits, &[4, 1, 7, 3], 40_000);
        assert!(statistic < 16.27, "seed {seed}, top-n-sigma: {statistic}");
        // The mean score is 1.33 of 2.2 at most: 1.1, 1.7, 0.9 and 2.2 are nearest.
        let typical = SamplingParams { seed, typical_p: 0.6, ..sampled(1.0) };
        let statistic = chi_square(&typical, &logits, &[7, 1, 3, 4], 40_000);
        assert!(statistic < 16.27, "seed {seed}, typical: {statistic}");
        let top_p = SamplingParams { seed, top_p: 0.8, ..sampled(1.0) };
        let statistic = chi_square(&top_p, &logits, &[4, 1, 7, 3], 40_000);
        assert!(statistic < 16.27, "seed {seed}, top-p: {statistic}");
    }
}

#[test]
fn neighbouring_positions_and_seeds_are_independent() {
    // Pairs of choices over two equally likely tokens: four cells, three degrees of freedom.
    let pair_statistic = |pairs: &mut dyn Iterator<Item = (u32, u32)>| {
        let mut cells = [0f64; 4];
        for (a, b) in pairs.take(20_000) {
            cells[(2 * a + b) as usize] += 1.0;
        }
        cells.iter().map(|c| (c - 5_000.0).powi(2) / 5_000.0).sum::<f64>()
    };
    let choose = |seed, position| {
        Sampler::new(&SamplingParams { seed, ..sampled(1.0) }, &[], 2).choose(&[0.0, 0.0], position).unwrap()
    };
    assert!(pair_statistic(&mut (0..).map(|p| (choose(1, p), choose(1, p + 1)))) < 16.27);
    assert!(pair_statistic(&mut (0..).map(|s| (choose(s, 9), choose(s + 1, 9)))) < 16.27);
}

/// The definition without shortcuts: sort all candidates, filter, try each with its noise.
fn reference(params: &SamplingParams, logits: &[f32], position: u64) -> u32 {
    let all = filtered(params, logits);
    let value = |c: &Scored| c.score + Noise::new(params.seed, position).gumbel(c.id);
    let best = all.iter().max_by(|a, b| value(a).total_cmp(&value(b)).then(b.id.cmp(&a.id)));
    best.unwrap().id
}

/// What a device answers, by definition.
enum DeviceOutput {
    Whole,
    Token(u32),
    Candidates(Vec<Candidate>),
    Unusable(SamplingError),
}

fn device(selection: Selection, logits: &[f32]) -> DeviceOutput {
    if selection == Selection::Logits {
        return DeviceOutput::Whole;
    }
    let ids = || 0..logits.len() as u32;
    let logit = |id: u32| logits[id as usize];
    if let Some(id) = ids().find(|id| logit(*id).is_nan() || logit(*id) == f32::INFINITY) {
        return DeviceOutput::Unusable(SamplingError::NotANumber { id });
    }
    let mut ranked: Vec<Candidate> = ids().map(|id| Candidate { id, logit: logit(id) + 0.0 }).collect();
    ranked.sort_by(|a, b| b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id)));
    let Some(best) = ranked.first().copied().filter(|best| best.logit > f32::NEG_INFINITY) else {
        return DeviceOutput::Unusable(SamplingError::NothingAllowed);
    };
    match selection {
        Selection::Logits | Selection::Greedy => DeviceOutput::Token(best.id),
        Selection::Sample { temperature, seed, position } => {
            let value = |id: u32| (logit(id) - best.logit) / temperature + Noise::new(seed, position).gumbel(id);
            let better = |a: u32, b: u32| if value(b) > value(a) { b } else { a };
            DeviceOutput::Token(ids().reduce(better).unwrap())
        }
        Selection::Top { k } => {
            ranked.truncate(k as usize);
            DeviceOutput::Candidates(ranked)
        }
    }
}

impl DeviceOutput {
    fn row<'a>(&'a self, logits: &'a [f32]) -> RowOutput<'a> {
        match self {
            Self::Whole => RowOutput::Logits(logits),
            Self::Token(token) => RowOutput::Token(*token),
            Self::Candidates(candidates) => RowOutput::Candidates(candidates),
            Self::Unusable(error) => RowOutput::Unusable(*error),
        }
    }
}

#[test]
fn what_is_asked_of_a_row_follows_from_the_parameters() {
    let asked = |params: SamplingParams| Sampler::new(&params, &[1], 1000).selection(7);
    assert_eq!(asked(SamplingParams::default()), Selection::Greedy);
    assert_eq!(asked(SamplingParams { top_k: 9, top_p: 0.5, ..sampled(0.0) }), Selection::Greedy);
    let sample = Selection::Sample { temperature: 0.5, seed: 3, position: 7 };
    assert_eq!(asked(SamplingParams { seed: 3, ..sampled(0.5) }), sample);
    assert_eq!(asked(SamplingParams { top_k: 20, min_p: 0.1, ..sampled(1.0) }), Selection::Top { k: 20 });
    assert_eq!(
        asked(SamplingParams { top_k: 256, top_p: 0.9, typical_p: 0.9, ..sampled(1.0) }),
        Selection::Top { k: 256 }
    );
    for whole in [
        SamplingParams { top_k: 257, ..sampled(1.0) },
        SamplingParams { top_p: 0.9, ..sampled(1.0) },
        SamplingParams { min_p: 0.1, ..sampled(1.0) },
        SamplingParams { typical_p: 0.9, ..sampled(1.0) },
        SamplingParams { top_k: 20, top_n_sigma: 1.0, ..sampled(1.0) },
        SamplingParams { top_k: 20, dry: Dry { multiplier: 0.8, ..Dry::default() }, ..sampled(0.0) },
        SamplingParams { repetition_penalty: 1.1, ..sampled(0.0) },
        SamplingParams { presence_penalty: 0.1, ..sampled(1.0) },
        SamplingParams { top_k: 20, frequency_penalty: 0.1, ..sampled(1.0) },
        SamplingParams { logit_bias: vec![(3, 1.0)], ..sampled(1.0) },
    ] {
        assert_eq!(asked(whole.clone()), Selection::Logits, "{whole:?}");
    }
}

#[test]
fn an_answer_of_the_wrong_size_is_an_error() {
    let params = SamplingParams { top_k: 2, ..sampled(1.0) };
    let mut sampler = Sampler::new(&params, &[], 5);
    let candidates =
        [Candidate { id: 4, logit: 2.0 }, Candidate { id: 0, logit: 1.0 }, Candidate { id: 1, logit: 0.0 }];
    assert!(sampler.choose_from(&RowOutput::Candidates(&candidates[..2]), 0).is_ok());
    let wrong = sampler.choose_from(&RowOutput::Candidates(&candidates), 0);
    assert_eq!(wrong, Err(SamplingError::WrongLength { got: 3, vocab: 5 }));
    assert_eq!(sampler.choose_from(&RowOutput::Candidates(&[]), 0), Err(SamplingError::NothingAllowed));
    assert_eq!(RowOutput::Token(3).logits(), Err(SamplingError::NoLogits));
}

fn params_strategy() -> impl Strategy<Value = SamplingParams> {
    (
        0.05f32..2.0,
        prop_oneof![Just(0u32), 1u32..20],
        prop_oneof![Just(1.0f32), 0.0f32..1.0],
        prop_oneof![Just(0.0f32), 0.0f32..0.5],
        any::<u64>(),
        prop_oneof![Just(1.0f32), 0.5f32..2.0],
        prop_oneof![Just(0.0f32), -1.0f32..1.0],
        (prop_oneof![Just(0.0f32), 0.1f32..3.0], prop_oneof![Just(1.0f32), 0.0f32..1.0], 0.0f32..2.0),
    )
        .prop_map(|(temperature, top_k, top_p, min_p, seed, repetition_penalty, penalty, more)| SamplingParams {
            temperature,
            top_n_sigma: more.0,
            top_k,
            typical_p: more.1,
            top_p,
            min_p,
            seed,
            repetition_penalty,
            presence_penalty: penalty,
            frequency_penalty: penalty / 2.0,
            dry: Dry { multiplier: more.2, allowed_length: 1, ..Dry::default() },
            logit_bias: vec![(1, penalty)],
        })
}

fn logits_strategy() -> impl Strategy<Value = Vec<f32>> {
    let logit = prop_oneof![-30.0f32..30.0, (-3i8..3).prop_map(f32::from), Just(f32::NEG_INFINITY)];
    prop::collection::vec(logit, 3..600).prop_filter("one finite logit", |l| l.iter().any(|l| l.is_finite()))
}

proptest! {
    #[test]
    fn shortcuts_do_not_change_the_choice(
        params in params_strategy(), logits in logits_strategy(), position: u64,
    ) {
        let plain = SamplingParams {
            repetition_penalty: 1.0, presence_penalty: 0.0, frequency_penalty: 0.0, dry: Dry::default(),
            logit_bias: vec![], ..params
        };
        let mut sampler = Sampler::new(&plain, &[], logits.len());
        prop_assert_eq!(sampler.choose(&logits, position), Ok(reference(&plain, &logits, position)));
        // The sampler keeps nothing from one row to the next.
        prop_assert_eq!(sampler.choose(&logits, position), Ok(reference(&plain, &logits, position)));
    }

    #[test]
    fn verify_rows_choose_what_decode_rows_do(
        params in params_strategy(),
        logits in logits_strategy(),
        prompt in prop::collection::vec(0u32..20, 0..10),
        history in prop::collection::vec(0u32..20, 0..10),
        drafts in prop::collection::vec(0u32..20, 0..5),
        greedy: bool,
    ) {
        let params = if greedy { SamplingParams { temperature: 0.0, ..params } } else { params };
        let mut verify = Sampler::new(&params, &prompt, logits.len());
        let mut decode = verify.clone();
        for &token in &history {
            verify.accept(token);
            decode.accept(token);
        }
        let drafted = verify.choose_with(&logits, 77, &drafts);
        for &token in &drafts {
            decode.accept(token);
        }
        prop_assert_eq!(drafted, decode.choose(&logits, 77));
        prop_assert_eq!(verify.choose_with(&logits, 77, &drafts), drafted);
    }

    #[test]
    fn a_device_and_the_host_choose_the_same_token(
        params in params_strategy(),
        logits in logits_strategy(),
        change in prop_oneof![
            8 => Just(None),
            1 => Just(Some(f32::NAN)),
            1 => Just(Some(f32::INFINITY)),
            2 => Just(Some(0.0)),
            2 => Just(Some(-0.0)),
            1 => Just(Some(f32::NEG_INFINITY)),
        ],
        places in prop::collection::vec(any::<prop::sample::Index>(), 1..20),
        scale in prop_oneof![4 => Just(1.0f32), 1 => Just(1e-7f32), 1 => Just(1e35f32)],
        greedy in prop::bool::weighted(0.1),
        plain in prop::bool::weighted(0.9),
        position: u64,
    ) {
        let mut logits: Vec<f32> = logits.iter().map(|logit| logit * scale).collect();
        for (place, value) in places.iter().zip(change.iter().cycle()) {
            let at = place.index(logits.len());
            logits[at] = *value;
        }
        let mut params = params;
        if greedy {
            params.temperature = 0.0;
        }
        if plain {
            params = SamplingParams {
                repetition_penalty: 1.0, presence_penalty: 0.0, frequency_penalty: 0.0, dry: Dry::default(),
            logit_bias: vec![], ..params
            };
        }
        let mut sampler = Sampler::new(&params, &[3], logits.len());
        let output = device(sampler.selection(position), &logits);
        let chosen = sampler.choose_from(&output.row(&logits), position);
        prop_assert_eq!(chosen, sampler.choose(&logits, position));
    }
}
