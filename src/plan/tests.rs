//! Plans for every length, dtype and access, with no GPU.

use super::*;
use std::collections::BTreeSet;

const fn device(
    multiprocessors: usize,
    max_shared_bytes: usize,
    max_cluster: usize,
) -> DeviceLimits {
    DeviceLimits {
        // CUDA reports these alike for all.
        max_threads_per_block: 1024,
        max_grid_x: (1 << 31) - 1,
        max_shared_bytes,
        max_cluster,
        multiprocessors,
        dependent_launch: max_cluster > 1,
    }
}
const T4: DeviceLimits = device(40, 64 << 10, 1);
const A100: DeviceLimits = device(108, 163 << 10, 1);
const H200: DeviceLimits = device(132, 227 << 10, 16);
const RTX_5090: DeviceLimits = device(170, 99 << 10, 8);
const DEVICES: [DeviceLimits; 4] = [T4, A100, H200, RTX_5090];
const OPS: [RowOp; 2] = [RowOp::Softmax, RowOp::SoftmaxBackward];
const TYPES: [FloatType; 4] = [
    FloatType::F16,
    FloatType::BF16,
    FloatType::F32,
    FloatType::F64,
];
const ACCESSES: [Access; 6] = [
    Access::Aligned,
    Access::Unaligned,
    Access::Packed,
    Access::Strided,
    Access::Columns,
    Access::Pieces,
];

fn lengths() -> impl Iterator<Item = usize> {
    (0..2100).chain((11..34).flat_map(|p| [(1 << p) - 1, 1 << p, (1 << p) + 1]))
}

fn every_plan(mut check: impl FnMut(usize, LaunchPlan, &DeviceLimits)) {
    for device in &DEVICES {
        for op in OPS {
            for dtype in TYPES {
                for access in ACCESSES {
                    for cols in lengths() {
                        check(cols, plan(op, dtype, cols, access, device), device);
                    }
                }
            }
        }
    }
}

fn row_vectors(cols: usize, p: &LaunchPlan) -> usize {
    cols.div_ceil(p.kernel.dtype.vector_len())
}

#[test]
fn rows_fit_where_they_are_kept() {
    every_plan(|cols, p, device| {
        let vectors = row_vectors(cols, &p);
        match p.kernel.family {
            Family::CachedCluster => {
                assert!(vectors <= p.cluster * p.slice, "{cols} {p:?}");
                assert!(
                    p.slice <= p.threads_per_row * p.kernel.vectors,
                    "{cols} {p:?}"
                );
            }
            // A piece of 16 bytes for each of a vector's columns and 16 bytes of rows, at least.
            Family::Tile => {
                let (len, own) = (p.kernel.dtype.vector_len(), vectors / p.cluster);
                let pieces = p.kernel.op.inputs() * own * p.rows_per_block;
                assert!(p.shared_bytes >= pieces * 16, "{cols} {p:?}");
                assert!(vectors <= p.threads_per_row * 8, "{cols} {p:?}");
                assert!(p.runs <= len.min(vectors.max(1).div_ceil(p.threads_per_row)));
            }
            Family::CachedSquare => {
                let of_thread = p.runs * p.kernel.vectors;
                assert!(vectors <= p.threads_per_row * of_thread, "{cols} {p:?}");
                // A sum of each turn, row and lane.
                let turns = vectors.max(1).div_ceil(p.threads_per_row);
                let own = p.threads_per_row.div_ceil(32).div_ceil(p.cluster);
                let sums = turns * own * p.rows_per_block * p.threads_per_row.min(32);
                assert!(p.shared_bytes >= sums * p.kernel.dtype.size().max(4));
            }
            // None: those are slabs of an extent.
            Family::Slab => unreachable!("{cols} {p:?}"),
            Family::Warp | Family::Block | Family::CachedTile | Family::TileStream => {
                assert!(
                    vectors <= p.threads_per_row * p.turns * p.kernel.vectors,
                    "{cols} {p:?}"
                );
                let staged =
                    p.kernel.family == Family::Block && p.kernel.access == Access::Unaligned;
                let pieces = if staged { vectors + 1 } else { 0 };
                assert_eq!(p.shared_bytes, 16 * pieces * p.kernel.op.inputs());
                // All but a thread's last vector are whole: kernels/staged.cuh builds on it.
                let whole = cols / p.kernel.dtype.vector_len();
                assert!(!staged || p.threads_per_row * (p.kernel.vectors - 1) <= whole);
            }
            Family::Cluster => {
                assert!(vectors <= p.cluster * p.slice, "{cols} {p:?}");
                let operands = p.kernel.op.inputs();
                assert_eq!(
                    p.shared_bytes,
                    (p.slice + 1) * 16 * operands,
                    "{cols} {p:?}"
                );
            }
            Family::Gang => {
                assert!(vectors <= p.gang * p.slice, "{cols} {p:?}");
                let operands = if p.kernel.op == RowOp::Softmax { 1 } else { 2 };
                assert_eq!(
                    p.shared_bytes,
                    (p.slice + 1) * 16 * operands,
                    "{cols} {p:?}"
                );
            }
            Family::Stream => {
                assert!(vectors > 1536, "{cols} {p:?}");
                assert!(vectors <= p.gang * p.slice, "{cols} {p:?}");
            }
            Family::Chunk => {
                let (len, rows) = (p.kernel.dtype.vector_len(), p.rows_per_block * p.passes);
                match cols < len {
                    true => assert_eq!((p.kernel.lanes, p.kernel.vectors), (1, cols)),
                    // All but a lane's last vector are whole: kernels/staged.cuh builds on it.
                    false => assert!(
                        vectors <= p.kernel.lanes * p.kernel.vectors
                            && cols / len >= p.kernel.lanes * (p.kernel.vectors - 1),
                        "{cols} {p:?}"
                    ),
                }
                let bytes = rows * cols * p.kernel.dtype.size();
                assert!(bytes.is_multiple_of(16), "the next chunk: {cols} {p:?}");
                let operands = p.kernel.op.inputs();
                assert_eq!(p.shared_bytes, operands * bytes, "{cols} {p:?}");
                // Without a word to the driver.
                assert!(p.shared_bytes <= 48 << 10, "{cols} {p:?}");
            }
        }
        // The driver's; and what there is of static memory in kernels, if there is.
        let reserved = match p.kernel.family {
            Family::Tile | Family::CachedSquare => 1024,
            _ => 2048,
        };
        assert!(
            p.shared_bytes + reserved <= device.max_shared_bytes,
            "{cols} {p:?}"
        );
    });
}

