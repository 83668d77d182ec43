//! A row's bits do not depend on the rows beside it, its place among them, or the run.

use crate::compare::{assert_same_bits, bits};
use crate::inputs::normal;
use candle_core::{CustomOp1, DType, Device, Result, Tensor};
use candle_online_softmax::OnlineSoftmax;

on_devices_by_dtype!(
    row_alone_equals_row_in_batch,
    gradient_alone_equals_gradient_in_batch,
    same_row_everywhere_in_a_batch,
    run_to_run,
);

/// Widths of every kernel family; those of 4097 rows stay short.
const WIDTHS: [usize; 22] = [
    1, 2, 3, 7, 16, 31, 32, 33, 64, 127, 129, 500, 1000, 1024, 1031, 2051, 4099, 8200, 20001,
    70001, 131_072, 300_001,
];

fn batches(cols: usize) -> &'static [usize] {
    match cols {
        0..=1031 => &[2, 33, 4097],
        1032..=8200 => &[2, 33, 257],
        // Enough blocks on an H200 for the other way to store, of aligned rows.
        131_072 => &[2, 40],
        300_001 => &[2, 17],
        _ => &[2, 33],
    }
}

/// Rows of a batch, first and last and some between.
fn places(rows: usize) -> impl Iterator<Item = usize> {
    let mut places = vec![0, 1, rows / 2, rows - 2, rows - 1];
    places.dedup();
    places.into_iter()
}

fn row(x: &Tensor, r: usize) -> Result<Tensor> {
    x.narrow(0, r, 1)?.force_contiguous()
}

fn row_alone_equals_row_in_batch(dtype: DType, device: &Device) -> Result<()> {
    for cols in WIDTHS {
        for &rows in batches(cols) {
            let x = normal((rows + cols) as u64, &[rows, cols], dtype, device)?;
            let y = x.apply_op1(OnlineSoftmax)?;
            for r in places(rows) {
                let alone = row(&x, r)?.apply_op1(OnlineSoftmax)?;
                let what = format!("row {r} of {rows} x {cols}, {dtype:?}");
                assert_same_bits(&row(&y, r)?, &alone, &what)?;
            }
        }
    }
    Ok(())
}

fn backward(y: &Tensor, g: &Tensor) -> Result<Tensor> {
    Ok(OnlineSoftmax.bwd(y, y, g)?.expect("a gradient"))
}

fn gradient_alone_equals_gradient_in_batch(dtype: DType, device: &Device) -> Result<()> {
    for cols in WIDTHS {
        for &rows in batches(cols) {
            let y = normal(cols as u64, &[rows, cols], dtype, device)?;
            let y = y.apply_op1(OnlineSoftmax)?;
            let g = normal(rows as u64, &[rows, cols], dtype, device)?;
            let dx = backward(&y, &g)?;
            for r in places(rows) {
                let alone = backward(&row(&y, r)?, &row(&g, r)?)?;
                let what = format!("gradient of row {r} of {rows} x {cols}, {dtype:?}");
                assert_same_bits(&row(&dx, r)?, &alone, &what)?;
            }
        }
    }
    Ok(())
}

/// One row repeated: every copy has the bits of the first, wherever its start is aligned.
fn same_row_everywhere_in_a_batch(dtype: DType, device: &Device) -> Result<()> {
    for cols in WIDTHS {
        let one = normal(cols as u64, &[1, cols], dtype, device)?;
        let x = one.broadcast_as((37, cols))?.force_contiguous()?;
        let want = one.apply_op1(OnlineSoftmax)?.broadcast_as((37, cols))?;
        let got = x.apply_op1(OnlineSoftmax)?;
        assert_same_bits(
            &got,
            &want,
            &format!("37 times one row of {cols}, {dtype:?}"),
        )?;
    }
    Ok(())
}

fn run_to_run(dtype: DType, device: &Device) -> Result<()> {
    for cols in WIDTHS {
        let x = normal(9, &[5, cols], dtype, device)?;
        let g = normal(8, &[5, cols], dtype, device)?;
        let y = x.apply_op1(OnlineSoftmax)?;
        let dx = backward(&y, &g)?;
        let first = (bits(&y)?, bits(&dx)?);
        for run in 1..6 {
            let y = x.apply_op1(OnlineSoftmax)?;
            let again = (bits(&y)?, bits(&backward(&y, &g)?)?);
            assert!(
                again == first,
                "run {run} differs: {cols} columns, {dtype:?}"
            );
        }
    }
    Ok(())
}
