//! One process at a time fetches a blob. The lock is the one that `huggingface_hub` takes, so that it holds there too.

use crate::error::HubError;
use crate::events::{Event, Observer};
use crate::limits::Limits;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tokio::time::Instant;

/// A lock that is held until this is dropped, or the process ends in whatever way.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "closing it unlocks")] File);

impl Lock {
    /// Takes the lock, if nobody holds it.
    pub(crate) fn try_take(path: &Path) -> Result<Option<Self>, HubError> {
        let folder = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(HubError::io(folder))?;
        let open = || File::options().read(true).write(true).create(true).truncate(false).open(path);
        let file = open().map_err(HubError::io(path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => return Ok(None),
            Err(error) => return Err(HubError::io(path)(error.into())),
        }
        // Whoever held it may have removed the file: then this is not the lock that others see.
        let same = |there: std::fs::Metadata| file.metadata().is_ok_and(|ours| ours.ino() == there.ino());
        Ok(std::fs::metadata(path).is_ok_and(same).then_some(Self(file)))
    }

    /// Waits for the lock, as long as its holder makes any of the files in `watch` grow.
    pub(crate) async fn take(
        path: &Path,
        watch: &[PathBuf],
        what: &str,
        limits: &Limits,
        observer: &dyn Observer,
    ) -> Result<Self, HubError> {
        let mut seen = None;
        let mut since = Instant::now();
        loop {
            if let Some(lock) = Self::try_take(path)? {
                return Ok(lock);
            }
            let sizes: Vec<Option<u64>> = watch
                .iter()
                .map(|path| std::fs::metadata(path).ok().map(|facts| facts.len() + facts.blocks()))
                .collect();
            if seen.as_ref() != Some(&sizes) {
                if seen.is_none() {
                    observer.event(Event::Waiting { file: what });
                }
                (seen, since) = (Some(sizes), Instant::now());
            } else if since.elapsed() >= limits.lock_patience {
                return Err(HubError::Locked { lock: path.to_owned(), seconds: limits.lock_patience.as_secs() });
            }
            tokio::time::sleep(limits.lock_poll).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Silent;
    use std::time::Duration;

    #[tokio::test]
    async fn a_holder_that_does_nothing_is_not_waited_for_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks/a.lock");
        let held = Lock::try_take(&path).unwrap().unwrap();
        assert!(Lock::try_take(&path).unwrap().is_none());
        let limits = Limits {
            lock_patience: Duration::from_millis(30),
            lock_poll: Duration::from_millis(5),
            ..Limits::default()
        };
        let taken = Lock::take(&path, &[folder.path().join("part")], "a", &limits, &Silent).await;
        assert!(matches!(taken, Err(HubError::Locked { .. })));
        drop(held);
        let held = Lock::take(&path, &[], "a", &limits, &Silent).await.unwrap();
        std::fs::remove_file(&path).unwrap();
        let again = Lock::try_take(&path).unwrap();
        assert!(again.is_some(), "a removed lock file is another lock");
        drop(held);
    }
}
