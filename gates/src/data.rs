//! Data sets that are built into Atlas, and files read in their place.

use std::path::{Path, PathBuf};
use thiserror::Error;

/// Texts for perplexity, and the source of prompts of any length.
pub const PERPLEXITY: &str = include_str!("../data/perplexity.txt");
const TOOL_CALLS: &str = include_str!("../data/tool_calls.jsonl");
const QA: &str = include_str!("../data/qa.jsonl");

/// A file may not be longer than this.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// A data set that cannot be read or does not say what it should.
#[derive(Debug, Error)]
pub enum DataError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The content is wrong.
    #[error("{origin}{}: {message}", line.map(|line| format!(":{line}")).unwrap_or_default())]
    Content {
        /// File or built-in name.
        origin: String,
        /// Line, from 1.
        line: Option<usize>,
        /// What is wrong.
        message: String,
    },
}

impl DataError {
    /// A content error at a line.
    pub fn content(origin: &str, line: impl Into<Option<usize>>, message: impl Into<String>) -> Self {
        Self::Content { origin: origin.into(), line: line.into(), message: message.into() }
    }
}

/// The text of a data set: one of the built-in names (`perplexity`, `tool_calls`, `qa`), else a file.
pub fn load(name: &str) -> Result<String, DataError> {
    match name {
        "perplexity" => Ok(PERPLEXITY.into()),
        "tool_calls" => Ok(TOOL_CALLS.into()),
        "qa" => Ok(QA.into()),
        path => read(Path::new(path)),
    }
}

/// Reads a file of at most 256 MiB as UTF-8.
pub fn read(path: &Path) -> Result<String, DataError> {
    let fail = |source| DataError::Io { path: path.into(), source };
    let size = std::fs::metadata(path).map_err(fail)?.len();
    if size > MAX_FILE_BYTES {
        let message = format!("is {size} bytes long; at most {MAX_FILE_BYTES} are read");
        return Err(DataError::content(&path.display().to_string(), None, message));
    }
    std::fs::read_to_string(path).map_err(fail)
}
