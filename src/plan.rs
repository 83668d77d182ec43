//! Launch plans: which kernel a row gets, decided here as plain data and tested without a GPU.
//!
//! A plan depends on the columns, dtype, access and device, never on the number of rows: a row's
//! bits must not depend on what is beside it (batch invariance). Kernels never choose anything.
//!
//! Vector `v` of a row (its 16 bytes of columns, contiguous in memory or not), or of a block's slice of it,
//! always belongs to thread `v % threads` as that thread's vector `v / threads`. All ways to access
//! memory ([`Access`]) keep this ownership, so they give the same bits.

use crate::rows::Operand;
use candle_core::DType;

/// The float types the kernels take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum FloatType {
    F16,
    BF16,
    F32,
    F64,
}

impl FloatType {
    /// The float type of `dtype`, or none for integers and for formats below 16 bits.
    pub fn from_dtype(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F16 => Some(Self::F16),
            DType::BF16 => Some(Self::BF16),
            DType::F32 => Some(Self::F32),
            DType::F64 => Some(Self::F64),
            _ => None,
        }
    }

    /// Name as kernels spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
        }
    }

    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::F16 | Self::BF16 => 2,
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    /// Elements in one 16-byte vector.
    pub fn vector_len(self) -> usize {
        16 / self.size()
    }
}

/// What is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RowOp {
    /// y = softmax(x): one operand read, one written.
    Softmax,
    /// dx = y·(g - Σ g·y): two operands read, one written.
    SoftmaxBackward,
}

impl RowOp {
    /// Name as kernels spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Softmax => "softmax",
            Self::SoftmaxBackward => "softmax_backward",
        }
    }
}

/// How rows lie in memory, worst operand first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Every row of every operand starts on a 16-byte boundary: plain 16-byte accesses.
    Aligned,
    /// Columns side by side, rows start anywhere: 16-byte accesses put together from two aligned ones.
    Unaligned,
    /// Columns apart: one element an access.
    Strided,
    /// Columns apart and rows side by side, in an operand at least: one element an access, neighbouring
    /// rows in neighbouring lanes. The others lie in any way.
    Columns,
}

/// Elements from a column to the next from which on [`Access::Columns`] pays: with fewer rows between them
/// the lanes of one row are about as near.
const COLUMNS_APART: usize = 4;

impl Access {
    /// The fastest access that every operand allows, in storages that start on 16 bytes.
    pub fn of(operands: &[Operand], dtype: FloatType) -> Self {
        let side_by_side = |o: &Operand| {
            o.col_stride >= COLUMNS_APART && o.row_strides.last().is_some_and(|&stride| stride == 1)
        };
        if operands.iter().any(side_by_side) {
            Self::Columns
        } else if operands.iter().any(|o| o.col_stride != 1) {
            Self::Strided
        } else if operands.iter().all(|o| o.is_vector_aligned(dtype.size())) {
            Self::Aligned
        } else {
            Self::Unaligned
        }
    }

    /// Name as kernels spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aligned => "aligned",
            Self::Unaligned => "unaligned",
            Self::Strided => "strided",
            Self::Columns => "columns",
        }
    }
}

/// Who owns a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// A warp, or an even part of one, a row; the row stays in registers.
    Warp,
    /// A block a row; the row stays in registers.
    Block,
    /// A cluster of blocks a row, a slice each; the row stays in shared memory.
    Cluster,
    /// A block a row of any length, read twice (once for m and d, once to normalise).
    Stream,
    /// A block a tile of rows that lie side by side; they stay in registers. Each row has the threads that it
    /// has in [`Family::Warp`] or [`Family::Block`], and their bits.
    Tile,
    /// The same for more threads than a block has: 32 a row play them in turns, and read it twice.
    TileStream,
}

impl Family {
    /// Name as kernels spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Warp => "warp",
            Self::Block => "block",
            Self::Cluster => "cluster",
            Self::Stream => "stream",
            Self::Tile => "tile",
            Self::TileStream => "tile_stream",
        }
    }
}

