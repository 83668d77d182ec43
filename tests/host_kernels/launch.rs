//! One launch of a kernel on the CPU, planned by the crate.

use candle_core::{CpuStorage, DType, Device, Layout, Result, Storage, Tensor};
use candle_online_softmax::plan::{
    plan_of, Access, DeviceLimits, Extent, FloatType, LaunchPlan, RowOp,
};
use candle_online_softmax::rows::{RowSpace, MAX_ROW_DIMS};
use half::{bf16, f16};
use libloading::{Library, Symbol};
use std::ffi::{c_char, c_void, CStr};
use std::sync::{Mutex, OnceLock, PoisonError};

/// As before sm_90, with no clusters.
pub const LIMITS: DeviceLimits = DeviceLimits {
    max_threads_per_block: 1024,
    max_grid_x: (1 << 31) - 1,
    max_cluster: 1,
    // Small, so that rows of modest length are a gang's, and longer ones are streamed.
    max_shared_bytes: 100 << 10,
    multiprocessors: 3,
    dependent_launch: false,
};

/// Where results go.
#[derive(Clone, Copy, PartialEq)]
pub enum Output {
    New,
    /// Over the only operand.
    InPlace,
}

// As kernels/rows.cuh declares them.
#[repr(C)]
struct Rows {
    rows: i64,
    cols: i64,
    dims: i64,
    sizes: [i64; MAX_ROW_DIMS],
}

#[repr(C)]
struct Operand {
    offset: i64,
    col_stride: i64,
    len: i64,
    strides: [i64; MAX_ROW_DIMS],
}

type Launch = unsafe extern "C" fn(
    kernel: *mut c_void,
    rows: *const Rows,
    at: *const Operand,
    data: *const *mut u8,
    bytes: *const usize,
    operands: i32,
    share: i32,
    workspace: *mut u64,
    grid: u32,
    block: u32,
    at_once: u32,
    cluster: u32,
    shared_bytes: usize,
    bulk: bool,
) -> *const c_char;

fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        let path = std::env::var_os("COS_HOST_KERNELS")?;
        // SAFETY: the library that scripts/host-kernels.sh built; it does nothing when loaded.
        Some(unsafe { Library::new(path) }.expect("the library that COS_HOST_KERNELS names"))
    });
    if library.is_none() {
        use std::io::Write;
        let line = "SKIPPED host kernels: COS_HOST_KERNELS is not set (scripts/host-kernels.sh builds and runs them)";
        let _ = writeln!(std::io::stderr(), "{line}"); // past libtest's capture
    }
    library.as_ref()
}

/// Runs `op` over dim 1 of `inputs` (storage and layout each) into a contiguous tensor; with the plan it took.
/// None where there is no library.
pub fn on_host(
    op: RowOp,
    inputs: &[(&Tensor, &Layout)],
    output: Output,
    what: &str,
) -> Result<Option<(Tensor, LaunchPlan)>> {
    on_device(&LIMITS, op, inputs, output, what)
}

/// The same, planned for a device of other limits.
pub fn on_device(
    limits: &DeviceLimits,
    op: RowOp,
    inputs: &[(&Tensor, &Layout)],
    output: Output,
    what: &str,
) -> Result<Option<(Tensor, LaunchPlan)>> {
    let Some(library) = library() else {
        return Ok(None);
    };
    let (dtype, layout) = (inputs[0].0.dtype(), inputs[0].1);
    let mut buffers: Vec<Buffer> = inputs
        .iter()
        .map(|(t, _)| Buffer::of(t))
        .collect::<Result<_>>()?;
    let contiguous = Layout::contiguous(layout.shape());
    let mut layouts: Vec<&Layout> = inputs.iter().map(|(_, layout)| *layout).collect();
    match output {
        Output::New => {
            layouts.push(&contiguous);
            // Garbage that no result equals, so that each element must be written.
            let filling =
                Tensor::full(-999f64, contiguous.shape(), &Device::Cpu)?.to_dtype(dtype)?;
            buffers.push(Buffer::of(&filling.flatten_all()?)?);
        }
        Output::InPlace => layouts.push(layout),
    }
    let before: Vec<Vec<u8>> = buffers.iter().map(Buffer::bytes).collect();
    let plan = match layouts[..] {
        [x, y] => run(library, limits, op, dtype, [x, y], &mut buffers, what)?,
        [y, g, dx] => run(library, limits, op, dtype, [y, g, dx], &mut buffers, what)?,
        _ => unreachable!("one input or two"),
    };
    let (out, out_at) = (
        buffers.last().expect("an output"),
        layouts[layouts.len() - 1],
    );
    if output == Output::New {
        for (buffer, before) in buffers.iter().zip(&before).take(inputs.len()) {
            assert!(buffer.bytes() == *before, "{what}: an input was written");
        }
    } else {
        assert_only_written(
            &out.bytes(),
            &before[0],
            out_at,
            dtype.size_in_bytes(),
            what,
        );
    }
    Ok(Some((out.tensor(dtype, out_at)?, plan)))
}

