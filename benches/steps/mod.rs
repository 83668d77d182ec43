//! The steps of `kernels/ladder.cu`: which kernel, block and grid for a row length, and their launch.

pub mod check;
pub mod table;

use anyhow::{anyhow, ensure, Context, Result};
use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::nvrtc::{
    compile_ptx_with_opts, CompileError, CompileOptions,
};
use candle_core::cuda_backend::WrapErr;
use candle_core::{CpuStorage, CudaDevice, CudaStorage, CustomOp1, Layout, Shape};
use cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
use cudarc::driver::{CudaFunction, CudaModule, LaunchConfig, PushKernelArg};
use std::sync::Arc;

const SOURCE: &str = include_str!("../../kernels/ladder.cu");

/// Of the x dimension, on every GPU that candle supports.
const MAX_GRID: usize = (1 << 31) - 1;

/// Who owns a row.
#[derive(Clone, Copy, PartialEq)]
enum Owner {
    Thread,
    Warp,
    Block,
    /// A block that keeps it in registers.
    Cached,
    /// The same, in as many blocks as the GPU holds; a row too long goes to the kernel named.
    Persistent(&'static str),
}

pub struct Step {
    pub name: &'static str,
    kernel: &'static str,
    owner: Owner,
}

pub const STEPS: [Step; 7] = [
    step("naive", "naive", Owner::Block),
    step("V0 thread", "thread_row", Owner::Thread),
    step("warp", "warp_row", Owner::Warp),
    step("V1 block", "block_row", Owner::Block),
    step("V2 16-byte", "block_row_wide", Owner::Block),
    step("V3 registers", "block_row_cached", Owner::Cached),
    step(
        "V4 persistent",
        "block_row_persistent",
        Owner::Persistent("block_row_wide"),
    ),
];

const fn step(name: &'static str, kernel: &'static str, owner: Owner) -> Step {
    Step {
        name,
        kernel,
        owner,
    }
}

/// Vectors of 4 numbers that a thread of V3 and V4 may keep: a kernel each.
const CACHED: [usize; 5] = [1, 2, 4, 8, 16];

impl Step {
    /// 16 numbers a thread, until the block is full: 1024 threads, or 512 where they need 128 registers.
    fn threads(&self, cols: usize) -> usize {
        let most = match self.owner {
            Owner::Thread => return 128,
            Owner::Warp => return 256,
            Owner::Block => 1024,
            Owner::Cached | Owner::Persistent(_) => 512,
        };
        cols.div_ceil(16).next_multiple_of(32).min(most)
    }

    fn rows_a_block(&self, cols: usize) -> usize {
        match self.owner {
            Owner::Thread => self.threads(cols),
            Owner::Warp => self.threads(cols) / 32,
            _ => 1,
        }
    }

    /// The kernel's name; none if the row does not fit it.
    fn kernel(&self, cols: usize) -> Option<String> {
        let need = cols.div_ceil(4 * self.threads(cols));
        let fits = CACHED.iter().find(|&&n| n >= need);
        match (self.owner, fits) {
            (Owner::Cached | Owner::Persistent(_), Some(n)) => Some(format!("{}_{n}", self.kernel)),
            (Owner::Persistent(other), None) => Some(other.into()),
            (Owner::Cached, None) => None,
            _ => Some(self.kernel.into()),
        }
    }

