//! HTTP with every wait bounded, redirects followed by hand, and the token kept at home.

use crate::config::{HubConfig, is_loopback};
use crate::error::HubError;
use crate::limits::Limits;
use bytes::Bytes;
use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, HeaderMap, LOCATION, RANGE, RETRY_AFTER};
use reqwest::{Method, Response, StatusCode, Url};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Why a request brought nothing.
#[derive(Debug)]
pub(crate) enum Fault {
    /// May go better next time.
    Transient {
        /// What went wrong.
        cause: String,
        /// How long the server asks to wait.
        after: Option<Duration>,
    },
    /// The server understood and refused.
    Refused {
        /// The HTTP status.
        status: u16,
        /// Whether the hub itself said so, and not where it redirected to.
        by_hub: bool,
        /// The hub's own name of the cause.
        code: Option<String>,
    },
    /// The server has no ranges and sends everything.
    NoRanges,
    /// Trying again is no use.
    Fatal(HubError),
}

impl Fault {
    pub(crate) fn transient(cause: impl Into<String>) -> Self {
        Self::Transient { cause: cause.into(), after: None }
    }
}

/// A reply with a body to read.
#[derive(Debug)]
pub(crate) struct Reply {
    /// The last response.
    pub(crate) response: Response,
    /// Headers of the first one: it is the hub that knows what a file is.
    pub(crate) first: HeaderMap,
    /// Whether the hub itself answered.
    pub(crate) direct: bool,
}

/// Asks the hub, and whoever it redirects to.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    plain: reqwest::Client,
    secure: Arc<Mutex<Option<reqwest::Client>>>,
    pub(crate) config: HubConfig,
}

impl Client {
    pub(crate) fn new(config: HubConfig) -> Result<Self, HubError> {
        let plain = build(&config, |builder| builder.tls_certs_only([]))?;
        Ok(Self { plain, secure: Arc::default(), config })
    }

    /// The client for a URL. The one for https reads the machine's certificates, so it is made when it is needed.
    fn http(&self, url: &Url) -> Result<reqwest::Client, Fault> {
        if url.scheme() != "https" {
            return Ok(self.plain.clone());
        }
        let mut secure = self.secure.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = &*secure {
            return Ok(client.clone());
        }
        let client = build(&self.config, |builder| builder).map_err(Fault::Fatal)?;
        Ok(secure.insert(client).clone())
    }

    fn limits(&self) -> &Limits {
        &self.config.limits
    }

    /// A URL of the hub; `path` is encoded already.
    pub(crate) fn hub_url(&self, path: &str) -> Result<Url, HubError> {
        let base = self.config.endpoint.as_str().trim_end_matches('/');
        Url::parse(&format!("{base}/{path}")).map_err(|error| HubError::Internal(format!("{path}: {error}")))
    }

    /// Sends a request and follows redirects. With `stay`, a redirect to another origin is not followed but returned.
    pub(crate) async fn send(
        &self,
        method: Method,
        url: &Url,
        range: Option<&Range<u64>>,
        stay: bool,
    ) -> Result<Reply, Fault> {
        let mut url = url.clone();
        let hub = self.config.endpoint.origin();
        let mut first = None;
        for hop in 0..=self.limits().redirects {
            let direct = hop == 0 && url.origin() == hub;
            let response = self.once(method.clone(), &url, range).await?;
            let first = first.get_or_insert_with(|| response.headers().clone());
            if !response.status().is_redirection() {
                return Ok(Reply { first: std::mem::take(first), response: self.judge(response)?, direct });
            }
            url = next_hop(&response)?;
            if stay && url.origin() != hub {
                return Ok(Reply { first: std::mem::take(first), response, direct: false });
            }
        }
        Err(Fault::transient(format!("more than {} redirects", self.limits().redirects)))
    }

