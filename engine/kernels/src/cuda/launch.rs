//! Launching kernels, capturing launches as graphs, and timing them.

use super::device::Device;
use super::error::{CudaError, Named};
use super::module::Kernel;
use cudarc::driver::result;
use cudarc::driver::sys;
use std::ffi::c_void;

/// Shape of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// Thread blocks.
    pub grid: (u32, u32, u32),
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory of a block.
    pub shared: u32,
    /// Thread blocks of a cluster along x; 1 is none.
    pub cluster: u32,
}

impl Launch {
    /// Without dynamic shared memory and clusters.
    pub fn new(grid: (u32, u32, u32), threads: u32) -> Self {
        Self { grid, threads, shared: 0, cluster: 1 }
    }

    /// With dynamic shared memory.
    pub fn shared(self, bytes: u32) -> Self {
        Self { shared: bytes, ..self }
    }

    /// With clusters.
    pub fn cluster(self, blocks: u32) -> Self {
        Self { cluster: blocks, ..self }
    }
}

/// A kernel's one parameter: a structure that mirrors the one in the `.cu` file.
///
/// # Safety
/// The type is `#[repr(C)]`, has the fields of the device's structure in order, and holds no references.
pub unsafe trait Params: Copy {}

impl Kernel {
    /// Queues the kernel. It may start its preparation before the kernel ahead of it has ended (programmatic dependent
    /// launch); `wait_for_previous` on the device makes it wait for the data.
    ///
    /// # Safety
    /// Every address in `params` must be valid for what the kernel does with it until the stream has passed, and the
    /// launch must have the shape that the kernel was written for.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Panics
    /// If the kernel was compiled with a parameter of another size.
    pub unsafe fn launch<P: Params>(&self, shape: Launch, params: &P) -> Result<(), CudaError> {
        assert_eq!(size_of::<P>(), self.parameter, "{} mirrors the kernel's parameter", std::any::type_name::<P>());
        // SAFETY: an attribute of zeros is valid; the fields used are set below.
        let mut attributes: [sys::CUlaunchAttribute; 2] = unsafe { std::mem::zeroed() };
        let mut count = 0;
        if self.device.properties().capability.0 >= 9 {
            attributes[count].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            attributes[count].value.programmaticStreamSerializationAllowed = 1;
            count += 1;
        }
        if shape.cluster > 1 {
            attributes[count].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            attributes[count].value.clusterDim =
                sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: shape.cluster, y: 1, z: 1 };
            count += 1;
        }
        let config = sys::CUlaunchConfig {
            gridDimX: shape.grid.0,
            gridDimY: shape.grid.1,
            gridDimZ: shape.grid.2,
            blockDimX: shape.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shape.shared,
            hStream: self.device.stream(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: count as u32,
        };
        let mut arguments = [std::ptr::from_ref(params).cast_mut().cast::<c_void>()];
        // SAFETY: the caller's promise; the driver copies the parameters.
        unsafe { sys::cuLaunchKernelEx(&config, self.function, arguments.as_mut_ptr(), std::ptr::null_mut()) }
            .result()
            .named("cuLaunchKernelEx")
    }
}

/// Launches that were captured once and are replayed as one.
pub struct Graph {
    device: Device,
    graph: sys::CUgraph,
    executable: sys::CUgraphExec,
}

// SAFETY: used by one thread at a time through `&mut` of its owner or a lock.
unsafe impl Send for Graph {}

impl Device {
    /// Records what `launches` queues, without running it.
    ///
    /// # Errors
    /// The first error of `launches`, or of the driver.
    pub fn capture<E: From<CudaError>>(&self, launches: impl FnOnce() -> Result<(), E>) -> Result<Graph, E> {
        self.make_current()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is ours and not capturing.
        unsafe { result::stream::begin_capture(self.stream(), mode) }.named("cuStreamBeginCapture")?;
        let queued = launches();
        // SAFETY: the capture began above and ends here on every path.
        let graph = unsafe { result::stream::end_capture(self.stream()) }.named("cuStreamEndCapture");
        queued?;
        let graph = graph?;
        // SAFETY: the graph is valid.
        let flags = sys::CUgraphInstantiate_flags(0);
        // SAFETY: as above.
        let executable = unsafe { result::graph::instantiate(graph, flags) }.named("cuGraphInstantiate");
        match executable {
            Ok(executable) => Ok(Graph { device: self.clone(), graph, executable }),
            Err(error) => {
                // SAFETY: destroyed once.
                let _ = unsafe { result::graph::destroy(graph) };
                Err(error.into())
            }
        }
    }
}

impl Graph {
    /// Queues all of it.
    pub fn launch(&self) -> Result<(), CudaError> {
        self.device.make_current()?;
        // SAFETY: the executable graph is valid; what it refers to lives as long as its owner promises.
        unsafe { result::graph::launch(self.executable, self.device.stream()) }.named("cuGraphLaunch")
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.device.make_current().is_ok() {
            // SAFETY: both are ours and destroyed once.
            unsafe {
                let _ = result::graph::exec_destroy(self.executable);
                let _ = result::graph::destroy(self.graph);
            }
        }
    }
}

/// A point of the stream whose time is taken.
pub struct Event {
    device: Device,
    event: sys::CUevent,
}

impl Device {
    /// Marks this point of the stream.
    pub fn event(&self) -> Result<Event, CudaError> {
        self.make_current()?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).named("cuEventCreate")?;
        let event = Event { device: self.clone(), event };
        // SAFETY: event and stream are ours.
        unsafe { result::event::record(event.event, self.stream()) }.named("cuEventRecord")?;
        Ok(event)
    }
}

impl Event {
    /// Seconds from `earlier` to this event. Waits until both have passed.
    pub fn seconds_since(&self, earlier: &Event) -> Result<f64, CudaError> {
        self.device.make_current()?;
        // SAFETY: the events are ours.
        unsafe { result::event::synchronize(self.event) }.named("cuEventSynchronize")?;
        // SAFETY: as above.
        let milliseconds = unsafe { result::event::elapsed(earlier.event, self.event) }.named("cuEventElapsedTime")?;
        Ok(f64::from(milliseconds) * 1e-3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.device.make_current().is_ok() {
            // SAFETY: ours, destroyed once.
            let _ = unsafe { result::event::destroy(self.event) };
        }
    }
}
