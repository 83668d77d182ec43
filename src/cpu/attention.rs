//! The softmax of attention scores: rows of logits through the row core of the softmax, in parallel.

use super::biases::Biases;
use super::element::{ResultOf, Room};
use super::logits::{zeros, Logits, RowsOf};
use super::row::{RowOp, Softmax, SoftmaxPart};
use super::rows::{each_task, no_memory, on_own_threads, own_threads, TASKS_PER_THREAD};
use super::simd::{fill, filled, overwrite, Filled, Kernel, Vectors};
use super::task::PART;
use super::{Element, Real};
use crate::scores::{Band, SCORES};
use candle_core::Result;
use std::collections::TryReserveError;

/// Bytes of a row that are asked for ahead: further on, the processor sees where it goes.
const AHEAD: usize = 4096;

type Reserved<T> = std::result::Result<T, TryReserveError>;

/// Results of O, and a log-sum-exp a row.
type Results<O, C> = (Vec<O>, Option<Vec<C>>);

/// The probabilities, row after row, and each row's log-sum-exp where `wants_lse`.
pub fn attention_softmax<T: Element, O: ResultOf<T> + Element<Compute = T::Compute>>(
    name: &str,
    scores: &[T],
    biases: &Biases<T>,
    wants_lse: bool,
) -> Result<Results<O, T::Compute>> {
    let (space, operand) = (&biases.rows.space, biases.rows.operand(SCORES));
    space.check_within(name, operand, scores.len())?;
    let threads = rayon::current_num_threads();
    let no_memory = |_| no_memory(name, space);
    if space.is_empty() {
        // Of rows without keys.
        let lse = || lse_of_sinks(biases).map_err(no_memory);
        return Ok((Vec::new(), wants_lse.then(lse).transpose()?));
    }
    by_row(scores, biases, threads, wants_lse).map_err(no_memory)
}

/// The probabilities where the scores lie, or an error and nothing changed.
///
/// By threads of its own, as [`map_rows_in_place`](super::map_rows_in_place) and for its reason.
pub fn attention_softmax_in_place<T: ResultOf<T>>(
    name: &str,
    scores: &mut [T],
    biases: &Biases<T>,
) -> Result<()> {
    let (space, operand) = (&biases.rows.space, biases.rows.operand(SCORES));
    if space.is_empty() {
        return Ok(());
    }
    space.check_within(name, operand, scores.len())?;
    let (cols, no_memory) = (space.cols, |_| no_memory(name, space));
    if operand.is_contiguous(cols) {
        let scores = &mut scores[operand.offset..][..space.rows * cols];
        return in_shares(scores, biases).map_err(no_memory);
    }
    // Rows that interleave cannot be handed to threads as slices: results go through a buffer.
    let (results, _) = by_row::<T, T>(scores, biases, 1, false).map_err(no_memory)?;
    for (row, result) in results.chunks(cols).enumerate() {
        let start = operand.row_offset(&space.dims, row);
        for (c, &y) in result.iter().enumerate() {
            scores[start + c * operand.col_stride] = y;
        }
    }
    Ok(())
}

/// What is left of a row where there are no keys: its sink.
fn lse_of_sinks<T: Element>(biases: &Biases<T>) -> Reserved<Vec<T::Compute>> {
    let rows = biases.rows.space.rows;
    let mut lse = empty(rows)?;
    lse.extend((0..rows).map(|row| biases.sink(row).unwrap_or(T::Compute::NEG_INFINITY)));
    Ok(lse)
}

