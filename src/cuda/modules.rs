//! Compiled kernels, loaded once a GPU and process, and what plans need to know of a GPU.
//!
//! Not through candle's `get_or_load_custom_func`: it takes PTX only, keeps modules by device object
//! and name, and asks the driver for the function in each call.

use crate::plan::{DeviceLimits, Family, Kernel};
use candle_core::cuda_backend::cudarc::driver::{
    sys, sys::CUdevice_attribute, sys::CUfunction_attribute, CudaContext, CudaFunction, CudaModule,
};
use candle_core::cuda_backend::cudarc::nvrtc::Ptx;
use candle_core::cuda_backend::WrapErr;
use candle_core::{CudaDevice, Result};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock, RwLock};

mod fat_binary {
    // One constant a file of kernels/*.cu, from build.rs.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// What is kept for a GPU.
struct Gpu {
    limits: DeviceLimits,
    /// By family, and whether of attention.
    modules: HashMap<(Family, bool), Arc<CudaModule>>,
    functions: HashMap<Kernel, CudaFunction>,
}

/// By CUDA context: every candle device on one GPU shares its primary context, and so the modules.
/// A module keeps its context alive, so an entry never outlives what it names.
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
    use CUdevice_attribute as Attribute;
    // Code for sm_90 and later knows of clusters; a kernel compiled for an older one would not.
    let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let limits = DeviceLimits {
        max_threads_per_block: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        max_grid_x: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?,
        max_shared_bytes: attribute(
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        )?,
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        // A kernel compiled for an older GPU would not wait for the launch before it; a driver before CUDA 12.3 cannot
        // capture such launches.
        dependent_launch: major >= 9 && fat_binary::COMPUTE_CAP >= 90 && driver_version()? >= 12030,
        max_cluster: match major {
            _ if fat_binary::COMPUTE_CAP < 90 => 1,
            0..=8 => 1,
            9 | 10 => 16, // past 8 with a word to the driver, see `Gpu::load`
            _ => 8,       // what is portable
        },
    };
    let mut gpus = gpus().write().unwrap_or_else(|e| e.into_inner());
    gpus.entry(key).or_insert_with(|| Gpu::new(limits));
    Ok(limits)
}

/// The CUDA version that the driver is for: 1000 times the major one, and 10 times the minor one.
fn driver_version() -> Result<i32> {
    let mut version = 0;
    // SAFETY: writes the number that it is given the place of.
    unsafe { sys::cuDriverGetVersion(&mut version) }
        .result()
        .w()?;
    Ok(version)
}

/// The function of `kernel`: one lock and one hash after the first call.
pub fn function(device: &CudaDevice, kernel: &Kernel) -> Result<CudaFunction> {
    let key = context_key(device);
    {
        let gpus = gpus().read().unwrap_or_else(|e| e.into_inner());
        if let Some(function) = gpus.get(&key).and_then(|gpu| gpu.functions.get(kernel)) {
            return Ok(function.clone());
        }
    }
    let limits = limits(device)?;
    let mut gpus = gpus().write().unwrap_or_else(|e| e.into_inner());
    let gpu = gpus.entry(key).or_insert_with(|| Gpu::new(limits));
    gpu.load(kernel, device.cuda_stream().context())
}

impl Gpu {
    fn new(limits: DeviceLimits) -> Self {
        Self {
            limits,
            modules: HashMap::new(),
            functions: HashMap::new(),
        }
    }

    /// Loads `kernel`, allowed all that a plan may ask for.
    fn load(&mut self, kernel: &Kernel, context: &Arc<CudaContext>) -> Result<CudaFunction> {
        // cudarc binds to load a module, but not to look for a function in it: this may be a thread's first call.
        context.bind_to_thread().w()?;
        let attention = kernel.op.is_attention();
        let module = self.module(kernel.family, attention, context)?;
        let function = module.load_function(&kernel.name()).w()?;
        use CUfunction_attribute as Attribute;
        let allow = |which, value| function.set_attribute(which, value).w();
        // Clusters of a tile are of 8 blocks at most, which needs no word.
        let clusters = matches!(kernel.family, Family::Cluster | Family::CachedCluster);
        if clusters && self.limits.max_cluster > 8 {
            allow(
                Attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
                1,
            )?;
        }
        // Others ask for no more than any kernel may.
        if matches!(
            kernel.family,
            Family::Block
                | Family::Cluster
                | Family::Gang
                | Family::Stream
                | Family::Tile
                | Family::CachedSquare
                | Family::Slab
        ) {
            let own = function
                .get_attribute(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
                .w()?;
            allow(
                Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                self.limits.max_shared_bytes as i32 - own,
            )?;
        }
        if matches!(kernel.family, Family::Gang | Family::Stream) {
            // The plan counts on what an SM has, not on what the driver would split off for one block.
            allow(
                Attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                100,
            )?;
        }
        self.functions.insert(*kernel, function.clone());
        Ok(function)
    }

    /// The module of `family`, or of its kernels for attention, loaded if this is its first use.
    fn module(
        &mut self,
        family: Family,
        attention: bool,
        context: &Arc<CudaContext>,
    ) -> Result<Arc<CudaModule>> {
        if let Some(module) = self.modules.get(&(family, attention)) {
            return Ok(module.clone());
        }
        let image = match family {
            Family::Warp if attention => fat_binary::ATTENTION_WARP,
            Family::Block if attention => fat_binary::ATTENTION_BLOCK,
            Family::Stream if attention => fat_binary::ATTENTION_STREAM,
            Family::Warp => fat_binary::WARP,
            Family::Block => fat_binary::BLOCK,
            Family::CachedCluster => fat_binary::CACHED_CLUSTER,
            Family::Cluster => fat_binary::CLUSTER,
            Family::Gang => fat_binary::GANG,
            Family::Stream => fat_binary::STREAM,
            Family::Tile => fat_binary::TILE,
            Family::Slab => fat_binary::SLAB,
            Family::CachedTile => fat_binary::CACHED_TILE,
            Family::CachedSquare => fat_binary::CACHED_SQUARE,
            Family::TileStream => fat_binary::TILE_STREAM,
            Family::Chunk => fat_binary::CHUNK,
        };
        let module = context.load_module(Ptx::from_binary(image.to_vec())).w()?;
        self.modules.insert((family, attention), module.clone());
        Ok(module)
    }
}
