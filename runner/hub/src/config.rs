//! Where the hub and its cache are, and how to ask: from the environment that other tools read too.

use crate::error::HubError;
use crate::limits::Limits;
use reqwest::Url;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Longest token file.
const MAX_TOKEN: u64 = 4096;

/// A bearer token. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Visible ASCII only, so that it fits a header.
    pub fn new(text: &str) -> Result<Self, HubError> {
        let text = text.trim();
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            let problem = "is not a token: it holds blanks or characters that no token has".to_owned();
            return Err(HubError::Environment { variable: "HF_TOKEN", problem });
        }
        Ok(Self(text.to_owned()))
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(***)")
    }
}

/// Everything that a [`crate::Hub`] needs to know.
#[derive(Debug, Clone)]
pub struct HubConfig {
    /// The hub, without a trailing slash.
    pub endpoint: Url,
    /// The token, for the endpoint alone.
    pub token: Option<Token>,
    /// The cache: the folder with `models--OWNER--NAME` in it.
    pub cache: PathBuf,
    /// Manifests of folders that cannot be written to go here.
    pub own_cache: Option<PathBuf>,
    /// Never use the network.
    pub offline: bool,
    /// Bounds.
    pub limits: Limits,
}

impl HubConfig {
    /// Reads `HF_ENDPOINT`, `HF_TOKEN` (or the file in `HF_TOKEN_PATH` or `HF_HOME`), `HF_HOME`, `HF_HUB_CACHE` and
    /// `HF_HUB_OFFLINE`. An empty variable counts as not set.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Self, HubError> {
        let get = |name: &str| variable(name).filter(|value| !value.is_empty());
        let endpoint = get("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        let wrong = |problem: String| HubError::Environment { variable: "HF_ENDPOINT", problem };
        let endpoint = Url::parse(endpoint.trim_end_matches('/')).map_err(|error| wrong(error.to_string()))?;
        if !matches!(endpoint.scheme(), "http" | "https") || endpoint.host_str().is_none() {
            return Err(wrong("must be an http or https URL".to_owned()));
        }
        if !endpoint.username().is_empty() || endpoint.password().is_some() || endpoint.query().is_some() {
            return Err(wrong("must not hold credentials or a query; use HF_TOKEN".to_owned()));
        }
        let home = home(&get);
        let cache = cache(&get).ok_or(HubError::Environment {
            variable: "HF_HOME",
            problem: "no place for the Hugging Face cache: set HOME or HF_HOME".to_owned(),
        })?;
        let own = get("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| Some(Path::new(&get("HOME")?).join(".cache")));
        Ok(Self {
            token: token(&get, home.as_deref())?,
            endpoint,
            cache,
            own_cache: own.map(|folder| folder.join("atlas")),
            offline: get("HF_HUB_OFFLINE").is_some_and(|value| is_true(&value)),
            limits: Limits::default(),
        })
    }

    /// Whether the token may travel to `url`: to the endpoint itself, and not in clear text across a network.
    pub(crate) fn token_for(&self, url: &Url) -> Option<&Token> {
        let private = url.scheme() == "https" || is_loopback(url);
        self.token.as_ref().filter(|_| private && url.origin() == self.endpoint.origin())
    }
}

/// The folder that holds the repositories: `HF_HUB_CACHE`, else `hub` in `HF_HOME`, else in the user's cache.
fn cache(get: &impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let named = get("HF_HUB_CACHE").or_else(|| get("HUGGINGFACE_HUB_CACHE")).map(PathBuf::from);
    named.or_else(|| Some(home(get)?.join("hub")))
}

fn home(get: &impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    get("HF_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(Path::new(&get("XDG_CACHE_HOME")?).join("huggingface")))
        .or_else(|| Some(Path::new(&get("HOME")?).join(".cache/huggingface")))
}

/// The token of the environment, else the one that `hf auth login` left in a file.
fn token(get: &impl Fn(&str) -> Option<String>, home: Option<&Path>) -> Result<Option<Token>, HubError> {
    if let Some(text) = get("HF_TOKEN").or_else(|| get("HUGGING_FACE_HUB_TOKEN")) {
        return Token::new(&text).map(Some);
    }
    if get("HF_HUB_DISABLE_IMPLICIT_TOKEN").is_some_and(|value| is_true(&value)) {
        return Ok(None);
    }
    let path = get("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| Some(home?.join("token")));
    let small = path.filter(|path| std::fs::metadata(path).is_ok_and(|facts| facts.len() <= MAX_TOKEN));
    let text = small.and_then(|path| std::fs::read_to_string(path).ok());
    // A file that holds no token is no reason to refuse public models.
    Ok(text.and_then(|text| Token::new(&text).ok()))
}

fn is_true(value: &str) -> bool {
    matches!(value.to_ascii_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE")
}

/// Whether a URL's host is this machine.
pub(crate) fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(variables: &[(&str, &str)]) -> Result<HubConfig, HubError> {
        HubConfig::from_environment(|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_environment_is_read_as_other_tools_read_it() {
        let plain = config(&[("HOME", "/h")]).unwrap();
        assert_eq!(plain.endpoint.as_str(), "https://huggingface.co/");
        assert_eq!(plain.cache, Path::new("/h/.cache/huggingface/hub"));
        assert_eq!((plain.offline, plain.token), (false, None));
        let cache = |variables: &[(&str, &str)]| config(variables).unwrap().cache;
        assert_eq!(cache(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]), Path::new("/x/huggingface/hub"));
        assert_eq!(cache(&[("HF_HOME", "/f"), ("XDG_CACHE_HOME", "/x")]), Path::new("/f/hub"));
        assert_eq!(cache(&[("HF_HOME", "/f"), ("HF_HUB_CACHE", "/c")]), Path::new("/c"));
        for (value, offline) in [("1", true), ("yes", true), ("true", true), ("0", false), ("", false)] {
            assert_eq!(config(&[("HOME", "/h"), ("HF_HUB_OFFLINE", value)]).unwrap().offline, offline);
        }
        assert!(config(&[]).unwrap_err().to_string().contains("set HOME or HF_HOME"));
        for endpoint in ["hub.local", "ftp://a", "https://user:pass@a", "https://a/?b=c", "file:///etc"] {
            assert!(config(&[("HOME", "/h"), ("HF_ENDPOINT", endpoint)]).is_err(), "{endpoint}");
        }
    }

    #[test]
    fn tokens_come_from_the_environment_or_a_file_and_are_never_shown() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("token"), "hf_file\n").unwrap();
        let home = home.path().to_str().unwrap();
        let token = |variables: &[(&str, &str)]| config(variables).unwrap().token.map(|token| token.0);
        assert_eq!(token(&[("HF_HOME", home)]).as_deref(), Some("hf_file"));
        assert_eq!(token(&[("HF_HOME", home), ("HF_TOKEN", "hf_env ")]).as_deref(), Some("hf_env"));
        assert_eq!(token(&[("HF_HOME", home), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]), None);
        assert!(config(&[("HF_HOME", home), ("HF_TOKEN", "a\nb")]).is_err());
        let shown = format!("{:?}", config(&[("HF_HOME", home), ("HF_TOKEN", "sentinel")]).unwrap());
        assert!(!shown.contains("sentinel"), "{shown}");
    }

    #[test]
    fn s24_the_token_belongs_to_one_origin() {
        let mut config = config(&[("HOME", "/h"), ("HF_TOKEN", "t")]).unwrap();
        let allowed = |config: &HubConfig, url: &str| config.token_for(&Url::parse(url).unwrap()).is_some();
        assert!(allowed(&config, "https://huggingface.co/api/models/a/b"));
        for other in [
            "https://huggingface.co.evil.example/x",
            "https://cdn.huggingface.co/x",
            "http://huggingface.co/x",
            "https://huggingface.co:444/x",
        ] {
            assert!(!allowed(&config, other), "{other}");
        }
        config.endpoint = Url::parse("http://mirror.lan").unwrap();
        assert!(!allowed(&config, "http://mirror.lan/x"), "in clear text");
        config.endpoint = Url::parse("http://127.0.0.1:9").unwrap();
        assert!(allowed(&config, "http://127.0.0.1:9/x"));
    }
}
