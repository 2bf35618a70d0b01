//! Baselines: where they are kept, and how a record becomes one.

use crate::compare;
use crate::data::{self, DataError};
use crate::provenance;
use atlas_schemas::gate::{
    BaselineMetric, BaselineSuite, GATE_VERSION, GateBaseline, GateRecord, GateSuite, MetricKind, SuiteResult, Verdict,
};
use atlas_schemas::hardware::HardwareClass;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Baselines that travel with the binary: class, name, text.
const BUILT_IN: [(&str, &str, &str); 1] = [("cpu", "tiny", include_str!("../baselines/cpu/tiny.json"))];

/// Folder of the repository's baselines.
pub const FOLDER: &str = "gates/baselines";
/// Folder of the repository's records.
pub const RECORDS: &str = "gates/records";

/// `ROOT/CLASS/NAME.json`. Characters that could leave the folder become dashes.
pub fn path(root: &Path, class: HardwareClass, name: &str) -> PathBuf {
    root.join(class.as_str()).join(format!("{}.json", file_stem(name)))
}

fn file_stem(name: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    let stem: String = name.chars().map(safe).collect();
    match stem.trim_matches(|c| c == '.' || c == '-') {
        "" => "unnamed".into(),
        stem => stem.to_owned(),
    }
}

/// The baseline of a target: `file` if given, else the one under `root`, else the one built in; none if there is none.
pub fn find(
    file: Option<&Path>,
    root: &Path,
    class: HardwareClass,
    name: &str,
) -> Result<Option<GateBaseline>, DataError> {
    let in_folder = path(root, class, name);
    match file {
        Some(file) => read(file).map(Some),
        None if in_folder.exists() => read(&in_folder).map(Some),
        None => match BUILT_IN.iter().find(|(c, n, _)| (*c, *n) == (class.as_str(), name)) {
            Some((.., text)) => parse(text, name).map(Some),
            None => Ok(None),
        },
    }
}

/// Reads a baseline from a file.
pub fn read(path: &Path) -> Result<GateBaseline, DataError> {
    parse(&data::read(path)?, &path.display().to_string())
}

fn parse(text: &str, origin: &str) -> Result<GateBaseline, DataError> {
    serde_json::from_str(text)
        .map_err(|error| DataError::content(origin, error.line(), format!("is no baseline: {error}")))
}

/// Makes a record the promise. Every reason why it cannot be is returned: a suite without definition, a rule whose
/// metric was not measured, a measurement too noisy for its own tolerance, a value other than the one allowed.
pub fn bless(record: &GateRecord, suites: &[GateSuite]) -> Result<GateBaseline, Vec<String>> {
    let mut problems = Vec::new();
    let mut promised = BTreeMap::new();
    for (name, result) in &record.suites {
        match suites.iter().find(|suite| suite.name == *name) {
            Some(suite) => {
                promised.insert(name.clone(), bless_suite(suite, result, &mut problems));
            }
            None => problems.push(format!("suite {name} has no definition")),
        }
    }
    if record.suites.is_empty() {
        problems.push("the record holds no suite".into());
    }
    let baseline = GateBaseline {
        schema_version: GATE_VERSION,
        class: record.class,
        name: record.target.name.clone(),
        blessed_at: provenance::now(),
        measured_at: record.started_at.clone(),
        target: record.target.clone(),
        engine: record.engine.clone(),
        hardware: record.hardware.clone(),
        probe: record.probe.clone(),
        suites: promised,
    };
    // A promise that its own record does not keep would never hold: noise, bad numbers and absences show here.
    if problems.is_empty() {
        let report = compare::compare(record, &baseline, None);
        problems.extend(report.problems);
        let broken = report.rows.iter().filter(|row| row.verdict != Verdict::Pass);
        problems.extend(broken.map(|row| format!("{} {}", row.metric, row.reason)));
    }
    if problems.is_empty() { Ok(baseline) } else { Err(problems) }
}

fn bless_suite(suite: &GateSuite, result: &SuiteResult, problems: &mut Vec<String>) -> BaselineSuite {
    let mut metrics = BTreeMap::new();
    for (name, rule) in &suite.metrics {
        let Some(measured) = result.metrics.get(name) else {
            problems.push(format!("{name} was not measured"));
            continue;
        };
        let value = measured.samples.median;
        if let Some(wanted) = rule.must_be
            && wanted != value
        {
            problems.push(format!("{name} must be {wanted}, not {value}"));
        }
        if rule.kind == MetricKind::Roofline && measured.roofline.is_none() {
            problems.push(format!("{name} has no roofline fraction: what a token costs is unknown"));
        }
        metrics.insert(
            name.clone(),
            BaselineMetric {
                value,
                spread: measured.samples.spread,
                runs: measured.samples.values.len() as u32,
                roofline_fraction: measured.roofline.as_ref().map(|roofline| roofline.median),
                rule: rule.clone(),
            },
        );
    }
    BaselineSuite { suite_hash: result.suite_hash.clone(), metrics }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_baselines_are_found_and_keep_the_suites_of_this_build() {
        for (class, name, text) in BUILT_IN {
            let baseline = find(None, Path::new("/nonexistent"), class.parse().unwrap(), name).unwrap().unwrap();
            assert_eq!((baseline.class.as_str(), baseline.name.as_str()), (class, name));
            assert_eq!(parse(text, name).unwrap(), baseline);
            for (suite, promised) in &baseline.suites {
                let defined = crate::suites::load(suite).unwrap();
                assert_eq!(promised.suite_hash, crate::suites::hash(&defined).unwrap(), "{suite}: bless {name} again");
                for (metric, rule) in &defined.metrics {
                    assert_eq!(promised.metrics[metric].rule, *rule, "{metric}: bless {name} again");
                }
            }
        }
        assert!(find(None, Path::new("/nonexistent"), HardwareClass::Cpu, "other").unwrap().is_none());
    }

    #[test]
    fn paths_stay_in_the_folder() {
        let path = |name| super::path(Path::new("b"), HardwareClass::Cpu, name).display().to_string();
        assert_eq!(path("tiny"), "b/cpu/tiny.json");
        assert_eq!(path("../../etc/passwd"), "b/cpu/etc-passwd.json");
        assert_eq!(path("@atlas/tiny"), "b/cpu/atlas-tiny.json");
        assert_eq!(path("/.."), "b/cpu/unnamed.json");
    }
}
