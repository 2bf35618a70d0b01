//! One device: its context, its stream and its memory.

use super::error::{CudaError, Named};
use super::module::Modules;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

/// What a launch needs to know of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Properties {
    /// Marketing name.
    pub name: String,
    /// Compute capability, as in (9, 0).
    pub capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Most shared memory of a thread block, in bytes.
    pub shared_per_block: u32,
    /// Shared memory of a multiprocessor, in bytes.
    pub shared_per_multiprocessor: u32,
    /// Bytes of L2 cache.
    pub l2_bytes: u32,
    /// Bytes of memory.
    pub memory_bytes: usize,
}

impl Properties {
    /// Whether kernels may use `wgmma` and bulk copies (sm_90a).
    pub fn has_wgmma(&self) -> bool {
        self.capability == (9, 0)
    }
}

/// A stream of one device; clones share it. Everything runs on it in order.
#[derive(Clone)]
pub struct Device {
    context: Arc<Context>,
    stream: Arc<Stream>,
}

/// What is shared by all streams of a device: kept for the life of the process, since making it takes long.
struct Context {
    ordinal: usize,
    context: sys::CUcontext,
    properties: Properties,
    modules: Mutex<Modules>,
}

static CONTEXTS: Mutex<Vec<Arc<Context>>> = Mutex::new(Vec::new());

// SAFETY: driver handles may be used from any thread once the context is current there, which every method sees to.
unsafe impl Send for Context {}
// SAFETY: as above; the driver serialises calls on one context itself.
unsafe impl Sync for Context {}

impl Context {
    /// The context of a device that exists.
    fn of(ordinal: usize) -> Result<Arc<Self>, CudaError> {
        let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = contexts.iter().find(|context| context.ordinal == ordinal) {
            return Ok(context.clone());
        }
        let device = result::device::get(ordinal as i32).named("cuDeviceGet")?;
        let properties = properties(device).named("cuDeviceGetAttribute")?;
        if properties.capability < (8, 0) {
            let (major, minor) = properties.capability;
            return Err(CudaError::Unavailable(format!(
                "{} has compute capability {major}.{minor}; kernels need 8.0 or later",
                properties.name
            )));
        }
        // SAFETY: `device` is valid; the context is never released.
        let context = unsafe { result::primary_ctx::retain(device) }.named("cuDevicePrimaryCtxRetain")?;
        let context = Arc::new(Self { ordinal, context, properties, modules: Mutex::default() });
        contexts.push(context.clone());
        Ok(context)
    }

    fn make_current(&self) -> Result<(), CudaError> {
        // SAFETY: the context is never released.
        unsafe { result::ctx::set_current(self.context) }.named("cuCtxSetCurrent")
    }
}

struct Stream {
    context: Arc<Context>,
    stream: sys::CUstream,
}

// SAFETY: as for `Context`.
unsafe impl Send for Stream {}
// SAFETY: as for `Context`.
unsafe impl Sync for Stream {}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.make_current().is_ok() {
            // SAFETY: the stream is ours; memory and kernels that used it hold a clone of the device and are gone.
            let _ = unsafe { result::stream::destroy(self.stream) };
        }
    }
}

/// How many devices there are, or why there is none.
pub fn device_count() -> Result<usize, CudaError> {
    // SAFETY: looks for the driver library and closes it again.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::Unavailable(
            "no CUDA driver: libcuda.so.1 is not installed (nvidia-smi shows whether the driver works)".into(),
        ));
    }
    let count = result::init().and_then(|()| result::device::get_count());
    match count.named("cuInit") {
        Ok(0) | Err(_) if no_device(&count) => Err(CudaError::Unavailable("the CUDA driver sees no device".into())),
        Ok(count) => Ok(count as usize),
        Err(error) => Err(error),
    }
}

fn no_device(count: &Result<i32, DriverError>) -> bool {
    matches!(count, Ok(0) | Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)))
}

