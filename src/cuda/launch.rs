//! From candle's storages to a launch.

use super::{modules, params};
use crate::ops::float_type;
use crate::plan::{plan_of, Access, DeviceLimits, Extent, FloatType, LaunchPlan, RowOp};
use crate::rows::RowSpace;
use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::{
    sys, CudaFunction, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr,
};
use candle_core::cuda_backend::{CudaDType, WrapErr};
use candle_core::{bail, CudaDevice, CudaStorage, Layout, Result};
use half::{bf16, f16};
use std::ffi::c_void;

/// Binds `$T` to the element type of `$float`.
macro_rules! with_type {
    ($float:expr, $T:ident => $body:expr) => {
        match $float {
            FloatType::F16 => {
                type $T = f16;
                $body
            }
            FloatType::BF16 => {
                type $T = bf16;
                $body
            }
            FloatType::F32 => {
                type $T = f32;
                $body
            }
            FloatType::F64 => {
                type $T = f64;
                $body
            }
        }
    };
}

pub(super) use with_type;

/// softmax(x) over `dim`, contiguous.
pub fn softmax(op: &'static str, x: &CudaStorage, at: &Layout, dim: usize) -> Result<CudaStorage> {
    let float = float_type(op, &[x.dtype()])?;
    let y_at = Layout::contiguous(at.shape());
    let space = RowSpace::new(op, [at, &y_at], dim)?;
    with_type!(float, T => {
        let call = Call { op, row_op: RowOp::Softmax, float, space };
        let y = call.run_new([T::as_cuda_slice(x)?], x.device())?;
        Ok(T::wrap_cuda_slice(y, x.device().clone()))
    })
}

/// softmax(x) over `dim`, where x lies.
pub fn softmax_in_place(
    op: &'static str,
    x: &mut CudaStorage,
    at: &Layout,
    dim: usize,
) -> Result<()> {
    let float = float_type(op, &[x.dtype()])?;
    let space = RowSpace::new(op, [at, at], dim)?;
    let device = x.device().clone();
    with_type!(float, T => {
        let call = Call { op, row_op: RowOp::Softmax, float, space };
        call.in_place(T::as_cuda_slice_mut(x)?, &device)
    })
}

/// dx = y·(g - Σ g·y) over `dim`, contiguous.
pub fn softmax_backward(
    op: &'static str,
    y: &CudaStorage,
    y_at: &Layout,
    g: &CudaStorage,
    g_at: &Layout,
    dim: usize,
) -> Result<CudaStorage> {
    let float = float_type(op, &[y.dtype(), g.dtype()])?;
    let dx_at = Layout::contiguous(y_at.shape());
    let space = RowSpace::new(op, [y_at, g_at, &dx_at], dim)?;
    with_type!(float, T => {
        let call = Call { op, row_op: RowOp::SoftmaxBackward, float, space };
        let dx = call.run_new([T::as_cuda_slice(y)?, T::as_cuda_slice(g)?], y.device())?;
        Ok(T::wrap_cuda_slice(dx, y.device().clone()))
    })
}

/// One call of an operator: what and over which rows; the output is the last operand.
struct Call<const N: usize> {
    op: &'static str,
    row_op: RowOp,
    float: FloatType,
    space: RowSpace<N>,
}

impl<const N: usize> Call<N> {
    /// Runs over `inputs` into a new contiguous storage.
    fn run_new<T: DeviceRepr, const INPUTS: usize>(
        &self,
        inputs: [&CudaSlice<T>; INPUTS],
        device: &CudaDevice,
    ) -> Result<CudaSlice<T>> {
        for (operand, input) in self.space.operands.iter().zip(inputs) {
            (self.space).check_within(self.op, operand, input.len())?;
        }
        let len = self.space.rows * self.space.cols;
        // SAFETY: the kernel writes every element of every row, and the output has no others.
        let mut out = unsafe { new_output::<T, N>(self.op, &self.space, device) }?;
        let stream = device.cuda_stream();
        let inputs = inputs.map(|input| (input.device_ptr(&stream), input.len()));
        let mut operands: Vec<(u64, usize)> =
            inputs.iter().map(|((p, _), len)| (*p, *len)).collect();
        let (out_pointer, written) = out.device_ptr_mut(&stream);
        operands.push((out_pointer, len));
        self.launch(&operands, device)?;
        // cudarc's guards: dropped here, they record that the inputs were read and the output written.
        drop(inputs);
        drop(written);
        Ok(out)
    }

