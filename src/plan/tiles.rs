//! The shape of tiles: rows side by side, in shared memory. None of it moves bits, so it may look at the rows.

use super::{Access, DeviceLimits, Extent, Family, FloatType, Kernel, LaunchPlan, RowOp};

/// Bytes of neighbouring rows, a column: two sectors; and at least, where tiles are few: one.
const WIDE: usize = 64;
/// Where elements are of four bytes and more: the transposed 8192x4096 f32 takes 110.0 us, 113.2 with 64; of bf16 75.2 and
/// 74.6.
const WIDE_OF_FULL: usize = 32;
const NARROW: usize = 32;
/// Bytes of a block's tile from which on a cluster shares it; half of it, where blocks are few.
const PART: usize = 72 << 10;
/// Most blocks of such a cluster: what is portable.
const PARTS: usize = 8;
/// Warps on an SM, as far as the rows and the vectors of a thread suffice.
const WARPS: usize = 12;
/// Threads of a block, at least, for short rows.
const THREADS: usize = 128;
/// Most rows of a tile, of which `share` has the logarithm in four bits.
const MOST_ROWS: usize = 512;
/// Rows of a tile for each that is there, at most: with fewer the threads of a warp are better used otherwise.
const ROWS_FOR_ONE: usize = 2;

impl LaunchPlan {
    /// Threads of a block of a tile.
    pub(super) fn tile_threads(&self) -> usize {
        let groups = self.rows_per_block / self.kernel.dtype.vector_len();
        self.own_shares() * self.lanes() * groups * self.runs
    }

    /// Shares of a row: the warps of the contiguous row, or what it has of one.
    fn shares(&self) -> usize {
        self.threads_per_row.div_ceil(32)
    }
    fn own_shares(&self) -> usize {
        self.shares().div_ceil(self.cluster)
    }
    fn lanes(&self) -> usize {
        self.threads_per_row.min(32)
    }
    /// Vectors of a thread of the contiguous row.
    fn per_thread(&self) -> usize {
        self.slice.div_ceil(self.threads_per_row)
    }

    /// The shape of a tile in bits, as kernels/square.cuh has them.
    pub(super) fn tile_share(&self) -> usize {
        let log2 = |n: usize| n.ilog2() as usize;
        let contiguous = self.threads_per_row | usize::from(self.of_block) << 10;
        let tile = log2(self.rows_per_block) << 12 | self.runs << 16;
        let block = log2(self.lanes()) << 20 | self.own_shares() << 23;
        contiguous | tile | block | self.per_thread() << 28
    }

    /// Bytes of shared memory, as kernels/tile.cu, cached_square.cu and tile_merge.cuh lay it out.
    fn tile_bytes(&self) -> usize {
        let dtype = self.kernel.dtype;
        let (rows, len) = (self.rows_per_block, dtype.vector_len());
        let (number, groups) = (dtype.size().max(4), rows / len);
        let (own, lanes) = (self.own_shares(), self.lanes());
        let (width, last) = (own * lanes, self.per_thread() - 1);
        let vectors = last * width + width.min(self.slice - last * self.threads_per_row);
        let pieces = self.kernel.op.inputs() * vectors * (len * groups + 1);
        let numbers = |row_step: usize, turns: usize| {
            (turns * row_step + 1) * own * rows * number + self.shares() * rows * 2 * number + 16
        };
        match self.kernel.family {
            Family::CachedSquare => own * rows * number + numbers(lanes + 2, last + 1),
            _ => {
                let turns = if self.runs == 1 { 1 } else { last + 1 };
                pieces * 16 + self.runs * own * groups * 16 + numbers(lanes, turns)
            }
        }
    }

    /// The tile that stands for this plan, of the warp or block family, in one block: of so many rows and runs.
    fn tile(
        &self,
        family: Family,
        vectors: usize,
        extent: Extent,
        (rows_per_block, runs): (usize, usize),
    ) -> Self {
        let access = match family {
            Family::CachedSquare => Access::Pieces,
            _ => Access::Columns,
        };
        let plan = Self {
            kernel: Kernel {
                family,
                access,
                lanes: 0,
                vectors,
                ..self.kernel
            },
            rows_per_block,
            runs,
            beside: extent.beside,
            of_block: self.kernel.family == Family::Block,
            ..*self
        };
        plan.with(|_| ())
    }