impl Device {
    /// A new stream of the device with this index.
    ///
    /// # Errors
    /// [`CudaError::Unavailable`] without a driver or such a device.
    pub fn open(ordinal: usize) -> Result<Self, CudaError> {
        let count = device_count()?;
        if ordinal >= count {
            return Err(CudaError::Unavailable(format!("device {ordinal} was asked for, but there are {count}")));
        }
        let context = Context::of(ordinal)?;
        context.make_current()?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking).named("cuStreamCreate")?;
        Ok(Self { stream: Arc::new(Stream { context: context.clone(), stream }), context })
    }

    /// What it is.
    pub fn properties(&self) -> &Properties {
        &self.context.properties
    }

    pub(super) fn stream(&self) -> sys::CUstream {
        self.stream.stream
    }

    pub(super) fn modules(&self) -> std::sync::MutexGuard<'_, Modules> {
        self.context.modules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the context current on this thread. Every call of the driver comes after it.
    pub(super) fn make_current(&self) -> Result<(), CudaError> {
        self.context.make_current()
    }

    /// Free and total bytes of memory.
    pub fn memory(&self) -> Result<(usize, usize), CudaError> {
        self.make_current()?;
        result::mem_get_info().named("cuMemGetInfo")
    }

    /// Waits until everything launched so far is done.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.make_current()?;
        // SAFETY: the stream is ours.
        unsafe { result::stream::synchronize(self.stream.stream) }.named("cuStreamSynchronize")
    }

    /// Tells a profiler that waits for it to begin or to end.
    pub fn set_profiling(&self, on: bool) -> Result<(), CudaError> {
        self.make_current()?;
        // SAFETY: these take nothing and do nothing without a profiler.
        unsafe { if on { sys::cuProfilerStart() } else { sys::cuProfilerStop() } }.result().named("cuProfilerStart")
    }

    /// `bytes` of zeros.
    pub fn zeros(&self, bytes: usize) -> Result<Memory, CudaError> {
        let memory = self.alloc(bytes)?;
        self.clear(&memory)?;
        Ok(memory)
    }

    /// `bytes` of memory with any contents.
    pub fn alloc(&self, bytes: usize) -> Result<Memory, CudaError> {
        self.make_current()?;
        let size = bytes.max(1);
        // SAFETY: the pointer is freed once, by `Memory`.
        let address = match unsafe { result::malloc_sync(size) } {
            Ok(address) => address,
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                let (free, total) = self.memory()?;
                return Err(CudaError::OutOfMemory { bytes, free, total });
            }
            Err(error) => return Err(error).named("cuMemAlloc"),
        };
        Ok(Memory { device: self.clone(), address, bytes })
    }

    /// A copy of `data`.
    pub fn upload<T: Plain>(&self, data: &[T]) -> Result<Memory, CudaError> {
        let memory = self.alloc(size_of_val(data))?;
        self.write(&memory, 0, data)?;
        Ok(memory)
    }

    /// Fills memory with zeros.
    pub fn clear(&self, memory: &Memory) -> Result<(), CudaError> {
        self.fill(memory, 0)
    }

    /// Fills memory with a byte.
    pub fn fill(&self, memory: &Memory, byte: u8) -> Result<(), CudaError> {
        self.make_current()?;
        // SAFETY: the range is inside the allocation.
        unsafe { result::memset_d8_async(memory.address, byte, memory.bytes, self.stream.stream) }
            .named("cuMemsetD8Async")
    }

    /// Copies `data` to `memory` at `offset` bytes and waits.
    ///
    /// # Panics
    /// If it does not fit.
    pub fn write<T: Plain>(&self, memory: &Memory, offset: usize, data: &[T]) -> Result<(), CudaError> {
        let bytes = size_of_val(data);
        assert!(offset + bytes <= memory.bytes, "{bytes} bytes at {offset} of {}", memory.bytes);
        self.make_current()?;
        // SAFETY: the range was checked, and the data live until the copy is done.
        unsafe { result::memcpy_htod_async(memory.address + offset as u64, data, self.stream.stream) }
            .named("cuMemcpyHtoDAsync")?;
        self.synchronize()
    }

    /// Starts a copy from page-locked memory; `data` must stay as it is until the stream has passed.
    pub(super) fn write_async(&self, memory: &Memory, data: &Pinned, bytes: usize) -> Result<(), CudaError> {
        assert!(bytes <= memory.bytes && bytes <= data.bytes, "{bytes} bytes fit both sides");
        // SAFETY: the range was checked; the caller keeps the pinned memory unchanged.
        let slice = unsafe { std::slice::from_raw_parts(data.address as *const u8, bytes) };
        // SAFETY: as above.
        unsafe { result::memcpy_htod_async(memory.address, slice, self.stream.stream) }.named("cuMemcpyHtoDAsync")
    }

    /// Starts a copy of the first `bytes` of `from` into page-locked memory, whole after [`Self::synchronize`].
    ///
    /// # Panics
    /// If they are not all there.
    pub fn read_async(&self, out: &mut Pinned, from: &Memory, bytes: usize) -> Result<(), CudaError> {
        assert!(bytes <= out.bytes && bytes <= from.bytes, "{bytes} bytes of {} to {}", from.bytes, out.bytes);
        // SAFETY: the ranges were checked; the borrow ends early, but pinned memory is plain bytes.
        let slice = unsafe { std::slice::from_raw_parts_mut(out.address.cast::<u8>(), bytes) };
        // SAFETY: as above.
        unsafe { result::memcpy_dtoh_async(slice, from.address, self.stream.stream) }.named("cuMemcpyDtoHAsync")
    }

    /// Waits for everything and copies `out.len()` elements from `memory` at `offset` bytes.
    ///
    /// # Panics
    /// If they are not all there.
    pub fn read<T: Plain>(&self, memory: &Memory, offset: usize, out: &mut [T]) -> Result<(), CudaError> {
        let bytes = size_of_val(out);
        assert!(offset + bytes <= memory.bytes, "{bytes} bytes at {offset} of {}", memory.bytes);
        self.make_current()?;
        // SAFETY: the range was checked, and the copy is done before `out` is given back.
        unsafe { result::memcpy_dtoh_async(out, memory.address + offset as u64, self.stream.stream) }
            .named("cuMemcpyDtoHAsync")?;
        self.synchronize()
    }

    /// Copies all of `from` to `to`, asynchronously.
    ///
    /// # Panics
    /// If it does not fit.
    pub fn copy(&self, to: &Memory, from: &Memory) -> Result<(), CudaError> {
        assert!(from.bytes <= to.bytes, "{} bytes do not fit {}", from.bytes, to.bytes);
        self.make_current()?;
        // SAFETY: the range was checked.
        unsafe { result::memcpy_dtod_async(to.address, from.address, from.bytes, self.stream.stream) }
            .named("cuMemcpyDtoDAsync")
    }

    /// Page-locked host memory of zeros.
    pub fn pinned(&self, bytes: usize) -> Result<Pinned, CudaError> {
        self.make_current()?;
        let bytes = bytes.max(1);
        // SAFETY: freed once, by `Pinned`; zeroed before anything reads it.
        let address = unsafe {
            let address = result::malloc_host(bytes, 0).named("cuMemHostAlloc")?;
            std::ptr::write_bytes(address.cast::<u8>(), 0, bytes);
            address
        };
        Ok(Pinned { device: self.clone(), address, bytes })
    }
}

