//! The CUDA kernels on the CPU: their source with `device.cuh` of this folder in place of the GPU's
//! instructions, launched by plan as on a GPU and held against the f64 reference.
//!
//! `scripts/host-kernels.sh` compiles them (g++) and names the library in `COS_HOST_KERNELS`; without it
//! these tests say that they are skipped. What a GPU alone can show stays with `tests/operators`: real
//! concurrency, the compiler for the GPU, its approximate instructions.

mod columns;
#[path = "../operators/compare.rs"]
#[allow(dead_code)]
mod compare;
mod launch;
#[path = "../operators/reference.rs"]
#[allow(dead_code)]
mod reference;

use candle_core::{DType, Device, Layout, Result, Shape, Tensor};
use candle_online_softmax::plan::{Access, Family, RowOp};
use compare::{assert_gradient, assert_same_bits, assert_softmax, values};
use launch::{on_host, Output};

const DTYPES: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];
const INF: f64 = f64::INFINITY;

/// Both sides of every threshold of the plan, one more and one less.
const WIDTHS: [usize; 36] = [
    1, 2, 3, 4, 7, 8, 9, 31, 33, 64, 65, 100, 127, 129, 256, 257, 511, 513, 1000, 1023, 1024, 1025,
    2049, 4099, 8191, 8192, 8193, 16384, 16385, 20001, 32767, 32768, 32769, 40000, 50257, 70000,
];
const ROWS: usize = 3;

/// Where a tensor of `ROWS` rows lies in its storage: every access, and an offset.
fn layouts(cols: usize) -> Vec<(&'static str, Layout)> {
    let at = |strides: [usize; 2], offset| {
        Layout::new(Shape::from((ROWS, cols)), strides.to_vec(), offset)
    };
    let padded = cols.next_multiple_of(8);
    vec![
        ("aligned", at([padded, 1], 0)),
        ("aligned, further in", at([padded + 8, 1], 16)),
        ("odd rows", at([cols + 1, 1], 3)),
        ("side by side", at([cols, 1], 0)),
        ("columns apart", at([2, 2 * ROWS + 1], 1)),
        ("columns apart, rows side by side", at([1, ROWS + 2], 1)),
    ]
}

/// Spreads row-major values over a storage that ends with its last element.
fn storage(values: &[f64], layout: &Layout, dtype: DType) -> Result<Tensor> {
    let (cols, strides) = (layout.dims()[1], layout.stride());
    let place = |r: usize, c: usize| layout.start_offset() + r * strides[0] + c * strides[1];
    let mut spread = vec![777.0; place(ROWS - 1, cols - 1) + 1]; // a neighbour that is read in, shows
    for (i, &v) in values.iter().enumerate() {
        spread[place(i / cols, i % cols)] = v;
    }
    Tensor::from_vec(spread, (place(ROWS - 1, cols - 1) + 1,), &Device::Cpu)?.to_dtype(dtype)
}

/// A few kinds of rows: plain, wide, with -inf in many places.
fn numbers(cols: usize, seed: usize) -> Vec<f64> {
    let value = |i: usize| {
        let noise = ((i * 7919 + seed * 104_729) % 1009) as f64 / 1009.0 - 0.5;
        match i / cols {
            0 => 4.0 * noise,
            1 => 60.0 * noise - 100.0,
            _ if (i % 7) < 4 && !i.is_multiple_of(cols) => -INF,
            _ => noise,
        }
    };
    (0..ROWS * cols).map(value).collect()
}

fn rounded(values_in: &[f64], dtype: DType) -> Result<Vec<f64>> {
    values(&Tensor::new(values_in, &Device::Cpu)?.to_dtype(dtype)?)
}

#[test]
fn softmax_in_every_family_access_and_dtype() -> Result<()> {
    let mut seen = std::collections::BTreeSet::new();
    for dtype in DTYPES {
        for cols in WIDTHS {
            let x = rounded(&numbers(cols, cols), dtype)?;
            let want = reference::softmax(&x, cols);
            let mut first: Option<Tensor> = None;
            for (name, layout) in layouts(cols) {
                let source = storage(&x, &layout, dtype)?;
                let what = format!("{name}, {dtype:?}, {cols} columns");
                let Some((y, plan)) =
                    on_host(RowOp::Softmax, &[(&source, &layout)], Output::New, &what)?
                else {
                    return Ok(());
                };
                seen.insert((
                    plan.kernel.family.name(),
                    plan.kernel.access.name(),
                    dtype.as_str(),
                ));
                assert_softmax(&y, &want, cols, &what)?;
                match &first {
                    None => first = Some(y),
                    Some(first) => assert_same_bits(&y, first, &what)?,
                }
                let Some((in_place, _)) = on_host(
                    RowOp::Softmax,
                    &[(&source, &layout)],
                    Output::InPlace,
                    &what,
                )?
                else {
                    return Ok(());
                };
                if let Some(first) = &first {
                    assert_same_bits(&in_place, first, &format!("in place, {what}"))?;
                }
            }
        }
    }
    let families = [Family::Warp, Family::Block, Family::Cluster, Family::Stream];
    let accesses = [Access::Aligned, Access::Unaligned, Access::Strided];
    // And tiles; long rows of both halves do not fit one, and are read twice.
    assert_eq!(
        seen.len(),
        (families.len() * accesses.len() + 1) * DTYPES.len() + 2,
        "{seen:?}"
    );
    Ok(())
}

