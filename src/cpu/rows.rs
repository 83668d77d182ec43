//! Runs the row core over every row of a [`RowSpace`], in parallel.

use super::Element;
use crate::rows::{Operand, RowSpace};
use candle_core::Error;
use rayon::prelude::*;
use std::collections::TryReserveError;

/// Elements that a thread takes at least: fewer are done before the pool has woken.
const TASK: usize = 1 << 14;
/// Tasks for each thread of the pool: the last ones to finish idle the others for a quarter of a share.
const TASKS_PER_THREAD: usize = 4;

/// A row of each of `N` inputs and of the output, in the compute type; empty where memory holds them so
/// already.
struct Scratch<C, const N: usize> {
    inputs: [Vec<C>; N],
    output: Vec<C>,
}

impl<C: Element, const N: usize> Scratch<C, N> {
    /// With room for rows of `cols`, for the inputs that are `copied` and maybe the output.
    fn reserve(cols: usize, copied: [bool; N], output: bool) -> Result<Self, TryReserveError> {
        let mut scratch = Self {
            inputs: std::array::from_fn(|_| Vec::new()),
            output: zeros(if output { cols } else { 0 })?,
        };
        for (input, copied) in scratch.inputs.iter_mut().zip(copied) {
            *input = zeros(if copied { cols } else { 0 })?;
        }
        Ok(scratch)
    }
}

/// Applies `row_op(inputs, output)` to each row; the results are contiguous, with `inner` elements
/// between a row's columns (the product of the dims after the reduced one).
pub fn map_rows<T: Element, const N: usize>(
    op: &str,
    space: &RowSpace<N>,
    inputs: [&[T]; N],
    inner: usize,
    row_op: impl Fn([&[T::Compute]; N], &mut [T::Compute]) + Sync,
) -> candle_core::Result<Vec<T>> {
    let by_row = by_row(op, space, inputs, Threads::Pool, row_op)?;
    if inner == 1 || by_row.is_empty() {
        return Ok(by_row);
    }
    let cols = space.cols;
    let mut result = zeros(by_row.len()).map_err(|_| no_memory(op, space))?;
    // (outer, inner, cols) -> (outer, cols, inner), a run of `inner` elements at a time.
    let runs = result.par_chunks_mut(inner).enumerate();
    runs.for_each(|(run, out)| {
        let (outer, col) = (run / cols, run % cols);
        for (i, out) in out.iter_mut().enumerate() {
            *out = by_row[(outer * inner + i) * cols + col];
        }
    });
    Ok(result)
}

/// Applies `row_op` to each row of `data` where it lies, or to none where memory lacks.
///
/// On one thread if a rayon worker calls: candle holds the storage's write lock meanwhile, and a worker
/// that waits for others may take up a task that wants the same lock.
pub fn map_rows_in_place<T: Element>(
    op: &str,
    space: &RowSpace<1>,
    data: &mut [T],
    row_op: impl Fn(&mut [T::Compute]) + Sync,
) -> candle_core::Result<()> {
    if space.is_empty() {
        return Ok(());
    }
    let threads = match rayon::current_thread_index() {
        None => Threads::Pool,
        Some(_) => Threads::One,
    };
    space.check_within(op, &space.operands[0], data.len())?;
    let (operand, cols) = (&space.operands[0], space.cols);
    let side_by_side = operand.row_strides.iter().all(|&s| s == cols) && space.dims.len() <= 1;
    if side_by_side && operand.col_stride == 1 {
        let data = &mut data[operand.offset..][..space.rows * cols];
        let body = |_, row: &mut [T], scratch: &mut Scratch<_, 0>| match T::as_compute_mut(row) {
            Some(row) => row_op(row),
            None => {
                T::widen(row, &mut scratch.output);
                row_op(&mut scratch.output);
                T::narrow(&scratch.output, row);
            }
        };
        return for_each_row(data, cols, threads, [], body).map_err(|_| no_memory(op, space));
    }
    // Rows that interleave cannot be handed to threads as slices: results go through a buffer.
    let results = by_row(op, space, [&*data], threads, |[x], y| {
        y.copy_from_slice(x);
        row_op(y)
    })?;
    for (row, result) in results.chunks(cols).enumerate() {
        let start = operand.row_offset(&space.dims, row);
        for (c, &x) in result.iter().enumerate() {
            data[start + c * operand.col_stride] = x;
        }
    }
    Ok(())
}

