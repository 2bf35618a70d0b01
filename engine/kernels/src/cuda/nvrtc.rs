//! Builds without nvcc embed the kernels' sources: NVRTC compiles a file once, and the result is kept on disk under a
//! name that is a hash of everything that went into it.

use super::device::Properties;
use super::error::CudaError;
use cudarc::nvrtc::{result, sys};
use sha2::{Digest, Sha256};
use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};
use std::{env, fs, process};

/// The machine code of `source` for this device.
pub(super) fn compile(
    device: &Properties,
    name: &str,
    source: &str,
    headers: &[(&str, &str)],
) -> Result<Vec<u8>, CudaError> {
    let options = options(device.capability);
    let cache = cache_folder().map(|folder| folder.join(cache_name(name, source, headers, &options)));
    if let Some(binary) = cache.as_deref().and_then(|file| fs::read(file).ok()) {
        return Ok(binary);
    }
    let binary = build(name, source, headers, &options)
        .map_err(|message| CudaError::Kernel { kernel: name.to_owned(), message })?;
    if let Some(file) = cache {
        // A cache that cannot be written only costs time at the next start.
        let _ = store(&file, &binary);
    }
    Ok(binary)
}

/// As build.rs compiles, for one architecture.
fn options((major, minor): (u32, u32)) -> Vec<String> {
    // These have instructions of their own, which the suffix unlocks.
    let suffix = if matches!((major, minor), (9, 0) | (12, 0 | 1)) { "a" } else { "" };
    let architecture = format!("--gpu-architecture=sm_{major}{minor}{suffix}");
    // Functions without a mark (constexpr helpers) are for the device: there is no host side here.
    [&architecture, "-std=c++17", "--fmad=false", "-default-device"].map(str::to_owned).to_vec()
}

fn cache_folder() -> Option<PathBuf> {
    let base = env::var_os("XDG_CACHE_HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let base = base.or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))?;
    Some(base.join("atlas").join("kernels"))
}

fn cache_name(name: &str, source: &str, headers: &[(&str, &str)], options: &[String]) -> String {
    let mut hash = Sha256::new();
    let mut add = |text: &str| {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    };
    add(source);
    headers.iter().for_each(|(name, text)| {
        add(name);
        add(text);
    });
    options.iter().for_each(|option| add(option));
    let hex: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{name}-{hex}.cubin")
}

/// Writes a file that is either whole or absent.
fn store(file: &Path, binary: &[u8]) -> std::io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let partial = file.with_extension(format!("{}.partial", process::id()));
    fs::write(&partial, binary)?;
    fs::rename(&partial, file)
}

fn build(name: &str, source: &str, headers: &[(&str, &str)], options: &[String]) -> Result<Vec<u8>, String> {
    // SAFETY: looks for the library and closes it again.
    if !unsafe { sys::is_culib_present() } {
        return Err("this build carries sources only, and libnvrtc is not installed to compile them: install the \
                    CUDA 13 runtime compiler, or build Atlas with nvcc on the PATH"
            .into());
    }
    let c_string = |text: &str| CString::new(text).map_err(|error| error.to_string());
    let (source, name) = (c_string(source)?, c_string(&format!("{name}.cu"))?);
    let names: Vec<CString> = headers.iter().map(|(name, _)| c_string(name)).collect::<Result<_, _>>()?;
    let texts: Vec<CString> = headers.iter().map(|(_, text)| c_string(text)).collect::<Result<_, _>>()?;
    let pointers = |strings: &[CString]| strings.iter().map(|string| string.as_ptr()).collect::<Vec<_>>();
    let (name_pointers, text_pointers) = (pointers(&names), pointers(&texts));
    let mut program = std::ptr::null_mut();
    // SAFETY: all strings outlive the program, which `Program` destroys.
    let created = unsafe {
        sys::nvrtcCreateProgram(
            &mut program,
            source.as_ptr(),
            name.as_ptr(),
            headers.len() as i32,
            text_pointers.as_ptr(),
            name_pointers.as_ptr(),
        )
    };
    created.result().map_err(|error| format!("nvrtcCreateProgram: {error:?}"))?;
    let program = Program(program);
    // SAFETY: the program is valid; options are copied.
    if let Err(error) = unsafe { result::compile_program(program.0, options) } {
        return Err(format!("NVRTC: {error:?}\n{}", program.log()));
    }
    program.binary()
}

