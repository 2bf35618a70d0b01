//! Compiles `cuda/*.cu` into fat binaries that are embedded in the crate.
//!
//! With `nvcc` (`ATLAS_NVCC`, `CUDA_HOME`, the `PATH`, `/usr/local/cuda`) every kernel is compiled ahead of time. Without
//! it, or with `ATLAS_NVCC=none`, the sources are embedded and compiled once on the machine that runs them.
//! `ATLAS_CUDA_TARGETS` (`80,90a,120a,121a` unless told) names the architectures; PTX is added for all others.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::{env, fs, thread};

const TARGETS: &str = "80,90a,120a,121a";
/// No contraction: a formula has the same bits in every kernel that uses it.
const FLAGS: [&str; 6] = ["-std=c++17", "-O3", "-fmad=false", "-Xptxas", "-warn-spills", "-fatbin"];
/// ptxas gives up overlapping wgmma instructions with a warning: right results at a fraction of the speed.
const SERIALISED: &str = "C7513";

fn main() {
    for name in ["ATLAS_NVCC", "ATLAS_CUDA_TARGETS", "CUDA_HOME"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    println!("cargo::rerun-if-changed=cuda");
    let (kernels, headers) = sources();
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let nvcc = find_nvcc();
    if let Some(nvcc) = &nvcc {
        compile(nvcc, &kernels, &headers, &out);
    } else {
        println!("cargo::warning=nvcc was not found: CUDA kernels will be compiled by NVRTC where they first run");
    }
    let mut code =
        String::from("/// The kernels, by the name of their file.\npub(super) const IMAGES: &[(&str, Image)] = &[\n");
    for source in &kernels {
        let name = stem(source);
        let image = match nvcc {
            Some(_) => format!("Image::Binary(include_bytes!({:?}))", out.join(format!("{name}.fatbin"))),
            None => format!("Image::Source(include_str!({source:?}))"),
        };
        writeln!(code, "    ({name:?}, {image}),").expect("a string can be written");
    }
    code.push_str("];\n/// The headers that they include.\npub(super) const HEADERS: &[(&str, &str)] = &[\n");
    for header in headers.iter().filter(|_| nvcc.is_none()) {
        let name = header.file_name().and_then(|name| name.to_str()).expect("names of headers are ASCII");
        writeln!(code, "    ({name:?}, include_str!({header:?})),").expect("a string can be written");
    }
    code.push_str("];\n");
    fs::write(out.join("images.rs"), code).expect("OUT_DIR can be written");
}

/// The kernels and the headers of `cuda/`, sorted.
fn sources() -> (Vec<PathBuf>, Vec<PathBuf>) {
    let folder = Path::new(&env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR")).join("cuda");
    let entries = fs::read_dir(&folder).expect("the folder of kernels is part of the source");
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    let with = |extension: &str| {
        files.iter().filter(|file| file.extension().is_some_and(|e| e == extension)).cloned().collect()
    };
    (with("cu"), with("cuh"))
}

fn stem(path: &Path) -> &str {
    path.file_stem().and_then(|stem| stem.to_str()).expect("names of kernels are ASCII")
}

fn find_nvcc() -> Option<PathBuf> {
    if let Some(named) = env::var_os("ATLAS_NVCC") {
        return (named != "none").then(|| named.into());
    }
    let home = env::var_os("CUDA_HOME").map(|home| Path::new(&home).join("bin"));
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = home.into_iter().chain(env::split_paths(&path)).chain([PathBuf::from("/usr/local/cuda/bin")]);
    folders.map(|folder| folder.join("nvcc")).find(|file| file.is_file())
}

/// Compiles every file that changed, as many at a time as cargo allows.
fn compile(nvcc: &Path, kernels: &[PathBuf], headers: &[PathBuf], out: &Path) {
    let targets = env::var("ATLAS_CUDA_TARGETS").unwrap_or_else(|_| TARGETS.to_owned());
    let read = |file: &PathBuf| fs::read_to_string(file).expect("sources are text");
    let common = format!("{nvcc:?} {FLAGS:?} {targets} {}", headers.iter().map(read).collect::<String>());
    let jobs = env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(1);
    let queue = Mutex::new(kernels.iter().collect::<VecDeque<_>>());
    let next = || queue.lock().ok().and_then(|mut queue| queue.pop_front());
    thread::scope(|scope| {
        for _ in 0..jobs.min(kernels.len()) {
            scope.spawn(|| {
                while let Some(source) = next() {
                    let inputs = format!("{common}{}", read(source));
                    let (binary, stamp) = (out.join(stem(source)).with_extension("fatbin"), out.join(stem(source)));
                    if !binary.exists() || fs::read_to_string(&stamp).ok().as_ref() != Some(&inputs) {
                        compile_one(nvcc, source, &targets, &binary);
                        fs::write(stamp, inputs).expect("OUT_DIR can be written");
                    }
                }
            });
        }
    });
}

fn compile_one(nvcc: &Path, source: &Path, targets: &str, binary: &Path) {
    let mut command = Command::new(nvcc);
    command.args(FLAGS).arg("-o").arg(binary).arg(source);
    for target in targets.split(',') {
        command.arg("-gencode").arg(format!("arch=compute_{target},code=sm_{target}"));
    }
    command.arg("-gencode").arg("arch=compute_80,code=compute_80");
    let output = command.output().unwrap_or_else(|error| panic!("{} cannot be run: {error}", nvcc.display()));
    let log = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() || log.contains(SERIALISED) {
        panic!("{} does not compile (ATLAS_NVCC=none leaves kernels to NVRTC):\n{log}", source.display());
    }
}
