//! Every step against the f64 reference, on rows of every kind.

use super::{Grid, Kernels, Step};
use crate::reference::softmax_row;
use anyhow::Result;
use candle_core::{Device, Tensor};

/// Odd and aligned lengths, both sides of every block and register count, rows too long for registers; many short rows.
const SHAPES: [(usize, usize); 24] = [
    (12, 1),
    (12, 2),
    (12, 3),
    (12, 5),
    (12, 31),
    (12, 32),
    (12, 33),
    (12, 100),
    (12, 127),
    (12, 128),
    (12, 129),
    (12, 513),
    (12, 1000),
    (12, 1023),
    (12, 4096),
    (12, 4099),
    (12, 8196),
    (12, 16388),
    (12, 32767),
    (12, 32768),
    (12, 32769),
    (12, 65540),
    (12, 131072),
    (70000, 7),
];

/// The largest relative error of a step over all shapes, in grids of 3 blocks and less; none if an output is wrong,
/// which is printed.
pub fn check_step(device: &Device, kernels: &Kernels, step: &Step) -> Result<Option<f64>> {
    let mut worst = 0f64;
    for (rows, cols) in SHAPES {
        let numbers = numbers(rows, cols);
        // As allocated, and one number further: no row of 4 * n numbers starts on 16 bytes then.
        for offset in [0, 1] {
            let mut data = vec![f32::NAN; offset];
            data.extend(&numbers);
            let x = Tensor::from_vec(data, offset + rows * cols, device)?;
            let x = x.narrow(0, offset, rows * cols)?.reshape((rows, cols))?;
            for grid in [Grid::Looping(rows), Grid::Looping(3)] {
                let Some(op) = kernels.op(step, cols, grid)? else {
                    continue;
                };
                let y = x.apply_op1_no_bwd(&op)?;
                let all: Vec<usize> = (0..rows).collect();
                match check_rows(&x, &y, &all, step.rounding(cols), softmax_row)? {
                    Ok(error) => worst = worst.max(error),
                    Err(fault) => {
                        println!("{}, {rows}x{cols}, offset {offset}: {fault}", step.name);
                        return Ok(None);
                    }
                }
            }
        }
    }
    Ok(Some(worst))
}

/// Rows of twelve kinds by turns: plain, wide, rising (the maximum changes at every number), masked, and those whose
/// softmax is NaN.
fn numbers(rows: usize, cols: usize) -> Vec<f32> {
    const INF: f32 = f32::INFINITY;
    let mut seed = cols as u32;
    let mut noise = || {
        seed = seed.wrapping_mul(1664525).wrapping_add(1013904223);
        (seed >> 8) as f32 / (1 << 24) as f32 * 8. - 4.
    };
    let value = |i: usize| {
        let (row, col, plain) = (i / cols, i % cols, noise());
        match row % 12 {
            1 => plain * 10. - 100.,
            2 => col as f32 * 80. / cols as f32,
            3 if col % 7 < 4 && col > 0 => -INF,
            4 if col + 1 + cols / 3 < cols => -INF, // whole shares of nothing but -inf
            5 => -INF,
            6 if col == 0 => INF,
            7 if col + 1 == cols => INF,
            8 if col == 0 => f32::NAN,
            9 if col + 1 == cols => f32::NAN,
            10 => f32::NAN,
            11 if col == cols / 2 => 3e38,
            11 if col + 1 == cols => -3e38,
            11 => -INF,
            _ => plain,
        }
    };
    (0..rows * cols).map(value).collect()
}

/// The largest relative error against `want` on some rows of 2-D tensors, of numbers of 1e-30 and more; or what is wrong:
/// more than a relative 2e-5 and `slack` off, or NaN on one side only. x - m is rounded to 4e-6 where p is near 1e-30,
/// and V3 does it twice.
pub fn check_rows(
    x: &Tensor,
    y: &Tensor,
    rows: &[usize],
    slack: f64,
    want: fn(&[f64]) -> Vec<f64>,
) -> Result<Result<f64, String>> {
    let cols = x.dim(1)?;
    let mut worst = 0f64;
    let all = rows.len() == x.dim(0)?;
    let host = |t: &Tensor| -> Result<Vec<f32>> {
        let t = t.to_device(&Device::Cpu)?;
        Ok(t.flatten_all()?.to_vec1()?)
    };
    // All rows in one copy to the host; some one by one, each apart from its storage, which would come with it.
    let row_of = |t: &Tensor, row: usize| t.narrow(0, row, 1)?.force_contiguous();
    let whole = if all {
        Some((host(x)?, host(y)?))
    } else {
        None
    };
    for &row in rows {
        let (x, y) = match &whole {
            Some((x, y)) => {
                let at = row * cols..(row + 1) * cols;
                (x[at.clone()].to_vec(), y[at].to_vec())
            }
            None => (host(&row_of(x, row)?)?, host(&row_of(y, row)?)?),
        };
        let x: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
        for (col, (&got, want)) in y.iter().zip(want(&x)).enumerate() {
            let off = (f64::from(got) - want).abs();
            let right = match want.is_nan() {
                true => got.is_nan(),
                false => off <= (2e-5 + slack) * want.abs() + f64::from(f32::MIN_POSITIVE),
            };
            if !right {
                let fault = format!("row {row}, column {col}: {got:e}, should be {want:e}");
                return Ok(Err(fault));
            }
            if want.abs() >= 1e-30 {
                worst = worst.max(off / want.abs());
            }
        }
    }
    Ok(Ok(worst))
}
