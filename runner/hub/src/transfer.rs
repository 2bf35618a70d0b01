//! One blob over the network: several connections, each going on where it broke off, until the digest is right.

use crate::client::{Client, Fault, Pace, Reply, header};
use crate::digest::{Digest, Hashes};
use crate::error::HubError;
use crate::events::{Event, Observer};
use crate::id::{RepoId, encode};
use crate::limits::Limits;
use crate::listing::RemoteFile;
use crate::part::Part;
use crate::retry::Attempts;
use crate::rolling::Rolling;
use futures_util::future::try_join_all;
use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, LOCATION};
use reqwest::{Method, Response, StatusCode, Url};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Wrong bytes are fetched once more from the beginning, then given up.
const ROUNDS: u32 = 2;

/// A file on its way.
pub(crate) struct Transfer<'a> {
    pub(crate) client: &'a Client,
    pub(crate) repo: &'a RepoId,
    pub(crate) commit: &'a str,
    pub(crate) file: &'a RemoteFile,
    pub(crate) part: Arc<Part>,
    pub(crate) observer: &'a dyn Observer,
    /// Where the hub redirects to, for a while.
    pub(crate) source: tokio::sync::Mutex<Option<Url>>,
}

/// Why the connections stopped.
enum Stopped {
    /// The server sends whole files only.
    NoRanges,
    Failed(HubError),
}

