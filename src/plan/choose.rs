//! Which plan a row gets: the thresholds, with the measurements that set them.

use super::attention::attention_plan;
use super::slabs::slab_plan;
use super::tiles::{cached_tile_plan, square_plan, tile_plan};
use super::{Access, DeviceLimits, Extent, Family, FloatType, Kernel, LaunchPlan, RowOp};

/// Threads of a block in the warp family: 4 warps, so that a block's end idles at most 3 of them.
pub(super) const WARP_BLOCK: usize = 128;
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

/// Threads of a block in the chunk family, a constant of kernels/chunk.cu.
pub(super) const CHUNK_THREADS: usize = 128;
/// Bytes of a chunk, about, and of halves: so many blocks fit an SM that some load while others compute and store,
/// and each does enough to make up for its beginning. 508400x33 f32 takes 39.2 us with 8 KiB, 40.5 with 12, 43 with 16;
/// 516222x65 bf16 41.7, 40.4 and 40.5. Backward half of it, of y and g each: 508400x33 f32 51.6 us with 4, 53.6 with 12.
const CHUNK_BYTES: usize = 8 << 10;
const CHUNK_BYTES_OF_HALVES: usize = 12 << 10;
/// Chunks a multiprocessor, at least, before they get smaller.
pub(super) const CHUNKS: usize = 8;

/// Rows of a tile in the tile stream family, a constant of its kernels: 32 bytes of halves, 64 of f32.
const TILE_STREAM_ROWS: usize = 16;

/// Threads of a block in the cluster family, a constant of kernels/slice.cuh.
const SLICE_THREADS: usize = 256;
/// Most vectors of a slice, forward, while there are more blocks to be had: six a thread. 2048x12288 bf16 takes 27.4 us
/// in one block, 27.8 in two of 768; 2048x16384 36.1 in one of 2048, 35.9 in two; with few rows more blocks are faster.
const SLICE: usize = 1536;
/// But eight blocks before sixteen, with eight vectors a thread: 512x131072 bf16 68.7 us, 70.6 with 16.
const SLICE_OF_EIGHT: usize = 2048;
/// Except up to this, for halves: rows of a vocabulary, often few at a time, of up to 129024 tokens (Llama 3 has 128256).
/// 1x128256 bf16 takes 3.1 us with sixteen blocks, 3.8 with eight; 64x128256 12.0 and 11.9.
const SLICE_OF_SIXTEEN_HALVES: usize = 1008;
/// Likewise backward, of y and g each: 512x131072 bf16 takes 96.2 us, 98.2 with twice as many.
const SLICE_BACKWARD: usize = 1024;
/// Most vectors of a slice of rows that seldom lie aligned, and then pass through shared memory: 32 KiB, of which 6 fit
/// an SM of an H200.
const SLICE_UNALIGNED: usize = 2048;
/// Most vectors a thread keeps of a slice, forward and backward, of what cached_cluster.cu is compiled for.
const CACHED_VECTORS: [usize; 4] = [4, 8, 12, 16];
const CACHED_VECTORS_BACKWARD: [usize; 2] = [4, 8];
/// Shared memory that kernels of slices have besides what they ask for, and the driver's 1 KiB.
const RESERVED_BYTES: usize = 2048;

/// Most vectors of a cluster's slice, of all inputs: 16 a thread. Longer rows are a gang's.
const CLUSTER_MOST: usize = 4096;
/// Vectors of a gang's slice, of all inputs, about: 64x524288 f32 takes 97.5 us with it, 100 with half as much; backward
/// 149.8 and 173.
const GANG_SLICE: usize = 4096;
/// Blocks of the gang family that an SM holds: by their registers, and by this share of its memory, which a slice of
/// theirs has at most. One less where exponentials are of doubles.
const GANG_RESIDENT: usize = 3;

/// Threads of a block that streams: 128 registers each.
const STREAM_BLOCK: usize = 256;
/// Vectors a thread reads ahead in the stream family: 64 bytes in flight a thread.
const STREAM_VECTORS: usize = 4;
/// Blocks of the stream family on an SM. No more, though registers may allow it: more rows in flight than the L2
/// holds are read from memory twice.
const STREAM_RESIDENT: usize = 2;
/// Vectors of a streamed slice, at least: two turns of its threads.
const STREAM_LEAST: usize = 2 * STREAM_BLOCK * STREAM_VECTORS;