    fn with(self, change: impl FnOnce(&mut Self)) -> Self {
        let mut plan = self;
        change(&mut plan);
        plan.shared_bytes = plan.tile_bytes();
        plan
    }
}

/// Tiles for rows that would take `apart`, of the warp or block family, unless they do not fit or too few of them
/// lie side by side.
pub(super) fn tile_plan(
    apart: &LaunchPlan,
    extent: Extent,
    limits: &DeviceLimits,
) -> Option<LaunchPlan> {
    let (dtype, threads) = (apart.kernel.dtype, apart.threads_per_row);
    if !matches!(apart.kernel.family, Family::Warp | Family::Block) {
        return None;
    }
    let (len, lanes) = (dtype.vector_len(), threads.min(32));
    let least = (len * 32 / lanes).max(len);
    let wide = match dtype.size() {
        2 => WIDE,
        _ => WIDE_OF_FULL,
    };
    let wanted = (wide / dtype.size()).max(len * THREADS / threads);
    let rows = extent.beside.min(MOST_ROWS).next_power_of_two();
    let rows = wanted.min(rows).max(least);
    if rows > extent.beside.max(len).saturating_mul(ROWS_FOR_ONE) {
        return None;
    }
    let mut plan = apart.tile(Family::Tile, 0, extent, (rows, 1));

    let room = limits.max_shared_bytes.saturating_sub(1 << 10);
    let blocks = |plan: &LaunchPlan| plan.grid(extent.rows, limits).unwrap_or(usize::MAX);
    // Constants of kernels/tile.cu, where squares of halves take more than 128 registers before sm_86.
    let most_threads = if dtype.size() == 2 { 384 } else { 512 };
    let fits = |plan: &LaunchPlan| plan.shared_bytes <= room && plan.block() <= most_threads;
    let few = |plan: &LaunchPlan| blocks(plan) <= limits.multiprocessors / 2;

    let most_parts = PARTS.min(limits.max_cluster).min(plan.shares());
    while 2 * plan.cluster <= most_parts
        && (!fits(&plan)
            || plan.shared_bytes > PART
            || blocks(&plan) < limits.multiprocessors && plan.shared_bytes > PART / 2)
    {
        plan = plan.with(|p| p.cluster *= 2);
    }
    while plan.rows_per_block / 2 >= least
        && (!fits(&plan) || few(&plan) && plan.rows_per_block / 2 * dtype.size() >= NARROW)
    {
        plan = plan.with(|p| p.rows_per_block /= 2);
    }
    // More warps, each with fewer vectors.
    let warps = |plan: &LaunchPlan| {
        let resident = (room / (plan.shared_bytes + (1 << 10))).max(1);
        resident.min(blocks(plan).div_ceil(limits.multiprocessors)) * plan.block() / 32
    };
    while 2 * plan.runs <= len.min(plan.per_thread()) && warps(&plan) < WARPS {
        let more = plan.with(|p| p.runs *= 2);
        if !fits(&more) || warps(&more) <= warps(&plan) {
            break;
        }
        plan = more;
    }
    let threads = limits.max_threads_per_block;
    (fits(&plan) && plan.block() <= threads).then_some(plan)
}

/// Squares of a thread, and its block's threads at most, of what kernels/cached_square.cu is compiled for: as many as
/// registers hold.
fn squares_of(op: RowOp, dtype: FloatType) -> (usize, usize) {
    match (op, dtype.size()) {
        (RowOp::Softmax, 2) => (1, 384),
        (RowOp::Softmax, _) => (2, 512),
        (_, 8) => (2, 256),
        _ => (1, 256),
    }
}

/// Lanes of a row, at least: shorter ones are so many in a tile that their sums take longer than one element an access.
/// 1024x16x1024 bf16 takes 35.1 us, 33.0 in a cached tile, backward f32 71.5 and 58.8; 256x64x1024 bf16 23.9 and 26.6.
fn least_lanes(op: RowOp, dtype: FloatType) -> usize {
    match (op, dtype.size()) {
        (RowOp::Softmax, 4 | 8) => 1,
        _ => 4,
    }
}

