//! The judgement itself: every way in which a record can differ from its baseline.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use atlas_gates::compare::compare;
use atlas_gates::{baseline, report, stats};
use atlas_schemas::gate::*;
use atlas_schemas::hardware::{CpuFacts, HardwareClass};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn rule(direction: Direction, kind: MetricKind, tolerance: f64) -> MetricRule {
    MetricRule { unit: "tok/s".into(), direction, kind, tolerance, min_runs: 1, must_be: None }
}

fn measured(values: &[f64]) -> Measured {
    Measured { unit: "tok/s".into(), samples: stats::samples(values.to_vec()), roofline: None }
}

fn record(metrics: &[(&str, Measured)]) -> GateRecord {
    let metrics = metrics.iter().map(|(name, measured)| ((*name).into(), measured.clone())).collect();
    let suite = SuiteResult { suite_hash: "h".into(), seconds: 1.0, metrics, details: vec![] };
    GateRecord {
        schema_version: GATE_VERSION,
        started_at: "2026-01-01T00:00:00Z".into(),
        seconds: 1.0,
        class: HardwareClass::Cpu,
        target: GateTarget {
            name: "tiny".into(),
            model: "m".into(),
            recipe_hash: Some("r".into()),
            weights_hash: Some("w".into()),
            weight_bytes: Some(1),
            weight_bytes_per_token: Some(1),
            flops_per_token: Some(1),
        },
        engine: EngineProvenance { version: "1".into(), binary_sha256: None, git: None },
        hardware: MachineFacts {
            os: "linux".into(),
            arch: "x86_64".into(),
            cpu: CpuFacts { model: "c".into(), cores: 1, threads: 2, features: vec![] },
            memory_bytes: 1,
            gpus: vec![],
        },
        probe: None,
        suites: BTreeMap::from([("s".into(), suite)]),
    }
}

fn promise(metrics: &[(&str, f64, MetricRule)]) -> GateBaseline {
    let metric = |value: f64, rule: &MetricRule| BaselineMetric {
        value,
        spread: 0.0,
        runs: 3,
        roofline_fraction: (rule.kind == MetricKind::Roofline).then_some(value),
        rule: rule.clone(),
    };
    let metrics = metrics.iter().map(|(name, value, rule)| ((*name).into(), metric(*value, rule))).collect();
    let from = record(&[]);
    GateBaseline {
        schema_version: GATE_VERSION,
        class: from.class,
        name: "tiny".into(),
        blessed_at: "2026-01-01T00:00:00Z".into(),
        measured_at: "2026-01-01T00:00:00Z".into(),
        target: from.target,
        engine: from.engine,
        hardware: from.hardware,
        probe: None,
        suites: BTreeMap::from([("s".into(), BaselineSuite { suite_hash: "h".into(), metrics })]),
    }
}

fn verdict(values: &[f64], base: f64, rule: MetricRule) -> Verdict {
    compare(&record(&[("m", measured(values))]), &promise(&[("m", base, rule)]), None).verdict
}

use Direction::{Either, Higher, Lower};
use MetricKind::{Absolute, Exact, Relative, Roofline};
use Verdict::{Fail, Inconclusive, Pass};

#[test]
fn each_kind_and_direction_has_its_limit() {
    for (values, base, direction, kind, tolerance, expected) in [
        ([90.0; 3], 100.0, Higher, Relative, 0.1, Pass),
        ([89.9; 3], 100.0, Higher, Relative, 0.1, Fail),
        ([500.0; 3], 100.0, Higher, Relative, 0.1, Pass),
        ([110.0; 3], 100.0, Lower, Relative, 0.1, Pass),
        ([110.1; 3], 100.0, Lower, Relative, 0.1, Fail),
        ([1.0; 3], 100.0, Lower, Relative, 0.1, Pass),
        ([2.59; 3], 2.577, Either, Relative, 0.005, Fail),
        ([2.56; 3], 2.577, Either, Relative, 0.005, Fail),
        ([2.58; 3], 2.577, Either, Relative, 0.005, Pass),
        ([0.897; 3], 0.917, Higher, Absolute, 0.02, Pass),
        ([0.8969; 3], 0.917, Higher, Absolute, 0.02, Fail),
        ([0.0; 3], 0.0, Lower, Exact, 0.0, Pass),
        ([1.0; 3], 0.0, Lower, Exact, 0.0, Fail),
        ([1.0; 3], 2.0, Lower, Exact, 0.0, Fail),
        ([0.0; 3], 0.0, Lower, Relative, 0.5, Pass),
        ([0.1; 3], 0.0, Lower, Relative, 0.5, Fail),
    ] {
        let got = verdict(&values, base, rule(direction, kind, tolerance));
        assert_eq!(got, expected, "{values:?} against {base} {direction:?} {kind:?} {tolerance}");
    }
}

