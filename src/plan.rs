//! Launch plans: which kernel a row gets, decided here as plain data and tested without a GPU.
//!
//! A plan depends on the columns, dtype, access and device, never on the number of rows (but in the shape of tiles,
//! which moves no bits): a row's bits must not depend on what is beside it (batch invariance). Kernels never choose anything.
//!
//! Vector `v` of a row (its 16 bytes of columns, contiguous in memory or not), or of a block's slice of it,
//! always belongs to thread `v % threads` as that thread's vector `v / threads`. All ways to access
//! memory ([`Access`]) keep this ownership, so they give the same bits.

mod attention;
mod choose;
mod slabs;
mod tiles;

use crate::rows::{Operand, RowSpace};
use candle_core::DType;

pub use choose::{plan, plan_of};
use choose::{CHUNKS, CHUNK_THREADS};

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
    /// y = softmax of attention scores, scaled, within a band: one operand read, one written.
    Attention,
    /// The same with a softcap, and all that broadcasts to the scores.
    AttentionBiased,
    /// The gradient of that: two operands read, one written.
    AttentionBackward,
}

impl RowOp {
    /// Name as kernels spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Softmax => "softmax",
            Self::SoftmaxBackward => "softmax_backward",
            Self::Attention => "attention",
            Self::AttentionBiased => "attention_biased",
            Self::AttentionBackward => "attention_backward",
        }
    }

    /// Whether the rows are attention scores.
    pub(crate) fn is_attention(self) -> bool {
        !matches!(self, Self::Softmax | Self::SoftmaxBackward)
    }

    /// Operands that are read.
    pub(crate) fn inputs(self) -> usize {
        match self {
            Self::Softmax | Self::Attention | Self::AttentionBiased => 1,
            Self::SoftmaxBackward | Self::AttentionBackward => 2,
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
    /// The same, of rows one after another with nothing between them, the first on a 16-byte boundary: many short
    /// ones are copied at once. Longer ones are as [`Access::Unaligned`].
    Packed,
    /// Columns apart: one element an access.
    Strided,
    /// Columns apart and rows side by side, in an operand at least: one element an access, neighbouring
    /// rows in neighbouring lanes. The others lie in any way.
    Columns,
    /// The same where every input is such an operand, and in each of its columns the rows begin on a 16-byte boundary and
    /// are whole vectors: 16 bytes of neighbouring rows an access. The output is one too, or [`Access::Aligned`] rows of
    /// whole vectors.
    Pieces,
}

/// Elements from a column to the next from which on [`Access::Columns`] pays: with fewer rows between them
/// the lanes of one row are about as near.
const COLUMNS_APART: usize = 4;

impl Access {
    /// The fastest access that every operand allows, of storages that start on 16 bytes.
    pub fn of<const N: usize>(space: &RowSpace<N>, dtype: FloatType) -> Self {
        let (operands, cols) = (&space.operands, space.cols);
        let side_by_side = |o: &Operand| {
            o.col_stride >= COLUMNS_APART && o.row_strides.last().is_some_and(|&stride| stride == 1)
        };
        if operands.iter().any(side_by_side) {
            let whole = |elements: usize| elements.is_multiple_of(dtype.vector_len());
            let in_pieces = |o: &Operand| {
                let (_, outer) = o.row_strides.split_last().unwrap_or((&1, &[]));
                side_by_side(o)
                    && outer
                        .iter()
                        .chain([&o.offset, &o.col_stride])
                        .all(|&s| whole(s))
            };
            let in_vectors = |o: &Operand| o.is_vector_aligned(dtype.size()) && whole(cols);
            let beside = space.dims.last().copied().unwrap_or(1);
            match operands.split_last() {
                Some((output, inputs))
                    if whole(beside)
                        && inputs.iter().all(in_pieces)
                        && (in_pieces(output) || in_vectors(output)) =>
                {
                    Self::Pieces
                }
                _ => Self::Columns,
            }
        } else if operands.iter().any(|o| o.col_stride != 1) {
            Self::Strided
        } else if operands.iter().all(|o| o.is_vector_aligned(dtype.size())) {
            Self::Aligned
        } else if operands.iter().all(|o| o.is_packed(cols, dtype.size())) {
            Self::Packed
        } else {
            Self::Unaligned
        }
    }

    /// Name as kernels spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aligned => "aligned",
            Self::Unaligned => "unaligned",
            Self::Packed => "packed",
            Self::Strided => "strided",
            Self::Columns => "columns",
            Self::Pieces => "pieces",
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
    /// A cluster of blocks a row, a slice each; the row stays in registers.
    CachedCluster,
    /// The same, and the same bits, for rows that are not aligned: in shared memory.
    Cluster,
    /// As that for a gang of blocks, as many as the GPU runs at once: they meet in global memory.
    Gang,
    /// A gang a row of any length, read twice (once for m and d, once to normalise).
    Stream,
    /// A block or a cluster of them a tile of rows that lie side by side; they stay in shared memory. Each row has
    /// the bits that it has in [`Family::Warp`] or [`Family::Block`].
    Tile,
    /// A block a chunk of whole slabs, (columns, rows side by side) each, in shared memory, for short rows of which few
    /// lie side by side. Each row has the bits that it has in [`Family::Warp`].
    Slab,
    /// A block a tile of rows that lie side by side; they stay in registers. Each row has the threads that it has in
    /// [`Family::Warp`] or [`Family::Block`], and their bits.
    CachedTile,
    /// A block or a cluster of them a tile of rows that lie side by side, in [`Access::Pieces`]; they stay in registers.
    /// Each row has the bits that it has in [`Family::Warp`] or [`Family::Block`].
    CachedSquare,
    /// As [`Family::Tile`] where that does not fit: 32 threads a row play its threads in turns, and read it twice.
    TileStream,
    /// A block a chunk of rows one after another, in shared memory. Each row has the threads that it has in
    /// [`Family::Warp`], and their bits.
    Chunk,
}

impl Family {
    /// Name as kernels spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Warp => "warp",
            Self::Block => "block",
            Self::CachedCluster => "cached_cluster",
            Self::Cluster => "cluster",
            Self::Gang => "gang",
            Self::Stream => "stream",
            Self::Tile => "tile",
            Self::Slab => "slab",
            Self::CachedTile => "cached_tile",
            Self::CachedSquare => "cached_square",
            Self::TileStream => "tile_stream",
            Self::Chunk => "chunk",
        }
    }
}

