//! The JSON Schemas of everything here, as committed under `schemas/json`.

use crate::{bench, cache, eval, gate, hardware, hosts, job, lock, outputs, recipe, registry, serve_options};
use schemars::schema_for;
use serde_json::Value;

/// Every schema with its file name, sorted.
pub fn all() -> Vec<(&'static str, Value)> {
    let schemas = [
        ("bench-record", schema_for!(bench::BenchRecord)),
        ("cache-list", schema_for!(cache::CacheList)),
        ("cache-pruning", schema_for!(cache::CachePruning)),
        ("cache-verification", schema_for!(cache::CacheVerification)),
        ("chat-turn", schema_for!(outputs::ChatTurn)),
        ("doctor-report", schema_for!(outputs::DoctorReport)),
        ("eval-record", schema_for!(eval::EvalRecord)),
        ("explain-report", schema_for!(outputs::ExplainReport)),
        ("gate-baseline", schema_for!(gate::GateBaseline)),
        ("gate-change-report", schema_for!(gate::GateChangeReport)),
        ("gate-record", schema_for!(gate::GateRecord)),
        ("gate-report", schema_for!(gate::GateReport)),
        ("gate-suite", schema_for!(gate::GateSuite)),
        ("host-facts", schema_for!(hardware::HostFacts)),
        ("hosts", schema_for!(hosts::Hosts)),
        ("job-record", schema_for!(job::JobRecord)),
        ("listening-event", schema_for!(outputs::ListeningEvent)),
        ("lock", schema_for!(lock::Lock)),
        ("log-tail", schema_for!(outputs::LogTail)),
        ("perplexity-record", schema_for!(eval::PerplexityRecord)),
        ("pull-report", schema_for!(cache::PullReport)),
        ("recipe", schema_for!(recipe::Recipe)),
        ("recipe-list", schema_for!(outputs::RecipeList)),
        ("recipe-report", schema_for!(outputs::RecipeReport)),
        ("registry", schema_for!(registry::RegistryManifest)),
        ("run-plan", schema_for!(outputs::RunPlan)),
        ("run-summary", schema_for!(outputs::RunSummary)),
        ("serve-options", schema_for!(serve_options::ServeOptions)),
        ("status-report", schema_for!(Vec<outputs::JobStatus>)),
        ("stop-report", schema_for!(Vec<outputs::StopOutcome>)),
        ("user-registries", schema_for!(registry::UserRegistries)),
        ("validation-report", schema_for!(outputs::ValidationReport)),
    ];
    schemas.into_iter().map(|(name, schema)| (name, schema.to_value())).collect()
}

/// The schema with this name (`recipe`), as the text of its file.
pub fn text(name: &str) -> Option<String> {
    all().into_iter().find(|(known, _)| *known == name).map(|(_, schema)| pretty(&schema))
}

/// A schema as the text of its file.
pub fn pretty(schema: &Value) -> String {
    // Serialising a value that is in memory does not fail.
    serde_json::to_string_pretty(schema).unwrap_or_default() + "\n"
}