    /// Runs over the one input into itself.
    fn in_place<T: DeviceRepr>(&self, x: &mut CudaSlice<T>, device: &CudaDevice) -> Result<()> {
        (self.space).check_within(self.op, &self.space.operands[0], x.len())?;
        let len = x.len();
        let stream = device.cuda_stream();
        let (pointer, _written) = x.device_ptr_mut(&stream);
        self.launch(&[(pointer, len); 2], device)
    }

    /// The launch: operands as (device pointer, elements), the output last.
    fn launch(&self, operands: &[(u64, usize)], device: &CudaDevice) -> Result<()> {
        let space = &self.space;
        if space.is_empty() {
            return Ok(());
        }
        let limits = modules::limits(device)?;
        let access = self.access(operands);
        let plan = plan_of(
            self.row_op,
            self.float,
            space.cols,
            Extent::of(space),
            access,
            &limits,
        );
        let at: Vec<_> = (space.operands.iter().zip(operands))
            .map(|(operand, &(_, len))| params::Operand::new(operand, len))
            .collect();
        let pointers: Vec<u64> = operands.iter().map(|(pointer, _)| *pointer).collect();
        // SAFETY: the arguments are those of kernels/table.cuh, in their order, for the op and element
        // type in the kernel's name. Every row of every operand lies in its storage:
        // candle's layouts say so, and `Operand::len` bounds the aligned reads beside a row. The plan's
        // threads cover the columns and its shared memory the slices and chunks (tested in src/plan/tests.rs).
        unsafe { run_planned(self.op, &plan, space, &limits, &at, None, &pointers, device) }
    }

    /// The fastest access that every operand allows.
    fn access(&self, operands: &[(u64, usize)]) -> Access {
        with_bases(Access::of(&self.space, self.float), operands)
    }
}

/// Memory for an element a row and column of `space`.
///
/// # Safety
///
/// Uninitialised: all of them must be written before they are read.
pub(super) unsafe fn new_output<T: DeviceRepr, const N: usize>(
    op: &'static str,
    space: &RowSpace<N>,
    device: &CudaDevice,
) -> Result<CudaSlice<T>> {
    let (rows, cols) = (space.rows, space.cols);
    let bytes = rows
        .checked_mul(cols)
        .and_then(|len| len.checked_mul(size_of::<T>()));
    if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
        bail!("{op}: requires memory for {rows} rows of {cols} columns, got none")
    }
    // SAFETY: as the caller promises. Candle's empty tensors need a storage too; the driver refuses one of no bytes.
    unsafe { device.alloc::<T>((rows * cols).max(1)) }
}

/// The same access where the storages start on 16 bytes. What candle allocates starts on 256; memory that a caller wrapped
/// need not.
pub(super) fn with_bases(access: Access, operands: &[(u64, usize)]) -> Access {
    let aligned = operands
        .iter()
        .all(|(pointer, _)| pointer.is_multiple_of(16));
    match access {
        Access::Pieces if !aligned => Access::Columns,
        Access::Aligned | Access::Packed if !aligned => Access::Unaligned,
        access => access,
    }
}