#[test]
fn blocks_are_whole_warps_within_the_limit() {
    every_plan(|cols, p, device| {
        assert_eq!(p.block() % 32, 0, "{cols} {p:?}");
        assert!(p.block() <= device.max_threads_per_block, "{cols} {p:?}");
        match p.kernel.family {
            Family::Warp => {
                assert!(p.threads_per_row.is_power_of_two());
                assert_eq!(p.block(), 128, "what kernels/warp.cu is for");
            }
            // Slots for 16 warps in kernels/reduce.cuh.
            Family::Block => assert!(p.rows_per_block == 1 && p.block() <= 512),
            Family::Stream => assert!(p.block() <= 256, "what kernels/stream.cu is for"),
            Family::CachedCluster | Family::Cluster | Family::Gang => {
                assert_eq!(p.block(), 256, "what kernels/slice.cuh is for")
            }
            Family::Slab => assert_eq!(p.block(), 256, "what kernels/slab.cu is for"),
            // As kernels/cached_tile.cu, tile.cu and tile_stream.cu have it.
            Family::CachedTile => {
                assert!(p.rows_per_block.is_power_of_two());
                match p.kernel.lanes {
                    0 => assert!(matches!(p.rows_per_block, 8 | 16) && p.block() <= 1024),
                    lanes => {
                        assert_eq!(p.threads_per_row, lanes);
                        assert_eq!(p.rows_per_block, if lanes < 8 { 128 / lanes } else { 16 });
                    }
                }
            }
            Family::Tile | Family::CachedSquare => {
                let most = match (p.kernel.family, p.kernel.op, p.kernel.dtype.size()) {
                    (Family::CachedSquare, RowOp::Softmax, 2) => 384,
                    _ => 512, // backward squares 256
                };
                assert!(p.block() <= most, "{cols} {p:?}");
                assert!(p.rows_per_block.is_power_of_two() && p.rows_per_block <= 512);
                assert!(p.rows_per_block >= p.kernel.dtype.vector_len());
                assert!(p.cluster.is_power_of_two());
                // Threads of a row that is less than a warp have a row each to merge, all of them or none.
                assert!(p.runs.is_power_of_two() || p.threads_per_row >= 32);
                let units = p.block() / p.threads_per_row.min(32);
                assert!(p.threads_per_row >= 32 || p.rows_per_block.is_multiple_of(units));
            }
            Family::TileStream => {
                assert_eq!((p.threads_per_row, p.rows_per_block), (32, 16));
                assert!(p.turns <= 16, "{cols} {p:?}");
            }
            Family::Chunk => {
                assert_eq!(p.block(), 128, "what kernels/chunk.cu is for");
                let rows_of_thread = p.rows_per_block * p.threads_per_row / 128;
                assert!(rows_of_thread.is_power_of_two() && rows_of_thread <= 8);
            }
        }
    });
}