/// Tiles in registers, as squares, for rows that would take `apart`, of the warp or block family, unless they do not fit.
pub(super) fn square_plan(
    apart: &LaunchPlan,
    extent: Extent,
    limits: &DeviceLimits,
) -> Option<LaunchPlan> {
    let dtype = apart.kernel.dtype;
    let beside = extent.beside.min(MOST_ROWS);
    let in_place_of_one = matches!(apart.kernel.family, Family::Warp | Family::Block);
    if !in_place_of_one || beside * dtype.size() < NARROW {
        return None;
    }
    let (vectors, most_threads) = squares_of(apart.kernel.op, dtype);
    let most_threads = most_threads.min(limits.max_threads_per_block);
    let (len, lanes) = (dtype.vector_len(), apart.lanes());
    let runs = apart.per_thread().div_ceil(vectors);
    if lanes < least_lanes(apart.kernel.op, dtype) {
        return None;
    }
    let least = (len * 32 / lanes).max(NARROW / dtype.size());
    let wanted = (WIDE / dtype.size()).max(len * THREADS / (apart.threads_per_row * runs));
    let rows = wanted.min(beside.next_power_of_two()).max(least);
    if rows > ROWS_FOR_ONE * beside {
        return None;
    }
    let mut plan = apart.tile(Family::CachedSquare, vectors, extent, (rows, runs));

    let blocks = |plan: &LaunchPlan| plan.grid(extent.rows, limits).unwrap_or(usize::MAX);
    let of_card = limits.multiprocessors;
    let most_parts = PARTS.min(limits.max_cluster).min(plan.shares());
    while 2 * plan.cluster <= most_parts && (plan.block() > most_threads || blocks(&plan) < of_card)
    {
        plan = plan.with(|p| p.cluster *= 2);
    }
    while plan.rows_per_block / 2 >= least
        && (plan.block() > most_threads || blocks(&plan) <= of_card / 2)
    {
        plan = plan.with(|p| p.rows_per_block /= 2);
    }
    let room = limits.max_shared_bytes.saturating_sub(1 << 10);
    (plan.block() <= most_threads && plan.shared_bytes <= room).then_some(plan)
}

/// Rows of a cached tile, at least, for short rows: 32 bytes of halves side by side, 64 of f32. (And two vectors of each
/// row in a warp, where an operand has columns side by side.)
const CACHED_ROWS: usize = 16;
/// Threads of a cached tile of shorter rows still.
const CACHED_BLOCK: usize = 128;
/// Rows of a cached tile of the block family's rows, at least: 32 bytes of f32.
const CACHED_LEAST_ROWS: usize = 8;
/// Threads of such a tile, of 64 registers: two blocks on an SM; and at most.
const CACHED_THREADS: usize = 512;
const CACHED_MOST_THREADS: usize = 1024;
/// Vectors a thread of the block family's rows that have such tiles: those of the short ones of f32 and f64.
const CACHED_VECTORS: usize = 8;

/// Tiles in registers for rows that would take `apart`, of the warp family or the short ones of the block family.
pub(super) fn cached_tile_plan(apart: &LaunchPlan, limits: &DeviceLimits) -> Option<LaunchPlan> {
    let threads = apart.threads_per_row;
    if apart.kernel.op != RowOp::Softmax {
        return None;
    }
    let (lanes, vectors, rows_per_block) = match apart.kernel.family {
        Family::Warp => {
            let (lanes, vectors) = super::choose::warp_shape(apart.slice)?;
            (lanes, vectors, CACHED_ROWS.max(CACHED_BLOCK / lanes))
        }
        Family::Block if apart.kernel.vectors == CACHED_VECTORS => {
            let rows = 1 << (CACHED_THREADS / threads).max(1).ilog2();
            (
                0,
                CACHED_VECTORS,
                CACHED_ROWS.min(CACHED_LEAST_ROWS.max(rows)),
            )
        }
        _ => return None,
    };
    let plan = LaunchPlan {
        kernel: Kernel {
            family: Family::CachedTile,
            access: Access::Columns,
            lanes,
            vectors,
            ..apart.kernel
        },
        rows_per_block,
        ..*apart
    };
    (plan.block() <= limits.max_threads_per_block.min(CACHED_MOST_THREADS)).then_some(plan)
}