struct Program(sys::nvrtcProgram);

impl Program {
    fn log(&self) -> String {
        // SAFETY: the program is valid; the log ends with a zero.
        match unsafe { result::get_program_log(self.0) } {
            // SAFETY: as above.
            Ok(log) if log.last() == Some(&0) => unsafe { CStr::from_ptr(log.as_ptr()) }.to_string_lossy().into_owned(),
            _ => String::new(),
        }
    }

    fn binary(&self) -> Result<Vec<u8>, String> {
        let mut size = 0;
        // SAFETY: the program is valid and compiled for a real architecture.
        unsafe { sys::nvrtcGetCUBINSize(self.0, &mut size) }
            .result()
            .map_err(|e| format!("nvrtcGetCUBINSize: {e:?}"))?;
        let mut binary = vec![0u8; size];
        // SAFETY: the buffer has the size that was asked for.
        unsafe { sys::nvrtcGetCUBIN(self.0, binary.as_mut_ptr().cast()) }
            .result()
            .map_err(|error| format!("nvrtcGetCUBIN: {error:?}"))?;
        Ok(binary)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created by us, destroyed once.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_name_covers_everything() {
        let name = |source, header, option: &str| cache_name("k", source, &[("h", header)], &[option.to_owned()]);
        let names =
            [name("a", "b", "c"), name("A", "b", "c"), name("a", "B", "c"), name("a", "b", "C"), name("ab", "", "c")];
        for (i, one) in names.iter().enumerate() {
            assert!(names[i + 1..].iter().all(|other| other != one));
        }
    }

    /// The sources are written for nvcc and for NVRTC: each is compiled here for one of the architectures, in turn.
    /// `tests/run` provides the library; it needs no GPU.
    #[test]
    fn kernels_compile_where_they_first_run() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda");
        let mut sources = Vec::new();
        let mut headers = Vec::new();
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            match name.rsplit_once('.') {
                Some((stem, "cu")) => sources.push((stem.to_owned(), fs::read_to_string(entry.path()).unwrap())),
                Some((_, "cuh")) => headers.push((name.clone(), fs::read_to_string(entry.path()).unwrap())),
                _ => {}
            }
        }
        sources.sort();
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        let targets = [(9, 0), (12, 1), (8, 0), (12, 0)];
        std::thread::scope(|scope| {
            for half in 0..2 {
                let (sources, headers) = (&sources, &headers);
                scope.spawn(move || {
                    for (index, (name, source)) in sources.iter().enumerate().filter(|(index, _)| index % 2 == half) {
                        let options = options(targets[index / 2 % 4]);
                        let binary = build(name, source, headers, &options).unwrap_or_else(|e| panic!("{name}: {e}"));
                        assert!(binary.starts_with(b"\x7fELF"), "{name}");
                    }
                });
            }
        });
    }

    #[test]
    fn architectures_with_instructions_of_their_own_get_their_suffix() {
        assert_eq!(options((9, 0))[0], "--gpu-architecture=sm_90a");
        assert_eq!(options((12, 1))[0], "--gpu-architecture=sm_121a");
        assert_eq!(options((8, 6))[0], "--gpu-architecture=sm_86");
    }

    #[test]
    fn a_stored_file_is_whole_and_replaces_an_older_one() {
        let folder = env::temp_dir().join(format!("atlas-kernels-{}", process::id()));
        let file = folder.join("a.cubin");
        store(&file, b"one").unwrap();
        store(&file, b"two").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"two");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(folder).unwrap();
    }
}
