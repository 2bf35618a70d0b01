//! What a run would do: checked, complete, and without a trace on the machine.

use crate::errors::CliError;
use crate::host::identity::require_local;
use crate::host::ports;
use crate::job::launch::LaunchPlan;
use crate::job::record::{now, url_of};
use crate::memory_fit::MemoryFit;
use crate::model::{HubModel, Located, ModelSource, look};
use crate::option_flags::to_arguments;
use atlas_schemas::job::{JOB_RECORD_VERSION, JobRecord, JobState, RankRecord};
use atlas_schemas::provenance::{EffectiveOption, Source};
use atlas_schemas::serve_options::{OptionSet, ServeOptions, find};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;

/// What is to be run: a resolved recipe with the command line's wishes applied.
#[derive(Debug)]
pub(crate) struct RunRequest {
    /// The recipe as it was named.
    pub(crate) reference: String,
    /// The recipe's hash, options of the command line included.
    pub(crate) hash: String,
    /// The recipe as JSON, without secrets.
    pub(crate) resolved: Value,
    /// The model as the recipe names it.
    pub(crate) model: String,
    /// Hub revision.
    pub(crate) revision: Option<String>,
    /// Hosts needed at least.
    pub(crate) min_nodes: u32,
    /// Hosts used at most.
    pub(crate) max_nodes: Option<u32>,
    /// Environment variables of the server.
    pub(crate) env: BTreeMap<String, String>,
    /// What the recipe asks for and this build cannot do.
    pub(crate) refusals: Vec<String>,
    /// What recipe and command line set.
    pub(crate) options: OptionSet,
    /// Every option with its value and its source.
    pub(crate) effective: Vec<EffectiveOption>,
}

/// What would happen.
#[derive(Debug, Serialize)]
pub(crate) struct RunPlan {
    /// The recipe as it was named.
    pub(crate) recipe: String,
    /// Its hash.
    pub(crate) recipe_hash: String,
    /// The model as the recipe names it.
    pub(crate) model: String,
    /// Where the model is, if it is here.
    pub(crate) model_path: Option<String>,
    /// The hosts.
    pub(crate) hosts: Vec<String>,
    /// Where the server will listen; port 0 is any free one.
    pub(crate) address: SocketAddr,
    /// Its URL.
    pub(crate) url: String,
    /// Name of the model in the API.
    pub(crate) model_name: String,
    /// Memory against need, if the model is here.
    pub(crate) memory: Option<MemoryFit>,
    /// The server's command line. Secrets go through a pipe instead.
    pub(crate) argv: Vec<String>,
    /// Environment variables of the server.
    pub(crate) env: BTreeMap<String, String>,
    /// Every option with its value and its source.
    pub(crate) options: Vec<EffectiveOption>,
    /// Why the run would be refused, the first thing first.
    pub(crate) refused: Vec<String>,
    /// What is not here yet, and how to get it. A run is refused; a plan is not.
    pub(crate) missing: Option<String>,
    /// What has to be fetched before a run, and can be.
    #[serde(skip)]
    pub(crate) fetch: Option<HubModel>,
    #[serde(skip)]
    request: RunRequest,
}

impl Serialize for RunRequest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.reference.serialize(serializer)
    }
}

impl RunPlan {
    /// Checks everything in the order of what is cheapest to know. What stands in the way is collected, not thrown,
    /// so that a dry run can show all of it; only what makes a plan impossible is an error.
    pub(crate) fn make(request: RunRequest, hosts: Vec<String>) -> Result<Self, CliError> {
        let serve = request.options.resolve();
        let address = crate::commands::socket_address(&serve.host, serve.port)?;
        let mut refused = Vec::new();
        let mut collect = |result: Result<(), CliError>| refused.extend(result.err().map(|error| error.to_string()));
        collect(require_local(&hosts));
        collect(topology(&request, hosts.len()));
        collect(port(address));
        refused.extend(request.refusals.iter().cloned());
        let lacking: Vec<String> = crate::engine_host::unsupported_options(&serve);
        // What is lacking is worth knowing before tens of gigabytes are fetched.
        let without = |error: CliError| Some([&[error.to_string()], lacking.as_slice()].concat().join("\n"));
        let (source, missing, fetch) = match look(&request.model, request.revision.as_deref()) {
            Ok(Located::Here(source)) => (Some(source), None, None),
            Ok(Located::AtHub(model)) => {
                let missing = without(model.missing());
                (None, missing, Some(model).filter(|model| !model.offline && lacking.is_empty()))
            }
            Err(error) => (None, without(error), None),
        };
        let memory = match &source {
            Some(source) if lacking.is_empty() => Some(memory(source, &serve)?),
            _ => None,
        };
        if source.is_some() {
            refused.extend(lacking);
        }
        if let Some(fit) = &memory {
            refused.extend(fit.require().err().map(|error| error.to_string()));
        }
        let model_name = serve.model_name.clone().unwrap_or_else(|| short_model_name(&request));
        Ok(Self {
            recipe: request.reference.clone(),
            recipe_hash: request.hash.clone(),
            model: request.model.clone(),
            model_path: source.as_ref().map(ModelSource::argument),
            hosts,
            address,
            url: url_of(&address.ip().to_string(), address.port()),
            argv: argv(&request, source.as_ref(), &model_name),
            model_name,
            memory,
            env: request.env.clone(),
            options: request.effective.clone(),
            refused,
            missing,
            fetch,
            request,
        })
    }

