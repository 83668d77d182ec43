//! Plans for every length, dtype and access, with no GPU.

use super::*;
use std::collections::BTreeSet;

/// What CUDA reports alike for T4, A10, A100, H200 and B200.
const LIMITS: DeviceLimits = DeviceLimits {
    max_threads_per_block: 1024,
    max_grid_x: (1 << 31) - 1,
};
const OPS: [RowOp; 2] = [RowOp::Softmax, RowOp::SoftmaxBackward];
const TYPES: [FloatType; 4] = [
    FloatType::F16,
    FloatType::BF16,
    FloatType::F32,
    FloatType::F64,
];
const ACCESSES: [Access; 3] = [Access::Aligned, Access::Unaligned, Access::Strided];

fn lengths() -> impl Iterator<Item = usize> {
    (0..2100).chain((11..34).flat_map(|p| [(1 << p) - 1, 1 << p, (1 << p) + 1]))
}

fn every_plan(mut check: impl FnMut(usize, LaunchPlan)) {
    for op in OPS {
        for dtype in TYPES {
            for access in ACCESSES {
                for cols in lengths() {
                    check(cols, plan(op, dtype, cols, access, &LIMITS));
                }
            }
        }
    }
}

#[test]
fn cached_rows_fit_their_threads() {
    every_plan(|cols, p| {
        let room = p.threads_per_row * p.vectors * p.dtype.vector_len();
        match p.family {
            Family::Warp | Family::Block => assert!(cols <= room, "{cols} {p:?}"),
            Family::Stream => assert!(cols > 4096, "{cols} {p:?}"),
        }
    });
}

#[test]
fn blocks_are_whole_warps_within_the_limit() {
    every_plan(|cols, p| {
        assert_eq!(p.block() % 32, 0, "{cols} {p:?}");
        assert!(p.block() <= LIMITS.max_threads_per_block, "{cols} {p:?}");
        match p.family {
            Family::Warp => assert!(p.threads_per_row.is_power_of_two()),
            Family::Block | Family::Stream => assert_eq!(p.rows_per_block, 1),
        }
    });
}

#[test]
fn access_does_not_move_columns_between_threads() {
    for op in OPS {
        for dtype in TYPES {
            for cols in lengths() {
                let plans = ACCESSES.map(|a| plan(op, dtype, cols, a, &LIMITS));
                for p in &plans {
                    let owner = |p: &LaunchPlan| (p.family, p.threads_per_row);
                    assert_eq!(owner(p), owner(&plans[0]), "{cols} {p:?}");
                }
            }
        }
    }
}

#[test]
fn registers_stay_within_budget() {
    every_plan(|cols, p| {
        let bytes = match (p.family, p.op) {
            (Family::Stream, _) => return,
            // Forward: values in the compute type.
            (_, RowOp::Softmax) => p.vectors * p.dtype.vector_len() * p.dtype.size().max(4),
            // Backward: y and g as loaded.
            (_, RowOp::SoftmaxBackward) => p.vectors * 16 * 2,
        };
        assert!(bytes <= 64 * 4, "{cols} {p:?}: {bytes} bytes a thread");
    });
}

#[test]
fn few_kernels() {
    let mut names = BTreeSet::new();
    every_plan(|_, p| {
        names.insert(p.kernel_name());
    });
    for dtype in TYPES {
        for family in ["warp", "block", "stream"] {
            let count = (names.iter())
                .filter(|n| n.starts_with(family) && n.contains(&format!("_{}_", dtype.name())))
                .count();
            assert!((3..=20).contains(&count), "{family} {dtype:?}: {count}");
        }
    }
}

#[test]
fn table_of_plans() {
    use {Access::*, Family::*, FloatType::*};
    let cases = [
        // dtype, cols, access, family, vectors, threads a row, rows a block
        (F32, 1, Unaligned, Warp, 1, 1, 128),
        (F32, 64, Aligned, Warp, 1, 16, 8),
        (F32, 128, Aligned, Warp, 1, 32, 4),
        (F32, 1024, Aligned, Warp, 8, 32, 4),
        (F32, 1024, Strided, Warp, 8, 32, 4),
        (F32, 128, Strided, Warp, 8, 32, 4),
        (F32, 1025, Unaligned, Block, 4, 96, 1),
        (F32, 4096, Aligned, Block, 4, 256, 1),
        (F32, 8192, Aligned, Block, 4, 512, 1),
        (F32, 8193, Unaligned, Block, 8, 288, 1),
        (F32, 32768, Aligned, Block, 16, 512, 1),
        (F32, 32769, Unaligned, Stream, 4, 512, 1),
        (BF16, 1000, Aligned, Warp, 4, 32, 4),
        (BF16, 32768, Aligned, Block, 8, 512, 1),
        (BF16, 50257, Unaligned, Stream, 4, 512, 1),
        (F16, 2, Unaligned, Warp, 1, 1, 128),
        (F64, 512, Aligned, Warp, 8, 32, 4),
        (F64, 8192, Aligned, Block, 8, 512, 1),
        (F64, 8193, Unaligned, Stream, 4, 512, 1),
    ];
    for (dtype, cols, access, family, vectors, threads_per_row, rows_per_block) in cases {
        let expected = LaunchPlan {
            op: RowOp::Softmax,
            dtype,
            family,
            access,
            vectors,
            threads_per_row,
            rows_per_block,
        };
        assert_eq!(plan(RowOp::Softmax, dtype, cols, access, &LIMITS), expected);
    }
}

#[test]
fn smaller_blocks_fall_back_to_fewer_threads() {
    let limits = DeviceLimits {
        max_threads_per_block: 256,
        ..LIMITS
    };
    let p = plan(
        RowOp::Softmax,
        FloatType::F32,
        32768,
        Access::Aligned,
        &limits,
    );
    assert_eq!((p.family, p.threads_per_row), (Family::Stream, 256));
}

#[test]
fn grid_covers_every_row_up_to_its_limit() {
    let p = plan(RowOp::Softmax, FloatType::F32, 64, Access::Aligned, &LIMITS);
    assert_eq!(p.grid(1, &LIMITS), 1);
    assert_eq!(p.grid(9, &LIMITS), 2);
    assert_eq!(p.grid(usize::MAX / 2, &LIMITS), LIMITS.max_grid_x);
    assert_eq!(p.kernel_name(), "warp_softmax_f32_aligned_1");
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
