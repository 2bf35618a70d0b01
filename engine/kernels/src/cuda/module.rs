//! Kernels by file and name. Embedded binaries are loaded; embedded sources are compiled once and kept on disk.

use super::device::Device;
use super::error::{CudaError, Named};
use super::nvrtc;
use cudarc::driver::result;
use cudarc::driver::sys;
use std::collections::HashMap;
use std::ffi::CString;

/// What the build left of a `.cu` file.
#[expect(dead_code, reason = "a build has one kind only: it found a compiler or it did not")]
#[cfg_attr(test, derive(Debug))]
pub(super) enum Image {
    /// A fat binary made by nvcc.
    Binary(&'static [u8]),
    /// Its text.
    Source(&'static str),
}

include!(concat!(env!("OUT_DIR"), "/images.rs"));

/// Loaded modules of one device, by file name.
#[derive(Default)]
pub(super) struct Modules {
    /// Never unloaded: they live as long as the device's context.
    loaded: HashMap<&'static str, sys::CUmodule>,
}

impl Modules {
    fn module(&mut self, device: &Device, file: &str) -> Result<sys::CUmodule, CudaError> {
        if let Some(module) = self.loaded.get(file) {
            return Ok(*module);
        }
        let unknown = || CudaError::Kernel { kernel: file.to_owned(), message: "is not part of this build".into() };
        let (name, image) = IMAGES.iter().find(|(name, _)| *name == file).ok_or_else(unknown)?;
        let compiled;
        let binary = match image {
            Image::Binary(binary) => binary,
            Image::Source(source) => {
                compiled = nvrtc::compile(device.properties(), name, source, HEADERS)?;
                compiled.as_slice()
            }
        };
        // SAFETY: a complete fat binary or cubin, whose header tells its length; the driver copies what it needs.
        let module = unsafe { result::module::load_data(binary.as_ptr().cast()) }.named("cuModuleLoadData")?;
        self.loaded.insert(name, module);
        Ok(module)
    }
}

/// A kernel of a device, ready to launch.
#[derive(Clone)]
pub struct Kernel {
    pub(super) function: sys::CUfunction,
    pub(super) device: Device,
    /// Bytes of its one parameter.
    pub(super) parameter: usize,
}

// SAFETY: a function handle may be used from any thread; modules are never unloaded.
unsafe impl Send for Kernel {}

impl Device {
    /// The kernel `name` of `cuda/FILE.cu`, allowed to use `shared` bytes of dynamic shared memory.
    ///
    /// # Errors
    /// If the build has no such kernel, or this device does not have that much shared memory.
    pub fn kernel(&self, file: &str, name: &str, shared: u32) -> Result<Kernel, CudaError> {
        self.make_current()?;
        let module = self.modules().module(self, file)?;
        let failed = |message: String| CudaError::Kernel { kernel: format!("{file}::{name}"), message };
        let c_name = CString::new(name).map_err(|error| failed(error.to_string()))?;
        // SAFETY: the module is loaded.
        let function = unsafe { result::module::get_function(module, c_name) };
        let function = function.named("cuModuleGetFunction").map_err(|error| failed(error.to_string()))?;
        let (mut offset, mut parameter) = (0, 0);
        // SAFETY: the function is loaded; both places are ours.
        unsafe { sys::cuFuncGetParamInfo(function, 0, &mut offset, &mut parameter) }
            .result()
            .named("cuFuncGetParamInfo")?;
        if shared > self.properties().shared_per_block {
            return Err(failed(format!(
                "needs {shared} bytes of shared memory; a block of this device has {}",
                self.properties().shared_per_block
            )));
        }
        if shared > 48 << 10 {
            let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is loaded.
            unsafe { result::function::set_function_attribute(function, attribute, shared as i32) }
                .named("cuFuncSetAttribute")?;
        }
        Ok(Kernel { function, device: self.clone(), parameter })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_is_part_of_the_build() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda");
        let mut files: Vec<String> = (std::fs::read_dir(folder).unwrap().flatten())
            .filter_map(|entry| entry.file_name().into_string().ok()?.strip_suffix(".cu").map(str::to_owned))
            .collect();
        files.sort();
        let built: Vec<&str> = IMAGES.iter().map(|(name, _)| *name).collect();
        assert_eq!(built, files);
    }
}