fn run<const N: usize>(
    library: &Library,
    limits: &DeviceLimits,
    op: RowOp,
    dtype: DType,
    layouts: [&Layout; N],
    buffers: &mut [Buffer],
    what: &str,
) -> Result<LaunchPlan> {
    let float = FloatType::from_dtype(dtype).expect("a float");
    let space = RowSpace::new("host", layouts, 1)?;
    let access = Access::of(&space, float);
    let extent = Extent::of(&space);
    let plan = plan_of(op, float, space.cols, extent, access, limits);
    let rows = Rows {
        rows: space.rows as i64,
        cols: space.cols as i64,
        dims: space.dims.len() as i64,
        sizes: padded(&space.dims),
    };
    // In place, the one buffer is both operands.
    let last = buffers.len() - 1;
    let buffer_of = |i: usize| i.min(last);
    let at: Vec<Operand> = (space.operands.iter().enumerate())
        .map(|(i, o)| Operand {
            offset: o.offset as i64,
            col_stride: o.col_stride as i64,
            len: (buffers[buffer_of(i)].len / float.size()) as i64,
            strides: padded(&o.row_strides),
        })
        .collect();
    let bytes: Vec<usize> = (0..N).map(|i| buffers[buffer_of(i)].len).collect();
    let data: Vec<*mut u8> = (0..N)
        .map(|i| buffers[buffer_of(i)].data.as_mut_ptr().cast())
        .collect();
    let mut workspace = vec![0u64; plan.workspace(space.rows)];
    // One launch at a time: the library keeps its threads in globals.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the symbols are those of launch.cpp and of the kernel that the plan names, whose arguments
    // these are; the buffers outlive the call.
    let failure = unsafe {
        let launch: Symbol<Launch> = library.get(b"launch").expect("launch");
        let kernel: Symbol<*mut c_void> = library
            .get(plan.kernel.name().as_bytes())
            .expect("the plan's kernel");
        launch(
            kernel.try_as_raw_ptr().expect("its address"),
            &rows,
            at.as_ptr(),
            data.as_ptr(),
            bytes.as_ptr(),
            N as i32,
            plan.share(space.rows, limits) as i32,
            workspace.as_mut_ptr(),
            plan.grid(space.rows, limits).expect("a grid") as u32,
            plan.block() as u32,
            // A cluster or a gang alone, or a gang with the first blocks of the next row.
            (plan.cluster * (plan.gang + plan.gang / 2)) as u32,
            plan.cluster as u32,
            plan.shared_bytes,
            // Bulk copies as from sm_90 on, and none as before it: of packed rows, whose offsets are whole
            // vectors, too.
            (space.operands[0].offset + space.operands[0].offset / 8).is_multiple_of(2),
        )
    };
    if !failure.is_null() {
        // SAFETY: a literal in launch.cpp.
        let failure = unsafe { CStr::from_ptr(failure) }.to_string_lossy();
        panic!("{what}, {}: {failure}", plan.kernel.name());
    }
    Ok(plan)
}

fn padded(values: &[usize]) -> [i64; MAX_ROW_DIMS] {
    std::array::from_fn(|i| values.get(i).map_or(0, |&v| v as i64))
}

/// Where the elements of `layout` lie in its storage, in row-major order.
pub fn places(layout: &Layout) -> Vec<usize> {
    let mut places = vec![layout.start_offset()];
    for (&size, &stride) in layout.dims().iter().zip(layout.stride()) {
        let steps = |&first: &usize| (0..size).map(move |i| first + i * stride);
        places = places.iter().flat_map(steps).collect();
    }
    places
}

/// Every byte outside the layout's elements is as it was.
fn assert_only_written(after: &[u8], before: &[u8], at: &Layout, size: usize, what: &str) {
    let mut free = vec![true; before.len()];
    for first in places(at).into_iter().map(|place| place * size) {
        free[first..first + size].fill(false);
    }
    let changed = (0..free.len()).find(|&i| free[i] && after[i] != before[i]);
    assert_eq!(changed, None, "{what}: a byte beside the view was written");
}

/// A storage on 16 bytes, as a GPU's are.
struct Buffer {
    data: Vec<u128>,
    len: usize,
}

impl Buffer {
    fn of(t: &Tensor) -> Result<Self> {
        let (storage, _) = t.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else {
            unreachable!("a CPU tensor")
        };
        let bytes: Vec<u8> = match storage {
            CpuStorage::F16(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            CpuStorage::BF16(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            CpuStorage::F32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            CpuStorage::F64(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            _ => unreachable!("a float tensor"),
        };
        let word = |chunk: &[u8]| {
            let mut word = [0; 16];
            word[..chunk.len()].copy_from_slice(chunk);
            u128::from_le_bytes(word)
        };
        Ok(Self {
            data: bytes.chunks(16).map(word).collect(),
            len: bytes.len(),
        })
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.data.iter().flat_map(|w| w.to_le_bytes()).collect();
        bytes.truncate(self.len);
        bytes
    }

    /// What lies at `layout`, as a contiguous tensor.
    fn tensor(&self, dtype: DType, layout: &Layout) -> Result<Tensor> {
        let (bytes, size) = (self.bytes(), dtype.size_in_bytes());
        let elements = bytes.chunks_exact(size).map(|b| match dtype {
            DType::F16 => f16::from_le_bytes([b[0], b[1]]).to_f64(),
            DType::BF16 => bf16::from_le_bytes([b[0], b[1]]).to_f64(),
            DType::F32 => f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
            _ => f64::from_le_bytes(b.try_into().expect("eight bytes")),
        });
        let elements: Vec<f64> = elements.collect();
        let values: Vec<f64> = places(layout).into_iter().map(|i| elements[i]).collect();
        Tensor::from_vec(values, layout.shape(), &Device::Cpu)?.to_dtype(dtype)
    }
}