/// The results row after row.
fn by_row<T: Element, const N: usize>(
    op: &str,
    space: &RowSpace<N>,
    inputs: [&[T]; N],
    threads: Threads,
    row_op: impl Fn([&[T::Compute]; N], &mut [T::Compute]) + Sync,
) -> candle_core::Result<Vec<T>> {
    if space.is_empty() {
        return Ok(Vec::new());
    }
    for (operand, input) in space.operands.iter().zip(inputs) {
        space.check_within(op, operand, input.len())?;
    }
    let cols = space.cols;
    let run = || {
        // `RowSpace::new` has counted the elements.
        let mut results = zeros(space.rows * cols)?;
        let copied = std::array::from_fn(|i| is_copied::<T>(&space.operands[i]));
        let body = |row, out: &mut [T], scratch: &mut Scratch<_, N>| {
            let mut views: [&[T::Compute]; N] = [&[]; N];
            let places = space.operands.iter().zip(inputs).zip(&mut scratch.inputs);
            for (view, ((operand, input), buffer)) in views.iter_mut().zip(places) {
                *view = row_view(input, operand, &space.dims, row, cols, buffer);
            }
            match T::as_compute_mut(out) {
                Some(out) => row_op(views, out),
                None => {
                    row_op(views, &mut scratch.output);
                    T::narrow(&scratch.output, out);
                }
            }
        };
        for_each_row(&mut results, cols, threads, copied, body)?;
        Ok(results)
    };
    run().map_err(|_: TryReserveError| no_memory(op, space))
}

#[derive(Clone, Copy, PartialEq)]
enum Threads {
    One,
    Pool,
}

/// Calls `body(row, slice, scratch)` for each `cols`-long slice of `data`, once there is memory for the
/// scratch of all tasks.
fn for_each_row<T: Element, const N: usize>(
    data: &mut [T],
    cols: usize,
    threads: Threads,
    copied: [bool; N],
    body: impl Fn(usize, &mut [T], &mut Scratch<T::Compute, N>) + Sync,
) -> Result<(), TryReserveError> {
    let rows = data.len() / cols;
    let most = match threads {
        Threads::One => 1,
        Threads::Pool => match rayon::current_num_threads() {
            1 => 1, // this thread instead of the pool's one: no hand-over
            threads => TASKS_PER_THREAD * threads,
        },
    };
    let tasks = (data.len() / TASK).clamp(1, most).min(rows);
    let output = T::as_compute(&[]).is_none();
    let mut scratch = (0..tasks)
        .map(|_| Scratch::reserve(cols, copied, output))
        .collect::<Result<Vec<_>, _>>()?;
    let rows_per_task = rows.div_ceil(tasks);
    let run = |(task, (slices, scratch)): (usize, (&mut [T], &mut Scratch<_, N>))| {
        for (i, slice) in slices.chunks_mut(cols).enumerate() {
            body(task * rows_per_task + i, slice, scratch);
        }
    };
    let share = rows_per_task * cols;
    match tasks {
        1 => run((0, (data, &mut scratch[0]))),
        _ => (data.par_chunks_mut(share).zip(&mut scratch))
            .enumerate()
            .for_each(run),
    }
    Ok(())
}

/// Row `row` of `data`: itself where it can be used as it lies, else copied into `buffer`.
fn row_view<'a, T: Element>(
    data: &'a [T],
    operand: &Operand,
    dims: &[usize],
    row: usize,
    cols: usize,
    buffer: &'a mut [T::Compute],
) -> &'a [T::Compute] {
    let start = operand.row_offset(dims, row);
    if operand.col_stride == 1 {
        let elements = &data[start..start + cols];
        if let Some(row) = T::as_compute(elements) {
            return row;
        }
        T::widen(elements, buffer);
    } else {
        for (c, x) in buffer.iter_mut().enumerate() {
            *x = data[start + c * operand.col_stride].widen_one();
        }
    }
    buffer
}

/// Whether `row_view` needs its buffer.
fn is_copied<T: Element>(operand: &Operand) -> bool {
    operand.col_stride != 1 || T::as_compute(&[]).is_none()
}

/// `len` zeros, if there is memory for them.
fn zeros<T: Element>(len: usize) -> Result<Vec<T>, TryReserveError> {
    // There is no zeroed allocation that can fail: ask first.
    Vec::<T>::new().try_reserve_exact(len)?;
    Ok(T::zeros(len))
}

fn no_memory<const N: usize>(op: &str, space: &RowSpace<N>) -> Error {
    Error::msg(format!(
        "{op}: requires memory for {} rows of {} columns, got none",
        space.rows, space.cols
    ))
}
