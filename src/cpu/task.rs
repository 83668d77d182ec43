//! What one thread does: some rows, each through the row core.

use super::row::{At, RowOp};
use super::short::{most_short, surely_short};
use super::simd::{uninit, Filled, Kernel, Simd, Vectors};
use super::Element;
use crate::rows::{Operand, RowSpace};
use rayon::prelude::*;
use std::collections::TryReserveError;
use std::mem::MaybeUninit;

/// Columns of a part of a row. Longer rows are read part by part, each relative to its own maximum: once, where a first
/// pass for the maximum of all would read memory twice; and by several threads.
pub const PART: usize = 1 << 16;

/// Rows whose columns are apart are gathered so many at a time, as neighbours share cache lines.
const GATHERED: usize = 16;

/// The operands of an operator.
#[derive(Clone, Copy)]
pub struct Source<'a, T, const N: usize> {
    pub space: &'a RowSpace<N>,
    pub inputs: [&'a [T]; N],
}

impl<T: Element, const N: usize> Source<'_, T, N> {
    /// Whether row after row of `operand` is copied before it is used.
    fn is_gathered(operand: &Operand) -> bool {
        operand.col_stride != 1
    }

    /// The elements of all inputs from row `first` on, where row comes after row in each.
    fn contiguous(&self, first: usize, len: usize) -> Option<[&[T]; N]> {
        let cols = self.space.cols;
        let mut x: [&[T]; N] = [&[]; N];
        for ((x, operand), input) in x.iter_mut().zip(&self.space.operands).zip(self.inputs) {
            if !operand.is_contiguous(cols) {
                return None;
            }
            *x = &input[operand.offset + first * cols..][..len];
        }
        Some(x)
    }
}

/// Rows of `cols` columns that are gathered at a time: fewer of long ones.
pub fn gathered(cols: usize) -> usize {
    ((GATHERED * PART / 4) / cols.max(1)).clamp(1, GATHERED)
}

/// Copies rows of an operand whose row dims are `dims`, from `first` on, into `rows`, one after another.
pub fn gather<X: Copy>(
    (operand, dims): (&Operand, &[usize]),
    input: &[X],
    first: usize,
    cols: usize,
    rows: &mut [X],
) {
    let count = rows.len() / cols;
    let mut starts = [0; GATHERED];
    for (row, start) in starts[..count].iter_mut().enumerate() {
        *start = operand.row_offset(dims, first + row);
    }
    for c in 0..cols {
        for (row, start) in starts[..count].iter().enumerate() {
            rows[row * cols + c] = input[start + c * operand.col_stride];
        }
    }
}

/// Memory that a task needs.
pub struct Scratch<T: Element, const N: usize> {
    /// Rows of the inputs whose columns are apart.
    gathered: [Vec<T>; N],
    /// What the first pass leaves for the second.
    kept: Vec<MaybeUninit<T::Compute>>,
}

impl<T: Element, const N: usize> Scratch<T, N> {
    pub fn reserve<O: RowOp<N>>(source: &Source<T, N>) -> Result<Self, TryReserveError> {
        let cols = source.space.cols;
        let mut copies = std::array::from_fn(|_| Vec::new());
        for (rows, operand) in copies.iter_mut().zip(&source.space.operands) {
            if Source::<T, N>::is_gathered(operand) {
                let len = gathered(cols).min(source.space.rows) * cols;
                rows.try_reserve_exact(len)?;
                rows.resize(len, T::default());
            }
        }
        let keeps =
            O::KEEPS && cols > surely_short::<T::Compute>() && T::as_compute(&mut []).is_err();
        let kept = uninit(if keeps { cols } else { 0 })?;
        Ok(Self {
            gathered: copies,
            kept,
        })
    }
}

/// What room there is for results: for what the first pass keeps too, or (of halves, or where it keeps nothing) not.
fn room_to_keep<O: RowOp<N>, T: Element, const N: usize>(
    room: &mut [MaybeUninit<T>],
) -> Result<&mut [MaybeUninit<T::Compute>], &mut [MaybeUninit<T>]> {
    match O::KEEPS {
        true => T::as_compute(room),
        false => Err(room),
    }
}