    /// The first thing that stands in the way of a run. What can be fetched does not.
    pub(crate) fn require(&self) -> Result<(), CliError> {
        match self.refused.first().or(self.missing.as_ref().filter(|_| self.fetch.is_none())) {
            Some(reason) => Err(CliError::Refused(reason.clone())),
            None => Ok(()),
        }
    }

    /// The model, if it is here.
    pub(crate) fn source(&self) -> Option<ModelSource> {
        look(self.model_path.as_deref()?, None).ok().and_then(|located| match located {
            Located::Here(source) => Some(source),
            Located::AtHub(_) => None,
        })
    }

    /// The same wishes, planned anew: with the model here, its memory is known too.
    pub(crate) fn again(self) -> Result<Self, CliError> {
        Self::make(self.request, self.hosts)
    }

    /// The plan as a launch.
    pub(crate) fn into_launch(self) -> LaunchPlan {
        let record = JobRecord {
            schema_version: JOB_RECORD_VERSION,
            id: String::new(),
            recipe: self.recipe,
            recipe_hash: Some(self.recipe_hash),
            model: self.model,
            model_revision: self.request.revision,
            resolved_recipe: self.request.resolved,
            options: self.options,
            argv: self.argv,
            host: self.address.ip().to_string(),
            port: self.address.port(),
            model_name: self.model_name,
            started_at: now(),
            ended_at: None,
            state: JobState::Starting,
            reason: None,
            ranks: vec![RankRecord {
                rank: 0,
                host: "localhost".to_owned(),
                pid: None,
                pid_start_ticks: None,
                boot_id: None,
                log: String::new(),
                exit_code: None,
            }],
        };
        LaunchPlan { record, env: self.env, secrets: secrets(&self.request.options) }
    }

    /// The plan for people.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: &str| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{name:<9}{}", value.replace('\n', "\n         "));
        };
        line("recipe", &format!("{} ({})", self.recipe, self.recipe_hash.get(..12).unwrap_or(&self.recipe_hash)));
        line(
            "model",
            &match (&self.model_path, &self.missing) {
                (Some(path), _) if *path != self.model => format!("{} in {path}", self.model),
                (None, Some(missing)) => format!("{}: not here\n{missing}", self.model),
                _ => self.model.clone(),
            },
        );
        line("hosts", &self.hosts.join(", "));
        let port = if self.address.port() == 0 { " (any free port)" } else { "" };
        line("address", &format!("{}{port}", self.url));
        line(
            "memory",
            &self.memory.as_ref().map_or_else(
                || "unknown".to_owned(),
                |fit| format!("{}: {}", if fit.fits { "fits" } else { "does not fit" }, fit.summary()),
            ),
        );
        line("argv", &self.argv.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "));
        for (name, value) in &self.env {
            line("env", &format!("{name}={value}"));
        }
        for reason in &self.refused {
            line("refused", reason);
        }
        text.push_str("options\n");
        for option in &self.options {
            text.push_str(&option_line(option));
        }
        text
    }
}

fn option_line(option: &EffectiveOption) -> String {
    let value = match (find(&option.key), &option.value) {
        (_, Value::Null) => "auto".to_owned(),
        (Some(spec), value) => spec.show(value),
        (None, value) => value.to_string(),
    };
    let note = match &option.no_effect {
        Some(why) if option.source != Source::Default => format!("  (no effect: {why})"),
        _ => String::new(),
    };
    format!("  {:<28} {:<24} {}{note}\n", option.key, value, option.source)
}

fn topology(request: &RunRequest, hosts: usize) -> Result<(), CliError> {
    let (min, max) = (request.min_nodes as usize, request.max_nodes.map(|max| max as usize));
    let count = |number: usize| format!("{number} host{}", if number == 1 { "" } else { "s" });
    if hosts < min {
        return Err(CliError::Refused(format!("the recipe needs at least {}, {} given", count(min), count(hosts))));
    }
    if max.is_some_and(|max| hosts > max) {
        let max = max.unwrap_or_default();
        return Err(CliError::Refused(format!("the recipe runs on at most {}, {} given", count(max), count(hosts))));
    }
    Ok(())
}