#[test]
fn gradient_in_every_family_access_and_dtype() -> Result<()> {
    for dtype in DTYPES {
        for cols in WIDTHS {
            let y = rounded(&reference::softmax(&numbers(cols, 1), cols), dtype)?;
            let g: Vec<f64> = numbers(cols, 2).iter().map(|v| v.max(-100.0)).collect();
            let g = rounded(&g, dtype)?;
            let mut first: Option<Tensor> = None;
            for ((name, y_at), (_, g_at)) in layouts(cols).into_iter().zip(layouts(cols)) {
                let operands = [
                    (&storage(&y, &y_at, dtype)?, &y_at),
                    (&storage(&g, &g_at, dtype)?, &g_at),
                ];
                let what = format!("{name}, {dtype:?}, {cols} columns");
                let Some((dx, _)) = on_host(RowOp::SoftmaxBackward, &operands, Output::New, &what)?
                else {
                    return Ok(());
                };
                assert_gradient(&dx, &y, &g, cols, &what)?;
                match &first {
                    None => first = Some(dx),
                    Some(first) => assert_same_bits(&dx, first, &what)?,
                }
            }
        }
    }
    Ok(())
}

#[test]
fn rows_of_special_values() -> Result<()> {
    for dtype in DTYPES {
        for cols in [1, 5, 32, 257, 1031, 33000, 40001] {
            for special in [f64::NAN, INF, -INF] {
                for at in [0, cols / 2, cols - 1] {
                    // One special value; a row of nothing but it; nothing but -inf beside it.
                    let value = |i: usize| match i / cols {
                        0 if i % cols == at => special,
                        0 => 0.5,
                        1 => special,
                        _ if i % cols == at => special,
                        _ => -INF,
                    };
                    let x: Vec<f64> = (0..ROWS * cols).map(value).collect();
                    let layout = Layout::contiguous((ROWS, cols));
                    let source = storage(&x, &layout, dtype)?;
                    let what = format!("{special} at {at}");
                    let Some((y, _)) =
                        on_host(RowOp::Softmax, &[(&source, &layout)], Output::New, &what)?
                    else {
                        return Ok(());
                    };
                    assert_softmax(&y, &reference::softmax(&x, cols), cols, &what)?;
                }
            }
        }
    }
    Ok(())
}

/// Threads and warps whose own maxima lie far below the row's, and large numbers, of which exponentials are
/// taken after a subtraction: some shares of a row are large and others are not.
#[test]
fn shares_far_apart() -> Result<()> {
    for dtype in DTYPES {
        for cols in [40, 130, 700, 3000, 9001, 20001] {
            for (near, far) in [
                (0.0, -45.0),
                (0.0, -66.0),
                (3.0, -80.0),
                (2e6, -3e6),
                (-1.5e4, -2e4),
                (1e6, 999_990.0),
            ] {
                let value = |i: usize| {
                    let noise = ((i * 7919) % 1009) as f64 / 1009.0;
                    // The row's maximum at its end, at its beginning, in every hundredth place.
                    let at_top = match i / cols {
                        0 => i % cols >= cols - 3,
                        1 => i % cols < 3,
                        _ => i.is_multiple_of(100),
                    };
                    noise + if at_top { near } else { far }
                };
                let x: Vec<f64> = (0..ROWS * cols).map(value).collect();
                let x = rounded(&x, dtype)?;
                if x.iter().any(|v| v.is_infinite()) {
                    continue; // past f16
                }
                for (name, layout) in layouts(cols) {
                    let source = storage(&x, &layout, dtype)?;
                    let what = format!("{near} and {far}, {name}, {dtype:?}, {cols} columns");
                    let run = on_host(RowOp::Softmax, &[(&source, &layout)], Output::New, &what)?;
                    let Some((y, _)) = run else { return Ok(()) };
                    assert_softmax(&y, &reference::softmax(&x, cols), cols, &what)?;
                }
            }
        }
    }
    Ok(())
}

/// A plain sum of this many terms in f32 is off by more than the bound.
#[test]
fn sums_of_a_million_do_not_drift() -> Result<()> {
    for v in [-0.3, -1.0] {
        let cols = 1 << 20;
        let x: Vec<f64> = (0..cols)
            .map(|i| if i % 4 == 0 { 0.0 } else { v })
            .collect();
        let x = rounded(&x, DType::F32)?;
        let source = Tensor::from_slice(&x, cols, &Device::Cpu)?.to_dtype(DType::F32)?;
        let layout = Layout::contiguous((1, cols));
        let what = format!("period of four, {v}");
        let Some((y, plan)) = on_host(RowOp::Softmax, &[(&source, &layout)], Output::New, &what)?
        else {
            return Ok(());
        };
        assert_eq!(plan.kernel.family, Family::Stream);
        assert_softmax(&y, &reference::softmax(&x, cols), cols, &what)?;
    }
    Ok(())
}
