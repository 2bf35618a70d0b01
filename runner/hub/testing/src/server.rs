//! The server: two origins on loopback, a thread a connection, bytes exactly as a fault wants them.

use crate::behaviour::{Behaviour, Fault, Kind};
use crate::repo::{File, Repo};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A stalled connection ends after this, whatever the client does.
const STALL: Duration = Duration::from_secs(20);
const TRICKLE: Duration = Duration::from_millis(20);

/// A request that came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Whether it came to the hub, and not to where it redirects.
    pub hub: bool,
    /// `GET` or `HEAD`.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// `Authorization`.
    pub authorization: Option<String>,
    /// `Range`.
    pub range: Option<String>,
}

#[derive(Debug)]
struct Shared {
    repo: Mutex<Repo>,
    fault: Mutex<Option<Fault>>,
    seen: Mutex<Vec<Seen>>,
    signature: AtomicU64,
    injected: AtomicU64,
    stop: AtomicBool,
    hub: SocketAddr,
    cdn: SocketAddr,
    third: SocketAddr,
}

/// A hub that runs until it is dropped.
#[derive(Debug)]
pub struct HubServer {
    shared: Arc<Shared>,
}

struct Request {
    method: String,
    target: String,
    range: Option<Range<usize>>,
}

/// A reply in the making.
struct Reply {
    status: &'static str,
    headers: Vec<String>,
    body: Arc<Vec<u8>>,
    part: Range<usize>,
    length: Option<usize>,
    ending: Ending,
}

enum Ending {
    Whole,
    Close(usize),
    Reset(usize),
    Stall(usize),
    Trickle(usize),
}

impl HubServer {
    /// Serves a repository.
    pub fn start(repo: Repo) -> Self {
        let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
        let listeners = [listen(), listen(), listen()];
        let [hub, cdn, third] = listeners.each_ref().map(|listener| listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            repo: Mutex::new(repo),
            fault: Mutex::default(),
            seen: Mutex::default(),
            signature: AtomicU64::new(1),
            injected: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            hub,
            cdn,
            third,
        });
        for (index, listener) in listeners.into_iter().enumerate() {
            let shared = shared.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let shared = shared.clone();
                    if shared.stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let Ok(stream) = stream else { continue };
                    // A client that goes away is what this server is for.
                    std::thread::spawn(move || drop(shared.serve(stream, index == 0)));
                }
            });
        }
        Self { shared }
    }

    /// What to put into `HF_ENDPOINT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.shared.hub)
    }

    /// Misbehaves from now on, or not any more.
    pub fn set_fault(&self, fault: Option<Fault>) {
        *lock(&self.shared.fault) = fault;
    }

    /// Serves another state of the repository from now on.
    pub fn set_repo(&self, repo: Repo) {
        *lock(&self.shared.repo) = repo;
    }

    /// How often it misbehaved.
    pub fn injected(&self) -> u64 {
        self.shared.injected.load(Ordering::Relaxed)
    }

    /// The requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.shared.seen).clone()
    }

    /// The address of a large file's bytes.
    pub fn blob_url(&self, digest: &str) -> String {
        self.shared.blob_url(digest)
    }
}