fn port(address: SocketAddr) -> Result<(), CliError> {
    match ports::listener(address) {
        None => Ok(()),
        Some(_) => Err(CliError::Refused(crate::commands::port_in_use(address))),
    }
}

fn memory(source: &ModelSource, serve: &ServeOptions) -> Result<MemoryFit, CliError> {
    MemoryFit::now(crate::engine_host::memory_need(source, serve)?, serve.gpu_memory_utilization)
}

fn short_model_name(request: &RunRequest) -> String {
    crate::job::store::short_name(&request.reference).to_owned()
}

/// The server's command line: only what recipe and command line set, so that it can be read.
fn argv(request: &RunRequest, source: Option<&ModelSource>, model_name: &str) -> Vec<String> {
    let model = source.map_or_else(|| request.model.clone(), ModelSource::argument);
    let mut argv = vec!["atlas".to_owned(), "serve".to_owned(), model, "--verbose".to_owned()];
    if source.is_none() {
        argv.extend(request.revision.iter().flat_map(|revision| ["--revision".to_owned(), revision.clone()]));
    }
    if !request.options.contains("model_name") {
        argv.extend(["--model-name".to_owned(), model_name.to_owned()]);
    }
    argv.extend(to_arguments(&request.options));
    argv
}

/// Values of secret options, by key.
fn secrets(options: &OptionSet) -> BTreeMap<String, String> {
    let secret = options.iter().filter(|(spec, _)| spec.is_secret());
    secret.filter_map(|(spec, value)| Some((spec.key.to_owned(), value.as_str()?.to_owned()))).collect()
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@,+%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(set: &[(&str, &str)]) -> RunRequest {
        let mut options = OptionSet::default();
        for (key, value) in set {
            options.set_text(find(key).unwrap(), value).unwrap();
        }
        RunRequest {
            reference: "@atlas/tiny".to_owned(),
            hash: "0".repeat(64),
            resolved: Value::Null,
            model: "no-such/model".to_owned(),
            revision: Some("v1".to_owned()),
            min_nodes: 1,
            max_nodes: None,
            env: BTreeMap::new(),
            refusals: Vec::new(),
            options,
            effective: Vec::new(),
        }
    }

    #[test]
    fn secrets_are_in_no_part_of_a_plan_or_a_record() {
        let plan =
            RunPlan::make(request(&[("api_key", "sentinel"), ("port", "0")]), vec!["localhost".to_owned()]).unwrap();
        assert!(!plan.text().contains("sentinel"));
        assert!(!serde_json::to_string(&plan).unwrap().contains("sentinel"));
        let launch = plan.into_launch();
        assert!(!serde_json::to_string(&launch.record).unwrap().contains("sentinel"));
        assert_eq!(launch.secrets["api_key"], "sentinel");
    }

    #[test]
    fn everything_in_the_way_is_found_and_the_cheapest_is_told_first() {
        let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = busy.local_addr().unwrap().port().to_string();
        let mut wish = request(&[("port", &port)]);
        wish.min_nodes = 3;
        wish.refusals = vec!["`command`: no".to_owned()];
        let plan = RunPlan::make(wish, vec!["localhost".to_owned(), "gpu-1".to_owned()]).unwrap();
        let starts =
            ["`gpu-1` is not this machine", "the recipe needs at least 3 hosts, 2 hosts given", "port ", "`command`"];
        assert_eq!(plan.refused.len(), starts.len(), "{:?}", plan.refused);
        for (reason, start) in plan.refused.iter().zip(starts) {
            assert!(reason.starts_with(start), "{reason}");
        }
        assert_eq!(plan.require().unwrap_err().exit_code(), 4);
        assert!(plan.missing.unwrap().contains("huggingface-cli download no-such/model --revision v1"));
    }

    #[test]
    fn what_the_build_lacks_is_told_before_anything_is_fetched() {
        let options = [("kv_cache_dtype", "turbo4"), ("port", "0")];
        let plan = RunPlan::make(request(&options), vec!["localhost".to_owned()]).unwrap();
        assert!(plan.missing.unwrap().ends_with("kv_cache_dtype: `turbo4` is not supported by this build"));
        let here = RunRequest { model: "embedded".to_owned(), ..request(&options) };
        let plan = RunPlan::make(here, vec!["localhost".to_owned()]).unwrap();
        assert_eq!((plan.refused.len(), plan.missing, plan.memory), (1, None, None));
    }

    #[test]
    fn too_many_hosts_are_refused_too() {
        let mut wish = request(&[]);
        wish.max_nodes = Some(1);
        assert!(topology(&wish, 2).unwrap_err().to_string().contains("at most 1 host, 2 hosts given"));
        assert!(topology(&wish, 1).is_ok());
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("--port"), "--port");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("{\"a\": $b}"), "'{\"a\": $b}'");
    }
}
