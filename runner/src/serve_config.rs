//! From serve options to the configuration of the HTTP server.

use crate::errors::CliError;
use atlas_engine::config::generation::GenerationConfig;
use atlas_engine::sampling::SamplingParams;
use atlas_schemas::serve_options::ServeOptions;
use atlas_server::{ApiKey, ServerConfig, ToolGrammar};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

/// A request that has no time limit still needs a number.
const NO_LIMIT: Duration = Duration::from_secs(365 * 24 * 3600);
/// Largest key file.
const MAX_KEY_FILE: u64 = 64 << 10;

/// The configuration for `options`. `generation` is the checkpoint's `generation_config.json`, `folder_name` the
/// model's name unless the options have one.
pub(crate) fn server_config(
    options: &ServeOptions,
    generation: &GenerationConfig,
    name: &str,
) -> Result<ServerConfig, CliError> {
    let mut config = ServerConfig::new(options.model_name.clone().unwrap_or_else(|| name.to_owned()));
    config.api_keys = api_keys(options)?;
    if options.require_auth && config.api_keys.is_empty() {
        return Err(CliError::Usage("--require-auth needs an API key: set --api-key-file or --api-key".to_owned()));
    }
    config.allow_unauthenticated = options.allow_unauthenticated;
    config.request_timeout = match options.request_timeout {
        0 => NO_LIMIT,
        seconds => Duration::from_secs(seconds.into()),
    };
    config.defaults.sampling = sampling(options, generation);
    config.defaults.seed = options.default_seed;
    config.tool_grammar = match options.disable_tool_grammar {
        None => ToolGrammar::Auto,
        Some(false) => ToolGrammar::Always,
        Some(true) => ToolGrammar::Never,
    };
    config.defaults.max_tokens = options.default_max_tokens.map(|tokens| tokens as usize);
    config.defaults.template_kwargs = options.default_chat_template_kwargs.clone();
    config.defaults.disable_thinking = options.disable_thinking;
    config.limits.max_body_bytes = (options.max_body_mb as usize) << 20;
    config.limits.max_concurrent_requests = (options.max_queue + options.max_num_seqs) as usize;
    Ok(config)
}

/// What requests get when they say nothing: the options, else what the checkpoint recommends, else plain sampling.
fn sampling(options: &ServeOptions, generation: &GenerationConfig) -> SamplingParams {
    // `do_sample: false` recommends greedy decoding whatever the other fields say.
    let greedy = generation.do_sample == Some(false);
    let number = |option: Option<f64>, recommended: Option<f64>, range: std::ops::RangeInclusive<f64>, plain: f64| {
        option.or_else(|| recommended.filter(|value| range.contains(value))).unwrap_or(plain) as f32
    };
    SamplingParams {
        temperature: number(
            options.default_temperature,
            generation.temperature,
            0.0..=2.0,
            if greedy { 0.0 } else { 1.0 },
        ),
        top_n_sigma: options.default_top_n_sigma as f32,
        top_k: options.default_top_k.or(generation.top_k).unwrap_or(0),
        top_p: number(options.default_top_p, generation.top_p, f64::MIN_POSITIVE..=1.0, 1.0),
        min_p: number(options.default_min_p, generation.min_p, 0.0..=1.0, 0.0),
        repetition_penalty: number(options.default_repetition_penalty, generation.repetition_penalty, 0.01..=10.0, 1.0),
        presence_penalty: number(options.default_presence_penalty, generation.presence_penalty, -2.0..=2.0, 0.0),
        frequency_penalty: number(options.default_frequency_penalty, generation.frequency_penalty, -2.0..=2.0, 0.0),
        ..SamplingParams::default()
    }
}