impl Drop for HubServer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for address in [self.shared.hub, self.shared.cdn, self.shared.third] {
            // Wakes the one who accepts.
            drop(TcpStream::connect(address));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Shared {
    fn serve(&self, stream: TcpStream, hub: bool) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(STALL))?;
        let mut reader = BufReader::new(stream.try_clone()?);
        while !self.stop.load(Ordering::Relaxed) {
            let Some(request) = self.read(&mut reader, hub)? else { return Ok(()) };
            if !self.answer(&stream, &request, hub)? {
                return Ok(());
            }
        }
        Ok(())
    }

    fn read(&self, reader: &mut impl BufRead, hub: bool) -> std::io::Result<Option<Request>> {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if reader.by_ref().take(16 << 10).read_line(&mut line)? == 0 {
                return Ok(None);
            }
            match line.trim_end() {
                "" => break,
                line => head.push(line.to_owned()),
            }
        }
        let header = |name: &str| {
            let found = head.iter().skip(1).filter_map(|line| line.split_once(": "));
            found.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
        };
        let mut words = head.first().map_or("", String::as_str).split(' ').map(str::to_owned);
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let range = header("range");
        lock(&self.seen).push(Seen {
            hub,
            method: method.clone(),
            target: target.clone(),
            authorization: header("authorization"),
            range: range.clone(),
        });
        let range = range.and_then(|range| {
            let (start, last) = range.strip_prefix("bytes=")?.split_once('-')?;
            Some(start.parse::<usize>().ok()?..last.parse::<usize>().ok()? + 1)
        });
        Ok(Some(Request { method, target, range }))
    }

    fn blob_url(&self, digest: &str) -> String {
        format!("http://{}/blob/{digest}?sig={}", self.cdn, self.signature.load(Ordering::Relaxed))
    }

    /// The fault that this request meets, if any; counts it.
    fn fault(&self, kind: Kind, path: &str) -> Option<Fault> {
        let mut fault = lock(&self.fault);
        let here = fault.as_mut().filter(|fault| {
            fault.behaviour.kind() == kind && (kind == Kind::Listing || fault.path == path) && fault.times > 0
        })?;
        if here.after > 0 {
            here.after -= 1;
            return None;
        }
        here.times -= 1;
        self.injected.fetch_add(1, Ordering::Relaxed);
        Some(here.clone())
    }

    /// Answers one request; says whether the connection goes on.
    fn answer(&self, stream: &TcpStream, request: &Request, hub: bool) -> std::io::Result<bool> {
        let repo = lock(&self.repo).clone();
        let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
        let head = request.method == "HEAD";
        if !hub {
            let digest = path.trim_start_matches("/blob/");
            let found = repo.files.iter().find(|(_, file)| file.lfs && file.digest == digest);
            let expired = query != format!("sig={}", self.signature.load(Ordering::Relaxed)) && query != "sig=forever";
            return match found {
                Some(_) if expired => send(stream, &Reply::status("403 Forbidden"), head, &self.stop),
                Some((path, file)) => self.body(stream, request, path, file, Vec::new()),
                None => send(stream, &Reply::status("404 Not Found"), head, &self.stop),
            };
        }
        if path.starts_with("/api/models/") {
            return self.listing(stream, &repo, path);
        }
        let prefix = format!("/{}/resolve/{}/", repo.id, repo.commit);
        let found = path.strip_prefix(&prefix).and_then(|path| Some((path, repo.files.get(path)?)));
        let Some((path, file)) = found else {
            let missing = Reply::status("404 Not Found").with("X-Error-Code: EntryNotFound");
            return send(stream, &missing, head, &self.stop);
        };
        self.resolve(stream, request, &repo, path, file)
    }

    fn listing(&self, stream: &TcpStream, repo: &Repo, path: &str) -> std::io::Result<bool> {
        let mut listing = repo.listing();
        let fault = if path.contains("/moved/") { None } else { self.fault(Kind::Listing, "") };
        let known = path.starts_with(&format!("/api/models/{}/revision/", repo.id)) || path.contains("/moved/");
        let mut reply = Reply::status("200 OK").with("Content-Type: application/json");
        let mut ending = None;
        if !known {
            return send(stream, &Reply::status("404 Not Found").with("X-Error-Code: RepoNotFound"), false, &self.stop);
        }
        if let Some(fault) = fault {
            match fault.behaviour {
                Behaviour::ListHtml => reply.body = Arc::new(b"<html>Please log in</html>".to_vec()),
                Behaviour::ListTruncated => ending = Some(true),
                Behaviour::ListStall => ending = Some(false),
                Behaviour::ListEndless => reply.body = Arc::new(vec![b' '; 4 << 20]),
                Behaviour::List500 => reply.status = "500 Internal Server Error",
                Behaviour::ListMissing => reply = Reply::status("404 Not Found").with("X-Error-Code: RepoNotFound"),
                Behaviour::ListNoRevision => {
                    reply = Reply::status("404 Not Found").with("X-Error-Code: RevisionNotFound");
                }
                Behaviour::ListMoved => {
                    reply = Reply::status("307 Temporary Redirect")
                        .with("Location: /api/models/moved/model/revision/main?blobs=true");
                }
                Behaviour::ListBadCommit => listing["sha"] = "../../../../tmp".into(),
                _ => change_listing(&mut listing, &fault),
            }
        }
        if reply.body.is_empty() && reply.status.starts_with("200") {
            reply.body = Arc::new(listing.to_string().into_bytes());
        }
        reply.part = 0..reply.body.len();
        reply.length = Some(reply.body.len());
        let half = reply.body.len() / 2;
        reply.ending = match ending {
            Some(true) => Ending::Close(half),
            Some(false) => Ending::Stall(half),
            None => Ending::Whole,
        };
        send(stream, &reply, false, &self.stop)
    }

    /// The hub's own answer about a file: a redirect for a large one, the bytes of a small one.
    fn resolve(
        &self,
        stream: &TcpStream,
        request: &Request,
        repo: &Repo,
        path: &str,
        file: &File,
    ) -> std::io::Result<bool> {
        let head = request.method == "HEAD";
        let (mut etag, mut size, mut commit) = (file.digest.clone(), file.content.len(), repo.commit.clone());
        if let Some(fault) = self.fault(Kind::Resolve, path) {
            match fault.behaviour {
                Behaviour::OtherTag => etag = if file.lfs { "ef".repeat(32) } else { "ef".repeat(20) },
                Behaviour::OtherSize => size += 1,
                Behaviour::OtherCommit => commit = "12".repeat(20),
                Behaviour::NoHead if head => {
                    return send(stream, &Reply::status("405 Method Not Allowed"), head, &self.stop);
                }
                Behaviour::NoHead => {}
                other => {
                    let refusal = match other {
                        Behaviour::Gated => Reply::status("403 Forbidden").with("X-Error-Code: GatedRepo"),
                        Behaviour::Unauthorized => Reply::status("401 Unauthorized"),
                        _ => Reply::status("500 Internal Server Error"),
                    };
                    return send(stream, &refusal, head, &self.stop);
                }
            }
        }
        let common = [format!("X-Repo-Commit: {commit}"), format!("X-Linked-Size: {size}")];
        if file.lfs {
            let redirect = Reply::status("302 Found")
                .with(&format!("Location: {}", self.blob_url(&file.digest)))
                .with(&format!("X-Linked-Etag: \"{etag}\""))
                .with(&common[0])
                .with(&common[1]);
            return send(stream, &redirect, head, &self.stop);
        }
        let etag = format!("ETag: \"{etag}\"");
        if head {
            let mut reply = Reply::status("200 OK").with(&etag).with(&common[0]).with(&common[1]);
            reply.length = Some(file.content.len());
            return send(stream, &reply, true, &self.stop);
        }
        self.body(stream, request, path, file, [etag].into_iter().chain(common).collect())
    }

    /// A reply with a file's bytes.
    fn body(
        &self,
        stream: &TcpStream,
        request: &Request,
        path: &str,
        file: &File,
        headers: Vec<String>,
    ) -> std::io::Result<bool> {
        let fault = self.fault(Kind::Body, path);
        let content = file.content.clone();
        let total = content.len();
        let part = request.range.clone().unwrap_or(0..total);
        if part.start >= part.end || part.end > total {
            if !(part.is_empty() && request.range.is_none()) {
                return send(stream, &Reply::status("416 Range Not Satisfiable"), false, &self.stop);
            }
        }
        let mut reply =
            Reply { status: "200 OK", headers, length: Some(part.len()), body: content, part, ending: Ending::Whole };
        let mut content_range = request.range.is_some().then(|| (reply.part.start, reply.part.end, total));
        if request.range.is_some() {
            reply.status = "206 Partial Content";
        }
        if let Some(fault) = fault {
            let at = (reply.part.len() as u64 * fault.at / 1000) as usize;
            if let Some(other) = self.instead(&fault, request, file) {
                return send(stream, &other, false, &self.stop);
            }
            if let Some(goes_on) = break_off(stream, fault.behaviour, &self.stop)? {
                return Ok(goes_on);
            }
            if fault.behaviour == Behaviour::Expire {
                self.signature.fetch_add(1, Ordering::Relaxed);
            }
            change(&fault, at, &mut reply, &mut content_range);
        }
        if let Some((start, end, total)) = content_range {
            reply.headers.push(format!("Content-Range: bytes {start}-{}/{total}", end.saturating_sub(1)));
        }
        send(stream, &reply, false, &self.stop)
    }

    /// Another reply altogether.
    fn instead(&self, fault: &Fault, request: &Request, file: &File) -> Option<Reply> {
        let busy = |header: &str| Reply::status("429 Too Many Requests").with(header);
        Some(match fault.behaviour {
            Behaviour::Html => Reply::page("200 OK"),
            Behaviour::Empty => Reply::status("200 OK"),
            Behaviour::NoContent => Reply::status("204 No Content"),
            Behaviour::Status416 => Reply::status("416 Range Not Satisfiable"),
            Behaviour::TooManyNow => busy("Retry-After: 0"),
            Behaviour::TooManyLong => busy("Retry-After: 86400"),
            Behaviour::TooManyDate => busy("Retry-After: Wed, 21 Oct 2099 07:28:00 GMT"),
            Behaviour::Error500 => Reply::status("500 Internal Server Error"),
            Behaviour::Error502 => Reply::page("502 Bad Gateway"),
            Behaviour::Error503 => Reply::status("503 Service Unavailable"),
            Behaviour::RedirectLoop => {
                // Whoever comes back is sent round again.
                if let Some(fault) = &mut *lock(&self.fault) {
                    fault.times = fault.times.max(8 * u32::from(fault.times > 0));
                }
                Reply::status("302 Found").with(&format!("Location: {}", request.target))
            }
            Behaviour::RedirectNowhere => Reply::status("302 Found"),
            Behaviour::RedirectToFile => Reply::status("302 Found").with("Location: file:///etc/passwd"),
            Behaviour::RedirectOn if file.lfs && !request.target.contains("forever") => {
                let to = format!("Location: http://{}/blob/{}?sig=forever", self.third, file.digest);
                Reply::status("307 Temporary Redirect").with(&to)
            }
            Behaviour::Forbidden => Reply::status("403 Forbidden"),
            Behaviour::Expire if fault.times > 1000 => Reply::status("403 Forbidden"),
            Behaviour::Gone => Reply::status("404 Not Found"),
            _ => return None,
        })
    }
}