    /// What rounding may do to the sum, relatively: 4 roundings for each term that one thread adds to its own.
    pub fn rounding(&self, cols: usize) -> f64 {
        let owners = match self.owner {
            Owner::Thread => 1,
            Owner::Warp => 32,
            _ => self.threads(cols),
        };
        4. * cols.div_ceil(owners) as f64 * 2f64.powi(-24)
    }
}

/// How many blocks a launch may have.
#[derive(Clone, Copy, PartialEq)]
pub enum Grid {
    /// One for each row (or as a step has it), as far as the GPU's limit allows.
    Covering,
    /// This many at most: rows are looped over, as past the limit.
    Looping(usize),
}

/// The compiled file.
pub struct Kernels {
    module: Arc<CudaModule>,
    processors: usize,
}

impl Kernels {
    pub fn compile(device: &CudaDevice) -> Result<Self> {
        let context = device.cuda_stream().context().clone();
        let (major, minor) = context.compute_capability()?;
        let options = CompileOptions {
            options: vec![
                format!("--gpu-architecture=compute_{major}{minor}"),
                "--std=c++17".into(),
            ],
            name: Some("ladder.cu".into()),
            ..Default::default()
        };
        let ptx = compile_ptx_with_opts(SOURCE, options).map_err(|e| match e {
            CompileError::CompileError { log, .. } => {
                anyhow!("kernels/ladder.cu: {}", log.to_string_lossy())
            }
            e => anyhow!("NVRTC: {e}"),
        })?;
        let processors = context.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        ensure!(processors > 0, "the GPU must have multiprocessors");
        Ok(Self {
            module: (context.load_module(ptx)).context("loading NVRTC's PTX of the ladder")?,
            processors: processors as usize,
        })
    }

    /// The step as a candle operator for rows of `cols`; none if they do not fit.
    pub fn op(&self, step: &Step, cols: usize, grid: Grid) -> Result<Option<StepOp>> {
        let Some(kernel) = step.kernel(cols) else {
            return Ok(None);
        };
        let threads = step.threads(cols);
        let function = self.module.load_function(&kernel).context(kernel)?;
        let mut most_blocks = MAX_GRID;
        if let Owner::Persistent(_) = step.owner {
            let threads = threads as u32;
            let resident =
                function.occupancy_max_active_blocks_per_multiprocessor(threads, 0, None)?;
            most_blocks = (resident as usize).max(1) * self.processors;
        }
        if let Grid::Looping(blocks) = grid {
            most_blocks = most_blocks.min(blocks);
        }
        Ok(Some(StepOp {
            function,
            threads,
            rows_a_block: step.rows_a_block(cols),
            most_blocks,
            poison: grid != Grid::Covering,
        }))
    }
}

/// A launch over the last dim of contiguous f32 tensors.
pub struct StepOp {
    function: CudaFunction,
    threads: usize,
    rows_a_block: usize,
    most_blocks: usize,
    /// Fills the output first, so that an element left out shows.
    poison: bool,
}

impl CustomOp1 for StepOp {
    fn name(&self) -> &'static str {
        "ladder"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        candle_core::bail!("ladder: requires a CUDA tensor")
    }

    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        layout: &Layout,
    ) -> candle_core::Result<(CudaStorage, Shape)> {
        let Some((from, to)) = layout.contiguous_offsets() else {
            candle_core::bail!("ladder: requires a contiguous tensor, got {layout:?}")
        };
        let device = x.device().clone();
        let cols = layout.dims().last().copied().unwrap_or(1).max(1);
        let rows = (to - from) / cols;
        let mut y = match self.poison {
            true => device.clone_htod(&vec![777f32; to - from])?,
            // SAFETY: the kernel writes every element (checked with poison).
            false => unsafe { device.alloc::<f32>(to - from) }?,
        };
        let blocks = rows.div_ceil(self.rows_a_block).min(self.most_blocks);
        let config = LaunchConfig {
            grid_dim: (blocks as u32, 1, 1),
            block_dim: (self.threads as u32, 1, 1),
            shared_mem_bytes: 0,
        };
        let x = x.as_cuda_slice::<f32>()?.slice(from..to);
        let (rows, cols) = (rows as i64, cols as i64);
        let stream = device.cuda_stream();
        let mut args = stream.launch_builder(&self.function);
        args.arg(&x).arg(&mut y).arg(&rows).arg(&cols);
        // SAFETY: PARAMETERS of kernels/ladder.cu; x and y hold rows * cols numbers; the block is a multiple of 32
        // threads, and (V3, V4) those threads hold a row.
        unsafe { args.launch(config) }.w()?;
        Ok((
            CudaStorage::wrap_cuda_slice(y, device),
            layout.shape().clone(),
        ))
    }
}
