//! A blob that is being fetched: its bytes in a part file, and a journal of which of them are there.
//!
//! The journal decides only how much is fetched again. Whether the bytes are right is decided by the digest, over what
//! the file holds at the end; so neither needs to be on the disk before the other.

use crate::disk::{FileSystem, OpenFile, replace};
use crate::error::HubError;
use crate::lock::Lock;
use crate::ranges::Ranges;
use crate::rolling::Frontier;
use std::fmt::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Ends the names of part files. Not `.incomplete`: other tools take such a file's length for what is there.
pub(crate) const PART: &str = ".atlas-part";
/// Ends the names of journals.
pub(crate) const JOURNAL: &str = ".atlas-ranges";
/// A longer journal is not ours.
const MAX_JOURNAL: u64 = 16 << 20;
/// A journal with more lines is written anew when it is opened.
const MAX_LINES: usize = 64;

/// An unfinished blob. Its lock is held by whoever made this.
#[derive(Debug)]
pub(crate) struct Part {
    files: Arc<dyn FileSystem>,
    data: OpenFile,
    journal: OpenFile,
    size: u64,
    state: Mutex<State>,
    /// How far the file is whole from its beginning.
    pub(crate) frontier: Arc<Frontier>,
    // Held as long as anything could still write: a cancelled fetch may leave a write behind that is under way.
    _lock: Option<Lock>,
}

#[derive(Debug, Default)]
struct State {
    ranges: Ranges,
    journal_length: u64,
    epoch: u64,
}

/// The part file of a blob.
pub(crate) fn part_path(blob: &Path) -> PathBuf {
    with_suffix(blob, PART)
}

fn with_suffix(blob: &Path, suffix: &str) -> PathBuf {
    let name = blob.file_name().unwrap_or_default().to_string_lossy();
    blob.with_file_name(format!("{name}{suffix}"))
}

/// What is left of a fetch beside a blob that is whole: its process ended between two last steps.
pub(crate) fn left_beside(blob: &Path) -> Vec<PathBuf> {
    let paths = [with_suffix(blob, JOURNAL), part_path(blob)];
    paths.into_iter().filter(|path| path.symlink_metadata().is_ok()).collect()
}

/// Bytes of a blob that an earlier run left.
pub(crate) fn left_over(blob: &Path, size: u64) -> u64 {
    let length = std::fs::symlink_metadata(part_path(blob)).map_or(0, |metadata| metadata.len());
    read_journal(&with_suffix(blob, JOURNAL), size.min(length)).0.total()
}

impl Part {
    /// Opens what an earlier run left, or begins.
    pub(crate) fn open(
        files: Arc<dyn FileSystem>,
        blob: &Path,
        size: u64,
        lock: Option<Lock>,
    ) -> Result<Self, HubError> {
        let (part, journal) = (part_path(blob), with_suffix(blob, JOURNAL));
        let data = files.open(&part).map_err(HubError::io(&part))?;
        let length = data.file.metadata().map_err(HubError::io(&part))?.len();
        let (ranges, lines) = read_journal(&journal, size.min(length));
        if lines > MAX_LINES || length > size {
            files.set_len(&data, length.min(size)).map_err(HubError::io(&part))?;
            replace(&*files, &journal, text(&ranges).as_bytes(), blob.parent().unwrap_or(Path::new(".")))
                .map_err(HubError::io(&journal))?;
        }
        let journal = files.open(&journal).map_err(HubError::io(&journal))?;
        let journal_length = journal.file.metadata().map_err(HubError::io(&journal.path))?.len();
        let frontier = Arc::new(Frontier::new(ranges.prefix()));
        let state = Mutex::new(State { ranges, journal_length, epoch: 0 });
        Ok(Self { files, data, journal, size, state, frontier, _lock: lock })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The part file, to read from.
    pub(crate) fn reader(&self) -> std::io::Result<std::fs::File> {
        self.data.file.try_clone()
    }

    /// Bytes that are there.
    pub(crate) fn present(&self) -> u64 {
        self.state().ranges.total()
    }

    /// Where the first gap begins.
    pub(crate) fn prefix(&self) -> u64 {
        self.state().ranges.prefix()
    }

    /// What is missing, in pieces.
    pub(crate) fn gaps(&self, piece: u64) -> Vec<Range<u64>> {
        self.state().ranges.gaps(self.size, piece)
    }

    /// Changes whenever something is forgotten.
    pub(crate) fn epoch(&self) -> u64 {
        self.state().epoch
    }

    /// Writes bytes that were missing. A byte is written once: what was hashed never changes. A write that was asked
    /// for in an earlier epoch is not done.
    pub(crate) fn write(&self, epoch: u64, data: &[u8], offset: u64) -> Result<(), HubError> {
        let range = offset..offset + data.len() as u64;
        let mut state = self.state();
        if state.epoch != epoch {
            return Ok(());
        }
        let gaps = state.ranges.gaps(self.size, u64::MAX);
        if !gaps.iter().any(|gap| gap.start <= range.start && range.end <= gap.end) {
            return Err(HubError::Internal(format!("bytes {range:?} of {} came twice", self.data.path.display())));
        }
        self.files.write_at(&self.data, data, offset).map_err(HubError::io(&self.data.path))?;
        let line = format!("{} {}\n", range.start, range.end);
        let end = state.journal_length;
        self.files.write_at(&self.journal, line.as_bytes(), end).map_err(HubError::io(&self.journal.path))?;
        state.journal_length += line.len() as u64;
        state.ranges.insert(range);
        self.frontier.advance(state.ranges.prefix());
        Ok(())
    }

    /// Forgets everything from `end` on; returns how many bytes that were.
    pub(crate) fn truncate(&self, end: u64) -> Result<u64, HubError> {
        let mut state = self.state();
        let before = state.ranges.total();
        state.ranges.truncate(end);
        state.epoch += 1;
        let text = text(&state.ranges);
        // The journal first: what it does not name is not there.
        self.files.set_len(&self.journal, 0).map_err(HubError::io(&self.journal.path))?;
        self.files.write_at(&self.journal, text.as_bytes(), 0).map_err(HubError::io(&self.journal.path))?;
        state.journal_length = text.len() as u64;
        self.frontier.advance(state.ranges.prefix());
        self.files.set_len(&self.data, end).map_err(HubError::io(&self.data.path))?;
        Ok(before - state.ranges.total())
    }

    /// Nothing of it is worth keeping.
    pub(crate) fn remove(&self) -> Result<(), HubError> {
        self.files.remove(&self.journal.path).map_err(HubError::io(&self.journal.path))?;
        self.files.remove(&self.data.path).map_err(HubError::io(&self.data.path))
    }

    /// The file is whole and right: gives it its name.
    pub(crate) fn finish(&self, blob: &Path) -> Result<(), HubError> {
        // A file of no bytes was never written to.
        self.files.set_len(&self.data, self.size).map_err(HubError::io(&self.data.path))?;
        self.files.sync(&self.data).map_err(HubError::io(&self.data.path))?;
        self.files.rename(&self.data.path, blob).map_err(HubError::io(blob))?;
        let folder = blob.parent().unwrap_or(Path::new("."));
        self.files.sync_dir(folder).map_err(HubError::io(folder))?;
        self.files.remove(&self.journal.path).map_err(HubError::io(&self.journal.path))
    }
}

fn text(ranges: &Ranges) -> String {
    ranges.iter().fold(String::new(), |mut text, range| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{} {}", range.start, range.end);
        text
    })
}

