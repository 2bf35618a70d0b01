//! Directories that only their owner can read, used through descriptors so that a swapped path leads nowhere.
//!
//! Every directory is opened without following symbolic links and must belong to the user who runs `atlas`; new
//! directories have mode 0700 and new files 0600 under any umask.

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, fchmod, fstat, mkdirat, openat, renameat, unlinkat};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Why a private directory or one of its files cannot be used.
#[derive(Debug, Error)]
#[error("{}: {problem}", .path.display())]
pub(crate) struct PrivateDirError {
    path: PathBuf,
    problem: String,
}

type Result<T> = std::result::Result<T, PrivateDirError>;

/// An open directory of ours.
#[derive(Debug)]
pub(crate) struct PrivateDir {
    descriptor: OwnedFd,
    path: PathBuf,
}

impl PrivateDir {
    /// Opens the outermost directory, creating it and its parents when they are absent. It may be readable by
    /// others (it was perhaps made by hand) but not writable.
    pub(crate) fn create_base(path: &Path) -> Result<Self> {
        let failed =
            |error: &dyn std::fmt::Display| PrivateDirError { path: path.to_owned(), problem: error.to_string() };
        if let Some(parent) = path.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(|error| failed(&error))?;
        }
        match mkdirat(CWD, path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed(&error)),
        }
        Self::open_at(CWD, path, path.to_owned())
    }

    /// Opens the outermost directory; `None` when there is none.
    pub(crate) fn open_base(path: &Path) -> Result<Option<Self>> {
        match std::fs::symlink_metadata(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            _ => Self::open_at(CWD, path, path.to_owned()).map(Some),
        }
    }

    fn open_at(parent: impl std::os::fd::AsFd, name: &Path, path: PathBuf) -> Result<Self> {
        let descriptor = match openat(parent, name, DIRECTORY, Mode::empty()) {
            Ok(descriptor) => descriptor,
            Err(Errno::LOOP | Errno::NOTDIR) => {
                let problem = "is a symbolic link or not a directory; atlas does not follow it".to_owned();
                return Err(PrivateDirError { path, problem });
            }
            Err(error) => return Err(PrivateDirError { path, problem: error.to_string() }),
        };
        let directory = Self { descriptor, path };
        directory.check(rustix::process::geteuid().as_raw())?;
        Ok(directory)
    }

    /// Refuses a directory that another user owns or can write to.
    fn check(&self, user: u32) -> Result<()> {
        let status = fstat(&self.descriptor).map_err(|error| self.error(error))?;
        if status.st_uid != user {
            return Err(self.error(format!("belongs to user {}, not to you ({user})", status.st_uid)));
        }
        if status.st_mode & 0o022 != 0 {
            let mode = status.st_mode & 0o7777;
            return Err(self.error(format!("others can write to it (mode {mode:04o}); run `chmod go-w` on it")));
        }
        Ok(())
    }

    fn error(&self, problem: impl std::fmt::Display) -> PrivateDirError {
        PrivateDirError { path: self.path.clone(), problem: problem.to_string() }
    }

    fn file_error(&self, name: &str, problem: impl std::fmt::Display) -> PrivateDirError {
        PrivateDirError { path: self.path.join(name), problem: problem.to_string() }
    }

    /// Where it is, for messages and for programs that need a path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Time since its content last changed.
    pub(crate) fn age(&self) -> std::time::Duration {
        let changed = fstat(&self.descriptor).ok().and_then(|status| u64::try_from(status.st_mtime).ok()).unwrap_or(0);
        let changed = std::time::UNIX_EPOCH + std::time::Duration::from_secs(changed);
        std::time::SystemTime::now().duration_since(changed).unwrap_or_default()
    }

    /// Creates a directory inside; `None` when the name is taken.
    pub(crate) fn create_dir(&self, name: &str) -> Result<Option<Self>> {
        match mkdirat(&self.descriptor, name, Mode::RWXU) {
            Ok(()) => self.open_dir(name),
            Err(Errno::EXIST) => Ok(None),
            Err(error) => Err(self.file_error(name, error)),
        }
    }

    /// Opens a directory inside; `None` when there is none. Read access of others, if any, is taken away.
    pub(crate) fn open_dir(&self, name: &str) -> Result<Option<Self>> {
        match rustix::fs::statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(self.file_error(name, error)),
            Ok(_) => {}
        }
        let directory = Self::open_at(&self.descriptor, Path::new(name), self.path.join(name))?;
        fchmod(&directory.descriptor, Mode::RWXU).map_err(|error| directory.error(error))?;
        Ok(Some(directory))
    }

    /// Opens a directory inside, creating it when it is absent.
    pub(crate) fn ensure_dir(&self, name: &str) -> Result<Self> {
        if let Some(created) = self.create_dir(name)? {
            return Ok(created);
        }
        self.open_dir(name)?.ok_or_else(|| self.file_error(name, "vanished while it was opened"))
    }

    /// Names of everything inside, sorted.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.descriptor).map_err(|error| self.error(error))? {
            let entry = entry.map_err(|error| self.error(error))?;
            match entry.file_name().to_str() {
                Ok("." | "..") | Err(_) => {}
                Ok(name) => names.push(name.to_owned()),
            }
        }
        names.sort();
        Ok(names)
    }

    /// Creates a file that was not there, for appending.
    pub(crate) fn create_file(&self, name: &str) -> Result<File> {
        let flags =
            OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.descriptor, name, flags, Mode::RUSR | Mode::WUSR);
        file.map(File::from).map_err(|error| self.file_error(name, error))
    }

    /// Opens a file for reading; `None` when there is none.
    pub(crate) fn open_file(&self, name: &str) -> Result<Option<File>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match openat(&self.descriptor, name, flags, Mode::empty()) {
            Ok(file) => Ok(Some(File::from(file))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(self.file_error(name, error)),
        }
    }

    /// The text of a file of at most `limit` bytes; `None` when there is none.
    pub(crate) fn read(&self, name: &str, limit: u64) -> Result<Option<String>> {
        let Some(file) = self.open_file(name)? else { return Ok(None) };
        let mut bytes = Vec::new();
        file.take(limit + 1).read_to_end(&mut bytes).map_err(|error| self.file_error(name, error))?;
        if bytes.len() as u64 > limit {
            return Err(self.file_error(name, format!("is larger than {limit} bytes")));
        }
        String::from_utf8(bytes).map(Some).map_err(|_| self.file_error(name, "is not UTF-8"))
    }

    /// Puts a file's new content in place at once: readers see the old text or the new, never half of it.
    pub(crate) fn replace(&self, name: &str, text: &str) -> Result<()> {
        let temporary = format!(".{name}.{}", std::process::id());
        match unlinkat(&self.descriptor, temporary.as_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(self.file_error(&temporary, error)),
        }
        let mut file = self.create_file(&temporary)?;
        file.write_all(text.as_bytes())
            .and_then(|()| file.sync_all())
            .map_err(|error| self.file_error(&temporary, error))?;
        renameat(&self.descriptor, temporary.as_str(), &self.descriptor, name)
            .map_err(|error| self.file_error(name, error))
    }

    /// Removes a directory of plain files.
    pub(crate) fn remove_dir(&self, name: &str) -> Result<()> {
        let Some(directory) = self.open_dir(name)? else { return Ok(()) };
        for file in directory.names()? {
            match unlinkat(&directory.descriptor, file.as_str(), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(directory.file_error(&file, error)),
            }
        }
        match unlinkat(&self.descriptor, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(self.file_error(name, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn replaced_files_are_whole_private_and_leave_no_scraps() {
        let root = tempfile::tempdir().unwrap();
        let base = PrivateDir::create_base(&root.path().join("a/b/state")).unwrap();
        let jobs = base.ensure_dir("jobs").unwrap();
        assert_eq!(mode(jobs.path()), 0o700);
        jobs.replace("job.json", "one").unwrap();
        jobs.replace("job.json", "two").unwrap();
        assert_eq!(jobs.read("job.json", 10).unwrap().unwrap(), "two");
        assert_eq!(jobs.names().unwrap(), ["job.json"]);
        assert_eq!(mode(&jobs.path().join("job.json")), 0o600);
        assert!(jobs.read("job.json", 2).unwrap_err().to_string().contains("larger than 2 bytes"));
        assert!(jobs.read("absent", 2).unwrap().is_none());
    }

    #[test]
    fn links_are_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let outside = root.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("keep"), "kept").unwrap();
        let base = PrivateDir::create_base(&root.path().join("state")).unwrap();
        symlink(&outside, base.path().join("jobs")).unwrap();
        symlink(outside.join("keep"), base.path().join("log")).unwrap();

        assert!(base.ensure_dir("jobs").unwrap_err().to_string().contains("symbolic link"));
        assert!(base.remove_dir("jobs").is_err());
        assert!(base.create_file("log").is_err());
        assert!(base.open_file("log").is_err());
        base.replace("log", "ours").unwrap();
        assert_eq!(std::fs::read_to_string(outside.join("keep")).unwrap(), "kept");

        symlink(&outside, root.path().join("linked")).unwrap();
        assert!(PrivateDir::create_base(&root.path().join("linked")).is_err());
        assert!(PrivateDir::open_base(&root.path().join("linked")).is_err());
        assert!(PrivateDir::open_base(&root.path().join("absent")).unwrap().is_none());
    }

    #[test]
    fn directories_of_others_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let base = PrivateDir::create_base(&root.path().join("state")).unwrap();
        let me = rustix::process::geteuid().as_raw();
        assert!(base.check(me).is_ok());
        assert!(base.check(me + 1).unwrap_err().to_string().contains("belongs to user"));
        std::fs::set_permissions(base.path(), std::fs::Permissions::from_mode(0o770)).unwrap();
        assert!(base.check(me).unwrap_err().to_string().contains("others can write"));
    }

    #[test]
    fn a_directory_swapped_for_a_link_during_cleaning_never_leads_outside() {
        let root = tempfile::tempdir().unwrap();
        let outside = root.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("keep"), "kept").unwrap();
        let base = PrivateDir::create_base(&root.path().join("state")).unwrap();
        let victim = base.path().join("job");
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = std::fs::remove_dir_all(&victim);
                    let _ = symlink(&outside, &victim);
                    let _ = std::fs::remove_file(&victim);
                }
            });
            for _ in 0..10_000 {
                if let Ok(Some(job)) = base.create_dir("job") {
                    let _ = job.create_file("log");
                    let _ = job.replace("job.json", "text");
                }
                let _ = base.remove_dir("job");
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
        assert_eq!(std::fs::read_to_string(outside.join("keep")).unwrap(), "kept");
    }
}
