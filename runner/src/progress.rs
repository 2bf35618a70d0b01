//! Progress on stderr: a spinner on a terminal, a plain line now and then elsewhere.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Off a terminal, a stage that lasts says so this often.
const INTERVAL: Duration = Duration::from_secs(5);

/// One thing at a time that takes a while.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    quiet: bool,
    stage: Mutex<(String, Instant)>,
    begun: Instant,
}

impl Progress {
    /// Shows nothing when `quiet`.
    pub(crate) fn new(quiet: bool) -> Self {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        Self { bar, quiet, stage: Mutex::new((String::new(), Instant::now())), begun: Instant::now() }
    }

    /// Begins a stage.
    pub(crate) fn stage(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(text.to_owned()),
            None if !self.quiet => eprintln!("{text}"),
            None => {}
        }
        if let Ok(mut stage) = self.stage.lock() {
            *stage = (text.to_owned(), Instant::now());
        }
    }

    /// Says what the stage waits for.
    pub(crate) fn detail(&self, detail: &str) {
        let Ok(mut stage) = self.stage.lock() else { return };
        match &self.bar {
            Some(bar) => bar.set_message(format!("{}: {detail}", stage.0)),
            None if !self.quiet && stage.1.elapsed() >= INTERVAL => {
                eprintln!("{} ({:.0} s): {detail}", stage.0, self.begun.elapsed().as_secs_f64());
                stage.1 = Instant::now();
            }
            None => {}
        }
    }

    /// Clears the line.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