/// Lanes and vectors for rows of `row_vectors`, unless they are too long for a warp.
pub(super) fn warp_shape(row_vectors: usize) -> Option<(usize, usize)> {
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
        _ => [(2, 512), (4, 384)],
    }
}

/// Vectors from which on rows that do not end with one, and so seldom lie aligned, are a cluster's: in its shared memory
/// they wait for no registers. 2048x8191 f32 takes 39.8 us there, 44.7 in a block's registers, 4095x4097 39.2 and 43.3;
/// 4096x8191 bf16 42.9 and 46.9; backward 54.4 and 63.1, and of bf16 55.8 and 66.5.
fn most_unaligned(op: RowOp, dtype: FloatType) -> usize {
    match (op, dtype.size()) {
        (RowOp::Softmax, 2) => 640,
        (RowOp::Softmax, _) => 1024,
        _ => 512,
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
    if op.is_attention() {
        return attention_plan(op, dtype, cols, access, limits);
    }
    // Of halves side by side tiles in registers are faster: 65536x7x7 bf16 takes 8.7 us, 9.6 in slabs.
    let in_registers_instead =
        op == RowOp::Softmax && dtype.size() == 2 && access == Access::Columns;
    let may_be_slabs = matches!(access, Access::Columns | Access::Strided) && !in_registers_instead;
    if extent.slabs && may_be_slabs {
        let apart = plan(op, dtype, cols, Access::Strided, limits);
        let slabs = warp_shape(apart.slice)
            .and_then(|shape| slab_plan(&apart, shape, cols, extent, limits));
        if let Some(slabs) = slabs {
            return slabs;
        }
    }
    if access == Access::Pieces {
        let apart = plan(op, dtype, cols, Access::Strided, limits);
        return square_plan(&apart, extent, limits)
            .unwrap_or_else(|| plan_of(op, dtype, cols, extent, Access::Columns, limits));
    }
    if access == Access::Columns {
        let apart = plan(op, dtype, cols, Access::Strided, limits);
        return cached_tile_plan(&apart, limits)
            .or_else(|| tile_plan(&apart, extent, limits))
            .or_else(|| tile_stream_plan(&apart, limits))
            .unwrap_or(apart);
    }
    if access == Access::Packed {
        let apart = plan(op, dtype, cols, Access::Unaligned, limits);
        return chunk_plan(&apart, cols, limits).unwrap_or(apart);
    }
    let row_vectors = cols.div_ceil(dtype.vector_len()).max(1);
    let kernel = |family, lanes, vectors| Kernel {
        op,
        dtype,
        family,
        access,
        lanes,
        vectors,
    };
    let one_block = |kernel, threads_per_row| one_block(kernel, threads_per_row, row_vectors);

    if let Some((lanes, vectors)) = warp_shape(row_vectors) {
        let kernel = match access {
            Access::Aligned => kernel(Family::Warp, lanes, vectors),
            Access::Unaligned => kernel(Family::Warp, 0, vectors),
            _ => kernel(Family::Warp, 0, WARP_STRIDED),
        };
        return LaunchPlan {
            rows_per_block: WARP_BLOCK / lanes,
            ..one_block(kernel, lanes)
        };
    }

    let whole = cols.is_multiple_of(dtype.vector_len());
    let block_shapes = match whole || row_vectors <= most_unaligned(op, dtype) {
        true => &block_shapes(op, dtype, limits)[..],
        false => &[],
    };
    for &(vectors, most_threads) in block_shapes {
        let threads = row_vectors.div_ceil(vectors).next_multiple_of(32);
        if threads <= most_threads.min(limits.max_threads_per_block) {
            if access != Access::Unaligned {
                return one_block(kernel(Family::Block, 0, vectors), threads);
            }
            // They pass through shared memory, where they begin and end inside of a vector; there are kernels for
            // no more vectors than it takes.
            let vectors = row_vectors.div_ceil(threads);
            return LaunchPlan {
                shared_bytes: 16 * (row_vectors + 1) * op.inputs(),
                ..one_block(kernel(Family::Block, 0, vectors), threads)
            };
        }
    }

    let stream = kernel(Family::Stream, 0, STREAM_VECTORS);
    let kernel = |family| kernel(family, 0, 0);
    cluster_plan(kernel(Family::Cluster), row_vectors, whole, limits)
        .map(in_registers)
        .or_else(|| gang_plan(kernel(Family::Gang), row_vectors, limits))
        .unwrap_or_else(|| stream_plan(stream, row_vectors, limits))
}

/// One block for each row, of `slice` vectors: what the other plans differ from.
pub(super) fn one_block(kernel: Kernel, threads_per_row: usize, slice: usize) -> LaunchPlan {
    LaunchPlan {
        kernel,
        threads_per_row,
        turns: 1,
        rows_per_block: 1,
        passes: 1,
        beside: 0,
        runs: 1,
        of_block: false,
        cluster: 1,
        gang: 1,
        slice,
        shared_bytes: 0,
    }
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
    // There are none for two vectors, forward: tiles and their clusters have such rows.
    let compiled = apart.kernel.vectors > 2 || apart.kernel.op == RowOp::SoftmaxBackward;
    (apart.kernel.family == Family::Block
        && compiled
        && plan.block() <= limits.max_threads_per_block)
        .then_some(plan)
}

/// Chunks of rows one after another that would take `apart`, of the warp family; longer rows have none, nor have
/// those of whole vectors, which are aligned.
fn chunk_plan(apart: &LaunchPlan, cols: usize, limits: &DeviceLimits) -> Option<LaunchPlan> {
    let (dtype, lanes) = (apart.kernel.dtype, apart.threads_per_row);
    let len = dtype.vector_len();
    let fits = CHUNK_THREADS <= limits.max_threads_per_block;
    if apart.kernel.family != Family::Warp || cols.is_multiple_of(len) || !fits {
        return None;
    }
    let target = match dtype.size() {
        2 => CHUNK_BYTES_OF_HALVES,
        _ => CHUNK_BYTES,
    } / apart.kernel.op.inputs();
    let (vectors, rows_per_block) = match cols < len {
        // A thread takes `len` rows, which are whole vectors.
        true => (cols, CHUNK_THREADS * len),
        // So many rows too, that the next chunk begins on 16 bytes; both are powers of two.
        false => (apart.slice.div_ceil(lanes), len.max(CHUNK_THREADS / lanes)),
    };
    let pass_bytes = rows_per_block * cols * dtype.size();
    let passes = (target / pass_bytes).max(1);
    Some(LaunchPlan {
        kernel: Kernel {
            family: Family::Chunk,
            access: Access::Packed,
            lanes,
            vectors,
            ..apart.kernel
        },
        rows_per_block,
        passes,
        shared_bytes: apart.kernel.op.inputs() * passes * pass_bytes,
        ..*apart
    })
}

/// The plan of slices in shared memory, `slice` vectors of each input for each of `cluster` blocks or of `gang`, if
/// that is within `room` bytes.
fn slices(
    kernel: Kernel,
    (cluster, gang): (usize, usize),
    slice: usize,
    room: usize,
    limits: &DeviceLimits,
) -> Option<LaunchPlan> {
    // A piece more, since an unaligned slice begins and ends inside of one.
    let shared_bytes = (slice + 1).checked_mul(16 * kernel.op.inputs())?;
    let fits = shared_bytes <= room && SLICE_THREADS <= limits.max_threads_per_block;
    fits.then_some(LaunchPlan {
        cluster,
        gang,
        shared_bytes,
        ..one_block(kernel, SLICE_THREADS, slice)
    })
}

/// Blocks that a row of `row_vectors` is for, if there are so many; `whole`: all its vectors are of 16 bytes.
fn blocks(kernel: &Kernel, row_vectors: usize, whole: bool) -> Option<usize> {
    let of = |slice| row_vectors.div_ceil(slice).checked_next_power_of_two();
    let vocabulary = kernel.dtype.size() == 2 && row_vectors <= SLICE_OF_SIXTEEN_HALVES * 16;
    match kernel.op {
        _ if !whole => of(SLICE_UNALIGNED),
        RowOp::SoftmaxBackward => of(SLICE_BACKWARD),
        RowOp::Softmax if row_vectors <= SLICE_OF_EIGHT * 8 && !vocabulary => {
            Some(of(SLICE)?.min(8))
        }
        _ => of(SLICE),
    }
}

/// A cluster for rows of `row_vectors`, if their slices fit its blocks.
fn cluster_plan(
    kernel: Kernel,
    row_vectors: usize,
    whole: bool,
    limits: &DeviceLimits,
) -> Option<LaunchPlan> {
    let cluster = blocks(&kernel, row_vectors, whole)?.min(limits.max_cluster);
    // Whole warps of vectors.
    let slice = row_vectors.div_ceil(cluster).next_multiple_of(32);
    let most = CLUSTER_MOST / kernel.op.inputs();
    if slice > most {
        return None;
    }
    let room = limits.max_shared_bytes.saturating_sub(RESERVED_BYTES);
    // One block that fills an SM waits for its copies, then computes, then stores, and nothing else runs. And 16
    // of them need as many multiprocessors in one GPC, which not every part of a GPU has.
    let room = if limits.max_cluster == 1 || cluster > 8 {
        room / 2
    } else {
        room
    };
    slices(kernel, (cluster, 1), slice, room, limits)
}

/// A gang for rows of `row_vectors`, of a block an SM at most, each of half an SM or less, as in `stream_plan`: when two
/// such launches, of any kind, have begun, not all of their blocks, there is an SM with room for another.
fn gang_plan(kernel: Kernel, row_vectors: usize, limits: &DeviceLimits) -> Option<LaunchPlan> {
    let resident = match (kernel.op, kernel.dtype) {
        (RowOp::Softmax, FloatType::F64) => GANG_RESIDENT - 1,
        _ => GANG_RESIDENT,
    };
    let room = ((limits.max_shared_bytes + 1024) / resident).saturating_sub(RESERVED_BYTES);
    let inputs = kernel.op.inputs();
    // Whole warps of vectors, beside the piece more.
    let target = (GANG_SLICE / inputs).min((room / (16 * inputs)).saturating_sub(1) / 32 * 32);
    if target == 0 {
        return None;
    }
    let gang = row_vectors.div_ceil(target).min(limits.multiprocessors);
    let slice = row_vectors.div_ceil(gang).next_multiple_of(32);
    slices(
        kernel,
        (1, row_vectors.div_ceil(slice)),
        slice,
        room,
        limits,
    )
}

/// A gang that streams, of one block an SM at most, which is half of what runs at once.
pub(super) fn stream_plan(
    kernel: Kernel,
    row_vectors: usize,
    limits: &DeviceLimits,
) -> LaunchPlan {
    let gang = row_vectors
        .div_ceil(STREAM_LEAST)
        .min(limits.multiprocessors);
    let slice = row_vectors.div_ceil(gang).next_multiple_of(32);
    let threads = limits.max_threads_per_block.min(STREAM_BLOCK);
    LaunchPlan {
        gang: row_vectors.div_ceil(slice),
        // Not used: it keeps another block from the SM.
        shared_bytes: limits.max_shared_bytes / (STREAM_RESIDENT + 1),
        ..one_block(kernel, threads, slice)
    }
}

/// The same plan for registers, if the rows and the slice allow it.
fn in_registers(shared: LaunchPlan) -> LaunchPlan {
    let kernel = shared.kernel;
    let vectors: &[usize] = match kernel.op {
        RowOp::Softmax => &CACHED_VECTORS,
        _ => &CACHED_VECTORS_BACKWARD,
    };
    let fits = |&&vectors: &&usize| shared.slice <= vectors * SLICE_THREADS;
    match vectors.iter().find(fits) {
        Some(&vectors) if kernel.access == Access::Aligned => LaunchPlan {
            kernel: Kernel {
                family: Family::CachedCluster,
                vectors,
                ..kernel
            },
            shared_bytes: 0,
            ..shared
        },
        _ => shared,
    }
}