/// Launches what `plan` says over the rows of `space`: operands at `at`, of `pointers`, the output last, and of attention
/// the `score`.
///
/// # Safety
///
/// They must be the arguments that the plan's kernel declares in kernels/table.cuh, and what they point to what it may access.
#[allow(clippy::too_many_arguments)] // what a launch is made of
pub(super) unsafe fn run_planned<const N: usize>(
    op: &'static str,
    plan: &LaunchPlan,
    space: &RowSpace<N>,
    limits: &DeviceLimits,
    at: &[params::Operand],
    score: Option<&params::Score>,
    pointers: &[u64],
    device: &CudaDevice,
) -> Result<()> {
    let Some(grid) = plan.grid(space.rows, limits) else {
        bail!(
            "{op}: requires at most {} blocks, got {} rows of {} columns",
            limits.max_grid_x,
            space.rows,
            space.cols
        )
    };
    let function = modules::function(device, &plan.kernel)?;
    let rows = params::Rows::new(op, space)?;
    let share = plan.share(space.rows, limits) as i32;
    // Where gangs meet. Zeroed by this launch, not the one before: launches of a graph, or of another stream, may
    // run at once. Freed behind the kernel, in the order of the stream, when it is dropped.
    let stream = device.cuda_stream();
    let mut workspace = match plan.workspace(space.rows) {
        0 => None,
        words => Some(device.alloc_zeros::<u64>(words)?),
    };
    let workspace = (workspace.as_mut()).map(|words| words.device_ptr_mut(&stream));
    let meeting = workspace.as_ref().map_or(0, |(pointer, _)| *pointer);

    // In the order of kernels/table.cuh.
    let mut arguments = vec![address(&rows)];
    arguments.extend(at.iter().map(address));
    arguments.extend(score.map(address));
    arguments.extend(pointers.iter().map(address));
    arguments.push(address(&share));
    arguments.push(address(&meeting)); // most kernels declare none, and the driver takes what they declare

    // SAFETY: as the caller promises; all arguments outlive the call.
    unsafe {
        start(
            &function,
            plan,
            grid,
            limits.dependent_launch,
            &stream,
            &mut arguments,
        )
    }
}

fn address<T>(argument: &T) -> *mut c_void {
    std::ptr::from_ref(argument).cast_mut().cast()
}

/// Starts a kernel on `stream`, `early`: while the launch before it ends. cudarc's own builder knows of neither that nor
/// clusters.
///
/// # Safety
///
/// `arguments` must point to what the kernel declares, and what those point to must be what it may access.
unsafe fn start(
    function: &CudaFunction,
    plan: &LaunchPlan,
    grid: usize,
    early: bool,
    stream: &CudaStream,
    arguments: &mut [*mut c_void],
) -> Result<()> {
    stream.context().bind_to_thread().w()?;
    let attribute = |id| sys::CUlaunchAttribute {
        id,
        pad: Default::default(),
        value: sys::CUlaunchAttributeValue { pad: [0; 64] },
    };
    use sys::CUlaunchAttributeID as Id;
    // Every kernel waits, before it touches memory, for the launch that it overlaps (`predecessors_done` in
    // kernels/device.cuh).
    let mut overlap = attribute(Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
    overlap.value.programmaticStreamSerializationAllowed = i32::from(early);
    let mut cluster = attribute(Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
    cluster.value.clusterDim.x = plan.cluster as u32;
    cluster.value.clusterDim.y = 1;
    cluster.value.clusterDim.z = 1;
    let mut attributes = match early {
        true => [overlap, cluster],
        false => [cluster, overlap],
    };
    let config = sys::CUlaunchConfig {
        gridDimX: grid as u32,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: plan.block() as u32,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: plan.shared_bytes as u32,
        hStream: stream.cu_stream(),
        attrs: attributes.as_mut_ptr(),
        numAttrs: u32::from(early) + u32::from(plan.cluster > 1),
    };
    // SAFETY: as the caller promises; the configuration and its attributes outlive the call.
    unsafe {
        sys::cuLaunchKernelEx(
            &config,
            function.cu_function(),
            arguments.as_mut_ptr(),
            std::ptr::null_mut(),
        )
    }
    .result()
    .w()
}