impl Transfer<'_> {
    /// Fetches what is missing. On success the part file holds exactly the bytes of the digest.
    pub(crate) async fn run(&self) -> Result<Hashes, HubError> {
        let mut got = None;
        for _ in 0..ROUNDS {
            let rolling = Rolling::start(&self.part, &self.file.digest, self.file.size)?;
            self.fill().await?;
            let hashes = rolling.finish().await?;
            let digest = hashes.like(&self.file.digest);
            if digest == self.file.digest {
                return Ok(hashes);
            }
            *self.source.lock().await = None;
            self.forget(0).await?;
            got = Some(digest);
        }
        Err(HubError::WrongBytes {
            file: self.file.path.clone(),
            expected: self.file.digest.to_string(),
            got: got.as_ref().map(Digest::to_string).unwrap_or_default(),
        })
    }

    fn limits(&self) -> &Limits {
        &self.client.config.limits
    }

    fn hub_url(&self) -> Result<Url, Fault> {
        let path = format!("{}/resolve/{}/{}", self.repo, self.commit, encode(&self.file.path));
        self.client.hub_url(&path).map_err(Fault::Fatal)
    }

    async fn fill(&self) -> Result<(), HubError> {
        match self.parallel().await {
            Ok(()) => Ok(()),
            Err(Stopped::Failed(error)) => Err(error),
            Err(Stopped::NoRanges) => self.sequential().await,
        }
    }

    async fn parallel(&self) -> Result<(), Stopped> {
        let gaps = self.part.gaps(self.limits().segment);
        let connections = self.limits().connections.clamp(1, gaps.len().max(1));
        let queue = Mutex::new(VecDeque::from(gaps));
        try_join_all((0..connections).map(|_| self.work(&queue))).await.map(|_| ())
    }

    /// One connection: takes ranges until there are none.
    async fn work(&self, queue: &Mutex<VecDeque<Range<u64>>>) -> Result<(), Stopped> {
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        while let Some(mut rest) = next() {
            let mut attempts = Attempts::default();
            while !rest.is_empty() {
                if let Err(fault) = self.range(&mut rest).await {
                    self.after(fault, &mut attempts).await?;
                }
            }
        }
        Ok(())
    }

    /// The whole file over one connection, for servers without ranges: what is there already is skipped.
    async fn sequential(&self) -> Result<(), HubError> {
        self.forget(self.part.prefix()).await?;
        let mut attempts = Attempts::default();
        while let Err(fault) = self.stream().await {
            match self.after(fault, &mut attempts).await {
                Ok(()) => {}
                Err(Stopped::Failed(error)) => return Err(error),
                Err(Stopped::NoRanges) => return Err(HubError::Internal("a stream has no ranges".to_owned())),
            }
        }
        Ok(())
    }

    async fn forget(&self, from: u64) -> Result<(), HubError> {
        let part = self.part.clone();
        let dropped = blocking(move || part.truncate(from)).await?;
        if dropped > 0 {
            self.observer.event(Event::Dropped { file: &self.file.path, bytes: dropped });
        }
        Ok(())
    }

    /// Decides whether a fault is worth another attempt, and pauses before it.
    async fn after(&self, fault: Fault, attempts: &mut Attempts) -> Result<(), Stopped> {
        let (cause, after) = match fault {
            Fault::Fatal(error) => return Err(Stopped::Failed(error)),
            Fault::NoRanges => return Err(Stopped::NoRanges),
            Fault::Transient { cause, after } => (cause, after),
            Fault::Refused { status, by_hub: true, code } => match refusal(self.client, self.repo, status, code) {
                Some(error) => return Err(Stopped::Failed(error)),
                None => (format!("the hub: HTTP {status}"), None),
            },
            // The signature of the address has expired, most likely: the hub gives another one.
            Fault::Refused { status, by_hub: false, .. } => {
                *self.source.lock().await = None;
                (format!("HTTP {status} from where the hub redirects to"), None)
            }
        };
        let progress = self.part.present();
        let tried = attempts.failed(self.limits(), self.observer, &self.file.path, cause, after, progress).await;
        tried.map_err(Stopped::Failed)
    }

    /// Where the bytes are: asked once, and again when the answer has expired.
    async fn source(&self) -> Result<Url, Fault> {
        let mut source = self.source.lock().await;
        if let Some(url) = &*source {
            return Ok(url.clone());
        }
        let hub = self.hub_url()?;
        let url = match self.client.send(Method::HEAD, &hub, None, true).await {
            Ok(reply) => {
                self.check_identity(&reply)?;
                match header(reply.response.headers(), LOCATION.as_str()) {
                    Some(location) if reply.response.status().is_redirection() => {
                        let joined = reply.response.url().join(location);
                        joined.map_err(|_| Fault::transient("a redirect to no URL"))?
                    }
                    _ => reply.response.url().clone(),
                }
            }
            Err(Fault::Refused { status: 405 | 501, .. }) => hub,
            Err(fault) => return Err(fault),
        };
        Ok(source.insert(url).clone())
    }

    /// Fetches `rest`, or as much of it as comes; afterwards `rest` is what is still missing.
    async fn range(&self, rest: &mut Range<u64>) -> Result<(), Fault> {
        if *rest == (0..self.file.size) && self.file.size <= self.limits().segment {
            let received = self.stream().await;
            rest.start = self.part.prefix();
            return received;
        }
        let url = self.source().await?;
        let reply = self.client.send(Method::GET, &url, Some(rest), false).await?;
        self.check_identity(&reply)?;
        match reply.response.status() {
            StatusCode::PARTIAL_CONTENT => {}
            StatusCode::OK => return Err(Fault::NoRanges),
            other => return Err(Fault::transient(format!("HTTP {other} instead of a part"))),
        }
        let end = check_range(reply.response.headers(), rest, self.file.size)?;
        // A server may send less than it was asked for, then the rest is asked for; but not in crumbs.
        if end < rest.end && end - rest.start < self.limits().buffer as u64 {
            return Err(Fault::transient(format!(
                "asked for {} bytes, offered {}",
                rest.end - rest.start,
                end - rest.start
            )));
        }
        let mut coming = rest.start..end;
        let received = self.receive(reply.response, &mut coming, 0).await;
        rest.start = coming.start;
        received
    }

    /// Fetches the file from its beginning, and skips what is there.
    async fn stream(&self) -> Result<(), Fault> {
        let reply = self.client.send(Method::GET, &self.hub_url()?, None, false).await?;
        self.check_identity(&reply)?;
        if reply.response.status() != StatusCode::OK {
            return Err(Fault::transient(format!("HTTP {} instead of a file", reply.response.status())));
        }
        check_length(reply.response.headers(), self.file.size)?;
        let skip = self.part.prefix();
        self.receive(reply.response, &mut (skip..self.file.size), skip).await
    }

    /// Writes a body to where it belongs. What came before a fault is kept.
    async fn receive(&self, mut response: Response, rest: &mut Range<u64>, skip: u64) -> Result<(), Fault> {
        let mut pace = Pace::new(self.limits());
        let mut buffer = Vec::new();
        let mut skip = skip;
        let outcome = loop {
            let room = rest.end - rest.start - buffer.len() as u64;
            if room == 0 && skip == 0 && header(response.headers(), CONTENT_LENGTH.as_str()).is_none() {
                break Ok(());
            }
            let piece = match pace.next(&mut response).await {
                Ok(Some(piece)) => piece,
                Ok(None) if room == 0 => break Ok(()),
                Ok(None) => break Err(Fault::transient(format!("the body ended {room} bytes early"))),
                Err(fault) => break Err(fault),
            };
            let skipped = skip.min(piece.len() as u64);
            skip -= skipped;
            let piece = &piece[skipped as usize..];
            if piece.len() as u64 > room {
                break Err(Fault::transient("more bytes than were asked for"));
            }
            buffer.extend_from_slice(piece);
            if buffer.len() >= self.limits().buffer {
                buffer = self.flush(buffer, rest).await?;
            }
        };
        self.flush(buffer, rest).await?;
        outcome
    }

    async fn flush(&self, mut buffer: Vec<u8>, rest: &mut Range<u64>) -> Result<Vec<u8>, Fault> {
        if buffer.is_empty() {
            return Ok(buffer);
        }
        let (part, offset, length) = (self.part.clone(), rest.start, buffer.len() as u64);
        let epoch = part.epoch();
        let write = move || part.write(epoch, &buffer, offset).map(|()| buffer);
        buffer = blocking(write).await.map_err(Fault::Fatal)?;
        rest.start += length;
        self.observer.event(Event::Received { file: &self.file.path, bytes: length });
        buffer.clear();
        Ok(buffer)
    }

    /// The hub says with every reply which file it is about. Another one is refused before its bytes are read.
    fn check_identity(&self, reply: &Reply) -> Result<(), Fault> {
        let own = header(&reply.first, ETAG.as_str()).filter(|_| reply.direct);
        let etag =
            header(&reply.first, "x-linked-etag").or(own).map(|etag| etag.trim_start_matches("W/").trim_matches('"'));
        let other = etag.and_then(Digest::parse).filter(|digest| {
            // An ETag of another kind says nothing.
            std::mem::discriminant(digest) == std::mem::discriminant(&self.file.digest) && *digest != self.file.digest
        });
        if let Some(other) = other {
            return Err(Fault::transient(format!("the hub offers another file, {other}")));
        }
        let size = header(&reply.first, "x-linked-size").and_then(|size| size.parse::<u64>().ok());
        if let Some(size) = size.filter(|size| *size != self.file.size) {
            return Err(Fault::transient(format!(
                "the hub offers a file of {size} bytes instead of {}",
                self.file.size
            )));
        }
        match header(&reply.first, "x-repo-commit") {
            Some(commit) if commit != self.commit => Err(Fault::transient(format!("the hub offers commit {commit}"))),
            _ => Ok(()),
        }
    }
}