/// What a plan needs to know of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Most threads a block may have (1024 on every CUDA device since 2010).
    pub max_threads_per_block: usize,
    /// Largest grid.x (2^31 - 1 likewise).
    pub max_grid_x: usize,
    /// Bytes of shared memory that a block may ask for (T4 65536, A100 166912, H200 232448).
    pub max_shared_bytes: usize,
    /// Most blocks of a cluster; 1 where there are none (before sm_90).
    pub max_cluster: usize,
    /// Multiprocessors (T4 40, A100 108, H200 132).
    pub multiprocessors: usize,
}

/// A compiled kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// What is computed.
    pub op: RowOp,
    /// Element type.
    pub dtype: FloatType,
    /// Who owns a row.
    pub family: Family,
    /// How rows are read and written.
    pub access: Access,
    /// Lanes of a warp that share a row, if the kernel is for a number of them; else 0.
    pub lanes: usize,
    /// Most 16-byte vectors of a row that one thread keeps in registers; for [`Family::Stream`] those it
    /// reads before it uses the first; for [`Family::Cluster`], which is for any number, 0.
    pub vectors: usize,
}

impl Kernel {
    /// Its symbol: `family_op_dtype_access`, and the lanes and vectors it is for.
    pub fn name(&self) -> String {
        let (family, op, dtype) = (self.family.name(), self.op.name(), self.dtype.name());
        let name = format!("{family}_{op}_{dtype}_{}", self.access.name());
        match self.family {
            Family::Warp | Family::Tile => format!("{name}_{}x{}", self.lanes, self.vectors),
            Family::Block | Family::Stream | Family::TileStream => {
                format!("{name}_{}", self.vectors)
            }
            Family::Cluster => name,
        }
    }
}

/// A kernel and the shape of its blocks; how many blocks follows from the number of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LaunchPlan {
    /// The kernel.
    pub kernel: Kernel,
    /// Threads of one block that share one row.
    pub threads_per_row: usize,
    /// Threads of a row that each of them plays, one after another: one unless it is a
    /// [`Family::TileStream`].
    pub turns: usize,
    /// Rows that one block takes at a time.
    pub rows_per_block: usize,
    /// Blocks that share one row.
    pub cluster: usize,
    /// Vectors of a row that one block takes; all of them unless blocks share it.
    pub slice: usize,
    /// Bytes of shared memory that a block asks for.
    pub shared_bytes: usize,
}

impl LaunchPlan {
    /// Threads of a block.
    pub fn block(&self) -> usize {
        self.threads_per_row * self.rows_per_block
    }

    /// Blocks for `rows` rows, or none if a grid cannot have so many.
    pub fn grid(&self, rows: usize, limits: &DeviceLimits) -> Option<usize> {
        (rows.div_ceil(self.rows_per_block).checked_mul(self.cluster))
            .filter(|&blocks| blocks <= limits.max_grid_x)
    }

    /// The kernel's last argument: the threads that share a row; of the cluster family twice the vectors of a
    /// slice, and one more if results go back in bulk. That moves no bits, so it may look at the rows: with
    /// fewer than two blocks an SM the way back is something to wait for (1x128256 bf16: 5.2 us, 4.6 without).
    pub fn share(&self, rows: usize, limits: &DeviceLimits) -> usize {
        if self.kernel.family != Family::Cluster {
            return self.threads_per_row * self.turns;
        }
        let blocks = rows.saturating_mul(self.cluster);
        // Nor with a few large slices: 128x262144 f32 takes 83.3 us, 80.2 without.
        let in_bulk = blocks > 2 * limits.multiprocessors && self.slice <= SLICE;
        2 * self.slice + usize::from(in_bulk)
    }
}

/// Threads of a block in the warp family: 4 warps, so that a block's end idles at most 3 of them.
const WARP_BLOCK: usize = 128;
/// Lanes and vectors of the warp family's kernels, shortest rows first. Two vectors a lane until the warp is
/// whole: 32768x128 bf16 takes 5.88 us with 8 x 2, as with 4 x 4, f32 10.25 with 16 x 2, 10.33 with 8 x 4.
const WARP_SHAPES: [(usize, usize); 8] = [
    (1, 1),
    (2, 1),
    (2, 2),
    (4, 2),
    (8, 2),
    (16, 2),
    (32, 2),
    (32, 4),
];
/// Vectors a lane of a strided row: such kernels are compiled once, for the longest.
const WARP_STRIDED: usize = 4;

