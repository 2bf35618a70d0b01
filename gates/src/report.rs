//! A judgement as Markdown: the verdict first, then the table, then the rest folded away.

use atlas_schemas::gate::{Direction, GateRecord, GateReport, MetricKind, MetricRule, ReportRow};
use std::fmt::Write;

/// Renders a report; with the record, its provenance and details too.
pub fn markdown(report: &GateReport, record: Option<&GateRecord>) -> String {
    let mut out = format!("## Gate {} on {}: {}\n\n", escape(&report.name), report.class, report.verdict);
    for problem in &report.problems {
        let _ = writeln!(out, "- **fail**: {}", escape(problem));
    }
    if !report.problems.is_empty() {
        out.push('\n');
    }
    if !report.rows.is_empty() {
        out.push_str("| suite | metric | baseline | measured | delta | tolerance | runs | verdict |\n");
        out.push_str("|---|---|--:|--:|--:|--:|--:|---|\n");
        report.rows.iter().for_each(|row| table_row(&mut out, row));
        out.push('\n');
    }
    if !report.notes.is_empty() || record.is_some() {
        out.push_str("<details><summary>Provenance and details</summary>\n\n");
        for note in &report.notes {
            let _ = writeln!(out, "- changed since the baseline: {}", escape(note));
        }
        if let Some(record) = record {
            provenance(&mut out, record);
        }
        out.push_str("\n</details>\n");
    }
    out
}

fn table_row(out: &mut String, row: &ReportRow) {
    let roofline = row.rule.as_ref().is_some_and(|rule| rule.kind == MetricKind::Roofline);
    let value = |value: Option<f64>| match value {
        None => "–".to_owned(),
        Some(value) if roofline => format!("{:.1} %", 100.0 * value),
        Some(value) => number(value),
    };
    let mut measured = value(row.measured);
    if roofline && let Some(raw) = row.raw {
        let _ = write!(measured, " ({} {})", number(raw), row.unit);
    }
    let delta = match (row.measured, row.baseline) {
        (Some(measured), Some(baseline)) if baseline != 0.0 => format!("{:+.1} %", 100.0 * (measured / baseline - 1.0)),
        (Some(measured), Some(baseline)) => format!("{:+}", measured - baseline),
        _ => "–".into(),
    };
    let _ = writeln!(
        out,
        "| {} | {} [{}] | {} | {measured} | {delta} | {} | {} | {}: {} |",
        escape(&row.suite),
        escape(&row.metric),
        escape(&row.unit),
        value(row.baseline),
        row.rule.as_ref().map_or_else(|| "–".into(), tolerance),
        row.runs,
        row.verdict,
        escape(&row.reason),
    );
}

fn tolerance(rule: &MetricRule) -> String {
    let sign = match rule.direction {
        Direction::Higher => "−",
        Direction::Lower => "+",
        Direction::Either => "±",
    };
    match rule.kind {
        MetricKind::Exact => "exact".into(),
        MetricKind::Absolute => format!("{sign}{}", number(rule.tolerance)),
        MetricKind::Relative | MetricKind::Roofline => format!("{sign}{} %", number(100.0 * rule.tolerance)),
    }
}

/// Four significant digits, whole numbers plain.
fn number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    let digits = (3 - value.abs().log10().floor() as i32).clamp(0, 9) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

fn provenance(out: &mut String, record: &GateRecord) {
    let (target, engine, machine) = (&record.target, &record.engine, &record.hardware);
    let known = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".into());
    let _ = writeln!(out, "- measured {} in {:.0} s", record.started_at, record.seconds);
    let _ = writeln!(out, "- model {}, recipe {}", escape(&target.model), known(&target.recipe_hash));
    let _ = writeln!(out, "- weights {}", known(&target.weights_hash));
    let git = engine.git.as_ref();
    let tree = git
        .map_or(String::new(), |git| format!(", commit {}{}", git.commit, if git.dirty { " + changes" } else { "" }));
    let _ = writeln!(out, "- engine {}{tree}, binary {}", escape(&engine.version), known(&engine.binary_sha256));
    for gpu in &machine.gpus {
        let _ = writeln!(out, "- {} ({})", escape(&gpu.name), gpu.compute_capability);
    }
    let _ =
        writeln!(out, "- {} × {} ({} {})", machine.cpu.threads, escape(&machine.cpu.model), machine.os, machine.arch);
    if let Some(probe) = &record.probe {
        let (bytes, flops) = (probe.read_bytes_per_s.median / 1e9, probe.flops.median / 1e9);
        let size = probe.working_set_bytes as f64 / 1e6;
        let _ = writeln!(out, "- roofline: {bytes:.1} GB/s over {size:.1} MB, {flops:.1} Gflop/s ({})", probe.method);
    }
    for (name, suite) in &record.suites {
        if !suite.details.is_empty() {
            let _ = writeln!(out, "\n{}:\n", escape(name));
            for detail in &suite.details {
                let _ = writeln!(out, "- `{}`", detail.replace(['`', '\n', '\r'], " "));
            }
        }
    }
}

/// Keeps text from ending a table cell or a line, or becoming markup.
fn escape(text: &str) -> String {
    text.replace(['\n', '\r'], " ").replace('|', "\\|").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits() {
        let shown: Vec<String> = [0.0, 2.576569, 1234.56, 0.0012345, 300.0, 12.0].into_iter().map(number).collect();
        assert_eq!(shown, ["0", "2.577", "1235", "0.001234", "300", "12"]);
    }
}
