//! The contract's table: -inf, NaN and +inf at every class of position, beside finite rows that
//! must not notice.

use crate::accuracy::check;
use crate::compare::values;
use crate::inputs::{normal, nothing, stack, tensor, Rng, DTYPES};
use candle_core::backend::BackendDevice;
use candle_core::cpu_backend::CpuDevice;
use candle_core::{DType, Device, InplaceOp1, Result, Tensor};
use candle_online_softmax::{softmax, softmax_last_dim, OnlineSoftmax};

on_devices!(
    one_special_value,
    minus_inf_patterns,
    mixed_special_values,
    rank_0,
    numbers_alone,
    empty_shapes,
    results_are_contiguous,
    input_is_not_written,
);

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

/// One width or more a kernel family, and both sides of its vectors.
const WIDTHS: [usize; 21] = [
    1, 2, 3, 5, 8, 17, 32, 33, 64, 100, 127, 129, 256, 257, 1000, 1025, 2048, 4097, 8193, 16385,
    70001,
];

/// First, last, and both sides of every vector, warp and block boundary.
fn positions(cols: usize) -> Vec<usize> {
    let mut all = vec![
        0, 1, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 255, 256, 1023, 1024,
    ];
    all.extend([4095, 4096, cols / 2, cols.saturating_sub(2), cols - 1]);
    all.retain(|&p| p < cols);
    all.sort_unstable();
    all.dedup();
    if cols > 5000 {
        all.retain(|p| [0, 8, 127, 128, 1024, 4096, cols / 2, cols - 1].contains(p));
    }
    all
}

/// Checks rows against the reference, which is the table; each stands between finite rows.
fn check_rows(rows: Vec<Vec<f64>>, dtype: DType, device: &Device, what: &str) -> Result<()> {
    let cols = rows[0].len();
    let mut rng = Rng::new(cols as u64);
    let finite: Vec<f64> = (0..cols).map(|_| rng.normal()).collect();
    let mut all = vec![finite.clone()];
    for row in rows {
        all.extend([row, finite.clone()]);
    }
    let x = tensor(&stack(&all), &[all.len(), cols], dtype, device)?;
    check(&x, what)
}

/// A row of normal values with some replaced.
fn replaced(cols: usize, replace: impl Fn(usize) -> Option<f64>) -> Vec<f64> {
    let mut rng = Rng::new(cols as u64 + 7);
    let mut value = |i| {
        let v = rng.normal();
        replace(i).unwrap_or(v)
    };
    (0..cols).map(&mut value).collect()
}

fn one_special_value(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for cols in WIDTHS {
            let mut rows = vec![];
            for p in positions(cols) {
                for special in [NAN, INF, -INF] {
                    rows.push(replaced(cols, |i| (i == p).then_some(special)));
                }
                rows.push(replaced(cols, |i| (i != p).then_some(-INF)));
            }
            check_rows(rows, dtype, device, "one special value")?;
        }
    }
    Ok(())
}

/// Threads, vectors, warps and blocks that see nothing but -inf, and whole rows of it.
fn minus_inf_patterns(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for cols in WIDTHS {
            let mut rows = vec![vec![-INF; cols]];
            for k in [1, 4, 8, 32, 64, 128, 256, 1024, 4096].map(|k| k.min(cols - 1)) {
                rows.push(replaced(cols, |i| (i < k).then_some(-INF)));
                rows.push(replaced(cols, |i| (i >= cols - k).then_some(-INF)));
                rows.push(replaced(cols, |i| (i % (k + 1) == k).then_some(-INF)));
            }
            for threads in [32, 128, 256, 1024] {
                for vector in [1, 2, 4, 8] {
                    let lane = |i: usize| (i / vector) % threads;
                    rows.push(replaced(cols, |i| (lane(i) == 5).then_some(-INF)));
                    rows.push(replaced(cols, |i| (lane(i) != 5 && i > 0).then_some(-INF)));
                }
            }
            check_rows(rows, dtype, device, "minus infinity patterns")?;
        }
    }
    Ok(())
}

fn mixed_special_values(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for cols in WIDTHS.into_iter().filter(|&c| c > 2) {
            let pair = |a: f64, b: f64, p: usize, q: usize| {
                replaced(cols, move |i| match i {
                    _ if i == p => Some(a),
                    _ if i == q => Some(b),
                    _ => None,
                })
            };
            let mut rows = vec![];
            for (p, q) in [(0, cols - 1), (cols - 1, 0), (1, cols / 2), (cols / 2, 0)] {
                for (a, b) in [(NAN, INF), (NAN, -INF), (INF, -INF), (INF, INF), (NAN, NAN)] {
                    rows.push(pair(a, b, p, q));
                }
                // A NaN, and +inf, among nothing but -inf.
                for special in [NAN, INF, 0.0] {
                    let mut row = vec![-INF; cols];
                    row[p] = special;
                    rows.push(row);
                }
            }
            check_rows(rows, dtype, device, "mixed special values")?;
        }
    }
    Ok(())
}