#[test]
fn clusters_are_of_blocks_that_a_device_has() {
    every_plan(|cols, p, device| match p.kernel.family {
        Family::CachedCluster | Family::Cluster => {
            assert!(p.cluster <= device.max_cluster && p.cluster.is_power_of_two());
            let used = row_vectors(cols, &p).div_ceil(p.slice);
            assert!(
                2 * used > p.cluster,
                "blocks with nothing to do: {cols} {p:?}"
            );
        }
        // Of the shares of its rows, each block has one at least, or the most that any has of them.
        Family::Tile | Family::CachedSquare => {
            assert!(p.cluster <= p.threads_per_row.div_ceil(32).min(device.max_cluster))
        }
        _ => assert_eq!(p.cluster, 1),
    });
}

/// Blocks that wait for each other must run at once; and with half of the room left, beside another such launch.
#[test]
fn gangs_run_at_once() {
    every_plan(|cols, p, device| {
        let (an_sm, registers) = match p.kernel.family {
            // What kernels/gang.cu and stream.cu bound their registers to at least, on every GPU.
            Family::Gang | Family::Stream => (2, 128),
            _ => return assert_eq!(p.gang, 1, "{cols} {p:?}"),
        };
        assert!(an_sm * p.block() * registers <= 65536, "{cols} {p:?}");
        assert!(an_sm * p.block() <= 1024, "{cols} {p:?}");
        // 1 KiB is the driver's, of which the limit of a block has none; the static slots are below that.
        let shared = an_sm * (p.shared_bytes + 2048);
        assert!(shared <= device.max_shared_bytes + 1024, "{cols} {p:?}");
        assert!(2 * p.gang <= an_sm * device.multiprocessors, "{cols} {p:?}");
        // None with nothing to do.
        assert!(
            row_vectors(cols, &p) > (p.gang - 1) * p.slice,
            "{cols} {p:?}"
        );
    });
}

#[test]
fn gangs_meet_in_zeros_of_their_own() {
    let softmax = |dtype, cols| plan(RowOp::Softmax, dtype, cols, Access::Aligned, &H200);
    assert_eq!(softmax(FloatType::F32, 131_072).workspace(100), 0);
    // A line of the cache, and for each of 64 blocks a word, or two for doubles.
    let p = softmax(FloatType::F32, 1 << 20);
    assert_eq!((p.gang, p.workspace(3)), (64, 16 + 3 * 64));
    assert_eq!(p.grid(3, &H200), Some(3 * 64));
    assert_eq!(p.grid(1 << 25, &H200), None);
    let p = softmax(FloatType::F64, 1 << 19);
    assert_eq!((p.gang, p.workspace(3)), (64, 16 + 3 * 64 * 2));
}

#[test]
fn long_rows_are_spread() {
    let gang = |op, cols, device| {
        let p = plan(op, FloatType::F32, cols, Access::Aligned, device);
        (p.kernel.family, p.gang)
    };
    for (cols, expected) in [
        (262_144, (Family::CachedCluster, 1)),
        (262_145, (Family::Gang, 17)),
        (524_288, (Family::Gang, 32)),
        (1 << 21, (Family::Gang, 128)),
        (1 << 22, (Family::Stream, 132)),
        (1 << 24, (Family::Stream, 132)),
    ] {
        assert_eq!(gang(RowOp::Softmax, cols, &H200), expected, "{cols}");
    }
    for (cols, expected) in [
        (131_072, (Family::CachedCluster, 1)),
        (262_144, (Family::Gang, 32)),
        (1 << 20, (Family::Gang, 128)),
        (1 << 21, (Family::Stream, 132)),
    ] {
        let backward = gang(RowOp::SoftmaxBackward, cols, &H200);
        assert_eq!(backward, expected, "{cols}");
    }
    // Without clusters: vocabularies, of f32.
    assert_eq!(gang(RowOp::Softmax, 50257, &A100), (Family::Gang, 4));
    assert_eq!(gang(RowOp::Softmax, 128_256, &A100), (Family::Gang, 10));
    assert_eq!(gang(RowOp::SoftmaxBackward, 50257, &A100).0, Family::Gang);
    assert_eq!(gang(RowOp::Softmax, 128_256, &T4), (Family::Gang, 26));
}

