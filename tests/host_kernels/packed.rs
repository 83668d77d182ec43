//! Short rows one after another in memory: chunks of them give the bits of rows that lie apart.

use crate::compare::{assert_gradient, assert_same_bits, assert_softmax};
use crate::launch::{on_host, Output};
use crate::{reference, rounded, DTYPES, INF};
use candle_core::{DType, Device, Layout, Result, Shape, Tensor};
use candle_online_softmax::plan::{Access, Family, LaunchPlan, RowOp};

/// Every small width, and both sides of every threshold of the chunk family.
fn widths() -> impl Iterator<Item = usize> {
    let thresholds = (2..=7).flat_map(|p| {
        [2, 4, 8].into_iter().flat_map(move |len| {
            let edge = len << p;
            [edge - 1, edge + 1, edge + edge / 2 + 1]
        })
    });
    (1..=70)
        .chain(thresholds.filter(|&w| w > 70))
        .chain([777, 1021])
}

/// Rows of all kinds: plain, wide, with -inf, nothing but -inf, a NaN, a +inf, large.
fn numbers(rows: usize, cols: usize, dtype: DType) -> Result<Vec<f64>> {
    let large = if dtype == DType::F16 { 3e4 } else { 3e6 };
    let value = |i: usize| {
        let (r, c) = (i / cols, i % cols);
        let noise = ((r * 31 + c * 7919) % 1009) as f64 / 1009.0 - 0.5;
        match r % 13 {
            1 => 60.0 * noise - 100.0,
            2 if c % 7 < 4 && c > 0 => -INF,
            3 => -INF,
            4 if c == cols / 2 => f64::NAN,
            5 if c == cols - 1 => INF,
            6 if c > cols / 2 => noise - 70.0,
            8 => large + 3.0 * noise,
            10 if c == 0 => -INF,
            _ => 4.0 * noise,
        }
    };
    rounded(&(0..rows * cols).map(value).collect::<Vec<_>>(), dtype)
}

/// Values over a storage that ends with its last element, which is of no row elsewhere.
fn storage(values: &[f64], layout: &Layout, dtype: DType) -> Result<Tensor> {
    let (cols, stride) = (layout.dims()[1], layout.stride()[0]);
    let last = layout.start_offset() + (layout.dims()[0] - 1) * stride + cols;
    let mut spread = vec![777.0; last];
    for (i, &v) in values.iter().enumerate() {
        spread[layout.start_offset() + i / cols * stride + i % cols] = v;
    }
    Tensor::from_vec(spread, last, &Device::Cpu)?.to_dtype(dtype)
}

fn at(rows: usize, cols: usize, stride: usize, offset: usize) -> Layout {
    Layout::new(Shape::from((rows, cols)), vec![stride, 1], offset)
}

/// Few rows, a pass of a block and one more or less, and so many that blocks take several passes.
fn row_counts(plan: &LaunchPlan, cols: usize) -> Vec<usize> {
    let pass = plan.rows_per_block;
    let mut counts = match cols % 16 {
        0..=2 | 7..=9 | 15 => vec![1, 2, 7, 8, 9, pass - 1, pass, pass + 1],
        _ => vec![9, pass + 1],
    };
    // 8 chunks for the one multiprocessor of these tests, see `LaunchPlan::grid`; then some of 3 passes.
    if matches!(cols, 1 | 3 | 7 | 9 | 17 | 31 | 65 | 257) {
        counts.push(8 * pass * 2 + pass + 3);
    }
    counts.retain(|&rows| rows > 0);
    counts.sort_unstable();
    counts.dedup();
    counts
}

fn chunk(plan: &LaunchPlan, rows: usize, cols: usize, what: &str) {
    // A single row, or rows of whole vectors, are aligned.
    let len = plan.kernel.dtype.vector_len();
    let expected = match rows == 1 || cols.is_multiple_of(len) {
        true => Access::Aligned,
        false => Access::Packed,
    };
    assert_eq!(plan.kernel.access, expected, "{what}");
    assert_eq!(
        plan.kernel.family == Family::Chunk,
        expected == Access::Packed,
        "{what}"
    );
}

fn short(dtype: DType, cols: usize) -> bool {
    cols.div_ceil(16 / dtype.size_in_bytes()) <= 128
}

#[test]
fn softmax_of_packed_rows_has_the_bits_of_rows_apart() -> Result<()> {
    for dtype in DTYPES {
        for cols in widths().filter(|&cols| short(dtype, cols)) {
            let probe = Layout::contiguous((2, cols));
            let source = storage(&vec![0.5; 2 * cols], &probe, dtype)?;
            let Some((_, plan)) =
                on_host(RowOp::Softmax, &[(&source, &probe)], Output::New, "probe")?
            else {
                return Ok(());
            };
            for rows in row_counts(&plan, cols) {
                let what = format!("{rows} rows of {cols}, {dtype:?}");
                let x = numbers(rows, cols, dtype)?;
                let (apart, packed) = (at(rows, cols, cols + 1, 3), at(rows, cols, cols, 0));
                let run = |layout: &Layout, output| {
                    let source = storage(&x, layout, dtype)?;
                    on_host(RowOp::Softmax, &[(&source, layout)], output, &what)
                };
                let (Some((want, _)), Some((got, plan)), Some((in_place, _))) = (
                    run(&apart, Output::New)?,
                    run(&packed, Output::New)?,
                    run(&packed, Output::InPlace)?,
                ) else {
                    return Ok(());
                };
                chunk(&plan, rows, cols, &what);
                assert_softmax(&got, &reference::softmax(&x, cols), cols, &what)?;
                assert_same_bits(&got, &want, &what)?;
                assert_same_bits(&in_place, &want, &format!("in place, {what}"))?;
                // Further in, a multiple of 16 bytes.
                let Some((inner, _)) = run(&at(rows, cols, cols, 24), Output::InPlace)? else {
                    return Ok(());
                };
                assert_same_bits(&inner, &want, &format!("further in, {what}"))?;
            }
        }
    }
    Ok(())
}

#[test]
fn gradient_of_packed_rows_has_the_bits_of_rows_apart() -> Result<()> {
    for dtype in DTYPES {
        for cols in widths().filter(|&cols| short(dtype, cols)) {
            for rows in [2, 9, 130, 1027].into_iter().filter(|r| r * cols < 40_000) {
                let what = format!("{rows} rows of {cols}, {dtype:?}");
                let value = |i: usize| ((i * 7919) % 1009) as f64 / 1009.0 - 0.3;
                let x: Vec<f64> = (0..rows * cols).map(value).collect();
                let y = rounded(&reference::softmax(&x, cols), dtype)?;
                let g: Vec<f64> = (0..rows * cols).map(|i| value(i * 3 + 1)).collect();
                let g = rounded(&g, dtype)?;
                let run = |layout: Layout| {
                    let (ys, gs) = (storage(&y, &layout, dtype)?, storage(&g, &layout, dtype)?);
                    let operands = [(&ys, &layout), (&gs, &layout)];
                    on_host(RowOp::SoftmaxBackward, &operands, Output::New, &what)
                };
                let (Some((want, _)), Some((got, plan))) = (
                    run(at(rows, cols, cols + 1, 3))?,
                    run(at(rows, cols, cols, 0))?,
                ) else {
                    return Ok(());
                };
                chunk(&plan, rows, cols, &what);
                assert_gradient(&got, &y, &g, cols, &what)?;
                assert_same_bits(&got, &want, &what)?;
            }
        }
    }
    Ok(())
}