/// Some rows: those that fit `room`, from `first` on.
pub struct Rows<'a, 'y, O, T: Element, const N: usize> {
    pub op: O,
    pub source: Source<'a, T, N>,
    pub first: usize,
    pub room: &'y mut [MaybeUninit<T>],
    pub scratch: &'a mut Scratch<T, N>,
}

impl<'y, O: RowOp<N>, T: Element, const N: usize> Rows<'_, 'y, O, T, N> {
    /// `pool`: long rows are split over threads.
    pub fn run(self, pool: bool) -> Filled<'y> {
        let cols = self.source.space.cols;
        match cols > PART {
            false => T::dispatch(self),
            true => self.each_row(|op, x, kept, room| long_row(op, x, kept, room, pool)),
        }
    }

    #[inline(always)]
    fn each_row(
        self,
        row_op: impl Fn(
            O,
            [&[T]; N],
            &mut [MaybeUninit<T::Compute>],
            &'y mut [MaybeUninit<T>],
        ) -> Filled<'y>,
    ) -> Filled<'y> {
        let source = self.source;
        let (space, cols) = (source.space, source.space.cols);
        let block = self::gathered(cols);
        let mut done = Filled::none(self.room);
        for (i, room) in self.room.chunks_mut(cols).enumerate() {
            let mut x: [&[T]; N] = [&[]; N];
            for (n, (x, gathered)) in x.iter_mut().zip(&mut self.scratch.gathered).enumerate() {
                let operand = &space.operands[n];
                *x = if Source::<T, N>::is_gathered(operand) {
                    if i % block == 0 {
                        let rows = block.min(space.rows - self.first - i);
                        let (at, gathered) =
                            ((operand, &space.dims[..]), &mut gathered[..rows * cols]);
                        gather(at, source.inputs[n], self.first + i, cols, gathered);
                    }
                    &gathered[i % block * cols..][..cols]
                } else {
                    &source.inputs[n][operand.row_offset(&space.dims, self.first + i)..][..cols]
                };
            }
            done = done.then(row_op(self.op, x, &mut self.scratch.kept, room));
        }
        done
    }
}

impl<'y, O: RowOp<N>, T: Element, const N: usize> Kernel<T> for Rows<'_, 'y, O, T, N> {
    type Out = Filled<'y>;

    #[inline(always)]
    fn run<S: Vectors<T>>(self, s: S) -> Filled<'y> {
        let cols = self.source.space.cols;
        match cols <= most_short(<S as Simd<T::Compute>>::N) {
            true => match self.source.contiguous(self.first, self.room.len()) {
                Some(x) => self.op.short(s, x, cols, self.room),
                None => self.each_row(
                    #[inline(always)]
                    |op, x, _, room| op.short(s, x, cols, room),
                ),
            },
            false => self.each_row(
                #[inline(always)]
                |op, x, kept, room| whole_row(s, op, x, kept, room),
            ),
        }
    }
}

/// A row in one part.
#[inline(always)]
fn whole_row<'y, O: RowOp<N>, T: Element, S: Vectors<T>, const N: usize>(
    s: S,
    op: O,
    x: [&[T]; N],
    kept: &mut [MaybeUninit<T::Compute>],
    room: &'y mut [MaybeUninit<T>],
) -> Filled<'y> {
    match room_to_keep::<O, T, N>(room) {
        Ok(room) => {
            let (part, kept) = op.read(s, x, room);
            let row = op.merge([part].into_iter());
            op.write_kept::<T, S>(s, kept, (part, row));
            Filled::of(kept)
        }
        Err(room) => {
            let (part, kept) = op.read(s, x, kept);
            let row = op.merge([part].into_iter());
            Filled::of(op.write(s, (x, kept), (part, row), room))
        }
    }
}