/// How many rows there are: what decides the shape of tiles, and no bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// All of them.
    pub rows: usize,
    /// The size of their innermost dim: those that lie side by side in [`Access::Columns`] and [`Access::Pieces`].
    pub beside: usize,
    /// Whether every operand is contiguous as (outer, columns, beside).
    pub slabs: bool,
}

impl Extent {
    /// Of these rows.
    pub fn of<const N: usize>(space: &RowSpace<N>) -> Self {
        let beside = space.dims.last().copied().unwrap_or(1);
        // Outer slabs one after another, or a single one.
        let strides = [space.cols.wrapping_mul(beside), 1];
        let dims = space.dims.len();
        let is_slabs =
            |o: &Operand| o.col_stride == beside && o.row_strides == strides[2 - dims.min(2)..];
        Self {
            rows: space.rows,
            beside,
            slabs: matches!(dims, 1 | 2) && space.operands.iter().all(is_slabs),
        }
    }

    /// As many as could be.
    pub const MANY: Self = Self {
        rows: usize::MAX,
        beside: usize::MAX,
        slabs: false,
    };
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
    /// Whether a launch may begin while the one before it in its stream ends (sm_90 and later).
    pub dependent_launch: bool,
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
    /// reads before it uses the first; for those that are for any number, 0. For [`Family::Chunk`] with one lane a row
    /// those of as many rows as a vector has elements: the columns.
    pub vectors: usize,
}

