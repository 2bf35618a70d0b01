//! What a device's memory can do: yardsticks of benchmarks.

use super::device::Device;
use super::error::CudaError;
use super::launch::{Launch, Params};

#[derive(Clone, Copy)]
#[repr(C)]
struct ProbeArgs {
    from: u64,
    to: u64,
    count: u64,
}

// SAFETY: mirrors `ProbeArgs` of probe.cu.
unsafe impl Params for ProbeArgs {}

/// Timed passes over the buffer; the median counts.
const PASSES: usize = 9;

/// Bytes a second of streaming reads, and of a copy (read and written bytes counted), over `bytes` of memory.
///
/// # Errors
/// If the device has no room for twice that.
pub fn probe_memory(device: &Device, bytes: usize) -> Result<(f64, f64), CudaError> {
    let bytes = bytes.next_multiple_of(16);
    let (from, to) = (device.alloc(bytes)?, device.zeros(bytes)?);
    device.fill(&from, 0x5A)?;
    let args = ProbeArgs { from: from.address(), to: to.address(), count: bytes as u64 / 16 };
    let (read, copy) = (device.kernel("probe", "probe_read", 0)?, device.kernel("probe", "probe_copy", 0)?);
    let best = |kernel| -> Result<f64, CudaError> {
        let mut best = f64::INFINITY;
        for per_multiprocessor in [1, 2, 4] {
            let grid = device.properties().multiprocessors * per_multiprocessor;
            let mut seconds = Vec::with_capacity(PASSES);
            for _ in 0..=PASSES {
                let before = device.event()?;
                // SAFETY: both buffers hold `count` words.
                unsafe { super::module::Kernel::launch(kernel, Launch::new((grid, 1, 1), 512), &args) }?;
                seconds.push(device.event()?.seconds_since(&before)?);
            }
            // The first pass warms up.
            seconds.remove(0);
            seconds.sort_by(f64::total_cmp);
            best = best.min(seconds[PASSES / 2]);
        }
        Ok(best)
    };
    Ok((bytes as f64 / best(&read)?, 2.0 * bytes as f64 / best(&copy)?))
}