fn properties(device: sys::CUdevice) -> Result<Properties, DriverError> {
    // SAFETY: `device` is a valid handle in all calls.
    let attribute = |which| unsafe { result::device::get_attribute(device, which) }.map(|value| value as u32);
    Ok(Properties {
        name: result::device::get_name(device)?,
        capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared_per_block: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        shared_per_multiprocessor: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
        l2_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
        // SAFETY: as above.
        memory_bytes: unsafe { result::device::total_mem(device) }?,
    })
}

/// Types that are plain bits on host and device.
///
/// # Safety
/// Any bit pattern is a value and there is no padding.
pub unsafe trait Plain: Copy {}
// SAFETY: numbers have no padding and no invalid bits.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}

/// Device memory, freed when dropped.
pub struct Memory {
    device: Device,
    address: u64,
    bytes: usize,
}

impl Memory {
    /// Its address on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.device.make_current().is_ok() {
            // SAFETY: allocated by `Device::alloc`, freed here only; the driver waits for pending work.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

/// Page-locked host memory, freed when dropped.
pub struct Pinned {
    device: Device,
    address: *mut c_void,
    bytes: usize,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Its address, for kernels too: host and device share one address space.
    pub(super) fn address(&self) -> u64 {
        self.address as u64
    }

    /// The first `count` elements.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn as_slice<T: Plain>(&self, count: usize) -> &[T] {
        assert!(count * size_of::<T>() <= self.bytes, "{count} elements in {} bytes", self.bytes);
        // SAFETY: the range was checked, pages are aligned for every `Plain`, and any bits are a value.
        unsafe { std::slice::from_raw_parts(self.address.cast(), count) }
    }

    /// The first `count` elements, for writing.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn as_mut_slice<T: Plain>(&mut self, count: usize) -> &mut [T] {
        assert!(count * size_of::<T>() <= self.bytes, "{count} elements in {} bytes", self.bytes);
        // SAFETY: as above, and `self` is borrowed for as long.
        unsafe { std::slice::from_raw_parts_mut(self.address.cast(), count) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.device.make_current().is_ok() {
            // SAFETY: allocated by `Device::pinned`, freed here only.
            let _ = unsafe { result::free_host(self.address) };
        }
    }
}