/// Rows of a tile, at least, for short rows, and in the tile stream family: 32 bytes of halves side by side,
/// 64 of f32. (And two vectors of each row in a warp, where an operand has columns side by side.)
const TILE_ROWS: usize = 16;
/// Threads of a tile of shorter rows still.
const TILE_BLOCK: usize = 128;
/// Rows of a tile of the block family's rows, at least: 32 bytes of f32.
const TILE_LEAST_ROWS: usize = 8;
/// Threads of such a tile, of 64 registers: two blocks on an SM; and at most.
const TILE_THREADS: usize = 512;
const TILE_MOST_THREADS: usize = 1024;
/// Vectors a thread of rows that are too long for such a tile, or, of halves, spill with 64 registers (sm_75).
const TILE_STREAM_VECTORS: usize = 4;

/// Threads of a block in the cluster family, a constant of kernels/slice.cuh.
const SLICE_THREADS: usize = 256;
/// Vectors of a slice, forward: 32 KiB, of which 6 fit an SM of an H200. 1024x65536 f32 takes 131.5 us with
/// it, 135.7 with twice as many.
const SLICE: usize = 2048;
/// Likewise backward, of y and g each: 512x131072 bf16 takes 100.4 us, 101.0 with twice as many.
const SLICE_BACKWARD: usize = 1024;
/// Shared memory that the cluster family's kernels have besides what they ask for, and the driver's 1 KiB.
const RESERVED_BYTES: usize = 2048;

/// Most threads of a block that streams: 128 registers each.
const STREAM_BLOCK: usize = 512;
/// Vectors a thread reads ahead in the stream family: 64 bytes in flight a thread.
const STREAM_VECTORS: usize = 4;

/// Vectors a thread and the most threads of the block family's kernels, shortest rows first.
///
/// f32, H200: 2048x4096 takes 18.7 us with 128 threads of 8 vectors, 18.8 with 256 of 4; 4096x8192 67.7 with
/// 512 of 4, 68.1 with 256 of 8. bf16: 8192x2048 18.6 with 128 of 2, 18.7 with 64 of 4. Backward keeps y and
/// g as loaded, 8 registers a vector; with 512 threads of 4 the strided kernels of halves spill.
fn block_shapes(op: RowOp, dtype: FloatType, limits: &DeviceLimits) -> [(usize, usize); 2] {
    match (op, dtype) {
        // Where there are clusters they take the rows past 1024 vectors.
        (RowOp::Softmax, FloatType::F16 | FloatType::BF16) if limits.max_cluster > 1 => {
            [(2, 128), (4, 256)]
        }
        (RowOp::Softmax, FloatType::F16 | FloatType::BF16) => [(2, 128), (4, 512)],
        (RowOp::Softmax, FloatType::F32 | FloatType::F64) => [(8, 128), (4, 512)],
        (RowOp::SoftmaxBackward, _) => [(2, 512), (4, 384)],
    }
}

