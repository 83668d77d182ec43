//! Chunks of slabs: contiguous (outer, cols, inner), whose inner dim is too short or too odd for tiles.

use super::{Access, DeviceLimits, Extent, Family, Kernel, LaunchPlan};

/// Bytes of a slab, (cols, inner), at most: of larger ones a tile has enough of each column.
const SLAB: usize = 4 << 10;
/// Bytes of a chunk; fewer where blocks are few.
const CHUNK: usize = 16 << 10;
const LEAST_CHUNK: usize = 4 << 10;
/// Bytes of neighbouring rows from which on tiles are better, if they begin on 16 bytes: a sector.
const SECTOR: usize = 32;

/// Chunks for rows that would take `apart`, of the warp family; with its lanes and vectors.
pub(super) fn slab_plan(
    apart: &LaunchPlan,
    (lanes, vectors): (usize, usize),
    cols: usize,
    extent: Extent,
    limits: &DeviceLimits,
) -> Option<LaunchPlan> {
    let dtype = apart.kernel.dtype;
    let wide = extent.beside.checked_mul(dtype.size())?;
    let slab = wide.checked_mul(cols)?;
    if !extent.slabs || slab == 0 || slab > SLAB || wide >= SECTOR && wide.is_multiple_of(16) {
        return None;
    }
    // So many that every chunk begins on 16 bytes.
    let slabs = |bytes: usize| {
        let even = dtype.vector_len();
        (bytes / slab / even * even).max(even)
    };
    let few = |bytes: usize| {
        let blocks = extent.rows.div_ceil(extent.beside * slabs(bytes));
        blocks < 2 * limits.multiprocessors
    };
    let mut bytes = CHUNK;
    while bytes > LEAST_CHUNK && few(bytes) {
        bytes /= 2;
    }
    let plan = LaunchPlan {
        kernel: Kernel {
            family: Family::Slab,
            access: Access::Columns,
            lanes: 0,
            vectors,
            ..apart.kernel
        },
        threads_per_row: lanes,
        rows_per_block: slabs(bytes) * extent.beside,
        beside: extent.beside,
        shared_bytes: apart.kernel.op.inputs() * slabs(bytes) * slab,
        ..*apart
    };
    let room = limits.max_shared_bytes.saturating_sub(1 << 10);
    (plan.shared_bytes <= room && plan.block() <= limits.max_threads_per_block).then_some(plan)
}