#[test]
fn noise_that_hides_the_limit_is_inconclusive() {
    let tenth = || rule(Higher, Relative, 0.1);
    assert_eq!(verdict(&[80.0, 95.0, 110.0], 100.0, tenth()), Inconclusive);
    assert_eq!(verdict(&[95.0, 96.0, 97.0], 100.0, tenth()), Pass, "little noise well inside");
    assert_eq!(verdict(&[40.0, 50.0, 60.0], 100.0, tenth()), Fail, "much noise, but far outside");
    assert_eq!(verdict(&[10.0, 100.0, 100.0, 100.0, 100.0], 100.0, tenth()), Pass, "one outlier in five");
    assert_eq!(verdict(&[90.0, 100.0, 110.0], 100.0, rule(Either, Relative, 0.01)), Inconclusive);
}

#[test]
fn too_few_runs_are_inconclusive() {
    let three = MetricRule { min_runs: 3, ..rule(Higher, Relative, 0.1) };
    assert_eq!(verdict(&[100.0; 2], 100.0, three.clone()), Inconclusive);
    assert_eq!(verdict(&[100.0; 3], 100.0, three), Pass);
}

#[test]
fn an_exact_metric_looks_at_every_run() {
    assert_eq!(verdict(&[0.0, 0.0, 1.0], 0.0, rule(Lower, Exact, 0.0)), Fail);
}

#[test]
fn what_is_not_a_number_fails() {
    let any = || rule(Higher, Relative, 1000.0);
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0] {
        assert_eq!(verdict(&[1.0, bad, 1.0], 1.0, any()), Fail, "{bad}");
        assert_eq!(verdict(&[1.0; 3], bad, any()), Fail, "baseline {bad}");
        assert_eq!(verdict(&[1.0; 3], 1.0, rule(Higher, Relative, bad)), Fail, "tolerance {bad}");
    }
    assert_eq!(verdict(&[], 1.0, any()), Fail);
}

#[test]
fn a_summary_that_its_values_belie_fails() {
    let mut lying = measured(&[50.0; 3]);
    lying.samples.median = 100.0;
    let rules = promise(&[("m", 100.0, rule(Higher, Relative, 0.1))]);
    assert_eq!(compare(&record(&[("m", lying.clone())]), &rules, None).verdict, Fail);
    lying = measured(&[100.0; 3]);
    lying.unit = "ms".into();
    assert_eq!(compare(&record(&[("m", lying)]), &rules, None).verdict, Fail);
}

#[test]
fn roofline_compares_fractions_not_speeds() {
    let rules = promise(&[("m", 0.5, rule(Higher, Roofline, 0.1))]);
    let on = |speed: f64, fraction: Option<f64>| {
        let roofline = fraction.map(|fraction| stats::samples(vec![fraction; 3]));
        let metric = Measured { roofline, ..measured(&[speed; 3]) };
        compare(&record(&[("m", metric)]), &rules, None).verdict
    };
    assert_eq!(on(10.0, Some(0.5)), Pass, "a slower sister machine");
    assert_eq!(on(1000.0, Some(0.3)), Fail, "a slower engine on a faster machine");
    assert_eq!(on(1000.0, None), Fail);
    assert_eq!(on(1000.0, Some(f64::NAN)), Fail);
    let fewer = Measured { roofline: Some(stats::samples(vec![0.5; 2])), ..measured(&[10.0; 3]) };
    assert_eq!(compare(&record(&[("m", fewer)]), &rules, None).verdict, Fail, "fractions of other runs");
}

#[test]
fn absence_on_either_side_fails() {
    let ok = || rule(Higher, Relative, 0.1);
    let both = promise(&[("m", 1.0, ok()), ("n", 1.0, ok())]);
    let report = compare(&record(&[("m", measured(&[1.0]))]), &both, None);
    assert_eq!((report.verdict, report.rows[1].reason.as_str()), (Fail, "was not measured"));
    let one = promise(&[("m", 1.0, ok())]);
    let report = compare(&record(&[("m", measured(&[1.0])), ("x", measured(&[1.0]))]), &one, None);
    assert_eq!((report.verdict, report.rows[1].reason.as_str()), (Fail, "has no baseline: bless one"));
    assert_eq!(compare(&record(&[]), &one, None).verdict, Fail);
    assert_eq!(compare(&record(&[]), &promise(&[]), None).verdict, Fail, "an empty promise is none");
    let mut nothing = record(&[]);
    nothing.suites.clear();
    let mut no_promise = promise(&[]);
    no_promise.suites.clear();
    assert_eq!(compare(&nothing, &no_promise, None).verdict, Fail, "nothing compared");
    assert_eq!(compare(&nothing, &one, None).verdict, Fail, "a suite that was not run");
    assert_eq!(compare(&record(&[("m", measured(&[1.0]))]), &no_promise, None).verdict, Fail, "a suite nobody knows");
}

