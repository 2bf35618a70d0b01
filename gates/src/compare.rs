//! The judgement: one record against one baseline.
//!
//! The verdict is never a guess. With median `m`, interquartile range `s` and limit `L` (the baseline made worse by the
//! tolerance), the middle half of the runs is taken as `m ± s/2`: wholly on the good side of `L` passes, wholly on the
//! bad side fails, and straddling `L` is inconclusive. What is absent, unknown, not a number or not what its own raw
//! values say fails.

use crate::stats;
use atlas_schemas::gate::{
    BaselineMetric, BaselineSuite, Direction, GATE_VERSION, GateBaseline, GateRecord, GateReport, Measured, MetricKind,
    MetricRule, ReportRow, Samples, SuiteResult, Verdict,
};
use std::collections::BTreeSet;

/// Judges `record` against `baseline`. With `only`, suites outside it are neither required nor looked at.
pub fn compare(record: &GateRecord, baseline: &GateBaseline, only: Option<&BTreeSet<String>>) -> GateReport {
    let mut report = GateReport {
        schema_version: GATE_VERSION,
        verdict: Verdict::Fail,
        name: baseline.name.clone(),
        class: baseline.class,
        problems: identity_problems(record, baseline),
        notes: provenance_notes(record, baseline),
        rows: Vec::new(),
    };
    let wanted = |suite: &str| only.is_none_or(|only| only.contains(suite));
    let names: BTreeSet<&String> = baseline.suites.keys().chain(record.suites.keys()).filter(|s| wanted(s)).collect();
    for name in &names {
        compare_suite(name, record.suites.get(*name), baseline.suites.get(*name), &mut report);
    }
    for name in only.into_iter().flatten().filter(|name| !names.contains(name)) {
        report.problems.push(format!("suite {name} is in neither the record nor the baseline"));
    }
    if report.rows.is_empty() && report.problems.is_empty() {
        report.problems.push("nothing was compared: the baseline promises no metric".into());
    }
    report.verdict = overall(&report);
    report
}

/// The judgement of a record that no baseline promises anything for: it fails.
pub fn without_baseline(record: &GateRecord) -> GateReport {
    let rows = record.suites.iter().flat_map(|(suite, result)| {
        result.metrics.iter().map(|(metric, measured)| compare_metric(suite, metric, Some(measured), None))
    });
    GateReport {
        schema_version: GATE_VERSION,
        verdict: Verdict::Fail,
        name: record.target.name.clone(),
        class: record.class,
        problems: vec![format!("{} has no baseline for class {}: bless one", record.target.name, record.class)],
        notes: Vec::new(),
        rows: rows.collect(),
    }
}

/// The worst verdict of all rows; any problem fails.
fn overall(report: &GateReport) -> Verdict {
    let of_problems = if report.problems.is_empty() { Verdict::Pass } else { Verdict::Fail };
    report.rows.iter().map(|row| row.verdict).fold(of_problems, Verdict::max)
}

/// Whether the two speak of the same thing at all.
fn identity_problems(record: &GateRecord, baseline: &GateBaseline) -> Vec<String> {
    let mut problems = Vec::new();
    for (what, version) in [("record", record.schema_version), ("baseline", baseline.schema_version)] {
        if version != GATE_VERSION {
            problems.push(format!("the {what} has format version {version}; this Atlas reads {GATE_VERSION}"));
        }
    }
    if record.class != baseline.class {
        problems.push(format!("the record is of class {}, the baseline of class {}", record.class, baseline.class));
    }
    if record.target.name != baseline.name {
        problems.push(format!("the record is of {}, the baseline of {}", record.target.name, baseline.name));
    }
    problems
}

/// What changed since the baseline, beside the numbers.
fn provenance_notes(record: &GateRecord, baseline: &GateBaseline) -> Vec<String> {
    let mut notes = Vec::new();
    let mut differ = |what: &str, now: Option<&str>, then: Option<&str>| {
        if now != then {
            notes.push(format!("{what}: {} (baseline: {})", now.unwrap_or("unknown"), then.unwrap_or("unknown")));
        }
    };
    differ("recipe", record.target.recipe_hash.as_deref(), baseline.target.recipe_hash.as_deref());
    differ("weights", record.target.weights_hash.as_deref(), baseline.target.weights_hash.as_deref());
    differ("engine", Some(&record.engine.version), Some(&baseline.engine.version));
    differ("processor", Some(&record.hardware.cpu.model), Some(&baseline.hardware.cpu.model));
    if record.engine.git.as_ref().is_some_and(|git| git.dirty) {
        notes.push("the record was measured on a work tree with uncommitted changes".into());
    }
    notes
}

fn compare_suite(name: &str, record: Option<&SuiteResult>, baseline: Option<&BaselineSuite>, report: &mut GateReport) {
    let Some(baseline) = baseline else {
        report.problems.push(format!("suite {name} has no baseline: bless one"));
        return;
    };
    if baseline.metrics.is_empty() {
        report.problems.push(format!("the baseline promises no metric of suite {name}"));
    }
    if let Some(record) = record
        && record.suite_hash != baseline.suite_hash
    {
        report.problems.push(format!("suite {name} or its data changed since the baseline: bless it again"));
    }
    let empty = Default::default();
    let measured = record.map_or(&empty, |record| &record.metrics);
    let metrics: BTreeSet<&String> = baseline.metrics.keys().chain(measured.keys()).collect();
    for metric in metrics {
        let row = compare_metric(name, metric, measured.get(metric), baseline.metrics.get(metric));
        report.rows.push(row);
    }
}

