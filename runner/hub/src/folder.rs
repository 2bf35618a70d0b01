//! Plain folders, as `huggingface-cli download --local-dir` makes them: used where they are.

use crate::digest::Digest;
use crate::disk::FileSystem;
use crate::error::HubError;
use crate::events::Observer;
use crate::files::model_files;
use crate::manifest::{Expected, Manifest, Place, facts, verify};
use std::path::Path;

/// Where `huggingface_hub` notes what it fetched into a folder.
const NOTES: &str = ".cache/huggingface/download";

/// What is known about a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Adopted {
    /// Every file that the hub named a digest for has it.
    Verified(Manifest),
    /// Nobody noted what its files should be; there is nothing to compare them with.
    Unknown,
}

/// Verifies a folder of the hub once; later calls read nothing. `own_cache` is for folders that cannot be written to.
pub fn adopt(
    folder: &Path,
    own_cache: Option<&Path>,
    files: &dyn FileSystem,
    observer: &dyn Observer,
) -> Result<Adopted, HubError> {
    let folder = &std::fs::canonicalize(folder).map_err(HubError::io(folder))?;
    let paths = model_files(folder);
    if !paths.iter().any(|path| note(folder, path).is_some()) {
        return Ok(Adopted::Unknown);
    }
    let place = Place::new(folder.join(".cache/atlas/manifest.json"), own_cache);
    let old = place.load();
    let (manifest, news) = verify(folder, paths, old.as_ref(), |path| expected(folder, path), observer)?;
    if news {
        place.save(files, &manifest)?;
    }
    Ok(Adopted::Verified(manifest))
}

/// Weights are never edited by hand; a configuration that is younger than its note may have been.
fn expected(folder: &Path, path: &str) -> Expected {
    let Some((digest, noted)) = note(folder, path) else { return Expected::Unknown };
    let younger = facts(&folder.join(path)).is_ok_and(|(_, modified)| modified as f64 / 1e9 - 1.0 > noted);
    if younger && !path.ends_with(".safetensors") { Expected::Once(digest) } else { Expected::Exactly(digest) }
}

/// The digest that a file had when it was fetched, and when that was: lines two and three of its note.
fn note(folder: &Path, path: &str) -> Option<(Digest, f64)> {
    let note = folder.join(NOTES).join(format!("{path}.metadata"));
    let small = std::fs::metadata(&note).is_ok_and(|facts| facts.len() <= 4096);
    let text = small.then(|| std::fs::read_to_string(&note).ok())??;
    let mut lines = text.lines().skip(1);
    Some((Digest::parse(lines.next()?.trim())?, lines.next()?.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Disk;
    use crate::events::{Event, Silent};
    use std::sync::atomic::{AtomicU32, Ordering};

    struct Hashed(AtomicU32);

    impl Observer for Hashed {
        fn event(&self, event: Event<'_>) {
            if matches!(event, Event::Hashing { .. }) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn write(path: &Path, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn local_folders_are_verified_once_and_damage_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let adopt = |observer: &dyn Observer| adopt(folder, None, &Disk, observer);
        write(&folder.join("config.json"), "hello\n");
        write(&folder.join("model.safetensors"), "hello\n");
        assert_eq!(adopt(&Silent).unwrap(), Adopted::Unknown);

        let sha = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        let git = "ce013625030ba8dba906f756967f9e9ca394464a";
        let far = "99999999999.5";
        write(&folder.join(NOTES).join("model.safetensors.metadata"), &format!("c\n{sha}\n{far}\n"));
        write(&folder.join(NOTES).join("config.json.metadata"), &format!("c\n{git}\n{far}\n"));
        let hashed = Hashed(AtomicU32::new(0));
        assert!(matches!(adopt(&hashed).unwrap(), Adopted::Verified(manifest) if manifest.files.len() == 2));
        assert_eq!(hashed.0.load(Ordering::Relaxed), 2);
        adopt(&hashed).unwrap();
        assert_eq!(hashed.0.load(Ordering::Relaxed), 2, "nothing is hashed twice");

        write(&folder.join("model.safetensors"), "hellO\n");
        assert!(matches!(adopt(&Silent), Err(HubError::Damaged { .. })));
        write(&folder.join("model.safetensors"), "hello\n");
        // Edited by its owner after the download.
        write(&folder.join(NOTES).join("config.json.metadata"), &format!("c\n{git}\n1.0\n"));
        write(&folder.join("config.json"), "edited\n");
        assert!(matches!(adopt(&Silent).unwrap(), Adopted::Verified(_)));
    }
}