/// What a hub's refusal means; `None` if it could go better next time.
pub(crate) fn refusal(client: &Client, repo: &RepoId, status: u16, code: Option<String>) -> Option<HubError> {
    let with_token = client.config.token.is_some();
    let endpoint = client.config.endpoint.as_str().trim_end_matches('/').to_owned();
    let repo = repo.to_string();
    match (status, code.as_deref()) {
        (_, Some("GatedRepo")) => Some(HubError::Gated { url: format!("{endpoint}/{repo}"), repo, with_token }),
        (_, Some("RepoNotFound")) => Some(HubError::NoRepo { repo, endpoint }),
        (404, Some("EntryNotFound")) => {
            Some(HubError::BadListing { repo, problem: "a file that it lists is not there".to_owned() })
        }
        (401 | 403, _) => Some(HubError::Denied { repo, status, with_token }),
        (404 | 410, _) => Some(HubError::NoRepo { repo, endpoint }),
        _ => None,
    }
}

/// A part must begin where it was asked for, end within, and belong to a file of the right size. Returns its end.
fn check_range(headers: &HeaderMap, asked: &Range<u64>, size: u64) -> Result<u64, Fault> {
    let text = header(headers, CONTENT_RANGE.as_str()).unwrap_or("none");
    let parsed = (|| {
        let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
        let (start, last) = range.split_once('-')?;
        let total = if total == "*" { size } else { total.parse().ok()? };
        Some((start.parse::<u64>().ok()?, last.parse::<u64>().ok()?.checked_add(1)?, total))
    })();
    match parsed {
        Some((start, end, total)) if start == asked.start && end > start && end <= asked.end && total == size => {
            check_length(headers, end - start).map(|()| end)
        }
        _ => Err(Fault::transient(format!(
            "asked for bytes {}-{} of {size}, got the part `{}`",
            asked.start,
            asked.end - 1,
            text.chars().take(60).collect::<String>()
        ))),
    }
}

fn check_length(headers: &HeaderMap, expected: u64) -> Result<(), Fault> {
    match header(headers, CONTENT_LENGTH.as_str()).and_then(|length| length.parse::<u64>().ok()) {
        Some(length) if length != expected => {
            Err(Fault::transient(format!("the body has {length} bytes instead of {expected}")))
        }
        _ => Ok(()),
    }
}

/// Runs what may block on a thread where it may.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, HubError> + Send + 'static,
) -> Result<T, HubError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| HubError::Internal(error.to_string()))?
}
