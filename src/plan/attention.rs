//! Plans for attention scores: fewer families than a plain softmax has, each with the scores' functor (kernels/score.cuh).

use super::choose::{one_block, stream_plan, WARP_BLOCK};
use super::{Access, DeviceLimits, Family, FloatType, Kernel, LaunchPlan, RowOp};

/// Lanes and vectors of the warp family's kernels, shortest rows first: four vectors a lane as soon as a row has them, since
/// finding the row's operands costs each lane as much as two vectors.
const WARP_SHAPES: [(usize, usize); 8] = [
    (1, 1),
    (2, 1),
    (4, 1),
    (4, 2),
    (4, 4),
    (8, 4),
    (16, 4),
    (32, 4),
];
/// Vectors a thread of the block family, and of strided rows: kernels of these are compiled once, for the longest.
const VECTORS: usize = 4;
/// Most threads of a block.
const BLOCK_THREADS: usize = 512;
/// Vectors a thread has under way in the stream family, each as numbers in f32.
const STREAM_VECTORS: usize = 2;

/// The plan for rows of `cols` keys.
pub(super) fn attention_plan(
    op: RowOp,
    dtype: FloatType,
    cols: usize,
    access: Access,
    limits: &DeviceLimits,
) -> LaunchPlan {
    let access = match access {
        Access::Aligned => Access::Aligned,
        Access::Unaligned | Access::Packed => Access::Unaligned,
        Access::Strided | Access::Columns | Access::Pieces => Access::Strided,
    };
    let row_vectors = cols.div_ceil(dtype.vector_len()).max(1);
    let kernel = |family, vectors| Kernel {
        op,
        dtype,
        family,
        access,
        lanes: 0,
        vectors: match access {
            Access::Strided if family != Family::Stream => VECTORS,
            _ => vectors,
        },
    };
    let fits = |&(lanes, vectors): &(usize, usize)| row_vectors <= lanes * vectors;
    if let Some((lanes, vectors)) = WARP_SHAPES.into_iter().find(fits) {
        return LaunchPlan {
            rows_per_block: WARP_BLOCK / lanes,
            ..one_block(kernel(Family::Warp, vectors), lanes, row_vectors)
        };
    }
    let threads = row_vectors.div_ceil(VECTORS).next_multiple_of(32);
    if threads <= BLOCK_THREADS.min(limits.max_threads_per_block) {
        return one_block(kernel(Family::Block, VECTORS), threads, row_vectors);
    }
    stream_plan(
        kernel(Family::Stream, STREAM_VECTORS),
        row_vectors,
        limits,
    )
}