    async fn once(&self, method: Method, url: &Url, range: Option<&Range<u64>>) -> Result<Response, Fault> {
        let mut request = self.http(url)?.request(method, url.clone()).header(ACCEPT_ENCODING, "identity");
        if let Some(token) = self.config.token_for(url) {
            request = request.header(AUTHORIZATION, format!("Bearer {}", token.expose()));
        }
        if let Some(range) = range {
            request = request.header(RANGE, format!("bytes={}-{}", range.start, range.end - 1));
        }
        match timeout(self.limits().headers, request.send()).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(Fault::transient(format!("{}: {}", place(url), chain(&error)))),
            Err(_) => {
                let seconds = self.limits().headers.as_secs_f64();
                Err(Fault::transient(format!("{}: no reply within {seconds} s", place(url))))
            }
        }
    }

    /// A success passes; everything else is put into the kind of fault that it is.
    fn judge(&self, response: Response) -> Result<Response, Fault> {
        let status = response.status();
        let by_hub = response.url().origin() == self.config.endpoint.origin();
        if status.is_success() {
            let encoding = response.headers().get(CONTENT_ENCODING);
            return match encoding.filter(|encoding| *encoding != "identity") {
                Some(encoding) => Err(Fault::transient(format!("the reply is encoded: {encoding:?}"))),
                None => Ok(response),
            };
        }
        let server = place(response.url());
        if status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::SERVICE_UNAVAILABLE {
            let seconds = header(response.headers(), RETRY_AFTER.as_str()).and_then(|text| text.parse::<u64>().ok());
            let after = seconds.map(Duration::from_secs);
            return match (after, seconds) {
                (Some(after), Some(seconds)) if after > self.limits().max_pause => {
                    Err(Fault::Fatal(HubError::RateLimited { seconds }))
                }
                _ => Err(Fault::Transient { cause: format!("{server}: HTTP {status}"), after }),
            };
        }
        if status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT || status.is_informational() {
            return Err(Fault::transient(format!("{server}: HTTP {status}")));
        }
        let code = header(response.headers(), "x-error-code").map(str::to_owned);
        Err(Fault::Refused { status: status.as_u16(), by_hub, code })
    }

    /// Reads a small body whole.
    pub(crate) async fn body(&self, mut response: Response, limit: usize) -> Result<Vec<u8>, Fault> {
        let expected = response.content_length();
        let mut body = Vec::new();
        let mut pace = Pace::new(self.limits());
        while let Some(bytes) = pace.next(&mut response).await? {
            if body.len() + bytes.len() > limit {
                return Err(Fault::transient(format!("the reply is longer than {limit} bytes")));
            }
            body.extend_from_slice(&bytes);
        }
        match expected {
            Some(expected) if expected != body.len() as u64 => Err(Fault::transient("the reply ended early")),
            _ => Ok(body),
        }
    }
}

/// Reads a body piece by piece, and gives up when it stops or crawls.
#[derive(Debug)]
pub(crate) struct Pace<'a> {
    limits: &'a Limits,
    window: Instant,
    bytes: u64,
}

impl<'a> Pace<'a> {
    pub(crate) fn new(limits: &'a Limits) -> Self {
        Self { limits, window: Instant::now(), bytes: 0 }
    }

    /// The next piece; `None` at the end.
    pub(crate) async fn next(&mut self, response: &mut Response) -> Result<Option<Bytes>, Fault> {
        let piece = timeout(self.limits.idle, response.chunk()).await;
        let server = || place(response.url());
        let piece = match piece {
            Ok(Ok(piece)) => piece,
            Ok(Err(error)) => return Err(Fault::transient(format!("{}: {}", server(), chain(&error)))),
            Err(_) => {
                let seconds = self.limits.idle.as_secs_f64();
                return Err(Fault::transient(format!("{}: nothing came for {seconds} s", server())));
            }
        };
        self.bytes += piece.as_ref().map_or(0, |piece| piece.len() as u64);
        let elapsed = self.window.elapsed();
        if elapsed >= self.limits.rate_window {
            let rate = self.bytes as f64 / elapsed.as_secs_f64();
            if piece.is_some() && rate < self.limits.min_rate as f64 {
                return Err(Fault::transient(format!("{}: too slow, {rate:.0} bytes/s", server())));
            }
            (self.window, self.bytes) = (Instant::now(), 0);
        }
        Ok(piece)
    }
}

fn build(
    config: &HubConfig,
    certificates: impl FnOnce(reqwest::ClientBuilder) -> reqwest::ClientBuilder,
) -> Result<reqwest::Client, HubError> {
    install_tls();
    let mut builder = certificates(reqwest::Client::builder())
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(config.limits.connect)
        .pool_idle_timeout(Duration::from_secs(20))
        .http1_only()
        .user_agent(concat!("atlas/", env!("CARGO_PKG_VERSION")));
    if is_loopback(&config.endpoint) {
        builder = builder.no_proxy();
    }
    builder.build().map_err(|error| HubError::Internal(format!("HTTP client: {error}: {}", chain(&error))))
}

/// Chooses this process's TLS implementation. Every `reqwest` client needs that before it is built.
pub fn install_tls() {
    // The first one stays; that somebody was faster is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Where a redirect leads, if it may be followed.
fn next_hop(response: &Response) -> Result<Url, Fault> {
    let from = response.url();
    let Some(location) = header(response.headers(), LOCATION.as_str()) else {
        return Err(Fault::transient(format!("{}: HTTP {} to nowhere", place(from), response.status())));
    };
    let refuse = |problem| {
        // A signed URL's query is a secret of its own.
        let to = location.split(['?', '#']).next().unwrap_or_default().chars().take(200).collect();
        Fault::Fatal(HubError::Redirect { from: place(from), to, problem })
    };
    let next = from.join(location).map_err(|_| refuse("not a URL"))?;
    match next.scheme() {
        "https" => Ok(next),
        "http" if from.scheme() == "http" => Ok(next),
        "http" => Err(refuse("from https to http")),
        _ => Err(refuse("neither http nor https")),
    }
}

/// A header as text.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Scheme, host and port: what may be shown of a URL that could be signed.
fn place(url: &Url) -> String {
    url.origin().ascii_serialization()
}

/// An error with its causes, and without the URL.
fn chain(error: &reqwest::Error) -> String {
    let mut causes = Vec::new();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        causes.push(cause.to_string());
        next = cause.source();
    }
    match causes.is_empty() {
        true if error.is_timeout() => "timed out".to_owned(),
        true => "the request failed".to_owned(),
        false => causes.join(": "),
    }
}