/// The keys of `api_key`, and of `api_key_file`, which holds one a line.
fn api_keys(options: &ServeOptions) -> Result<Vec<ApiKey>, CliError> {
    let wrong = |error: atlas_server::ConfigError| CliError::Usage(error.to_string());
    let mut keys = Vec::new();
    if let Some(secret) = &options.api_key {
        keys.push(ApiKey::new(secret.expose()).map_err(wrong)?);
    }
    if let Some(file) = &options.api_key_file {
        let text = read_key_file(Path::new(file), rustix::process::geteuid().as_raw())?;
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            keys.push(ApiKey::new(line).map_err(wrong)?);
        }
        if keys.is_empty() {
            return Err(CliError::Usage(format!("{file}: holds no key")));
        }
    }
    Ok(keys)
}

/// A file that others could read or write keeps no secret.
fn read_key_file(path: &Path, user: u32) -> Result<String, CliError> {
    let wrong = |problem: String| CliError::Usage(format!("{}: {problem}", path.display()));
    let file = std::fs::File::open(path).map_err(|error| wrong(error.to_string()))?;
    let metadata = file.metadata().map_err(|error| wrong(error.to_string()))?;
    if metadata.permissions().mode() & 0o077 != 0 || metadata.uid() != user {
        return Err(wrong("must belong to you and be readable by nobody else: run `chmod 600` on it".to_owned()));
    }
    let mut text = String::new();
    std::io::Read::read_to_string(&mut std::io::Read::take(file, MAX_KEY_FILE), &mut text)
        .map_err(|error| wrong(error.to_string()))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use atlas_schemas::serve_options::Secret;
    use serde_json::json;

    fn read(generation: serde_json::Value) -> GenerationConfig {
        GenerationConfig::read(&generation).unwrap()
    }

    #[test]
    fn options_win_over_the_checkpoint_and_the_checkpoint_over_plain() {
        let generation = json!({ "temperature": 0.6, "top_k": 20, "top_p": 7.0 });
        let options =
            ServeOptions { default_temperature: Some(0.2), default_top_n_sigma: 1.5, ..ServeOptions::default() };
        let sampling = super::sampling(&options, &read(generation));
        assert_eq!((sampling.temperature, sampling.top_k, sampling.top_p), (0.2, 20, 1.0));
        assert_eq!(sampling.top_n_sigma, 1.5);
        assert_eq!(super::sampling(&ServeOptions::default(), &GenerationConfig::default()).temperature, 1.0);
        let greedy = json!({ "do_sample": false });
        assert_eq!(super::sampling(&ServeOptions::default(), &read(greedy)).temperature, 0.0);
    }

    #[test]
    fn key_files_of_others_and_empty_ones_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let me = rustix::process::geteuid().as_raw();
        std::fs::write(file.path(), "one\n# comment\n\ntwo\n").unwrap();
        let options = ServeOptions { api_key_file: Some(file.path().display().to_string()), ..ServeOptions::default() };
        assert_eq!(api_keys(&options).unwrap().len(), 2);
        assert!(read_key_file(file.path(), me + 1).is_err());
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(api_keys(&options).unwrap_err().to_string().contains("chmod 600"));
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(file.path(), "\n").unwrap();
        assert!(api_keys(&options).unwrap_err().to_string().contains("holds no key"));
    }

    #[test]
    fn required_auth_needs_a_key_and_limits_are_taken_over() {
        let mut options =
            ServeOptions { require_auth: true, max_body_mb: 2, request_timeout: 0, ..ServeOptions::default() };
        assert_eq!(server_config(&options, &GenerationConfig::default(), "m").unwrap_err().exit_code(), 2);
        options.api_key = Some(Secret::new("k"));
        options.default_seed = Some(9);
        options.disable_tool_grammar = Some(true);
        let config = server_config(&options, &GenerationConfig::default(), "m").unwrap();
        assert_eq!((config.defaults.seed, config.tool_grammar), (Some(9), ToolGrammar::Never));
        assert_eq!(
            (config.limits.max_body_bytes, config.request_timeout, config.model_name.as_str()),
            (2 << 20, NO_LIMIT, "m")
        );
    }
}