/// The ranges of a journal below `limit`, and its lines. A torn last line or foreign text ends it.
fn read_journal(path: &Path, limit: u64) -> (Ranges, usize) {
    let mut ranges = Ranges::default();
    let small = std::fs::symlink_metadata(path).is_ok_and(|facts| facts.is_file() && facts.len() <= MAX_JOURNAL);
    let text = if small { std::fs::read_to_string(path).unwrap_or_default() } else { String::new() };
    let mut lines = 0;
    for line in text.split_inclusive('\n') {
        let numbers = line.strip_suffix('\n').and_then(|line| line.split_once(' '));
        let parsed = numbers.and_then(|(start, end)| Some((start.parse::<u64>().ok()?, end.parse::<u64>().ok()?)));
        let Some((start, end)) = parsed else {
            // So that what follows it is not read as part of it.
            lines = usize::MAX;
            break;
        };
        ranges.insert(start.min(limit)..end.min(limit));
        lines += 1;
    }
    (ranges, lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Disk;

    #[test]
    fn what_was_written_is_there_again_and_a_torn_journal_costs_only_its_last_line() {
        let folder = tempfile::tempdir().unwrap();
        let blob = folder.path().join("blob");
        let open = || Part::open(Arc::new(Disk), &blob, 100, None).unwrap();
        let part = open();
        part.write(0, &[1; 10], 0).unwrap();
        part.write(0, &[2; 10], 50).unwrap();
        assert!(part.write(0, &[3; 10], 5).is_err(), "a byte is written once");
        assert!(part.write(0, &[3; 10], 95).is_err(), "nothing beyond the end");
        drop(part);
        assert_eq!((left_over(&blob, 100), open().prefix()), (20, 10));

        let journal = with_suffix(&blob, JOURNAL);
        std::fs::write(&journal, "0 10\n50 6").unwrap();
        assert_eq!(open().gaps(u64::MAX), [10..100]);
        open().write(0, &[4; 10], 10).unwrap();
        assert_eq!(open().prefix(), 20);
        // The journal claims what the file does not hold.
        std::fs::write(&journal, "0 100\n").unwrap();
        assert_eq!(open().prefix(), 60);
        let part = open();
        part.truncate(15).unwrap();
        part.write(0, &[5; 10], 15).unwrap();
        assert_eq!(part.prefix(), 15, "what was asked for before is not done any more");
        drop(part);
        assert_eq!(open().gaps(u64::MAX), [15..100]);
        std::fs::write(&journal, "not ours").unwrap();
        assert_eq!(open().present(), 0);
    }

    #[test]
    fn o7_a_part_file_is_never_opened_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (blob, victim) = (folder.path().join("blob"), folder.path().join("victim"));
        std::fs::write(&victim, "keep").unwrap();
        std::os::unix::fs::symlink(&victim, part_path(&blob)).unwrap();
        assert!(Part::open(Arc::new(Disk), &blob, 1, None).is_err());
        assert_eq!(std::fs::read(&victim).unwrap(), b"keep");
    }
}