fn by_row<T: Element, O: ResultOf<T> + Element<Compute = T::Compute>>(
    scores: &[T],
    biases: &Biases<T>,
    threads: usize,
    wants_lse: bool,
) -> Reserved<Results<O, T::Compute>> {
    let space = &biases.rows.space;
    let mut lse = empty(if wants_lse { space.rows } else { 0 })?;
    let y = filled(space.rows * space.cols, |room| {
        let scratch = |rows| -> Reserved<_> {
            let scratch = Scratch::reserve(biases, wants_lse.then_some(rows))?;
            Ok((scratch, RowsOf::reserve(space, SCORES, scores)?))
        };
        let tasks = each_task(
            room,
            space.cols,
            threads,
            scratch,
            |first, room, (scratch, scores)| {
                let done = T::dispatch(Rows {
                    first,
                    rows: room.len() / space.cols,
                    room: O::room(room),
                    scores,
                    scratch,
                });
                (done, scratch.lse.take())
            },
        )?;
        let (done, of_tasks): (Vec<_>, Vec<_>) = tasks.into_iter().unzip();
        lse.extend(of_tasks.into_iter().flatten().flatten());
        Ok(done.into_iter().reduce(Filled::then).expect("a task"))
    })?;
    Ok((y, wants_lse.then_some(lse)))
}

/// Contiguous rows, where they lie.
fn in_shares<T: ResultOf<T>>(scores: &mut [T], biases: &Biases<T>) -> Reserved<()> {
    let (rows, cols) = (biases.rows.space.rows, biases.rows.space.cols);
    let threads = own_threads(scores.len(), rows);
    // Causal rows are of unequal work.
    let shares = match threads {
        1 => 1,
        threads => rows.min(TASKS_PER_THREAD * threads),
    };
    let each = rows.div_ceil(shares);
    let scratch = (0..shares)
        .map(|_| Scratch::reserve(biases, None))
        .collect::<Reserved<Vec<_>>>()?;
    let shares = scores.chunks_mut(each * cols).zip(scratch).enumerate();
    on_own_threads(threads, shares, |(share, (rows, mut scratch))| {
        T::dispatch(InPlace {
            scratch: &mut scratch,
            first: share * each,
            rows,
        })
    });
    Ok(())
}

/// What a task needs.
struct Scratch<'a, T: Element> {
    biases: &'a Biases<'a, T>,
    logits: Logits<'a, T>,
    /// Exponentials.
    kept: Vec<T::Compute>,
    /// What is found out of each part of a row.
    parts: Vec<SoftmaxPart<T::Compute>>,
    /// Each row's log-sum-exp, where that is asked for.
    lse: Option<Vec<T::Compute>>,
}

impl<'a, T: Element> Scratch<'a, T> {
    fn reserve(biases: &'a Biases<'a, T>, lse: Option<usize>) -> Reserved<Self> {
        let cols = biases.rows.space.cols;
        Ok(Self {
            lse: lse.map(empty).transpose()?,
            parts: empty(cols.div_ceil(PART))?,
            biases,
            logits: Logits::reserve(biases)?,
            kept: zeros(cols)?,
        })
    }

    /// Asks for what is about kept of the next row, of scores `x`, where a band skips a part of each: the processor does
    /// not see where it begins. (Causal, 12 x 512 x 512 f32: 40% of the time was waiting for that.)
    #[inline(always)]
    fn prefetch<S: Vectors<T>>(&self, s: S, x: &[T]) {
        if self.biases.op.band != Band::ALL {
            let ((keys, _), most) = (self.logits.made(), AHEAD / size_of::<T>());
            s.prefetch(&x[keys.start..keys.end.min(keys.start + most)]);
        }
    }

