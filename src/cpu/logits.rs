//! What the softmax of attention scores is taken of, a row at a time.

use super::biases::{Added, Biases};
use super::simd::{combine, keep, Access, Vectors};
use super::softcap::Softcap;
use super::task::{gather, gathered};
use super::{Element, Real};
use crate::rows::{Operand, RowSpace};
use crate::scores::{ADDED, MASK};
use std::collections::TryReserveError;
use std::ops::Range;

/// Columns at a time: each step finds what the one before it left in the L1.
const BLOCK: usize = 1024;

/// Rows of one operand; those whose columns are apart from a copy of a few at a time.
pub struct RowsOf<'a, X> {
    space: &'a RowSpace<6>,
    operand: &'a Operand,
    data: &'a [X],
    copy: Vec<X>,
    copied: Range<usize>,
}

impl<'a, X: Copy + Default> RowsOf<'a, X> {
    pub fn reserve(
        space: &'a RowSpace<6>,
        operand: usize,
        data: &'a [X],
    ) -> Result<Self, TryReserveError> {
        let operand = &space.operands[operand];
        let copy = match operand.col_stride {
            1 => Vec::new(),
            _ => zeros(gathered(space.cols).min(space.rows) * space.cols)?,
        };
        Ok(Self {
            space,
            operand,
            data,
            copy,
            copied: 0..0,
        })
    }

    /// Row `row` where it is read from soon, if it is not the copy and there is one.
    #[inline(always)]
    pub fn next(&self, row: usize) -> Option<&[X]> {
        let (space, at) = (self.space, self.operand);
        let here = at.col_stride == 1 && row < space.rows;
        here.then(|| &self.data[at.row_offset(&space.dims, row)..][..space.cols])
    }

    #[inline(always)]
    pub fn row(&mut self, row: usize) -> &[X] {
        let (space, cols) = (self.space, self.space.cols);
        if self.operand.col_stride == 1 {
            return &self.data[self.operand.row_offset(&space.dims, row)..][..cols];
        }
        if !self.copied.contains(&row) {
            self.copied = row..space.rows.min(row + gathered(cols));
            let copy = &mut self.copy[..self.copied.len() * cols];
            gather((self.operand, &space.dims), self.data, row, cols, copy);
        }
        &self.copy[(row - self.copied.start) * cols..][..cols]
    }
}

/// Makes logits of scores.
pub struct Logits<'a, T: Element> {
    biases: &'a Biases<'a, T>,
    added: Option<AddedRows<'a, T>>,
    mask: Option<RowsOf<'a, u8>>,
    keys: Range<usize>,
    logits: Vec<T::Compute>,
}

enum AddedRows<'a, T: Element> {
    Narrow(RowsOf<'a, T>),
    Wide(RowsOf<'a, T::Compute>),
}

impl<'a, T: Element> Logits<'a, T> {
    pub fn reserve(biases: &'a Biases<'a, T>) -> Result<Self, TryReserveError> {
        let space = &biases.rows.space;
        let added = match biases.added {
            None => None,
            Some(Added::Narrow(added)) => {
                Some(AddedRows::Narrow(RowsOf::reserve(space, ADDED, added)?))
            }
            Some(Added::Wide(added)) => {
                Some(AddedRows::Wide(RowsOf::reserve(space, ADDED, added)?))
            }
        };
        let mask = biases.mask.map(|mask| RowsOf::reserve(space, MASK, mask));
        Ok(Self {
            biases,
            added,
            mask: mask.transpose()?,
            keys: 0..0,
            logits: zeros(space.cols)?,
        })
    }

    /// Those of row `row`, of scores `x`: of the keys that its query sees.
    #[inline(always)]
    pub fn make<S: Vectors<T>>(&mut self, s: S, row: usize, x: &[T]) {
        let (biases, keys) = (self.biases, self.biases.keys(row));
        let scale = s.splat(T::Compute::from_f64(f64::from(biases.op.scale)));
        let added = match &mut self.added {
            None => None,
            Some(AddedRows::Narrow(rows)) => Some(Added::<T>::Narrow(rows.row(row))),
            Some(AddedRows::Wide(rows)) => Some(Added::Wide(rows.row(row))),
        };
        let mask = self.mask.as_mut().map(|rows| rows.row(row));
        let slope = biases.slope(row);
        self.keys = keys.clone();
        let logits = &mut self.logits[..keys.len()];
        let starts = keys.clone().step_by(BLOCK);
        for (t, start) in logits.chunks_mut(BLOCK).zip(starts) {
            let block = start..start + t.len();
            let x = &x[block.clone()];
            // A closure is inlined into the vectors' level, or it is a call with vectors in memory.
            match biases.op.softcap {
                None => combine(
                    s,
                    x,
                    t,
                    #[inline(always)]
                    |_, x| s.mul(x, scale),
                ),
                Some(cap) => {
                    let cap = Softcap::<T::Compute, S>::new(s, cap);
                    combine(
                        s,
                        x,
                        t,
                        #[inline(always)]
                        |_, x| cap.of(s, s.mul(x, scale)),
                    );
                }
            }
            if let Some((slope, distances)) = slope {
                let slope = s.splat(slope);
                combine(
                    s,
                    &distances[block.clone()],
                    t,
                    #[inline(always)]
                    |t, distance| s.sub(t, s.mul(slope, distance)), // the product is rounded first
                );
            }
            match &added {
                None => {}
                Some(Added::Narrow(added)) => add::<T, S>(s, &added[block.clone()], t),
                Some(Added::Wide(added)) => add::<T::Compute, S>(s, &added[block.clone()], t),
            }
            if let Some(mask) = mask {
                keep(s, t, &mask[block]);
            }
        }
    }

    /// The last that were made, and of which keys.
    #[inline(always)]
    pub fn made(&self) -> (Range<usize>, &[T::Compute]) {
        (self.keys.clone(), &self.logits[..self.keys.len()])
    }
}

/// Adds `x` to `t`.
#[inline(always)]
fn add<E: Element, S: Access<E> + Access<E::Compute>>(s: S, x: &[E], t: &mut [E::Compute]) {
    combine(
        s,
        x,
        t,
        #[inline(always)]
        |t, x| s.add(t, x),
    );
}

/// Zeros, if there is memory for them.
pub fn zeros<X: Copy + Default>(len: usize) -> Result<Vec<X>, TryReserveError> {
    let mut zeros = Vec::new();
    zeros.try_reserve_exact(len)?;
    zeros.resize(len, X::default());
    Ok(zeros)
}
