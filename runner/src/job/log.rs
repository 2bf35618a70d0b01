//! Reading the end of a job's log, and following it as it grows.

use crate::errors::CliError;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::time::Duration;

/// How much of the end of a log is searched for its last lines.
const MAX_TAIL: u64 = 1 << 20;
const POLL: Duration = Duration::from_millis(150);

/// The last `lines` lines, whole, as text.
pub(crate) fn tail(file: &mut File, lines: usize) -> std::io::Result<String> {
    let length = file.seek(SeekFrom::End(0))?;
    let start = length.saturating_sub(MAX_TAIL);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.by_ref().take(MAX_TAIL).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let mut wanted: Vec<&str> = text.lines().rev().take(lines).collect();
    wanted.reverse();
    let mut tail = wanted.join("\n");
    if !tail.is_empty() {
        tail.push('\n');
    }
    Ok(tail)
}

/// Hands over what is appended to a log from its current position on.
#[derive(Debug)]
pub(crate) struct Follower {
    file: File,
}

impl Follower {
    pub(crate) fn new(file: File) -> Self {
        Self { file }
    }

    /// Everything that is new now; empty when nothing is.
    pub(crate) fn news(&mut self) -> Result<Vec<u8>, CliError> {
        let mut bytes = Vec::new();
        let read = self.file.by_ref().take(MAX_TAIL).read_to_end(&mut bytes);
        read.map_err(|error| CliError::Failed(format!("the log cannot be read: {error}")))?;
        Ok(bytes)
    }

    /// Passes news on until something else ends the wait.
    pub(crate) async fn follow(&mut self, mut show: impl FnMut(&[u8])) -> Result<(), CliError> {
        loop {
            let news = self.news()?;
            if news.is_empty() {
                tokio::time::sleep(POLL).await;
            } else {
                show(&news);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn the_last_lines_are_whole_and_in_order() {
        let mut file = tempfile::tempfile().unwrap();
        assert_eq!(tail(&mut file, 3).unwrap(), "");
        for line in 0..100_000 {
            writeln!(file, "line {line} {}", "x".repeat(20)).unwrap();
        }
        let end = tail(&mut file, 2).unwrap();
        assert_eq!(end.lines().count(), 2);
        assert!(end.starts_with("line 99998 ") && end.ends_with("x\n"));
        assert!(tail(&mut file, usize::MAX).unwrap().len() as u64 <= MAX_TAIL);
    }

    #[test]
    fn followers_see_each_byte_once() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let mut writer = path.reopen().unwrap();
        let mut follower = Follower::new(path.reopen().unwrap());
        assert!(follower.news().unwrap().is_empty());
        writer.write_all(b"one\ntw").unwrap();
        assert_eq!(follower.news().unwrap(), b"one\ntw");
        writer.write_all(b"o\n").unwrap();
        assert_eq!(follower.news().unwrap(), b"o\n");
    }
}