    /// The logits of row `row`, of scores `x`, to `room` as probabilities.
    #[inline(always)]
    fn probabilities<'y, S: Vectors<T>>(
        &mut self,
        s: S,
        row: usize,
        room: Room<'y, T>,
    ) -> Filled<'y> {
        let (sink, (keys, logits)) = (self.biases.sink(row), self.logits.made());
        let kept = &mut self.kept[..keys.len()];
        self.parts.clear();
        for (t, kept) in logits.chunks(PART).zip(kept.chunks_mut(PART)) {
            overwrite(
                kept,
                #[inline(always)]
                |room| {
                    let (part, kept) = Softmax.read::<T::Compute, S>(s, [t], room);
                    self.parts.push(part);
                    Filled::of(kept)
                },
            );
        }
        let parts = self.parts.iter().copied();
        let of_row = Softmax.merge(parts.clone().chain(sink.map(SoftmaxPart::of)));
        if let Some(lse) = &mut self.lse {
            let has_nan = || logits.iter().copied().chain(sink).any(T::Compute::is_nan);
            lse.push(of_row.log_sum_exp(has_nan));
        }
        let masked = match of_row.is_nan() {
            true => T::Compute::NAN,
            false => T::Compute::ZERO,
        };
        let (before, room) = room.split_at(keys.start);
        let (mut within, after) = room.split_at(keys.len());
        let mut done = blank(s, before, masked);
        if of_row.is_nothing() {
            return done
                .then(blank(s, within, masked))
                .then(blank(s, after, masked));
        }
        for (part, kept) in parts.zip(kept.chunks(PART)) {
            let (room, rest) = within.split_at(kept.len());
            within = rest;
            let at = (part, of_row);
            done = done.then(match room {
                Room::Narrow(y) => Filled::of(Softmax.write::<T, S>(s, ([&[]], kept), at, y)),
                Room::Wide(y) => {
                    Filled::of(Softmax.write::<T::Compute, S>(s, ([&[]], kept), at, y))
                }
            });
        }
        done.then(blank(s, after, masked))
    }
}

/// Room for `len` numbers.
fn empty<X>(len: usize) -> Reserved<Vec<X>> {
    let mut numbers = Vec::new();
    numbers.try_reserve_exact(len)?;
    Ok(numbers)
}

/// Writes `x` to all of `room`.
#[inline(always)]
fn blank<T: Element, S: Vectors<T>>(s: S, room: Room<'_, T>, x: T::Compute) -> Filled<'_> {
    match room {
        Room::Narrow(room) => Filled::of(fill(s, room, x)),
        Room::Wide(room) => Filled::of(fill::<T::Compute, S>(s, room, x)),
    }
}

/// Some rows: those that fit `room`, from `first` on.
struct Rows<'a, 'b, 'y, T: Element> {
    scratch: &'b mut Scratch<'a, T>,
    scores: &'b mut RowsOf<'a, T>,
    first: usize,
    rows: usize,
    room: Room<'y, T>,
}

impl<'y, T: Element> Kernel<T> for Rows<'_, '_, 'y, T> {
    type Out = Filled<'y>;

    #[inline(always)]
    fn run<S: Vectors<T>>(self, s: S) -> Filled<'y> {
        let cols = self.scratch.biases.rows.space.cols;
        let (none, mut room) = self.room.split_at(0);
        let mut done = blank(s, none, T::Compute::ZERO);
        for row in self.first..self.first + self.rows {
            let (this, rest) = room.split_at(cols);
            room = rest;
            self.scratch.logits.make(s, row, self.scores.row(row));
            if let Some(next) = self.scores.next(row + 1) {
                self.scratch.prefetch(s, next);
            }
            done = done.then(self.scratch.probabilities(s, row, this));
        }
        done
    }
}

/// Rows of results over their scores, from `first` on.
struct InPlace<'a, 'b, T: Element> {
    scratch: &'b mut Scratch<'a, T>,
    first: usize,
    rows: &'b mut [T],
}

impl<T: ResultOf<T>> Kernel<T> for InPlace<'_, '_, T> {
    type Out = ();

    #[inline(always)]
    fn run<S: Vectors<T>>(self, s: S) {
        let cols = self.scratch.biases.rows.space.cols;
        let (mut rows, mut i) = (self.rows, self.first);
        while !rows.is_empty() {
            let (row, rest) = rows.split_at_mut(cols);
            // From here on the scores are not needed.
            self.scratch.logits.make(s, i, row);
            if !rest.is_empty() {
                self.scratch.prefetch(s, &rest[..cols]);
            }
            overwrite(
                row,
                #[inline(always)]
                |room| self.scratch.probabilities(s, i, T::room(room)),
            );
            (rows, i) = (rest, i + 1);
        }
    }
}