/// The plan for rows of `cols` columns. Pure: same arguments, same plan.
pub fn plan(
    op: RowOp,
    dtype: FloatType,
    cols: usize,
    access: Access,
    limits: &DeviceLimits,
) -> LaunchPlan {
    if access == Access::Columns {
        let apart = plan(op, dtype, cols, Access::Strided, limits);
        return tile_plan(&apart, limits).unwrap_or(apart);
    }
    let row_vectors = cols.div_ceil(dtype.vector_len()).max(1);
    let strided = access == Access::Strided;
    let kernel = |family, lanes, vectors| Kernel {
        op,
        dtype,
        family,
        access,
        lanes,
        vectors,
    };
    let one_block = |kernel, threads_per_row| LaunchPlan {
        kernel,
        threads_per_row,
        turns: 1,
        rows_per_block: 1,
        cluster: 1,
        slice: row_vectors,
        shared_bytes: 0,
    };

    let fits = |&&(lanes, vectors): &&(usize, usize)| row_vectors <= lanes * vectors;
    if let Some(&(lanes, vectors)) = WARP_SHAPES.iter().find(fits) {
        let kernel = match strided {
            true => kernel(Family::Warp, 0, WARP_STRIDED),
            false => kernel(Family::Warp, lanes, vectors),
        };
        return LaunchPlan {
            rows_per_block: WARP_BLOCK / lanes,
            ..one_block(kernel, lanes)
        };
    }

    for (vectors, most_threads) in block_shapes(op, dtype, limits) {
        let threads = row_vectors.div_ceil(vectors).next_multiple_of(32);
        if threads <= most_threads.min(limits.max_threads_per_block) {
            return one_block(kernel(Family::Block, 0, vectors), threads);
        }
    }

    cluster_plan(kernel(Family::Cluster, 0, 0), row_vectors, limits).unwrap_or_else(|| {
        let threads = limits.max_threads_per_block.min(STREAM_BLOCK);
        one_block(kernel(Family::Stream, 0, STREAM_VECTORS), threads)
    })
}

/// Tiles for rows that would take `apart`, of the warp or block family; longer rows have none.
fn tile_plan(apart: &LaunchPlan, limits: &DeviceLimits) -> Option<LaunchPlan> {
    let threads = apart.threads_per_row;
    let tile = |family, lanes, vectors, threads_per_row, rows_per_block| LaunchPlan {
        kernel: Kernel {
            family,
            access: Access::Columns,
            lanes,
            vectors,
            ..apart.kernel
        },
        threads_per_row,
        turns: threads / threads_per_row,
        rows_per_block,
        ..*apart
    };
    let plan = match apart.kernel.family {
        Family::Warp => {
            let fits = |&&(lanes, vectors): &&(usize, usize)| apart.slice <= lanes * vectors;
            let &(lanes, vectors) = WARP_SHAPES.iter().find(fits)?;
            let rows = TILE_ROWS.max(TILE_BLOCK / lanes);
            tile(Family::Tile, lanes, vectors, lanes, rows)
        }
        Family::Block => {
            let vectors = apart.kernel.vectors;
            let rows = 1 << (TILE_THREADS / threads).max(1).ilog2();
            let rows = TILE_ROWS.min(TILE_LEAST_ROWS.max(rows));
            match rows * threads <= TILE_MOST_THREADS && vectors != TILE_STREAM_VECTORS {
                true => tile(Family::Tile, 0, vectors, threads, rows),
                false => tile(Family::TileStream, 0, vectors, 32, TILE_ROWS),
            }
        }
        _ => return None,
    };
    (plan.block() <= limits.max_threads_per_block).then_some(plan)
}

/// A cluster for rows of `row_vectors`, if their slices fit its blocks.
fn cluster_plan(kernel: Kernel, row_vectors: usize, limits: &DeviceLimits) -> Option<LaunchPlan> {
    let (target, operands) = match kernel.op {
        RowOp::Softmax => (SLICE, 1),
        RowOp::SoftmaxBackward => (SLICE_BACKWARD, 2),
    };
    let cluster = row_vectors
        .div_ceil(target)
        .checked_next_power_of_two()?
        .min(limits.max_cluster);
    // Whole warps of vectors; and a piece more, since an unaligned slice begins and ends inside of one.
    let slice = row_vectors.div_ceil(cluster).next_multiple_of(32);
    let shared_bytes = (slice + 1).checked_mul(16 * operands)?;
    let room = limits.max_shared_bytes.saturating_sub(RESERVED_BYTES);
    // One block that fills an SM waits for its copies, then computes, then stores, and nothing else runs. And 16
    // of them need as many multiprocessors in one GPC, which not every part of a GPU has.
    let room = if limits.max_cluster == 1 || cluster > 8 {
        room / 2
    } else {
        room
    };
    (shared_bytes <= room && SLICE_THREADS <= limits.max_threads_per_block).then_some(LaunchPlan {
        kernel,
        threads_per_row: SLICE_THREADS,
        turns: 1,
        rows_per_block: 1,
        cluster,
        slice,
        shared_bytes,
    })
}

#[cfg(test)]
mod tests;