/// The right list, made wrong at one file.
fn change_listing(listing: &mut serde_json::Value, fault: &Fault) {
    let siblings = listing["siblings"].as_array_mut().unwrap();
    let target = siblings.iter().position(|sibling| sibling["rfilename"] == fault.path.as_str()).unwrap_or(0);
    let lfs = siblings[target].get("lfs").is_some();
    match fault.behaviour {
        Behaviour::ListTraversal => {
            for path in ["../../../config.json", "/etc/config.json", "..\\model.safetensors", "a/../../x.safetensors"] {
                let mut evil = siblings[target].clone();
                evil["rfilename"] = path.into();
                siblings.push(evil);
            }
        }
        Behaviour::ListTwice => siblings.push(siblings[target].clone()),
        Behaviour::ListNoDigest => {
            let sibling = siblings[target].as_object_mut().unwrap();
            sibling.remove("lfs");
            sibling.remove("blobId");
        }
        Behaviour::ListWrongSize => {
            let size = siblings[target]["size"].as_u64().unwrap() + 1;
            siblings[target]["size"] = size.into();
            if lfs {
                siblings[target]["lfs"]["size"] = size.into();
            }
        }
        Behaviour::ListWrongDigest => {
            siblings[target]["blobId"] = "cd".repeat(20).into();
            if lfs {
                siblings[target]["lfs"]["sha256"] = "cd".repeat(32).into();
            }
        }
        _ => {}
    }
}