#[test]
fn another_target_class_format_or_suite_fails() {
    let good = record(&[("m", measured(&[1.0]))]);
    let rules = promise(&[("m", 1.0, rule(Higher, Relative, 0.1))]);
    assert_eq!(compare(&good, &rules, None).verdict, Pass);
    let changed: [fn(&mut GateRecord); 4] = [
        |record| record.class = HardwareClass::Gb10,
        |record| record.target.name = "other".into(),
        |record| record.schema_version = 2,
        |record| record.suites.get_mut("s").unwrap().suite_hash = "other".into(),
    ];
    for change in changed {
        let mut record = good.clone();
        change(&mut record);
        let report = compare(&record, &rules, None);
        assert_eq!((report.verdict, report.problems.len()), (Fail, 1), "{report:?}");
    }
    let mut newer = good.clone();
    newer.target.weights_hash = None;
    newer.engine.version = "2".into();
    let report = compare(&newer, &rules, None);
    assert_eq!((report.verdict, report.notes.len()), (Pass, 2), "provenance is told, not judged");
}

#[test]
fn a_choice_of_suites_is_judged_alone() {
    let mut rules = promise(&[("m", 1.0, rule(Higher, Relative, 0.1))]);
    let empty = BaselineSuite { suite_hash: "h".into(), metrics: BTreeMap::new() };
    rules.suites.insert("other".into(), empty);
    let good = record(&[("m", measured(&[1.0]))]);
    assert_eq!(compare(&good, &rules, None).verdict, Fail);
    assert_eq!(compare(&good, &rules, Some(&BTreeSet::from(["s".into()]))).verdict, Pass);
    assert_eq!(compare(&good, &rules, Some(&BTreeSet::from(["none".into()]))).verdict, Fail);
    assert_eq!(compare(&good, &rules, Some(&BTreeSet::new())).verdict, Fail);
}

fn suite(rules: &[(&str, MetricRule)]) -> GateSuite {
    let text = "schema_version: 1\nname: s\ndescription: d\nruns: 3\ntimeout_s: 60\nmeasure: {ttft: {prompt_tokens: 1}}\nmetrics: {}\n";
    let mut suite: GateSuite = serde_saphyr::from_str(text).unwrap();
    suite.metrics = rules.iter().map(|(name, rule)| ((*name).into(), rule.clone())).collect();
    suite
}

#[test]
fn a_blessed_record_keeps_its_own_promise() {
    let suites = [suite(&[("m", rule(Higher, Relative, 0.1))])];
    let good = record(&[("m", measured(&[99.0, 100.0, 101.0]))]);
    let blessed = baseline::bless(&good, &suites).unwrap();
    assert_eq!(compare(&good, &blessed, None).verdict, Pass);
    let slower = record(&[("m", measured(&[79.0, 80.0, 81.0]))]);
    assert_eq!(compare(&slower, &blessed, None).verdict, Fail);
}

#[test]
fn what_proves_nothing_cannot_be_blessed() {
    let relative = || rule(Higher, Relative, 0.1);
    let problem = |record: &GateRecord, suites: &[GateSuite]| baseline::bless(record, suites).unwrap_err().join("; ");
    let one = [suite(&[("m", relative())])];
    assert_eq!(problem(&record(&[]), &one), "m was not measured");
    assert_eq!(problem(&record(&[]), &[]), "suite s has no definition");
    let noisy = record(&[("m", measured(&[50.0, 100.0, 150.0]))]);
    assert!(problem(&noisy, &one).contains("spread is too large"));
    let two = [suite(&[("m", relative()), ("n", relative())])];
    assert_eq!(problem(&record(&[("m", measured(&[1.0]))]), &two), "n was not measured");
    let nan = record(&[("m", measured(&[f64::NAN]))]);
    assert!(problem(&nan, &one).contains("not a number"));
    let zero = [suite(&[("m", MetricRule { must_be: Some(0.0), ..rule(Lower, Exact, 0.0) })])];
    assert_eq!(problem(&record(&[("m", measured(&[3.0]))]), &zero), "m must be 0, not 3");
    let roofline = [suite(&[("m", rule(Higher, Roofline, 0.1))])];
    assert!(problem(&record(&[("m", measured(&[3.0]))]), &roofline).contains("no roofline fraction"));
    let mut none = record(&[]);
    none.suites.clear();
    assert_eq!(problem(&none, &one), "the record holds no suite");
}

