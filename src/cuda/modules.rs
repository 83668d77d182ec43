//! Compiled kernels, loaded once a GPU and process, and what plans need to know of a GPU.

use crate::plan::{DeviceLimits, Family, LaunchPlan};
use candle_core::cuda_backend::cudarc::driver::{sys::CUdevice_attribute, CudaFunction};
use candle_core::cuda_backend::WrapErr;
use candle_core::{CudaDevice, Result};
use std::collections::HashMap;
use std::sync::{OnceLock, RwLock};

mod ptx {
    // One constant a file of kernels/*.cu, from build.rs.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// Candle keys custom modules by name alone: ours carry the crate and its version, so that two
/// versions in one process do not take each other's kernels.
macro_rules! module_name {
    ($file:literal) => {
        concat!(
            "candle-online-softmax-",
            env!("CARGO_PKG_VERSION"),
            "-",
            $file
        )
    };
}

/// What is kept for a GPU.
struct Gpu {
    limits: DeviceLimits,
    functions: HashMap<LaunchPlan, CudaFunction>,
}

/// By CUDA context: every candle device on one GPU shares its primary context, and so the modules.
/// A function keeps its context alive, so an entry never outlives what it names.
type Gpus = HashMap<usize, Gpu>;

fn gpus() -> &'static RwLock<Gpus> {
    static GPUS: OnceLock<RwLock<Gpus>> = OnceLock::new();
    GPUS.get_or_init(RwLock::default)
}

fn context_key(device: &CudaDevice) -> usize {
    device.cuda_stream().context().cu_ctx() as usize
}

/// The limits of the device's GPU, asked of the driver once.
pub fn limits(device: &CudaDevice) -> Result<DeviceLimits> {
    let key = context_key(device);
    if let Some(gpu) = gpus().read().unwrap_or_else(|e| e.into_inner()).get(&key) {
        return Ok(gpu.limits);
    }
    let stream = device.cuda_stream();
    let attribute = |which| -> Result<usize> {
        let value = stream.context().attribute(which).w()?;
        Ok(value.max(1) as usize)
    };
    let limits = DeviceLimits {
        max_threads_per_block: attribute(
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
        )?,
        max_grid_x: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?,
    };
    let mut gpus = gpus().write().unwrap_or_else(|e| e.into_inner());
    gpus.entry(key).or_insert_with(|| Gpu {
        limits,
        functions: HashMap::new(),
    });
    Ok(limits)
}

/// The kernel of `plan`: one lock and one hash after the first call. Candle's own look-up asks the
/// driver each time.
pub fn function(device: &CudaDevice, plan: &LaunchPlan) -> Result<CudaFunction> {
    let key = context_key(device);
    {
        let gpus = gpus().read().unwrap_or_else(|e| e.into_inner());
        if let Some(function) = gpus.get(&key).and_then(|gpu| gpu.functions.get(plan)) {
            return Ok(function.clone());
        }
    }
    let (module, ptx) = match plan.family {
        Family::Warp => (module_name!("warp"), ptx::WARP),
        Family::Block => (module_name!("block"), ptx::BLOCK),
        Family::Stream => (module_name!("stream"), ptx::STREAM),
    };
    let function = device
        .get_or_load_custom_func(&plan.kernel_name(), module, ptx)?
        .into_cuda_function();
    let mut gpus = gpus().write().unwrap_or_else(|e| e.into_inner());
    if let Some(gpu) = gpus.get_mut(&key) {
        gpu.functions.insert(plan.clone(), function.clone());
    }
    Ok(function)
}