/// No reply that anybody could read; says whether the connection goes on.
fn break_off(mut stream: &TcpStream, behaviour: Behaviour, stop: &AtomicBool) -> std::io::Result<Option<bool>> {
    match behaviour {
        Behaviour::CloseEarly => {}
        Behaviour::Garbage => stream.write_all(b"\x15\x03\x01 no HTTP here\r\n\r\n")?,
        Behaviour::HugeHeaders => {
            stream.write_all(b"HTTP/1.1 200 OK\r\n")?;
            let line = format!("X-More: {}\r\n", "a".repeat(80));
            for _ in 0..20_000 {
                stream.write_all(line.as_bytes())?;
            }
        }
        Behaviour::SlowHeaders => wait(stream, STALL, stop),
        _ => return Ok(None),
    }
    Ok(Some(false))
}

/// The right reply, made wrong.
fn change(fault: &Fault, at: usize, reply: &mut Reply, content_range: &mut Option<(usize, usize, usize)>) {
    let length = reply.part.len();
    match fault.behaviour {
        Behaviour::Truncate => reply.ending = Ending::Close(at),
        Behaviour::Expire => reply.ending = Ending::Close(at.min(length.saturating_sub(1))),
        Behaviour::Reset => reply.ending = Ending::Reset(at),
        Behaviour::Stall => reply.ending = Ending::Stall(at),
        Behaviour::StallAt99 => reply.ending = Ending::Stall(length.saturating_sub(1)),
        Behaviour::Trickle => reply.ending = Ending::Trickle(at),
        Behaviour::LongLength | Behaviour::Excess => {
            let mut more = reply.body[reply.part.clone()].to_vec();
            more.extend(vec![7; 1 + at]);
            reply.length = (fault.behaviour == Behaviour::LongLength).then_some(more.len());
            (reply.part, reply.body) = (0..more.len(), Arc::new(more));
        }
        Behaviour::ShortLength => {
            reply.part.end -= usize::from(length > 0);
            reply.length = Some(reply.part.len());
        }
        Behaviour::NoLength => reply.length = None,
        Behaviour::CorruptByte => {
            let mut bytes = reply.body.to_vec();
            if let Some(byte) = bytes[reply.part.clone()].get_mut(at.min(length.saturating_sub(1))) {
                *byte ^= 1;
            }
            reply.body = Arc::new(bytes);
        }
        Behaviour::OtherBytes => reply.body = Arc::new(vec![9; reply.body.len()]),
        Behaviour::IgnoreRange => {
            *content_range = None;
            (reply.status, reply.part) = ("200 OK", 0..reply.body.len());
            reply.length = Some(reply.body.len());
        }
        Behaviour::NoRangeHeader => {
            *content_range = None;
            reply.status = "206 Partial Content";
        }
        Behaviour::ShiftedRange => match content_range {
            Some(range) => (range.0, range.1) = (range.0 + 1, range.1 + 1),
            None => reply.status = "206 Partial Content",
        },
        Behaviour::WrongTotal => match content_range {
            Some(range) => range.2 += 1,
            None => reply.status = "203 Something Else",
        },
        Behaviour::ShortPart => {
            if let Some(range) = content_range {
                range.1 = range.0 + (range.1 - range.0).div_ceil(2);
                reply.part.end = range.1;
                reply.length = Some(reply.part.len());
            }
        }
        Behaviour::Gzip => reply.headers.push("Content-Encoding: gzip".to_owned()),
        Behaviour::WeakTag if reply.headers.is_empty() => reply.headers.push(format!("ETag: \"{}\"", "99".repeat(32))),
        Behaviour::WeakTag => {
            let weak = |header: &mut String| *header = header.replace("ETag: \"", "ETag: W/\"");
            reply.headers.iter_mut().for_each(weak);
        }
        _ => {}
    }
}

