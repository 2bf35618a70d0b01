//! The operations on files whose order decides what a crash leaves behind. They stand behind a trait so that tests can
//! end the process, fill the disk or take symbolic links away at any of them.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// An open file and its path.
#[derive(Debug)]
pub struct OpenFile {
    /// The file.
    pub file: File,
    /// Where it is.
    pub path: PathBuf,
}

/// What changes the disk. The default methods do it.
pub trait FileSystem: Send + Sync + std::fmt::Debug {
    /// Creates a folder and what is missing above it.
    fn create_dirs(&self, path: &Path) -> io::Result<()> {
        std::fs::create_dir_all(path)
    }

    /// Opens a file to read and write, and creates it if it is not there. Never through a symbolic link.
    fn open(&self, path: &Path) -> io::Result<OpenFile> {
        use std::os::unix::fs::OpenOptionsExt;
        let flags = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).custom_flags(flags).open(path)?;
        Ok(OpenFile { file, path: path.to_owned() })
    }

    /// Writes all of `data` at `offset`.
    fn write_at(&self, file: &OpenFile, data: &[u8], offset: u64) -> io::Result<()> {
        file.file.write_all_at(data, offset)
    }

    /// Sets a file's length.
    fn set_len(&self, file: &OpenFile, length: u64) -> io::Result<()> {
        file.file.set_len(length)
    }

    /// A file's data and length are on the disk when this returns.
    fn sync(&self, file: &OpenFile) -> io::Result<()> {
        file.file.sync_all()
    }

    /// The names in a folder are on the disk when this returns.
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    /// Renames within a file system, over what was there.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    /// Creates a symbolic link.
    fn symlink(&self, target: &Path, link: &Path) -> io::Result<()> {
        std::os::unix::fs::symlink(target, link)
    }

    /// Removes a file; that it is not there is no error.
    fn remove(&self, path: &Path) -> io::Result<()> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Bytes that this user can still write on the file system of `path`.
    fn free(&self, path: &Path) -> io::Result<u64> {
        let facts = rustix::fs::statvfs(path)?;
        Ok(facts.f_bavail.saturating_mul(facts.f_frsize))
    }
}

/// The disk.
#[derive(Debug)]
pub struct Disk;

impl FileSystem for Disk {}

/// Writes a whole small file so that a crash leaves the old one or the new one. It is written in `workshop`, a folder of
/// the same file system in which nobody minds what a crash leaves.
pub(crate) fn replace(files: &dyn FileSystem, path: &Path, content: &[u8], workshop: &Path) -> io::Result<()> {
    let temporary = temporary(workshop);
    let written = (|| {
        let file = files.open(&temporary)?;
        files.set_len(&file, 0)?;
        files.write_at(&file, content, 0)?;
        files.sync(&file)?;
        files.rename(&temporary, path)
    })();
    if written.is_err() {
        let _ = files.remove(&temporary);
    }
    written?;
    path.parent().map_or(Ok(()), |folder| files.sync_dir(folder))
}

/// Begins the names of what replaces something else in a moment.
pub(crate) const TEMPORARY: &str = ".atlas-new-";

/// A name in `workshop` that nothing else uses.
pub(crate) fn temporary(workshop: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    workshop.join(format!("{TEMPORARY}{}-{count}", std::process::id()))
}

/// The part of `path` that exists.
pub(crate) fn nearest_existing(path: &Path) -> &Path {
    path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"))
}
