//! A fetch for people: one bar a file and one in all on a terminal, a line now and then elsewhere.

use atlas_hub::{Event, Observer};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::collections::HashMap;
use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Off a terminal, the sum is told this often.
const INTERVAL: Duration = Duration::from_secs(5);
/// Hashing a smaller file takes no time worth a line.
const LONG: u64 = 256 << 20;
/// Lines about failures that are tried again, at most; the last failure is in the error.
const MAX_RETRIES: u32 = 20;
const FILE: &str = "{prefix:32!} {bar:24} {bytes:>10} of {total_bytes:<10} {bytes_per_sec:>12} {msg}";
const TOTAL: &str = "{prefix:32!} {bar:24} {bytes:>10} of {total_bytes:<10} {bytes_per_sec:>12} {eta}";

/// Shows events on stderr.
#[derive(Debug)]
pub(crate) struct FetchProgress {
    quiet: bool,
    bars: Option<MultiProgress>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    files: HashMap<String, ProgressBar>,
    total: Option<ProgressBar>,
    planned: u64,
    received: u64,
    retries: u32,
    told: Instant,
    begun: Instant,
}

impl FetchProgress {
    /// Shows nothing when `quiet`.
    pub(crate) fn new(quiet: bool) -> Self {
        let now = Instant::now();
        let state =
            State { files: HashMap::new(), total: None, planned: 0, received: 0, retries: 0, told: now, begun: now };
        let bars = (!quiet && std::io::stderr().is_terminal()).then(MultiProgress::new);
        Self { quiet, bars, state: Mutex::new(state) }
    }

    /// Clears the bars.
    pub(crate) fn finish(&self) {
        if let Some(bars) = &self.bars {
            let _ = bars.clear();
        }
    }

    fn say(&self, text: &str) {
        match &self.bars {
            Some(bars) => {
                let _ = bars.println(text);
            }
            None if !self.quiet => eprintln!("{text}"),
            None => {}
        }
    }

    fn bar(&self, prefix: &str, template: &str, length: u64) -> Option<ProgressBar> {
        let bar = self.bars.as_ref()?.add(ProgressBar::new(length));
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_prefix(prefix.to_owned());
        Some(bar)
    }

    fn received(&self, state: &mut State, file: &str, bytes: u64) {
        state.received += bytes;
        if let Some(bar) = state.files.get(file) {
            bar.inc(bytes);
        }
        if let Some(total) = &state.total {
            total.inc(bytes);
        }
        if self.bars.is_none() && state.told.elapsed() >= INTERVAL {
            state.told = Instant::now();
            let rate = state.received as f64 / state.begun.elapsed().as_secs_f64();
            self.say(&format!("{} of {}, {}/s", size(state.received), size(state.planned), size(rate as u64)));
        }
    }
}

impl Observer for FetchProgress {
    fn event(&self, event: Event<'_>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Planned { files, bytes } => {
                state.planned += bytes;
                if let Some(total) = &state.total {
                    total.inc_length(bytes);
                } else {
                    state.total = self.bar("total", TOTAL, bytes);
                }
                self.say(&format!("fetching {files} file{}, {}", if files == 1 { "" } else { "s" }, size(bytes)));
            }
            Event::Started { file, size, present } => {
                if let Some(bar) = self.bar(file, FILE, size) {
                    bar.set_position(present);
                    bar.reset_eta();
                    state.files.insert(file.to_owned(), bar);
                }
            }
            Event::Received { file, bytes } => self.received(&mut state, file, bytes),
            Event::Dropped { file, bytes } => {
                state.received = state.received.saturating_sub(bytes);
                for bar in state.files.get(file).into_iter().chain(&state.total) {
                    bar.set_position(bar.position().saturating_sub(bytes));
                }
            }
            Event::Finished { file } => match state.files.remove(file) {
                Some(bar) => bar.finish_and_clear(),
                None => self.say(&format!("{file}: whole and verified")),
            },
            Event::Retry { what, cause, .. } => {
                state.retries += 1;
                if state.retries <= MAX_RETRIES {
                    self.say(&format!("{what}: {cause}; trying again"));
                }
            }
            Event::Waiting { file } => self.say(&format!("{file}: another process is fetching it, waiting")),
            Event::Hashing { file, size: bytes } if bytes >= LONG => {
                self.say(&format!("{file}: verifying {} for the first time", size(bytes)));
            }
            Event::Note(note) => self.say(note),
            _ => {}
        }
    }
}

/// Bytes as hubs and disks write them.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}
