//! Launch plans: which kernel a row gets, decided here as plain data and tested without a GPU.
//!
//! A plan depends on the columns, dtype, access and device, never on the number of rows: a row's
//! bits must not depend on what is beside it (batch invariance). Kernels never choose anything.
//!
//! Vector `v` of a row (its 16 bytes of columns, contiguous in memory or not) always belongs to thread
//! `v % threads` as that thread's vector `v / threads`. The three ways to access memory ([`Access`])
//! keep this ownership, so they give the same bits.

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
}

impl Access {
    /// The fastest access that every operand allows, in storages that start on 16 bytes.
    pub fn of(operands: &[Operand], dtype: FloatType) -> Self {
        if operands.iter().any(|o| o.col_stride != 1) {
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
    /// A block a row of any length, read twice (once for m and d, once to normalise).
    Stream,
}

impl Family {
    /// Name as kernels spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Warp => "warp",
            Self::Block => "block",
            Self::Stream => "stream",
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
}

/// A kernel and the shape of its blocks; how many blocks follows from the number of rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LaunchPlan {
    /// What is computed.
    pub op: RowOp,
    /// Element type.
    pub dtype: FloatType,
    /// Who owns a row.
    pub family: Family,
    /// How rows are read and written.
    pub access: Access,
    /// Most 16-byte vectors of a row that one thread keeps in registers; for [`Family::Stream`] the
    /// vectors it reads before it uses the first.
    pub vectors: usize,
    /// Threads that share one row.
    pub threads_per_row: usize,
    /// Rows that one block takes at a time.
    pub rows_per_block: usize,
}

impl LaunchPlan {
    /// Threads of a block.
    pub fn block(&self) -> usize {
        self.threads_per_row * self.rows_per_block
    }

    /// Blocks for `rows` rows; a block takes more than one turn past the grid's limit.
    pub fn grid(&self, rows: usize, limits: &DeviceLimits) -> usize {
        rows.div_ceil(self.rows_per_block).min(limits.max_grid_x)
    }

    /// The kernel's symbol, `family_op_dtype_access_vectors`.
    pub fn kernel_name(&self) -> String {
        let (family, op, dtype) = (self.family.name(), self.op.name(), self.dtype.name());
        format!(
            "{family}_{op}_{dtype}_{}_{}",
            self.access.name(),
            self.vectors
        )
    }
}

/// Threads of a block in the warp family: 4 warps, so that a block's end idles at most 3 of them.
const WARP_BLOCK: usize = 128;
/// Most threads of a block that shares a row: 128 registers each. With 1024 threads, and 64 registers,
/// every variant of 32 values or more spilled (nvcc 13.0, sm_90).
const ROW_BLOCK: usize = 512;
/// Vectors a thread reads ahead in the stream family: 64 bytes in flight a thread.
const STREAM_VECTORS: usize = 4;

/// The vectors a thread may keep, by family: one compiled kernel for each number.
struct Variants {
    warp: &'static [usize],
    block: &'static [usize],
}

/// Register budget: 64 values a thread in the compute type for the forward pass, or y and g in their
/// own type, 32 registers, for the backward pass (64 of them spill). Fewest vectors first: more
/// threads a row hide more latency.
fn variants(op: RowOp, dtype: FloatType) -> Variants {
    let (warp, block): (&[usize], &[usize]) = match (op, dtype) {
        (RowOp::Softmax, FloatType::F16 | FloatType::BF16) => (&[1, 2, 4], &[2, 4, 8]),
        (RowOp::Softmax, FloatType::F32) => (&[1, 2, 4, 8], &[4, 8, 16]),
        (RowOp::Softmax, FloatType::F64) => (&[1, 2, 4, 8], &[4, 8]),
        (RowOp::SoftmaxBackward, _) => (&[1, 2, 4], &[2, 4]),
    };
    Variants { warp, block }
}

/// The plan for rows of `cols` columns. Pure: same arguments, same plan.
pub fn plan(
    op: RowOp,
    dtype: FloatType,
    cols: usize,
    access: Access,
    limits: &DeviceLimits,
) -> LaunchPlan {
    let row_vectors = cols.div_ceil(dtype.vector_len()).max(1);
    let variants = variants(op, dtype);
    // Strided rows are compiled once a family, for the longest rows: unused vectors cost a branch.
    let compiled = |needed: usize, largest: usize| match access {
        Access::Strided => largest,
        _ => needed,
    };
    let make = |family, vectors, threads_per_row, rows_per_block| LaunchPlan {
        op,
        dtype,
        family,
        access,
        vectors,
        threads_per_row,
        rows_per_block,
    };

    let lanes = row_vectors.next_power_of_two().min(32);
    let largest = variants.warp[variants.warp.len() - 1];
    if let Some(&vectors) = (variants.warp.iter()).find(|&&v| row_vectors <= v * lanes) {
        let vectors = compiled(vectors, largest);
        return make(Family::Warp, vectors, lanes, WARP_BLOCK / lanes);
    }

    let most_threads = limits.max_threads_per_block.min(ROW_BLOCK);
    let largest = variants.block[variants.block.len() - 1];
    for &vectors in variants.block {
        let threads = row_vectors.div_ceil(vectors).next_multiple_of(32);
        if threads <= most_threads {
            return make(Family::Block, compiled(vectors, largest), threads, 1);
        }
    }
    make(Family::Stream, STREAM_VECTORS, most_threads, 1)
}

#[cfg(test)]
mod tests;
