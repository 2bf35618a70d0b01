//! Recipe files, read under the limits that parsing has.

use atlas_schemas::recipe::{Parsed, Strictness, parse};
use atlas_schemas::yaml::{Diagnostic, MAX_BYTES, Span, too_long};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Reads a regular file of at most [`MAX_BYTES`]. A longer one is refused by its length, unread.
///
/// # Errors
/// One diagnostic without a place in the file.
fn read_file(path: &Path) -> Result<Vec<u8>, Box<Diagnostic>> {
    let name = path.display().to_string();
    let failed = |message: String| Box::new(Diagnostic::error(&name, Span::default(), message));
    let metadata = std::fs::metadata(path).map_err(|error| failed(format!("cannot be read: {error}")))?;
    if metadata.is_dir() {
        return Err(Box::new(
            Diagnostic::error(&name, Span::default(), "this is a folder, not a recipe").help("name a .yaml file in it"),
        ));
    }
    if !metadata.is_file() {
        return Err(failed("this is not a regular file".to_owned()));
    }
    if metadata.len() > MAX_BYTES as u64 {
        return Err(Box::new(too_long(&name, metadata.len())));
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| failed(format!("cannot be opened: {error}")))?;
    // The file may have grown since; one byte beyond the limit is enough to know.
    file.take(MAX_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| failed(format!("cannot be read: {error}")))?;
    Ok(bytes)
}

/// Reads and judges a file.
pub(crate) fn validate_file(path: &Path, strictness: Strictness) -> Parsed {
    match read_file(path) {
        Ok(bytes) => validate_bytes(&path.display().to_string(), &bytes, strictness),
        Err(diagnostic) => Parsed { recipe: None, diagnostics: vec![*diagnostic], strict: false },
    }
}

/// Judges a recipe's bytes.
pub(crate) fn validate_bytes(name: &str, bytes: &[u8], strictness: Strictness) -> Parsed {
    parse(name, bytes, strictness)
}