impl Kernel {
    /// Its symbol: `family_op_dtype_access`, and the lanes and vectors it is for.
    pub fn name(&self) -> String {
        let (family, op, dtype) = (self.family.name(), self.op.name(), self.dtype.name());
        let name = format!("{family}_{op}_{dtype}_{}", self.access.name());
        match self.family {
            Family::Warp | Family::Chunk | Family::CachedTile => {
                format!("{name}_{}x{}", self.lanes, self.vectors)
            }
            Family::Block
            | Family::CachedCluster
            | Family::Stream
            | Family::Slab
            | Family::CachedSquare
            | Family::TileStream => format!("{name}_{}", self.vectors),
            Family::Cluster | Family::Gang | Family::Tile => name,
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
    /// Times that a block does so, at most: one unless it is a [`Family::Chunk`].
    pub passes: usize,
    /// Of a [`Family::Tile`], [`Family::CachedSquare`] or [`Family::Slab`], the rows of the innermost dim; tiles do not go on in the next. Else 0.
    pub beside: usize,
    /// Of a [`Family::Tile`] or [`Family::CachedSquare`], threads that share what one thread of the contiguous row has.
    pub runs: usize,
    /// Of a [`Family::Tile`] or [`Family::CachedSquare`], whether it stands for [`Family::Block`].
    pub of_block: bool,
    /// Blocks of a cluster that share one row, or one tile.
    pub cluster: usize,
    /// Blocks that share one row without being a cluster.
    pub gang: usize,
    /// Vectors of a row that one block takes; all of them unless blocks share it.
    pub slice: usize,
    /// Bytes of shared memory that a block asks for.
    pub shared_bytes: usize,
}

impl LaunchPlan {
    /// Threads of a block.
    pub fn block(&self) -> usize {
        match self.kernel.family {
            Family::Chunk => CHUNK_THREADS,
            Family::Tile | Family::CachedSquare => self.tile_threads(),
            Family::Slab => 256, // a constant of kernels/slab.cu
            _ => self.threads_per_row * self.rows_per_block,
        }
    }

    /// Blocks for `rows` rows, or none if a grid cannot have so many.
    pub fn grid(&self, rows: usize, limits: &DeviceLimits) -> Option<usize> {
        let taken = match self.kernel.family {
            Family::Tile | Family::CachedSquare => (rows / self.beside.max(1))
                .checked_mul(self.beside.div_ceil(self.rows_per_block))?,
            _ => rows.div_ceil(self.rows_per_block * self.passes_of(rows, limits)),
        };
        (taken.checked_mul(self.cluster * self.gang)).filter(|&blocks| blocks <= limits.max_grid_x)
    }

    /// Times that a block takes rows: fewer for so few that large chunks would leave multiprocessors idle.
    /// That moves no bits.
    fn passes_of(&self, rows: usize, limits: &DeviceLimits) -> usize {
        let spread = rows.div_ceil(self.rows_per_block * CHUNKS * limits.multiprocessors);
        spread.clamp(1, self.passes)
    }

    /// The kernel's number: the threads that share a row; of slices their vectors, of streamed ones over 32; of tiles and
    /// slabs those threads and the shape of a tile or chunk of slabs (kernels/square.cuh and slab.cu say in which
    /// bits); of chunks their rows.
    pub fn share(&self, rows: usize, limits: &DeviceLimits) -> usize {
        match self.kernel.family {
            Family::CachedCluster | Family::Cluster | Family::Gang => self.slice,
            Family::Stream => self.slice / 32,
            Family::Tile | Family::CachedSquare => self.tile_share(),
            Family::Slab => self.threads_per_row | (self.rows_per_block / self.beside) << 8,
            Family::Chunk => self.rows_per_block * self.passes_of(rows, limits),
            _ => self.threads_per_row * self.turns,
        }
    }

    /// Words of 8 bytes, zeros, in which the gangs of `rows` rows meet (kernels/gang.cuh): a line of the cache for
    /// tickets, and two numbers a block.
    pub fn workspace(&self, rows: usize) -> usize {
        let words = match self.kernel.dtype {
            FloatType::F64 => 2,
            _ => 1,
        };
        match self.gang {
            1 => 0,
            gang => rows.saturating_mul(gang * words).saturating_add(16),
        }
    }
}

#[cfg(test)]
mod tests;