impl Reply {
    fn status(status: &'static str) -> Self {
        Self { status, headers: Vec::new(), body: Arc::default(), part: 0..0, length: Some(0), ending: Ending::Whole }
    }

    fn page(status: &'static str) -> Self {
        let body = b"<!DOCTYPE html><html><body>Sign in to this network</body></html>".to_vec();
        Self { part: 0..body.len(), length: Some(body.len()), body: Arc::new(body), ..Self::status(status) }
            .with("Content-Type: text/html")
    }

    fn with(mut self, header: &str) -> Self {
        self.headers.push(header.to_owned());
        self
    }
}

/// Waits until the client goes away.
fn wait(mut stream: &TcpStream, limit: Duration, stop: &AtomicBool) {
    let _ = stream.set_read_timeout(Some(Duration::from_millis(20)));
    let since = Instant::now();
    let mut byte = [0];
    while since.elapsed() < limit && !stop.load(Ordering::Relaxed) {
        match stream.read(&mut byte) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Err(_) => return,
        }
    }
}

/// Sends a reply; says whether the connection goes on.
fn send(mut stream: &TcpStream, reply: &Reply, head: bool, stop: &AtomicBool) -> std::io::Result<bool> {
    let mut text = format!("HTTP/1.1 {}\r\n", reply.status);
    let body = &reply.body[reply.part.clone()];
    let bare = reply.status.starts_with("204");
    match reply.length {
        Some(length) if !bare => text.push_str(&format!("Content-Length: {length}\r\n")),
        Some(_) => {}
        None => text.push_str("Connection: close\r\n"),
    }
    reply.headers.iter().for_each(|header| text.push_str(&format!("{header}\r\n")));
    text.push_str("\r\n");
    stream.write_all(text.as_bytes())?;
    if head || bare {
        return Ok(true);
    }
    match reply.ending {
        Ending::Whole => {
            stream.write_all(body)?;
            Ok(reply.length.is_some())
        }
        Ending::Close(at) => {
            stream.write_all(&body[..at.min(body.len())])?;
            Ok(at >= body.len())
        }
        Ending::Reset(at) => {
            stream.write_all(&body[..at.min(body.len())])?;
            rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO))?;
            Ok(false)
        }
        Ending::Stall(at) => {
            stream.write_all(&body[..at.min(body.len())])?;
            wait(stream, STALL, stop);
            Ok(false)
        }
        Ending::Trickle(at) => {
            stream.write_all(&body[..at.min(body.len())])?;
            let since = Instant::now();
            for byte in &body[at.min(body.len())..] {
                if stop.load(Ordering::Relaxed) || since.elapsed() > STALL {
                    return Ok(false);
                }
                stream.write_all(std::slice::from_ref(byte))?;
                std::thread::sleep(TRICKLE);
            }
            Ok(true)
        }
    }
}