/// A row of one column is 1: on the CPU exactly, on CUDA but for the last bits of f32 and f64.
fn numbers_alone(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for (shape, dim) in [
            (&[2000, 1][..], 1),
            (&[1, 2000], 0),
            (&[40, 1, 50], 1),
            (&[1, 1], 0),
        ] {
            let x = crate::inputs::normal(7, shape, dtype, device)?;
            let strided = x.transpose(0, shape.len() - 1)?.force_contiguous()?;
            let strided = strided.transpose(0, shape.len() - 1)?;
            let in_place = x.transpose(dim, shape.len() - 1)?.force_contiguous()?;
            in_place.inplace_op1(&OnlineSoftmax)?;
            for y in [softmax(&x, dim)?, softmax(&strided, dim)?, in_place] {
                let off = |y: &f64| (y - 1.0).abs() > if device.is_cpu() { 0.0 } else { 2e-6 };
                assert_eq!(
                    values(&y)?.into_iter().find(off),
                    None,
                    "{shape:?} {dtype:?}"
                );
            }
        }
    }
    Ok(())
}

fn rank_0(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for (input, want) in [
            (3.5, 1.0),
            (0.0, 1.0),
            (-1e4, 1.0),
            (INF, NAN),
            (-INF, NAN),
            (NAN, NAN),
        ] {
            let x = tensor(&[input], &[], dtype, device)?;
            let in_place = tensor(&[input], &[], dtype, device)?;
            in_place.inplace_op1(&OnlineSoftmax)?;
            let last = softmax(&x, candle_core::D::Minus1)?;
            let all = [
                x.apply_op1(OnlineSoftmax)?,
                softmax_last_dim(&x)?,
                softmax(&x, 0)?,
                last,
                in_place,
            ];
            assert!(softmax(&x, 1).is_err());
            for y in all {
                assert_eq!(y.rank(), 0);
                let got = values(&y)?[0];
                assert!(
                    got == want || (got.is_nan() && want.is_nan()),
                    "{dtype:?} {input}: {got}"
                );
            }
        }
    }
    Ok(())
}

/// No rows, no columns, or neither: an empty result of the same shape, both ways.
fn empty_shapes(device: &Device) -> Result<()> {
    let shapes: [&[usize]; 8] = [
        &[0],
        &[4, 0],
        &[0, 2],
        &[0, 0],
        &[4, 0, 5, 2],
        &[2, 3, 0],
        &[0, 1],
        &[3, 5, 0, 7],
    ];
    for dtype in DTYPES {
        for shape in shapes {
            let x = nothing(shape, dtype, device)?;
            let y = x.apply_op1(OnlineSoftmax)?;
            assert_eq!((y.dims(), y.dtype()), (shape, dtype));
            in_place_of_nothing(&x)?;
            for dim in 0..shape.len() {
                let y = candle_online_softmax::softmax(&x, dim)?;
                assert_eq!((y.dims(), y.dtype()), (shape, dtype), "dim {dim}");
            }
            let g = nothing(shape, dtype, device)?;
            let dx = candle_core::CustomOp1::bwd(&OnlineSoftmax, &x, &y, &g)?;
            assert_eq!(dx.expect("a gradient").dims(), shape);
        }
    }
    Ok(())
}

/// candle takes the strides of a contiguous empty tensor for a broadcast and refuses it before any
/// operator is asked; the operator itself has nothing to refuse.
fn in_place_of_nothing(x: &Tensor) -> Result<()> {
    if let Err(error) = x.inplace_op1(&OnlineSoftmax) {
        let text = error.to_string();
        assert!(text.contains("dst has repeated elements"), "{text}");
    }
    let mut storage = CpuDevice.zeros_impl(x.shape(), x.dtype())?;
    InplaceOp1::cpu_fwd(&OnlineSoftmax, &mut storage, x.layout())
}

fn results_are_contiguous(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        let x = normal(1, &[2, 3, 5, 33], dtype, device)?;
        for dim in 0..4 {
            let y = candle_online_softmax::softmax(&x, dim)?;
            assert!(y.is_contiguous() && y.dims() == x.dims(), "dim {dim}");
        }
        let y = x.transpose(0, 3)?.apply_op1(OnlineSoftmax)?;
        assert!(y.is_contiguous());
        assert_eq!(y.dims(), [33, 3, 5, 2]);
    }
    Ok(())
}

fn input_is_not_written(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for cols in crate::inputs::SAMPLE {
            let x = normal(cols as u64, &[3, cols], dtype, device)?;
            let before = crate::compare::bits(&x)?;
            x.apply_op1(OnlineSoftmax)?;
            assert_eq!(
                crate::compare::bits(&x)?,
                before,
                "{dtype:?}, {cols} columns"
            );
        }
    }
    Ok(())
}
