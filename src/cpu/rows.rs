//! Runs a row core over every row of a [`RowSpace`], in parallel.

use super::columns::{fit, map_columns, StripOp};
use super::row::RowOp;
use super::simd::{filled, overwrite, Filled};
use super::task::{Rows, Scratch, Source, PART};
use super::Element;
use crate::rows::{Operand, RowSpace};
use candle_core::Error;
use rayon::prelude::*;
use std::collections::TryReserveError;
use std::sync::{Mutex, PoisonError};

/// Elements that a thread takes at least: fewer are done before the pool has woken.
const TASK: usize = 1 << 15;
/// Elements that a thread of its own takes at least: starting it costs some 20 us.
const OWN_TASK: usize = 1 << 18;
/// Tasks for each thread of the pool: the last ones to finish idle the others for a quarter of a share.
pub const TASKS_PER_THREAD: usize = 4;

/// Applies `op` to each row; the results are contiguous, with `inner` elements between a row's columns (the product of
/// the dims after the reduced one).
pub fn map_rows<O: RowOp<N> + StripOp<N>, T: Element, const N: usize>(
    name: &str,
    space: &RowSpace<N>,
    inputs: [&[T]; N],
    inner: usize,
    op: O,
) -> candle_core::Result<Vec<T>> {
    if space.is_empty() {
        return Ok(Vec::new());
    }
    for (operand, input) in space.operands.iter().zip(inputs) {
        space.check_within(name, operand, input.len())?;
    }
    let source = Source { space, inputs };
    let threads = rayon::current_num_threads();
    if inner > 1 && fit(space, inner) {
        return map_columns(source, inner, threads, op).map_err(|_| no_memory(name, space));
    }
    let by_row = by_row(source, threads, op).map_err(|_| no_memory(name, space))?;
    if inner == 1 {
        return Ok(by_row);
    }
    interleave(&by_row, space.cols, inner).map_err(|_| no_memory(name, space))
}

/// (outer, inner, cols) -> (outer, cols, inner), a run of `inner` elements at a time.
fn interleave<T: Element>(
    by_row: &[T],
    cols: usize,
    inner: usize,
) -> Result<Vec<T>, TryReserveError> {
    let mut result = Vec::new();
    result.try_reserve_exact(by_row.len())?;
    result.resize(by_row.len(), T::default());
    let runs = result.par_chunks_mut(inner).enumerate();
    runs.for_each(|(run, out)| {
        let (outer, col) = (run / cols, run % cols);
        for (i, out) in out.iter_mut().enumerate() {
            *out = by_row[(outer * inner + i) * cols + col];
        }
    });
    Ok(result)
}

/// Applies `op` to each row of `data` where it lies, or to none where memory lacks.
///
/// By threads of its own, not those of rayon's pool: candle holds the storage's write lock meanwhile, and all of the
/// pool's may be waiting for it. On one thread if one of the pool calls.
pub fn map_rows_in_place<O: RowOp<1>, T: Element>(
    name: &str,
    space: &RowSpace<1>,
    data: &mut [T],
    op: O,
) -> candle_core::Result<()> {
    if space.is_empty() {
        return Ok(());
    }
    space.check_within(name, &space.operands[0], data.len())?;
    let (operand, cols) = (&space.operands[0], space.cols);
    if operand.is_contiguous(cols) {
        let data = &mut data[operand.offset..][..space.rows * cols];
        return in_blocks(data, cols, op).map_err(|_| no_memory(name, space));
    }
    // Rows that interleave cannot be handed to threads as slices: results go through a buffer.
    let inputs = [&*data];
    let results = by_row(Source { space, inputs }, 1, op).map_err(|_| no_memory(name, space))?;
    for (row, result) in results.chunks(cols).enumerate() {
        let start = operand.row_offset(&space.dims, row);
        for (c, &x) in result.iter().enumerate() {
            data[start + c * operand.col_stride] = x;
        }
    }
    Ok(())
}

