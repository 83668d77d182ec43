//! Which plan a row gets: the thresholds, with the measurements that set them.

use super::slabs::slab_plan;
use super::tiles::tile_plan;
use super::{Access, DeviceLimits, Extent, Family, FloatType, Kernel, LaunchPlan, RowOp};

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

/// Rows of a tile in the tile stream family, a constant of its kernels: 32 bytes of halves, 64 of f32.
const TILE_STREAM_ROWS: usize = 16;

/// Threads of a block in the cluster family, a constant of kernels/slice.cuh.
const SLICE_THREADS: usize = 256;
/// Vectors of a slice, forward: 32 KiB, of which 6 fit an SM of an H200. 1024x65536 f32 takes 131.5 us with
/// it, 135.7 with twice as many.
pub(super) const SLICE: usize = 2048;
/// Likewise backward, of y and g each: 512x131072 bf16 takes 100.4 us, 101.0 with twice as many.
const SLICE_BACKWARD: usize = 1024;
/// Shared memory that the cluster family's kernels have besides what they ask for, and the driver's 1 KiB.
const RESERVED_BYTES: usize = 2048;

/// Most threads of a block that streams: 128 registers each.
const STREAM_BLOCK: usize = 512;
/// Vectors a thread reads ahead in the stream family: 64 bytes in flight a thread.
const STREAM_VECTORS: usize = 4;

/// Lanes and vectors for rows of `row_vectors`, unless they are too long for a warp.
fn warp_shape(row_vectors: usize) -> Option<(usize, usize)> {
    let fits = |&(lanes, vectors): &(usize, usize)| row_vectors <= lanes * vectors;
    WARP_SHAPES.into_iter().find(fits)
}

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

/// The plan for rows of `cols` columns, of which there are many. Pure: same arguments, same plan.
pub fn plan(
    op: RowOp,
    dtype: FloatType,
    cols: usize,
    access: Access,
    limits: &DeviceLimits,
) -> LaunchPlan {
    plan_of(op, dtype, cols, Extent::MANY, access, limits)
}

/// The plan for rows of `cols` columns. How many they are moves no bits.
pub fn plan_of(
    op: RowOp,
    dtype: FloatType,
    cols: usize,
    extent: Extent,
    access: Access,
    limits: &DeviceLimits,
) -> LaunchPlan {
    if extent.slabs && matches!(access, Access::Columns | Access::Strided) {
        let apart = plan(op, dtype, cols, Access::Strided, limits);
        let slabs = warp_shape(apart.slice)
            .and_then(|shape| slab_plan(&apart, shape, cols, extent, limits));
        if let Some(slabs) = slabs {
            return slabs;
        }
    }
    if access == Access::Columns {
        let apart = plan(op, dtype, cols, Access::Strided, limits);
        return tile_plan(&apart, extent, limits)
            .or_else(|| tile_stream_plan(&apart, limits))
            .unwrap_or(apart);
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
        beside: 0,
        runs: 1,
        of_block: false,
        cluster: 1,
        slice: row_vectors,
        shared_bytes: 0,
    };

    if let Some((lanes, vectors)) = warp_shape(row_vectors) {
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

/// Tiles that are read twice, for rows that would take `apart`, of the block family.
fn tile_stream_plan(apart: &LaunchPlan, limits: &DeviceLimits) -> Option<LaunchPlan> {
    let plan = LaunchPlan {
        kernel: Kernel {
            family: Family::TileStream,
            access: Access::Columns,
            ..apart.kernel
        },
        threads_per_row: 32,
        turns: apart.threads_per_row / 32,
        rows_per_block: TILE_STREAM_ROWS,
        ..*apart
    };
    (apart.kernel.family == Family::Block && plan.block() <= limits.max_threads_per_block)
        .then_some(plan)
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
        beside: 0,
        runs: 1,
        of_block: false,
        cluster,
        slice,
        shared_bytes,
    })
}