/// Judges one metric; either side may be absent, which fails.
fn compare_metric(
    suite: &str,
    metric: &str,
    measured: Option<&Measured>,
    baseline: Option<&BaselineMetric>,
) -> ReportRow {
    let by_roofline = baseline.is_some_and(|baseline| baseline.rule.kind == MetricKind::Roofline);
    let compared = measured.and_then(|m| if by_roofline { m.roofline.as_ref() } else { Some(&m.samples) });
    let mut row = ReportRow {
        suite: suite.into(),
        metric: metric.into(),
        unit: measured.map(|m| m.unit.clone()).or(baseline.map(|b| b.rule.unit.clone())).unwrap_or_default(),
        rule: baseline.map(|b| b.rule.clone()),
        baseline: baseline.and_then(|b| if by_roofline { b.roofline_fraction } else { Some(b.value) }),
        measured: compared.map(|samples| samples.median),
        raw: measured.map(|m| m.samples.median),
        spread: compared.map(|samples| samples.spread),
        runs: measured.map_or(0, |m| m.samples.values.len()),
        verdict: Verdict::Fail,
        reason: String::new(),
    };
    (row.verdict, row.reason) = match (measured, baseline) {
        (_, None) => (Verdict::Fail, "has no baseline: bless one".into()),
        (None, Some(_)) => (Verdict::Fail, "was not measured".into()),
        (Some(measured), Some(baseline)) => match defect(measured, baseline, &row) {
            Some(reason) => (Verdict::Fail, reason),
            None => judge(&row, &measured.samples.values, &baseline.rule),
        },
    };
    row
}

fn is_magnitude(value: f64) -> bool {
    value.is_finite() && value >= 0.0
}

/// Why the numbers cannot be trusted at all, if so.
fn defect(measured: &Measured, baseline: &BaselineMetric, row: &ReportRow) -> Option<String> {
    for samples in std::iter::once(&measured.samples).chain(&measured.roofline) {
        if let Some(reason) = defect_of(samples) {
            return Some(reason);
        }
    }
    if measured.roofline.as_ref().is_some_and(|roofline| roofline.values.len() != measured.samples.values.len()) {
        return Some("has not as many roofline fractions as raw values".into());
    }
    if !is_magnitude(baseline.value) || !is_magnitude(baseline.rule.tolerance) {
        return Some("the baseline's value or tolerance is negative or not a number".into());
    }
    if measured.unit != baseline.rule.unit {
        return Some(format!("is in {}, its baseline in {}", measured.unit, baseline.rule.unit));
    }
    match (row.measured, row.baseline) {
        (Some(measured), Some(baseline)) if is_magnitude(measured) && is_magnitude(baseline) => None,
        (None, _) => Some("has no roofline fraction: the target's bytes or operations a token are unknown".into()),
        (_, None) => Some("the baseline has no roofline fraction".into()),
        _ => Some("a roofline fraction is negative or not a number".into()),
    }
}

fn defect_of(samples: &Samples) -> Option<String> {
    if samples.values.is_empty() {
        return Some("has no raw values".into());
    }
    if !samples.values.iter().all(|value| is_magnitude(*value)) {
        return Some("a raw value is negative or not a number".into());
    }
    let agrees = |stated: f64, computed: f64| (stated - computed).abs() <= 1e-9 * computed.abs().max(1e-9);
    let summary = (stats::median(&samples.values), stats::spread(&samples.values));
    if agrees(samples.median, summary.0) && agrees(samples.spread, summary.1) {
        return None;
    }
    Some("median and spread are not those of the raw values".into())
}

fn judge(row: &ReportRow, values: &[f64], rule: &MetricRule) -> (Verdict, String) {
    let (Some(median), Some(base), Some(spread)) = (row.measured, row.baseline, row.spread) else {
        return (Verdict::Fail, "was not measured".into());
    };
    if values.len() < rule.min_runs as usize {
        return (Verdict::Inconclusive, format!("{} of at least {} runs", values.len(), rule.min_runs));
    }
    if rule.kind == MetricKind::Exact {
        return match values.iter().find(|value| **value != base) {
            None => (Verdict::Pass, "equal".into()),
            Some(value) => (Verdict::Fail, format!("is {value}, not {base}")),
        };
    }
    let allowed = if rule.kind == MetricKind::Absolute { rule.tolerance } else { rule.tolerance * base };
    // How far the middle half of the runs lies on the worse side of the baseline.
    let (low, high) = (median - spread / 2.0, median + spread / 2.0);
    let (best, worst) = match rule.direction {
        Direction::Higher => (base - high, base - low),
        Direction::Lower => (low - base, high - base),
        Direction::Either => {
            let (a, b) = ((low - base).abs(), (high - base).abs());
            (if (low..=high).contains(&base) { 0.0 } else { a.min(b) }, a.max(b))
        }
    };
    // A tolerance is a decimal fraction, and sums of those do not come out even.
    let slack = 1e-12 * base.abs().max(1e-300);
    if worst <= allowed + slack {
        (Verdict::Pass, "within tolerance".into())
    } else if best > allowed + slack {
        (Verdict::Fail, "worse than the tolerance allows".into())
    } else {
        (Verdict::Inconclusive, "the spread is too large for the tolerance".into())
    }
}
