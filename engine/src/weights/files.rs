//! Where a model's files come from: a folder, or bytes inside the binary.

use crate::errors::EngineError;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// One file of an embedded model: name and bytes.
pub type EmbeddedFile = (&'static str, &'static [u8]);

/// A model's files.
#[derive(Debug, Clone)]
pub enum ModelFiles {
    /// A folder as `huggingface-cli download --local-dir` makes it.
    Folder(PathBuf),
    /// A model compiled into the binary.
    Embedded(&'static [EmbeddedFile]),
}

impl ModelFiles {
    /// Opens a folder; an error names what is wrong with it.
    pub fn folder(path: &Path) -> Result<Self, EngineError> {
        let metadata = std::fs::metadata(path).map_err(|source| io(path, source))?;
        if !metadata.is_dir() {
            return Err(EngineError::Config {
                path: path.display().to_string(),
                message: "is not a folder; give the folder that holds config.json".into(),
            });
        }
        Ok(Self::Folder(path.to_owned()))
    }

    /// How file `name` is shown in messages.
    pub fn display(&self, name: &str) -> String {
        match self {
            Self::Folder(folder) => folder.join(name).display().to_string(),
            Self::Embedded(_) => format!("embedded:{name}"),
        }
    }

    /// Reads a small file whole, at most `limit` bytes; `None` when it does not exist.
    pub fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, EngineError> {
        match self {
            Self::Folder(folder) => {
                let path = folder.join(name);
                let Some((file, _)) = regular_file(&path)? else { return Ok(None) };
                let mut bytes = Vec::new();
                file.take(limit + 1).read_to_end(&mut bytes).map_err(|error| io(&path, error))?;
                if bytes.len() as u64 > limit {
                    return Err(EngineError::Config {
                        path: path.display().to_string(),
                        message: format!("is larger than {limit} bytes"),
                    });
                }
                Ok(Some(bytes))
            }
            Self::Embedded(files) => {
                Ok(files.iter().find(|(known, _)| *known == name).map(|(_, bytes)| bytes.to_vec()))
            }
        }
    }

    /// Opens file `name` for reading at offsets; `None` when it does not exist.
    pub fn open(&self, name: &str) -> Result<Option<Blob>, EngineError> {
        let shown = self.display(name);
        match self {
            Self::Folder(folder) => Ok(regular_file(&folder.join(name))?.map(|(file, len)| Blob {
                name: shown,
                len,
                data: BlobData::File(file),
            })),
            Self::Embedded(files) => Ok(files.iter().find(|(known, _)| *known == name).map(|(_, bytes)| Blob {
                name: shown,
                len: bytes.len() as u64,
                data: BlobData::Bytes(bytes),
            })),
        }
    }
}

/// Opens a regular file (a pipe would be waited for) and tells its length; `None` when there is none.
fn regular_file(path: &Path) -> Result<Option<(File, u64)>, EngineError> {
    match std::fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => Err(io(path, std::io::Error::other("is not a regular file"))),
        Ok(metadata) => Ok(Some((File::open(path).map_err(|error| io(path, error))?, metadata.len()))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io(path, error)),
    }
}

fn io(path: &Path, source: std::io::Error) -> EngineError {
    EngineError::Io { path: path.display().to_string(), source }
}

/// A file that is read at offsets, never mapped: a truncated file is then an error and not a signal.
#[derive(Debug)]
pub struct Blob {
    /// Shown in messages.
    pub name: String,
    /// Length in bytes when opened.
    pub len: u64,
    data: BlobData,
}

#[derive(Debug)]
enum BlobData {
    File(File),
    Bytes(&'static [u8]),
}

impl Blob {
    /// Fills `buffer` from `offset`.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        match &self.data {
            BlobData::File(file) => file.read_exact_at(buffer, offset),
            BlobData::Bytes(bytes) => {
                let start = usize::try_from(offset).ok();
                let range = start.and_then(|start| bytes.get(start..start.checked_add(buffer.len())?));
                let range = range.ok_or(std::io::ErrorKind::UnexpectedEof)?;
                buffer.copy_from_slice(range);
                Ok(())
            }
        }
    }
}