/// A row in several parts, by several threads where `pool`: the bits do not depend on that.
fn long_row<'y, O: RowOp<N>, T: Element, const N: usize>(
    op: O,
    x: [&[T]; N],
    kept: &mut [MaybeUninit<T::Compute>],
    room: &'y mut [MaybeUninit<T>],
    pool: bool,
) -> Filled<'y> {
    let fills = match room_to_keep::<O, T, N>(room) {
        Ok(room) => {
            let (read, row) = read_parts(op, x, room.chunks_mut(PART).collect(), pool);
            each_part(read, pool, |(part, kept)| {
                let at = (part, row);
                T::dispatch(WriteKept::<O, T, N> { op, kept, at })
            })
        }
        Err(room) => {
            let kept = match O::KEEPS {
                true => kept.chunks_mut(PART).collect(),
                false => room.chunks(PART).map(|_| &mut [][..]).collect(),
            };
            let (read, row) = read_parts(op, x, kept, pool);
            let write = read.into_iter().zip(room.chunks_mut(PART)).enumerate();
            each_part(write.collect(), pool, |(p, ((part, kept), room))| {
                let (from, at) = ((part_of(x, p), &*kept), (part, row));
                T::dispatch(Write { op, from, at, room })
            })
        }
    };
    let joined = fills.into_iter().reduce(Filled::then);
    joined.expect("a long row has parts")
}

/// Part `p` of a row.
fn part_of<T, const N: usize>(x: [&[T]; N], p: usize) -> [&[T]; N] {
    x.map(|x| &x[p * PART..x.len().min((p + 1) * PART)])
}

/// What the first pass says of a part, and the numbers it leaves.
type ReadPart<'k, O, C, const N: usize> = (<O as RowOp<N>>::Part<C>, &'k mut [C]);

/// The same of all parts of a row, and what they say together.
type ReadRow<'k, O, C, const N: usize> = (Vec<ReadPart<'k, O, C, N>>, <O as RowOp<N>>::Row<C>);

/// The first pass over a row.
fn read_parts<'k, O: RowOp<N>, T: Element, const N: usize>(
    op: O,
    x: [&[T]; N],
    kept: Vec<&'k mut [MaybeUninit<T::Compute>]>,
    pool: bool,
) -> ReadRow<'k, O, T::Compute, N> {
    let read = each_part(kept.into_iter().enumerate().collect(), pool, |(p, kept)| {
        let x = part_of(x, p);
        T::dispatch(Read { op, x, kept })
    });
    let row = op.merge(read.iter().map(|(part, _)| *part));
    (read, row)
}

/// Calls `f` with each item, in parallel where `pool`; results in order.
fn each_part<I: Send, R: Send>(
    items: Vec<I>,
    pool: bool,
    f: impl Fn(I) -> R + Sync + Send,
) -> Vec<R> {
    match pool {
        true => items.into_par_iter().map(f).collect(),
        false => items.into_iter().map(f).collect(),
    }
}

struct Read<'a, 'k, O, T: Element, const N: usize> {
    op: O,
    x: [&'a [T]; N],
    kept: &'k mut [MaybeUninit<T::Compute>],
}

impl<'k, O: RowOp<N>, T: Element, const N: usize> Kernel<T> for Read<'_, 'k, O, T, N> {
    type Out = ReadPart<'k, O, T::Compute, N>;

    #[inline(always)]
    fn run<S: Vectors<T>>(self, s: S) -> Self::Out {
        self.op.read(s, self.x, self.kept)
    }
}

struct Write<'a, 'y, O: RowOp<N>, T: Element, const N: usize> {
    op: O,
    from: ([&'a [T]; N], &'a [T::Compute]),
    at: At<O, T::Compute, N>,
    room: &'y mut [MaybeUninit<T>],
}

impl<'y, O: RowOp<N>, T: Element, const N: usize> Kernel<T> for Write<'_, 'y, O, T, N> {
    type Out = Filled<'y>;

    #[inline(always)]
    fn run<S: Vectors<T>>(self, s: S) -> Filled<'y> {
        Filled::of(self.op.write(s, self.from, self.at, self.room))
    }
}

struct WriteKept<'k, O: RowOp<N>, T: Element, const N: usize> {
    op: O,
    kept: &'k mut [T::Compute],
    at: At<O, T::Compute, N>,
}

impl<'k, O: RowOp<N>, T: Element, const N: usize> Kernel<T> for WriteKept<'k, O, T, N> {
    type Out = Filled<'k>;

    #[inline(always)]
    fn run<S: Vectors<T>>(self, s: S) -> Filled<'k> {
        self.op.write_kept::<T, S>(s, self.kept, self.at);
        Filled::of(self.kept)
    }
}
