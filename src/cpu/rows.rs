//! Runs the row core over every row of a [`RowSpace`], in parallel.

use super::Element;
use crate::rows::{Operand, RowSpace};
use candle_core::{Error, Result};
use rayon::prelude::*;

/// Elements below which one thread is faster than waking the pool.
const SERIAL: usize = 1 << 14;
/// Elements that a thread takes at a time.
const TASK: usize = 1 << 14;

/// Rows of `N` inputs, one a buffer, in the compute type; the result is left in the first.
type Buffers<T, const N: usize> = [Vec<<T as Element>::Compute>; N];

/// Applies `row_op` to each row; the results are contiguous, with `inner` elements between a row's
/// columns (the product of the dims after the reduced one).
pub fn map_rows<T: Element, const N: usize>(
    op: &str,
    space: &RowSpace<N>,
    inputs: [&[T]; N],
    inner: usize,
    row_op: impl Fn(&mut Buffers<T, N>) + Sync,
) -> Result<Vec<T>> {
    if space.is_empty() {
        return Ok(Vec::new());
    }
    for (operand, input) in space.operands.iter().zip(inputs) {
        space.check_within(op, operand, input.len())?;
    }
    let cols = space.cols;
    let mut by_row = zeros(op, space)?;
    for_each_row(
        &mut by_row,
        cols,
        |row, out, buffers: &mut Buffers<T, N>| {
            for ((operand, input), buffer) in space.operands.iter().zip(inputs).zip(&mut *buffers) {
                gather(input, operand, &space.dims, row, cols, buffer);
            }
            row_op(buffers);
            T::narrow(&buffers[0], out);
        },
    );
    if inner == 1 {
        return Ok(by_row);
    }
    let mut result = zeros(op, space)?;
    // (outer, inner, cols) -> (outer, cols, inner), a run of `inner` elements at a time.
    result
        .par_chunks_mut(inner)
        .enumerate()
        .for_each(|(run, out)| {
            let (outer, col) = (run / cols, run % cols);
            for (i, out) in out.iter_mut().enumerate() {
                *out = by_row[(outer * inner + i) * cols + col];
            }
        });
    Ok(result)
}

/// Applies `row_op` to each row of `data` where it lies.
pub fn map_rows_in_place<T: Element>(
    op: &str,
    space: &RowSpace<1>,
    data: &mut [T],
    row_op: impl Fn(&mut Buffers<T, 1>) + Sync,
) -> Result<()> {
    if space.is_empty() {
        return Ok(());
    }
    space.check_within(op, &space.operands[0], data.len())?;
    let (operand, cols) = (&space.operands[0], space.cols);
    let side_by_side = operand.row_strides.iter().all(|&s| s == cols) && space.dims.len() <= 1;
    if side_by_side && operand.col_stride == 1 {
        let data = &mut data[operand.offset..][..space.rows * cols];
        for_each_row(data, cols, |_, row, buffers: &mut Buffers<T, 1>| {
            buffers[0].resize(cols, <T::Compute as super::Real>::ZERO);
            T::widen(row, &mut buffers[0]);
            row_op(buffers);
            T::narrow(&buffers[0], row);
        });
        return Ok(());
    }
    // Rows that interleave cannot be handed to threads as slices: results go through a buffer.
    let results = map_rows(op, space, [&*data], 1, row_op)?;
    for (row, result) in results.chunks(cols).enumerate() {
        let start = operand.row_offset(&space.dims, row);
        for (c, &x) in result.iter().enumerate() {
            data[start + c * operand.col_stride] = x;
        }
    }
    Ok(())
}

/// Room for every element, or an error: a broadcast view can stand for more than memory holds.
fn zeros<T: Element, const N: usize>(op: &str, space: &RowSpace<N>) -> Result<Vec<T>> {
    let mut data = Vec::new();
    let len = space.rows.checked_mul(space.cols);
    match len.map(|len| (len, data.try_reserve_exact(len))) {
        Some((len, Ok(()))) => {
            data.resize(len, T::narrow_one(<T::Compute as super::Real>::ZERO));
            Ok(data)
        }
        _ => Err(Error::msg(format!(
            "{op}: requires memory for {} rows of {} columns, got none",
            space.rows, space.cols
        ))),
    }
}

/// Calls `body(row, slice, buffers)` for each `cols`-long slice of `data`.
fn for_each_row<T: Element, const N: usize>(
    data: &mut [T],
    cols: usize,
    body: impl Fn(usize, &mut [T], &mut Buffers<T, N>) + Sync,
) {
    let new_buffers = || -> Buffers<T, N> { std::array::from_fn(|_| Vec::new()) };
    if data.len() <= SERIAL {
        let mut buffers = new_buffers();
        for (row, slice) in data.chunks_mut(cols).enumerate() {
            body(row, slice, &mut buffers);
        }
        return;
    }
    let rows_per_task = (TASK / cols).max(1);
    let tasks = data.par_chunks_mut(rows_per_task * cols).enumerate();
    tasks.for_each_init(new_buffers, |buffers, (task, slices)| {
        for (i, slice) in slices.chunks_mut(cols).enumerate() {
            body(task * rows_per_task + i, slice, buffers);
        }
    });
}

/// Row `row` of `data` into `buffer`, in the compute type.
fn gather<T: Element>(
    data: &[T],
    operand: &Operand,
    dims: &[usize],
    row: usize,
    cols: usize,
    buffer: &mut Vec<T::Compute>,
) {
    let start = operand.row_offset(dims, row);
    buffer.resize(cols, <T::Compute as super::Real>::ZERO);
    match operand.col_stride {
        1 => T::widen(&data[start..start + cols], buffer),
        stride => {
            for (c, x) in buffer.iter_mut().enumerate() {
                *x = data[start + c * stride].widen_one();
            }
        }
    }
}