#[test]
fn access_does_not_move_columns_between_threads() {
    for device in &DEVICES {
        for op in OPS {
            for dtype in TYPES {
                for cols in lengths() {
                    let plans = ACCESSES.map(|a| plan(op, dtype, cols, a, device));
                    for p in &plans {
                        let owner = |p: &LaunchPlan| {
                            // Blocks of a tile's cluster have shares of a row that keep their threads.
                            let of_tile =
                                matches!(p.kernel.family, Family::Tile | Family::CachedSquare);
                            let cluster = if of_tile { 1 } else { p.cluster };
                            let threads = p.threads_per_row * p.turns;
                            (threads, cluster, p.gang, p.slice)
                        };
                        assert_eq!(owner(p), owner(&plans[0]), "{cols} {p:?}");
                        if matches!(p.kernel.family, Family::Tile | Family::CachedSquare) {
                            assert_eq!(p.share(1, device) & 1023, plans[0].share(1, device));
                        }
                        // Tiles and chunks stand for the families that keep a row in registers alone.
                        let family = match p.kernel.family {
                            Family::Chunk => Family::Warp,
                            Family::Tile | Family::CachedSquare if !p.of_block => Family::Warp,
                            Family::CachedTile if p.kernel.lanes > 0 => Family::Warp,
                            Family::CachedTile
                            | Family::CachedSquare
                            | Family::Tile
                            | Family::TileStream => Family::Block,
                            // In registers or in shared memory.
                            Family::CachedCluster => Family::Cluster,
                            family => family,
                        };
                        assert_eq!(family, plans[1].kernel.family, "{cols} {p:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn registers_stay_within_budget() {
    every_plan(|cols, p, _| {
        let vectors = p.kernel.vectors;
        let bytes = match (p.kernel.family, p.kernel.op) {
            (Family::Stream | Family::Cluster | Family::Gang, _) => return,
            // Values as loaded.
            (Family::CachedCluster, RowOp::Softmax) => {
                assert!(vectors * 16 <= 64 * 4, "{cols} {p:?}");
                return;
            }
            (Family::CachedCluster, _) => {
                assert!(2 * vectors * 16 <= 64 * 4, "{cols} {p:?}");
                return;
            }
            // Squares as loaded, of as many columns as rows.
            (Family::CachedSquare, op) => {
                let square = p.kernel.dtype.vector_len() * 16;
                assert!(op.inputs() * vectors * square <= 64 * 4, "{cols} {p:?}");
                return;
            }
            // As loaded, and one row after another computed: the gate knows the rest.
            (Family::Chunk, _) if p.kernel.lanes == 1 => vectors * 16,
            // Forward: values in the compute type.
            (_, RowOp::Softmax) => {
                vectors * p.kernel.dtype.vector_len() * p.kernel.dtype.size().max(4)
            }
            // Backward: y and g as loaded.
            (_, RowOp::SoftmaxBackward) => vectors * 16 * 2,
        };
        assert!(bytes <= 32 * 4, "{cols} {p:?}: {bytes} bytes a thread");
    });
}

#[test]
fn few_kernels() {
    let mut names = BTreeSet::new();
    every_plan(|_, p, _| {
        names.insert(p.kernel.name());
    });
    for dtype in TYPES {
        for family in [
            "warp",
            "block",
            "cached_cluster",
            "cluster",
            "gang",
            "stream",
            "tile",
            "cached_tile",
            "cached_square",
            "chunk",
        ] {
            let count = (names.iter())
                .filter(|n| n.starts_with(family) && n.contains(&format!("_{}_", dtype.name())))
                .count();
            assert!((2..=34).contains(&count), "{family} {dtype:?}: {count}");
        }
    }
}

#[test]
fn table_of_plans() {
    use {Access::*, FloatType::*};
    // dtype, cols, access, kernel, threads a row, rows a block, cluster, slice
    #[rustfmt::skip]
    let cases = [
        (F32, 1, Unaligned, "warp_softmax_f32_unaligned_0x1", 1, 128, 1, 1),
        (F32, 1, Packed, "chunk_softmax_f32_packed_1x1", 1, 512, 1, 1),
        (F32, 3, Packed, "chunk_softmax_f32_packed_1x3", 1, 512, 1, 1),
        (F32, 5, Packed, "chunk_softmax_f32_packed_2x1", 2, 64, 1, 2),
        (F32, 511, Packed, "chunk_softmax_f32_packed_32x4", 32, 4, 1, 128),
        (F32, 513, Packed, "block_softmax_f32_unaligned_5", 32, 1, 1, 129),
        (BF16, 7, Packed, "chunk_softmax_bf16_packed_1x7", 1, 1024, 1, 1),
        (BF16, 1001, Packed, "chunk_softmax_bf16_packed_32x4", 32, 8, 1, 126),
        (F32, 64, Aligned, "warp_softmax_f32_aligned_8x2", 8, 16, 1, 16),
        (F32, 128, Aligned, "warp_softmax_f32_aligned_16x2", 16, 8, 1, 32),
        (F32, 128, Strided, "warp_softmax_f32_strided_0x4", 16, 8, 1, 32),
        (F32, 512, Aligned, "warp_softmax_f32_aligned_32x4", 32, 4, 1, 128),
        (F32, 1024, Aligned, "block_softmax_f32_aligned_8", 32, 1, 1, 256),
        (F32, 4096, Aligned, "block_softmax_f32_aligned_8", 128, 1, 1, 1024),
        (F32, 4095, Unaligned, "block_softmax_f32_unaligned_8", 128, 1, 1, 1024),
        (F32, 4097, Unaligned, "cluster_softmax_f32_unaligned", 256, 1, 1, 1056),
        (F32, 4100, Unaligned, "block_softmax_f32_unaligned_4", 288, 1, 1, 1025),
        (F32, 8192, Strided, "block_softmax_f32_strided_4", 512, 1, 1, 2048),
        (F32, 8193, Unaligned, "cluster_softmax_f32_unaligned", 256, 1, 2, 1056),
        (F32, 32768, Aligned, "cached_cluster_softmax_f32_aligned_4", 256, 1, 8, 1024),
        (F32, 65536, Aligned, "cached_cluster_softmax_f32_aligned_8", 256, 1, 8, 2048),
        (F32, 131_072, Aligned, "cached_cluster_softmax_f32_aligned_8", 256, 1, 16, 2048),
        (F32, 151_936, Aligned, "cached_cluster_softmax_f32_aligned_12", 256, 1, 16, 2400),
        (F32, 262_144, Aligned, "cached_cluster_softmax_f32_aligned_16", 256, 1, 16, 4096),
        (F32, 458_752, Aligned, "gang_softmax_f32_aligned", 256, 1, 1, 4096),
        (F32, 1 << 20, Columns, "gang_softmax_f32_strided", 256, 1, 1, 4096),
        (F32, 1 << 22, Aligned, "stream_softmax_f32_aligned_4", 256, 1, 1, 7968),
        (F32, 7, Columns, "cached_tile_softmax_f32_columns_2x1", 2, 64, 1, 2),
        (F32, 512, Columns, "cached_tile_softmax_f32_columns_32x4", 32, 16, 1, 128),
        (F32, 1000, Columns, "cached_tile_softmax_f32_columns_0x8", 32, 16, 1, 250),
        (F32, 4096, Columns, "cached_tile_softmax_f32_columns_0x8", 128, 8, 1, 1024),
        (F32, 8192, Columns, "tile_softmax_f32_columns", 512, 8, 8, 2048),
        (F32, 8193, Columns, "cluster_softmax_f32_strided", 256, 1, 2, 1056),
        (F32, 7, Pieces, "cached_square_softmax_f32_pieces_2", 2, 256, 1, 2),
        (F32, 1000, Pieces, "cached_square_softmax_f32_pieces_2", 32, 16, 1, 250),
        (F32, 8192, Pieces, "cached_square_softmax_f32_pieces_2", 512, 16, 8, 2048),
        (F32, 8193, Pieces, "cluster_softmax_f32_strided", 256, 1, 2, 1056),
        (BF16, 7, Pieces, "cached_tile_softmax_bf16_columns_1x1", 1, 128, 1, 1),
        (BF16, 1000, Pieces, "cached_square_softmax_bf16_pieces_1", 32, 16, 1, 125),
        (BF16, 8192, Pieces, "cached_square_softmax_bf16_pieces_1", 256, 16, 8, 1024),
        (BF16, 1000, Columns, "cached_tile_softmax_bf16_columns_32x4", 32, 16, 1, 125),
        (BF16, 2048, Columns, "tile_softmax_bf16_columns", 128, 32, 4, 256),
        (BF16, 4096, Columns, "tile_softmax_bf16_columns", 128, 32, 4, 512),
        (BF16, 8192, Columns, "tile_softmax_bf16_columns", 256, 32, 8, 1024),
        (BF16, 1000, Aligned, "warp_softmax_bf16_aligned_32x4", 32, 4, 1, 125),
        (BF16, 2048, Aligned, "block_softmax_bf16_aligned_2", 128, 1, 1, 256),
        (BF16, 8192, Aligned, "block_softmax_bf16_aligned_4", 256, 1, 1, 1024),
        (BF16, 12288, Aligned, "cached_cluster_softmax_bf16_aligned_8", 256, 1, 1, 1536),
        (BF16, 16384, Aligned, "cached_cluster_softmax_bf16_aligned_4", 256, 1, 2, 1024),
        (BF16, 128_256, Aligned, "cached_cluster_softmax_bf16_aligned_4", 256, 1, 16, 1024),
        (BF16, 131_072, Aligned, "cached_cluster_softmax_bf16_aligned_8", 256, 1, 8, 2048),
        (BF16, 50257, Unaligned, "cluster_softmax_bf16_unaligned", 256, 1, 4, 1600),
        (F16, 2, Unaligned, "warp_softmax_f16_unaligned_0x1", 1, 128, 1, 1),
        (F64, 4096, Aligned, "block_softmax_f64_aligned_4", 512, 1, 1, 2048),
        (F64, 8193, Unaligned, "cluster_softmax_f64_unaligned", 256, 1, 4, 1056),
    ];
    for (dtype, cols, access, name, threads_per_row, rows_per_block, cluster, slice) in cases {
        let p = plan(RowOp::Softmax, dtype, cols, access, &H200);
        assert_eq!(p.kernel.name(), name, "{cols}");
        let shape = (p.threads_per_row, p.rows_per_block, p.cluster, p.slice);
        let expected = (threads_per_row, rows_per_block, cluster, slice);
        assert_eq!(shape, expected, "{name} {cols}");
    }
    let backward = plan(RowOp::SoftmaxBackward, F16, 131_072, Aligned, &H200);
    assert_eq!((backward.cluster, backward.slice), (16, 1024));
}

#[test]
fn other_devices_get_what_they_have() {
    let family = |cols, limits: &DeviceLimits| {
        plan(
            RowOp::Softmax,
            FloatType::F32,
            cols,
            Access::Aligned,
            limits,
        )
        .kernel
        .family
    };
    // Registers of one block, or a gang.
    assert_eq!(family(16384, &A100), Family::CachedCluster);
    assert_eq!(family(32768, &A100), Family::Gang);
    assert_eq!(family(16384, &T4), Family::Gang);
    assert_eq!(family(1 << 22, &T4), Family::Stream);
    assert_eq!(family(131_072, &RTX_5090), Family::CachedCluster);
    let small = DeviceLimits {
        max_threads_per_block: 128,
        ..H200
    };
    assert_eq!(family(4096, &small), Family::Block);
    let p = plan(
        RowOp::Softmax,
        FloatType::F32,
        32768,
        Access::Aligned,
        &small,
    );
    assert_eq!((p.kernel.family, p.threads_per_row), (Family::Stream, 128));
    let small = DeviceLimits {
        max_threads_per_block: 64,
        ..H200
    };
    let p = plan(RowOp::Softmax, FloatType::F32, 512, Access::Columns, &small);
    assert_eq!(p.kernel.name(), "warp_softmax_f32_strided_0x4");
}

#[test]
fn share_is_of_threads_or_of_a_slice() {
    let softmax = |cols| plan(RowOp::Softmax, FloatType::F32, cols, Access::Aligned, &H200);
    assert_eq!(softmax(64).share(1, &H200), 8);
    assert_eq!(softmax(4096).share(1000, &H200), 128);
    // 16 turns of 32 threads.
    let turns = plan(RowOp::Softmax, FloatType::F32, 8192, Access::Columns, &T4);
    assert_eq!((turns.turns, turns.share(1, &T4)), (16, 512));
    // 512 threads of the block family with 4 vectors each; 8 rows, one run; 32 lanes, 2 shares a block.
    let tile = plan(RowOp::Softmax, FloatType::F32, 8192, Access::Columns, &H200);
    let contiguous = 512 | 1 << 10 | 4 << 28;
    let bits = contiguous | 3 << 12 | 1 << 16 | 5 << 20 | 2 << 23;
    assert_eq!(tile.share(1, &H200), bits);
    // The same in squares: 16 rows, two runs.
    let tile = plan(RowOp::Softmax, FloatType::F32, 8192, Access::Pieces, &H200);
    let bits = contiguous | 4 << 12 | 2 << 16 | 5 << 20 | 2 << 23;
    assert_eq!(tile.share(1, &H200), bits);
    // 16 slices of 2048 vectors.
    let long = softmax(131_072);
    assert_eq!((long.cluster, long.share(1000, &H200)), (16, 2048));
    assert_eq!(softmax(524_288).share(4, &H200), 4096);
    // Streamed: 7968 vectors, in turns of 32.
    assert_eq!(softmax(1 << 22).share(1, &H200), 249);
}

#[test]
fn chunks_are_large_where_rows_are_many() {
    // A pass of 16 rows of 33 columns is 2112 bytes.
    let p = plan(RowOp::Softmax, FloatType::F32, 33, Access::Packed, &H200);
    let rows_of_chunk = |rows| (p.share(rows, &H200), p.grid(rows, &H200));
    assert_eq!(p.kernel.name(), "chunk_softmax_f32_packed_8x2");
    assert_eq!((p.rows_per_block, p.passes), (16, 3));
    assert_eq!(rows_of_chunk(1), (16, Some(1)));
    assert_eq!(rows_of_chunk(16 * 132 * 8), (16, Some(132 * 8)));
    assert_eq!(rows_of_chunk(16 * 132 * 8 + 1), (32, Some(132 * 4 + 1)));
    assert_eq!(rows_of_chunk(1 << 20), (48, Some(21846)));
    assert_eq!(p.grid(usize::MAX, &H200), None);
}

#[test]
fn grids_cover_every_row_or_are_none() {
    let p = plan(RowOp::Softmax, FloatType::F32, 64, Access::Aligned, &H200);
    assert_eq!(p.grid(1, &H200), Some(1));
    assert_eq!(p.grid(17, &H200), Some(2));
    assert_eq!(p.grid(usize::MAX, &H200), None);
    let p = plan(
        RowOp::Softmax,
        FloatType::F32,
        65536,
        Access::Aligned,
        &H200,
    );
    assert_eq!((p.grid(3, &H200), p.cluster), (Some(24), 8));
    assert_eq!(p.grid(usize::MAX, &H200), None);
}

#[test]
fn tiles_fill_the_card() {
    let tile_of = |access, dtype, cols, outer: usize, beside: usize| {
        let extent = Extent {
            rows: outer * beside,
            beside,
            slabs: false,
        };
        let p = plan_of(RowOp::Softmax, dtype, cols, extent, access, &H200);
        let blocks = p.grid(extent.rows, &H200);
        (p.rows_per_block, p.cluster, p.runs, p.block(), blocks)
    };
    let tile = |dtype, cols, outer, beside| tile_of(Access::Columns, dtype, cols, outer, beside);
    let squares = |dtype, cols, outer, beside| tile_of(Access::Pieces, dtype, cols, outer, beside);
    // Rows, blocks that share them, runs; threads of a block, blocks.
    let (f32, bf16) = (FloatType::F32, FloatType::BF16);
    assert_eq!(tile(f32, 1000, 64, 256), (16, 1, 1, 512, Some(1024)));
    assert_eq!(tile(bf16, 1000, 64, 256), (16, 1, 1, 512, Some(1024)));
    assert_eq!(tile(f32, 4096, 8, 64), (8, 1, 1, 1024, Some(64)));
    assert_eq!(tile(bf16, 4096, 8, 64), (16, 4, 4, 256, Some(128)));
    assert_eq!(tile(f32, 8192, 1, 4096), (8, 8, 1, 128, Some(4096)));
    assert_eq!(tile(bf16, 8192, 1, 4096), (32, 8, 1, 128, Some(1024)));
    assert_eq!(squares(f32, 1000, 64, 256), (16, 1, 4, 512, Some(1024)));
    assert_eq!(squares(bf16, 1000, 64, 256), (16, 1, 4, 256, Some(1024)));
    assert_eq!(squares(f32, 4096, 8, 64), (16, 4, 4, 512, Some(128)));
    assert_eq!(squares(bf16, 4096, 8, 64), (16, 4, 4, 256, Some(128)));
    assert_eq!(squares(f32, 8192, 1, 4096), (16, 8, 2, 512, Some(2048)));
    assert_eq!(squares(bf16, 8192, 1, 4096), (16, 8, 4, 256, Some(2048)));
    // Few rows beside each other: fewer in a tile; those in registers go over several outer ones.
    assert_eq!(tile(f32, 8192, 9, 7).0, 8);
    let mut few = Extent {
        rows: 65536 * 7,
        beside: 7,
        slabs: false,
    };
    let plan_few = |few| plan_of(RowOp::Softmax, f32, 7, few, Access::Columns, &H200);
    assert_eq!(plan_few(few).kernel.family, Family::CachedTile);
    // Contiguous slabs: 80 of 196 bytes a chunk.
    few.slabs = true;
    let p = plan_few(few);
    assert_eq!(p.kernel.name(), "slab_softmax_f32_columns_1");
    assert_eq!((p.rows_per_block, p.block()), (80 * 7, 256));
    assert_eq!(
        (p.shared_bytes, p.share(few.rows, &H200)),
        (80 * 196, 2 | 80 << 8)
    );
    assert_eq!(p.grid(few.rows, &H200), Some(820));
    // Rows that tiles access in whole sectors; slabs that are too large.
    let beside = |cols, beside| {
        let extent = Extent {
            rows: 1 << 20,
            beside,
            slabs: true,
        };
        plan_of(RowOp::Softmax, f32, cols, extent, Access::Columns, &H200)
            .kernel
            .family
    };
    assert_eq!(beside(7, 32), Family::CachedTile);
    assert_eq!(beside(7, 9), Family::Slab);
    assert_eq!(beside(400, 9), Family::CachedTile);
}

#[test]
fn slabs_are_contiguous() {
    use candle_core::{Layout, Shape};
    let slabs = |dims: &[usize], strides: &[usize]| {
        let x = Layout::new(Shape::from(dims), strides.to_vec(), 5);
        let y = Layout::contiguous(dims);
        Extent::of(&RowSpace::new("op", [&x, &y], 1).expect("a row space")).slabs
    };
    assert!(slabs(&[9, 7, 5], &[35, 5, 1]));
    assert!(slabs(&[1, 7, 5], &[35, 5, 1]));
    // A part of each slab; slabs apart; rows apart; another order; no rows side by side.
    assert!(!slabs(&[9, 7, 4], &[35, 5, 1]));
    assert!(!slabs(&[9, 7, 5], &[36, 5, 1]));
    assert!(!slabs(&[9, 7, 5], &[70, 10, 2]));
    assert!(!slabs(&[9, 7, 5], &[5, 45, 1]));
    assert!(!slabs(&[9, 7], &[1, 9]));
}

#[test]
fn columns_are_for_rows_side_by_side() {
    use crate::rows::RowSpace;
    use candle_core::{Layout, Shape};
    let access = |dims: &[usize], strides: &[usize]| {
        let x = Layout::new(Shape::from(dims), strides.to_vec(), 0);
        let y = Layout::contiguous(dims);
        let space = RowSpace::new("op", [&x, &y], 1).expect("a row space");
        Access::of(&space, FloatType::F32)
    };
    assert_eq!(access(&[64, 1000, 256], &[256_000, 256, 1]), Access::Pieces);
    assert_eq!(access(&[9, 7, 7], &[49, 7, 1]), Access::Columns);
    // A transposed matrix, though its result is contiguous; with rows that end inside of a vector.
    assert_eq!(access(&[4096, 8192], &[1, 4096]), Access::Pieces);
    assert_eq!(access(&[4096, 8191], &[1, 4096]), Access::Columns);
    // Parts of slabs: rows that begin on 16 bytes everywhere, or not.
    assert_eq!(access(&[9, 7, 8], &[84, 12, 1]), Access::Pieces);
    assert_eq!(access(&[9, 7, 8], &[70, 10, 1]), Access::Columns);
    assert_eq!(access(&[9, 7, 8], &[85, 12, 1]), Access::Columns);
    assert_eq!(access(&[9, 7, 6], &[84, 12, 1]), Access::Columns);
    assert_eq!(access(&[8192, 4096], &[4096, 1]), Access::Aligned);
    // Few rows between columns; rows apart; every other column; one row; a window, its rows and columns alike.
    assert_eq!(access(&[9, 7, 3], &[21, 3, 1]), Access::Strided);
    assert_eq!(access(&[8, 100], &[2, 16]), Access::Strided);
    assert_eq!(access(&[8, 100], &[200, 2]), Access::Strided);
    assert_eq!(access(&[1, 100], &[1, 16]), Access::Strided);
    assert_eq!(access(&[8, 100], &[1, 1]), Access::Unaligned);
}

#[test]
fn packed_rows_have_nothing_between_them() {
    use crate::rows::RowSpace;
    use candle_core::{Layout, Shape};
    let access = |stride: usize, offset: usize, dtype| {
        let x = Layout::new(Shape::from((9, 5)), vec![stride, 1], offset);
        let y = Layout::contiguous((9, 5));
        let space = RowSpace::new("op", [&x, &y], 1).expect("a row space");
        Access::of(&space, dtype)
    };
    assert_eq!(access(5, 0, FloatType::F32), Access::Packed);
    assert_eq!(access(5, 4, FloatType::F32), Access::Packed);
    assert_eq!(access(5, 4, FloatType::BF16), Access::Unaligned);
    assert_eq!(access(6, 0, FloatType::F32), Access::Unaligned);
    assert_eq!(access(5, 1, FloatType::F32), Access::Unaligned);
}

#[test]
fn only_real_floats_have_a_type() {
    let floats = [DType::F16, DType::BF16, DType::F32, DType::F64];
    for dtype in floats {
        let float = FloatType::from_dtype(dtype).map(|t| (t.name().to_owned(), t.size()));
        assert_eq!(
            float,
            Some((dtype.as_str().to_owned(), dtype.size_in_bytes()))
        );
    }
    for dtype in [DType::U8, DType::U32, DType::I64, DType::F8E4M3, DType::F4] {
        assert_eq!(FloatType::from_dtype(dtype), None);
    }
}

/// No columns, or no rows: operators launch nothing, but a plan is no panic.
#[test]
fn empty_extents_have_plans() {
    use crate::rows::RowSpace;
    use candle_core::Layout;
    for (shape, dim) in [
        (&[4, 3, 0][..], 1),
        (&[3, 0], 0),
        (&[64, 0], 0),
        (&[2, 3, 0, 5], 1),
        (&[2, 0, 8], 1),
    ] {
        let at = Layout::contiguous(shape);
        let space = RowSpace::new("op", [&at, &at], dim).expect("a row space");
        for dtype in TYPES {
            for access in ACCESSES {
                let extent = Extent::of(&space);
                let p = plan_of(RowOp::Softmax, dtype, space.cols, extent, access, &H200);
                assert!(p.block() > 0, "{shape:?} {p:?}");
            }
        }
    }
}