/// Contiguous rows where they lie: each block of them from a copy in the caches.
fn in_blocks<O: RowOp<1>, T: Element>(
    data: &mut [T],
    cols: usize,
    op: O,
) -> Result<(), TryReserveError> {
    let contiguous = |rows: usize| RowSpace {
        rows,
        cols,
        dims: vec![rows],
        operands: [Operand {
            offset: 0,
            row_strides: vec![cols],
            col_stride: 1,
        }],
    };
    let rows = data.len() / cols;
    let block = contiguous((TASK / 4 / cols).clamp(1, rows));
    let threads = own_threads(data.len(), rows);
    let scratch = || -> Result<(Vec<T>, Scratch<T, 1>), TryReserveError> {
        let mut copy = Vec::new();
        copy.try_reserve_exact(block.rows * cols)?;
        let source = Source {
            space: &block,
            inputs: [&[]],
        };
        Ok((copy, Scratch::reserve::<O>(&source)?))
    };
    let mut scratch = (0..threads)
        .map(|_| scratch())
        .collect::<Result<Vec<_>, _>>()?;
    let run = |(rows, (copy, scratch)): (&mut [T], &mut (Vec<T>, Scratch<T, 1>))| {
        for rows in rows.chunks_mut(block.rows * cols) {
            copy.clear();
            copy.extend_from_slice(rows);
            let (space, inputs) = (&contiguous(rows.len() / cols), [&copy[..]]);
            let source = Source { space, inputs };
            overwrite(rows, |room| {
                let first = 0;
                Rows {
                    op,
                    source,
                    first,
                    room,
                    scratch,
                }
                .run(false)
            });
        }
    };
    let shares = data
        .chunks_mut(rows.div_ceil(threads) * cols)
        .zip(&mut scratch);
    on_own_threads(threads, shares, run);
    Ok(())
}

/// Threads to start for this much work in place, this one among them; it alone if it is one of the pool.
pub fn own_threads(elements: usize, rows: usize) -> usize {
    match rayon::current_thread_index() {
        None => rayon::current_num_threads()
            .min(elements / OWN_TASK)
            .clamp(1, rows),
        Some(_) => 1,
    }
}

/// Calls `run` with each share, on `threads` threads that are not of the pool.
pub fn on_own_threads<I>(
    threads: usize,
    shares: impl Iterator<Item = I> + Send,
    run: impl Fn(I) + Sync,
) {
    let shares = Mutex::new(shares);
    let next = || shares.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        while let Some(share) = next() {
            run(share);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // Where there is no thread to be had, its share is another's.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
}

/// The results row after row.
fn by_row<O: RowOp<N>, T: Element, const N: usize>(
    source: Source<T, N>,
    threads: usize,
    op: O,
) -> Result<Vec<T>, TryReserveError> {
    // `RowSpace::new` has counted the elements.
    let (len, cols) = (source.space.rows * source.space.cols, source.space.cols);
    filled(len, |room| {
        let scratch = |_| Scratch::reserve::<O>(&source);
        let tasks = each_task(room, cols, threads, scratch, |first, room, scratch| {
            Rows {
                op,
                source,
                first,
                room,
                scratch,
            }
            .run(threads > 1)
        })?;
        Ok(tasks.into_iter().reduce(Filled::then).expect("a task"))
    })
}

/// Tasks to make of this much work.
pub fn task_count(elements: usize, threads: usize) -> usize {
    let most = match threads {
        1 => 1, // this thread instead of the pool's one: no hand-over
        threads => TASKS_PER_THREAD * threads,
    };
    (elements / TASK).clamp(1, most)
}

/// Calls `body(row, rows, scratch)` for stretches of `data` that are whole rows, the first of them `row`, once there is
/// memory for the scratch of all tasks, `scratch(rows)`; results in order.
pub fn each_task<'y, X: Send, C: Send, R: Send>(
    data: &'y mut [X],
    cols: usize,
    threads: usize,
    scratch: impl Fn(usize) -> Result<C, TryReserveError>,
    body: impl Fn(usize, &'y mut [X], &mut C) -> R + Send + Sync,
) -> Result<Vec<R>, TryReserveError> {
    let rows = data.len() / cols;
    let tasks = task_count(data.len(), threads).min(rows);
    if tasks == 1 {
        let mut scratch = scratch(rows)?;
        // Into the pool once, not with each pass over a row of several parts.
        return Ok(match threads > 1 && cols > PART {
            true => rayon::scope(move |_| vec![body(0, data, &mut scratch)]),
            false => vec![body(0, data, &mut scratch)],
        });
    }
    let rows_per_task = rows.div_ceil(tasks);
    let mut scratch = (0..tasks)
        .map(|_| scratch(rows_per_task))
        .collect::<Result<Vec<_>, _>>()?;
    let stretches = data
        .par_chunks_mut(rows_per_task * cols)
        .zip(&mut scratch)
        .enumerate();
    Ok(stretches
        .map(|(task, (data, scratch))| body(task * rows_per_task, data, scratch))
        .collect())
}

pub fn no_memory<const N: usize>(name: &str, space: &RowSpace<N>) -> Error {
    Error::msg(format!(
        "{name}: requires memory for {} rows of {} columns, got none",
        space.rows, space.cols
    ))
}
