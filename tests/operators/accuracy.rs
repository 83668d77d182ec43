//! The forward pass against the f64 reference: every width a small block can meet, then both
//! sides of every threshold of the plan, over all distributions of values.

use crate::compare::{assert_rounded_once, assert_softmax, values};
use crate::inputs::{finite_rows, normal, stack, tensor, Rng, DTYPES, LONG, SHORT};
use crate::reference;
use candle_core::{DType, Device, Result, Tensor};
use candle_online_softmax::OnlineSoftmax;

on_devices!(
    every_short_width,
    every_plan_width,
    rows_past_a_cluster,
    row_counts,
    many_rows,
    sums_of_millions_do_not_drift,
    small_terms_are_not_lost,
    halves_are_rounded_once
);

/// Softmax of `x` is within the contract's bounds of the reference.
pub fn check(x: &Tensor, what: &str) -> Result<()> {
    let cols = *x.dims().last().unwrap_or(&1);
    let y = x.apply_op1(OnlineSoftmax)?;
    assert_eq!(y.dims(), x.dims(), "{what}");
    assert_eq!(y.dtype(), x.dtype(), "{what}");
    assert_softmax(&y, &reference::softmax(&values(x)?, cols), cols, what)
}

/// All distributions as the rows of one tensor; a failure is then looked up by its row.
fn check_distributions(cols: usize, dtype: DType, device: &Device) -> Result<()> {
    let (names, rows): (Vec<_>, Vec<_>) = finite_rows(dtype, cols, cols as u64).into_iter().unzip();
    let x = tensor(&stack(&rows), &[rows.len(), cols], dtype, device)?;
    check(&x, &format!("rows {names:?}"))
}

fn every_short_width(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for cols in SHORT {
            check_distributions(cols, dtype, device)?;
        }
    }
    Ok(())
}

fn every_plan_width(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for cols in LONG {
            check_distributions(cols, dtype, device)?;
        }
    }
    Ok(())
}

/// Rows that the shared memory of 16 blocks on an H200 does not hold, and that of half of its blocks.
fn rows_past_a_cluster(device: &Device) -> Result<()> {
    for (dtype, cols) in [
        (DType::F64, 524_289),
        (DType::F32, 1_048_577),
        (DType::F32, 4_000_001),
        (DType::F16, 1_900_000),
        (DType::BF16, 1_900_003),
    ] {
        let mut rng = Rng::new(1);
        let normal = (0..cols).map(|_| rng.normal()).collect();
        let far_below = (0..cols)
            .map(|i| if i == 7 { 0.0 } else { -40.0 })
            .collect();
        let x = tensor(&stack(&[normal, far_below]), &[2, cols], dtype, device)?;
        check(&x, "normal, far below")?;
    }
    Ok(())
}

/// Full and partly filled blocks of rows.
fn row_counts(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for cols in SHORT.step_by(3).chain([255, 513, 1024, 1031, 4097, 16385]) {
            for rows in [1, 2, 3, 5, 33] {
                let x = normal((rows * cols) as u64, &[rows, cols], dtype, device)?;
                check(&x, "row counts")?;
            }
        }
    }
    Ok(())
}

/// More rows than blocks fit a grid's y or z, and than a grid-stride launch starts.
fn many_rows(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for (rows, cols) in [
            (70_001, 1),
            (70_001, 3),
            (140_003, 2),
            (66_000, 8),
            (9_000, 129),
        ] {
            let x = normal(rows as u64, &[rows, cols], dtype, device)?;
            check(&x, "many rows")?;
        }
    }
    Ok(())
}

/// An exponential, a sum or its reciprocal rounded to a half dtype on the way stays within one
/// unit, but leaves a good part of the results one unit off.
fn halves_are_rounded_once(device: &Device) -> Result<()> {
    for dtype in [DType::F16, DType::BF16] {
        for cols in [5, 33, 130, 1031, 4099, 20001] {
            let rows = 1 + 20_000 / cols;
            let x = normal(cols as u64, &[rows, cols], dtype, device)?;
            let want = reference::softmax(&values(&x)?, cols);
            let got = values(&x.apply_op1(OnlineSoftmax)?)?;
            assert_rounded_once(dtype, &got, &want, &format!("{cols} columns"));
        }
    }
    Ok(())
}

/// A plain sum drifts on few different terms, which round the same way each time.
fn sums_of_millions_do_not_drift(device: &Device) -> Result<()> {
    for (dtype, cols) in [(DType::F32, 1 << 20), (DType::F64, 1 << 22)] {
        for v in [-0.3, -1.0] {
            let row: Vec<f64> = (0..cols)
                .map(|i| if i % 4 == 0 { 0.0 } else { v })
                .collect();
            check(&tensor(&row, &[1, cols], dtype, device)?, "period of four")?;
        }
    }
    Ok(())
}

/// Few large terms, and many that are each just under half a unit in the last place of a sum of the former: an
/// accumulator that takes 64 of them is off by 3.7e-6.
fn small_terms_are_not_lost(device: &Device) -> Result<()> {
    for cols in [2048, 8192, 70_000, 131_072] {
        for period in [cols, 2048, 512] {
            for small in [-16.64, -16.65] {
                let row: Vec<f64> = (0..cols)
                    .map(|i| if i % period < 32 { 0.0 } else { small })
                    .collect();
                check(
                    &tensor(&row, &[1, cols], DType::F32, device)?,
                    "small terms",
                )?;
            }
        }
    }
    Ok(())
}