#[test]
fn records_survive_json_and_bad_ones_are_refused() {
    let good = record(&[("m", measured(&[99.5, 100.0, 101.0]))]);
    let text = serde_json::to_string(&good).unwrap();
    assert_eq!(serde_json::from_str::<GateRecord>(&text).unwrap(), good);
    let nan = serde_json::to_string(&record(&[("m", measured(&[f64::NAN]))])).unwrap();
    assert!(serde_json::from_str::<GateRecord>(&nan).is_err(), "NaN becomes null, which is no number");
    assert!(serde_json::from_str::<GateRecord>(&text.replace("\"class\"", "\"klass\"")).is_err());
}

#[test]
fn the_report_puts_the_verdict_first() {
    let mut rules = promise(&[
        ("decode|speed", 100.0, rule(Higher, Relative, 0.1)),
        ("lost", 3.0, rule(Lower, Exact, 0.0)),
        ("share", 0.5, rule(Higher, Roofline, 0.6)),
    ]);
    rules.target.weights_hash = Some("before".into());
    let share = Measured { roofline: Some(stats::samples(vec![0.4; 3])), ..measured(&[420.0; 3]) };
    let mut record = record(&[("decode|speed", measured(&[80.0, 81.0, 82.0])), ("share", share)]);
    record.suites.get_mut("s").unwrap().details.push("case `1` <b>\nwrong".into());
    record.probe = Some(MachineProbe {
        method: "portable-1".into(),
        working_set_bytes: 16_000_000,
        read_bytes_per_s: stats::samples(vec![2e10; 3]),
        flops: stats::samples(vec![1e11; 3]),
    });
    let judged = compare(&record, &rules, None);
    insta::assert_snapshot!(report::markdown(&judged, Some(&record)));
}

fn kinds() -> impl Strategy<Value = MetricKind> {
    prop_oneof![Just(Absolute), Just(Relative), Just(Roofline)]
}

fn directions() -> impl Strategy<Value = Direction> {
    prop_oneof![Just(Higher), Just(Lower), Just(Either)]
}

fn row(values: &[f64], base: f64, rule: &MetricRule) -> ReportRow {
    let mut metric = measured(values);
    metric.roofline = Some(metric.samples.clone());
    compare(&record(&[("m", metric)]), &promise(&[("m", base, rule.clone())]), None).rows.remove(0)
}

proptest! {
    #[test]
    fn a_value_equal_to_its_baseline_passes(
        base in 1e-3..1e6f64, tolerance in 0.0..2.0f64, kind in kinds(), direction in directions()
    ) {
        prop_assert_eq!(row(&[base; 3], base, &rule(direction, kind, tolerance)).verdict, Pass);
    }

    #[test]
    fn worse_never_becomes_better(
        base in 1.0..1e6f64, steps in proptest::collection::vec(0.0..0.5f64, 2..6), tolerance in 0.0..0.5f64,
        noise in 0.0..0.2f64, kind in kinds(), higher in any::<bool>()
    ) {
        let rule = rule(if higher { Higher } else { Lower }, kind, tolerance);
        let mut factor = 1.0;
        let mut last = Pass;
        for step in steps {
            factor += step * if higher { -factor } else { 1.0 };
            let value = base * factor;
            // The same absolute noise at every step.
            let values = [value, value + noise * base / 2.0, value + noise * base];
            let verdict = row(&values, base, &rule).verdict;
            prop_assert!(verdict >= last, "{:?} after {:?} at {}", verdict, last, factor);
            last = verdict;
        }
    }

    #[test]
    fn far_beyond_the_tolerance_fails_whatever_the_kind(
        base in 1.0..1e6f64, tolerance in 0.0..0.5f64, kind in kinds(), direction in directions()
    ) {
        let allowed = if kind == Absolute { tolerance } else { tolerance * base };
        let worse = if direction == Higher { base - 2.0 * allowed - base * 0.01 } else { base + 2.0 * allowed + base * 0.01 };
        prop_assume!(worse >= 0.0);
        prop_assert_eq!(row(&[worse; 3], base, &rule(direction, kind, tolerance)).verdict, Fail);
    }

    #[test]
    fn a_verdict_that_the_noise_could_turn_is_inconclusive(
        base in 10.0..1e4f64, tolerance in 0.01..0.5f64, noise in 0.01..0.3f64
    ) {
        // The limit lies inside the middle half of the runs.
        let limit = base * (1.0 - tolerance);
        let values = [limit - noise * limit, limit, limit + noise * limit];
        prop_assert_eq!(row(&values, base, &rule(Higher, Relative, tolerance)).verdict, Inconclusive);
    }

    #[test]
    fn any_bad_value_anywhere_fails(
        mut values in proptest::collection::vec(0.0..100.0f64, 1..6), at in 0usize..6,
        bad in prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(-0.5)], direction in directions(), kind in kinds()
    ) {
        let at = at % values.len();
        values[at] = bad;
        prop_assert_eq!(row(&values, 50.0, &rule(direction, kind, 1e6)).verdict, Fail);
    }
}
